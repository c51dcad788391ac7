//! Sets of bytes.

use curt_types::{ByteRange, LockType};

/// A set of bytes: ranges in order that neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RangeSet(Vec<ByteRange>);

impl RangeSet {
    pub(super) fn of(range: ByteRange) -> Self {
        Self(vec![range])
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn ranges(&self) -> &[ByteRange] {
        &self.0
    }

    pub(super) fn add(&mut self, range: ByteRange) {
        // Those that overlap or touch the range.
        let begin = self.0.partition_point(|other| other.last() < range.first().saturating_sub(1));
        let end = self.0.partition_point(|other| other.first() <= range.last().saturating_add(1));
        let mut merged = range;
        for other in &self.0[begin..end] {
            let first = merged.first().min(other.first());
            merged = ByteRange::new(first, merged.last().max(other.last())).unwrap_or(merged);
        }
        self.0.splice(begin..end, [merged]);
    }

    pub(super) fn overlaps(&self, range: ByteRange) -> bool {
        let at = self.0.partition_point(|other| other.last() < range.first());
        self.0.get(at).is_some_and(|other| other.first() <= range.last())
    }

    /// The range of this set that has bytes in `range`: one of those that were added to it.
    pub(super) fn around(&self, range: ByteRange) -> Option<ByteRange> {
        let at = self.0.partition_point(|other| other.last() < range.first());
        self.0.get(at).copied()
    }

    /// Whether all bytes of `other` are in this set.
    pub(super) fn contains(&self, other: &Self) -> bool {
        other.0.iter().all(|range| {
            let at = self.0.partition_point(|own| own.last() < range.first());
            self.0.get(at).is_some_and(|own| own.first() <= range.first() && range.last() <= own.last())
        })
    }
}

impl RangeSet {
    /// The bytes of `range` that are not in this set.
    pub(super) fn gaps(&self, range: ByteRange) -> Vec<ByteRange> {
        let mut gaps = Vec::new();
        let mut next = Some(range.first());
        for held in self.0.iter().filter(|held| held.overlaps(range)) {
            let before = held.first().checked_sub(1);
            gaps.extend(next.zip(before).and_then(|(first, last)| ByteRange::new(first, last)));
            next = held.last().checked_add(1);
        }
        gaps.extend(next.and_then(|first| ByteRange::new(first, range.last())));
        gaps
    }
}

impl Extend<ByteRange> for RangeSet {
    fn extend<T: IntoIterator<Item = ByteRange>>(&mut self, ranges: T) {
        ranges.into_iter().for_each(|range| self.add(range));
    }
}

/// The bytes that requests in front of others want.
#[derive(Debug, Default)]
pub(super) struct Barrier {
    reads: RangeSet,
    writes: RangeSet,
}

impl Barrier {
    pub(super) fn add(&mut self, lock_type: LockType, range: ByteRange) {
        match lock_type {
            LockType::Read => self.reads.add(range),
            LockType::Write => self.writes.add(range),
        }
    }

    pub(super) fn conflicts(&self, lock_type: LockType, range: ByteRange) -> bool {
        self.writes.overlaps(range) || lock_type == LockType::Write && self.reads.overlaps(range)
    }

    /// Whether no other request for any of these bytes can pass.
    pub(super) fn closes(&self, bytes: &RangeSet) -> bool {
        self.writes.contains(bytes)
    }
}
