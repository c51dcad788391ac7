//! Limits that were reached: counted, and each logged at most once in a while.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::limits::Limit;

/// How often the same limit is told.
const TOLD_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(super) struct Pressing {
    limits: [Met; Limit::ALL.len()],
}

#[derive(Default)]
struct Met {
    /// Relaxed: a count orders nothing.
    times: AtomicU64,
    told: Mutex<Option<Instant>>,
}

impl Pressing {
    /// Notes that `limit` was met; `what` tells of it, with what becomes of whom.
    pub(super) fn note(&self, limit: Limit, what: impl FnOnce() -> String) {
        let met = &self.limits[limit as usize];
        let times = met.times.fetch_add(1, Ordering::Relaxed) + 1;
        if !limit.is_news() {
            return;
        }
        let mut told = met.told.lock();
        if told.is_none_or(|at| at.elapsed() >= TOLD_INTERVAL) {
            *told = Some(Instant::now());
            drop(told);
            let (name, what) = (limit.name(), what());
            tracing::warn!(limit = name, times, "{what}");
        }
    }

    /// How often each limit was met, in the order of [`Limit::ALL`].
    pub(super) fn times(&self) -> [u64; Limit::ALL.len()] {
        self.limits
            .each_ref()
            .map(|met| met.times.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_counts_and_the_first_is_told() {
        let pressing = Pressing::default();
        let mut told = 0;
        for _ in 0..5 {
            pressing.note(Limit::Unsent, || {
                told += 1;
                String::new()
            });
        }
        pressing.note(Limit::System, String::new);
        pressing.note(Limit::IdleFor, || unreachable!("idleness is no news"));
        let times = pressing.times();
        assert_eq!((told, times[Limit::Unsent as usize]), (1, 5));
        assert_eq!(times[Limit::System as usize], 1);
        for (place, limit) in Limit::ALL.iter().enumerate() {
            assert_eq!(place, *limit as usize);
        }
    }
}
