//! A local directory as a [`Vfs`](crate::Vfs).
//!
//! Objects are opened by handle with `O_PATH`; their type is known before they are opened for I/O,
//! so devices and FIFOs never are. Names are resolved one component at a time, below the given
//! directory, without following symbolic links and without entering other file systems. The kernel
//! decides permissions for the caller's ids (`credentials`).
//!
//! *Mount points* below the root show the directory that they cover, as with knfsd without
//! `crossmnt`, because the tree is a private copy of its mount without other mounts on it. Without
//! permission to make such a copy (CAP_SYS_ADMIN), looking up a mount point fails with `EACCES`.
//!
//! *A sub-directory as root:* no name and no `..` leads out of it, and handles are created only for
//! objects found in it. An object that a local process moves out of it keeps its handle while it
//! stays on the file system. To bind handles to their location would cost a walk for each use; this
//! is part of checking handles (see [`LocalVfs::is_within_root`]).
//!
//! *Descriptors:* recently used objects stay open with `O_PATH` (`opath_cache`), which grants no
//! right. Recently used files stay open for I/O (`file_cache`), each for one caller and access
//! mode, whose permission is checked before each use (`open`). Names and results of access checks
//! are cached too, and used only while the object's attributes agree (`lookup_cache`,
//! `access_check_cache`).
//!
//! Serving threads have their own umask of 0, because modes come from clients.

mod access_check_cache;
mod change_locks;
mod credentials;
mod data;
mod export_root;
mod file_cache;
mod handle_table;
mod handles;
mod hashing;
mod kernel_locks;
mod layout;
mod leases;
mod limits;
mod listing;
mod lookup_cache;
mod names;
mod opath_cache;
mod open;
mod options;
mod parents;
mod pins;
mod read;
mod set;
mod shared_sync;
mod stat;
mod sweeper;
mod sys;
mod unlink_rename_link;
mod unstable;
mod vfs;
mod write;
mod write_latency;
mod write_losses;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use curt_observe::stages::{self, RequestStage};
use curt_types::{Attributes, FileKind};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

use self::access_check_cache::AccessCheckCache;
use self::change_locks::ChangeLocks;
use self::credentials::FsIdentity;
pub use self::file_cache::FileCacheCounters;
use self::handles::HandleSource;
pub use self::leases::LeaseWatcher;
use self::lookup_cache::NameLookupCache;
pub use self::options::{
    FileCaching, HandleChoice, LocalError, LocalOptions, MetadataDurability, OPathCaching,
};
use self::read::ReadSupport;
use self::shared_sync::SharedSync;
use self::sweeper::{OpenCaches, Sweeper};
use self::write_latency::WriteLatency;
use self::write_losses::LossCounters;
use crate::MayBlock;
use crate::caller::FsCred;
use crate::error::Error;
use crate::handle::{HandleScheme, NodeHandle};
use crate::result::{PostOpResult, VfsNode, WccResult};
pub use kernel_locks::kernel_locked_files_max;

/// Without following symbolic links, leaving the directory, or entering another mount.
const BENEATH: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// Opens with O_PATH.
const PATH: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A local directory tree.
pub struct LocalVfs {
    /// The directory as given: keeps its file system from being unmounted.
    _given: OwnedFd,
    root: Arc<OwnedFd>,
    /// The mount of the tree; `None` if the kernel does not return it.
    mount: Option<u64>,
    root_handle: NodeHandle,
    root_fileid: u64,
    root_fsid: u64,
    identity: FsIdentity,
    handles: HandleSource,
    /// Locked while an object changes. Lock order: before `syncing`.
    locks: ChangeLocks,
    /// Locked while a file is made durable and the result is recorded.
    syncing: ChangeLocks,
    read_support: ReadSupport,
    lookup_cache: NameLookupCache,
    access_checks: AccessCheckCache,
    /// Dropped before the sweeper, which then ends.
    open_caches: Arc<OpenCaches>,
    sweeper: Sweeper,
    /// Whether each change must be made durable. Relaxed: a change applies to later requests.
    stable_metadata: AtomicBool,
    write_latency: WriteLatency,
    losses: LossCounters,
    syncs: SharedSync,
}

/// The user and group of a process that cannot change its ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnlyUser {
    /// Its uid.
    pub uid: u32,
    /// Its gid.
    pub gid: u32,
}

impl LocalVfs {
    /// The scheme of this tree's handles.
    #[must_use]
    pub const fn handle_scheme(&self) -> HandleScheme {
        self.root_handle.scheme()
    }

    /// The only user and group that can be served, if this process cannot change its ids.
    #[must_use]
    pub const fn only_user(&self) -> Option<OnlyUser> {
        match self.identity {
            FsIdentity::Anybody => None,
            FsIdentity::Fixed { uid, gid } => Some(OnlyUser { uid, gid }),
        }
    }

