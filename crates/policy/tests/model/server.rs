//! The history of an object at the server: which client changed it in which tick, and the states of
//! a name over time.

use core::{fmt::Debug, time::Duration};
use std::hash::Hash;

use curt_policy::{MonotonicTime, RacyGuard};

use crate::time::{Changed, Time};

/// The author of changes that happen immediately, without requests in flight.
pub(crate) const STRANGER: usize = 2;

/// The changes of one object.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Changes {
    /// The last change.
    pub(crate) last: Changed,
    /// The last tick in which the server executed a change of each client.
    ticks: [Option<u16>; 2],
    /// After a change of this client, another author changed the object within the same tick.
    excused: [bool; 2],
}

impl Changes {
    /// The last change was long ago.
    pub(crate) const OLD: Self = Self { last: Changed::OLD, ticks: [None; 2], excused: [false; 2] };

    /// Records a change.
    pub(crate) fn make(&mut self, by: usize, time: Time) {
        for (other, excused) in self.excused.iter_mut().enumerate() {
            *excused |= other != by && self.ticks[other] == Some(time.tick);
        }
        if let Some(tick) = self.ticks.get_mut(by) {
            *tick = Some(time.tick);
        }
        self.last = self.last.next(time);
    }

    /// Whether a client may get a stale result: by default, for a change in the same tick as a
    /// change of its own.
    pub(crate) fn excuses(&self, guard: RacyGuard) -> bool {
        guard == RacyGuard::Auto && self.excused.contains(&true)
    }
}

/// The states of something, each with its beginning.
#[derive(Clone, Debug, Hash)]
pub(crate) struct History<T>(Vec<(T, MonotonicTime)>);

impl<T: Copy + PartialEq + Debug> History<T> {
    pub(crate) fn new(first: T, since: MonotonicTime) -> Self {
        Self(vec![(first, since)])
    }

    pub(crate) fn push(&mut self, now: T, since: MonotonicTime) {
        self.0.push((now, since));
    }

    pub(crate) fn is(&self) -> T {
        self.0[self.position()].0
    }

    /// The position of the current state.
    pub(crate) fn position(&self) -> usize {
        self.0.len() - 1
    }

    /// Checks a result `told` for a request that began at `began`, by a client that knows that
    /// states before `floor` are past: the state must have ended at most `allowance` before.
    /// Returns the violation.
    pub(crate) fn judge(
        &self,
        told: T,
        (began, floor): (MonotonicTime, usize),
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
