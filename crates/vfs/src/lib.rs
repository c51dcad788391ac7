//! File systems that the server exports: the [`Vfs`] trait, local directories, and trees in memory.
//!
//! The operations are those of NFS version 3 (RFC 1813) without its wire types, and what NFSv4 and
//! locks need besides: pins of open files, leases, and locks in the server's kernel. A
//! [`NodeHandle`] identifies an object and survives a restart, an [`FsCred`] is the caller after
//! squashing, and each result has the attributes that NFS replies need, obtained in the same step
//! as the operation. This crate does not depend on exports, requests or signatures.
//!
//! Invariants: the attributes before a change are obtained under this crate's per-file lock, so
//! they are atomic with respect to all other requests through the same `Vfs`; symbolic links are
//! not followed; devices and FIFOs are not opened.

mod caller;
mod error;
mod handle;
mod kernel_locks;
mod lease;
mod local;
mod memory;
mod mode;
mod name;
mod result;
mod verifier;

use std::any::Any;
use std::ops::ControlFlow;
use std::sync::Arc;

use curt_types::{Access, Attributes, Device, FileKind, SetAttributes, Stability, Timestamp};

pub use caller::FsCred;
pub use error::Error;
pub use handle::{HANDLE_BYTES_MAX, HandleScheme, NodeHandle};
pub use kernel_locks::{KernelLockError, KernelLocks, ProcessLock};
pub use lease::{FileLease, LeaseBroken};
pub use local::{
    FileCacheCounters, FileCaching, HandleChoice, LeaseWatcher, LocalError, LocalOptions, LocalVfs,
    MetadataDurability, OPathCaching, OnlyUser, kernel_locked_files_max,
};
pub use memory::{ContentFormula, FaultPoint, MemoryOptions, MemoryTreeBuilder, MemoryVfs};
pub use result::{
    CreatedNode, FetchOptions, FetchResult, FileRange, FileSystemSpace, Limits, LinkResult, PostOpResult,
    ReadResult, RenameResult, VfsDirEntry, VfsNode, WccResult, WriteResult,
};

/// How CREATE handles an existing name (RFC 1813 section 3.3.8, `createhow3`).
#[derive(Clone, Copy, Debug)]
pub enum CreateMode<'a> {
    /// An existing regular file is used; of `attributes` only the size is applied to it.
    Unchecked(&'a SetAttributes),
    /// An existing name is `EEXIST`.
    Guarded(&'a SetAttributes),
    /// An existing name is `EEXIST` unless an exclusive create with the same verifier made it; the
    /// call is then a retransmission and succeeds. The verifier is stored in the new file's times,
    /// so it survives a restart; the caller sets the attributes afterwards (until then the mode is
    /// 0).
    Exclusive([u8; 8]),
}

/// The object that MKNOD creates (RFC 1813 section 3.3.11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialFile {
    /// A character device; only a privileged caller may.
    CharacterDevice(Device),
    /// A block device; only a privileged caller may.
    BlockDevice(Device),
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

impl SpecialFile {
    /// Its type.
    #[must_use]
    pub const fn kind(self) -> FileKind {
        match self {
            Self::CharacterDevice(_) => FileKind::CharacterDevice,
            Self::BlockDevice(_) => FileKind::BlockDevice,
            Self::Fifo => FileKind::Fifo,
            Self::Socket => FileKind::Socket,
        }
    }

    /// Its device number; zeros for a FIFO or a socket.
    #[must_use]
    pub fn device(self) -> Device {
        match self {
            Self::CharacterDevice(device) | Self::BlockDevice(device) => device,
            Self::Fifo | Self::Socket => Device::default(),
        }
    }
}

/// An object to create, with its attributes.
#[derive(Clone, Copy, Debug)]
pub enum NewNode<'a> {
    /// A regular file, or an existing one, see [`CreateMode`].
    File(CreateMode<'a>),
    /// A directory. In a setgid directory it gets the group and the bit.
    Directory(&'a SetAttributes),
    /// A symbolic link to this target, which is not interpreted (`EINVAL` if it is empty or
    /// contains NUL).
    Symlink(&'a [u8], &'a SetAttributes),
    /// A device (`EPERM` unless privileged), a FIFO or a socket.
    Special(SpecialFile, &'a SetAttributes),
}

impl NewNode<'_> {
    /// The attributes that it is created with.
    #[must_use]
    pub fn set(&self) -> SetAttributes {
        match *self {
            Self::File(CreateMode::Exclusive(_)) => SetAttributes::with_mode(0),
            Self::File(CreateMode::Unchecked(set) | CreateMode::Guarded(set))
            | Self::Directory(set)
            | Self::Symlink(_, set)
            | Self::Special(_, set) => *set,
        }
    }
}

/// Which operations on a tree may block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MayBlock {
    /// None: it is in memory.
    Never,
    /// The operations that need a local disk: for data, and for the inodes of objects not used
    /// recently ([`Vfs::is_in_memory`]).
    Data,
    /// All may take milliseconds, even reading attributes: the tree is on a network file system or
    /// FUSE.
    Always,
}

/// The use of an object that is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupUse {
    /// A request uses its handle next, if the name exists. The look-up does not wait.
    Object,
    /// Only its attributes are used, and its name is changed next. The look-up may wait, as that
    /// does.
    Name,
}

