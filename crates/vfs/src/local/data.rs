//! What reading, writing and setting a size share: opening a file for I/O.

use std::fmt::Write as _;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use arrayvec::ArrayString;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// No offset is larger for the kernel.
pub(super) const OFFSET_MAX: u64 = i64::MAX as u64;

/// What a file is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpenAccess {
    Read,
    Write,
}

/// Opens the object behind an `O_PATH` descriptor, with the rights that this thread has now.
pub(super) fn reopen(fd: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
    let path = proc_path(fd);
    retry(|| {
        rustix::fs::open(
            path.as_str(),
            flags | OFlags::CLOEXEC | OFlags::NOCTTY,
            Mode::empty(),
        )
    })
}

/// A path that leads to the object behind a descriptor.
pub(super) fn proc_path(fd: BorrowedFd<'_>) -> ArrayString<32> {
    let mut path = ArrayString::new();
    write!(path, "/proc/self/fd/{}", fd.as_raw_fd()).expect("a number has at most 10 digits");
    path
}

/// Runs a system call again for as long as signals interrupt it.
pub(super) fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}
