//! Opening regular files for I/O, and permissions on files that are already open. Only this module
//! decides whether a caller may use a descriptor.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use curt_observe::stages::{self, RequestStage};
use curt_types::{Attributes, FileKind};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

use super::LocalVfs;
use super::data::{OpenAccess, reopen};
use super::file_cache::{
    DescriptorRequest, FileCacheLookup, OpenLocalFile, OpenReservation, PermissionStamp,
};
use super::stat::is_append_only;
use super::sys::check_access;
use crate::MayBlock;
use crate::caller::FsCred;
use crate::error::Error;
use crate::handle::NodeHandle;

/// An open file.
pub(super) struct OpenDescriptor {
    pub(super) file: Arc<OpenLocalFile>,
    /// Its attributes just before use.
    pub(super) attributes: Attributes,
}

/// An open file for a lease.
pub(super) struct LeasableFile {
    /// Its open file description has no lease.
    pub(super) file: Arc<OwnedFd>,
    /// Whether the file cache has it, too.
    pub(super) is_cached: bool,
    /// Its attributes just before.
    pub(super) attributes: Attributes,
}

/// Why there is none.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenFailure {
    /// The object's attributes, if its handle resolves.
    pub(super) attributes: Option<Attributes>,
    pub(super) error: Error,
}

impl OpenFailure {
    const fn unresolved(error: Error) -> Self {
        Self { attributes: None, error }
    }
}

impl LocalVfs {
    /// Opens a regular file, or finds it in the cache, for a caller with current permission, and
    /// sets this thread's credentials to the caller.
    pub(super) fn open_file(&self, request: DescriptorRequest<'_>) -> Result<OpenDescriptor, OpenFailure> {
        let _stage = stages::enter(RequestStage::Open, "open_file");
        match self.open_caches.file_cache.find(request) {
            FileCacheLookup::Open(file) => self.use_open(request, file),
            FileCacheLookup::Missing(ticket) => self.open_anew(request, ticket),
        }
    }

    /// Opens a regular file for a lease, for a caller that may read it, and sets this thread's
    /// credentials to the caller. A file that is not cached is added to the cache, because the
    /// caller is about to read. A cached file is opened once more: another lease may be on its open
    /// file description.
    pub(super) fn open_for_lease(
        &self,
        caller: &FsCred<'_>,
        handle: &NodeHandle,
    ) -> Result<LeasableFile, OpenFailure> {
        let request = DescriptorRequest::new(caller, handle, OpenAccess::Read);
        match self.open_caches.file_cache.find(request) {
            FileCacheLookup::Missing(ticket) => {
                let OpenDescriptor { file, attributes } = self.open_anew(request, ticket)?;
                Ok(LeasableFile { file: file.share_with_lease(), is_cached: true, attributes })
            }
            FileCacheLookup::Open(file) => {
                let OpenDescriptor { file, attributes } = self.use_open(request, file)?;
                let opened = self.open_data(caller, file.as_fd(), &attributes, request.purpose);
                let opened = opened.map_err(|error| OpenFailure { attributes: Some(attributes), error })?;
                Ok(LeasableFile { file: Arc::new(opened), is_cached: false, attributes })
            }
        }
    }

    /// As [`LocalVfs::open_file`]; `None` if it might have to wait for a disk.
    pub(super) fn open_file_nowait(
        &self,
        request: DescriptorRequest<'_>,
    ) -> Option<Result<OpenDescriptor, OpenFailure>> {
        match self.write_latency.may_block {
            MayBlock::Never => Some(self.open_file(request)),
            MayBlock::Always => None,
            MayBlock::Data => {
                let _stage = stages::enter(RequestStage::Open, "open_file");
                // A thread that is opening it may be waiting for the disk.
                match self.open_caches.file_cache.find_nowait(request)? {
                    FileCacheLookup::Open(file) => Some(self.use_open(request, file)),
                    FileCacheLookup::Missing(ticket) if self.is_inode_in_memory(request.handle) => {
                        Some(self.open_anew(request, ticket))
                    }
                    FileCacheLookup::Missing(_) => None,
                }
            }
        }
    }

    /// Whether access to an object does not block: its inode is in memory, and the file system is
    /// local.
    pub(super) fn is_inode_in_memory(&self, handle: &NodeHandle) -> bool {
        match self.write_latency.may_block {
            MayBlock::Never => true,
            MayBlock::Always => false,
            MayBlock::Data => {
                *handle == self.root_handle
                    || self.open_caches.opath_cache.contains(handle)
                    || self.open_caches.file_cache.contains(handle)
            }
        }
    }

