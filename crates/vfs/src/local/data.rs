//! Opening a file for I/O: common code of read, write and truncation.

use std::fmt::Write as _;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use arrayvec::ArrayString;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// The kernel's maximum offset.
pub(super) const OFFSET_MAX: u64 = i64::MAX as u64;

/// The access mode of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpenAccess {
    Read,
    Write,
}

/// Opens the object of an `O_PATH` descriptor with this thread's current credentials.
pub(super) fn reopen(fd: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
    let path = proc_path(fd);
    retry(|| rustix::fs::open(path.as_str(), flags | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty()))
}

/// A path of the object of a descriptor.
pub(super) fn proc_path(fd: BorrowedFd<'_>) -> ArrayString<32> {
    let mut path = ArrayString::new();
    write!(path, "/proc/self/fd/{}", fd.as_raw_fd()).expect("a number has at most 10 digits");
    path
}

/// Repeats a system call while it returns EINTR.
pub(super) fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}
