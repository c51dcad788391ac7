//! Requests about files and directories, and their values, independent of a protocol version.

use std::{ops::Range, sync::Arc, time::Instant};

use curt_rpc::client::CallError;
use curt_types::{
    Access, Attributes, CookieVerifier, Device, Fault, FileHandle, FileKind, SetAttributes, Stability, Wcc,
    WriteVerifier,
};

use super::{Answer, NewOpen, NfsReply, OpenCaller, RpcCaller};
use crate::data::shared_bytes::SharedBytes;

/// Requests about files and directories. Each method waits for the server's reply; names and
/// handles are those of the server. A method is not a procedure: an exclusive `create` takes two in
/// NFSv3.
///
/// # Errors
/// All methods: there is no reply, or a malformed one.
pub trait FileOperations {
    /// Looks `name` up in `directory`; returns the attributes of the directory as well.
    fn find(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        name: &[u8],
    ) -> Answer<LookupReply, Option<Attributes>>;

    /// The attributes of an object.
    fn attributes(&self, caller: RpcCaller<'_>, object: &FileHandle) -> Answer<Attributes, ()>;

    /// The subset of `rights` that the caller has on an object; returns its attributes as well.
    fn access(
        &self,
        caller: RpcCaller<'_>,
        object: &FileHandle,
        rights: Access,
    ) -> Answer<Access, Option<Attributes>>;

    /// Sets attributes.
    fn set(&self, caller: RpcCaller<'_>, object: &FileHandle, set: &SetAttributes) -> Answer<(), Wcc>;

    /// The target of a symbolic link; returns the link's attributes as well.
    fn readlink(&self, caller: RpcCaller<'_>, link: &FileHandle) -> Answer<Box<[u8]>, Option<Attributes>>;

    /// Creates an object under a new name; returns the attributes of the directory.
    fn create(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        name: &[u8],
        new: &CreateRequest<'_>,
    ) -> Answer<CreatedObject, Wcc>;

    /// Removes a name of a directory or of another object; returns the attributes of the directory
    /// that contained it.
    fn remove(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        name: &[u8],
        is_directory: bool,
    ) -> Answer<(), Wcc>;

    /// Renames an object, replacing an existing target.
    fn rename(
        &self,
        caller: RpcCaller<'_>,
        old_directory: &FileHandle,
        old_name: &[u8],
        new_directory: &FileHandle,
        new_name: &[u8],
    ) -> Answer<(), RenameAttributes>;

    /// Adds a name to a file.
    fn link(
        &self,
        caller: RpcCaller<'_>,
        file: &FileHandle,
        directory: &FileHandle,
        name: &[u8],
    ) -> Answer<(), LinkAttributes>;

    /// Whether the server lists attributes with names. It may say only when it is asked for them
    /// that it does not.
    fn lists_attributes(&self) -> bool {
        true
    }

    /// Whether a listing can return the caller's rights as well.
    fn lists_with_rights(&self) -> bool {
        false
    }

    /// Lists names of a directory; returns its attributes as well.
    fn list(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        request: ListRequest,
    ) -> Answer<ReaddirPage, Option<Attributes>>;

    /// Reads from a file; returns its attributes as well. The data are `None` if `sink` has taken
    /// them.
    fn read(
        &self,
        open: OpenCaller<'_>,
        file: &FileHandle,
        range: Range<u64>,
        sink: Option<&Arc<dyn ReadSink>>,
    ) -> Result<Option<NfsReply<ReadData, Option<Attributes>>>, CallError>;

    /// Writes to a file; returns its attributes.
    fn write(
        &self,
        open: OpenCaller<'_>,
        file: &FileHandle,
        write: WriteRequest<'_>,
    ) -> Answer<WriteReply, Wcc>;

    /// Commits unstable writes to stable storage; returns the file's attributes.
    fn commit(&self, open: OpenCaller<'_>, file: &FileHandle) -> Answer<WriteVerifier, Wcc>;

    /// Space of the file system of an object; returns the object's attributes.
    fn space(&self, caller: RpcCaller<'_>, object: &FileHandle) -> Answer<FsstatReply, Option<Attributes>>;
}

/// The attributes in a RENAME reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RenameAttributes {
    /// The directory of the old name.
    pub from: Wcc,
    /// The directory of the new name.
    pub to: Wcc,
}

/// The attributes in a LINK reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkAttributes {
    /// The file after the operation.
    pub file: Option<Attributes>,
    /// The directory of the new name.
    pub directory: Wcc,
}

/// An object that was created. An error says that it was created, but that a later request about it
/// failed: its LOOKUP where the reply had no handle, or the SETATTR after an exclusive CREATE.
pub type CreatedObject = Result<LookupReply, Fault>;

/// An object that was found or created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookupReply {
    /// Its handle.
    pub handle: FileHandle,
    /// Its attributes, if the server returned them.
    pub attributes: Option<Attributes>,
}

/// The object to be created under a name that must not exist.
#[derive(Clone, Copy, Debug)]
pub struct CreateRequest<'a> {
    /// Its type.
    pub kind: FileKind,
    /// Permission bits, set-id and sticky bits.
    pub mode: u32,
    /// The target of a symbolic link.
    pub text: &'a [u8],
    /// The major and minor numbers of a device.
    pub device: Device,
    /// For a regular file: exclusive creation, by which the server recognises a retransmission.
    pub is_exclusive: bool,
    /// The open that a version with opens gets with the creation of a regular file; `None`: for
    /// writing by nobody, and closed at once.
    pub open: Option<NewOpen<'a>>,
}

impl<'a> CreateRequest<'a> {
    /// An empty file.
    #[must_use]
    pub fn file(mode: u32) -> Self {
        Self {
            kind: FileKind::Regular,
            mode,
            text: &[],
            device: Device::default(),
            is_exclusive: false,
            open: None,
        }
    }

