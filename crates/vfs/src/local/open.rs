//! Opening regular files for I/O, and the rights to files that are already open. Nothing else decides whether a caller may use a
//! descriptor.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use curt_trace::stages::{self, Stage};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

use super::data::{Purpose, reopen};
use super::file_cache::{Found, OpenFile, Stamp, Ticket};
use super::stat::is_append_only;
use super::sys::check_access;
use super::{LocalVfs, attributes_of};
use crate::Waits;
use crate::attributes::{Attributes, FileKind};
use crate::caller::Caller;
use crate::error::Error;
use crate::handle::NodeHandle;

/// An open file and what it is like, just before it is used.
pub(super) type Opened = (Arc<OpenFile>, Attributes);

/// Why there is none.
#[derive(Clone, Copy, Debug)]
pub(super) struct NotOpened {
    /// The object's attributes, if its handle resolves.
    pub(super) attributes: Option<Attributes>,
    pub(super) error: Error,
}

impl NotOpened {
    const fn unresolved(error: Error) -> Self {
        Self {
            attributes: None,
            error,
        }
    }
}

impl LocalVfs {
    /// Has a regular file open for a caller, who has the right to it now, and this thread work as the caller.
    pub(super) fn open_file(
        &self,
        caller: &Caller<'_>,
        handle: &NodeHandle,
        purpose: Purpose,
    ) -> Result<Opened, NotOpened> {
        let _stage = stages::enter(Stage::Open, "open_file");
        match self.kept.files.find(handle, purpose, caller) {
            Found::Open(file) => self.use_open(caller, handle, purpose, file),
            Found::Missing(ticket) => self.open_anew(caller, handle, purpose, ticket),
        }
    }

    /// As [`LocalVfs::open_file`]; `None` where a disk might have to be waited for.
    pub(super) fn open_file_at_hand(
        &self,
        caller: &Caller<'_>,
        handle: &NodeHandle,
        purpose: Purpose,
    ) -> Option<Result<Opened, NotOpened>> {
        match self.pace.waits {
            Waits::Never => Some(self.open_file(caller, handle, purpose)),
            Waits::Always => None,
            Waits::Data => {
                let _stage = stages::enter(Stage::Open, "open_file");
                // Who opens it at this moment may wait for the disk.
                match self.kept.files.find_at_once(handle, purpose, caller)? {
                    Found::Open(file) => Some(self.use_open(caller, handle, purpose, file)),
                    Found::Missing(ticket) if self.is_at_hand(handle) => {
                        Some(self.open_anew(caller, handle, purpose, ticket))
                    }
                    Found::Missing(_) => None,
                }
            }
        }
    }

    /// Whether a look at an object waits for nothing: its inode is in memory, and the file system is of this machine.
    pub(super) fn is_at_hand(&self, handle: &NodeHandle) -> bool {
        match self.pace.waits {
            Waits::Never => true,
            Waits::Always => false,
            Waits::Data => {
                *handle == self.root_handle
                    || self.kept.objects.knows(handle)
                    || self.kept.files.knows(handle)
            }
        }
    }

    fn use_open(
        &self,
        caller: &Caller<'_>,
        handle: &NodeHandle,
        purpose: Purpose,
        file: Arc<OpenFile>,
    ) -> Result<Opened, NotOpened> {
        let attributes = attributes_of(file.as_fd()).map_err(|error| {
            self.let_go(handle, error);
            NotOpened::unresolved(error)
        })?;
        let failed = |error: Error| NotOpened {
            attributes: Some(attributes),
            error,
        };
        self.identity
            .assume(caller)
            .map_err(|errno| failed(errno.into()))?;
        let stamp = Stamp::of(&attributes);
        if !file.is_checked(stamp) {
            if let Err(error) = self.check_right(caller, file.as_fd(), &attributes, purpose) {
                self.kept.files.release(handle);
                return Err(failed(error));
            }
            file.check_passed(stamp);
        }
        Ok((file, attributes))
    }

    fn open_anew(
        &self,
        caller: &Caller<'_>,
        handle: &NodeHandle,
        purpose: Purpose,
        ticket: Ticket<'_>,
    ) -> Result<Opened, NotOpened> {
        let object = self.resolve(handle).map_err(NotOpened::unresolved)?;
        let attributes = self.look(handle, &object).map_err(NotOpened::unresolved)?;
        let assumed = self.identity.assume(caller).map_err(Error::from);
        let opened = assumed.and_then(|()| self.open_data(caller, object.as_fd(), &attributes, purpose));
        match opened {
            Ok(fd) => {
                let (file, first) = ticket.opened(fd, Stamp::of(&attributes));
                if first {
                    self.sweeper.wake();
                }
                Ok((file, attributes))
            }
            Err(error) => Err(NotOpened {
                attributes: Some(attributes),
                error,
            }),
        }
    }

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
        match self.open_as_caller(caller, fd, attributes, purpose) {
            // What is kept for speed must not be what descriptors are missing for.
            Err(Error::Os(Errno::MFILE | Errno::NFILE)) => {
                self.kept.release_all();
                self.open_as_caller(caller, fd, attributes, purpose)
            }
            opened => opened,
        }
    }

    fn open_as_caller(
        &self,
        caller: &Caller<'_>,
        fd: BorrowedFd<'_>,
        attributes: &Attributes,
        purpose: Purpose,
    ) -> Result<OwnedFd, Error> {
        // O_NONBLOCK: a lease that another process holds is an EAGAIN to be retried, not a wait.
        let flags = OFlags::NONBLOCK
            | match purpose {
                Purpose::Read => OFlags::RDONLY,
                Purpose::Write => OFlags::WRONLY,
            };
        match reopen(fd, flags) {
            Err(Errno::ACCESS) if may_override(caller, fd, attributes, purpose) => {
                let open = || reopen(fd, flags);
                Ok(self.identity.with(CapabilitySet::DAC_OVERRIDE, open)??)
            }
            result => Ok(result?),
        }
    }

    /// Whether a caller, as whom this thread works, could open a file that is open already.
    fn check_right(
        &self,
        caller: &Caller<'_>,
        fd: BorrowedFd<'_>,
        attributes: &Attributes,
        purpose: Purpose,
    ) -> Result<(), Error> {
        let _stage = stages::enter(Stage::Permission, "access");
        let right = match purpose {
            Purpose::Read => libc::R_OK,
            Purpose::Write => libc::W_OK,
        };
        match check_access(fd, right) {
            Err(Errno::ACCESS) if may_override(caller, fd, attributes, purpose) => {}
            result => result?,
        }
        // Opening one to write at some place is refused to everybody, and writing to one that is open is not.
        if purpose == Purpose::Write && is_append_only(fd)? {
            return Err(Errno::PERM.into());
        }
        Ok(())
    }

    /// Closes what is kept of an object that cannot be looked at. If somebody removed it, its space is not to be kept from the
    /// others, whatever of it was not durable.
    pub(super) fn let_go(&self, handle: &NodeHandle, error: Error) {
        self.kept.files.release(handle);
        self.kept.objects.release(handle);
        if error == Error::STALE {
            self.kept.unstable.forget(handle);
        }
    }
}

fn may_override(caller: &Caller<'_>, fd: BorrowedFd<'_>, attributes: &Attributes, purpose: Purpose) -> bool {
    let executes = || purpose == Purpose::Read && check_access(fd, libc::X_OK).is_ok();
    caller.uid == attributes.uid || executes()
}