/// The details that READDIR returns for each entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReaddirDetail {
    /// Name, fileid and cookie.
    Names,
    /// The handle and attributes as well (READDIRPLUS).
    Nodes,
}

/// Permits the change of an object, by the directory of its name and its handle. It may be asked
/// with locks of the tree held, so it must not use the tree. REMOVE and RENAME hold them until the
/// change is made: only local processes can give the name to another object meanwhile. A CREATE
/// truncates the file that it has asked for, whatever has the name by then. The error is that of
/// the operation, which then has no effect.
///
/// A CREATE of a regular file asks for the directory as an object of itself: if that is refused, it
/// uses an existing file, and makes no name.
pub type ObjectPermit<'a> = dyn FnMut(&NodeHandle, &NodeHandle) -> Result<(), Error> + 'a;

/// The type of an object whose name is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovedKind {
    /// An empty directory (`ENOTDIR`, `ENOTEMPTY`).
    Directory,
    /// Anything else (`EISDIR`).
    Other,
}

/// Keeps an object usable ([`Vfs::pin`]).
pub type NodePin = Arc<dyn Any + Send + Sync>;

/// A tree of files to export.
///
/// All methods may be called on any number of threads at once. Names are the bytes of one path
/// component: an empty one, one with `/` or NUL is `EINVAL`, one that is too long `ENAMETOOLONG`.
/// In changes `.` is `EINVAL` and `..` is `EEXIST` (RFC 1813 section 3.3.13: "." and ".." are never
/// created or removed). A handle that this tree cannot have created is [`Error::BadHandle`], that
/// of an object that no longer exists [`Error::Os`] with `ESTALE`. Permissions are those that the
/// kernel would decide for a process with the caller's ids, with two exceptions that NFS needs: the
/// owner of a file may READ, WRITE and truncate it whatever its mode (it may have opened it before
/// the mode changed), and a caller with execute permission may READ.
pub trait Vfs: Send + Sync {
    /// The handle of the root directory. It never changes, not even after restarts.
    fn root(&self) -> NodeHandle;

    /// A value that is the same after a restart for the same tree, and differs between file systems
    /// as far as possible (for local trees a hash of the file system's id).
    fn identity(&self) -> u64;

    /// The attributes of `node`. Needs no permission. Their fsid may change after a restart
    /// ([`Vfs::identity`] does not).
    fn attributes(&self, node: &NodeHandle) -> Result<Attributes, Error>;

