//! How many files each client has that are locked in the kernel, too (`--kernel-locks`). Each one
//! needs a descriptor of the server.

use std::collections::{HashMap, hash_map::Entry};
use std::sync::Arc;

use curt_types::{ByteRange, LockType};
use curt_vfs::{Error, KernelLockError, KernelLocks, ProcessLock};
use parking_lot::Mutex;

use crate::state::locks::LockClient;

/// The files of each client that was the first one to lock them.
#[derive(Debug, Default)]
pub(crate) struct KernelLockedFiles(Mutex<FileCounts>);

#[derive(Debug, Default)]
struct FileCounts {
    clients: HashMap<LockClient, usize>,
    /// The number of files of all clients.
    total: usize,
}

/// A file of a client, until it is dropped.
struct CountedLocks {
    locks: Box<dyn KernelLocks>,
    client: LockClient,
    files: Arc<KernelLockedFiles>,
}

impl KernelLockedFiles {
    /// Whether a client can have one more of `max` files: no more than is left for others.
    pub(crate) fn allows(&self, client: LockClient, max: usize) -> bool {
        let counts = self.0.lock();
        let own = counts.clients.get(&client).copied().unwrap_or(0);
        own < max.saturating_sub(counts.total)
    }

    /// Counts a file of a client.
    pub(crate) fn count(
        self: &Arc<Self>,
        client: LockClient,
        locks: Box<dyn KernelLocks>,
    ) -> Box<dyn KernelLocks> {
        let mut counts = self.0.lock();
        *counts.clients.entry(client).or_default() += 1;
        counts.total += 1;
        Box::new(CountedLocks { locks, client, files: Arc::clone(self) })
    }
}

impl Drop for CountedLocks {
    fn drop(&mut self) {
        let mut counts = self.files.0.lock();
        counts.total -= 1;
        if let Entry::Occupied(mut count) = counts.clients.entry(self.client) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

impl KernelLocks for CountedLocks {
    fn set(&mut self, range: ByteRange, lock_type: Option<LockType>) -> Result<(), KernelLockError> {
        self.locks.set(range, lock_type)
    }

    fn test(&self, range: ByteRange, lock_type: LockType) -> Result<Option<ProcessLock>, Error> {
        self.locks.test(range, lock_type)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct NoLocks;

    impl KernelLocks for NoLocks {
        fn set(&mut self, _: ByteRange, _: Option<LockType>) -> Result<(), KernelLockError> {
            Ok(())
        }

        fn test(&self, _: ByteRange, _: LockType) -> Result<Option<ProcessLock>, Error> {
            Ok(None)
        }
    }

    // SEMANTICS: lockd-13.
    #[test]
    fn a_client_leaves_as_many_files_to_others_as_it_has() {
        let (files, max) = (Arc::new(KernelLockedFiles::default()), 256);
        let take_all = |client| {
            let mut taken = Vec::new();
            while files.allows(client, max) {
                taken.push(files.count(client, Box::new(NoLocks)));
            }
            taken
        };
        let client = |number| LockClient::Clientid(number);
        let first = take_all(client(1));
        let second = take_all(client(2));
        assert_eq!((first.len(), second.len()), (128, 64));
        assert!(files.allows(client(3), max));
        drop(first);
        assert_eq!(take_all(client(2)).len(), 64, "what is free again is for all");
        drop(second);
        assert!(files.0.lock().clients.is_empty() && files.0.lock().total == 0);
    }
}
