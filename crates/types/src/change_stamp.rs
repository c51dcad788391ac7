//! A value that distinguishes states of an object.
//!
//! Only this file depends on the precision of a stamp; callers use its methods.

use crate::Timestamp;

/// Distinguishes two states of one object. Its size is 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChangeStamp {
    /// NFSv3: the times of the last change. Two changes within one step of the server's clock leave
    /// the same stamp.
    Times {
        /// The time of the last change of data; the owner can set it.
        mtime: Timestamp,
        /// The time of the last change of data or attributes; it cannot be set.
        ctime: Timestamp,
    },
    /// NFSv4: the change attribute (RFC 8881 section 5.8.1.4), which differs after each change of
    /// data or attributes. It has no order.
    Change(u64),
}

impl ChangeStamp {
    /// Whether this state is newer than the other. `None` if the stamps do not show this, for
    /// example because they are equal.
    #[must_use]
    #[inline]
    pub fn later_than(self, other: Self) -> Option<bool> {
        match (self, other) {
            (Self::Times { ctime: this, .. }, Self::Times { ctime: that, .. }) => {
                (this != that).then_some(this > that)
            }
            (Self::Change(_), _) | (_, Self::Change(_)) => None,
        }
    }

    /// The server's time of the last change, if a further change within the same step of its clock
    /// would leave the same stamp. `None` for a stamp that differs after each change.
    #[must_use]
    #[inline]
    pub const fn changed_at(self) -> Option<Timestamp> {
        match self {
            Self::Times { ctime, .. } => Some(ctime),
            Self::Change(_) => None,
        }
    }

    /// The change attribute, if it is one.
    #[must_use]
    #[inline]
    pub const fn change(self) -> Option<u64> {
        match self {
            Self::Times { .. } => None,
            Self::Change(change) => Some(change),
        }
    }

    /// Whether the difference to `other` can be one of attributes alone (owner, mode, links), the
    /// data being the same.
    #[must_use]
    #[inline]
    pub fn differs_in_attributes_only(self, other: Self) -> bool {
        match (self, other) {
            (Self::Times { mtime, ctime }, Self::Times { mtime: data, ctime: any }) => {
                mtime == data && ctime != any
            }
            (Self::Change(_), _) | (_, Self::Change(_)) => self != other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(mtime: i64, ctime: i64) -> ChangeStamp {
        ChangeStamp::Times { mtime: Timestamp::new(mtime, 0), ctime: Timestamp::new(ctime, 0) }
    }

    #[test]
    fn times_are_ordered_and_change_attributes_are_not() {
        assert_eq!(times(1, 3).later_than(times(1, 2)), Some(true));
        assert_eq!(times(3, 2).later_than(times(1, 3)), Some(false));
        assert_eq!(times(1, 2).later_than(times(2, 2)), None);
        for (this, that) in [(1, 1), (1, 2), (2, 1)] {
            assert_eq!(ChangeStamp::Change(this).later_than(ChangeStamp::Change(that)), None);
        }
    }

    #[test]
    fn only_times_are_too_coarse_to_show_every_change() {
        assert_eq!(times(1, 2).changed_at(), Some(Timestamp::new(2, 0)));
        assert_eq!(ChangeStamp::Change(2).changed_at(), None);
    }

    #[test]
    fn only_another_mtime_shows_that_the_data_changed() {
        assert!(times(1, 3).differs_in_attributes_only(times(1, 2)));
        assert!(!times(2, 3).differs_in_attributes_only(times(1, 2)));
        let change = ChangeStamp::Change(1);
        assert!(change.differs_in_attributes_only(ChangeStamp::Change(2)), "it may be");
        assert!(!change.differs_in_attributes_only(change));
    }

    /// Each inode has one.
    #[test]
    fn a_stamp_is_no_larger_than_two_times() {
        assert_eq!(size_of::<ChangeStamp>(), 16);
    }
}
