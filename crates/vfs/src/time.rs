//! The source of time of a tree in memory.

use curt_types::Timestamp;
use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the time.
pub trait WallClock: Send + Sync {
    /// The current time.
    fn now(&self) -> Timestamp;
}

/// The system's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemWallClock;

impl WallClock for SystemWallClock {
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp::new(i64::try_from(since.as_secs()).unwrap_or(i64::MAX), since.subsec_nanos())
    }
}

impl<F: Fn() -> Timestamp + Send + Sync> WallClock for F {
    fn now(&self) -> Timestamp {
        self()
    }
}
