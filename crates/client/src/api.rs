//! Arguments and results of the operations: the library's public view of files.
//!
//! Owns plain data only. Must not know caches, requests or locks.

use std::{fmt, ops::Range, time::Duration};

use curt_types::{Attributes, FileKind};

/// The ID of an inode of this client. Stable while its lookup count is above 0 (see
/// [`crate::Superblock::forget`]); never reused for another object within one mount.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeId(pub u64);

impl InodeId {
    /// The root of the mount.
    pub const ROOT: Self = Self(1);
}

impl fmt::Debug for InodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// The result of a lookup, and how long the caller may cache it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupResult {
    /// The name exists.
    Positive(FoundInode),
    /// The name does not exist.
    Negative {
        /// How long the negative entry may be cached; zero: not at all.
        entry_valid: Duration,
    },
}

/// The object that a name refers to. Each value counts as one lookup of the object, which the
/// caller returns with [`crate::Superblock::forget`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundInode {
    /// The object.
    pub id: InodeId,
    /// Its attributes, with an inode number that is unique within the mount.
    pub attributes: Attributes,
    /// How long the name may be cached.
    pub entry_valid: Duration,
    /// How long the attributes may be cached.
    pub attributes_valid: Duration,
}

/// An object's attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeStat {
    /// The attributes, with an inode number that is unique within the mount. The size includes
    /// unsent writes.
    pub attributes: Attributes,
    /// How long the attributes may be cached.
    pub valid: Duration,
}

/// The flags of open(2) that an NFS client uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is one flag of open(2), and they combine freely")]
pub struct OpenFlags {
    /// O_RDONLY or O_RDWR.
    pub read: bool,
    /// O_WRONLY or O_RDWR.
    pub write: bool,
    /// O_TRUNC: the size becomes 0.
    pub truncate: bool,
    /// O_APPEND: each write goes to the end.
    pub append: bool,
    /// O_EXCL, for [`crate::ops::create`] alone: the name must be new.
    pub exclusive: bool,
    /// O_DIRECT.
    pub direct: bool,
    /// O_SYNC or O_DSYNC: a write is on the server's disk when it returns.
    pub sync: bool,
    /// The open of execve(2): needs the right to execute, not to read.
    pub execute: bool,
}

impl OpenFlags {
    /// For reading.
    #[must_use]
    pub fn reading() -> Self {
        Self { read: true, ..Self::default() }
    }

    /// For reading and writing.
    #[must_use]
    pub fn writing() -> Self {
        Self { read: true, write: true, ..Self::default() }
    }
}

/// Whether data that were cached before an open are still valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageCacheState {
    /// The cached data are valid.
    Same,
    /// The cached data are invalid. A caller that caches data itself, such as the kernel's page
    /// cache, must drop them before it replies to the open.
    Changed,
}

/// One entry of a directory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// The name.
    pub name: &'a [u8],
    /// The inode number, unique within the mount.
    pub fileid: u64,
    /// The type, if known.
    pub kind: Option<FileKind>,
    /// The cookie at which a listing continues after this entry.
    pub cookie: u64,
    /// The result of a lookup of the name: only in listings that request it, never for `.` and
    /// `..`, and `None` if the server sent no attributes or no handle. It counts as one lookup if
    /// the caller takes the entry.
    pub found: Option<FoundInode>,
}

impl fmt::Debug for DirEntry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} ({}, next {})", self.name.escape_ascii().to_string(), self.fileid, self.cookie)
    }
}

/// The caller's answer to an entry of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirEmit {
    /// The entry is taken; the listing continues.
    Taken,
    /// The buffer is full: the listing ends and continues later with this entry.
    Full,
}

/// How rename(2) treats a target that exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RenameMode {
    /// The target is replaced.
    #[default]
    Replace,
    /// RENAME_NOREPLACE: NFS cannot guarantee it; EINVAL, as in Linux.
    NoReplace,
    /// RENAME_EXCHANGE: NFS has no such operation; EINVAL.
    Exchange,
}

/// Space and number of files of a file system, as statfs(2) reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSystemStatistics {
    /// Bytes per block, the unit of the block counts below.
    pub block_size: u32,
    /// Total blocks.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Blocks available to the caller.
    pub blocks_available: u64,
    /// Total files.
    pub files: u64,
    /// Free files.
    pub files_free: u64,
    /// Longest name, in bytes.
    pub name_max: u32,
}

/// Receives notifications of changes that the client detects. The methods are called without any
/// lock of the client, on any thread that runs an operation. They must not wait for other
/// operations.
pub trait ChangeObserver: Send + Sync + fmt::Debug {
    /// Another client changed a file's data: copies are invalid.
    /// [`crate::OpenResult::data`] reports what an open detects as well.
    ///
    /// `size_before`: the size in the previous attributes. `None` if the change does not come from
    /// attributes: an append went to another offset than the caller's copy of it.
    fn contents_changed(&self, id: InodeId, size_before: Option<u64>);

    /// A directory changed: cached names are invalid.
    fn names_changed(&self, id: InodeId) {
        self.contents_changed(id, None);
    }

    /// Copies of a file's data are invalid, and the kernel, which may hold copies, is about to look
    /// the file up again. When this returns, the kernel must have dropped them and must ignore
    /// replies to its earlier requests. `size` is the current size. Called by an open; may wait for
    /// reads of the file.
    fn invalidate_pages(&self, id: InodeId, size: u64) {
        let _ = size;
        self.contents_changed(id, None);
    }

    /// A read of `range` detected that a file's data changed; `size` is the current size. Copies
    /// outside `range` should be dropped before this returns, because the read is answered then.
    /// [`ChangeObserver::contents_changed`] is called as well.
    fn read_found_change(&self, id: InodeId, range: Range<u64>, size: u64) {
        let _ = (id, range, size);
    }

    /// A kernel's copy of a symbolic link's target is invalid.
    fn target_changed(&self, id: InodeId) {
        self.contents_changed(id, None);
    }

    /// Waits until the kernel has dropped the targets of `id` that [`Self::target_changed`] was
    /// called for, but not for long.
    fn await_target_dropped(&self, id: InodeId) {
        let _ = id;
    }

    /// Whether the kernel may still have such a target of `id`.
    fn keeps_changed_target(&self, id: InodeId) -> bool {
        let _ = id;
        false
    }

    /// This client changed an object in the background: cached attributes are invalid.
    fn attributes_changed(&self, id: InodeId);
}
