//! System calls that rustix does not support: handles, the thread's file-system ids, access checks
//! by descriptor, byte-range locks, and leases with their signals.
//!
//! JUSTIFICATION: there is no safe binding for name_to_handle_at, open_by_handle_at, setfsuid,
//! setfsgid, cachestat, faccessat2 with AT_EMPTY_PATH, fcntl with F_OFD_SETLK and F_SETLEASE, and
//! signalfd. glibc's wrappers of the id calls change all threads of the process; only the raw calls
//! change one.
#![allow(unsafe_code, reason = "system calls without a safe binding")]

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use curt_types::LockType;
use rustix::io::Errno;

use crate::handle::HANDLE_BYTES_MAX;

/// The kernel's `struct file_handle`, with the maximum size of a handle here.
#[repr(C)]
struct RawHandle {
    bytes: u32,
    kind: i32,
    data: [u8; HANDLE_BYTES_MAX],
}

/// A handle of the kernel.
pub(super) struct KernelHandle {
    pub(super) kind: u8,
    pub(super) bytes: [u8; HANDLE_BYTES_MAX],
    pub(super) length: usize,
    /// The mount of the object, as in statx(2) (`STATX_MNT_ID`).
    pub(super) mount: u64,
}

/// The handle of the object of `fd`. `EOVERFLOW`: it has more than [`HANDLE_BYTES_MAX`] bytes, or a
/// type above 255; `EOPNOTSUPP`: the file system has no handles.
pub(super) fn name_to_handle(fd: BorrowedFd<'_>) -> Result<KernelHandle, Errno> {
    name_to_handle_at(fd, c"", libc::AT_EMPTY_PATH)
}

/// The handle of `name` in a directory; for a symbolic link itself.
pub(super) fn name_to_handle_of(directory: BorrowedFd<'_>, name: &CStr) -> Result<KernelHandle, Errno> {
    name_to_handle_at(directory, name, 0)
}

fn name_to_handle_at(fd: BorrowedFd<'_>, path: &CStr, flags: libc::c_int) -> Result<KernelHandle, Errno> {
    let capacity = u32::try_from(HANDLE_BYTES_MAX).map_err(|_| Errno::OVERFLOW)?;
    let mut raw = RawHandle { bytes: capacity, kind: 0, data: [0; HANDLE_BYTES_MAX] };
    let mut mount: libc::c_int = 0;
    // SAFETY: `raw` has the layout of `struct file_handle` with space for `bytes` bytes, the path
    // is a C string, and all pointers are to values that outlive the call.
    let status = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            fd.as_raw_fd(),
            path.as_ptr(),
            &raw mut raw,
            &raw mut mount,
            flags,
        )
    };
    done(status)?;
    let length = usize::try_from(raw.bytes).map_err(|_| Errno::OVERFLOW)?;
    let kind = u8::try_from(raw.kind).map_err(|_| Errno::OVERFLOW)?;
    if length > HANDLE_BYTES_MAX {
        return Err(Errno::OVERFLOW);
    }
    Ok(KernelHandle {
        kind,
        bytes: raw.data,
        length,
        mount: u64::try_from(mount).map_err(|_| Errno::OVERFLOW)?,
    })
}