    /// Sets when changes of names and attributes are stable. A tree in memory has nothing to make
    /// durable.
    pub fn set_metadata_durability(&self, durability: MetadataDurability) {
        let stable =
            durability == MetadataDurability::Stable && self.write_latency.may_block != MayBlock::Never;
        self.stable_metadata.store(stable, Ordering::Relaxed);
    }

    /// Opens (O_PATH) the object of a handle, or returns the open one.
    fn resolve(&self, handle: &NodeHandle) -> Result<Arc<OwnedFd>, Error> {
        if *handle == self.root_handle {
            return Ok(Arc::clone(&self.root));
        }
        if let Some(cached) = self.open_caches.opath_cache.find(handle) {
            return Ok(cached);
        }
        if let Some(pinned) = self.open_caches.pins.find(handle) {
            return Ok(pinned);
        }
        let _stage = stages::enter(RequestStage::Open, "open_by_handle");
        let open = || self.handles.open(self.identity, self.root.as_fd(), &self.root_handle, handle);
        let opened = match open() {
            // If descriptors run out, cached ones are closed.
            Err(Error::Os(Errno::MFILE | Errno::NFILE)) => {
                self.open_caches.release_all();
                open()?
            }
            opened => opened?,
        };
        let opened = Arc::new(opened);
        self.cache_object(handle, &opened);
        Ok(opened)
    }

    /// fstat(2) of a resolved handle; a removed object is dropped from the cache.
    fn getattr(&self, handle: &NodeHandle, fd: &OwnedFd) -> Result<Attributes, Error> {
        let attributes = self.attributes_of_node(handle, fd.as_fd());
        if let Err(error) = attributes {
            self.release_if_stale(handle, error);
        }
        attributes
    }

    /// As [`attributes_of`], but a pinned object needs no name.
    fn attributes_of_node(&self, handle: &NodeHandle, fd: BorrowedFd<'_>) -> Result<Attributes, Error> {
        let attributes = status_of(fd)?;
        if attributes.nlink == 0 && !self.open_caches.pins.contains(handle) {
            return Err(Error::STALE);
        }
        Ok(attributes)
    }

    /// Caches an open object for following requests.
    fn cache_object(&self, handle: &NodeHandle, opened: &Arc<OwnedFd>) {
        if self.open_caches.opath_cache.insert(handle, opened) {
            self.sweeper.wake();
        }
    }

    /// Opens (O_PATH) a name in a directory; not `.` or `..`.
    fn open_name(&self, directory: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
        loop {
            match rustix::fs::openat2(directory, name, PATH, Mode::empty(), BENEATH) {
                // EAGAIN: something was renamed meanwhile, and the kernel does not know whether it
                // affected the walk.
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(Errno::XDEV) => return Err(Errno::ACCESS),
                result => return result,
            }
        }
    }

    /// As [`LocalVfs::open_name`], but only if the kernel has the name cached; otherwise `EAGAIN`.
    fn open_known_name(&self, directory: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
        let resolve = BENEATH | ResolveFlags::CACHED;
        match rustix::fs::openat2(directory, name, PATH, Mode::empty(), resolve) {
            Err(Errno::INTR) => Err(Errno::AGAIN),
            Err(Errno::XDEV) => Err(Errno::ACCESS),
            result => result,
        }
    }

    /// The object of a descriptor.
    fn node(&self, fd: BorrowedFd<'_>) -> Result<VfsNode, Error> {
        let attributes = attributes_of(fd)?;
        let handle = self.handles.of(fd)?;
        Ok(VfsNode { handle, attributes })
    }

    /// Records the location of an object with a new name in the handle table: on disk before this
    /// returns, with no lock held.
    fn recorded<T>(
        &self,
        mut changed: WccResult<T>,
        handle: impl FnOnce(&T) -> NodeHandle,
        directory: &NodeHandle,
        name: &[u8],
    ) -> WccResult<T> {
        if let Ok(value) = &changed.value
            && let Err(errno) = self.handles.record(&handle(value), directory, name)
        {
            changed.value = Err(errno.into());
        }
        changed
    }

