//! What a reply says, free of any protocol version's wire types.
//!
//! Owns the plain values that plans return. They carry what the server said and nothing that was
//! believed before.

use std::{sync::Arc, time::Instant};

use curt_rpc::{auth::RpcCredential, client::Interrupt};
use curt_types::{Attributes, Device, Fault, FileHandle, FileKind, Stability, Timestamp, Wcc};

use super::{CookieVerifier, RpcCaller, WriteVerifier};
use crate::data::SharedBytes;

/// What came back for one call that the server executed: its verdict and what it says of the
/// objects concerned, which it may say for refusals too.
#[derive(Clone, Copy, Debug)]
pub struct NfsReply<T, A> {
    /// When the call was first sent: what attributes in it are dated by.
    pub sent_at: Instant,
    /// Of a call that was sent again to a server that had been restarted: by when an earlier copy
    /// was executed, if it was.
    pub lost_at: Option<Instant>,
    /// The result, or why the server refused.
    pub outcome: Result<T, Fault>,
    /// Attributes of the objects that the call was about.
    pub attributes: A,
}

/// The objects of a RENAME.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RenameAttributes {
    /// The directory that held the old name.
    pub from: Wcc,
    /// The directory that holds the new name.
    pub to: Wcc,
}

/// The objects of a LINK.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkAttributes {
    /// The file, afterwards.
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
    /// Its attributes, if the server gave them.
    pub attributes: Option<Attributes>,
}

/// The result of a WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteReply {
    /// Bytes taken: 1 to as many as were sent (a server that claims more is answered with EIO).
    pub count: u32,
    /// What it did with them; at least what was asked for.
    pub stability: Stability,
    /// Changes when the server may have lost what was unstable.
    pub verifier: WriteVerifier,
}

/// One name of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReaddirEntry {
    /// Number of the object in its file system.
    pub fileid: u64,
    /// The name: bytes without `/` and NUL, not empty.
    pub name: Box<[u8]>,
    /// Where the listing goes on after this name.
    pub cookie: u64,
    /// Its handle, from READDIRPLUS and if the server gave it.
    pub handle: Option<FileHandle>,
    /// Its attributes, likewise.
    pub attributes: Option<Attributes>,
}

/// One reply's worth of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReaddirPage {
    /// To be sent with the next position.
    pub verifier: CookieVerifier,
    /// The names, in the server's order.
    pub names: Vec<ReaddirEntry>,
    /// Nothing follows the last name.
    pub end: bool,
}

/// Space of a file system (RFC 1813 §3.3.18).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FsstatReply {
    /// Bytes in all.
    pub total_bytes: u64,
    /// Bytes free.
    pub free_bytes: u64,
    /// Bytes free to the asker.
    pub available_bytes: u64,
    /// Files in all.
    pub total_files: u64,
    /// Files free.
    pub free_files: u64,
    /// Files free to the asker.
    pub available_files: u64,
    /// Seconds for which this will not change, by the server's guess.
    pub invariant_seconds: u32,
}

/// Limits and preferences of a server (RFC 1813 §3.3.19).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fsinfo {
    /// The largest READ.
    pub read_max: u32,
    /// The READ that it likes best.
    pub read_preferred: u32,
    /// READ sizes should be multiples of it.
    pub read_multiple: u32,
    /// The largest WRITE.
    pub write_max: u32,
    /// The WRITE that it likes best.
    pub write_preferred: u32,
    /// WRITE sizes should be multiples of it.
    pub write_multiple: u32,
    /// The READDIR size that it likes best.
    pub listing_preferred: u32,
    /// The largest file.
    pub file_size_max: u64,
    /// The step of its times.
    pub time_step: Timestamp,
    /// It makes hard links.
    pub links: bool,
    /// It makes symbolic links.
    pub symlinks: bool,
    /// PATHCONF says the same for all its files.
    pub homogeneous: bool,
    /// SETATTR can set times.
    pub sets_times: bool,
}

