//! GETATTR, SETATTR, ACCESS and READLINK. GETATTR's arguments are a handle, its result is a bare [`super::Fattr`].

use curt_xdr::Xdr;

use super::{Fattr, FileHandle, NfsTime, Path, Sattr};

/// SETATTR3args. The result is [`super::WccData`] in both arms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct SetattrArguments {
    /// The object.
    pub object: FileHandle,
    /// What to set.
    pub attributes: Sattr,
    /// Only if the object's ctime is still this; else NOT_SYNC.
    pub guard: Option<NfsTime>,
}

/// The bits of ACCESS (RFC 1813, section 3.3.4).
pub mod access {
    /// Read a file, list a directory.
    pub const READ: u32 = 0x01;
    /// Look a name up in a directory.
    pub const LOOKUP: u32 = 0x02;
    /// Rewrite data, change entries.
    pub const MODIFY: u32 = 0x04;
    /// Write new data, add entries.
    pub const EXTEND: u32 = 0x08;
    /// Delete an entry of a directory.
    pub const DELETE: u32 = 0x10;
    /// Execute a file.
    pub const EXECUTE: u32 = 0x20;
    /// All of them.
    pub const ALL: u32 = 0x3f;
}

/// ACCESS3args.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct AccessArguments {
    /// The object.
    pub object: FileHandle,
    /// Bits of [`access`].
    pub access: u32,
}

/// ACCESS3resok. A failure carries the attributes alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct AccessOk {
    /// The object's attributes.
    pub attributes: Option<Fattr>,
    /// Those bits asked for that are granted.
    pub access: u32,
}

/// READLINK3resok. A failure carries the attributes alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct ReadlinkOk<'a> {
    /// The link's attributes.
    pub attributes: Option<Fattr>,
    /// What it points to.
    pub target: Path<'a>,
}
