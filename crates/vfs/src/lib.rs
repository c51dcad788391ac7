//! What a name or a handle stands for on disk: the [`Vfs`] trait, local directories and memory.
//!
//! The server asks a [`Vfs`] in the words of NFS version 3 (RFC 1813) without its wire types: a
//! [`NodeHandle`] names an object and survives a restart, a [`FsCred`] is who asks after squashing,
//! and each answer carries the attributes that NFS replies need, taken in the same step as the
//! operation. This crate knows nothing of exports, requests or signatures.
//!
//! Architecture invariants: before-attributes of a mutation are taken under this crate's own
//! per-file lock, so they are atomic against every other request that comes through the same `Vfs`;
//! nothing here follows a symbolic link; nothing here opens a device or a FIFO.

mod caller;
mod error;
mod handle;
mod local;
mod memory;
mod mode;
mod name;
mod result;
mod time;
mod verifier;

use curt_types::{Access, Attributes, Device, FileKind, SetAttributes, Stability, Timestamp};

pub use caller::FsCred;
pub use error::Error;
pub use handle::{HANDLE_BYTES_MAX, HandleScheme, NodeHandle};
pub use local::{
    FileCacheCounters, FileCaching, HandleChoice, LocalError, LocalOptions, LocalVfs, MetadataDurability,
    OPathCaching,
};
pub use memory::{ContentFormula, FaultPoint, MemoryOptions, MemoryTreeBuilder, MemoryVfs};
pub use result::{
    CreatedNode, FetchOptions, FetchResult, FileRange, FileSystemSpace, Limits, LinkResult, PostOpResult,
    ReadResult, RenameResult, VfsDirEntry, VfsNode, Visit, WccResult, WriteResult,
};
pub use time::{SystemTimeSource, TimeSource};

/// How CREATE treats a name that exists (RFC 1813 §3.3.8, `createhow3`).
#[derive(Clone, Copy, Debug)]
pub enum CreateMode<'a> {
    /// An existing regular file is taken as it is; of `attributes` only the size is then applied to
    /// it.
    Unchecked(&'a SetAttributes),
    /// An existing name is `EEXIST`.
    Guarded(&'a SetAttributes),
    /// An existing name is `EEXIST` unless it was made by an exclusive create with this very
    /// verifier, which is then a retry and succeeds. The verifier is kept in the new file's times,
    /// so it survives a restart; the caller sets the attributes afterwards (until then the mode is
    /// 0).
    Exclusive([u8; 8]),
}

/// What MKNOD makes (RFC 1813 §3.3.11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialFile {
    /// A character device; only a privileged caller may.
    CharacterDevice(Device),
    /// A block device; only a privileged caller may.
    BlockDevice(Device),
    /// A named pipe.
    Fifo,
    /// A socket's name.
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

    /// Its numbers; zeros if it is no device.
    #[must_use]
    pub fn device(self) -> Device {
        match self {
            Self::CharacterDevice(device) | Self::BlockDevice(device) => device,
            Self::Fifo | Self::Socket => Device::default(),
        }
    }
}

/// What is to be made, and with which attributes.
#[derive(Clone, Copy, Debug)]
pub enum NewNode<'a> {
    /// A regular file, or one that exists.
    File(CreateMode<'a>),
    /// A directory. In a setgid directory it gets the group and the bit.
    Directory(&'a SetAttributes),
    /// A symbolic link to this target, whose bytes are not looked at (an empty one is `EINVAL`, one
    /// with NUL too).
    Symlink(&'a [u8], &'a SetAttributes),
    /// A device (`EPERM` unless privileged), a FIFO or a socket's name.
    Special(SpecialFile, &'a SetAttributes),
}

impl NewNode<'_> {
    /// The attributes that it gets when it is made.
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

/// Which operations on a tree may have to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MayBlock {
    /// None: it is in memory.
    Never,
    /// Those that need a disk of this machine: for data, and for the inodes of objects not used
    /// recently ([`Vfs::is_in_memory`]).
    Data,
    /// All may take milliseconds, even reading attributes: the tree is on another machine, or
    /// served by a program.
    Always,
}

/// What READDIR is to fetch for each entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReaddirDetail {
    /// Name, fileid and cookie.
    Names,
    /// The handle and attributes as well (READDIRPLUS).
    Nodes,
}

