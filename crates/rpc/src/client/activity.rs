//! Whether the server replies: the source of the "not responding" message and of `silent_for`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use super::events::TransportEvents;
use crate::clock::TimeSource;
use curt_observe::probe;

/// One per transport.
pub(super) struct ServerActivity {
    server: String,
    clock: TimeSource,
    base: Instant,
    waiting: AtomicUsize,
    /// Nanoseconds since `base` of the last reply, or of the time when a call began to wait while
    /// no other call waited.
    quiet_since: AtomicU64,
    outage: AtomicBool,
    /// Nanoseconds since `base` of the last time that the server's host refused a connection; zero
    /// if it never did.
    refused_at: AtomicU64,
    events: Arc<dyn TransportEvents>,
}

/// A call that waits for its reply.
pub(super) struct ReplyWait<'a>(&'a ServerActivity);

impl ServerActivity {
    pub(super) fn new(server: String, clock: TimeSource, events: Arc<dyn TransportEvents>) -> Self {
        Self {
            server,
            base: clock.now(),
            clock,
            waiting: AtomicUsize::new(0),
            quiet_since: AtomicU64::new(0),
            outage: AtomicBool::new(false),
            refused_at: AtomicU64::new(0),
            events,
        }
    }

    pub(super) fn server(&self) -> &str {
        &self.server
    }

    pub(super) const fn clock(&self) -> &TimeSource {
        &self.clock
    }

    pub(super) fn events(&self) -> &dyn TransportEvents {
        &*self.events
    }

    /// Counts a waiting call until the returned value is dropped.
    pub(super) fn begin_wait(&self) -> ReplyWait<'_> {
        // The values are used for statistics and timeouts of seconds only: no ordering with other
        // memory is needed.
        if self.waiting.fetch_add(1, Ordering::Relaxed) == 0 {
            self.quiet_since.store(self.now(), Ordering::Relaxed);
        }
        ReplyWait(self)
    }

    /// Records the receipt of a reply to any call.
    pub(super) fn note_reply(&self) {
        self.quiet_since.store(self.now(), Ordering::Relaxed);
        if self.outage.load(Ordering::Relaxed) && self.outage.swap(false, Ordering::AcqRel) {
            tracing::warn!("server {} OK", self.server);
            self.events.responding_again();
            probe!(RpcResponding { server: &self.server });
        }
    }

    /// A call waited longer than `timeout`. This is an outage if no other call got a reply
    /// meanwhile.
    pub(super) fn note_timeout(&self, timeout: Duration) {
        let silent = self.silent_for().is_some_and(|silence| silence >= timeout);
        if silent && !self.outage.swap(true, Ordering::AcqRel) {
            tracing::warn!("server {} not responding, still trying", self.server);
            self.events.not_responding();
            probe!(RpcNotResponding { server: &self.server });
        }
    }

    pub(super) fn silent_for(&self) -> Option<Duration> {
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let since = self.quiet_since.load(Ordering::Relaxed);
        Some(Duration::from_nanos(self.now().saturating_sub(since)))
    }

    /// The time without calls and replies; zero while a call waits.
    pub(super) fn idle_for(&self) -> Duration {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            return Duration::ZERO;
        }
        let since = self.quiet_since.load(Ordering::Relaxed);
        Duration::from_nanos(self.now().saturating_sub(since))
    }

    /// Records that the server's host refused a connection (no listener).
    pub(super) fn note_refusal(&self) {
        self.refused_at.store(self.now().max(1), Ordering::Relaxed);
    }

    /// Whether a connection was refused at `time` or later.
    pub(super) fn has_refused_since(&self, time: Instant) -> bool {
        let refused_at = Duration::from_nanos(self.refused_at.load(Ordering::Relaxed));
        !refused_at.is_zero() && refused_at >= time.saturating_duration_since(self.base)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.clock.since(self.base).as_nanos()).unwrap_or(u64::MAX)
    }
}

impl Drop for ReplyWait<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}
