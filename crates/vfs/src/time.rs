//! Where a tree in memory takes the time from.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::attributes::Time;

/// Says what time it is.
pub trait TimeSource: Send + Sync {
    /// The time now.
    fn now(&self) -> Time;
}

/// The system's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl TimeSource for SystemClock {
    fn now(&self) -> Time {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Time {
            seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
            nanoseconds: since.subsec_nanos(),
        }
    }
}

impl<F: Fn() -> Time + Send + Sync> TimeSource for F {
    fn now(&self) -> Time {
        self()
    }
}