    fn use_open(
        &self,
        request: DescriptorRequest<'_>,
        file: Arc<OpenLocalFile>,
    ) -> Result<OpenDescriptor, OpenFailure> {
        let DescriptorRequest { caller, handle, purpose } = request;
        let attributes = self.attributes_of_node(handle, file.as_fd()).map_err(|error| {
            self.release_if_stale(handle, error);
            OpenFailure::unresolved(error)
        })?;
        let failed = |error: Error| OpenFailure { attributes: Some(attributes), error };
        self.identity.switch_to(caller).map_err(|errno| failed(errno.into()))?;
        let stamp = PermissionStamp::of(&attributes);
        if !file.is_checked(stamp) {
            if let Err(error) = self.check_right(caller, file.as_fd(), &attributes, purpose) {
                self.open_caches.file_cache.release(handle);
                return Err(failed(error));
            }
            file.check_passed(stamp);
        }
        Ok(OpenDescriptor { file, attributes })
    }

    fn open_anew(
        &self,
        request: DescriptorRequest<'_>,
        ticket: OpenReservation<'_>,
    ) -> Result<OpenDescriptor, OpenFailure> {
        let DescriptorRequest { caller, handle, purpose } = request;
        let object = self.resolve(handle).map_err(OpenFailure::unresolved)?;
        let attributes = self.getattr(handle, &object).map_err(OpenFailure::unresolved)?;
        let assumed = self.identity.switch_to(caller).map_err(Error::from);
        let opened = assumed.and_then(|()| self.open_data(caller, object.as_fd(), &attributes, purpose));
        match opened {
            Ok(fd) => {
                let (file, first) = ticket.opened(fd, PermissionStamp::of(&attributes));
                if first {
                    self.sweeper.wake();
                }
                Ok(OpenDescriptor { file, attributes })
            }
            Err(error) => Err(OpenFailure { attributes: Some(attributes), error }),
        }
    }

    /// Opens a regular file for I/O. The kernel decides for the caller's ids. In addition its owner
    /// may, whatever the mode (it may have opened it before the mode changed), and a caller with
    /// execute permission may read, because executing a program reads it.
    pub(super) fn open_data(
        &self,
        caller: &FsCred<'_>,
        fd: BorrowedFd<'_>,
        attributes: &Attributes,
        purpose: OpenAccess,
    ) -> Result<OwnedFd, Error> {
        match attributes.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Errno::ISDIR.into()),
            _ => return Err(Errno::INVAL.into()),
        }
        match self.open_as_caller(caller, fd, attributes, purpose) {
            // If descriptors run out, cached ones are closed.
            Err(Error::Os(Errno::MFILE | Errno::NFILE)) => {
                self.open_caches.release_all();
                self.open_as_caller(caller, fd, attributes, purpose)
            }
            opened => opened,
        }
    }

    fn open_as_caller(
        &self,
        caller: &FsCred<'_>,
        fd: BorrowedFd<'_>,
        attributes: &Attributes,
        purpose: OpenAccess,
    ) -> Result<OwnedFd, Error> {
        // O_NONBLOCK: a lease of another process returns EAGAIN instead of blocking.
        let flags = OFlags::NONBLOCK
            | match purpose {
                OpenAccess::Read => OFlags::RDONLY,
                OpenAccess::Write => OFlags::WRONLY,
            };
        match reopen(fd, flags) {
            Err(Errno::ACCESS) if may_override(caller, fd, attributes, purpose) => {
                let open = || reopen(fd, flags);
                Ok(self.identity.with_capabilities(CapabilitySet::DAC_OVERRIDE, open)??)
            }
            result => Ok(result?),
        }
    }

    /// Whether a caller, whose credentials this thread has, could open a file that is open already.
    fn check_right(
        &self,
        caller: &FsCred<'_>,
        fd: BorrowedFd<'_>,
        attributes: &Attributes,
        purpose: OpenAccess,
    ) -> Result<(), Error> {
        let _stage = stages::enter(RequestStage::Permission, "access");
        let right = match purpose {
            OpenAccess::Read => libc::R_OK,
            OpenAccess::Write => libc::W_OK,
        };
        match check_access(fd, right) {
            Err(Errno::ACCESS) if may_override(caller, fd, attributes, purpose) => {}
            result => result?,
        }
        // Opening one for writing at an offset fails for all callers, but writing through an open
        // descriptor does not.
        if purpose == OpenAccess::Write && is_append_only(fd)? {
            return Err(Errno::PERM.into());
        }
        Ok(())
    }

    /// Closes cached descriptors of an object that is stale: if a process removed it, its space
    /// should be freed, even if unstable data were not committed.
    pub(super) fn release_if_stale(&self, handle: &NodeHandle, error: Error) {
        self.open_caches.file_cache.release(handle);
        self.open_caches.opath_cache.release(handle);
        if error == Error::STALE {
            self.open_caches.unstable_files.forget(handle);
        }
    }
}

fn may_override(
    caller: &FsCred<'_>,
    fd: BorrowedFd<'_>,
    attributes: &Attributes,
    purpose: OpenAccess,
) -> bool {
    let executes = || purpose == OpenAccess::Read && check_access(fd, libc::X_OK).is_ok();
    caller.uid == attributes.uid || executes()
}
