//! FSSTAT, FSINFO, PATHCONF (RFC 1813 sections 3.3.18 to 3.3.20). Their failures have the object's
//! attributes, if any.

use curt_xdr::Xdr;

use crate::nfs3::{Fattr, NfsFh3, NfsTime};

/// FSSTAT's result: the dynamic state of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct FsstatOk {
    /// The object's attributes.
    pub attributes: Option<Fattr>,
    /// Total bytes.
    pub total_bytes: u64,
    /// Free bytes.
    pub free_bytes: u64,
    /// Bytes available to the caller.
    pub available_bytes: u64,
    /// Total file slots.
    pub total_files: u64,
    /// Free file slots.
    pub free_files: u64,
    /// File slots available to the caller.
    pub available_files: u64,
    /// Number of seconds for which the file system will not change; 0 if unknown.
    pub invariant_seconds: u32,
}

/// FSINFO's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct FsinfoArguments {
    /// The root of the file system, or any object in it.
    pub root: NfsFh3,
}

/// Properties of a file system (`FSF3_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Xdr)]
pub struct FsProperties(pub u32);

impl FsProperties {
    /// Hard links.
    pub const LINK: Self = Self(0x01);
    /// Symbolic links.
    pub const SYMLINK: Self = Self(0x02);
    /// PATHCONF returns the same for all objects.
    pub const HOMOGENEOUS: Self = Self(0x08);
    /// Times can be set.
    pub const CANSETTIME: Self = Self(0x10);

    /// The union of both.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether it contains all of `other`.
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
    /// Maximum size of a READ.
    pub rtmax: u32,
    /// Preferred size of a READ.
    pub rtpref: u32,
    /// READ sizes should be multiples of this.
    pub rtmult: u32,
    /// Maximum size of a WRITE.
    pub wtmax: u32,
    /// Preferred size of a WRITE.
    pub wtpref: u32,
    /// WRITE sizes should be multiples of this.
    pub wtmult: u32,
    /// Preferred size of a READDIR.
    pub dtpref: u32,
    /// Maximum size of a file.
    pub maxfilesize: u64,
    /// The granularity of the server's times.
    pub time_delta: NfsTime,
    /// Properties of the file system.
    pub properties: FsProperties,
}

/// PATHCONF's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct PathconfOk {
    /// The object's attributes.
    pub attributes: Option<Fattr>,
    /// Maximum number of hard links to a file.
    pub link_max: u32,
    /// Maximum length of a name in bytes.
    pub name_max: u32,
    /// Whether longer names are rejected instead of truncated.
    pub no_truncation: bool,
    /// Whether only the superuser may change owners.
    pub chown_restricted: bool,
    /// Whether names that differ only in case are the same.
    pub case_insensitive: bool,
    /// Whether names preserve case.
    pub case_preserving: bool,
}