/// Opens (O_PATH) the object of a handle, on the file system of `mount`. `ESTALE` if there is none.
pub(super) fn open_by_handle(mount: BorrowedFd<'_>, kind: u8, bytes: &[u8]) -> Result<OwnedFd, Errno> {
    let mut data = [0; HANDLE_BYTES_MAX];
    data.get_mut(..bytes.len()).ok_or(Errno::STALE)?.copy_from_slice(bytes);
    let length = u32::try_from(bytes.len()).map_err(|_| Errno::STALE)?;
    let mut raw = RawHandle { bytes: length, kind: i32::from(kind), data };
    let flags = libc::O_PATH | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    // SAFETY: `raw` is a `struct file_handle` of `bytes` bytes that outlives the call.
    let status =
        unsafe { libc::syscall(libc::SYS_open_by_handle_at, mount.as_raw_fd(), &raw mut raw, flags) };
    let fd = i32::try_from(done(status)?).map_err(|_| Errno::BADF)?;
    // SAFETY: the kernel returned a new descriptor, which has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets the thread's file-system uid, and returns the previous one. There is no error: call it
/// again to check.
pub(super) fn set_fs_uid(uid: u32) -> u32 {
    // SAFETY: the call takes a number and has no memory effects.
    let before = unsafe { libc::syscall(libc::SYS_setfsuid, libc::c_ulong::from(uid)) };
    id(before)
}

/// Sets the thread's file-system gid, and returns the previous one.
pub(super) fn set_fs_gid(gid: u32) -> u32 {
    // SAFETY: the call takes a number and has no memory effects.
    let before = unsafe { libc::syscall(libc::SYS_setfsgid, libc::c_ulong::from(gid)) };
    id(before)
}

/// Whether this thread has all of `rights` (R_OK, W_OK, X_OK) on the object of `fd`, by its current
/// file-system ids and capabilities.
pub(super) fn check_access(fd: BorrowedFd<'_>, rights: libc::c_int) -> Result<(), Errno> {
    let flags = libc::AT_EMPTY_PATH | libc::AT_EACCESS;
    // SAFETY: the path is an empty C string; the rest are numbers.
    let status = unsafe { libc::syscall(libc::SYS_faccessat2, fd.as_raw_fd(), c"".as_ptr(), rights, flags) };
    done(status).map(|_| ())
}

/// A lock as fcntl(2) describes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct FcntlLock {
    /// `F_UNLCK` if there is none.
    pub(super) lock_type: Option<LockType>,
    pub(super) start: i64,
    /// 0: to the end of the largest file.
    pub(super) length: i64,
    /// The holder that was found; -1 for an open file description.
    pub(super) process: i32,
}

/// Locks or unlocks a range for the open file description of `fd`. `EAGAIN` if it conflicts.
pub(super) fn ofd_set_lock(fd: BorrowedFd<'_>, lock: &FcntlLock) -> Result<(), Errno> {
    let mut raw = raw_lock(lock);
    ofd_lock(fd, libc::F_OFD_SETLK, &mut raw)
}

/// The lock that a lock of the open file description of `fd` would conflict with; one without a
/// type if there is none.
pub(super) fn ofd_get_lock(fd: BorrowedFd<'_>, lock: &FcntlLock) -> Result<FcntlLock, Errno> {
    let mut raw = raw_lock(lock);
    ofd_lock(fd, libc::F_OFD_GETLK, &mut raw)?;
    let lock_type = match i32::from(raw.l_type) {
        libc::F_RDLCK => Some(LockType::Read),
        libc::F_WRLCK => Some(LockType::Write),
        _ => None,
    };
    Ok(FcntlLock { lock_type, start: raw.l_start, length: raw.l_len, process: raw.l_pid })
}

fn raw_lock(lock: &FcntlLock) -> libc::flock {
    let lock_type = match lock.lock_type {
        None => libc::F_UNLCK,
        Some(LockType::Read) => libc::F_RDLCK,
        Some(LockType::Write) => libc::F_WRLCK,
    };
    libc::flock {
        l_type: i16::try_from(lock_type).expect("the types are 0, 1 and 2"),
        l_whence: i16::try_from(libc::SEEK_SET).expect("it is 0"),
        l_start: lock.start,
        l_len: lock.length,
        // Required for locks of open file descriptions.
        l_pid: 0,
    }
}

fn ofd_lock(fd: BorrowedFd<'_>, command: libc::c_int, lock: &mut libc::flock) -> Result<(), Errno> {
    // SAFETY: `lock` is a `struct flock` that outlives the call.
    let status = unsafe { libc::fcntl(fd.as_raw_fd(), command, &raw mut *lock) };
    done(status.into()).map(drop)
}