    /// An empty directory.
    #[must_use]
    pub fn directory(mode: u32) -> Self {
        Self { kind: FileKind::Directory, ..Self::file(mode) }
    }

    /// A symbolic link with the target `text`.
    #[must_use]
    pub fn symlink(text: &'a [u8]) -> Self {
        Self { kind: FileKind::Symlink, text, ..Self::file(0o777) }
    }

    /// A device with these numbers, a FIFO or a socket.
    #[must_use]
    pub fn node(kind: FileKind, device: Device, mode: u32) -> Self {
        Self { kind, device, ..Self::file(mode) }
    }
}

/// The arguments of a listing.
#[derive(Clone, Copy, Debug)]
pub struct ListRequest {
    /// The cookie to continue after; 0 for the beginning.
    pub cookie: u64,
    /// The cookie verifier.
    pub verifier: CookieVerifier,
    /// Longest results, in bytes.
    pub size: u32,
    /// Whether handles and attributes are requested (READDIRPLUS).
    pub plus: bool,
    /// The caller's rights that are requested as well ([`FileOperations::lists_with_rights`]).
    pub rights: Option<Access>,
}

/// One entry of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReaddirEntry {
    /// The fileid.
    pub fileid: u64,
    /// The name: bytes without `/` and NUL, not empty.
    pub name: Box<[u8]>,
    /// The cookie at which the listing continues after this entry.
    pub cookie: u64,
    /// Its handle, if the reply contains it.
    pub handle: Option<FileHandle>,
    /// Its attributes, if the reply contains them.
    pub attributes: Option<Attributes>,
}

/// The entries in one READDIR or READDIRPLUS reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReaddirPage {
    /// The cookie verifier for the next request.
    pub verifier: CookieVerifier,
    /// The entries, in the server's order.
    pub names: Vec<ReaddirEntry>,
    /// The last entry ends the listing.
    pub end: bool,
    /// The subset of [`ListRequest::rights`] that the caller has, if they were requested.
    pub granted: Option<Access>,
}

impl ReaddirPage {
    /// The approximate bytes of the names in a reply with attributes.
    #[must_use]
    pub fn bytes(&self) -> u32 {
        /// An entryplus3 apart from name and handle: fileid, cookie, attributes, lengths (RFC 1813,
        /// section 3.3.17).
        const ENTRY: usize = 124;
        /// A handle that the reply does not contain.
        const HANDLE: usize = 36;
        let names = self.names.iter().map(|listed| {
            let handle = listed.handle.as_ref().map_or(HANDLE, |handle| handle.as_bytes().len());
            ENTRY + handle + listed.name.len().next_multiple_of(4)
        });
        u32::try_from(names.sum::<usize>()).unwrap_or(u32::MAX)
    }
}

/// The result of a READ.
#[derive(Clone, Debug)]
pub struct ReadData {
    /// The data: up to the number of bytes requested; empty only at end of file.
    pub bytes: SharedBytes,
    /// The data reach end of file.
    pub end: bool,
}

/// Processes the data of a READ in the receive buffer.
pub trait ReadSink: Send + Sync {
    /// Receives the data; `end` is set at end of file. Returns `false` to leave the data to the
    /// caller. Called on another thread and must not block, as
    /// [`curt_rpc::client::ReplySink::consume`].
    fn consume(&self, about: Option<&Attributes>, sent_at: Instant, bytes: &[u8], end: bool) -> bool;
}

/// The arguments of a WRITE.
#[derive(Clone, Copy)]
pub struct WriteRequest<'a> {
    /// The position in the file.
    pub offset: u64,
    /// The least stability.
    pub stability: Stability,
    /// The data.
    pub bytes: &'a [u8],
    /// Attributes that are set after the data were written, by a version that needs no further
    /// request for it; also if only a part of the data was written.
    pub set: Option<&'a SetAttributes>,
    /// Whether a lock that the data were written under was lost.
    pub is_lost: IsLost<'a>,
}

/// Whether a lock for writing of the bytes that a request changes was lost, so that it is not sent,
/// or not again (EIO). A version asks this before each transmission of its own, and last where the
/// server tells it of lost locks in other replies.
pub type IsLost<'a> = &'a (dyn Fn() -> bool + Sync);

/// The result of a WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteReply {
    /// Bytes written: from 1 to the number sent (a larger count is an EIO).
    pub count: u32,
    /// The stability of the write; at least the requested one.
    pub stability: Stability,
    /// Changes when the server may have lost unstable writes.
    pub verifier: WriteVerifier,
    /// The result of setting [`WriteRequest::set`]; `None` if that was not tried.
    pub set: Option<Result<(), Fault>>,
}

/// Space of a file system (RFC 1813, section 3.3.18).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FsstatReply {
    /// Total bytes.
    pub total_bytes: u64,
    /// Free bytes.
    pub free_bytes: u64,
    /// Bytes available to the caller.
    pub available_bytes: u64,
    /// Total files.
    pub total_files: u64,
    /// Free files.
    pub free_files: u64,
    /// Files available to the caller.
    pub available_files: u64,
    /// Seconds for which the values are not expected to change.
    pub invariant_seconds: u32,
}
