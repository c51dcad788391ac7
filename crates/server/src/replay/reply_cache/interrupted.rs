//! Calls that an earlier run of the server began and did not answer.
//!
//! It is not known whether such a call has changed anything. When its client repeats it, it is
//! executed. If it then fails as a call does that was executed before (the name that it creates
//! exists; the name that it removes does not), the tree is examined (`ops::interrupted_change`).
//! Before that, this module checks whether another call is known to have made the same change
//! since: of two clients that create one directory, only one may get a success.
//!
//! Calls are recorded no longer than replies are cached. Without interrupted calls this module
//! records nothing.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use curt_types::{Fault, Timestamp};
use parking_lot::Mutex;

use super::super::{ChangedNames, ExecutionWindow};
use super::fingerprint::Fingerprint;
use super::table::ReplyCacheKey;

/// Maximum number of recorded changes by later calls. Above it the interrupted calls are dropped.
const CHANGES_MAX: usize = 64 << 10;

/// Longer than any step of the coarse clock from which file systems take their times.
const GRAIN: Duration = Duration::from_millis(20);

/// A call that was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InterruptedCall {
    pub(super) key: ReplyCacheKey,
    pub(super) fingerprint: Fingerprint,
    pub(super) subjects: ChangedNames,
    /// The time on a clock that all processes of this boot share.
    pub(super) at: Duration,
    /// The time on the clock from which file systems take their times.
    pub(super) time: Timestamp,
}

impl ChangedNames {
    /// The names that it changes, and whether it creates them.
    fn changes(self) -> impl Iterator<Item = (u64, bool)> {
        let changes = [(self.removed, false), (self.created, true)];
        changes.into_iter().filter(|(name, _)| *name != 0)
    }

    /// The change that shows whether the call was executed. For a rename, it is the removal of the
    /// old name, whether or not another object is replaced.
    fn mark(self) -> Option<(u64, bool)> {
        self.changes().next()
    }
}

/// The last change of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LastChange {
    /// Whether the name was created or removed.
    is_made: bool,
    at: Duration,
}

/// A claim that an interrupted call made its change, as far as later calls show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    /// The window in which it was executed, if it was.
    pub(super) window: ExecutionWindow,
    /// The earlier change of the name by another call.
    before: Option<LastChange>,
}

/// All interrupted calls.
#[derive(Default)]
pub(super) struct InterruptedCalls {
    /// Relaxed: a thread that reads an outdated value finds out under the lock.
    any: AtomicBool,
    known: Mutex<KnownCalls>,
}

#[derive(Default)]
struct KnownCalls {
    calls: HashMap<ReplyCacheKey, InterruptedCall>,
    /// The last change of each name by known calls.
    changes: HashMap<u64, LastChange>,
    until: Timestamp,
    /// The time at which the last of `calls` expires.
    end: Duration,
}

impl InterruptedCalls {
    /// Records interrupted calls, each of which may be executed until `age` after its beginning,
    /// and answered calls.
    pub(super) fn new(
        calls: impl Iterator<Item = InterruptedCall>,
        answered: impl Iterator<Item = (ChangedNames, Duration)>,
        until: Timestamp,
        age: Duration,
    ) -> Self {
        let mut known = KnownCalls { until, ..KnownCalls::default() };
        for call in calls {
            known.end = known.end.max(call.at + age);
            // Of a call that was interrupted in two runs, the first may have executed it.
            let first = known.calls.entry(call.key).or_insert(call);
            if first.fingerprint != call.fingerprint {
                *first = call;
            }
        }
        if !known.calls.is_empty() {
            for (subjects, at) in answered {
                known.changed(subjects, at);
            }
        }
        Self { any: AtomicBool::new(!known.calls.is_empty()), known: Mutex::new(known) }
    }

