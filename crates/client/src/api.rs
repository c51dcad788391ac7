//! The arguments and results of operations: what a user of this library sees of files.
//!
//! Owns plain data only. Must not know caches, requests or locks.

use std::{fmt, ops::Range, sync::Arc, time::Duration};

use curt_types::{Attributes, FileKind};

use crate::identity::InodeId;

/// What a look-up found, and for how long it may be remembered without asking this client again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupResult {
    /// The name leads to an object.
    Positive(FoundInode),
    /// The name is missing.
    Negative {
        /// How long that may be cached; zero: not at all.
        entry_valid: Duration,
    },
}

/// An object that a name leads to. It counts as one look-up of the object, to be given back by
/// [`crate::Superblock::forget`].
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
    /// What they are, with an inode number that is unique within the mount; unsent writes count for
    /// the size.
    pub attributes: Attributes,
    /// How long they may be cached.
    pub valid: Duration,
}

/// How a file is opened: the flags of open(2) that matter to a client.
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
    /// They are still the file's.
    Same,
    /// They are not: a caller with copies (a kernel with pages) has to drop them before it answers
    /// the open.
    Changed,
}

/// An open file and what the open found.
#[derive(Debug)]
pub struct OpenResult {
    /// To be used by reads and writes and given to [`crate::ops::release`].
    pub file: Arc<crate::OpenFile>,
    /// Whether data cached from before are valid.
    pub data: PageCacheState,
}

/// One name of a directory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// The name.
    pub name: &'a [u8],
    /// The inode number, unique within the mount.
    pub fileid: u64,
    /// The type, if it is known.
    pub kind: Option<FileKind>,
    /// Where a listing continues after this name.
    pub cookie: u64,
    /// The result of a look-up of the name; only in listings that ask for it, never for `.` and
    /// `..`, and not if the server said too little. It counts as one look-up if the listener takes
    /// the name.
    pub found: Option<FoundInode>,
}

impl fmt::Debug for DirEntry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} ({}, next {})", self.name.escape_ascii().to_string(), self.fileid, self.cookie)
    }
}

/// A listener's answer to a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirEmit {
    /// Taken; the listing continues.
    Taken,
    /// Not taken, there is no room: the listing ends here and will continue with this name.
    Full,
}

/// How rename(2) treats a target that exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RenameMode {
    /// It is replaced.
    #[default]
    Replace,
    /// RENAME_NOREPLACE: NFSv3 cannot promise it; EINVAL, as with Linux.
    NoReplace,
    /// RENAME_EXCHANGE: NFSv3 cannot do it; EINVAL.
    Exchange,
}

/// Space and files of a file system: what statfs(2) tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSystemStatistics {
    /// Bytes of a block, in which the numbers of blocks below are counted.
    pub block_size: u32,
    /// Blocks in all.
    pub blocks: u64,
    /// Blocks free.
    pub blocks_free: u64,
    /// Blocks free to the asker.
    pub blocks_available: u64,
    /// Files in all.
    pub files: u64,
    /// Files free.
    pub files_free: u64,
    /// Bytes of a name at most.
    pub name_max: u32,
}

/// Is notified of changes that a client finds by itself. Called without any lock of the client, on
/// any thread that is inside an operation; so it must not wait for other operations.
pub trait ChangeObserver: Send + Sync + fmt::Debug {
    /// A file's data were changed by others: copies are invalid. What an open finds is in
    /// [`OpenResult::data`], too.
    ///
    /// `size_before`: the size that attributes told before. Nothing if no attributes tell of the
    /// change: what was written went elsewhere than whoever keeps copies had thought.
    fn contents_changed(&self, id: InodeId, size_before: Option<u64>);

    /// The same for a directory: its names are no longer known.
    fn names_changed(&self, id: InodeId) {
        self.contents_changed(id, None);
    }

    /// Copies of a file's data are invalid, and a kernel that may keep some is about to look the
    /// file up again: it must have dropped them, and ignore replies to what it asked before, when
    /// this returns. The file has `size` now. Called by an open; may wait for reads of the file.
    fn copies_void(&self, id: InodeId, size: u64) {
        let _ = size;
        self.contents_changed(id, None);
    }

    /// A read of `range` found a file's data changed; the file has `size` now. Copies, those of the
    /// range apart, should be dropped before this returns: it is answered then.
    /// [`ChangeObserver::contents_changed`] was called as well.
    fn read_found_change(&self, id: InodeId, range: Range<u64>, size: u64) {
        let _ = (id, range, size);
    }

    /// This client changed an object in the background: cached copies of its attributes are
    /// invalid.
    fn attributes_changed(&self, id: InodeId);
}

/// The fields that all events about an object have, in the terms of Linux's tracepoints. All zero
/// if nothing is known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InodeEventFields {
    /// The server's number of its file system.
    pub dev: u64,
    /// Its number as programs see it.
    pub fileid: u64,
    /// The CRC-32 of its handle.
    pub fhandle: u32,
    /// Its type as the upper bits of its mode have it.
    pub object_type: u8,
    /// Its change time in a number that grows with it.
    pub version: u64,
    /// Its size as programs see it.
    pub size: u64,
    /// What is cached but invalid, in Linux's bits.
    pub cache_validity: u32,
    /// Special states, in Linux's bits.
    pub nfsi_flags: u32,
}
