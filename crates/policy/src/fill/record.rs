//! What is remembered of one directory: what was asked for, what came, and what that was worth.
//!
//! Owns the counts; each function is something that happened. Must not decide whether names are
//! asked for together.

use super::{NAME_BYTES, benefit::FillBenefit, with_room};

/// Bytes that a file system counts for a name in a directory's own size, about: 20 (tmpfs) to 24
/// and more (ext4, XFS).
const NAME_SIZE: u64 = 22;

/// Bytes of the first reply that is asked for at least: a directory's own size need not tell how
/// many names it has.
const FIRST_MIN: u32 = 16 * 1024;

/// In so many requests at least may one more be lost, or names that cost as much, to a directory
/// whose names were of no use.
pub(super) const LOSS_SHARE: u64 = 50;

/// The same where only the request counts.
pub const LOSS_MISSES_MIN: u32 = 50;

/// How much of a directory was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ListedExtent {
    /// Nothing, as far as is known.
    #[default]
    Unread,
    /// Its first names, so many in so many bytes; more follow.
    Part {
        /// How many.
        names: u32,
        /// In how many bytes.
        bytes: u32,
    },
    /// All of them.
    Whole {
        /// How many.
        names: u32,
        /// In how many bytes.
        bytes: u32,
    },
}

/// What is remembered of one directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FillRecord {
    /// Names that were asked for one by one since its names were last asked for together.
    pub(super) misses: u32,
    /// How often in a row that was for nothing.
    pub(super) failures: u8,
    pub(super) extent: ListedExtent,
    /// What it was worth here.
    pub(super) own: FillBenefit,
    /// Whether any request was spared since the last fill, for another name than it was sent for.
    pub(super) has_spared: bool,
    /// What it was worth in the directories in it.
    pub(super) below: FillBenefit,
    /// Objects in it that were used since their attributes last came together.
    pub(super) used: u32,
    /// How many of those had expired by then and were asked about one by one.
    pub(super) alone: u32,
    /// Of how many objects in use the attributes had expired when they were last asked for together
    /// because one's had.
    pub(super) refreshed: Option<u32>,
}

impl FillRecord {
    /// One more name has to be asked for, whichever way.
    pub const fn missed(&mut self) {
        self.misses = self.misses.saturating_add(1);
    }

    /// That name is missing, and nothing is kept of missing names: those beside it would have
    /// spared nothing.
    pub const fn missed_for_nothing(&mut self) {
        self.misses = self.misses.saturating_sub(1);
    }

    /// Names that were asked for one by one since they were last asked for together.
    #[must_use]
    pub const fn misses(&self) -> u32 {
        self.misses
    }

    /// How much of the directory was read.
    #[must_use]
    pub const fn extent(&self) -> ListedExtent {
        self.extent
    }

    /// A reply brought names in so many bytes, because one was wanted. `is_next`: they follow what
    /// was read before, else they begin; `at_end`: they are the last; `holds_it`: they told of that
    /// name.
    pub const fn filled(&mut self, names: u32, bytes: u32, is_next: bool, at_end: bool, holds_it: bool) {
        let before = match self.extent {
            ListedExtent::Part { names, bytes } if is_next => (names, bytes),
            ListedExtent::Part { .. } | ListedExtent::Unread | ListedExtent::Whole { .. } => (0, 0),
        };
        self.read(
            before.0.saturating_add(names),
            before.1.saturating_add(bytes),
            at_end,
        );
        let was_useful = self.has_spared || self.own.fills == 0;
        self.failures = if holds_it && was_useful {
            0
        } else {
            self.failures.saturating_add(1)
        };
        (self.misses, self.has_spared) = (0, false);
        self.own.filled(names, holds_it);
    }

    /// The same of names in the middle of a listing, of which no more is known by that.
    pub const fn filled_part(&mut self, names: u32, holds_it: bool) {
        let extent = self.extent;
        self.filled(names, 0, false, true, holds_it);
        self.extent = extent;
    }

