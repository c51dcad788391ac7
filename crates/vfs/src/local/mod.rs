//! A directory of this machine, served as a [`Vfs`](crate::Vfs).
//!
//! Objects are opened by handle with `O_PATH`; their type is known before anything opens them for I/O, so devices and FIFOs
//! never are. Names are resolved one at a time, beneath the given directory, through no symbolic link and into no other
//! file system. The kernel decides permissions for the caller's ids (`credentials`).
//!
//! *Mount points* below the root show the directory that they cover, as with knfsd without `crossmnt`, because the tree is seen
//! through a private copy of its mount that has no others on it. If this process lacks the right to make such a copy
//! (CAP_SYS_ADMIN), looking up a mount point is refused with `EACCES`.
//!
//! *A sub-directory as root:* no name and no `..` leads out of it, and handles are made only for what was found in it. What
//! others move out of it keeps its handle while it stays on the file system. Binding handles to their place would cost a walk
//! for each use; it is part of checking handles (see [`LocalVfs::is_within_root`]).
//!
//! *Descriptors:* objects stay open with `O_PATH` for a moment (`held`), which grants no right. Files stay open for I/O for a
//! moment (`file_cache`), each for one caller and purpose, whose right is checked before each use (`open`). Names and access
//! verdicts are cached too, and used only while the object's attributes agree (`children`, `verdicts`).
//!
//! Serving threads have a umask of 0 of their own, because modes come from clients.

mod children;
mod credentials;
mod data;
mod file_cache;
mod handles;
mod hashing;
mod held;
mod layout;
mod limits;
mod listing;
mod locks;
mod losses;
mod moves;
mod names;
mod open;
mod opening;
mod options;
mod pace;
mod parents;
mod read;
mod recent;
mod set;
mod shared_sync;
mod stat;
mod sweeper;
mod sys;
mod table;
mod unstable;
mod verdicts;
mod vfs;
mod write;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use curt_trace::stages::{self, Stage};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

use self::children::Children;
use self::credentials::Identity;
pub use self::file_cache::FileCacheCounters;
use self::handles::Handles;
use self::locks::FileLocks;
use self::losses::Losses;
pub use self::options::{
    FileCaching, HandleChoice, HoldObjects, LocalError, LocalOptions, MetadataDurability,
};
use self::pace::Pace;
use self::read::ReadWays;
use self::shared_sync::SharedSync;
use self::sweeper::{KeptOpen, Sweeper};
use self::verdicts::Verdicts;
use crate::Waits;
use crate::answer::{Changed, Node, Outcome};
use crate::attributes::{Attributes, FileKind};
use crate::caller::Caller;
use crate::error::Error;
use crate::handle::{HandleScheme, NodeHandle};

/// Never through a symbolic link, never out of the directory, never into another mount.
const BENEATH: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// Opens the name of an object, and not the object.
const PATH: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A directory of this machine and what is below it.
pub struct LocalVfs {
    /// The directory as it was given: keeps its file system from being unmounted.
    _given: OwnedFd,
    root: Arc<OwnedFd>,
    /// What the root and all that is served is mounted by; `None` where the kernel does not tell.
    mount: Option<u64>,
    root_handle: NodeHandle,
    root_fileid: u64,
    root_fsid: u64,
    identity: Identity,
    handles: Handles,
    /// Held while an object changes. Before `syncing`, where both are.
    locks: FileLocks,
    /// Held while a file is made durable and what comes of it is noted.
    syncing: FileLocks,
    read_ways: ReadWays,
    children: Children,
    verdicts: Verdicts,
    /// Dropped before the sweeper, which then ends.
    kept: Arc<KeptOpen>,
    sweeper: Sweeper,
    /// Whether changes must be made durable one by one. Relaxed: a change of it is for requests to come.
    stable_metadata: AtomicBool,
    pace: Pace,
    losses: Losses,
    syncs: SharedSync,
}

impl LocalVfs {
    /// Who makes this tree's handles.
    #[must_use]
    pub const fn handle_scheme(&self) -> HandleScheme {
        self.root_handle.scheme()
    }

    /// The only user and group that can be served, where this process may not change its own.
    #[must_use]
    pub const fn only_user(&self) -> Option<(u32, u32)> {
        match self.identity {
            Identity::Anybody => None,
            Identity::Fixed { uid, gid } => Some((uid, gid)),
        }
    }

