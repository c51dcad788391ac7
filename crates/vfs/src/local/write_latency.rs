//! How long a file system may block its callers, by its type and by observation.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::MayBlock;

/// A write to the page cache that takes longer than this waited for a disk.
const SLOW_WRITE: Duration = Duration::from_millis(2);

/// The time for which writes count as slow after a slow one.
const SLOW_FOR: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct WriteLatency {
    pub(super) may_block: MayBlock,
    opened: Instant,
    /// The end of the slow period, in microseconds since `opened`. Relaxed: it decides which thread
    /// waits, not what is written.
    slow_until: AtomicU64,
}

impl WriteLatency {
    pub(super) fn new(waits: MayBlock) -> Self {
        Self { may_block: waits, opened: Instant::now(), slow_until: AtomicU64::new(0) }
    }

    /// The start of a write; `None` if it is not measured.
    pub(super) fn write_begins(&self) -> Option<Instant> {
        (self.may_block == MayBlock::Data).then(Instant::now)
    }

    pub(super) fn write_ended(&self, begun: Option<Instant>) {
        let Some(begun) = begun else { return };
        let now = Instant::now();
        if now - begun >= SLOW_WRITE {
            let until = micros(now - self.opened + SLOW_FOR);
            self.slow_until.fetch_max(until, Ordering::Relaxed);
        }
    }

    /// Whether writes to the page cache were slow recently: the kernel throttles them when the disk
    /// cannot keep up.
    pub(super) fn writes_are_slow(&self) -> bool {
        let until = self.slow_until.load(Ordering::Relaxed);
        until > 0 && micros(self.opened.elapsed()) < until
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_count_as_slow_after_one_was_and_only_on_a_disk() {
        let long_ago = |pace: &WriteLatency| pace.write_begins().map(|begun| begun - SLOW_WRITE);
        let disk = WriteLatency::new(MayBlock::Data);
        disk.write_ended(disk.write_begins());
        assert!(!disk.writes_are_slow());
        disk.write_ended(long_ago(&disk));
        assert!(disk.writes_are_slow());
        let memory = WriteLatency::new(MayBlock::Never);
        memory.write_ended(long_ago(&memory));
        assert!(!memory.writes_are_slow());
    }
}
