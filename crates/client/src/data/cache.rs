//! The DataCache: bounds the clean bytes of all files and evicts the surplus.
//!
//! Owns the order of eviction, the CLOCK algorithm: the oldest segment first. A segment that was
//! read since it was last examined gets another pass. A segment that was read ahead and not yet
//! read is evicted last. The bytes themselves are in the segments of their files. Must not know why
//! they were fetched.

use std::{
    collections::VecDeque,
    ops::Range,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;

use super::{
    dirty_limit::DirtyLimit,
    file::{FileCore, lock_counted},
};

/// The bounds of one mount: unwritten and clean bytes.
#[derive(Debug)]
pub(super) struct DataBounds {
    pub(super) dirty: DirtyLimit,
    pub(super) cache: DataCache,
}

/// Clean bytes of one mount.
#[derive(Debug)]
pub(super) struct DataCache {
    limit: u64,
    held: AtomicU64,
    numbers: AtomicU64,
    queue: Mutex<EvictionQueue>,
    /// Held during eviction. Segments under examination are not in the queue: without this lock, a
    /// second eviction would find only read-ahead segments and evict them.
    dropping: Mutex<()>,
}

#[derive(Debug)]
struct EvictionQueue {
    entries: VecDeque<EvictionEntry>,
    compact_at: usize,
}

#[derive(Debug)]
struct EvictionEntry {
    file: Weak<FileCore>,
    range: Range<u64>,
    number: u64,
}

/// The queue is not compacted below this number of entries.
const COMPACT_MIN: usize = 1024;

impl DataCache {
    pub(super) fn new(limit: u64) -> Self {
        let queue = EvictionQueue { entries: VecDeque::new(), compact_at: COMPACT_MIN };
        Self {
            limit,
            held: AtomicU64::new(0),
            numbers: AtomicU64::new(0),
            queue: Mutex::new(queue),
            dropping: Mutex::new(()),
        }
    }

    /// Bytes held now.
    pub(super) fn held(&self) -> u64 {
        self.held.load(Relaxed)
    }

    /// The number for segments that become clean now.
    pub(super) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Relaxed)
    }

    /// Accounts for a file that held `before` bytes and holds `after` now.
    pub(super) fn change(&self, before: u64, after: u64) {
        if after >= before {
            self.held.fetch_add(after - before, Relaxed);
        } else {
            self.held.fetch_sub(before - after, Relaxed);
        }
    }

    /// Queues the clean segments `number` in `range` of `file`, then evicts other segments if the
    /// bound is exceeded. The caller holds no lock.
    pub(super) fn admit(bounds: &DataBounds, file: &Arc<FileCore>, range: Range<u64>, number: u64) {
        bounds.cache.enter(file, range, number);
        Self::shrink(bounds);
    }

    /// Queues the clean segments `number` in `range` of `file`. The caller holds no lock except
    /// that of the file. Segments must be queued before they are read, otherwise other segments are
    /// evicted in their place.
    pub(super) fn enter(&self, file: &Arc<FileCore>, range: Range<u64>, number: u64) {
        let entry = EvictionEntry { file: Arc::downgrade(file), range, number };
        let mut queue = self.queue.lock();
        queue.entries.push_back(entry);
        if queue.entries.len() >= queue.compact_at {
            queue.entries.retain(|entry| entry.is_live());
            queue.compact_at = (queue.entries.len() * 2).max(COMPACT_MIN);
        }
    }

    /// Evicts bytes if the bound is exceeded. The caller holds no lock.
    pub(super) fn shrink(bounds: &DataBounds) {
        let cache = &bounds.cache;
        if cache.held() <= cache.limit {
            return;
        }
        let _dropping = cache.dropping.lock();
        // The first pass clears the marks of use, the second evicts what was not used since.
        // Read-ahead segments that no reader has used are evicted only if nothing else is left.
        let pass = cache.queue.lock().entries.len();
        let mut steps = pass * 3;
        while cache.held() > cache.limit && steps > 0 {
            let Some(entry) = cache.queue.lock().entries.pop_front() else {
                break;
            };
            let spare_ahead = steps > pass;
            steps -= 1;
            let Some(file) = entry.file.upgrade() else {
                continue;
            };
            let stays =
                lock_counted(&file, bounds).segments.evict(entry.range.clone(), entry.number, spare_ahead);
            if stays {
                cache.queue.lock().entries.push_back(entry);
            }
        }
    }
}

impl EvictionEntry {
    fn is_live(&self) -> bool {
        let Some(file) = self.file.upgrade() else {
            return false;
        };
        // A file whose lock is held is checked later: the lock order is the file's state first.
        file.try_lock().is_none_or(|state| state.segments.holds_clean(self.range.clone(), self.number))
    }
}
