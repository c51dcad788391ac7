//! The rights of ACCESS.

use crate::FileKind;

/// A set of rights, with the bits of ACCESS (RFC 1813 §3.3.4).
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
    /// Each bit that ACCESS knows.
    pub const ALL: Self = Self(0x3f);

    /// The set with these bits; others than ACCESS knows are dropped.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits & Self::ALL.0)
    }

    /// The bits.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Both sets.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// What is in both sets.
    #[must_use]
    pub const fn common(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// This set without the other.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether all of `other` is in this set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether nothing is in it.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// What one ACCESS asks about an object of this kind: whatever could matter later, so that one
    /// answer fills all.
    #[must_use]
    pub const fn worth_asking(kind: FileKind) -> Self {
        match kind {
            FileKind::Directory => {
                Self(Self::READ.0 | Self::LOOKUP.0 | Self::MODIFY.0 | Self::EXTEND.0 | Self::DELETE.0)
            }
            _ => Self(Self::READ.0 | Self::MODIFY.0 | Self::EXTEND.0 | Self::EXECUTE.0),
        }
    }

    /// The rights that access(2) means by its mask (bits R_OK 4, W_OK 2, X_OK 1) for an object of
    /// this kind.
    #[must_use]
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
