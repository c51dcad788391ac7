//! `softreval`: how long an operation waits for a server that does not respond before it uses
//! expired cached data.
//!
//! Owns the interrupts of revalidation requests. Each is raised when the caller's interrupt is
//! raised or when the request's time has passed. One delayed task serves all of them. Must not know
//! the contents of requests.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use curt_rpc::client::{Interrupt, Wake, WakerRegistration};
use parking_lot::Mutex;

use crate::threads::{Background, Clock};

/// The timers of one mount.
pub(crate) struct SoftRevalidation {
    limit: Duration,
    clock: Arc<dyn Clock>,
    background: Arc<dyn Background>,
    waits: Mutex<SoftRevalidationTimers>,
}

#[derive(Default)]
struct SoftRevalidationTimers {
    /// The interrupts of the waits, by the time at which they expire.
    calls: BTreeMap<(Instant, u64), Interrupt>,
    last: u64,
    timer_runs: bool,
}

/// A wait for one request that ends at the time limit.
pub(crate) struct SoftRevalidationWait<'a> {
    /// The interrupt of the request.
    pub(crate) interrupt: Interrupt,
    timers: Arc<SoftRevalidation>,
    key: (Instant, u64),
    _caller: WakerRegistration<'a>,
}

/// Interrupts a request when its caller is interrupted. A waker must not raise an interrupt, so a
/// background task does it.
struct InterruptRelay {
    interrupt: Interrupt,
    background: Arc<dyn Background>,
}

impl Wake for InterruptRelay {
    fn wake(&self) {
        let interrupt = self.interrupt.clone();
        self.background.spawn(Box::new(move || interrupt.raise()));
    }
}

impl SoftRevalidation {
    pub(crate) fn new(limit: Duration, clock: Arc<dyn Clock>, background: Arc<dyn Background>) -> Arc<Self> {
        Arc::new(Self { limit, clock, background, waits: Mutex::default() })
    }

    /// Begins a wait, which `caller` can interrupt as well.
    pub(crate) fn begin<'a>(self: &Arc<Self>, caller: &'a Interrupt) -> SoftRevalidationWait<'a> {
        let interrupt = Interrupt::new();
        let relay = InterruptRelay { interrupt: interrupt.clone(), background: Arc::clone(&self.background) };
        let registration = caller.register(Arc::new(relay));
        if caller.is_raised() {
            interrupt.raise();
        }
        let mut waits = self.waits.lock();
        waits.last += 1;
        let key = (self.clock.now() + self.limit, waits.last);
        waits.calls.insert(key, interrupt.clone());
        let must_start = !std::mem::replace(&mut waits.timer_runs, true);
        drop(waits);
        if must_start {
            self.start_timer(self.limit);
        }
        SoftRevalidationWait { interrupt, timers: Arc::clone(self), key, _caller: registration }
    }

    fn start_timer(self: &Arc<Self>, delay: Duration) {
        let patience = Arc::downgrade(self);
        let tick = move || Weak::upgrade(&patience).map_or((), |patience| patience.tick());
        self.background.spawn_after(delay, Box::new(tick));
    }

    /// Ends the expired waits and starts the timer for the next one.
    fn tick(self: &Arc<Self>) {
        let now = self.clock.now();
        let mut waits = self.waits.lock();
        let later = waits.calls.split_off(&(now, u64::MAX));
        let over = std::mem::replace(&mut waits.calls, later);
        let next = waits.calls.keys().next().map(|(end, _)| end.saturating_duration_since(now));
        waits.timer_runs = next.is_some();
        drop(waits);
        over.values().for_each(Interrupt::raise);
        if let Some(delay) = next {
            self.start_timer(delay);
        }
    }
}

impl Drop for SoftRevalidationWait<'_> {
    fn drop(&mut self) {
        self.timers.waits.lock().calls.remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::{BackgroundThreads, MonotonicClock};

    fn patience(limit: Duration) -> Arc<SoftRevalidation> {
        SoftRevalidation::new(limit, Arc::new(MonotonicClock), Arc::new(BackgroundThreads::new(2)))
    }

    #[test]
    fn a_wait_ends_at_its_own_time_limit() {
        let limit = Duration::from_millis(30);
        let patience = patience(limit);
        let never = Interrupt::never();
        let first = patience.begin(&never);
        assert!(first.interrupt.wait_for(Duration::from_secs(60)));
        let began = Instant::now();
        let second = patience.begin(&never);
        let is_over = second.interrupt.is_raised();
        assert!(!is_over || began.elapsed() >= limit, "its time begins with it");
        assert!(second.interrupt.wait_for(Duration::from_secs(60)), "the timer was started again");
        drop((first, second));
        assert!(patience.waits.lock().calls.is_empty());
    }

    #[test]
    fn a_wait_ends_when_its_caller_is_interrupted() {
        let patience = patience(Duration::from_secs(3600));
        let caller = Interrupt::new();
        let wait = patience.begin(&caller);
        caller.raise();
        assert!(wait.interrupt.wait_for(Duration::from_secs(60)));
        let late = patience.begin(&caller);
        assert!(late.interrupt.is_raised());
    }
}
