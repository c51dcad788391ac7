//! Whether a thread polls for a client's next calls before it sleeps.
//!
//! A client that sends several calls at once and gets the replies together usually sends the next
//! calls soon. If it runs on another processor, a wake-up costs more than the execution of the
//! calls (`docs/decisions/busy-polling.md`). Invariants: for a client that has become slower a
//! thread polls at most once more, and polling takes at most a twentieth of a fast client's time.

use std::time::{Duration, Instant};

/// Maximum time of polling for the next calls of a fast client.
pub(super) const POLL_MAX: Duration = Duration::from_micros(50);

/// A client whose calls arrive within this time after its last replies is fast.
const BRISK_MAX: Duration = POLL_MAX.saturating_mul(20);

/// Observations of one client since a thread began to read its connection.
#[derive(Default)]
pub(super) struct AdaptivePolling {
    /// Calls since the last wait.
    calls: u32,
    /// Whether the last calls arrived soon after the replies before them.
    was_soon: bool,
}

impl AdaptivePolling {
    /// Records a call.
    pub(super) const fn called(&mut self) {
        self.calls = self.calls.saturating_add(1);
    }

    /// The start of a wait for calls, if the client sends several at once. For other clients the
    /// clock is not read, because this would add to the cost of each of their calls.
    pub(super) fn begin_wait(&mut self, now: impl FnOnce() -> Instant) -> Option<Instant> {
        let calls = std::mem::take(&mut self.calls);
        (calls > 1).then(now)
    }

    /// The end of polling in a wait that began at `begin`.
    pub(super) fn poll_until(&self, begin: Option<Instant>) -> Option<Instant> {
        begin.filter(|_| self.was_soon).map(|begin| begin + POLL_MAX)
    }

    /// Records that a wait that began at `begin` ended at `now`.
    pub(super) fn end_wait(&mut self, begin: Option<Instant>, now: impl FnOnce() -> Instant) {
        self.was_soon = begin.is_some_and(|begin| now().saturating_duration_since(begin) <= BRISK_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One round of a client that makes `calls` calls `after` the replies; returns whether a thread
    /// polls for them.
    fn round(pace: &mut AdaptivePolling, calls: u32, after: Duration) -> bool {
        let begin = pace.begin_wait(Instant::now);
        let polls = pace.poll_until(begin);
        if let (Some(begin), Some(until)) = (begin, polls) {
            assert_eq!(until - begin, POLL_MAX);
        }
        pace.end_wait(begin, || begin.expect("asked only of who sends several") + after);
        (0..calls).for_each(|_| pace.called());
        polls.is_some()
    }

    #[test]
    fn a_thread_polls_only_for_clients_that_soon_send_several_calls_at_once() {
        let (soon, late) = (BRISK_MAX, BRISK_MAX + Duration::from_nanos(1));
        let mut pace = AdaptivePolling::default();
        let mut rounds = |calls, after| [(); 4].map(|()| round(&mut pace, calls, after));
        assert_eq!(rounds(1, soon), [false; 4]);
        // The first rounds show that it sends several calls, and soon.
        assert_eq!(rounds(16, soon), [false, false, true, true]);
        assert_eq!(rounds(16, late), [true, false, false, false]);
        assert_eq!(rounds(2, soon), [false, true, true, true]);
        assert_eq!(rounds(1, soon), [true, false, false, false]);
    }
}
