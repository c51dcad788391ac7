//! Shared file mappings, locks, and truncate(2).
//!
//! JUSTIFICATION: mappings are tested here, and there is no safe way to map a file; no safe
//! function calls truncate(2) without an open, or fcntl(2) with a `struct flock`.
#![allow(unsafe_code, reason = "mmap(2) is unsafe by nature")]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr;

use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use rustix::param::page_size;

/// Calls fcntl(2) with a command that takes a lock, and returns the lock that it leaves.
///
/// # Errors
/// The errors of fcntl(2).
pub fn fcntl_lock(file: impl AsFd, command: i32, mut lock: libc::flock) -> io::Result<libc::flock> {
    // SAFETY: the commands for locks read and write one `struct flock`, which outlives the call.
    let result = unsafe { libc::fcntl(file.as_fd().as_raw_fd(), command, &raw mut lock) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(lock) }
}

/// A shared mapping of the pages of a file's range, for one operation.
pub struct FileMapping {
    start: *mut core::ffi::c_void,
    length: usize,
    /// The start of the range in the mapping.
    skip: usize,
}

impl FileMapping {
    /// Maps `length` bytes from `offset`; they must be within the file, whose size must not change
    /// while the mapping exists.
    ///
    /// # Errors
    /// The errors of mmap(2).
    pub fn new(file: impl AsFd, offset: usize, length: usize) -> io::Result<Self> {
        let skip = offset % page_size();
        let (flags, protection) = (MapFlags::SHARED, ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a new mapping at an address chosen by the kernel overlaps no memory of Rust.
        let start =
            unsafe { mmap(ptr::null_mut(), skip + length, protection, flags, file, (offset - skip) as u64) }?;
        Ok(Self { start, length: skip + length, skip })
    }

    /// Copies the range.
    #[must_use]
    pub fn read(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.length - self.skip];
        // SAFETY: `skip` is within the mapping, which is `length` bytes long.
        let from = unsafe { self.start.cast::<u8>().add(self.skip) };
        // SAFETY: both sides have the length of `bytes`, and new memory does not overlap a mapping.
        unsafe { ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
        bytes
    }

    /// Writes `bytes` to the start of the range.
    ///
    /// # Panics
    /// They are longer than the range.
    pub fn write(&self, bytes: &[u8]) {
        assert!(bytes.len() <= self.length - self.skip, "a mapping is as long as what is written to it");
        // SAFETY: `skip` is within the mapping, which is `length` bytes long.
        let to = unsafe { self.start.cast::<u8>().add(self.skip) };
        // SAFETY: the assertion above keeps the end within the mapping, and `bytes` is other
        // memory.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// msync(2) with MS_SYNC.
    ///
    /// # Errors
    /// The errors of msync(2).
    pub fn sync(&self) -> io::Result<()> {
        // SAFETY: the range is the mapping's own.
        Ok(unsafe { msync(self.start, self.length, MsyncFlags::SYNC) }?)
    }
}

impl Drop for FileMapping {
    fn drop(&mut self) {
        // SAFETY: nothing borrows from the mapping, because its methods copy.
        let _ = unsafe { munmap(self.start, self.length) };
    }
}

/// truncate(2).
///
/// # Errors
/// The errors of truncate(2); an invalid size.
pub fn truncate(path: &Path, size: u64) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let size = libc::off_t::try_from(size).map_err(io::Error::other)?;
    // SAFETY: the path ends with NUL and is valid until the call returns.
    match unsafe { libc::truncate(path.as_ptr(), size) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