    /// Removes and returns the call that is repeated now, if it was interrupted. Another call with
    /// its xid shows that its client no longer waits for it.
    pub(super) fn take(
        &self,
        key: ReplyCacheKey,
        fingerprint: Fingerprint,
        now: Duration,
    ) -> Option<InterruptedCall> {
        if !self.any.load(Ordering::Relaxed) {
            return None;
        }
        let mut known = self.known.lock();
        let call = known.calls.remove(&key);
        let in_time = now < known.end;
        call.filter(|call| call.fingerprint == fingerprint && in_time)
    }

    /// A call that was taken was not executed after all.
    pub(super) fn put_back(&self, call: InterruptedCall) {
        self.known.lock().calls.insert(call.key, call);
    }

    /// Claims its change for `call`, which failed. There is no claim if it failed otherwise than a
    /// call that was executed before, or if another call made the change since it began, or so
    /// shortly before that the ctime cannot show the difference.
    pub(super) fn claim(&self, call: &InterruptedCall, failed: Fault, now: Duration) -> Option<Claim> {
        let (name, is_made) = call.subjects.mark()?;
        if failed != if is_made { Fault::Exist } else { Fault::Noent } {
            return None;
        }
        let mut known = self.known.lock();
        let is_others = |last: &LastChange| last.is_made == is_made && last.at + GRAIN >= call.at;
        if known.changes.get(&name).is_some_and(is_others) {
            return None;
        }
        let window = ExecutionWindow { from: call.time, until: known.until };
        let before = known.changes.insert(name, LastChange { is_made, at: now });
        Some(Claim { window, before })
    }

    /// Withdraws a claim: the tree shows that the call changed nothing.
    pub(super) fn withdraw_claim(&self, call: &InterruptedCall, claim: Claim) {
        let Some((name, _)) = call.subjects.mark() else {
            return;
        };
        let mut known = self.known.lock();
        match claim.before {
            Some(before) => known.changes.insert(name, before),
            None => known.changes.remove(&name),
        };
    }

    /// Records the changes of another call.
    pub(super) fn changed(&self, subjects: ChangedNames, now: Duration) {
        if !self.any.load(Ordering::Relaxed) {
            return;
        }
        let mut known = self.known.lock();
        if now >= known.end || known.changes.len() >= CHANGES_MAX {
            *known = KnownCalls::default();
            self.any.store(false, Ordering::Relaxed);
        } else {
            known.changed(subjects, now);
        }
    }
}

