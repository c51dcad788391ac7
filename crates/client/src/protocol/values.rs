//! What a reply says, free of any protocol version's wire types.
//!
//! Owns the plain values that plans return. They carry what the server said and nothing that was
//! believed before.

use std::time::Instant;

use curt_proto::nfs3::{CookieVerifier, WriteVerifier};
use curt_types::{Attributes, Device, Fault, FileHandle, SetAttributes, Stability, Timestamp, Wcc};

/// What came back for one call that the server executed: its verdict and what it says of the
/// objects concerned, which it may say for refusals too.
#[derive(Clone, Copy, Debug)]
pub struct NfsReply<T, A> {
    /// When the call was first sent: what attributes in it are dated by.
    pub sent_at: Instant,
    /// Of a call that was sent again to a server that had been restarted: by when an earlier copy
    /// was executed, if it was.
    pub lost_at: Option<Instant>,
    /// The result, or the status by which the server refused.
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

/// An object found by LOOKUP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookupReply {
    /// Its handle.
    pub handle: FileHandle,
    /// Its attributes, if the server gave them.
    pub attributes: Option<Attributes>,
}

/// An object made by CREATE, MKDIR, SYMLINK or MKNOD; who gets no handle has to look the name up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateReply {
    /// Its handle, if the server gave it.
    pub handle: Option<FileHandle>,
    /// Its attributes, if the server gave them.
    pub attributes: Option<Attributes>,
}

/// How CREATE treats a name that exists (RFC 1813 §3.3.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateSemantics {
    /// Take what is there, set the attributes.
    Unchecked(SetAttributes),
    /// Fail with EXIST.
    Guarded(SetAttributes),
    /// Fail with EXIST unless the same verifier made it: a repeated call succeeds. Attributes have
    /// to be set afterwards.
    Exclusive([u8; 8]),
}

/// What MKNOD makes.
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
