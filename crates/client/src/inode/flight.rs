//! A request for attributes that is under way, and those who wait for it instead of sending their own.
//!
//! Owns the waiting. Must not know what is asked.

use std::sync::Arc;

use curt_rpc::client::{Interrupt, Wake};
use parking_lot::{Condvar, Mutex};

/// One request under way.
#[derive(Debug, Default)]
pub(crate) struct Flight {
    ended: Mutex<bool>,
    changed: Condvar,
}

impl Flight {
    /// It ended, however it did.
    pub(crate) fn end(&self) {
        *self.ended.lock() = true;
        self.changed.notify_all();
    }

    /// Waits until it has ended; false if `interrupt` was raised first.
    pub(crate) fn wait(self: &Arc<Self>, interrupt: &Interrupt) -> bool {
        let waker: Arc<dyn Wake> = Arc::clone(self) as Arc<dyn Wake>;
        let _registration = interrupt.register(waker);
        let mut ended = self.ended.lock();
        while !*ended {
            if interrupt.is_raised() {
                return false;
            }
            self.changed.wait(&mut ended);
        }
        true
    }
}

impl Wake for Flight {
    fn wake(&self) {
        // Whoever waits has either seen the raised flag or is inside `wait` by the time this lock is had.
        drop(self.ended.lock());
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_waiter_ends_with_the_flight_or_with_its_interrupt() {
        let flight = Arc::new(Flight::default());
        let interrupt = Interrupt::new();
        thread::scope(|scope| {
            let interrupted = scope.spawn(|| flight.wait(&interrupt));
            let patient = scope.spawn(|| flight.wait(&Interrupt::never()));
            interrupt.raise();
            assert!(!interrupted.join().expect("it does not panic"));
            flight.end();
            assert!(patient.join().expect("it does not panic"));
        });
        assert!(flight.wait(&Interrupt::never()));
    }
}
