//! Limits that were reached: counted, and each logged at most once in a while.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::limits::ResourceLimit;
use crate::clock::TimeSource;

/// How often the same limit is told.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

pub(super) struct LimitLog {
    clock: TimeSource,
    limits: [LimitCount; ResourceLimit::ALL.len()],
}

#[derive(Default)]
struct LimitCount {
    /// Relaxed: a count orders nothing.
    times: AtomicU64,
    logged_at: Mutex<Option<Instant>>,
}

impl LimitLog {
    pub(super) fn new(clock: TimeSource) -> Self {
        Self {
            clock,
            limits: Default::default(),
        }
    }

    /// Notes that `limit` was met; `what` tells of it, with what becomes of whom.
    pub(super) fn note(&self, limit: ResourceLimit, what: impl FnOnce() -> String) {
        let met = &self.limits[limit as usize];
        let times = met.times.fetch_add(1, Ordering::Relaxed) + 1;
        if !limit.is_news() {
            return;
        }
        let mut told = met.logged_at.lock();
        if told.is_none_or(|at| self.clock.since(at) >= LOG_INTERVAL) {
            *told = Some(self.clock.now());
            drop(told);
            let (name, what) = (limit.name(), what());
            tracing::warn!(limit = name, times, "{what}");
        }
    }

    /// How often each limit was met, in the order of [`ResourceLimit::ALL`].
    pub(super) fn times(&self) -> [u64; ResourceLimit::ALL.len()] {
        self.limits
            .each_ref()
            .map(|met| met.times.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ScriptedTime;

    #[test]
    fn each_time_counts_and_the_first_of_each_interval_is_told() {
        let time = ScriptedTime::new();
        let pressing = LimitLog::new(time.clock());
        let mut told = 0;
        for _ in 0..5 {
            time.advance(LOG_INTERVAL * 3 / 5);
            pressing.note(ResourceLimit::Unsent, || {
                told += 1;
                String::new()
            });
        }
        pressing.note(ResourceLimit::System, String::new);
        pressing.note(ResourceLimit::IdleFor, || unreachable!("idleness is no news"));
        let times = pressing.times();
        assert_eq!((told, times[ResourceLimit::Unsent as usize]), (3, 5));
        assert_eq!(times[ResourceLimit::System as usize], 1);
        for (place, limit) in ResourceLimit::ALL.iter().enumerate() {
            assert_eq!(place, *limit as usize);
        }
    }
}
