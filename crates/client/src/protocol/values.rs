//! What a reply says, free of any protocol version's wire types.
//!
//! Owns the plain values that plans return. They carry what the server said and nothing that was
//! believed before.

use std::{sync::Arc, time::Instant};

use curt_proto::nfs3::{CookieVerifier, FileHandle, WriteVerifier};
use curt_rpc::{auth::RpcCredential, client::Interrupt};

use super::{Fault, RpcCaller};
use crate::data::SharedBytes;

/// A point in a server's time: seconds and nanoseconds since 1970-01-01 UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Whole seconds; an NFSv3 server cannot say times before 1970 or after 2106 (RFC 1813 §2.5,
    /// nfstime3).
    pub seconds: i64,
    /// Nanoseconds within the second, 0 to 999,999,999 (larger ones from a server are cut to that).
    pub nanoseconds: u32,
}

impl Timestamp {
    /// Nanoseconds since 1970: what change stamps are compared by.
    #[must_use]
    pub fn as_nanoseconds(self) -> i128 {
        i128::from(self.seconds) * 1_000_000_000 + i128::from(self.nanoseconds)
    }
}

/// The type of a file system object (RFC 1813 §2.6, ftype3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileType {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A block device.
    Block,
    /// A character device.
    Character,
    /// A symbolic link.
    Symlink,
    /// A socket's name.
    Socket,
    /// A named pipe.
    Fifo,
}

/// The numbers of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Device {
    /// Its driver.
    pub major: u32,
    /// Which of the driver's.
    pub minor: u32,
}

/// What a server says of one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Its type.
    pub kind: FileType,
    /// Permission bits, set-id and sticky bits: the low 12 bits of a Unix mode.
    pub mode: u32,
    /// Hard links.
    pub links: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Length in bytes.
    pub size: u64,
    /// Bytes of disk it takes.
    pub used: u64,
    /// Its numbers if it is a device, else zeros.
    pub device: Device,
    /// The file system it is in, as the server names it.
    pub fsid: u64,
    /// Its number in that file system.
    pub fileid: u64,
    /// Last read.
    pub atime: Timestamp,
    /// Last change of the data.
    pub mtime: Timestamp,
    /// Last change of data or attributes.
    pub ctime: Timestamp,
}

/// What an object was like just before an operation (RFC 1813 §2.6, wcc_attr).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreOpAttr {
    /// Length in bytes.
    pub size: u64,
    /// Last change of the data.
    pub mtime: Timestamp,
    /// Last change of data or attributes.
    pub ctime: Timestamp,
}

/// An object just before and just after an operation that changes it; a server may leave out
/// either.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wcc {
    /// Before; equal to what we believe means that nobody else changed it since.
    pub before: Option<PreOpAttr>,
    /// After.
    pub after: Option<Attributes>,
}

/// What came back for one call that the server executed: its verdict and what it says of the
/// objects concerned, which it may say for refusals too.
#[derive(Clone, Copy, Debug)]
pub struct NfsReply<T, A> {
    /// When the call was first sent: what attributes in it are dated by.
    pub sent_at: Instant,
    /// Of a call that was sent more than once: by when an earlier copy was executed, if it was.
    /// `None`: it was sent once, or can be repeated.
    pub repeated_at: Option<Instant>,
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

/// An object that was found or made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookupReply {
    /// Its handle.
    pub handle: FileHandle,
    /// Its attributes, if the server gave them.
    pub attributes: Option<Attributes>,
}

/// What to do with one of a file's times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetTime {
    /// Leave it.
    #[default]
    Keep,
    /// The server's present.
    ServerTime,
    /// This time.
    Time(Timestamp),
}

/// Attributes to be set; what is `None` stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// Permission bits, set-id and sticky bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length in bytes.
    pub size: Option<u64>,
    /// Last read.
    pub atime: SetTime,
    /// Last change of the data.
    pub mtime: SetTime,
}

/// What mknod(2) makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MknodType {
    /// A character device.
    Character(Device),
    /// A block device.
    Block(Device),
    /// A socket's name.
    Socket,
    /// A named pipe.
    Fifo,
}

/// How much the server does before it answers a WRITE (RFC 1813 §3.3.7, stable_how), weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stability {
    /// Nothing: the data may be lost until COMMIT.
    Unstable,
    /// Data are on disk, and of the metadata what is needed to find them.
    DataSync,
    /// All is on disk.
    FileSync,
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
    pub kind: FileType,
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
        Self {
            kind: FileType::Regular,
            mode,
            text: &[],
            device: Device::default(),
            is_exclusive: false,
        }
    }

    /// An empty directory.
    #[must_use]
    pub fn directory(mode: u32) -> Self {
        Self {
            kind: FileType::Directory,
            ..Self::file(mode)
        }
    }

    /// A symbolic link with this text.
    #[must_use]
    pub fn symlink(text: &'a [u8]) -> Self {
        Self {
            kind: FileType::Symlink,
            text,
            ..Self::file(0o777)
        }
    }

    /// A device, named pipe or socket.
    #[must_use]
    pub fn node(node: MknodType, mode: u32) -> Self {
        let (kind, device) = match node {
            MknodType::Character(device) => (FileType::Character, device),
            MknodType::Block(device) => (FileType::Block, device),
            MknodType::Socket => (FileType::Socket, Device::default()),
            MknodType::Fifo => (FileType::Fifo, Device::default()),
        };
        Self {
            kind,
            device,
            ..Self::file(mode)
        }
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
        RpcCaller {
            credential: &self.open.credential,
            interrupt: self.interrupt,
        }
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
