//! The results of operations: a value or an error, and the attributes that NFS replies contain in
//! both cases.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use curt_types::{Attributes, PreOpState, Stability, Wcc};

use crate::error::Error;
use crate::handle::NodeHandle;

/// The result of an operation without changes.
#[derive(Clone, Debug)]
#[must_use]
pub struct PostOpResult<T> {
    /// The attributes of the object (for lookup and listing: of the directory), whenever its handle
    /// resolves.
    pub attributes: Option<Attributes>,
    /// The result.
    pub value: Result<T, Error>,
}

/// The result of an operation that may change an object: `before` and `after` include only this
/// change, as far as other operations use the same `Vfs`.
#[derive(Clone, Debug)]
#[must_use]
pub struct WccResult<T> {
    /// Attributes before; `None` if not known with certainty.
    pub before: Option<PreOpState>,
    /// Attributes after, also on failure, whenever the handle resolves.
    pub after: Option<Attributes>,
    /// The result.
    pub value: Result<T, Error>,
}

/// The result of a rename.
#[derive(Clone, Debug)]
#[must_use]
pub struct RenameResult {
    /// The source directory.
    pub from: Wcc,
    /// The target directory.
    pub to: Wcc,
    /// The result.
    pub value: Result<(), Error>,
}

/// The result of a link.
#[derive(Clone, Debug)]
#[must_use]
pub struct LinkResult {
    /// The attributes of the linked object, whenever its handle resolves.
    pub node: Option<Attributes>,
    /// The directory: before, after, and the result.
    pub directory: WccResult<()>,
}

/// An object: its handle and attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VfsNode {
    /// Its handle.
    pub handle: NodeHandle,
    /// Its attributes.
    pub attributes: Attributes,
}

/// A created object, or one used by an unchecked create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatedNode {
    /// The object, after all attributes were set.
    pub node: VfsNode,
    /// Whether it did not exist before.
    pub new: bool,
}

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadResult {
    /// Number of appended bytes.
    pub count: u32,
    /// Whether the end of the file was reached.
    pub eof: bool,
}

/// How to fetch data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchOptions {
    /// A large read may return a range of the file instead of bytes.
    pub sendfile: bool,
    /// May wait for a disk.
    pub wait: bool,
}

/// The result of a fetch.
#[derive(Clone, Debug)]
pub enum FetchResult {
    /// Bytes were appended.
    Copied(ReadResult),
    /// A range of a file; no bytes were appended.
    FileRange(FileRange),
}

/// A range of a file, to be sent by sendfile(2).
#[derive(Clone, Debug)]
pub struct FileRange {
    /// The file, opened for reading with the caller's permissions.
    pub file: Arc<OwnedFd>,
    /// The number of bytes from the requested offset, at least 1, and whether the end of the file
    /// is reached.
    pub read: ReadResult,
    /// To be set if the range cannot be read: this tree then returns no more ranges, and clients
    /// get errors as replies.
    pub failed: Arc<AtomicBool>,
}

/// The result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteResult {
    /// Number of bytes written, from the start.
    pub count: u32,
    /// How durable they are: at least as requested.
    pub stability: Stability,
}

/// One entry of a directory.
#[derive(Clone, Debug)]
pub struct VfsDirEntry<'a> {
    /// The object's fileid.
    pub fileid: u64,
    /// The cookie of the entry.
    pub cookie: u64,
    /// The name.
    pub name: &'a [u8],
    /// The object, if requested and visible to the caller.
    pub node: Option<VfsNode>,
}

/// Space and inodes (RFC 1813 section 3.3.18, FSSTAT).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSystemSpace {
    /// Total bytes.
    pub bytes_total: u64,
    /// Free bytes.
    pub bytes_free: u64,
    /// Bytes available to unprivileged callers.
    pub bytes_available: u64,
    /// Total inodes; 0 without a limit.
    pub files_total: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Inodes available to unprivileged callers.
    pub files_available: u64,
}

/// Properties of a file system (RFC 1813 sections 3.3.19 and 3.3.20, FSINFO and PATHCONF).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum file size in bytes.
    pub file_size_max: u64,
    /// The step of times.
    pub time_delta: core::time::Duration,
    /// Maximum number of names of a file.
    pub link_max: u32,
    /// Maximum length of a name in bytes.
    pub name_max: u32,
    /// Whether hard links are supported.
    pub links: bool,
    /// Whether symbolic links are supported.
    pub symlinks: bool,
    /// Whether names are case-insensitive.
    pub case_insensitive: bool,
    /// Whether names preserve case.
    pub case_preserving: bool,
}
