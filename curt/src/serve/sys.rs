//! Descriptors that came by number; and for tests, system calls that must be refused.
//!
//! JUSTIFICATION: a service manager tells the number of a descriptor in an environment variable; no
//! safe function makes an owner of a number, and none makes the calls that a filter is to refuse.
#![allow(
    unsafe_code,
    reason = "ownership of a descriptor that is known by its number; raw calls in tests"
)]

use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::Errno;

/// The first descriptor that is not standard input, output or error.
const FIRST: RawFd = 3;

/// Makes this program the owner of a descriptor that it was given by its number, which must be
/// open.
///
/// To be called once for a number, at a program's start: nobody else may own it.
pub(super) fn take_descriptor(number: RawFd) -> Result<OwnedFd, Errno> {
    if number < FIRST {
        return Err(Errno::BADF);
    }
    // SAFETY: it is only asked for its flags, which fails if it is not open, and is not kept.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_getfd(borrowed)?;
    // SAFETY: it is open, and by the rule above nobody owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// A system call by itself.
#[cfg(test)]
type Attempt = fn() -> Result<(), Errno>;

/// System calls that no safe function makes, for the test that a filter refuses them. None would do
/// anything if it were allowed.
#[cfg(test)]
pub(super) const FORBIDDEN: [(&str, Attempt); 4] = [
    ("ptrace", || {
        // SAFETY: to be traced by oneself and to have no memory read: the arguments point to
        // nothing.
        done(unsafe { libc::syscall(libc::SYS_ptrace, libc::PTRACE_PEEKDATA, 0, 0, 0) })
    }),
    ("process_vm_readv", || {
        // SAFETY: no buffers, on either side.
        done(unsafe { libc::syscall(libc::SYS_process_vm_readv, std::process::id(), 0, 0, 0, 0, 0) })
    }),
    ("mount", || {
        // SAFETY: the kernel refuses null pointers.
        done(unsafe { libc::syscall(libc::SYS_mount, 0, 0, 0, 0, 0) })
    }),
    ("executable memory", || {
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_EXEC,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        // SAFETY: a new mapping, which nobody is told of.
        done(unsafe { libc::syscall(libc::SYS_mmap, 0, 4096, protection, flags, -1, 0) })
    }),
];

#[cfg(test)]
fn done(status: libc::c_long) -> Result<(), Errno> {
    if status == -1 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_not_open_is_refused() {
        for number in [-1, 0, 2, RawFd::MAX] {
            assert_eq!(take_descriptor(number).err(), Some(Errno::BADF), "{number}");
        }
    }
}