/// A tree of files that can be served.
///
/// All calls may come from any number of threads at once. Names are the bytes of one path
/// component: an empty one, one with `/` or NUL is `EINVAL`, one that is too long `ENAMETOOLONG`.
/// In mutations `.` is `EINVAL` and `..` is `EEXIST` (RFC 1813 §3.3.13: "." and ".." are never made
/// or removed). A handle that this tree could never have given is [`Error::BadHandle`], one of an
/// object that is gone [`Error::Os`] with `ESTALE`. Permissions are those the kernel would decide
/// for a process with the caller's ids, with two exceptions that NFS needs: the owner of a file may
/// READ, WRITE and truncate it whatever its mode (it may have opened it before the mode changed),
/// and who may execute may READ.
pub trait Vfs: Send + Sync {
    /// The handle of the root directory. It never changes, not over restarts either.
    fn root(&self) -> NodeHandle;

    /// A value that is the same after a restart for the same tree, and differs between file systems
    /// as far as the system can tell (a hash of the file system's own id for local trees).
    fn identity(&self) -> u64;

    /// The attributes of `node`. Needs no permission. Their fsid is not the same after a restart
    /// ([`Vfs::identity`] is).
    fn attributes(&self, node: &NodeHandle) -> Result<Attributes, Error>;

    /// Changes attributes (SETATTR). With `guard`, nothing changes unless it equals the ctime
    /// ([`Error::NotSync`]).
    ///
    /// Owner and group: as chown(2), clearing suid and sgid bits; size: for regular files
    /// (`EISDIR`, `EINVAL` otherwise); times: to the server's or the given time, owner or
    /// privileged only, but "now" also for who may write. The mode of a symbolic link is left as it
    /// is. [`Error::Lost`] as for [`Vfs::commit`].
    fn set_attributes(
        &self,
        caller: &FsCred<'_>,
        node: &NodeHandle,
        set: &SetAttributes,
        guard: Option<Timestamp>,
    ) -> WccResult<()>;

