//! The clock of this crate and its users.
//!
//! Only this module reads the system's clocks. Code that waits computes the duration by its clock,
//! and the operating system waits. So a test with a scripted clock determines which timeouts have
//! expired, without waiting.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

/// Source of time. Cheap to clone; reading the system clock through it costs a branch.
#[derive(Clone, Debug, Default)]
pub enum TimeSource {
    /// The system's clocks.
    #[default]
    System,
    /// A clock set by a test.
    Scripted(Arc<ScriptedTime>),
}

/// A time that changes only when a test advances it.
#[derive(Debug)]
pub struct ScriptedTime {
    start: Instant,
    wall_start: SystemTime,
    /// Nanoseconds since `start`. Relaxed: the test orders its accesses.
    elapsed: AtomicU64,
}

impl TimeSource {
    /// The current time; it never goes back.
    #[must_use]
    pub fn now(&self) -> Instant {
        match self {
            Self::System => Instant::now(),
            Self::Scripted(script) => script.start + script.elapsed(),
        }
    }

    /// The current time of the wall clock, which may be set back.
    #[must_use]
    pub fn wall_clock(&self) -> SystemTime {
        match self {
            Self::System => SystemTime::now(),
            Self::Scripted(script) => script.wall_start + script.elapsed(),
        }
    }

    /// The wall clock's time at its last tick: the earliest time that a file system may set for a
    /// change made from now on (Linux's `CLOCK_REALTIME_COARSE`).
    #[must_use]
    pub fn coarse_wall_clock(&self) -> SystemTime {
        match self {
            Self::System => {
                let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
                let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
                let since = Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or_default());
                SystemTime::UNIX_EPOCH + since
            }
            Self::Scripted(_) => self.wall_clock(),
        }
    }

    /// The current time of the monotonic clock, which all processes of this boot share.
    #[must_use]
    pub fn since_boot(&self) -> Duration {
        match self {
            Self::System => {
                let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
                let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
                Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or_default())
            }
            Self::Scripted(script) => script.elapsed(),
        }
    }

    /// The time since `moment`.
    #[must_use]
    pub fn since(&self, moment: Instant) -> Duration {
        self.now().saturating_duration_since(moment)
    }

    /// The time until `deadline`; zero if it has passed.
    #[must_use]
    pub fn until(&self, deadline: Instant) -> Duration {
        deadline.saturating_duration_since(self.now())
    }
}

impl ScriptedTime {
    /// A time that starts now.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self { start: Instant::now(), wall_start: SystemTime::now(), elapsed: AtomicU64::new(0) })
    }

    /// The clock that returns this time.
    #[must_use]
    pub fn clock(self: &Arc<Self>) -> TimeSource {
        TimeSource::Scripted(Arc::clone(self))
    }

    /// Advances the time by `duration`.
    pub fn advance(&self, duration: Duration) {
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.elapsed.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.elapsed.load(Ordering::Relaxed))
    }
}
