//! A directory of this machine.
//!
//! Objects are opened by handle with `O_PATH`; their type is known before anything opens them for I/O, so devices and FIFOs
//! never are. Names are resolved one at a time, beneath the directory asked, through no symbolic link and into no other
//! file system. The kernel decides permissions for the caller's ids (`credentials`).
//!
//! *Mount points* below the root: as knfsd does without `crossmnt`, one shows the directory that it covers, because the
//! tree is seen through a private copy of its mount that has no others on it. Where that needs a right this process
//! has not (CAP_SYS_ADMIN), looking up a mount point is refused with `EACCES`.
//!
//! *A sub-directory as root:* no name and no `..` leads out of it, and handles are made only for what was found in it. What
//! is moved out of it by others keeps its handle for as long as it stays on the file system; binding handles to
//! their place costs a walk for each use and belongs to the check of handles (see [`LocalVfs::is_within_root`]).
//!
//! *Descriptors:* objects stay open with `O_PATH` for a moment (`held`), which gives nobody a right; each operation opens what it
//! needs for I/O as its caller and closes it again. The place for a cache of files open for I/O is [`LocalVfs::open_data`].
//!
//! Threads that serve have a umask of their own, which is 0: modes come from clients.

mod credentials;
mod data;
mod handles;
mod held;
mod limits;
mod listing;
mod locks;
mod names;
mod read;
mod set;
mod stat;
mod sys;
mod table;
mod unstable;
mod vfs;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::OpenTreeFlags;
use rustix::thread::CapabilitySet;

use self::credentials::Identity;
use self::handles::Handles;
use self::held::{HeldObjects, Sweeper};
use self::locks::FileLocks;
use self::read::ReadWays;
use self::unstable::Unstable;
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

/// Who makes the handles of a local tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HandleChoice {
    /// The kernel where it can, else a table of our own.
    #[default]
    Auto,
    /// The kernel alone: refused where it cannot.
    Kernel,
    /// The table, wherever.
    Table,
}

/// When a change of names or attributes is on stable storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MetadataDurability {
    /// Before it is answered, as RFC 1813 §4.8 wants it (`sync` in exports(5)).
    #[default]
    Stable,
    /// When the file system gets to it (`async`).
    Eventual,
}

/// How a local tree is served.
#[derive(Clone, Debug, Default)]
pub struct LocalOptions {
    /// Who makes handles.
    pub handles: HandleChoice,
    /// The file of the handle table, should it be needed; without one there is none.
    pub table: Option<PathBuf>,
    /// When changes are stable.
    pub metadata: MetadataDurability,
    /// Whether objects that were used lately are held open under their handles.
    pub held: HoldObjects,
}

/// Whether objects that were used lately are held open (`O_PATH`) under their handles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HoldObjects {
    /// For up to two seconds after their last use, as many as a quarter of the process's descriptors, and 4,096, allow.
    #[default]
    Lately,
    /// Not at all: each request finds its object anew.
    Never,
}

/// Why a directory cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LocalError {
    /// It cannot be opened.
    #[error("{path}: {source}", path = path.display())]
    Open {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: Errno,
    },
    /// /proc/self/fd does not work: without it no object can be opened that was found by handle.
    #[error("/proc is not mounted, or hidden from this process: {0}")]
    NoProc(Errno),
    /// Neither the kernel nor a table gives handles.
    #[error("{path}: no file handles: {kernel}; {table}", path = path.display())]
    NoHandles {
        /// The directory.
        path: PathBuf,
        /// Why the kernel's cannot be used.
        kernel: String,
        /// Why there is no table.
        table: String,
    },
}

/// A directory of this machine and what is below it.
pub struct LocalVfs {
    /// The directory as it was given: keeps its file system from being unmounted.
    _given: OwnedFd,
    root: Arc<OwnedFd>,
    root_handle: NodeHandle,
    root_fileid: u64,
    root_fsid: u64,
    identity: Identity,
    handles: Handles,
    locks: FileLocks,
    unstable: Unstable,
    read_ways: ReadWays,
    /// Dropped before the sweeper, which then ends.
    held: Arc<HeldObjects>,
    sweeper: Sweeper,
    /// Whether changes must be made durable one by one: not on file systems that live in memory.
    stable_metadata: bool,
    /// Whether there is no disk to wait for.
    in_memory: bool,
}