    /// When `node` was created, if its file system stores that.
    fn created(&self, node: &NodeHandle) -> Result<Option<Timestamp>, Error> {
        self.attributes(node).map(|_| None)
    }

    /// Changes attributes (SETATTR). With `guard`, nothing changes unless it equals the ctime
    /// ([`Error::NotSync`]).
    ///
    /// Owner and group: as chown(2), clearing suid and sgid bits; size: for regular files
    /// (`EISDIR`, `EINVAL` otherwise); times: to the server's or the given time, owner or
    /// privileged only, but the server's time also with write permission. The mode of a symbolic
    /// link remains unchanged. [`Error::Lost`] as for [`Vfs::commit`].
    fn set_attributes(
        &self,
        caller: &FsCred<'_>,
        node: &NodeHandle,
        set: &SetAttributes,
        guard: Option<Timestamp>,
    ) -> WccResult<()>;

    /// Looks up `name` in `directory` (needs search permission). `.` is the directory, `..` its
    /// parent; the parent of the root is the root. No name leads out of the tree (such a name is
    /// `ESTALE` or `EACCES`); a directory that a local process moved out of it keeps its handle,
    /// and its names can still be looked up with that. The attributes of the result are the
    /// directory's.
    fn lookup(&self, caller: &FsCred<'_>, directory: &NodeHandle, name: &[u8]) -> PostOpResult<VfsNode>;

    /// As [`Vfs::lookup`], but `None` if it might have to wait for a disk or another machine.
    fn lookup_nowait(
        &self,
        caller: &FsCred<'_>,
        directory: &NodeHandle,
        name: &[u8],
    ) -> Option<PostOpResult<VfsNode>> {
        (self.may_block() == MayBlock::Never).then(|| self.lookup(caller, directory, name))
    }

    /// Looks up a name other than `.` and `..` as [`Vfs::lookup`]. The attributes of the directory
    /// may be missing if the name is found, or if `directory` is known to be one
    /// (`is_directory`). `None`: use [`Vfs::lookup`].
    fn lookup_child(
        &self,
        caller: &FsCred<'_>,
        directory: &NodeHandle,
        name: &[u8],
        wanted: LookupUse,
        is_directory: bool,
    ) -> Option<PostOpResult<VfsNode>> {
        let _ = is_directory;
        match wanted {
            LookupUse::Object => self.lookup_nowait(caller, directory, name),
            LookupUse::Name => Some(self.lookup(caller, directory, name)),
        }
    }

    /// The rights in `asked` that the caller has. Rights that do not apply to the type of `node`
    /// are not granted, nor are changes of a read-only file system. The owner exception of READ and
    /// WRITE does not apply here.
    fn access(&self, caller: &FsCred<'_>, node: &NodeHandle, asked: Access) -> PostOpResult<Access>;

    /// Appends the target of a symbolic link to `target`. `EINVAL` for anything else.
    fn read_link(&self, caller: &FsCred<'_>, node: &NodeHandle, target: &mut Vec<u8>) -> PostOpResult<()>;

    /// Appends up to `count` bytes from `offset` to `data`; fewer only at the end of the file.
    /// `EISDIR` for directories, `EINVAL` for other objects that are not regular files. At an
    /// offset at or beyond the end it appends nothing and returns `eof`.
    ///
    /// With [`FetchOptions::sendfile`] a large read may return a [`FileRange`] instead. Without
    /// [`FetchOptions::wait`] the result is `None`, and `data` unchanged, if it would have to wait
    /// for a disk.
    fn fetch(
        &self,
        caller: &FsCred<'_>,
        node: &NodeHandle,
        offset: u64,
        count: u32,
        how: FetchOptions,
        data: &mut Vec<u8>,
    ) -> Option<PostOpResult<FetchResult>>;

    /// Which operations on this tree may block.
    fn may_block(&self) -> MayBlock;

    /// Whether attributes of `node`, access checks, and the space of its file system are available
    /// without waiting, as far as this is known beforehand.
    fn is_in_memory(&self, node: &NodeHandle) -> bool {
        let _ = node;
        self.may_block() != MayBlock::Always
    }

    /// A counter that increments whenever data reported as [`Stability::Unstable`] may have been
    /// lost, with a new start value each time a tree that outlives the process is opened. After a
    /// loss it changes before any commit that missed the loss returns successfully. So a write
    /// verifier derived from it, read before a write and after a commit, never hides a loss.
    fn losses(&self) -> u64;

    /// Closes all cached descriptors that are not in use: at the end of an export, or before the
    /// file system is unmounted.
    fn release_all(&self) {}

    /// The counters of the file cache, if there is one.
    fn file_cache(&self) -> Option<FileCacheCounters> {
        None
    }

    /// Keeps an object usable by its handle, also after its last name is removed, until the pin is
    /// dropped: for files that clients have open.
    fn pin(&self, node: &NodeHandle) -> Result<NodePin, Error>;

    /// Writes `data` at `offset`, clears suid and sgid bits as write(2) does for an unprivileged
    /// process, and makes the data as durable as requested. May write fewer bytes if space runs
    /// out; on an error nothing was written. [`Error::Lost`] as for [`Vfs::commit`].
    fn write(
        &self,
        caller: &FsCred<'_>,
        node: &NodeHandle,
        offset: u64,
        data: &[u8],
        stability: Stability,
    ) -> WccResult<WriteResult>;

    /// As [`Vfs::write`] with [`Stability::Unstable`]; `None`, and nothing is written, if it might
    /// have to wait for a disk or a slow change of the same file, as far as this is known
    /// beforehand.
    fn write_nowait(
        &self,
        caller: &FsCred<'_>,
        node: &NodeHandle,
        offset: u64,
        data: &[u8],
    ) -> Option<WccResult<WriteResult>> {
        let write = || self.write(caller, node, offset, data, Stability::Unstable);
        (self.may_block() == MayBlock::Never).then(write)
    }

    /// Makes all data written to `node` durable; the range may be extended, `count` 0 means to the
    /// end.
    ///
    /// [`Error::Lost`]: data reported as [`Stability::Unstable`] could not be written and may be
    /// lost. [`Vfs::losses`] has changed, so that clients send them again. Reported once per
    /// failure.
    fn commit(&self, caller: &FsCred<'_>, node: &NodeHandle, offset: u64, count: u32) -> WccResult<()>;

    /// Creates an object called `name`. The attributes are the directory's. [`Error::Lost`] as for
    /// [`Vfs::commit`], if an existing file gets another size: for this `permit` is asked, and for
    /// a new name of a regular file.
    fn make_permitted(
        &self,
        caller: &FsCred<'_>,
        directory: &NodeHandle,
        name: &[u8],
        object: NewNode<'_>,
        permit: &mut ObjectPermit<'_>,
    ) -> WccResult<CreatedNode>;

    /// Creates an object called `name`.
    fn make(
        &self,
        caller: &FsCred<'_>,
        directory: &NodeHandle,
        name: &[u8],
        object: NewNode<'_>,
    ) -> WccResult<CreatedNode> {
        self.make_permitted(caller, directory, name, object, &mut |_, _| Ok(()))
    }

    /// Creates a regular file or uses an existing one.
    fn create(
        &self,
        caller: &FsCred<'_>,
        directory: &NodeHandle,
        name: &[u8],
        mode: CreateMode<'_>,
    ) -> WccResult<CreatedNode> {
        self.make(caller, directory, name, NewNode::File(mode))
    }

    /// Removes a name. `permit` is asked for its object.
    fn remove_permitted(
        &self,
        caller: &FsCred<'_>,
        directory: &NodeHandle,
        name: &[u8],
        kind: RemovedKind,
        permit: &mut ObjectPermit<'_>,
    ) -> WccResult<()>;

    /// Removes a name that is not a directory.
    fn remove(&self, caller: &FsCred<'_>, directory: &NodeHandle, name: &[u8]) -> WccResult<()> {
        self.remove_permitted(caller, directory, name, RemovedKind::Other, &mut |_, _| Ok(()))
    }

    /// Removes an empty directory.
    fn remove_directory(&self, caller: &FsCred<'_>, directory: &NodeHandle, name: &[u8]) -> WccResult<()> {
        self.remove_permitted(caller, directory, name, RemovedKind::Directory, &mut |_, _| Ok(()))
    }

    /// Renames as rename(2): atomically, over an existing name of the same type; no effect if both
    /// are names of one file. Unless they are, `permit` is asked for the renamed and the replaced
    /// object, both in any case. It may be asked for a rename that then fails.
    fn rename_permitted(
        &self,
        caller: &FsCred<'_>,
        from: &NodeHandle,
        from_name: &[u8],
        to: &NodeHandle,
        to_name: &[u8],
        permit: &mut ObjectPermit<'_>,
    ) -> RenameResult;

    /// Renames as [`Vfs::rename_permitted`], with any object.
    fn rename(
        &self,
        caller: &FsCred<'_>,
        from: &NodeHandle,
        from_name: &[u8],
        to: &NodeHandle,
        to_name: &[u8],
    ) -> RenameResult {
        self.rename_permitted(caller, from, from_name, to, to_name, &mut |_, _| Ok(()))
    }

    /// Creates a hard link to `node`, as link(2): `EPERM` for directories, `EEXIST` for an existing
    /// name.
    fn link(&self, caller: &FsCred<'_>, node: &NodeHandle, directory: &NodeHandle, name: &[u8])
    -> LinkResult;

    /// Calls `visit` for the entries after `cookie` (0: from the start, including `.` and `..`)
    /// until it returns [`ControlFlow::Break`] or the directory ends; the value is whether it
    /// ended. The entry at which the visitor stops is not consumed.
    ///
    /// Cookies remain valid while the directory changes: an entry that is neither created nor
    /// removed during a listing is returned exactly once (local trees: as far as the file system's
    /// d_off guarantees this). [`Error::BadCookie`] for an invalid cookie. No lock is held while
    /// `visit` runs.
    fn read_directory(
        &self,
        caller: &FsCred<'_>,
        directory: &NodeHandle,
        cookie: u64,
        wanted: ReaddirDetail,
        visit: &mut dyn FnMut(&VfsDirEntry<'_>) -> ControlFlow<()>,
    ) -> PostOpResult<bool>;

    /// The space and inodes of the file system, as df shows them to the caller.
    fn space(&self, node: &NodeHandle) -> PostOpResult<FileSystemSpace>;

    /// Limits and properties of the file system at `node` (FSINFO and PATHCONF), as they are.
    fn limits(&self, node: &NodeHandle) -> PostOpResult<Limits>;

    /// A lease on a regular file that the caller may read: `broken` is called, on the watcher's
    /// thread, when a process of this machine opens the file for writing or truncates it. The
    /// process waits until the lease is dropped. `EAGAIN`: a process has the file open for writing;
    /// other errors: there are no leases of this file. `None`: no process of this machine can write
    /// it.
    fn lease(
        &self,
        _caller: &FsCred<'_>,
        _node: &NodeHandle,
        _watcher: &LeaseWatcher,
        _broken: LeaseBroken,
    ) -> Result<Option<Box<dyn FileLease>>, Error> {
        Ok(None)
    }

    /// An open file description for locks of the kernel on a regular file; `EOPNOTSUPP` for a tree
    /// without such locks.
    fn open_kernel_locks(&self, node: &NodeHandle) -> Result<Box<dyn KernelLocks>, Error> {
        let _ = node;
        Err(Error::Os(rustix::io::Errno::OPNOTSUPP))
    }

    /// Makes all data durable (used at shutdown). [`Error::Lost`] as for [`Vfs::commit`].
    fn sync_all(&self) -> Result<(), Error>;
}
