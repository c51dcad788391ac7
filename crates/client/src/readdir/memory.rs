//! The memory of listed names in one mount: its bound, and the order of eviction, least recently
//! used first, one reply's names at a time.
//!
//! A reader holds the names at its position, and they are counted until it moves on. The lock here
//! is never held while another is taken.

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use curt_observe::{ClientCounter, ClientCounters};
use parking_lot::Mutex;

use super::cache::DirectoryListing;

/// The largest reply is this fraction of the bound, so that there is room for several readers.
const REPLY_FRACTION: u64 = 8;

/// At most this fraction of the bound is for listings that cannot be read again piece by piece.
const PINNED_FRACTION: u64 = 4;

/// The queue is not compacted below this number of entries.
const COMPACT_MIN: usize = 1024;

/// The bound and the memory in use.
pub(crate) struct ListingMemory {
    limit: u64,
    used: AtomicU64,
    pinned: AtomicU64,
    /// Counts uses; a later use has a larger number.
    uses: AtomicU64,
    lru: Mutex<ListingLru>,
    pub(super) counters: Arc<ClientCounters>,
}

/// The cached chunks, least recently used first. Entries of dropped listings are removed when the
/// queue is as long as `compact_at`: a mount whose directories change all the time creates listings
/// without ever reaching its bound.
#[derive(Default)]
struct ListingLru {
    entries: VecDeque<ListingLruEntry>,
    compact_at: usize,
}

/// A reply's names, with the time of their last use when they were queued.
struct ListingLruEntry {
    listing: Weak<DirectoryListing>,
    slot: usize,
    used_at: u64,
}

/// Bytes that are counted until this is dropped.
#[derive(Debug)]
pub(crate) struct ListingMemoryCharge {
    memory: Arc<ListingMemory>,
    pub(super) bytes: u64,
    is_pinned: bool,
}

impl ListingMemory {
    /// A memory of at most `limit` bytes.
    pub(crate) fn new(limit: u64, counters: Arc<ClientCounters>) -> Arc<Self> {
        Arc::new(Self {
            limit,
            used: AtomicU64::new(0),
            pinned: AtomicU64::new(0),
            uses: AtomicU64::new(0),
            lru: Mutex::default(),
            counters,
        })
    }

    /// Bytes in use.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// The maximum bytes that a reply should have.
    pub(crate) fn reply_max(&self) -> u32 {
        u32::try_from(self.limit / REPLY_FRACTION).unwrap_or(u32::MAX)
    }

    /// The number of a use that happens now.
    pub(crate) fn next_use(&self) -> u64 {
        self.uses.fetch_add(1, Relaxed)
    }

    /// Counts bytes as in use, even above the bound.
    pub(crate) fn charge(self: &Arc<Self>, bytes: u64) -> ListingMemoryCharge {
        self.used.fetch_add(bytes, Relaxed);
        ListingMemoryCharge { memory: Arc::clone(self), bytes, is_pinned: false }
    }

    /// Reserves memory if `bytes` do not exceed the bound; nothing is evicted for them before
    /// [`Self::shrink`].
    pub(crate) fn reserve(self: &Arc<Self>, bytes: u64) -> Option<ListingMemoryCharge> {
        (bytes <= self.limit).then(|| self.charge(bytes))
    }

    /// Exempts bytes that are in use from eviction. `None` if too many are exempt.
    pub(crate) fn pin(self: &Arc<Self>, bytes: u64) -> Option<ListingMemoryCharge> {
        let pinned = self.pinned.fetch_add(bytes, Relaxed) + bytes;
        let charge = ListingMemoryCharge { memory: Arc::clone(self), bytes, is_pinned: true };
        (pinned <= self.limit / PINNED_FRACTION).then_some(charge)
    }

    /// A reply's names were added to `listing`. Evicts names above the bound.
    pub(crate) fn added(&self, listing: Weak<DirectoryListing>, slot: usize, used_at: u64) {
        let mut lru = self.lru.lock();
        lru.entries.push_back(ListingLruEntry { listing, slot, used_at });
        if lru.entries.len() >= lru.compact_at.max(COMPACT_MIN) {
            lru.entries.retain(|entry| entry.listing.strong_count() > 0);
            lru.compact_at = lru.entries.len() * 2;
        }
        drop(lru);
        self.shrink();
    }

    /// Evicts the least recently used names until the bound holds.
    pub(crate) fn shrink(&self) {
        // Each entry is examined at most twice: the first time it may have been used since.
        let mut looks = self.lru.lock().entries.len() * 2;
        while self.used() > self.limit && looks > 0 {
            looks -= 1;
            let Some(oldest) = self.lru.lock().entries.pop_front() else {
                return;
            };
            let Some(listing) = oldest.listing.upgrade() else {
                continue;
            };
            match listing.evict(oldest.slot, oldest.used_at) {
                Ok(gone) => {
                    let count = u64::from(gone.is_some());
                    self.counters.add(ClientCounter::ListingEvicted, count);
                }
                Err(used_at) => {
                    let entry = ListingLruEntry { used_at, ..oldest };
                    self.lru.lock().entries.push_back(entry);
                }
            }
        }
    }
}

impl Drop for ListingMemoryCharge {
    fn drop(&mut self) {
        let memory = &self.memory;
        let counter = if self.is_pinned { &memory.pinned } else { &memory.used };
        counter.fetch_sub(self.bytes, Relaxed);
    }
}

impl fmt::Debug for ListingMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ListingMemory({} of {})", self.used(), self.limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(memory: &Arc<ListingMemory>) -> Arc<DirectoryListing> {
        let listing = DirectoryListing::from_start(memory);
        memory.added(Arc::downgrade(&listing), 0, memory.next_use());
        listing
    }

    #[test]
    fn listings_that_are_gone_leave_the_queue_although_there_is_room() {
        let memory = ListingMemory::new(1 << 20, Arc::default());
        let kept: Vec<_> = (0..COMPACT_MIN).map(|_| add(&memory)).collect();
        for _ in 0..20 * COMPACT_MIN {
            drop(add(&memory));
        }
        let lru = memory.lru.lock();
        assert!(lru.entries.len() <= 2 * COMPACT_MIN, "{}", lru.entries.len());
        let live = lru.entries.iter().filter(|entry| entry.listing.strong_count() > 0);
        assert_eq!(live.count(), kept.len(), "what is kept stays in the queue");
    }
}
