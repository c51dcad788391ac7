//! Requests in flight, and the callers that share one or wait for its end.
//!
//! Owns the waiting. Does not depend on what is requested: `K` names a request, `E` says how it
//! ended.

use std::{
    collections::{HashMap, hash_map::Entry},
    hash::Hash,
    sync::Arc,
};

use parking_lot::{Condvar, Mutex};

use crate::{Interrupt, Wake};

/// One request in flight.
#[derive(Debug)]
pub struct InFlightCall<E> {
    ended: Mutex<Option<E>>,
    changed: Condvar,
}

/// The requests in flight, one for each key.
#[derive(Debug)]
pub struct SingleFlight<K, E>(Mutex<HashMap<K, Arc<InFlightCall<E>>>>);

/// A request that its owner must send and others may wait for. Dropping it ends the request.
#[derive(Debug)]
pub struct InFlightOwner<'a, K: Copy + Eq + Hash, E: Copy> {
    table: &'a SingleFlight<K, E>,
    key: K,
    call: Arc<InFlightCall<E>>,
    /// The result for the waiters.
    pub end: E,
}

impl<K, E> Default for SingleFlight<K, E> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Copy + Eq + Hash, E: Copy + Default> SingleFlight<K, E> {
    /// The request in flight for `key`.
    #[must_use]
    pub fn in_progress(&self, key: K) -> Option<Arc<InFlightCall<E>>> {
        self.0.lock().get(&key).map(Arc::clone)
    }

    /// Joins the request in flight for `key`.
    ///
    /// # Errors
    /// There is none: the caller owns it now.
    pub fn join(&self, key: K) -> Result<Arc<InFlightCall<E>>, InFlightOwner<'_, K, E>> {
        match self.0.lock().entry(key) {
            Entry::Occupied(call) => Ok(Arc::clone(call.get())),
            Entry::Vacant(place) => {
                let call = Arc::clone(place.insert(Arc::default()));
                Err(InFlightOwner { table: self, key, call, end: E::default() })
            }
        }
    }
}

impl<K: Copy + Eq + Hash, E: Copy> Drop for InFlightOwner<'_, K, E> {
    fn drop(&mut self) {
        self.table.0.lock().remove(&self.key);
        self.call.end(self.end);
    }
}

impl<E> Default for InFlightCall<E> {
    fn default() -> Self {
        Self { ended: Mutex::new(None), changed: Condvar::new() }
    }
}

impl<E: Copy> InFlightCall<E> {
    /// Ends the request and wakes the waiters.
    pub fn end(&self, end: E) {
        *self.ended.lock() = Some(end);
        self.changed.notify_all();
    }
}

impl<E: Copy + Send + 'static> InFlightCall<E> {
    /// Waits for the end of the request; `None` if `interrupt` was raised first.
    pub fn wait(self: &Arc<Self>, interrupt: &Interrupt) -> Option<E> {
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

impl<E: Send> Wake for InFlightCall<E> {
    fn wake(&self) {
        // When this lock is taken, a waiter has either seen the raised flag or is asleep in `wait`.
        drop(self.ended.lock());
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_waiter_returns_at_the_end_of_the_call_or_at_its_interrupt() {
        let call = Arc::new(InFlightCall::<u8>::default());
        let interrupt = Interrupt::new();
        thread::scope(|scope| {
            let interrupted = scope.spawn(|| call.wait(&interrupt));
            let patient = scope.spawn(|| call.wait(&Interrupt::never()));
            interrupt.raise();
            assert_eq!(interrupted.join().expect("it does not panic"), None);
            call.end(7);
            assert_eq!(patient.join().expect("it does not panic"), Some(7));
        });
        assert_eq!(call.wait(&Interrupt::never()), Some(7));
    }

    #[test]
    fn the_first_caller_of_a_key_owns_the_request_until_it_is_dropped() {
        let calls = SingleFlight::<u8, u8>::default();
        let Err(mut owner) = calls.join(1) else { panic!("there was no other") };
        let (joined, seen) = (calls.join(1).ok(), calls.in_progress(1));
        assert!(calls.join(2).is_err(), "another key has another request");
        owner.end = 5;
        drop(owner);
        for call in [joined, seen] {
            assert_eq!(call.expect("it was in flight").wait(&Interrupt::never()), Some(5));
        }
        assert!(calls.in_progress(1).is_none() && calls.join(1).is_err());
    }
}
