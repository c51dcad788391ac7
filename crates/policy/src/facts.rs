//! What a server reports of an object, as far as caching needs it.
//!
//! Owns the change stamp: the value by which two states of an object are told apart. NFSv3 has
//! mtime and ctime for it; a later protocol's change attribute becomes another variant of
//! [`ChangeStamp`], and every user of a stamp goes through the methods here, so that only this file
//! has to know how good a stamp is.

use core::cmp::Ordering;

/// A time as a server tells it: nanoseconds since 1970-01-01 UTC, from 1678 to 2261; others become
/// the nearest of those.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerTime(i64);

impl ServerTime {
    /// The time so many seconds and nanoseconds (of which only those below a second count) after
    /// 1970.
    #[must_use]
    pub fn new(seconds: i64, nanoseconds: u32) -> Self {
        let seconds = seconds.clamp(i64::MIN / SECOND + 1, i64::MAX / SECOND - 1);
        Self(seconds * SECOND + i64::from(nanoseconds % 1_000_000_000))
    }

    /// Whole seconds since 1970.
    #[must_use]
    pub const fn seconds(self) -> i64 {
        self.0.div_euclid(SECOND)
    }

    /// Nanoseconds within the second.
    #[must_use]
    pub fn nanoseconds(self) -> u32 {
        u32::try_from(self.0.rem_euclid(SECOND)).expect("less than a second")
    }

    /// Nanoseconds since 1970.
    #[must_use]
    pub const fn as_nanoseconds(self) -> i64 {
        self.0
    }
}

/// Nanoseconds of one.
const SECOND: i64 = 1_000_000_000;

/// What tells two states of one object apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ChangeStamp {
    /// NFSv3: the times of the last change. Two changes within one step of the server's clock carry
    /// the same stamp.
    Times {
        /// Of the data; anybody who owns the object can set it.
        mtime: ServerTime,
        /// Of data or attributes; nobody can set it.
        ctime: ServerTime,
    },
}

impl ChangeStamp {
    /// Whether this state came after the other. `None` when the stamps cannot tell, among others
    /// when they are equal.
    #[must_use]
    pub fn later_than(self, other: Self) -> Option<bool> {
        match (self, other) {
            (Self::Times { ctime: this, .. }, Self::Times { ctime: that, .. }) => match this.cmp(&that) {
                Ordering::Greater => Some(true),
                Ordering::Less => Some(false),
                Ordering::Equal => None,
            },
        }
    }

    /// The server's time of the last change, if a further change within the same step of its clock
    /// would leave the stamp as it is. `None` for a stamp that differs after every change.
    #[must_use]
    pub const fn changed_at(self) -> Option<ServerTime> {
        match self {
            Self::Times { ctime, .. } => Some(ctime),
        }
    }

    /// Whether the difference to `other` can be one of attributes alone (owner, mode, links), the
    /// data being the same.
    #[must_use]
    pub fn differs_in_attributes_only(self, other: Self) -> bool {
        match (self, other) {
            (
                Self::Times {
                    mtime: this,
                    ctime: now,
                },
                Self::Times {
                    mtime: that,
                    ctime: then,
                },
            ) => this == that && now != then,
        }
    }
}

/// The type of an object, as far as caching cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ObjectKind {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A device, named pipe or socket: its data are not the server's.
    Special,
}

/// What a server says of one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Facts {
    /// Its type.
    pub kind: ObjectKind,
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
