//! Counts the bytes of all files that the server does not have on stable storage, and blocks
//! writers above a bound.
//!
//! Owns one bound of a mount. Invariant: held and reserved bytes together never exceed the bound,
//! except for a single write that is larger than the bound. Must not know files.

use std::sync::Arc;

use curt_rpc::client::Interrupt;

use super::monitor::{Monitor, WaitInterrupted};

/// Unwritten bytes of one mount.
#[derive(Debug)]
pub(super) struct DirtyLimit {
    totals: Arc<Monitor<DirtyTotals>>,
    limit: u64,
}

#[derive(Debug, Default)]
struct DirtyTotals {
    held: u64,
    reserved: u64,
}

impl DirtyTotals {
    fn reserve(&mut self, bytes: u64, limit: u64) -> bool {
        let used = self.held + self.reserved;
        let fits = used == 0 || used.saturating_add(bytes) <= limit;
        if fits {
            self.reserved += bytes;
        }
        fits
    }
}

/// Room reserved for bytes that are about to be written. It is released on drop; by then the bytes
/// are counted as held.
#[derive(Debug)]
pub(super) struct DirtyReservation<'a> {
    limit: &'a DirtyLimit,
    bytes: u64,
}

impl DirtyLimit {
    pub(super) fn new(limit: u64) -> Self {
        Self { totals: Arc::new(Monitor::new(DirtyTotals::default())), limit }
    }

    /// Bytes held now.
    pub(super) fn held(&self) -> u64 {
        self.totals.lock().held
    }

    /// More than half of the bound is used: write-back starts.
    pub(super) fn is_half_full(&self) -> bool {
        self.held() > self.limit / 2
    }

    /// Reserves room if it is available.
    pub(super) fn try_reserve(&self, bytes: u64) -> Option<DirtyReservation<'_>> {
        let fits = self.totals.lock().reserve(bytes, self.limit);
        fits.then(|| DirtyReservation { limit: self, bytes })
    }

    /// Waits for room.
    pub(super) fn reserve(
        &self,
        bytes: u64,
        interrupt: &Interrupt,
    ) -> Result<DirtyReservation<'_>, WaitInterrupted> {
        let limit = self.limit;
        self.totals.wait_for(interrupt, |totals| totals.reserve(bytes, limit).then_some(()))?;
        Ok(DirtyReservation { limit: self, bytes })
    }

    /// Accounts for a file that held `before` bytes and holds `after` now.
    pub(super) fn change(&self, before: u64, after: u64) {
        if before == after {
            return;
        }
        let mut totals = self.totals.lock();
        totals.held = totals.held + after - before;
        if after < before {
            self.totals.notify_all();
        }
    }
}

impl Drop for DirtyReservation<'_> {
    fn drop(&mut self) {
        self.limit.totals.lock().reserved -= self.bytes;
        self.limit.totals.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_reserved_up_to_the_bound_and_for_one_write_above_it() {
        let limit = DirtyLimit::new(100);
        assert!(limit.try_reserve(101).is_some());
        let first = limit.try_reserve(60).expect("there is room");
        assert!(limit.try_reserve(41).is_none());
        let second = limit.try_reserve(40);
        assert!(second.is_some());
        limit.change(0, 60);
        drop(first);
        assert!(limit.try_reserve(1).is_none());
        limit.change(60, 0);
        assert!(limit.try_reserve(60).is_some());
    }

    #[test]
    fn a_wait_for_room_can_be_interrupted() {
        let limit = DirtyLimit::new(10);
        limit.change(0, 10);
        let interrupt = Interrupt::new();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| limit.reserve(1, &interrupt).map(drop));
            interrupt.raise();
            assert_eq!(waiter.join().expect("no panic"), Err(WaitInterrupted));
        });
    }
}