    /// Runs a read-only operation on the object of `handle`, as `caller`.
    fn ask<T>(
        &self,
        caller: &FsCred<'_>,
        handle: &NodeHandle,
        ask: impl FnOnce(BorrowedFd<'_>, &Attributes) -> Result<T, Error>,
    ) -> PostOpResult<T> {
        let found = self.resolve(handle).and_then(|fd| Ok((self.getattr(handle, &fd)?, fd)));
        let (attributes, fd) = match found {
            Ok(found) => found,
            Err(error) => {
                return PostOpResult { attributes: None, value: Err(error) };
            }
        };
        let value = match self.identity.switch_to(caller) {
            Ok(()) => ask(fd.as_fd(), &attributes),
            Err(errno) => Err(errno.into()),
        };
        PostOpResult { attributes: Some(attributes), value }
    }

    /// Runs a change of the object of `handle`, as `caller`, under the object's lock.
    fn change<T>(
        &self,
        caller: &FsCred<'_>,
        handle: &NodeHandle,
        change: impl FnOnce(BorrowedFd<'_>, &Attributes) -> Result<T, Error>,
    ) -> (WccResult<T>, Option<Arc<OwnedFd>>) {
        self.change_with(caller, handle, [], change)
    }

    /// As [`LocalVfs::change`], also under the locks of other objects that change with it.
    fn change_with<'h, T>(
        &self,
        caller: &FsCred<'_>,
        handle: &'h NodeHandle,
        others: impl IntoIterator<Item = &'h NodeHandle>,
        change: impl FnOnce(BorrowedFd<'_>, &Attributes) -> Result<T, Error>,
    ) -> (WccResult<T>, Option<Arc<OwnedFd>>) {
        let fd = match self.resolve(handle) {
            Ok(fd) => fd,
            Err(error) => {
                return (WccResult { before: None, after: None, value: Err(error) }, None);
            }
        };
        let assumed = self.identity.switch_to(caller);
        let _held = self.locks.hold_all(std::iter::once(handle).chain(others));
        let before = match self.getattr(handle, &fd) {
            Ok(before) => before,
            Err(error) => {
                return (WccResult { before: None, after: None, value: Err(error) }, None);
            }
        };
        let value = match assumed {
            Ok(()) => change(fd.as_fd(), &before),
            Err(errno) => Err(errno.into()),
        };
        let after = self.attributes_of_node(handle, fd.as_fd()).ok();
        (WccResult { before: Some((&before).into()), after, value }, Some(fd))
    }

    /// As [`LocalVfs::change`]; the change is on stable storage before this returns.
    fn change_durably<T>(
        &self,
        caller: &FsCred<'_>,
        handle: &NodeHandle,
        change: impl FnOnce(BorrowedFd<'_>, &Attributes) -> Result<T, Error>,
    ) -> WccResult<T> {
        let (changed, fd) = self.change(caller, handle, change);
        self.made_durable(changed, handle, fd)
    }

    /// Makes a change durable, with no lock held.
    fn made_durable<T>(
        &self,
        mut changed: WccResult<T>,
        handle: &NodeHandle,
        fd: Option<Arc<OwnedFd>>,
    ) -> WccResult<T> {
        if let (Some(fd), Some(after), Ok(_)) = (&fd, &changed.after, &changed.value)
            && let Err(error) = self.make_durable(handle, fd.as_fd(), after.kind)
        {
            changed.value = Err(error);
        }
        changed
    }

    /// Makes a change of names or attributes durable. [`Error::Lost`] for a regular file if this
    /// fails: the kernel reports once that data did not reach the disk, and a later commit would
    /// not see it.
    fn make_durable(&self, handle: &NodeHandle, fd: BorrowedFd<'_>, kind: FileKind) -> Result<(), Error> {
        if !self.stable_metadata.load(Ordering::Relaxed) {
            return Ok(());
        }
        match kind {
            FileKind::Regular | FileKind::Directory => {
                let open = || data::reopen(fd, OFlags::RDONLY | OFlags::NONBLOCK);
                let file = self.identity.with_capabilities(CapabilitySet::DAC_OVERRIDE, open)?;
                match (file, kind) {
                    (Ok(file), FileKind::Regular) => self.sync_file(handle, file.as_fd()),
                    (Ok(file), _) => {
                        let _stage = stages::enter(RequestStage::FileSystem, "fsync");
                        Ok(data::retry(|| rustix::fs::fsync(&file))?)
                    }
                    (Err(_), _) => self.sync_file_system(),
                }
            }
            _ => self.sync_file_system(),
        }
    }

    /// Makes all previous changes durable. Concurrent callers share a sync, and the loss that it
    /// reports.
    fn sync_file_system(&self) -> Result<(), Error> {
        let _stage = stages::enter(RequestStage::FileSystem, "syncfs");
        self.syncs.wait(self.syncs.ticket(), || {
            let open = || data::reopen(self.root.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY);
            let root = self.identity.with_capabilities(CapabilitySet::DAC_OVERRIDE, open)??;
            data::retry(|| rustix::fs::syncfs(&root)).map_err(|errno| self.lost(None, errno))
        })
    }
}

/// The result of fstat(2); an object without a name is stale.
fn attributes_of(fd: BorrowedFd<'_>) -> Result<Attributes, Error> {
    let attributes = status_of(fd)?;
    if attributes.nlink == 0 { Err(Error::STALE) } else { Ok(attributes) }
}

/// The result of fstat(2).
fn status_of(fd: BorrowedFd<'_>) -> Result<Attributes, Error> {
    let _stage = stages::enter(RequestStage::FileSystem, "fstat");
    // By reference: moving the status would copy it.
    match &rustix::fs::fstat(fd) {
        Ok(status) => Ok(stat::attributes(status)),
        Err(errno) => Err((*errno).into()),
    }
}
