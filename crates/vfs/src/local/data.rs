//! Reading, writing and committing data. The place for a cache of open files is [`LocalVfs::open_data`]: it alone decides
//! whether a descriptor may be used by a caller.

use std::fmt::Write as _;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use arrayvec::ArrayString;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

use super::LocalVfs;
use super::sys::check_access;
use crate::Stability;
use crate::answer::{Changed, Written};
use crate::attributes::{Attributes, FileKind};
use crate::caller::Caller;
use crate::error::Error;
use crate::handle::NodeHandle;

/// No offset is larger for the kernel.
pub(super) const OFFSET_MAX: u64 = i64::MAX as u64;

/// What a file is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Read,
    Write,
}

impl LocalVfs {
    /// Opens a regular file for I/O. The kernel decides for the caller's ids; beyond that its owner may, whatever the mode
    /// (it may have opened it before the mode changed), and who may execute may read, for a program is executed by reading it.
    pub(super) fn open_data(
        &self,
        caller: &Caller<'_>,
        fd: BorrowedFd<'_>,
        attributes: &Attributes,
        purpose: Purpose,
    ) -> Result<OwnedFd, Error> {
        match attributes.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Errno::ISDIR.into()),
            _ => return Err(Errno::INVAL.into()),
        }
        // O_NONBLOCK: a lease that another process holds is an EAGAIN to be retried, not a wait.
        let flags = OFlags::NONBLOCK
            | match purpose {
                Purpose::Read => OFlags::RDONLY,
                Purpose::Write => OFlags::WRONLY,
            };
        match reopen(fd, flags) {
            Err(Errno::ACCESS) if self.may_override(caller, fd, attributes, purpose) => {
                Ok(self
                    .identity
                    .with(CapabilitySet::DAC_OVERRIDE, || reopen(fd, flags))??)
            }
            result => Ok(result?),
        }
    }

    fn may_override(
        &self,
        caller: &Caller<'_>,
        fd: BorrowedFd<'_>,
        attributes: &Attributes,
        purpose: Purpose,
    ) -> bool {
        let executes = || purpose == Purpose::Read && check_access(fd, libc::X_OK).is_ok();
        caller.uid == attributes.uid || executes()
    }

    pub(super) fn write_data(
        &self,
        caller: &Caller<'_>,
        handle: &NodeHandle,
        offset: u64,
        data: &[u8],
        stability: Stability,
    ) -> Changed<Written> {
        let (changed, fd) = self.change(caller, handle, |fd, before| {
            let file = self.open_data(caller, fd, before, Purpose::Write)?;
            Ok((write_all(file.as_fd(), offset, data)?, file))
        });
        let value = changed.value.and_then(|(count, file)| {
            match stability {
                Stability::Unstable => {
                    if let Some(fd) = fd {
                        self.note_unstable(handle, fd.as_fd(), &file)?;
                    }
                }
                Stability::DataSync => retry(|| rustix::fs::fdatasync(&file)).map_err(Error::Lost)?,
                Stability::FileSync => retry(|| rustix::fs::fsync(&file)).map_err(Error::Lost)?,
            }
            Ok(Written {
                count: u32::try_from(count).map_err(|_| Errno::INVAL)?,
                stability,
            })
        });
        Changed {
            before: changed.before,
            after: changed.after,
            value,
        }
    }

    /// Remembers unwritten data, and syncs those that cannot be remembered any longer.
    fn note_unstable(&self, handle: &NodeHandle, fd: BorrowedFd<'_>, file: &OwnedFd) -> Result<(), Error> {
        if self.unstable.knows(handle) {
            return Ok(());
        }
        let oldest = match self.open_to_sync(fd) {
            Ok(kept) => self.unstable.note(handle, Arc::new(kept)),
            // What cannot be watched is made durable now.
            Err(_) => return sync(file),
        };
        oldest.map_or(Ok(()), |oldest| sync(&oldest))
    }

    pub(super) fn commit_data(&self, caller: &Caller<'_>, handle: &NodeHandle) -> Changed<()> {
        let (mut changed, fd) = self.change(caller, handle, |fd, before| match before.kind {
            FileKind::Regular if caller.uid == before.uid => Ok(()),
            FileKind::Regular => Ok(check_access(fd, libc::W_OK)?),
            FileKind::Directory => Err(Errno::ISDIR.into()),
            _ => Err(Errno::INVAL.into()),
        });
        if let (Some(fd), Ok(())) = (fd, &changed.value) {
            // A descriptor from before the data were written back hears of errors that others were told of, too.
            changed.value = match self.unstable.take(handle) {
                Some(remembered) => sync(&remembered),
                None => self.open_to_sync(fd.as_fd()).and_then(|file| sync(&file)),
            };
        }
        changed
    }

    /// Opens a regular file to make it durable. To read, whoever may: a descriptor to write would be in the way of whom
    /// executes the file.
    fn open_to_sync(&self, fd: BorrowedFd<'_>) -> Result<OwnedFd, Error> {
        let open = || reopen(fd, OFlags::RDONLY | OFlags::NONBLOCK);
        Ok(self.identity.with(CapabilitySet::DAC_OVERRIDE, open)??)
    }
}

/// Makes a file's data durable.
fn sync(file: &OwnedFd) -> Result<(), Error> {
    retry(|| rustix::fs::fsync(file)).map_err(Error::Lost)
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

/// Writes as much as there is room for; an error only if that is nothing.
fn write_all(file: BorrowedFd<'_>, offset: u64, data: &[u8]) -> Result<usize, Errno> {
    if offset
        .checked_add(data.len() as u64)
        .is_none_or(|end| end > OFFSET_MAX)
    {
        return Err(Errno::FBIG);
    }
    let mut written = 0;
    while written < data.len() {
        match rustix::io::pwrite(file, &data[written..], offset + written as u64) {
            Ok(0) => break,
            Ok(now) => written += now,
            Err(Errno::INTR) => {}
            Err(_) if written > 0 => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(written)
}