    /// Finds `name` in `directory` (needs search permission). `.` is the directory, `..` its
    /// parent; the parent of the root is the root. No name leads out of the tree (one that would is
    /// `ESTALE` or `EACCES`); a directory that others moved out of it keeps its handle, and its
    /// names can still be looked up with that. The outcome's attributes are the directory's.
    fn lookup(&self, caller: &FsCred<'_>, directory: &NodeHandle, name: &[u8]) -> PostOpResult<VfsNode>;

    /// As [`Vfs::lookup`], but `None` where a disk or another machine might have to be waited for.
    fn lookup_nowait(
        &self,
        caller: &FsCred<'_>,
        directory: &NodeHandle,
        name: &[u8],
    ) -> Option<PostOpResult<VfsNode>> {
        (self.may_block() == MayBlock::Never).then(|| self.lookup(caller, directory, name))
    }

    /// Which of the rights in `asked` the caller has. Rights that make no sense for the kind of
    /// `node` are not granted. A file system that is read-only grants no change. The owner
    /// exception of READ and WRITE does not show here.
    fn access(&self, caller: &FsCred<'_>, node: &NodeHandle, asked: Access) -> PostOpResult<Access>;

    /// Appends the target of a symbolic link to `target`. `EINVAL` for anything else.
    fn read_link(&self, caller: &FsCred<'_>, node: &NodeHandle, target: &mut Vec<u8>) -> PostOpResult<()>;

    /// Appends up to `count` bytes from `offset` to `data`; fewer only at the end of the file.
    /// `EISDIR` for directories, `EINVAL` for what is not a regular file. An offset at or beyond
    /// the end appends nothing and says so.
    fn read(
        &self,
        caller: &FsCred<'_>,
        node: &NodeHandle,
        offset: u64,
        count: u32,
        data: &mut Vec<u8>,
    ) -> PostOpResult<ReadResult>;

    /// As [`Vfs::read`], in other ways if `how` allows them: a large read may be answered with a
    /// [`FileRange`]. Without [`FetchOptions::wait`] the answer is `None`, and `data` as it was,
    /// where a disk would have to be waited for.
    fn fetch(
        &self,
        caller: &FsCred<'_>,
        node: &NodeHandle,
        offset: u64,
        count: u32,
        how: FetchOptions,
        data: &mut Vec<u8>,
    ) -> Option<PostOpResult<FetchResult>>;

    /// Which operations on this tree may have to wait.
    fn may_block(&self) -> MayBlock;

    /// Whether the attributes of `node`, rights to it, and the space of its file system can be read
    /// without waiting, as far as that can be known beforehand.
    fn is_in_memory(&self, node: &NodeHandle) -> bool {
        let _ = node;
        self.may_block() != MayBlock::Always
    }

    /// A number that grows by one whenever data that were answered as [`Stability::Unstable`] may
    /// have been lost, and that starts elsewhere each time a tree is opened that outlives the
    /// process. After a loss it changes before any commit that missed the loss is reported as
    /// successful: so a write verifier made of it, read before a write and after a commit, never
    /// hides one.
    fn losses(&self) -> u64;

    /// Closes everything that is kept open only for speed and is not in use: for the end of an
    /// export, or before the file system is unmounted.
    fn release_all(&self) {}

    /// The counters of files kept open, where there are any.
    fn file_cache(&self) -> Option<FileCacheCounters> {
        None
    }

    /// Writes `data` at `offset`, clearing suid and sgid bits as write(2) does for a process
    /// without privileges, and makes it as durable as asked before it returns. Fewer bytes than
    /// given may have been written when space ends; an error means none. [`Error::Lost`] as for
    /// [`Vfs::commit`].
    fn write(
        &self,
        caller: &FsCred<'_>,
        node: &NodeHandle,
        offset: u64,
        data: &[u8],
        stability: Stability,
    ) -> WccResult<WriteResult>;

    /// As [`Vfs::write`] of [`Stability::Unstable`]; `None`, and nothing is written, where a disk
    /// or a slow change of the same file might have to be waited for, as far as one can say
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

    /// Makes everything written to `node` durable; the range may be widened, `count` 0 means to the
    /// end.
    ///
    /// [`Error::Lost`]: data that were answered as [`Stability::Unstable`] could not be written and
    /// may be gone. [`Vfs::losses`] has changed, so that clients send them again. It is told once
    /// per failure.
    fn commit(&self, caller: &FsCred<'_>, node: &NodeHandle, offset: u64, count: u32) -> WccResult<()>;

    /// Makes an object called `name`. The result is the directory's. [`Error::Lost`] as for
    /// [`Vfs::commit`], when a file that is taken gets another size.
    fn make(
        &self,
        caller: &FsCred<'_>,
        directory: &NodeHandle,
        name: &[u8],
        object: NewNode<'_>,
    ) -> WccResult<CreatedNode>;

    /// Makes or takes a regular file.
    fn create(
        &self,
        caller: &FsCred<'_>,
        directory: &NodeHandle,
        name: &[u8],
        mode: CreateMode<'_>,
    ) -> WccResult<CreatedNode> {
        self.make(caller, directory, name, NewNode::File(mode))
    }

    /// Removes a name that is not a directory's (`EISDIR`).
    fn remove(&self, caller: &FsCred<'_>, directory: &NodeHandle, name: &[u8]) -> WccResult<()>;

    /// Removes an empty directory (`ENOTDIR`, `ENOTEMPTY`).
    fn remove_directory(&self, caller: &FsCred<'_>, directory: &NodeHandle, name: &[u8]) -> WccResult<()>;

    /// Renames as rename(2): atomically, over an existing name of the same kind; two names of one
    /// file: nothing happens.
    fn rename(
        &self,
        caller: &FsCred<'_>,
        from: &NodeHandle,
        from_name: &[u8],
        to: &NodeHandle,
        to_name: &[u8],
    ) -> RenameResult;

    /// Gives `node` another name, as link(2): `EPERM` for directories, `EEXIST` for a name that is
    /// taken.
    fn link(&self, caller: &FsCred<'_>, node: &NodeHandle, directory: &NodeHandle, name: &[u8])
    -> LinkResult;

    /// Visits entries after `cookie` (0: from the start, `.` and `..` included) until the visitor
    /// says [`Visit::Stop`] or the directory ends: the value is whether it ended. The entry at
    /// which the visitor stops counts as not visited.
    ///
    /// Cookies stay valid while the directory changes: an entry that is neither made nor removed
    /// during a pass is visited exactly once (local: as far as the file system's d_off holds that).
    /// [`Error::BadCookie`] for a cookie that cannot be one. No lock is held while the visitor
    /// runs.
    fn read_directory(
        &self,
        caller: &FsCred<'_>,
        directory: &NodeHandle,
        cookie: u64,
        wanted: ReaddirDetail,
        visit: &mut dyn FnMut(&VfsDirEntry<'_>) -> Visit,
    ) -> PostOpResult<bool>;

    /// The space and inodes of the file system, as df shows them to the caller.
    fn space(&self, node: &NodeHandle) -> PostOpResult<FileSystemSpace>;

    /// What the file system can do at `node` (FSINFO and PATHCONF): true values, not wishes.
    fn limits(&self, node: &NodeHandle) -> PostOpResult<Limits>;

    /// Makes everything durable (used at shutdown). [`Error::Lost`] as for [`Vfs::commit`].
    fn sync_all(&self) -> Result<(), Error>;
}