    /// A request for a fill was refused or lost.
    pub const fn failed(&mut self) {
        (self.misses, self.has_spared) = (0, false);
        self.failures = self.failures.saturating_add(1);
        self.own.filled(0, false);
    }

    /// What began as a request for attributes brought names in so many bytes, from the first one
    /// on.
    pub const fn refilled(&mut self, names: u32, bytes: u32, at_end: bool) {
        self.read(names, bytes, at_end);
        self.misses = 0;
    }

    /// Whether its names were ever asked for together because one was wanted.
    #[must_use]
    pub const fn has_filled(&self) -> bool {
        self.own.fills > 0
    }

    /// It was listed, and has so many names.
    pub const fn listed(&mut self, names: u32) {
        let bytes = names.saturating_mul(NAME_BYTES);
        self.read(names, bytes, true);
    }

    /// So many names in so many bytes are what was read of it from its beginning.
    const fn read(&mut self, names: u32, bytes: u32, at_end: bool) {
        self.extent = if at_end {
            ListedExtent::Whole { names, bytes }
        } else {
            ListedExtent::Part { names, bytes }
        };
    }

    /// An object in it was used for the first time since its attributes came with those of others.
    pub const fn used(&mut self) {
        self.used = self.used.saturating_add(1);
    }

    /// A name was answered for that would have been asked for but for a fill of this directory, and
    /// is not the one that the fill was sent for.
    pub const fn spared(&mut self) {
        self.has_spared = true;
        self.own.spared();
    }

    /// The same in a directory in it.
    pub const fn spared_below(&mut self) {
        self.below.spared();
    }

    /// The same request as in [`Self::filled`], of a directory in it.
    pub const fn filled_below(&mut self, names: u32, holds_it: bool) {
        self.below.filled(names, holds_it);
    }

    /// An object's attributes had expired and are asked for by themselves.
    pub const fn asked_alone(&mut self) {
        self.alone = self.alone.saturating_add(1);
    }

    /// The attributes of all its objects came together; `expired` of those that had been used had
    /// expired, if one of them was the reason.
    pub const fn refreshed(&mut self, expired: Option<u32>) {
        (self.used, self.alone) = (0, 0);
        if let Some(expired) = expired {
            self.refreshed = Some(expired);
        }
    }

    /// Bytes that are left to be read of a directory whose own size is `size`, about.
    pub(super) fn bytes_left(self, size: Option<u64>) -> u64 {
        let by_size = size.unwrap_or(0).saturating_mul(u64::from(NAME_BYTES)) / NAME_SIZE;
        match self.extent {
            ListedExtent::Unread => by_size,
            // Its size tells less than it has.
            ListedExtent::Part { bytes, .. } => {
                by_size.saturating_sub(u64::from(bytes)).max(u64::from(bytes))
            }
            ListedExtent::Whole { bytes, .. } => u64::from(bytes),
        }
    }

    /// After how many misses the last fill would be a small loss; none if it was of any use.
    pub(super) fn misses_per_loss(self, unit: u64) -> u32 {
        let (ListedExtent::Part { bytes, .. } | ListedExtent::Whole { bytes, .. }) = self.extent else {
            return 0;
        };
        let misses = u64::from(bytes) * LOSS_SHARE / unit;
        if self.has_spared {
            0
        } else {
            u32::try_from(misses).unwrap_or(u32::MAX)
        }
    }

    /// Bytes to ask for next.
    pub(super) fn next_bytes(self, size: Option<u64>) -> u32 {
        let left = u32::try_from(self.bytes_left(size)).unwrap_or(u32::MAX);
        match self.extent {
            ListedExtent::Unread => with_room(left).max(FIRST_MIN),
            ListedExtent::Part { .. } | ListedExtent::Whole { .. } => with_room(left),
        }
    }
}