/// A signal to the thread with leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaseSignal {
    /// A process wants to write the file of this descriptor.
    Of(RawFd),
    /// Too many signals were queued: any lease may be meant.
    Overflow,
}

const F_SETSIG: libc::c_int = 10;
const F_SETOWN_EX: libc::c_int = 15;
const F_OWNER_TID: libc::c_int = 0;

/// `struct f_owner_ex`.
#[repr(C)]
struct OwnerOfSignals {
    kind: libc::c_int,
    id: libc::pid_t,
}

/// The signal of leases. Nothing else of this program uses it.
fn lease_signal() -> libc::c_int {
    libc::SIGRTMIN() + 3
}

/// A descriptor from which this thread reads the signals of leases. They are blocked for it from
/// now on.
pub(super) fn lease_signals() -> Result<OwnedFd, Errno> {
    let mut signals = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the call initialises the set.
    unsafe { libc::sigemptyset(signals.as_mut_ptr()) };
    for signal in [lease_signal(), libc::SIGIO] {
        // SAFETY: the set is initialised.
        unsafe { libc::sigaddset(signals.as_mut_ptr(), signal) };
    }
    // SAFETY: the set is initialised, and the old one is not wanted.
    let status = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, signals.as_ptr(), std::ptr::null_mut()) };
    if status != 0 {
        return Err(Errno::from_raw_os_error(status));
    }
    // SAFETY: the set is initialised.
    let fd = unsafe { libc::signalfd(-1, signals.as_ptr(), libc::SFD_CLOEXEC) };
    done(fd.into())?;
    // SAFETY: the call has returned a new descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The next signal of a descriptor of [`lease_signals`].
pub(super) fn next_lease_signal(signals: BorrowedFd<'_>) -> Result<LeaseSignal, Errno> {
    const SIZE: usize = size_of::<libc::signalfd_siginfo>();
    let mut bytes = [0; SIZE];
    if rustix::io::read(signals, &mut bytes)? != SIZE {
        return Err(Errno::IO);
    }
    // SAFETY: the structure consists of integers, and the kernel has written all of it.
    let info: libc::signalfd_siginfo = unsafe { std::mem::transmute(bytes) };
    let is_lease = i32::try_from(info.ssi_signo) == Ok(lease_signal());
    Ok(if is_lease { LeaseSignal::Of(info.ssi_fd) } else { LeaseSignal::Overflow })
}

/// Sends the signals of an open file's lease to `thread`. To be called before it has one: without
/// an owner the kernel chooses the process, and without a signal it does not tell the descriptor.
pub(super) fn send_lease_signals(fd: BorrowedFd<'_>, thread: i32) -> Result<(), Errno> {
    let owner = OwnerOfSignals { kind: F_OWNER_TID, id: thread };
    // SAFETY: `owner` has the layout of `struct f_owner_ex`, and outlives the call.
    done(unsafe { libc::fcntl(fd.as_raw_fd(), F_SETOWN_EX, &raw const owner) }.into())?;
    // SAFETY: the arguments are numbers.
    done(unsafe { libc::fcntl(fd.as_raw_fd(), F_SETSIG, lease_signal()) }.into()).map(drop)
}

/// Takes a lease on a file that is open for reading. `EAGAIN`: a process has it open for writing.
/// `EACCES`: the caller is not the file's owner, and has no CAP_LEASE.
pub(super) fn set_read_lease(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: the arguments are numbers.
    done(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK) }.into()).map(drop)
}

/// Gives a lease up. Closing the file does so in any case. `EACCES`: see [`set_read_lease`].
pub(super) fn end_lease(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: the arguments are numbers.
    done(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) }.into()).map(drop)
}

/// Whether a descriptor has a lease that no process asks to give up.
pub(super) fn has_read_lease(fd: RawFd) -> bool {
    // SAFETY: the arguments are numbers.
    unsafe { libc::fcntl(fd, libc::F_GETLEASE) == libc::F_RDLCK }
}

