//! The attributes of an object that caching depends on.

use curt_types::{Attributes, ChangeStamp, FileKind, PreOpState};

use crate::time::Moment;

/// The attributes of one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Facts {
    /// Its type.
    pub kind: FileKind,
    /// Permission, set-id and sticky bits.
    pub mode: u32,
    /// The owner's uid.
    pub uid: u32,
    /// The group's gid.
    pub gid: u32,
    /// Length in bytes.
    pub size: u64,
    /// Its change stamp.
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
    /// These attributes in the form of the pre-operation attributes of a following change.
    #[must_use]
    pub const fn as_before(&self) -> PreOpState {
        PreOpState::new(self.size, self.stamp)
    }
}

/// The state of a file that this client holds at the server, apart from opens (RFC 8881 §9 and
/// §10). Until it is returned, other clients cannot change the file, or the locked ranges of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LockingState {
    /// When the newest of its byte-range locks was granted.
    pub locked_at: Option<Moment>,
    /// Its delegation.
    pub delegation: Option<Delegation>,
}

/// A promise of the server to recall it before another client opens the file in conflict with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Delegation {
    /// Other clients do not read either: this client may delay its writes (OPEN_DELEGATE_WRITE).
    pub write: bool,
    /// When the request that obtained it was sent. Attributes and data of requests sent since then
    /// are valid until it is returned.
    pub since: Moment,
}

/// Counts the states of an object's contents (or of its rights) that this client could distinguish.
///
/// A cache entry with an epoch is valid while the object is still in it. The counter starts again
/// with each inode table and means nothing to a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(u64);

impl Epoch {
    /// The epoch after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}