impl LocalVfs {
    /// Opens a directory to serve it, and finds out how: by the kernel's handles or by table, as anybody or as this
    /// process's user alone. The calling thread's ids and capabilities stay as they are.
    pub fn open(path: &Path, options: &LocalOptions) -> Result<Self, LocalError> {
        std::thread::scope(|scope| scope.spawn(|| Self::open_here(path, options)).join())
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Trying out handles changes what this thread works as.
    fn open_here(path: &Path, options: &LocalOptions) -> Result<Self, LocalError> {
        let failed = |source| LocalError::Open {
            path: path.to_owned(),
            source,
        };
        let identity = Identity::of_process();
        if identity == Identity::Anybody {
            // The thread that started this one may have worked for somebody.
            identity.assume(&Caller::ROOT).map_err(failed)?;
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let given = rustix::fs::open(path, flags, Mode::empty()).map_err(failed)?;
        let root = without_mounts(&given).map_err(failed)?;
        data::reopen(root.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY).map_err(LocalError::NoProc)?;
        let handles = Handles::choose(path, root.as_fd(), identity, options)?;
        let root_handle = handles.of(root.as_fd()).map_err(failed)?;
        let attributes = stat::attributes(&rustix::fs::fstat(&root).map_err(failed)?);
        let in_memory = limits::lives_in_memory(root.as_fd()).map_err(failed)?;
        let stable_metadata = options.metadata == MetadataDurability::Stable && !in_memory;
        let room = match options.held {
            HoldObjects::Lately => HeldObjects::room(),
            HoldObjects::Never => 0,
        };
        let held = Arc::new(HeldObjects::new(room));
        let sweeper = Sweeper::start(&held);
        Ok(Self {
            _given: given,
            root: Arc::new(root),
            root_handle,
            root_fileid: attributes.fileid,
            root_fsid: attributes.fsid,
            identity,
            handles,
            locks: FileLocks::new(),
            unstable: Unstable::new(HeldObjects::room() / 4),
            read_ways: ReadWays::default(),
            held,
            sweeper,
            stable_metadata,
            in_memory,
        })
    }

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

    /// Opens (O_PATH) what a handle names, or finds it open.
    fn resolve(&self, handle: &NodeHandle) -> Result<Arc<OwnedFd>, Error> {
        if *handle == self.root_handle {
            return Ok(Arc::clone(&self.root));
        }
        if let Some(held) = self.held.find(handle) {
            return Ok(held);
        }
        let open = || {
            self.handles
                .open(self.identity, self.root.as_fd(), &self.root_handle, handle)
        };
        let opened = match open() {
            // What is held for speed must not be what descriptors are missing for.
            Err(Error::Os(Errno::MFILE | Errno::NFILE)) => {
                self.held.release_all();
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
        if attributes.is_err() {
            self.held.release(handle);
        }
        attributes
    }

    /// Keeps an object at hand for the requests that will follow.
    fn hold(&self, handle: &NodeHandle, opened: &Arc<OwnedFd>) {
        if self.held.hold(handle, opened) {
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

    /// The parent of a directory; the root's is the root itself.
    fn open_parent(&self, directory: BorrowedFd<'_>, attributes: &Attributes) -> Result<OwnedFd, Error> {
        if self.is_root(attributes) {
            return Ok(rustix::io::fcntl_dupfd_cloexec(directory, 0)?);
        }
        let parent = match rustix::fs::openat(directory, c"..", PATH | OFlags::DIRECTORY, Mode::empty()) {
            // The kernel knows by itself that it lies outside of the root's mount.
            Err(Errno::NOENT) => return Err(Error::STALE),
            parent => parent?,
        };
        if self.is_within_root(parent.as_fd())? {
            Ok(parent)
        } else {
            Err(Error::STALE)
        }
    }

    fn is_root(&self, attributes: &Attributes) -> bool {
        attributes.fileid == self.root_fileid && attributes.fsid == self.root_fsid
    }

    /// Whether a directory is the root or lies below it, whoever may search the way up.
    fn is_within_root(&self, directory: BorrowedFd<'_>) -> Result<bool, Errno> {
        self.identity.with(CapabilitySet::DAC_READ_SEARCH, || {
            let mut at = rustix::io::fcntl_dupfd_cloexec(directory, 0)?;
            loop {
                let here = stat::attributes(&rustix::fs::fstat(&at)?);
                if self.is_root(&here) {
                    return Ok(true);
                }
                let parent = rustix::fs::openat(&at, c"..", PATH | OFlags::DIRECTORY, Mode::empty())?;
                let above = stat::attributes(&rustix::fs::fstat(&parent)?);
                if (above.fileid, above.fsid) == (here.fileid, here.fsid) {
                    return Ok(false);
                }
                at = parent;
            }
        })?
    }

    /// The object behind a descriptor that was opened as `name` of `directory`.
    fn node(&self, fd: BorrowedFd<'_>, directory: &NodeHandle, name: &[u8]) -> Result<Node, Error> {
        let attributes = attributes_of(fd)?;
        let handle = self.handles.of(fd)?;
        self.handles.record(&handle, directory, name)?;
        Ok(Node { handle, attributes })
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
        let _held = self.locks.hold(handle);
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
        let (mut changed, fd) = self.change(caller, handle, change);
        if let (Some(fd), Some(after), Ok(_)) = (&fd, &changed.after, &changed.value)
            && let Err(error) = self.settle(fd.as_fd(), after.kind)
        {
            changed.value = Err(error);
        }
        changed
    }

    /// Makes a change of names or attributes durable. [`Error::Lost`] for a regular file that cannot be: the kernel tells once
    /// that data did not reach the disk, and if it tells here, no commit will hear of it.
    fn settle(&self, fd: BorrowedFd<'_>, kind: FileKind) -> Result<(), Error> {
        if !self.stable_metadata {
            return Ok(());
        }
        match kind {
            FileKind::Regular | FileKind::Directory => {
                let open = || data::reopen(fd, OFlags::RDONLY | OFlags::NONBLOCK);
                let file = self.identity.with(CapabilitySet::DAC_OVERRIDE, open)?;
                match file {
                    Ok(file) => data::retry(|| rustix::fs::fsync(&file)).map_err(|errno| match kind {
                        FileKind::Regular => Error::Lost(errno),
                        _ => Error::Os(errno),
                    }),
                    Err(_) => self.sync_file_system(),
                }
            }
            _ => self.sync_file_system(),
        }
    }

    fn sync_file_system(&self) -> Result<(), Error> {
        let open = || data::reopen(self.root.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY);
        let root = self.identity.with(CapabilitySet::DAC_OVERRIDE, open)??;
        data::retry(|| rustix::fs::syncfs(&root)).map_err(Error::Lost)
    }
}

/// What fstat(2) tells; an object that has no name left is stale.
fn attributes_of(fd: BorrowedFd<'_>) -> Result<Attributes, Error> {
    let attributes = stat::attributes(&rustix::fs::fstat(fd)?);
    if attributes.nlink == 0 {
        Err(Error::STALE)
    } else {
        Ok(attributes)
    }
}

/// The directory, seen through a mount of our own on which nothing else is mounted, if we may have one.
fn without_mounts(given: &OwnedFd) -> Result<OwnedFd, Errno> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    match rustix::mount::open_tree(given, c"", flags) {
        Ok(tree) => Ok(tree),
        Err(errno) => {
            tracing::debug!(%errno, "mount points below the root will be refused");
            rustix::io::fcntl_dupfd_cloexec(given, 0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_served_is_refused_by_name() {
        let Err(error) = LocalVfs::open(Path::new("/nowhere/at/all"), &LocalOptions::default()) else {
            panic!("there is no such directory");
        };
        assert!(error.to_string().starts_with("/nowhere/at/all: "), "{error}");
        let options = LocalOptions {
            handles: HandleChoice::Kernel,
            ..LocalOptions::default()
        };
        let Err(error) = LocalVfs::open(Path::new("/proc"), &options) else {
            panic!("proc has no handles");
        };
        assert!(
            error.to_string().starts_with("/proc: no file handles: "),
            "{error}"
        );
    }
}