    /// When changes of names and attributes are stable, from now on. A tree that lives in memory has nothing to make durable.
    pub fn set_metadata_durability(&self, durability: MetadataDurability) {
        let stable = durability == MetadataDurability::Stable && self.pace.waits != Waits::Never;
        self.stable_metadata.store(stable, Ordering::Relaxed);
    }

    /// Opens (O_PATH) what a handle names, or finds it open.
    fn resolve(&self, handle: &NodeHandle) -> Result<Arc<OwnedFd>, Error> {
        if *handle == self.root_handle {
            return Ok(Arc::clone(&self.root));
        }
        if let Some(held) = self.kept.objects.find(handle) {
            return Ok(held);
        }
        let _stage = stages::enter(Stage::Open, "open_by_handle");
        let open = || {
            self.handles
                .open(self.identity, self.root.as_fd(), &self.root_handle, handle)
        };
        let opened = match open() {
            // What is held for speed must not be what descriptors are missing for.
            Err(Error::Os(Errno::MFILE | Errno::NFILE)) => {
                self.kept.release_all();
                open()?
            }
            opened => opened?,
        };
        let opened = Arc::new(opened);
        self.hold(handle, &opened);
        Ok(opened)
    }

    /// What fstat(2) tells of what a handle was resolved to; what is gone is not held any longer.
    fn look(&self, handle: &NodeHandle, fd: &OwnedFd) -> Result<Attributes, Error> {
        let attributes = attributes_of(fd.as_fd());
        if let Err(error) = attributes {
            self.let_go(handle, error);
        }
        attributes
    }

    /// Keeps an object at hand for the requests that will follow.
    fn hold(&self, handle: &NodeHandle, opened: &Arc<OwnedFd>) {
        if self.kept.objects.hold(handle, opened) {
            self.sweeper.wake();
        }
    }

    /// Opens (O_PATH) a name in a directory; not `.` or `..`.
    fn open_name(&self, directory: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
        loop {
            match rustix::fs::openat2(directory, name, PATH, Mode::empty(), BENEATH) {
                // EAGAIN: something was renamed meanwhile, and the kernel cannot tell whether it mattered.
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(Errno::XDEV) => return Err(Errno::ACCESS),
                result => return result,
            }
        }
    }

    /// As [`LocalVfs::open_name`], but only if the kernel knows the name already; else `EAGAIN`.
    fn open_known_name(&self, directory: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
        let resolve = BENEATH | ResolveFlags::CACHED;
        match rustix::fs::openat2(directory, name, PATH, Mode::empty(), resolve) {
            Err(Errno::INTR) => Err(Errno::AGAIN),
            Err(Errno::XDEV) => Err(Errno::ACCESS),
            result => result,
        }
    }

    /// The object behind a descriptor.
    fn node(&self, fd: BorrowedFd<'_>) -> Result<Node, Error> {
        let attributes = attributes_of(fd)?;
        let handle = self.handles.of(fd)?;
        Ok(Node { handle, attributes })
    }

    /// Has the table of handles know where an object is that got a name: on its disk before this returns, and with no lock held.
    fn recorded<T>(
        &self,
        mut changed: Changed<T>,
        handle: impl FnOnce(&T) -> NodeHandle,
        directory: &NodeHandle,
        name: &[u8],
    ) -> Changed<T> {
        if let Ok(value) = &changed.value
            && let Err(errno) = self.handles.record(&handle(value), directory, name)
        {
            changed.value = Err(errno.into());
        }
        changed
    }

