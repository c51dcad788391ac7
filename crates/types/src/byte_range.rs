//! Ranges of bytes that are locked, and how.

use core::fmt;

/// A range of at least one byte, up to and including its last byte. The last byte is part of it
/// because a lock "to the end of the file" reaches 2^64-1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteRange {
    first: u64,
    last: u64,
}

/// How a range is locked (fcntl(2): `l_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LockType {
    /// Shared: `F_RDLCK`.
    Read,
    /// Exclusive: `F_WRLCK`.
    Write,
}

impl LockType {
    /// Whether two owners cannot hold locks of these types on the same byte.
    #[must_use]
    pub const fn conflicts(self, other: Self) -> bool {
        matches!((self, other), (Self::Write, _) | (_, Self::Write))
    }
}

impl ByteRange {
    /// All bytes.
    pub const WHOLE: Self = Self { first: 0, last: u64::MAX };

    /// The bytes from `first` to `last`, if there are any.
    #[must_use]
    pub const fn new(first: u64, last: u64) -> Option<Self> {
        if first <= last { Some(Self { first, last }) } else { None }
    }

    /// `length` bytes from `offset`, or all from there if `length` is 0, as in NLM and fcntl(2).
    /// `None` if the range would reach beyond 2^64-1.
    #[must_use]
    pub const fn of_length(offset: u64, length: u64) -> Option<Self> {
        match length.checked_sub(1) {
            None => Some(Self { first: offset, last: u64::MAX }),
            Some(more) => match offset.checked_add(more) {
                Some(last) => Some(Self { first: offset, last }),
                None => None,
            },
        }
    }

    /// The first byte.
    #[must_use]
    pub const fn first(self) -> u64 {
        self.first
    }

    /// The last byte.
    #[must_use]
    pub const fn last(self) -> u64 {
        self.last
    }

    /// Whether both have a byte in common.
    #[must_use]
    pub const fn overlaps(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// The bytes that both have in common.
    #[must_use]
    pub fn common(self, other: Self) -> Option<Self> {
        Self::new(self.first.max(other.first), self.last.min(other.last))
    }
}

impl fmt::Debug for ByteRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.last {
            u64::MAX => write!(f, "{}..", self.first),
            last => write!(f, "{}..={last}", self.first),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_end_at_the_last_byte_of_the_largest_file_and_not_beyond() {
        assert_eq!(ByteRange::of_length(0, 0), Some(ByteRange::WHOLE));
        assert_eq!(ByteRange::of_length(u64::MAX, 0), ByteRange::new(u64::MAX, u64::MAX));
        assert_eq!(ByteRange::of_length(u64::MAX, 1), ByteRange::new(u64::MAX, u64::MAX));
        assert_eq!(ByteRange::of_length(u64::MAX, 2), None);
        assert_eq!(ByteRange::of_length(1, u64::MAX), ByteRange::new(1, u64::MAX));
        assert_eq!(ByteRange::of_length(2, u64::MAX), None);
        for bits in [31, 32, 63] {
            let edge = 1_u64 << bits;
            assert_eq!(ByteRange::of_length(edge - 1, 2), ByteRange::new(edge - 1, edge));
        }
        assert_eq!(ByteRange::new(1, 0), None);
    }

    #[test]
    fn ranges_overlap_where_they_have_bytes_in_common() {
        let range = |first, last| ByteRange::new(first, last).unwrap_or(ByteRange::WHOLE);
        for (one, other, common) in [
            (range(0, 9), range(9, 20), Some(range(9, 9))),
            (range(0, 9), range(10, 20), None),
            (range(5, 6), range(0, 20), Some(range(5, 6))),
            (range(5, u64::MAX), range(0, u64::MAX), Some(range(5, u64::MAX))),
        ] {
            assert_eq!(one.common(other), common);
            assert_eq!(other.common(one), common);
            assert_eq!(one.overlaps(other), common.is_some());
            assert_eq!(other.overlaps(one), common.is_some());
        }
    }

    #[test]
    fn only_read_locks_are_shared() {
        for (one, other, conflict) in [
            (LockType::Read, LockType::Read, false),
            (LockType::Read, LockType::Write, true),
            (LockType::Write, LockType::Read, true),
            (LockType::Write, LockType::Write, true),
        ] {
            assert_eq!(one.conflicts(other), conflict);
        }
    }
}
