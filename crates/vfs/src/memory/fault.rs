//! Injected errors, for tests of a server or a client when a disk fails.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::error::Error;

/// The operations that an injected fault affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultPoint {
    /// Reading attributes.
    Attributes,
    /// Looking up a name.
    Lookup,
    /// Reading data.
    Read,
    /// Writing data.
    Write,
    /// Making data durable.
    Commit,
    /// Listing a directory.
    ReadDirectory,
    /// Any other change.
    Change,
}

/// The faults to inject.
#[derive(Default)]
pub(super) struct InjectedFaults {
    waiting: Mutex<Vec<(FaultPoint, Error, u32)>>,
    /// Number of injected faults with lost data.
    losses: AtomicU64,
}

impl InjectedFaults {
    pub(super) fn add(&self, point: FaultPoint, error: Error, times: u32) {
        self.waiting.lock().push((point, error, times));
    }

    pub(super) fn inject(&self, point: FaultPoint) -> Result<(), Error> {
        let mut waiting = self.waiting.lock();
        let Some(at) = waiting.iter().position(|(of, _, times)| *of == point && *times > 0) else {
            return Ok(());
        };
        let (_, error, times) = &mut waiting[at];
        let error = *error;
        *times -= 1;
        if *times == 0 {
            waiting.remove(at);
        }
        if let Error::Lost(_) = error {
            self.losses.fetch_add(1, Ordering::SeqCst);
        }
        Err(error)
    }

    pub(super) fn losses(&self) -> u64 {
        self.losses.load(Ordering::SeqCst)
    }
}
