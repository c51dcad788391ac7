//! What asking for names together was worth: in a directory, in those that a directory has, on a
//! mount.
//!
//! Owns the sums. What was learned long ago counts less; the name that a request was sent for
//! counts only if it was lost. Must not decide anything.

use super::NAME_BYTES;

/// Fills of a mount before what they were worth says anything.
const MOUNT_FILLS_MIN: u32 = 8;

/// Names that have to be asked for on a mount that was given up before it is tried again.
pub const MOUNT_MISSES: u32 = 1024;

/// How often it is tried then before it is given up again, if that still does not pay.
pub const RETRIES: u32 = MOUNT_FILLS_MIN / 2;

/// Fills after which what was learned before counts half.
const FILLS_MAX: u32 = 16;

/// Of so many names one has to be wanted where names are asked for together at the first miss.
const WANTED_MIN: u32 = 4;

/// What asking for names together was worth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct FillBenefit {
    /// Requests that were sent.
    pub(super) fills: u32,
    /// Those of them that did not tell of the name that they were sent for: it was asked for once
    /// more.
    lost: u32,
    /// Names that they brought.
    names: u32,
    /// Requests for other names that were spared since.
    spared: u32,
}

/// What is remembered of a mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MountFillRecord {
    /// What it was worth there.
    worth: FillBenefit,
    /// Names that had to be asked for since names were last asked for together.
    misses: u32,
}

impl FillBenefit {
    /// Whether more requests were spared than were lost, and enough for the names that nobody
    /// wanted, a request costing as much as `unit` bytes of them.
    pub(super) const fn pays(self, unit: u64) -> bool {
        self.spared > self.lost
            && self.names as u64 * NAME_BYTES as u64 <= (self.spared - self.lost) as u64 * unit
    }

    /// Whether many of the names were wanted.
    pub(super) const fn is_wanted(self) -> bool {
        let wanted = self.spared as u64 + (self.fills - self.lost) as u64;
        wanted * WANTED_MIN as u64 >= self.names as u64
    }

    /// One more request brought so many names; `holds_it`: it told of the one that it was sent for.
    pub(super) const fn filled(&mut self, names: u32, holds_it: bool) {
        if self.fills >= FILLS_MAX {
            self.halve();
        }
        self.fills += 1;
        self.lost += !holds_it as u32;
        self.names = self.names.saturating_add(names);
    }

    /// What was learned so far counts half.
    const fn halve(&mut self) {
        // No more may be lost than were sent.
        (self.fills, self.lost) = (self.fills.div_ceil(2), self.lost / 2);
        (self.names, self.spared) = (self.names / 2, self.spared / 2);
    }

    /// A request for another name was spared.
    pub(super) const fn spared(&mut self) {
        self.spared = self.spared.saturating_add(1);
    }
}

impl MountFillRecord {
    /// One more name has to be asked for, whichever way.
    pub const fn missed(&mut self) {
        self.misses = self.misses.saturating_add(1);
    }

    /// That name is missing, and nothing is kept of missing names: those beside it would have
    /// spared nothing.
    pub const fn missed_for_nothing(&mut self) {
        self.misses = self.misses.saturating_sub(1);
    }

    /// One more request brought so many names; `holds_it`: it told of the one that it was sent for.
    pub const fn filled(&mut self, names: u32, holds_it: bool) {
        // Whoever tries again after a long time shall not need as long to be convinced.
        if self.misses >= MOUNT_MISSES && self.worth.fills >= MOUNT_FILLS_MIN {
            while self.worth.fills > MOUNT_FILLS_MIN - RETRIES {
                self.worth.halve();
            }
            self.worth.fills = MOUNT_FILLS_MIN - RETRIES;
        }
        self.worth.filled(names, holds_it);
        self.misses = 0;
    }

    /// A request for another name was spared.
    pub const fn spared(&mut self) {
        self.worth.spared();
    }

    /// Whether it does not pay there, and was tried not long ago.
    pub(super) const fn has_given_up(self, unit: u64) -> bool {
        self.worth.fills >= MOUNT_FILLS_MIN && !self.worth.pays(unit) && self.misses < MOUNT_MISSES
    }
}
