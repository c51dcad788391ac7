//! FSSTAT, FSINFO and PATHCONF: their arguments are a handle, their failures carry its attributes.

use curt_xdr::Xdr;

use super::{Fattr, NfsTime};

/// FSSTAT3resok.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct FsStatOk {
    /// The object's attributes.
    pub attributes: Option<Fattr>,
    /// Size in bytes.
    pub total_bytes: u64,
    /// Bytes free.
    pub free_bytes: u64,
    /// Bytes free to the caller.
    pub available_bytes: u64,
    /// File slots.
    pub total_files: u64,
    /// File slots free.
    pub free_files: u64,
    /// File slots free to the caller.
    pub available_files: u64,
    /// For how many seconds these figures are expected to hold.
    pub invariant_seconds: u32,
}

/// FSINFO3resok.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct FsInfoOk {
    /// The object's attributes.
    pub attributes: Option<Fattr>,
    /// Bytes of a READ at most.
    pub read_max: u32,
    /// Bytes of a READ preferred.
    pub read_preferred: u32,
    /// Bytes of a READ should be a multiple of it.
    pub read_multiple: u32,
    /// Bytes of a WRITE at most.
    pub write_max: u32,
    /// Bytes of a WRITE preferred.
    pub write_preferred: u32,
    /// Bytes of a WRITE should be a multiple of it.
    pub write_multiple: u32,
    /// Bytes of a READDIR preferred.
    pub readdir_preferred: u32,
    /// Size of a file at most.
    pub file_size_max: u64,
    /// Granularity of the server's times.
    pub time_delta: NfsTime,
    /// Bits of [`properties`].
    pub properties: u32,
}

/// The bits of FSINFO's properties (RFC 1813, section 3.3.19).
pub mod properties {
    /// Hard links.
    pub const LINK: u32 = 0x01;
    /// Symbolic links.
    pub const SYMLINK: u32 = 0x02;
    /// PATHCONF is the same for all objects.
    pub const HOMOGENEOUS: u32 = 0x08;
    /// SETATTR sets times exactly.
    pub const CAN_SET_TIME: u32 = 0x10;
}

/// PATHCONF3resok.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct PathConfOk {
    /// The object's attributes.
    pub attributes: Option<Fattr>,
    /// Hard links at most.
    pub link_max: u32,
    /// Bytes of a name at most.
    pub name_max: u32,
    /// Longer names are refused, not cut.
    pub no_truncation: bool,
    /// Only a privileged user may change an owner.
    pub chown_restricted: bool,
    /// Names that differ in case only are the same.
    pub case_insensitive: bool,
    /// Names keep the case they were made with.
    pub case_preserving: bool,
}
