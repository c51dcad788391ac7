//! A lower bound of the server's time, and the resolution of its clock.
//!
//! Owns the racy guard: two changes within one tick of the server's clock have the same stamp, so a
//! name learned while a stamp was that recent may have missed the second change. Needs no request:
//! every ctime in a reply was once the server's current time.
//!
//! Invariant: [`ServerClock::lower_bound`] is never later than the server's current time, as long
//! as both clocks run at the same rate and the server's is not set back. A change of this client
//! detects that it was.

use core::time::Duration;

use curt_types::Timestamp;

use crate::{options::RacyGuard, time::Moment};

/// The minimum guard.
pub const GUARD_MIN: Duration = Duration::from_millis(20);
/// The maximum to which a detected miss can raise the guard.
pub const GUARD_MAX: Duration = Duration::from_secs(4);

/// The known properties of the server's clock, per file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ServerClock {
    /// Lower bound of the server's time minus ours, in nanoseconds (the server's since 1970).
    offset: Option<i128>,
    /// FSINFO's time_delta.
    time_delta: Duration,
    /// The coarsest resolution consistent with all times seen so far; `None` before the first.
    seen: Option<Duration>,
    /// The guard after a detected miss.
    raised: Duration,
}

impl ServerClock {
    /// No times were seen yet. `told` is FSINFO's time_delta (RFC 1813 §3.3.19), zero if unknown.
    #[must_use]
    pub const fn new(told: Duration) -> Self {
        Self { offset: None, time_delta: told, seen: None, raised: Duration::ZERO }
    }

    /// Absorbs the ctime of any reply, which arrived at `received_at`.
    pub fn learn(&mut self, ctime: Timestamp, received_at: Moment) {
        let offset = i128::from(ctime.as_nanoseconds()) - i128::from(received_at.nanoseconds());
        self.offset = Some(self.offset.map_or(offset, |known| known.max(offset)));
        let step = coarsest_step(ctime);
        self.seen = Some(self.seen.map_or(step, |seen| seen.min(step)));
    }

    /// Absorbs the ctime of a change of this client, whose request was sent at `sent_at`. It was
    /// the server's current time, rounded to a tick, so an estimate beyond it is wrong (the clock
    /// was set back).
    pub fn learn_from_change(&mut self, ctime: Timestamp, sent_at: Moment, received_at: Moment) {
        let step = i128::try_from(self.guard().as_nanos()).unwrap_or(i128::MAX);
        if self
            .lower_bound(sent_at)
            .is_some_and(|bound| bound > i128::from(ctime.as_nanoseconds()).saturating_add(step))
        {
            self.offset = None;
        }
        self.learn(ctime, received_at);
    }

    /// Records that a name was found that was cached as missing under the same stamp: the clock is
    /// coarser than estimated.
    pub fn proven_coarse(&mut self) {
        self.raised = self.guard().saturating_mul(2).min(GUARD_MAX);
    }

    /// The lower bound of the server's time at `moment`, in nanoseconds since 1970.
    #[must_use]
    pub fn lower_bound(&self, moment: Moment) -> Option<i128> {
        self.offset.map(|offset| offset + i128::from(moment.nanoseconds()))
    }

    /// The time after a change during which another one may have the same stamp: twice the
    /// resolution of the clock. The resolution is that which the observed times show, since
    /// time_delta is often wrong: servers report 1 s and have nanoseconds, or the reverse.
    #[must_use]
    pub fn guard(&self) -> Duration {
        let step = self.seen.unwrap_or(self.time_delta);
        step.saturating_mul(2).max(GUARD_MIN).max(self.raised)
    }

    /// Whether the reply to a request sent at `sent_at` can have missed a change that left the
    /// stamp's time `changed_at` unchanged.
    #[must_use]
    pub fn is_racy(&self, changed_at: Option<Timestamp>, sent_at: Moment, guard: RacyGuard) -> bool {
        let Some(changed_at) = changed_at else {
            return false;
        };
        if guard == RacyGuard::Off {
            return false;
        }
        let quiet = i128::from(changed_at.as_nanoseconds())
            + i128::try_from(self.guard().as_nanos()).unwrap_or(i128::MAX / 2);
        self.lower_bound(sent_at).is_none_or(|bound| bound <= quiet)
    }
}

/// The coarsest resolution that could have produced this time: a power of ten of nanoseconds up to
/// 1 s, or the 2 s of FAT.
fn coarsest_step(time: Timestamp) -> Duration {
    if time.nanoseconds() == 0 {
        return Duration::from_secs(if time.seconds() % 2 == 0 { 2 } else { 1 });
    }
    let mut step = 1_u32;
    while step < 100_000_000 && time.nanoseconds().is_multiple_of(step * 10) {
        step *= 10;
    }
    Duration::from_nanos(u64::from(step))
}
