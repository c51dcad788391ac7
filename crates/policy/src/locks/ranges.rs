//! The locks of one owner on one file: what is set replaces what was there, neighbours of one type
//! are one lock (POSIX, fcntl: "changed, split or combined").

use std::collections::BTreeMap;

use curt_types::{ByteRange, LockType};

/// Disjoint locked ranges in ascending order; none adjoins another of the same type.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct LockRanges {
    /// By the first byte: the last byte, and the type.
    locks: BTreeMap<u64, (u64, LockType)>,
}

impl LockRanges {
    /// One lock.
    #[must_use]
    pub fn of(range: ByteRange, lock_type: LockType) -> Self {
        Self { locks: BTreeMap::from([(range.first(), (range.last(), lock_type))]) }
    }

    /// Whether nothing is locked.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.locks.is_empty()
    }

    /// All locks.
    pub fn iter(&self) -> impl Iterator<Item = (ByteRange, LockType)> {
        self.overlapping(ByteRange::WHOLE)
    }

    /// The locks that have a byte in `range`, whole.
    pub fn overlapping(&self, range: ByteRange) -> impl Iterator<Item = (ByteRange, LockType)> {
        let before = self.locks.range(..=range.first()).next_back();
        let first = match before {
            Some((first, (last, _))) if *last >= range.first() => *first,
            _ => range.first(),
        };
        let locks = self.locks.range(first..=range.last());
        locks.filter_map(|(first, (last, lock_type))| Some((ByteRange::new(*first, *last)?, *lock_type)))
    }

    /// The part of these locks within `range`.
    #[must_use]
    pub fn within(&self, range: ByteRange) -> Self {
        let mut part = Self::default();
        for (lock, lock_type) in self.overlapping(range) {
            if let Some(common) = lock.common(range) {
                part.set(common, Some(lock_type));
            }
        }
        part
    }

    /// `range` in parts, each locked in one way or not at all.
    #[must_use]
    pub fn parts(&self, range: ByteRange) -> Vec<(ByteRange, Option<LockType>)> {
        let mut parts = Vec::new();
        let mut next = Some(range.first());
        for (lock, lock_type) in self.within(range).iter() {
            if let Some(gap) = next.zip(lock.first().checked_sub(1)).and_then(|(a, b)| ByteRange::new(a, b)) {
                parts.push((gap, None));
            }
            parts.push((lock, Some(lock_type)));
            next = lock.last().checked_add(1);
        }
        if let Some(rest) = next.and_then(|first| ByteRange::new(first, range.last())) {
            parts.push((rest, None));
        }
        parts
    }

    /// Locks `range`, or unlocks it (`None`).
    pub fn set(&mut self, range: ByteRange, lock_type: Option<LockType>) {
        let replaced: Vec<_> = self.overlapping(range).collect();
        for (old, old_type) in replaced {
            self.locks.remove(&old.first());
            if old.first() < range.first() {
                self.locks.insert(old.first(), (range.first() - 1, old_type));
            }
            if old.last() > range.last() {
                self.locks.insert(range.last() + 1, (old.last(), old_type));
            }
        }
        let Some(lock_type) = lock_type else { return };
        let (mut first, mut last) = (range.first(), range.last());
        if let Some((before, (end, its_type))) = self.locks.range(..first).next_back()
            && *its_type == lock_type
            && *end + 1 == first
        {
            first = *before;
        }
        if let Some(next) = last.checked_add(1)
            && let Some((end, its_type)) = self.locks.get(&next)
            && *its_type == lock_type
        {
            last = *end;
            self.locks.remove(&next);
        }
        self.locks.insert(first, (last, lock_type));
    }

    /// Locks what `other` locks, and keeps what is already locked more strongly.
    pub fn strengthen(&mut self, other: &Self) {
        for (range, lock_type) in other.iter() {
            for (part, held) in self.parts(range) {
                self.set(part, held.max(Some(lock_type)));
            }
        }
    }
}

impl core::fmt::Debug for LockRanges {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    const READ: Option<LockType> = Some(LockType::Read);
    const WRITE: Option<LockType> = Some(LockType::Write);

    fn range(first: u64, last: u64) -> ByteRange {
        ByteRange::new(first, last).unwrap()
    }

    #[test]
    fn a_lock_splits_what_it_replaces_and_joins_its_neighbours() {
        let mut locks = LockRanges::default();
        locks.set(range(0, 99), READ);
        locks.set(range(40, 59), WRITE);
        let expected = [(range(0, 39), READ), (range(40, 59), WRITE), (range(60, 99), READ)];
        assert_eq!(locks.parts(range(0, 99)), expected);
        locks.set(range(40, 59), READ);
        assert_eq!(locks, LockRanges::of(range(0, 99), LockType::Read));
        locks.set(range(50, 50), None);
        locks.set(range(100, u64::MAX), READ);
        let expected = [(range(0, 49), LockType::Read), (range(51, u64::MAX), LockType::Read)];
        assert_eq!(locks.iter().collect::<Vec<_>>(), expected);
        locks.set(ByteRange::WHOLE, None);
        assert!(locks.is_empty());
    }

    #[test]
    fn strengthening_takes_no_write_lock_away() {
        let mut locks = LockRanges::of(range(10, 19), LockType::Write);
        locks.strengthen(&LockRanges::of(range(0, 29), LockType::Read));
        let expected = [(range(0, 9), READ), (range(10, 19), WRITE), (range(20, 29), READ)];
        assert_eq!(locks.parts(range(0, 29)), expected);
    }

    /// Every sequence of three locks and unlocks of a file of six bytes, the last of them the last
    /// of the largest file, against a table of bytes.
    #[test]
    fn every_sequence_of_locks_leaves_what_was_last_set_on_each_byte() {
        const BYTES: [u64; 6] = [0, 1, 2, u64::MAX - 2, u64::MAX - 1, u64::MAX];
        let ranges: Vec<_> = (0..6).flat_map(|first| (first..6).map(move |last| (first, last))).collect();
        let sets: Vec<_> = ranges
            .iter()
            .flat_map(|range| [None, READ, WRITE].map(|lock_type| (*range, lock_type)))
            .collect();
        for one in &sets {
            for two in &sets {
                for three in &sets {
                    let (mut locks, mut table) = (LockRanges::default(), [None; 6]);
                    for ((first, last), lock_type) in [one, two, three] {
                        locks.set(range(BYTES[*first], BYTES[*last]), *lock_type);
                        table[*first..=*last].fill(*lock_type);
                    }
                    for (byte, expected) in BYTES.iter().zip(table) {
                        assert_eq!(locks.parts(range(*byte, *byte)), [(range(*byte, *byte), expected)]);
                    }
                    let all: Vec<_> = locks.iter().collect();
                    for pair in all.windows(2) {
                        let adjoin = pair[0].0.last() + 1 == pair[1].0.first();
                        assert!(pair[0].0.last() < pair[1].0.first());
                        assert!(!adjoin || pair[0].1 != pair[1].1, "{locks:?}");
                    }
                }
            }
        }
    }
}
