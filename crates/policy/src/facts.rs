//! What a server reports of an object, as far as caching needs it.

use curt_types::{Attributes, ChangeStamp, FileKind, PreOpState};

use crate::time::Moment;

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

impl From<&Attributes> for Facts {
    fn from(attributes: &Attributes) -> Self {
        Self {
            kind: attributes.kind,
            mode: attributes.mode,
            uid: attributes.uid,
            gid: attributes.gid,
            size: attributes.size,
            stamp: attributes.stamp(),
        }
    }
}

impl Facts {
    /// These facts as a change that follows them would see them.
    #[must_use]
    pub const fn as_before(&self) -> PreOpState {
        PreOpState::new(self.size, self.stamp)
    }
}

/// What this client holds of a file at the server, beside opens (RFC 8881 §9 and §10): others
/// cannot change the file, or not where it is locked, until it is given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LockingState {
    /// When the newest of its byte-range locks was granted.
    pub locked_at: Option<Moment>,
    /// Its delegation.
    pub delegation: Option<Delegation>,
}

/// A promise of the server to call back before others open the file in conflict with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Delegation {
    /// Others do not read either: this client may keep what it writes (OPEN_DELEGATE_WRITE).
    pub write: bool,
    /// When the request was sent whose reply brought it. Attributes and data of requests from then
    /// on are those of the file until it is given back.
    pub since: Moment,
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
