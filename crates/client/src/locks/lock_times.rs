//! How long locks were waited for and held.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Histograms of waits and holds, in powers of two of a microsecond. Relaxed accesses: each count
/// orders no other data.
#[derive(Debug, Default)]
pub(crate) struct LockTimes {
    wait: Histogram,
    hold: Histogram,
}

#[derive(Debug)]
struct Histogram([AtomicU64; Self::BUCKETS]);

impl Histogram {
    /// The last one has all that is longer than half an hour.
    const BUCKETS: usize = 32;

    fn add(&self, time: Duration) {
        let microseconds = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let bits = usize::try_from(u64::BITS - microseconds.leading_zeros()).unwrap_or(Self::BUCKETS);
        self.0[bits.min(Self::BUCKETS - 1)].fetch_add(1, Relaxed);
    }

    /// The upper limits of the buckets in use, in microseconds, with their counts.
    fn counts(&self) -> Vec<(u64, u64)> {
        let counts = self.0.iter().enumerate().map(|(bits, count)| (1_u64 << bits, count.load(Relaxed)));
        counts.filter(|(_, count)| *count > 0).collect()
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; Self::BUCKETS])
    }
}

impl LockTimes {
    pub(crate) fn waited(&self, time: Duration) {
        self.wait.add(time);
    }

    pub(crate) fn held(&self, time: Duration) {
        self.hold.add(time);
    }

    /// The histograms of waits and of holds: upper limits in microseconds, and counts.
    pub(crate) fn counts(&self) -> [Vec<(u64, u64)>; 2] {
        [self.wait.counts(), self.hold.counts()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_counted_below_the_next_power_of_two() {
        let times = LockTimes::default();
        for microseconds in [0, 1, 2, 3, 1000, u64::MAX] {
            times.waited(Duration::from_micros(microseconds));
        }
        assert_eq!(times.counts()[0], [(1, 1), (2, 1), (4, 2), (1024, 1), (1 << 31, 1)]);
        assert_eq!(times.counts()[1], []);
    }
}
