//! What a server reports of an object, as far as caching needs it.

use curt_types::{Attributes, ChangeStamp, FileKind, PreOpAttr};

/// What a server says of one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Facts {
    /// Its type.
    pub kind: FileKind,
    /// Permission, set-id and sticky bits.
    pub mode: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Length in bytes.
    pub size: u64,
    /// Its state.
    pub stamp: ChangeStamp,
}

/// What an object was like just before a change of ours, taken by the server under the same lock
/// (RFC 1813 §2.6, wcc_attr).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PreOpState {
    /// Length in bytes.
    pub size: u64,
    /// Its state.
    pub stamp: ChangeStamp,
}

impl From<&Attributes> for Facts {
    fn from(attributes: &Attributes) -> Self {
        Self {
            kind: attributes.kind,
            mode: attributes.mode,
            uid: attributes.uid,
            gid: attributes.gid,
            size: attributes.size,
            stamp: ChangeStamp::Times {
                mtime: attributes.mtime,
                ctime: attributes.ctime,
            },
        }
    }
}

impl From<&PreOpAttr> for PreOpState {
    fn from(before: &PreOpAttr) -> Self {
        Self {
            size: before.size,
            stamp: ChangeStamp::Times {
                mtime: before.mtime,
                ctime: before.ctime,
            },
        }
    }
}

impl Facts {
    /// These facts as a change that follows them would see them.
    #[must_use]
    pub const fn as_before(&self) -> PreOpState {
        PreOpState {
            size: self.size,
            stamp: self.stamp,
        }
    }
}

/// Counts the states of an object's contents (or of its rights) that this client could tell apart.
///
/// What was learned under an epoch may be believed while the object is still in it. The counter
/// starts anew with each inode table and means nothing to a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(u64);

impl Epoch {
    /// The epoch after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}
