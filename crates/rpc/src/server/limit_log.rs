//! Reached limits: counted, and each logged at most once per interval.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::limits::ResourceLimit;
use crate::clock::TimeSource;

/// Interval between two log lines about the same limit.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

pub(super) struct LimitLog {
    clock: TimeSource,
    limits: [LimitCount; ResourceLimit::ALL.len()],
}

#[derive(Default)]
struct LimitCount {
    /// Relaxed: a counter orders nothing.
    times: AtomicU64,
    logged_at: Mutex<Option<Instant>>,
}

impl LimitLog {
    pub(super) fn new(clock: TimeSource) -> Self {
        Self { clock, limits: Default::default() }
    }

    /// Records that `limit` was reached; `what` describes the event for the log.
    pub(super) fn note(&self, limit: ResourceLimit, what: impl FnOnce() -> String) {
        let met = &self.limits[limit as usize];
        let times = met.times.fetch_add(1, Ordering::Relaxed) + 1;
        if !limit.is_news() {
            return;
        }
        let mut logged = met.logged_at.lock();
        if logged.is_none_or(|at| self.clock.since(at) >= LOG_INTERVAL) {
            *logged = Some(self.clock.now());
            drop(logged);
            let (name, what) = (limit.name(), what());
            tracing::warn!(limit = name, times, "{what}");
        }
    }

    /// How often each limit was reached, in the order of [`ResourceLimit::ALL`].
    pub(super) fn times(&self) -> [u64; ResourceLimit::ALL.len()] {
        self.limits.each_ref().map(|met| met.times.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ScriptedTime;

    #[test]
    fn each_time_counts_and_the_first_of_each_interval_is_logged() {
        let time = ScriptedTime::new();
        let pressing = LimitLog::new(time.clock());
        let mut logged = 0;
        for _ in 0..5 {
            time.advance(LOG_INTERVAL * 3 / 5);
            pressing.note(ResourceLimit::Unsent, || {
                logged += 1;
                String::new()
            });
        }
        pressing.note(ResourceLimit::System, String::new);
        pressing.note(ResourceLimit::IdleFor, || unreachable!("idleness is no news"));
        let times = pressing.times();
        assert_eq!((logged, times[ResourceLimit::Unsent as usize]), (3, 5));
        assert_eq!(times[ResourceLimit::System as usize], 1);
        for (place, limit) in ResourceLimit::ALL.iter().enumerate() {
            assert_eq!(place, *limit as usize);
        }
    }
}
