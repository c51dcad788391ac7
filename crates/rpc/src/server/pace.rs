//! How briskly a client calls, and so whether a thread looks out for its next calls before it sleeps until they come.
//!
//! A client that sends several calls at once and has the replies together sends the next ones soon. To be woken for them costs more
//! than all of their work where the client runs on another processor. What always holds: a client that is no longer brisk is
//! looked out for once more at most, and looking out takes no more than a twentieth of a brisk client's time.

use std::time::{Duration, Instant};

/// How long the next calls of a brisk client are looked out for.
pub(super) const LOOK_MAX: Duration = Duration::from_micros(50);

/// A client whose calls come within this time of its last replies is brisk.
const BRISK_MAX: Duration = LOOK_MAX.saturating_mul(20);

/// What was seen of one client since a thread began to read its connection.
#[derive(Default)]
pub(super) struct Pace {
    /// Calls since the last wait.
    calls: u32,
    /// The last calls came soon.
    was_soon: bool,
}

impl Pace {
    /// A call came.
    pub(super) const fn called(&mut self) {
        self.calls = self.calls.saturating_add(1);
    }

    /// When a wait for calls begins, if the client sends several at once. Of the others nobody asks for the time: it is part of what
    /// each of their calls takes.
    pub(super) fn begin_wait(&mut self) -> Option<Instant> {
        let calls = std::mem::take(&mut self.calls);
        (calls > 1).then(Instant::now)
    }

    /// Until when a wait that began so may be spent looking out.
    pub(super) fn look_until(&self, begin: Option<Instant>) -> Option<Instant> {
        begin.filter(|_| self.was_soon).map(|begin| begin + LOOK_MAX)
    }

    /// A wait that began so ended at `now`.
    pub(super) fn end_wait(&mut self, begin: Option<Instant>, now: impl FnOnce() -> Instant) {
        self.was_soon = begin.is_some_and(|begin| now().saturating_duration_since(begin) <= BRISK_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One round of a client that makes `calls` at once `after` the replies; whether it is looked out for beforehand.
    fn round(pace: &mut Pace, calls: u32, after: Duration) -> bool {
        let begin = pace.begin_wait();
        let looks = pace.look_until(begin);
        if let (Some(begin), Some(until)) = (begin, looks) {
            assert_eq!(until - begin, LOOK_MAX);
        }
        pace.end_wait(begin, || begin.expect("asked only of who sends several") + after);
        (0..calls).for_each(|_| pace.called());
        looks.is_some()
    }

    #[test]
    fn only_who_sends_several_calls_at_once_and_soon_is_looked_out_for() {
        let (soon, late) = (BRISK_MAX, BRISK_MAX + Duration::from_nanos(1));
        let mut pace = Pace::default();
        let mut rounds = |calls, after| [(); 4].map(|()| round(&mut pace, calls, after));
        assert_eq!(rounds(1, soon), [false; 4]);
        // Once to see that it sends several, once to see that it does so soon.
        assert_eq!(rounds(16, soon), [false, false, true, true]);
        assert_eq!(rounds(16, late), [true, false, false, false]);
        assert_eq!(rounds(2, soon), [false, true, true, true]);
        assert_eq!(rounds(1, soon), [true, false, false, false]);
    }
}
