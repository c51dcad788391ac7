//! A bounded, sharded cache with the CLOCK algorithm (second chance): when a shard is full, it
//! evicts the values that were not used since it was last full.
//!
//! A value contains its key. A look-up takes a value that hashes like the key, so the key may be
//! borrowed in parts. Reading a value takes the lock of a shard, and allocates no memory.

use std::{
    hash::{BuildHasher, Hash, RandomState},
    sync::atomic::{AtomicUsize, Ordering},
};

use hashbrown::HashTable;
use parking_lot::{Mutex, MutexGuard};

const SHARDS: usize = 16;

type Shard<T> = Mutex<HashTable<Slot<T>>>;

/// The cache.
#[derive(Debug)]
pub struct ClockCache<T, S = RandomState> {
    hasher: S,
    shards: Box<[Shard<T>]>,
    per_shard_max: usize,
    /// Number of values. It orders no other memory.
    len: AtomicUsize,
}

#[derive(Debug)]
struct Slot<T> {
    hash: u64,
    used: bool,
    value: T,
}

impl<T, S: BuildHasher + Default> ClockCache<T, S> {
    /// A cache for at most `most` values; below 16 it caches none.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            hasher: S::default(),
            shards: std::iter::repeat_with(Mutex::default).take(SHARDS).collect(),
            per_shard_max: most / SHARDS,
            len: AtomicUsize::new(0),
        }
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, HashTable<Slot<T>>> {
        // The hash table uses the lowest and the highest bits.
        self.shards[usize::try_from(hash >> 20).unwrap_or(0) % SHARDS].lock()
    }

    /// Number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Whether there is no value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads the value with this key for which `is` returns true, and marks it as used.
    pub fn read<R>(&self, key: impl Hash, is: impl Fn(&T) -> bool, read: impl FnOnce(&T) -> R) -> Option<R> {
        let hash = self.hasher.hash_one(key);
        let mut shard = self.shard(hash);
        let slot = shard.find_mut(hash, |slot| is(&slot.value))?;
        slot.used = true;
        Some(read(&slot.value))
    }

    /// Inserts a value, in place of the one for which `is` returns true. If all other values of its
    /// shard are in use, the value is not cached. Returns whether the cache was empty before.
    pub fn put(&self, key: impl Hash, is: impl Fn(&T) -> bool, value: T) -> bool {
        let hash = self.hasher.hash_one(key);
        let mut shard = self.shard(hash);
        if let Some(slot) = shard.find_mut(hash, |slot| is(&slot.value)) {
            let former = std::mem::replace(&mut slot.value, value);
            drop(shard);
            drop(former);
            return false;
        }
        let evicted = if shard.len() >= self.per_shard_max { take_unused(&mut shard) } else { Vec::new() };
        let has_room = shard.len() < self.per_shard_max;
        let is_first = has_room && {
            let used = false;
            shard.insert_unique(hash, Slot { hash, used, value }, |slot| slot.hash);
            self.len.fetch_add(1, Ordering::Relaxed) == 0
        };
        drop(shard);
        self.len.fetch_sub(evicted.len(), Ordering::Relaxed);
        is_first
    }

    /// Removes the value for which `is` returns true.
    pub fn remove(&self, key: impl Hash, is: impl Fn(&T) -> bool) {
        let hash = self.hasher.hash_one(key);
        let mut shard = self.shard(hash);
        let Ok(slot) = shard.find_entry(hash, |slot| is(&slot.value)) else {
            return;
        };
        let (removed, _) = slot.remove();
        drop(shard);
        self.len.fetch_sub(1, Ordering::Relaxed);
        drop(removed);
    }

    /// Removes all values that were not used since the last call.
    pub fn sweep(&self) {
        for shard in &self.shards {
            let unused = take_unused(&mut shard.lock());
            self.len.fetch_sub(unused.len(), Ordering::Relaxed);
        }
    }

    /// Removes all values.
    pub fn clear(&self) {
        for shard in &self.shards {
            let all = std::mem::take(&mut *shard.lock());
            self.len.fetch_sub(all.len(), Ordering::Relaxed);
        }
    }
}

/// Removes the values that were not used since the last call. They are returned to be dropped
/// without the lock.
fn take_unused<T>(shard: &mut HashTable<Slot<T>>) -> Vec<Slot<T>> {
    shard.extract_if(|slot| !std::mem::take(&mut slot.used)).collect()
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread};

    use super::*;

    fn put(cache: &ClockCache<u64>, number: u64) -> bool {
        cache.put(number, |known| *known == number, number)
    }

    fn knows(cache: &ClockCache<u64>, number: u64) -> bool {
        cache.read(number, |known| *known == number, |_| ()).is_some()
    }

    fn counted<T>(cache: &ClockCache<T>) -> usize {
        cache.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    #[test]
    fn what_is_used_stays_while_the_number_is_bounded() {
        let cache = ClockCache::<_>::new(SHARDS * 8);
        assert!(put(&cache, 1), "it is the first");
        for number in 2..2000 {
            assert!(knows(&cache, 1), "after {number}");
            assert!(!put(&cache, number));
        }
        assert!(counted(&cache) <= SHARDS * 8);
        assert_eq!(cache.len(), counted(&cache));
        cache.remove(1_u64, |known| *known == 1);
        assert!(!knows(&cache, 1));
        put(&cache, 3);
        cache.clear();
        assert!(!knows(&cache, 3) && cache.is_empty());
    }

    #[test]
    fn a_later_value_takes_the_place_of_an_earlier_one() {
        let cache = ClockCache::<_>::new(SHARDS);
        for value in ["first", "second"] {
            cache.put(7, |_: &&str| true, value);
        }
        assert_eq!(cache.read(7, |_| true, |value| *value), Some("second"));
        assert_eq!(cache.len(), 1);
    }

    #[test]
    fn a_sweep_removes_what_was_not_used_since_the_last() {
        let cache = ClockCache::<_>::new(1000);
        let (used, idle) = (Arc::new(1), Arc::new(2));
        for value in [&used, &idle] {
            cache.put(**value, |known| known == value, Arc::clone(value));
        }
        for _ in 0..3 {
            assert!(cache.read(1, |known| *known == used, |_| ()).is_some());
            cache.sweep();
            assert_eq!((Arc::strong_count(&used), Arc::strong_count(&idle)), (2, 1));
        }
        cache.sweep();
        assert_eq!((Arc::strong_count(&used), cache.len()), (1, 0));
    }

    #[test]
    fn a_cache_without_room_keeps_nothing() {
        let cache = ClockCache::<_>::new(0);
        assert!(!put(&cache, 1));
        assert!(!knows(&cache, 1) && cache.is_empty());
    }

    #[test]
    fn threads_that_put_and_remove_at_once_lose_no_count() {
        let cache = ClockCache::<_>::new(SHARDS * 4);
        thread::scope(|scope| {
            for thread in 0..4 {
                let cache = &cache;
                scope.spawn(move || {
                    for number in 0..2000 {
                        put(cache, number);
                        knows(cache, number / 2);
                        cache.remove(number ^ thread, |known| *known == number ^ thread);
                        if number % 500 == 0 {
                            cache.sweep();
                        }
                    }
                });
            }
        });
        assert_eq!(cache.len(), counted(&cache));
        cache.clear();
        assert!(cache.is_empty());
    }
}