/// The longest name that programs and kernels have room for, in bytes (Linux' NAME_MAX).
const NAME_MAX: u32 = 255;

/// What pathconf(3) tells (RFC 1813 §3.3.20).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pathconf {
    /// Hard links to one object.
    pub links_max: u32,
    /// Bytes of a name, as the server says; 0 if it does not. See [`Pathconf::longest_name`].
    pub name_max: u32,
    /// Longer names are refused, not cut.
    pub no_truncation: bool,
    /// Only the superuser gives files away.
    pub chown_restricted: bool,
    /// Names that differ in case alone are the same.
    pub case_insensitive: bool,
    /// Names keep their case.
    pub case_preserving: bool,
}

impl Pathconf {
    /// The longest name that is sent, in bytes. Ganesha 4.3 says 1024, whatever its file system
    /// holds; as in Linux' client, no name is longer than NAME_MAX.
    #[must_use]
    pub const fn longest_name(&self) -> u32 {
        match self.name_max {
            1..NAME_MAX => self.name_max,
            0 | NAME_MAX.. => NAME_MAX,
        }
    }
}

/// What is to be made under a name that must be new.
#[derive(Clone, Copy, Debug)]
pub struct CreateRequest<'a> {
    /// What it is.
    pub kind: FileKind,
    /// Permission bits, set-id and sticky bits.
    pub mode: u32,
    /// The text of a symbolic link.
    pub text: &'a [u8],
    /// The numbers of a device.
    pub device: Device,
    /// Of a file: the server has to recognise the request if it is sent twice.
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

    /// A symbolic link with this text.
    #[must_use]
    pub fn symlink(text: &'a [u8]) -> Self {
        Self { kind: FileKind::Symlink, text, ..Self::file(0o777) }
    }

    /// A device, with these numbers, a named pipe or a socket.
    #[must_use]
    pub fn node(kind: FileKind, device: Device, mode: u32) -> Self {
        Self { kind, device, ..Self::file(mode) }
    }
}

/// Which names of a directory are wanted.
#[derive(Clone, Copy, Debug)]
pub struct ListRequest {
    /// Behind which.
    pub cookie: u64,
    /// The epoch of the cookie.
    pub verifier: CookieVerifier,
    /// In results of so many bytes at most.
    pub size: u32,
    /// With handles and attributes.
    pub plus: bool,
}

/// By what a server knows that a file is open, and for whom: it goes with each READ, WRITE and
/// COMMIT. NFSv3 has no opens: there it is in whose name data are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenContext {
    /// Who opened the file: a number of this client for a user and their groups.
    pub owner: u32,
    /// The credential of its requests.
    pub credential: Arc<RpcCredential>,
}

/// Who asks through an open file, and how the asking is called off.
#[derive(Clone, Copy, Debug)]
pub struct OpenCaller<'a> {
    /// The open file.
    pub open: &'a OpenContext,
    /// Ends the wait.
    pub interrupt: &'a Interrupt,
}

impl<'a> OpenCaller<'a> {
    /// As any other caller.
    #[must_use]
    pub fn rpc(&self) -> RpcCaller<'a> {
        RpcCaller { credential: &self.open.credential, interrupt: self.interrupt }
    }
}

/// The result of a READ.
#[derive(Clone, Debug)]
pub struct ReadData {
    /// The bytes: as many as were asked for, or fewer; none only at the end.
    pub bytes: SharedBytes,
    /// The file ends behind them.
    pub end: bool,
}

/// Processes a READ's bytes in the receive buffer.
pub trait ReadSink: Send + Sync {
    /// `bytes` were read; `end` says whether the file ends behind them. Returns `false` to leave
    /// them to the caller. As
    /// [`curt_rpc::client::ReplySink::consume`]: on another thread, which must not be kept waiting.
    fn consume(&self, about: Option<&Attributes>, sent_at: Instant, bytes: &[u8], end: bool) -> bool;
}
