//! The client's own time as a plain number, a lower bound of the server's time, and the resolution
//! of the server's clock.
//!
//! Owns the scale on which replies are dated, and the racy guard: two changes within one tick of
//! the server's clock have the same stamp, so a name learned while a stamp was that recent may have
//! missed the second change. Needs no request: every ctime in a reply was once the server's current
//! time. Must not know the clock that provides the client's numbers.
//!
//! Invariant: [`ServerClock::lower_bound`] is never later than the server's current time, as long
//! as both clocks run at the same rate and the server's is not set back. A change of this client
//! detects that it was.

use core::time::Duration;

use curt_types::Timestamp;

use crate::options::RacyGuard;

/// A moment on the client's monotonic scale: nanoseconds since a start that the caller chose.
///
/// The scale covers 584 years; arithmetic saturates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// The moment `since_start` after the start of the scale.
    #[must_use]
    pub fn from_start(since_start: Duration) -> Self {
        Self(u64::try_from(since_start.as_nanos()).unwrap_or(u64::MAX))
    }

    /// The moment with this many nanoseconds since the start of the scale.
    #[must_use]
    pub const fn from_nanoseconds(nanoseconds: u64) -> Self {
        Self(nanoseconds)
    }

    /// Nanoseconds since the start of the scale.
    #[must_use]
    pub const fn nanoseconds(self) -> u64 {
        self.0
    }

    /// The time since `earlier`; zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The moment `later` after this one.
    #[must_use]
    pub fn plus(self, later: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(later.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// The remainder of `whole` after `gone`; zero if nothing is left.
pub(crate) const fn left(whole: Duration, gone: Duration) -> Duration {
    whole.saturating_sub(gone)
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_never_wraps() {
        let last = Moment::from_nanoseconds(u64::MAX);
        assert_eq!(last.plus(Duration::MAX), last);
        assert_eq!(Moment::from_start(Duration::MAX), last);
        assert_eq!(Moment::default().since(last), Duration::ZERO);
    }

    #[test]
    fn since_undoes_plus() {
        let moment = Moment::from_nanoseconds(7);
        assert_eq!(moment.plus(Duration::from_secs(3)).since(moment), Duration::from_secs(3));
    }
}
