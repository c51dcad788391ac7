//! The memory that listed names take in one mount.
//!
//! Owns the bound and the order of eviction: least recently used first, one reply's names at a
//! time. A reader keeps the names at its position alive, and they count until it moves on. The lock
//! here is never held while another is taken.

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use curt_trace::{ClientCounter, ClientCounters};
use parking_lot::Mutex;

/// A reply's names take at most this part of the bound, so that several readers have room.
const REPLY_FRACTION: u64 = 8;

/// Of the bound, this part at most is for listings that cannot be read again piece by piece.
const PINNED_FRACTION: u64 = 4;

/// Replies' worths that may be in the line before those of dropped listings are looked for.
const COMPACT_MIN: usize = 1024;

/// The bound, and what is kept under it.
pub(crate) struct ListingMemory {
    limit: u64,
    used: AtomicU64,
    pinned: AtomicU64,
    /// Counts uses; what was used later has the larger number.
    uses: AtomicU64,
    lru: Mutex<ListingLru>,
    counters: Arc<ClientCounters>,
}

/// A listing whose replies' worths of names can go one by one.
pub(crate) trait EvictNames: Send + Sync {
    /// Evicts the names at `place` unless they were used after `used_at`; whether there were any.
    ///
    /// # Errors
    /// When they were used since.
    fn evict_names(&self, place: usize, used_at: u64) -> Result<bool, u64>;
}

/// What is kept, the longest unused first.
#[derive(Default)]
struct ListingLru {
    entries: VecDeque<ListingLruEntry>,
    /// Those whose listing is gone leave when the line is as long as this: a mount whose
    /// directories change all the time makes listings for ever without coming near its bound.
    compact_at: usize,
}

/// A reply's worth of names, by when it was used when it was put into the line.
struct ListingLruEntry {
    listing: Weak<dyn EvictNames>,
    place: usize,
    used_at: u64,
}

/// Bytes that count until this is dropped.
pub(crate) struct ListingMemoryCharge {
    memory: Arc<ListingMemory>,
    bytes: u64,
    is_pinned: bool,
}

impl ListingMemory {
    /// At most `limit` bytes.
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

    /// Bytes that a reply should have at most.
    pub(crate) fn reply_max(&self) -> u32 {
        u32::try_from(self.limit / REPLY_FRACTION).unwrap_or(u32::MAX)
    }

    /// A reply that was asked for ahead of its readers is wanted by none of them.
    pub(crate) fn wasted(&self) {
        self.counters.count(ClientCounter::ListingAheadWasted);
    }

    /// Something is used now.
    pub(crate) fn next_use(&self) -> u64 {
        self.uses.fetch_add(1, Relaxed)
    }

    /// Bytes are in use from now on, whatever the bound.
    pub(crate) fn charge(self: &Arc<Self>, bytes: u64) -> ListingMemoryCharge {
        self.used.fetch_add(bytes, Relaxed);
        ListingMemoryCharge {
            memory: Arc::clone(self),
            bytes,
            is_pinned: false,
        }
    }

    /// Bytes are to be used, if the bound has so many; nothing goes for them before
    /// [`Self::shrink`].
    pub(crate) fn reserve(self: &Arc<Self>, bytes: u64) -> Option<ListingMemoryCharge> {
        (bytes <= self.limit).then(|| self.charge(bytes))
    }

    /// Bytes that are in use already shall not go. `None` if too many may not.
    pub(crate) fn pin(self: &Arc<Self>, bytes: u64) -> Option<ListingMemoryCharge> {
        let pinned = self.pinned.fetch_add(bytes, Relaxed) + bytes;
        let charge = ListingMemoryCharge {
            memory: Arc::clone(self),
            bytes,
            is_pinned: true,
        };
        (pinned <= self.limit / PINNED_FRACTION).then_some(charge)
    }

    /// A reply's names were added to `listing`: it takes its place in the line, and what is over
    /// the bound goes.
    pub(crate) fn added(&self, listing: Weak<dyn EvictNames>, place: usize, used_at: u64) {
        self.lru.lock().push(ListingLruEntry {
            listing,
            place,
            used_at,
        });
        self.shrink();
    }

    /// Lets the oldest go until the bound holds.
    pub(crate) fn shrink(&self) {
        // Each is looked at twice at most: once to see that it was used since.
        let mut looks = self.lru.lock().entries.len() * 2;
        while self.used() > self.limit && looks > 0 {
            looks -= 1;
            let Some(oldest) = self.lru.lock().entries.pop_front() else {
                return;
            };
            let Some(sequence) = oldest.listing.upgrade() else {
                continue;
            };
            match sequence.evict_names(oldest.place, oldest.used_at) {
                Ok(is_gone) => self
                    .counters
                    .add(ClientCounter::ListingEvicted, u64::from(is_gone)),
                Err(used_at) => self
                    .lru
                    .lock()
                    .entries
                    .push_back(ListingLruEntry { used_at, ..oldest }),
            }
        }
    }
}

impl ListingLru {
    fn push(&mut self, aged: ListingLruEntry) {
        self.entries.push_back(aged);
        if self.entries.len() >= self.compact_at.max(COMPACT_MIN) {
            self.entries.retain(|aged| aged.listing.strong_count() > 0);
            self.compact_at = self.entries.len() * 2;
        }
    }
}

impl ListingMemoryCharge {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for ListingMemoryCharge {
    fn drop(&mut self) {
        let counter = if self.is_pinned {
            &self.memory.pinned
        } else {
            &self.memory.used
        };
        counter.fetch_sub(self.bytes, Relaxed);
    }
}

impl fmt::Debug for ListingMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListingMemory")
            .field("limit", &self.limit)
            .field("used", &self.used)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ListingMemoryCharge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Charge").field(&self.bytes).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A listing without names.
    struct Empty;

    impl EvictNames for Empty {
        fn evict_names(&self, _: usize, _: u64) -> Result<bool, u64> {
            Ok(false)
        }
    }

    fn add(memory: &ListingMemory, listing: &Arc<Empty>) {
        memory.added(Arc::<Empty>::downgrade(listing), 0, memory.next_use());
    }

    #[test]
    fn listings_that_are_gone_leave_the_line_although_there_is_room() {
        let memory = ListingMemory::new(1 << 20, Arc::default());
        let kept: Vec<_> = (0..COMPACT_MIN).map(|_| Arc::new(Empty)).collect();
        for listing in &kept {
            add(&memory, listing);
        }
        for _ in 0..20 * COMPACT_MIN {
            add(&memory, &Arc::new(Empty));
        }
        let line = memory.lru.lock();
        assert!(line.entries.len() <= 2 * COMPACT_MIN, "{}", line.entries.len());
        let live = line.entries.iter().filter(|aged| aged.listing.strong_count() > 0);
        assert_eq!(live.count(), COMPACT_MIN, "what is kept stays in the line");
    }
}
