//! A request in flight, and the operations that wait for it instead of sending their own, or before
//! they do.
//!
//! Owns the waiting. Must not know what is asked.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use curt_rpc::client::{Interrupt, Wake};
use parking_lot::{Condvar, Mutex};

use crate::identity::InodeId;

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InFlightEnd {
    /// The server answered, or the operation that sent it ended: the others decide anew.
    Done,
    /// The server was silent for as long as `softreval` waits.
    Silent,
}

/// One request in flight.
#[derive(Debug, Default)]
pub(crate) struct InFlightCall {
    ended: Mutex<Option<InFlightEnd>>,
    changed: Condvar,
}

/// A mount's requests in flight, by inode. Few at a time, so none takes room in an inode.
#[derive(Debug, Default)]
pub(crate) struct SingleFlight(Mutex<HashMap<InodeId, Arc<InFlightCall>>>);

/// A request that its owner has to send, and others may wait for. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct InFlightOwner<'a> {
    table: &'a SingleFlight,
    id: InodeId,
    call: Arc<InFlightCall>,
    pub(crate) end: InFlightEnd,
}

impl SingleFlight {
    /// The request about `id` that is in flight.
    pub(crate) fn under_way(&self, id: InodeId) -> Option<Arc<InFlightCall>> {
        self.0.lock().get(&id).map(Arc::clone)
    }

    /// Joins the request about `id` that is in flight, or begins one.
    pub(crate) fn join(&self, id: InodeId) -> Result<Arc<InFlightCall>, InFlightOwner<'_>> {
        match self.0.lock().entry(id) {
            Entry::Occupied(flight) => Ok(Arc::clone(flight.get())),
            Entry::Vacant(place) => {
                let flight = Arc::clone(place.insert(Arc::default()));
                Err(InFlightOwner { table: self, id, call: flight, end: InFlightEnd::Done })
            }
        }
    }
}

/// Removals that are under way, and are waited for together.
#[derive(Debug, Default)]
pub(crate) struct PendingRemovals {
    count: u32,
    /// Lands with the last of them.
    call: Option<Arc<InFlightCall>>,
}

impl PendingRemovals {
    /// One more begins.
    pub(crate) fn begin(&mut self) {
        self.count += 1;
        self.call.get_or_insert_default();
    }

    /// One ended; what is to be ended with it if that was the last.
    #[must_use]
    pub(crate) fn end(&mut self) -> Option<Arc<InFlightCall>> {
        self.count = self.count.saturating_sub(1);
        self.call.take_if(|_| self.count == 0)
    }

    /// What to wait for, if there are any.
    pub(crate) fn under_way(&self) -> Option<Arc<InFlightCall>> {
        self.call.clone()
    }
}

impl Drop for PendingRemovals {
    /// What was taken for a file turned out to be none: those who wait for the removals find that
    /// out themselves.
    fn drop(&mut self) {
        if let Some(flight) = self.call.take() {
            flight.end(InFlightEnd::Done);
        }
    }
}

impl Drop for InFlightOwner<'_> {
    fn drop(&mut self) {
        self.table.0.lock().remove(&self.id);
        self.call.end(self.end);
    }
}

impl InFlightCall {
    /// It ended.
    pub(crate) fn end(&self, landed: InFlightEnd) {
        *self.ended.lock() = Some(landed);
        self.changed.notify_all();
    }

    /// Waits until it has ended; `None` if `interrupt` was raised first.
    pub(crate) fn wait(self: &Arc<Self>, interrupt: &Interrupt) -> Option<InFlightEnd> {
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

impl Wake for InFlightCall {
    fn wake(&self) {
        // Whoever waits has either seen the raised flag or is inside `wait` by the time this lock
        // is had.
        drop(self.ended.lock());
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn removals_are_over_with_the_last_of_them() {
        let mut removals = PendingRemovals::default();
        assert!(removals.under_way().is_none());
        removals.begin();
        removals.begin();
        let waited_for = removals.under_way().expect("there are two");
        assert!(removals.end().is_none());
        removals.begin();
        assert!(removals.end().is_none());
        let last = removals.end().expect("that was the last");
        assert!(Arc::ptr_eq(&waited_for, &last));
        assert!(removals.under_way().is_none());
        removals.begin();
        let abandoned = removals.under_way().expect("there is one");
        drop(removals);
        assert_eq!(abandoned.wait(&Interrupt::never()), Some(InFlightEnd::Done));
    }

    #[test]
    fn a_waiter_ends_with_the_flight_or_with_its_interrupt() {
        let flight = Arc::new(InFlightCall::default());
        let interrupt = Interrupt::new();
        thread::scope(|scope| {
            let interrupted = scope.spawn(|| flight.wait(&interrupt));
            let patient = scope.spawn(|| flight.wait(&Interrupt::never()));
            interrupt.raise();
            assert_eq!(interrupted.join().expect("it does not panic"), None);
            flight.end(InFlightEnd::Silent);
            assert_eq!(patient.join().expect("it does not panic"), Some(InFlightEnd::Silent));
        });
        assert_eq!(flight.wait(&Interrupt::never()), Some(InFlightEnd::Silent));
    }
}
