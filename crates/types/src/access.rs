//! The access rights of ACCESS.

use crate::FileKind;

/// A set of access rights, with the bits of ACCESS (RFC 1813 section 3.3.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Access(u32);

impl Access {
    /// None.
    pub const NONE: Self = Self(0);
    /// Read a file's data, list a directory.
    pub const READ: Self = Self(0x01);
    /// Look a name up in a directory.
    pub const LOOKUP: Self = Self(0x02);
    /// Rewrite data, change entries.
    pub const MODIFY: Self = Self(0x04);
    /// Write new data, add entries.
    pub const EXTEND: Self = Self(0x08);
    /// Remove an entry.
    pub const DELETE: Self = Self(0x10);
    /// Execute a file.
    pub const EXECUTE: Self = Self(0x20);
    /// All bits of ACCESS.
    pub const ALL: Self = Self(0x3f);

    /// The set with these bits; unknown bits are dropped.
    #[must_use]
    #[inline]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits & Self::ALL.0)
    }

    /// The bits.
    #[must_use]
    #[inline]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// The union of both sets.
    #[must_use]
    #[inline]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The intersection of both sets.
    #[must_use]
    #[inline]
    pub const fn common(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// This set without the other.
    #[must_use]
    #[inline]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether the set contains all of `other`.
    #[must_use]
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether the set is empty.
    #[must_use]
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The rights to request in one ACCESS for an object of this type: all that may be needed
    /// later, so that one reply is sufficient.
    #[must_use]
    #[inline]
    pub const fn applicable_to(kind: FileKind) -> Self {
        match kind {
            FileKind::Directory => {
                Self(Self::READ.0 | Self::LOOKUP.0 | Self::MODIFY.0 | Self::EXTEND.0 | Self::DELETE.0)
            }
            _ => Self(Self::READ.0 | Self::MODIFY.0 | Self::EXTEND.0 | Self::EXECUTE.0),
        }
    }

    /// The rights for a mask of access(2) (bits R_OK 4, W_OK 2, X_OK 1) on an object of this type.
    #[must_use]
    #[inline]
    pub const fn from_access_mask(mask: u32, kind: FileKind) -> Self {
        let mut rights = Self::NONE;
        if mask & 4 != 0 {
            rights = rights.with(Self::READ);
        }
        if mask & 2 != 0 {
            rights = rights.with(Self::MODIFY);
        }
        if mask & 1 != 0 {
            rights = rights.with(match kind {
                FileKind::Directory => Self::LOOKUP,
                _ => Self::EXECUTE,
            });
        }
        rights
    }
}
