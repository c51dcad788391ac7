//! The contents of requests and replies, independent of a protocol version's wire types.
//!
//! Owns plain values, the arguments and results of [`super::Protocol`]. Replies carry what the
//! server sent, not cached data.

use std::{sync::Arc, time::Instant};

use curt_rpc::{auth::RpcCredential, client::Interrupt};
use curt_types::{
    Attributes, CookieVerifier, Device, Fault, FileHandle, FileKind, Stability, Timestamp, Wcc, WriteVerifier,
};

use super::rpc_client::RpcCaller;
use crate::data::shared_bytes::SharedBytes;

/// The reply to a call that the server executed: its result, and the attributes of the objects
/// concerned, which a refusal may carry as well.
#[derive(Clone, Copy, Debug)]
pub struct NfsReply<T, A> {
    /// When the call was first sent; the age of the attributes counts from it.
    pub sent_at: Instant,
    /// If the call was retransmitted to a restarted server: the time by which an earlier copy was
    /// executed, if it was.
    pub lost_at: Option<Instant>,
    /// The result, or the status of a refusal.
    pub outcome: Result<T, Fault>,
    /// Attributes of the objects concerned.
    pub attributes: A,
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

/// The result of a WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteReply {
    /// Bytes written: from 1 to the number sent (a larger count is an EIO).
    pub count: u32,
    /// The stability of the write; at least the requested one.
    pub stability: Stability,
    /// Changes when the server may have lost unstable writes.
    pub verifier: WriteVerifier,
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
    /// Its handle, if READDIRPLUS returned one.
    pub handle: Option<FileHandle>,
    /// Its attributes, if READDIRPLUS returned them.
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

/// Limits and preferences of a server (RFC 1813, section 3.3.19). Sizes are in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fsinfo {
    /// Maximum READ size.
    pub read_max: u32,
    /// Preferred READ size.
    pub read_preferred: u32,
    /// READ sizes should be multiples of this.
    pub read_multiple: u32,
    /// Maximum WRITE size.
    pub write_max: u32,
    /// Preferred WRITE size.
    pub write_preferred: u32,
    /// WRITE sizes should be multiples of this.
    pub write_multiple: u32,
    /// Preferred READDIR size.
    pub listing_preferred: u32,
    /// Maximum file size.
    pub file_size_max: u64,
    /// Granularity of timestamps.
    pub time_step: Timestamp,
    /// Hard links are supported.
    pub links: bool,
    /// Symbolic links are supported.
    pub symlinks: bool,
    /// PATHCONF is the same for all objects of the file system.
    pub homogeneous: bool,
    /// SETATTR can set times.
    pub sets_times: bool,
}

/// The longest name of programs and kernels, in bytes (Linux: NAME_MAX).
const NAME_MAX: u32 = 255;

/// Limits as for pathconf(3) (RFC 1813, section 3.3.20).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pathconf {
    /// Maximum number of hard links to one object.
    pub links_max: u32,
    /// Maximum length of a name in bytes; 0 if the server did not return it. See
    /// [`Pathconf::longest_name`].
    pub name_max: u32,
    /// Longer names are refused, not truncated.
    pub no_truncation: bool,
    /// Only the superuser may change the owner of files.
    pub chown_restricted: bool,
    /// Names that differ only in case are equal.
    pub case_insensitive: bool,
    /// The case of names is preserved.
    pub case_preserving: bool,
}

impl Pathconf {
    /// The longest name that is sent, in bytes. Ganesha 4.3 returns 1024 whatever the file system
    /// supports; as in Linux, no name is longer than NAME_MAX.
    #[must_use]
    pub const fn longest_name(&self) -> u32 {
        match self.name_max {
            1..NAME_MAX => self.name_max,
            0 | NAME_MAX.. => NAME_MAX,
        }
    }
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
}

impl<'a> CreateRequest<'a> {
    /// An empty file.
    #[must_use]
    pub fn file(mode: u32) -> Self {
        Self { kind: FileKind::Regular, mode, text: &[], device: Device::default(), is_exclusive: false }
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
    /// With handles and attributes (READDIRPLUS).
    pub plus: bool,
}

/// The opener of a file, which each READ, WRITE and COMMIT carries. NFSv3 has no OPEN: it uses the
/// credential only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenContext {
    /// The opener: the client's number for a user with its groups.
    pub owner: u32,
    /// The opener's credential.
    pub credential: Arc<RpcCredential>,
}

/// The open file of a request, and the interrupt that cancels it.
#[derive(Clone, Copy, Debug)]
pub struct OpenCaller<'a> {
    /// The open file.
    pub open: &'a OpenContext,
    /// Cancels the wait.
    pub interrupt: &'a Interrupt,
}

impl<'a> OpenCaller<'a> {
    /// The caller of the same request without the open.
    #[must_use]
    pub fn rpc(&self) -> RpcCaller<'a> {
        RpcCaller { credential: &self.open.credential, interrupt: self.interrupt }
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
