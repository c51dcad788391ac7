//! What a server's object went through: who changed it in which tick, and what a name was at any
//! time.

use core::{fmt::Debug, time::Duration};
use std::hash::Hash;

use curt_policy::{Moment, RacyGuard};

use crate::time::{Changed, Time};

/// Who changes things at once, without requests that take time.
pub(crate) const STRANGER: usize = 2;

/// The changes of one object.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Changes {
    /// The last one.
    pub(crate) last: Changed,
    /// The last tick in which the server took a change of each client.
    ticks: [Option<u16>; 2],
    /// Another one changed it within the tick of a change of this client's, after it.
    excused: [bool; 2],
}

impl Changes {
    /// The last was long ago.
    pub(crate) const OLD: Self = Self { last: Changed::OLD, ticks: [None; 2], excused: [false; 2] };

    /// Somebody changes it.
    pub(crate) fn make(&mut self, by: usize, time: Time) {
        for (other, excused) in self.excused.iter_mut().enumerate() {
            *excused |= other != by && self.ticks[other] == Some(time.tick);
        }
        if let Some(tick) = self.ticks.get_mut(by) {
            *tick = Some(time.tick);
        }
        self.last = self.last.next(time);
    }

    /// Whether a client may be told what is not so any more: by default, of what was changed in the
    /// tick of a change of its own.
    pub(crate) fn excuses(&self, guard: RacyGuard) -> bool {
        guard == RacyGuard::Auto && self.excused.contains(&true)
    }
}

/// What something was, and since when.
#[derive(Clone, Debug, Hash)]
pub(crate) struct History<T>(Vec<(T, Moment)>);

impl<T: Copy + PartialEq + Debug> History<T> {
    pub(crate) fn new(first: T, since: Moment) -> Self {
        Self(vec![(first, since)])
    }

    pub(crate) fn push(&mut self, now: T, since: Moment) {
        self.0.push((now, since));
    }

    pub(crate) fn is(&self) -> T {
        self.0[self.position()].0
    }

    /// Which of its states it is in.
    pub(crate) fn position(&self) -> usize {
        self.0.len() - 1
    }

    /// Whether somebody who asked at `began`, and knew that states before `floor` are past, may be
    /// told `told`, which ended at most `allowance` before. What is wrong, if he may not.
    pub(crate) fn judge(
        &self,
        told: T,
        (began, floor): (Moment, usize),
        allowance: Duration,
    ) -> Option<String> {
        let recent = |position: usize| {
            self.0.get(position + 1).is_none_or(|(_, ended)| ended.plus(allowance) >= began)
        };
        let mut candidates = floor..self.0.len();
        let right = candidates.any(|position| self.0[position].0 == told && recent(position));
        (!right).then(|| {
            format!("{told:?} was told; the states were {:?}, the first {floor} known to be past", self.0)
        })
    }
}