/// Appends up to `count` bytes from `offset` of a file to `data`, fewer at the end of the file.
pub(super) fn read_append(
    fd: BorrowedFd<'_>,
    offset: u64,
    count: usize,
    data: &mut Vec<u8>,
) -> Result<usize, Errno> {
    data.reserve(count);
    let mut got = 0;
    while got < count {
        let room = &mut data.spare_capacity_mut()[..count - got];
        let now = match rustix::io::pread(fd, room, offset + got as u64) {
            Ok((filled, _)) => filled.len(),
            Err(Errno::INTR) => continue,
            Err(_) if got > 0 => break,
            Err(errno) => return Err(errno),
        };
        if now == 0 {
            break;
        }
        got += now;
        // SAFETY: the kernel filled the first `now` bytes of the spare capacity, which follows the
        // length.
        unsafe { data.set_len(data.len() + now) };
    }
    Ok(got)
}

/// Appends up to `count` bytes from `offset` that are in the page cache, up to the first that is
/// not. `EAGAIN`: there are none; `EOPNOTSUPP`: the file system does not support this.
pub(super) fn read_append_cached(
    fd: BorrowedFd<'_>,
    offset: u64,
    count: usize,
    data: &mut Vec<u8>,
) -> Result<usize, Errno> {
    data.reserve(count);
    let room = &mut data.spare_capacity_mut()[..count];
    let buffer = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: count };
    let offset = libc::off_t::try_from(offset).map_err(|_| Errno::INVAL)?;
    // SAFETY: the range is spare capacity of `data`, which is not visible elsewhere.
    let got = unsafe { libc::preadv2(fd.as_raw_fd(), &raw const buffer, 1, offset, libc::RWF_NOWAIT) };
    let got = done(i64::try_from(got).unwrap_or(-1))?;
    let got = usize::try_from(got).unwrap_or(0);
    // SAFETY: the kernel filled the first `got` bytes of the spare capacity, which follows the
    // length.
    unsafe { data.set_len(data.len() + got) };
    Ok(got)
}

/// The number of cachestat(2), the same on every architecture.
const SYS_CACHESTAT: libc::c_long = 451;

/// The kernel's `struct cachestat_range`.
#[repr(C)]
struct CachestatRange {
    offset: u64,
    length: u64,
}

/// The kernel's `struct cachestat`: pages.
#[repr(C)]
#[derive(Default)]
struct Cachestat {
    cached: u64,
    dirty: u64,
    written_back: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Number of pages of `length` bytes from `offset` of a file that are in the page cache (Linux
/// 6.5). `ENOSYS` on older kernels; `EPERM` for a caller that neither owns the file nor may write
/// it.
pub(super) fn cached_pages(fd: BorrowedFd<'_>, offset: u64, length: u64) -> Result<u64, Errno> {
    let range = CachestatRange { offset, length };
    let mut state = Cachestat::default();
    // SAFETY: both pointers are to values with the kernel's layout that outlive the call; the last
    // argument is 0.
    let status = unsafe { libc::syscall(SYS_CACHESTAT, fd.as_raw_fd(), &raw const range, &raw mut state, 0) };
    done(status).map(|_| state.cached)
}

/// Gives this thread its own umask (and working directory).
pub(super) fn own_umask() -> Result<(), Errno> {
    // SAFETY: only the working directory, root and umask are no longer shared; memory and
    // descriptors are not affected.
    let status = unsafe { libc::syscall(libc::SYS_unshare, libc::CLONE_FS) };
    done(status).map(|_| ())
}

/// An id from the low 32 bits of the kernel's result, which may be sign-extended.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "ids are the low 32 bits")]
fn id(status: libc::c_long) -> u32 {
    status as u32
}

fn done(status: libc::c_long) -> Result<libc::c_long, Errno> {
    if status >= 0 {
        return Ok(status);
    }
    let error = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}