    /// Runs a question about the object that `handle` names, as `caller`.
    fn ask<T>(
        &self,
        caller: &Caller<'_>,
        handle: &NodeHandle,
        ask: impl FnOnce(BorrowedFd<'_>, &Attributes) -> Result<T, Error>,
    ) -> Outcome<T> {
        let found = self
            .resolve(handle)
            .and_then(|fd| Ok((self.look(handle, &fd)?, fd)));
        let (attributes, fd) = match found {
            Ok(found) => found,
            Err(error) => {
                return Outcome {
                    attributes: None,
                    value: Err(error),
                };
            }
        };
        let value = match self.identity.assume(caller) {
            Ok(()) => ask(fd.as_fd(), &attributes),
            Err(errno) => Err(errno.into()),
        };
        Outcome {
            attributes: Some(attributes),
            value,
        }
    }

    /// Runs a change of the object that `handle` names, as `caller`, under the object's lock.
    fn change<T>(
        &self,
        caller: &Caller<'_>,
        handle: &NodeHandle,
        change: impl FnOnce(BorrowedFd<'_>, &Attributes) -> Result<T, Error>,
    ) -> (Changed<T>, Option<Arc<OwnedFd>>) {
        self.change_with(caller, handle, [], change)
    }

    /// As [`LocalVfs::change`], under the locks of others as well, which change with it.
    fn change_with<'h, T>(
        &self,
        caller: &Caller<'_>,
        handle: &'h NodeHandle,
        others: impl IntoIterator<Item = &'h NodeHandle>,
        change: impl FnOnce(BorrowedFd<'_>, &Attributes) -> Result<T, Error>,
    ) -> (Changed<T>, Option<Arc<OwnedFd>>) {
        let fd = match self.resolve(handle) {
            Ok(fd) => fd,
            Err(error) => {
                return (
                    Changed {
                        before: None,
                        after: None,
                        value: Err(error),
                    },
                    None,
                );
            }
        };
        let assumed = self.identity.assume(caller);
        let _held = self.locks.hold_all(std::iter::once(handle).chain(others));
        let before = match self.look(handle, &fd) {
            Ok(before) => before,
            Err(error) => {
                return (
                    Changed {
                        before: None,
                        after: None,
                        value: Err(error),
                    },
                    None,
                );
            }
        };
        let value = match assumed {
            Ok(()) => change(fd.as_fd(), &before),
            Err(errno) => Err(errno.into()),
        };
        let after = attributes_of(fd.as_fd()).ok();
        (
            Changed {
                before: Some((&before).into()),
                after,
                value,
            },
            Some(fd),
        )
    }

    /// As [`LocalVfs::change`], and what was changed is on stable storage before this returns.
    fn change_durably<T>(
        &self,
        caller: &Caller<'_>,
        handle: &NodeHandle,
        change: impl FnOnce(BorrowedFd<'_>, &Attributes) -> Result<T, Error>,
    ) -> Changed<T> {
        let (changed, fd) = self.change(caller, handle, change);
        self.settled(changed, handle, fd)
    }

    /// Makes durable what was changed, with no lock held.
    fn settled<T>(
        &self,
        mut changed: Changed<T>,
        handle: &NodeHandle,
        fd: Option<Arc<OwnedFd>>,
    ) -> Changed<T> {
        if let (Some(fd), Some(after), Ok(_)) = (&fd, &changed.after, &changed.value)
            && let Err(error) = self.settle(handle, fd.as_fd(), after.kind)
        {
            changed.value = Err(error);
        }
        changed
    }

    /// Makes a change of names or attributes durable. [`Error::Lost`] for a regular file that cannot be: the kernel tells once
    /// that data did not reach the disk, and if it tells here, no commit will hear of it.
    fn settle(&self, handle: &NodeHandle, fd: BorrowedFd<'_>, kind: FileKind) -> Result<(), Error> {
        if !self.stable_metadata.load(Ordering::Relaxed) {
            return Ok(());
        }
        match kind {
            FileKind::Regular | FileKind::Directory => {
                let open = || data::reopen(fd, OFlags::RDONLY | OFlags::NONBLOCK);
                let file = self.identity.with(CapabilitySet::DAC_OVERRIDE, open)?;
                match (file, kind) {
                    (Ok(file), FileKind::Regular) => self.sync_file(handle, file.as_fd()),
                    (Ok(file), _) => {
                        let _stage = stages::enter(Stage::FileSystem, "fsync");
                        Ok(data::retry(|| rustix::fs::fsync(&file))?)
                    }
                    (Err(_), _) => self.sync_file_system(),
                }
            }
            _ => self.sync_file_system(),
        }
    }

    /// Makes durable whatever was changed before. Callers that come together share a sync, and a loss that it tells of.
    fn sync_file_system(&self) -> Result<(), Error> {
        let _stage = stages::enter(Stage::FileSystem, "syncfs");
        self.syncs.wait(self.syncs.ticket(), || {
            let open = || data::reopen(self.root.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY);
            let root = self.identity.with(CapabilitySet::DAC_OVERRIDE, open)??;
            data::retry(|| rustix::fs::syncfs(&root)).map_err(|errno| self.lost(None, errno))
        })
    }
}

/// What fstat(2) tells; an object that has no name left is stale.
fn attributes_of(fd: BorrowedFd<'_>) -> Result<Attributes, Error> {
    let status = {
        let _stage = stages::enter(Stage::FileSystem, "fstat");
        rustix::fs::fstat(fd)?
    };
    let attributes = stat::attributes(&status);
    if attributes.nlink == 0 {
        Err(Error::STALE)
    } else {
        Ok(attributes)
    }
}
