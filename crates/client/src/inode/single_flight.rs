//! The requests of a mount that operations share or wait for.

use std::sync::Arc;

use crate::api::InodeId;

/// The result of a request in flight.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum InFlightEnd {
    /// The request or the operation that sent it has ended: the waiters decide again.
    #[default]
    Done,
    /// The server did not respond within the time of `softreval`.
    Silent,
}

/// One request in flight.
pub(crate) type InodeFlight = curt_sync::InFlightCall<InFlightEnd>;

/// A mount's requests in flight, by inode. Few at a time, so they are not stored in the inodes.
pub(crate) type InodeFlights = curt_sync::SingleFlight<InodeId, InFlightEnd>;

/// Removals in flight, whose end is awaited together.
#[derive(Debug, Default)]
pub(crate) struct PendingRemovals {
    count: u32,
    /// Ends with the last of them.
    call: Option<Arc<InodeFlight>>,
}

impl PendingRemovals {
    /// Begins a removal.
    pub(crate) fn begin(&mut self) {
        self.count += 1;
        self.call.get_or_insert_default();
    }

    /// Ends a removal; returns the call that the caller must end if this was the last one.
    #[must_use]
    pub(crate) fn end(&mut self) -> Option<Arc<InodeFlight>> {
        self.count = self.count.saturating_sub(1);
        self.call.take_if(|_| self.count == 0)
    }

    /// The call that ends with the last removal in flight, if any.
    pub(crate) fn in_progress(&self) -> Option<Arc<InodeFlight>> {
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

#[cfg(test)]
mod tests {
    use curt_rpc::client::Interrupt;

    use super::*;

    #[test]
    fn pending_removals_end_with_the_last_one() {
        let mut removals = PendingRemovals::default();
        assert!(removals.in_progress().is_none());
        removals.begin();
        removals.begin();
        let waited_for = removals.in_progress().expect("there are two");
        assert!(removals.end().is_none());
        removals.begin();
        assert!(removals.end().is_none());
        let last = removals.end().expect("that was the last");
        assert!(Arc::ptr_eq(&waited_for, &last));
        assert!(removals.in_progress().is_none());
        removals.begin();
        let abandoned = removals.in_progress().expect("there is one");
        drop(removals);
        assert_eq!(abandoned.wait(&Interrupt::never()), Some(InFlightEnd::Done));
    }
}
