//! How many files the clients of each address have that are locked in the kernel, too
//! (`--kernel-locks`). Each one needs a descriptor of the server.

use std::collections::{HashMap, hash_map::Entry};
use std::net::IpAddr;
use std::sync::Arc;

use curt_types::{ByteRange, LockType};
use curt_vfs::{Error, KernelLockError, KernelLocks, ProcessLock};
use parking_lot::Mutex;

/// The files of each address (for IPv6, of each /64) whose clients were the first to lock them.
#[derive(Debug, Default)]
pub(crate) struct KernelLockedFiles(Mutex<FileCounts>);

#[derive(Debug, Default)]
struct FileCounts {
    addresses: HashMap<IpAddr, usize>,
    /// The number of files of all addresses.
    total: usize,
}

/// A file of an address, until it is dropped.
struct CountedLocks {
    locks: Box<dyn KernelLocks>,
    address: IpAddr,
    files: Arc<KernelLockedFiles>,
}

impl KernelLockedFiles {
    /// Whether an address can have one more of `max` files: no more than is left for others.
    pub(crate) fn allows(&self, address: IpAddr, max: usize) -> bool {
        let counts = self.0.lock();
        let own = counts.addresses.get(&address).copied().unwrap_or(0);
        own < max.saturating_sub(counts.total)
    }

    /// Counts a file of an address.
    pub(crate) fn count(
        self: &Arc<Self>,
        address: IpAddr,
        locks: Box<dyn KernelLocks>,
    ) -> Box<dyn KernelLocks> {
        let mut counts = self.0.lock();
        *counts.addresses.entry(address).or_default() += 1;
        counts.total += 1;
        Box::new(CountedLocks { locks, address, files: Arc::clone(self) })
    }
}

impl Drop for CountedLocks {
    fn drop(&mut self) {
        let mut counts = self.files.0.lock();
        counts.total -= 1;
        if let Entry::Occupied(mut count) = counts.addresses.entry(self.address) {
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
    fn an_address_leaves_as_many_files_to_others_as_it_has() {
        let (files, max) = (Arc::new(KernelLockedFiles::default()), 256);
        let take_all = |address| {
            let mut taken = Vec::new();
            while files.allows(address, max) {
                taken.push(files.count(address, Box::new(NoLocks)));
            }
            taken
        };
        let address = |number| IpAddr::from([10, 0, 0, number]);
        let first = take_all(address(1));
        let second = take_all(address(2));
        assert_eq!((first.len(), second.len()), (128, 64));
        assert!(files.allows(address(3), max));
        drop(first);
        assert_eq!(take_all(address(2)).len(), 64, "what is free again is for all");
        drop(second);
        assert!(files.0.lock().addresses.is_empty() && files.0.lock().total == 0);
    }
}
