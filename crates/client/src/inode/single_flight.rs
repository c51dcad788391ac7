//! A request in flight, and the operations that share it or wait for its end.
//!
//! Owns the waiting. Must not know the contents of requests.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use curt_rpc::client::{Interrupt, Wake};
use parking_lot::{Condvar, Mutex};

use crate::api::InodeId;

/// The result of a request in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InFlightEnd {
    /// The request or the operation that sent it has ended: the waiters decide again.
    Done,
    /// The server did not respond within the time of `softreval`.
    Silent,
}

/// One request in flight.
#[derive(Debug, Default)]
pub(crate) struct InFlightCall {
    ended: Mutex<Option<InFlightEnd>>,
    changed: Condvar,
}

/// A mount's requests in flight, by inode. Few at a time, so they are not stored in the inodes.
#[derive(Debug, Default)]
pub(crate) struct SingleFlight(Mutex<HashMap<InodeId, Arc<InFlightCall>>>);

/// A request that its owner must send and others may wait for. Dropping it ends the request.
#[derive(Debug)]
pub(crate) struct InFlightOwner<'a> {
    table: &'a SingleFlight,
    id: InodeId,
    call: Arc<InFlightCall>,
    pub(crate) end: InFlightEnd,
}

impl SingleFlight {
    /// The request in flight for `id`.
    pub(crate) fn under_way(&self, id: InodeId) -> Option<Arc<InFlightCall>> {
        self.0.lock().get(&id).map(Arc::clone)
    }

    /// Joins the request in flight for `id`, or begins one.
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

/// Removals in flight, whose end is awaited together.
#[derive(Debug, Default)]
pub(crate) struct PendingRemovals {
    count: u32,
    /// Ends with the last of them.
    call: Option<Arc<InFlightCall>>,
}

impl PendingRemovals {
    /// Begins a removal.
    pub(crate) fn begin(&mut self) {
        self.count += 1;
        self.call.get_or_insert_default();
    }

    /// Ends a removal; returns the call that the caller must end if this was the last one.
    #[must_use]
    pub(crate) fn end(&mut self) -> Option<Arc<InFlightCall>> {
        self.count = self.count.saturating_sub(1);
        self.call.take_if(|_| self.count == 0)
    }

    /// The call that ends with the last removal in flight, if any.
    pub(crate) fn under_way(&self) -> Option<Arc<InFlightCall>> {
        self.call.clone()
    }
}

impl Drop for PendingRemovals {
    /// The object turned out not to be a file: the waiters wake up and find that out themselves.
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
    /// Ends the request and wakes the waiters.
    pub(crate) fn end(&self, landed: InFlightEnd) {
        *self.ended.lock() = Some(landed);
        self.changed.notify_all();
    }

    /// Waits for the end of the request; `None` if `interrupt` was raised first.
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
    fn pending_removals_end_with_the_last_one() {
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
    fn a_waiter_returns_at_the_end_of_the_call_or_at_its_interrupt() {
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