impl KnownCalls {
    fn changed(&mut self, subjects: ChangedNames, at: Duration) {
        for (name, is_made) in subjects.changes() {
            let change = LastChange { is_made, at };
            let last = self.changes.entry(name).or_insert(change);
            if last.at <= at {
                *last = change;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGE: Duration = Duration::from_secs(120);
    const UNTIL: Timestamp = Timestamp::new(2000, 0);

    fn call(xid: u32, at: u64, subjects: ChangedNames) -> InterruptedCall {
        let peer = std::net::IpAddr::from([10, 0, 0, 1]);
        InterruptedCall {
            key: ReplyCacheKey { peer, xid },
            fingerprint: Fingerprint(1),
            subjects,
            at: Duration::from_secs(at),
            time: Timestamp::new(1000 + i64::try_from(at).unwrap_or(0), 0),
        }
    }

    fn interrupted(calls: &[InterruptedCall], answered: &[(ChangedNames, u64)]) -> InterruptedCalls {
        let answered = answered.iter().map(|(subjects, at)| (*subjects, Duration::from_secs(*at)));
        InterruptedCalls::new(calls.iter().copied(), answered, UNTIL, AGE)
    }

    /// Claims the change of a call that failed as if it had been executed before.
    fn claim(calls: &InterruptedCalls, call: &InterruptedCall) -> Option<Claim> {
        let (other, failed) = match call.subjects.mark() {
            Some((_, false)) => (Fault::Exist, Fault::Noent),
            _ => (Fault::Noent, Fault::Exist),
        };
        assert_eq!(calls.claim(call, other, NOW), None);
        calls.claim(call, failed, NOW)
    }

    const CREATED: ChangedNames = ChangedNames { created: 5, removed: 0 };
    const REMOVED: ChangedNames = ChangedNames { created: 0, removed: 5 };
    const NOW: Duration = Duration::from_secs(100);

    #[test]
    fn a_call_is_found_once_by_its_number_and_content_while_it_is_young() {
        let one = call(1, 90, CREATED);
        let all = || interrupted(&[one], &[]);
        let calls = all();
        assert_eq!(calls.take(one.key, one.fingerprint, NOW), Some(one));
        assert_eq!(calls.take(one.key, one.fingerprint, NOW), None);
        assert_eq!(all().take(one.key, Fingerprint(2), NOW), None);
        let late = one.at + AGE;
        assert_eq!(all().take(one.key, one.fingerprint, late), None);
        assert_eq!(interrupted(&[], &[]).take(one.key, one.fingerprint, NOW), None);
    }

    #[test]
    fn a_call_that_was_interrupted_twice_may_have_been_executed_the_first_time() {
        let (first, second) = (call(1, 80, CREATED), call(1, 90, CREATED));
        let taken = interrupted(&[first, second], &[]).take(first.key, first.fingerprint, NOW);
        assert_eq!(taken, Some(first));
        // With other contents it is another call.
        let other = InterruptedCall { fingerprint: Fingerprint(2), ..second };
        let taken = interrupted(&[first, other], &[]).take(first.key, Fingerprint(2), NOW);
        assert_eq!(taken, Some(other));
    }

    #[test]
    fn of_two_calls_that_create_or_remove_one_name_only_one_succeeds() {
        let renamed = ChangedNames { created: 9, removed: 5 };
        for (subjects, others, is_the_same) in [
            (CREATED, CREATED, true),
            (REMOVED, REMOVED, true),
            (renamed, REMOVED, true),
            (REMOVED, renamed, true),
            // A name that a rename created is not created again.
            (ChangedNames { created: 9, removed: 0 }, renamed, true),
            (CREATED, REMOVED, false),
            (REMOVED, CREATED, false),
            (CREATED, ChangedNames { created: 6, removed: 0 }, false),
            // Two names may be renamed to one, one after the other.
            (renamed, ChangedNames { created: 9, removed: 6 }, false),
        ] {
            let own = call(1, 90, subjects);
            for (at, is_since) in [(89, false), (90, true), (95, true)] {
                let calls = interrupted(&[own], &[(others, at)]);
                let claimed = claim(&calls, &own).is_some();
                assert_eq!(claimed, !(is_since && is_the_same), "{subjects:?} {others:?} at {at}");
            }
            // The other call may be executed in this run, with a reply or a claim.
            let calls = interrupted(&[own], &[]);
            calls.changed(others, NOW);
            assert_eq!(claim(&calls, &own).is_some(), !is_the_same);
        }
        let (one, other) = (call(1, 90, CREATED), call(2, 91, CREATED));
        let calls = interrupted(&[one, other], &[]);
        let window = ExecutionWindow { from: one.time, until: UNTIL };
        let claimed = claim(&calls, &one).expect("no other is known");
        assert_eq!(claimed.window, window);
        assert_eq!(claim(&calls, &other), None);
        calls.withdraw_claim(&one, claimed);
        assert!(claim(&calls, &other).is_some());
        assert_eq!(claim(&calls, &call(3, 90, ChangedNames::default())), None);
    }

    #[test]
    fn what_is_remembered_is_bounded_in_number_and_time() {
        let one = call(1, 90, CREATED);
        let calls = interrupted(&[one], &[]);
        for name in 0..=CHANGES_MAX as u64 {
            calls.changed(ChangedNames { created: 0, removed: name + 1 }, NOW);
        }
        assert_eq!(calls.take(one.key, one.fingerprint, NOW), None);
        assert!(calls.known.lock().changes.is_empty());
        let calls = interrupted(&[one], &[]);
        calls.changed(REMOVED, one.at + AGE);
        assert!(calls.known.lock().changes.is_empty() && !calls.any.load(Ordering::Relaxed));
    }
}
