//! Time limits of work that consists of several requests.

use std::{sync::Arc, thread, time::Duration};

use curt_rpc::client::{Interrupt, Wake};
use parking_lot::{Condvar, Mutex};

#[derive(Default)]
struct DeadlineWakeup {
    over: Mutex<bool>,
    wakeup: Condvar,
}

impl Wake for DeadlineWakeup {
    fn wake(&self) {
        // The waiter holds the lock from its check of the interrupt until it sleeps.
        drop(self.over.lock());
        self.wakeup.notify_all();
    }
}

/// Runs `work` with an interrupt that is raised when `interrupt` is, or after `limit`.
pub(super) fn within<R>(limit: Duration, interrupt: &Interrupt, work: impl FnOnce(&Interrupt) -> R) -> R {
    let alarm = Arc::new(DeadlineWakeup::default());
    let ends = Interrupt::new();
    thread::scope(|scope| {
        let watch = || {
            let waker: Arc<dyn Wake> = Arc::<DeadlineWakeup>::clone(&alarm);
            let _registration = interrupt.register(waker);
            let mut over = alarm.over.lock();
            alarm.wakeup.wait_while_for(&mut over, |over| !*over && !interrupt.is_raised(), limit);
            drop(over);
            ends.raise();
        };
        let watcher = thread::Builder::new().name("curt-deadline".into()).spawn_scoped(scope, watch);
        // If the watcher thread could not be started, only the caller's interrupt applies.
        let result = work(if watcher.is_ok() { &ends } else { interrupt });
        *alarm.over.lock() = true;
        alarm.wakeup.notify_all();
        result
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn work_that_ends_in_time_is_not_delayed() {
        assert!(!within(LONG, &Interrupt::never(), |ends| ends.is_raised()));
    }

    #[test]
    fn work_is_interrupted_by_the_limit_and_by_the_caller() {
        assert!(within(Duration::from_millis(1), &Interrupt::never(), |ends| ends.wait_for(LONG)));
        let interrupt = Interrupt::new();
        interrupt.raise();
        assert!(within(LONG, &interrupt, |ends| ends.wait_for(LONG)));
    }
}
