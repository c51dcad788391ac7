//! SETATTR, ACCESS, READLINK (RFC 1813 sections 3.3.2, 3.3.4, 3.3.5).

use curt_xdr::Xdr;

use crate::nfs3::{Fattr, NfsFh3, NfsPath, NfsTime, Sattr};

/// SETATTR's arguments. It returns [`WccData`](crate::nfs3::WccData) in both cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct SetattrArguments {
    /// The file.
    pub object: NfsFh3,
    /// The attributes to set.
    pub attributes: Sattr,
    /// Set them only if the file's ctime is this (`sattrguard3`).
    pub guard: Option<NfsTime>,
}

/// A set of access rights (RFC 1813 section 3.3.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Xdr)]
pub struct AccessMask(pub u32);

impl AccessMask {
    /// Read data from a file, or names from a directory.
    pub const READ: Self = Self(0x01);
    /// Look up a name in a directory.
    pub const LOOKUP: Self = Self(0x02);
    /// Rewrite existing data, or change existing directory entries.
    pub const MODIFY: Self = Self(0x04);
    /// Write new data, or add directory entries.
    pub const EXTEND: Self = Self(0x08);
    /// Delete an existing directory entry.
    pub const DELETE: Self = Self(0x10);
    /// Execute a file (no meaning for a directory).
    pub const EXECUTE: Self = Self(0x20);
    /// All of them.
    pub const ALL: Self = Self(0x3f);

    /// Whether it contains all of `other`.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The intersection of both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The union of both.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// ACCESS's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct AccessArguments {
    /// The file.
    pub object: NfsFh3,
    /// The requested rights.
    pub access: AccessMask,
}

/// ACCESS's result; a failure has the file's attributes, if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct AccessOk {
    /// The file's attributes.
    pub attributes: Option<Fattr>,
    /// The requested rights that the caller has.
    pub access: AccessMask,
}

/// READLINK's result; a failure has the link's attributes, if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct ReadlinkOk<'a> {
    /// The link's attributes.
    pub attributes: Option<Fattr>,
    /// The link's target.
    pub target: NfsPath<'a>,
}
