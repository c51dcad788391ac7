//! The clock that this crate and its users are given.
//!
//! Owns the only readings of the system's clocks. Whatever waits for a time computes how long that
//! is by the clock it was given; the wait itself is the operating system's. So a test with a
//! scripted clock decides what is overdue, and waits for nothing.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

/// Where the time comes from. Cheap to clone; reading the system's clock through it costs a branch.
#[derive(Clone, Debug, Default)]
pub enum TimeSource {
    /// The system's clocks.
    #[default]
    System,
    /// A test's.
    Scripted(Arc<ScriptedTime>),
}

/// Time that stands still until a test advances it.
#[derive(Debug)]
pub struct ScriptedTime {
    start: Instant,
    wall_start: SystemTime,
    /// Nanoseconds since then. Relaxed: the test orders what depends on it.
    elapsed: AtomicU64,
}

impl TimeSource {
    /// The present time; it never goes back.
    #[must_use]
    pub fn now(&self) -> Instant {
        match self {
            Self::System => Instant::now(),
            Self::Scripted(script) => script.start + script.elapsed(),
        }
    }

    /// The present time of the wall clock, which may be set back.
    #[must_use]
    pub fn wall_clock(&self) -> SystemTime {
        match self {
            Self::System => SystemTime::now(),
            Self::Scripted(script) => script.wall_start + script.elapsed(),
        }
    }

    /// The time of the monotonic clock, which all processes of this boot share.
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

    /// How long ago `moment` was.
    #[must_use]
    pub fn since(&self, moment: Instant) -> Duration {
        self.now().saturating_duration_since(moment)
    }

    /// How long it is until `deadline`; zero if it has passed.
    #[must_use]
    pub fn until(&self, deadline: Instant) -> Duration {
        deadline.saturating_duration_since(self.now())
    }
}

impl ScriptedTime {
    /// Time that begins now.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            start: Instant::now(),
            wall_start: SystemTime::now(),
            elapsed: AtomicU64::new(0),
        })
    }

    /// The clock that shows it.
    #[must_use]
    pub fn clock(self: &Arc<Self>) -> TimeSource {
        TimeSource::Scripted(Arc::clone(self))
    }

    /// Lets `duration` pass.
    pub fn advance(&self, duration: Duration) {
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.elapsed.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.elapsed.load(Ordering::Relaxed))
    }
}
