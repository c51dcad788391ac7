//! FSSTAT, FSINFO, PATHCONF (RFC 1813 sections 3.3.18 to 3.3.20). Their failures carry the object's
//! attributes, if any.

use curt_xdr::Xdr;

use crate::nfs3::{Fattr, NfsFh3, NfsTime};

/// FSSTAT's result: the dynamic state of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct FsstatOk {
    /// The object's attributes.
    pub attributes: Option<Fattr>,
    /// All bytes.
    pub total_bytes: u64,
    /// Free bytes.
    pub free_bytes: u64,
    /// Free bytes that the caller may use.
    pub available_bytes: u64,
    /// All file slots.
    pub total_files: u64,
    /// Free file slots.
    pub free_files: u64,
    /// Free file slots that the caller may use.
    pub available_files: u64,
    /// For how many seconds the file system will not change; 0 if nobody knows.
    pub invariant_seconds: u32,
}

/// FSINFO's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct FsinfoArguments {
    /// The root of the file system, or any object in it.
    pub root: NfsFh3,
}

/// What a file system can do (`FSF3_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Xdr)]
pub struct FsProperties(pub u32);

impl FsProperties {
    /// Hard links.
    pub const LINK: Self = Self(0x01);
    /// Symbolic links.
    pub const SYMLINK: Self = Self(0x02);
    /// PATHCONF says the same of every object.
    pub const HOMOGENEOUS: Self = Self(0x08);
    /// Times can be set.
    pub const CANSETTIME: Self = Self(0x10);

    /// What is in either.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` is in this.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// FSINFO's result: the static limits of a file system. Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct FsinfoOk {
    /// The object's attributes.
    pub attributes: Option<Fattr>,
    /// Largest READ.
    pub rtmax: u32,
    /// Best READ.
    pub rtpref: u32,
    /// READ sizes should be multiples of this.
    pub rtmult: u32,
    /// Largest WRITE.
    pub wtmax: u32,
    /// Best WRITE.
    pub wtpref: u32,
    /// WRITE sizes should be multiples of this.
    pub wtmult: u32,
    /// Best READDIR.
    pub dtpref: u32,
    /// Largest file.
    pub maxfilesize: u64,
    /// The step of the server's times.
    pub time_delta: NfsTime,
    /// What the file system can do.
    pub properties: FsProperties,
}

/// PATHCONF's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct PathconfOk {
    /// The object's attributes.
    pub attributes: Option<Fattr>,
    /// Most hard links to a file.
    pub link_max: u32,
    /// Longest name, in bytes.
    pub name_max: u32,
    /// Whether longer names are refused instead of cut.
    pub no_truncation: bool,
    /// Whether only the superuser may change owners.
    pub chown_restricted: bool,
    /// Whether names that differ only in case are the same.
    pub case_insensitive: bool,
    /// Whether case is kept.
    pub case_preserving: bool,
}
