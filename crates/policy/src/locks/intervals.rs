//! The intervals at which requests for locks are repeated.

use core::time::Duration;

/// The interval at which a server without callbacks is asked again, doubled each time up to the
/// second one.
const POLL_INTERVAL: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// After so many denials the interval grows no more.
pub(super) const DENIALS_MAX: u8 = 5;
/// The interval at which a request is repeated for which the server keeps a place. The server keeps
/// a range for it from when that is free until the next repetition, so each interval is only half
/// as long again as the one before: up to 0.5 s.
const REPEAT_INTERVAL: Duration = Duration::from_millis(20);
/// After so many repetitions that interval grows no more.
pub(super) const REPEATS_MAX: u8 = 8;
/// The interval at which a request is repeated to a server that calls back, in case the callback is
/// lost.
pub(super) const BLOCKED_INTERVAL: Duration = Duration::from_secs(30);
/// The time after which no copy of a request that was sent twice is on its way any more.
pub(super) const LATE_INTERVAL: Duration = Duration::from_secs(60);

/// The pause before a LOCK is repeated after `denials` denials, or in the grace period.
#[must_use]
pub fn poll_interval(denials: u8) -> Duration {
    let doubled = POLL_INTERVAL.0.saturating_mul(1 << denials.min(DENIALS_MAX));
    doubled.min(POLL_INTERVAL.1)
}

/// The interval before a request is repeated that has its place at the server, and was denied so
/// often.
pub(super) fn repeat_interval(denials: u8) -> Duration {
    let denials = u32::from(denials);
    REPEAT_INTERVAL * 3_u32.pow(denials) / 2_u32.pow(denials)
}
