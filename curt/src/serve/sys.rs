//! Inherited descriptors; and for tests, system calls that must be refused.
//!
//! JUSTIFICATION: a service manager passes the number of a descriptor in an environment variable;
//! no safe function takes ownership of a number, and none makes the system calls that a filter must
//! refuse.
#![allow(unsafe_code, reason = "ownership of a descriptor that is known by its number; raw calls in tests")]

use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::Errno;

/// The first descriptor after standard input, output and error.
const FIRST: RawFd = 3;

/// Takes ownership of an inherited descriptor, which must be open.
///
/// Called once for a number, at a program's start: it must have no other owner.
pub(super) fn take_descriptor(number: RawFd) -> Result<OwnedFd, Errno> {
    if number < FIRST {
        return Err(Errno::BADF);
    }
    // SAFETY: it is only used for fcntl(2), which fails if it is not open, and is not stored.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_getfd(borrowed)?;
    // SAFETY: it is open, and by the rule above it has no owner.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Makes a system call.
#[cfg(test)]
type Attempt = fn() -> Result<(), Errno>;

/// System calls without a safe function, for the test that a filter refuses them. None would have
/// an effect if it were allowed.
#[cfg(test)]
pub(super) const FORBIDDEN: [(&str, Attempt); 4] = [
    ("ptrace", || {
        // SAFETY: this process is not traced; the addresses are null.
        done(unsafe { libc::syscall(libc::SYS_ptrace, libc::PTRACE_PEEKDATA, 0, 0, 0) })
    }),
    ("process_vm_readv", || {
        // SAFETY: there are no buffers on either side.
        done(unsafe { libc::syscall(libc::SYS_process_vm_readv, std::process::id(), 0, 0, 0, 0, 0) })
    }),
    ("mount", || {
        // SAFETY: the kernel refuses null pointers.
        done(unsafe { libc::syscall(libc::SYS_mount, 0, 0, 0, 0, 0) })
    }),
    ("executable memory", || {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, which is not used.
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
