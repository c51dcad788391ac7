//! The results of operations: a value or an error, and the attributes that NFS replies carry in
//! either case.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use curt_types::{Attributes, PreOpAttr, Stability, Wcc};

use crate::error::Error;
use crate::handle::NodeHandle;

/// The result of an operation that changes nothing.
#[derive(Clone, Debug)]
#[must_use]
pub struct PostOpResult<T> {
    /// The attributes of the object (for lookup and listing: of the directory), whenever its handle
    /// resolves.
    pub attributes: Option<Attributes>,
    /// What was asked for.
    pub value: Result<T, Error>,
}

/// The result of an operation that may change an object: `before` and `after` enclose this change
/// alone, as far as other operations go through the same `Vfs`.
#[derive(Clone, Debug)]
#[must_use]
pub struct WccResult<T> {
    /// The object just before; none if that is not known for certain.
    pub before: Option<PreOpAttr>,
    /// The object just after, also on failure, whenever the handle resolves.
    pub after: Option<Attributes>,
    /// What was asked for.
    pub value: Result<T, Error>,
}

/// The result of a rename.
#[derive(Clone, Debug)]
#[must_use]
pub struct RenameResult {
    /// The directory that the name was in.
    pub from: Wcc,
    /// The directory that the name went to.
    pub to: Wcc,
    /// Whether it was done.
    pub value: Result<(), Error>,
}

/// The result of a link.
#[derive(Clone, Debug)]
#[must_use]
pub struct LinkResult {
    /// The attributes of the object that was to get a name, whenever its handle resolves.
    pub node: Option<Attributes>,
    /// The directory: before, after, and whether it was done.
    pub directory: WccResult<()>,
}

/// An object: its name and what is known of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VfsNode {
    /// Its handle.
    pub handle: NodeHandle,
    /// Its attributes.
    pub attributes: Attributes,
}

/// What was made, or taken by an unchecked create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatedNode {
    /// The object, as it is once everything asked for was set.
    pub node: VfsNode,
    /// Whether it did not exist before.
    pub new: bool,
}

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadResult {
    /// How many bytes were appended.
    pub count: u32,
    /// Whether the last of them is the file's last.
    pub eof: bool,
}

/// How data may be fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchOptions {
    /// A large read may be answered with a piece of a file instead of bytes.
    pub sendfile: bool,
    /// A disk may be waited for.
    pub wait: bool,
}

/// The result of a fetch.
#[derive(Clone, Debug)]
pub enum FetchResult {
    /// Bytes, which were appended.
    Copied(ReadResult),
    /// Where the bytes are: nothing was appended.
    FileRange(FileRange),
}

/// A piece of a file, to be sent from where it lies.
#[derive(Clone, Debug)]
pub struct FileRange {
    /// The file, opened to be read with the caller's rights.
    pub file: Arc<OwnedFd>,
    /// How many bytes from the offset asked for it has, at least 1, and whether the last of them is
    /// the file's last.
    pub read: ReadResult,
    /// To be set if the piece cannot be read: then this tree returns no more pieces, and clients
    /// get errors as replies.
    pub failed: Arc<AtomicBool>,
}

/// The result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteResult {
    /// How many bytes were written, from the first on.
    pub count: u32,
    /// How durable they are: at least what was asked for.
    pub stability: Stability,
}

/// One entry of a directory.
#[derive(Clone, Debug)]
pub struct VfsDirEntry<'a> {
    /// The number of the object it names.
    pub fileid: u64,
    /// Where to continue after this entry.
    pub cookie: u64,
    /// The name.
    pub name: &'a [u8],
    /// The object, where it was wanted and the caller may know it.
    pub node: Option<VfsNode>,
}

/// Whether a listing continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visit {
    /// The entry was taken: the next one.
    Continue,
    /// The entry was not taken: end here.
    Stop,
}

/// Space and inodes (RFC 1813 §3.3.18, FSSTAT).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSystemSpace {
    /// Bytes in all.
    pub bytes_total: u64,
    /// Bytes free.
    pub bytes_free: u64,
    /// Bytes free to callers without privileges.
    pub bytes_available: u64,
    /// Inodes in all; 0 where there is no such limit.
    pub files_total: u64,
    /// Inodes free.
    pub files_free: u64,
    /// Inodes free to callers without privileges.
    pub files_available: u64,
}

/// What a file system can do (RFC 1813 §3.3.19 and §3.3.20, FSINFO and PATHCONF).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The size in bytes that no file can exceed.
    pub file_size_max: u64,
    /// The step in which times are kept.
    pub time_delta: core::time::Duration,
    /// How many names a file can have.
    pub link_max: u32,
    /// How many bytes a name can have.
    pub name_max: u32,
    /// Whether there are hard links.
    pub links: bool,
    /// Whether there are symbolic links.
    pub symlinks: bool,
    /// Whether names that differ in case alone are one.
    pub case_insensitive: bool,
    /// Whether names keep their case.
    pub case_preserving: bool,
}
