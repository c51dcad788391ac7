//! A request for attributes that is under way, and those who wait for it instead of sending their own.
//!
//! Owns the waiting. Must not know what is asked.

use std::sync::Arc;

use curt_rpc::client::{Interrupt, Wake};
use parking_lot::{Condvar, Mutex};

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Landed {
    /// The server answered, or the asker went away: whoever still wants to know decides anew.
    Anyhow,
    /// The server was silent for as long as `softreval` waits.
    Silent,
}

/// One request under way.
#[derive(Debug, Default)]
pub(crate) struct Flight {
    ended: Mutex<Option<Landed>>,
    changed: Condvar,
}

impl Flight {
    /// It ended.
    pub(crate) fn end(&self, landed: Landed) {
        *self.ended.lock() = Some(landed);
        self.changed.notify_all();
    }

    /// Waits until it has ended; `None` if `interrupt` was raised first.
    pub(crate) fn wait(self: &Arc<Self>, interrupt: &Interrupt) -> Option<Landed> {
        let waker: Arc<dyn Wake> = Arc::clone(self) as Arc<dyn Wake>;
        let _registration = interrupt.register(waker);
        let mut ended = self.ended.lock();
        loop {
            if ended.is_some() {
                return *ended;
            }
            if interrupt.is_raised() {
                return None;
            }
            self.changed.wait(&mut ended);
        }
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
            assert_eq!(interrupted.join().expect("it does not panic"), None);
            flight.end(Landed::Silent);
            assert_eq!(patient.join().expect("it does not panic"), Some(Landed::Silent));
        });
        assert_eq!(flight.wait(&Interrupt::never()), Some(Landed::Silent));
    }
}
