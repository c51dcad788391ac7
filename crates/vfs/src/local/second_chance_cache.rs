//! A bounded, concurrent cache. When a shard is full, it evicts the entries that were not used
//! since it was last full.

use hashbrown::HashTable;
use parking_lot::Mutex;

const SHARDS: usize = 16;

pub(super) struct SecondChanceCache<T> {
    shards: Box<[Mutex<HashTable<SecondChanceEntry<T>>>]>,
    per_shard_max: usize,
}

struct SecondChanceEntry<T> {
    hash: u64,
    used: bool,
    value: T,
}

impl<T> SecondChanceCache<T> {
    /// Room for `most` things.
    pub(super) fn new(most: usize) -> Self {
        Self {
            shards: std::iter::repeat_with(Mutex::default).take(SHARDS).collect(),
            per_shard_max: most / SHARDS,
        }
    }

    fn shard(&self, hash: u64) -> &Mutex<HashTable<SecondChanceEntry<T>>> {
        // The table uses the lowest bits and the highest.
        &self.shards[usize::try_from(hash >> 20).unwrap_or(0) % SHARDS]
    }

    /// Reads the value with this hash that `is` picks.
    pub(super) fn read<R>(
        &self,
        hash: u64,
        is: impl Fn(&T) -> bool,
        read: impl FnOnce(&T) -> R,
    ) -> Option<R> {
        let mut shard = self.shard(hash).lock();
        let known = shard.find_mut(hash, |known| is(&known.value))?;
        known.used = true;
        Some(read(&known.value))
    }

    /// Puts a value in the place of the one that `is` picks, if there is one.
    pub(super) fn put(&self, hash: u64, is: impl Fn(&T) -> bool, value: T) {
        let mut shard = self.shard(hash).lock();
        if let Some(known) = shard.find_mut(hash, |known| is(&known.value)) {
            known.value = value;
            return;
        }
        if shard.len() >= self.per_shard_max {
            shard.retain(|known| std::mem::take(&mut known.used));
        }
        // All of it is in use: the new one can be learnt again.
        if shard.len() >= self.per_shard_max {
            return;
        }
        let used = false;
        shard.insert_unique(hash, SecondChanceEntry { hash, used, value }, |known| known.hash);
    }

    /// Forgets the value that `is` picks.
    pub(super) fn forget(&self, hash: u64, is: impl Fn(&T) -> bool) {
        let mut shard = self.shard(hash).lock();
        if let Ok(known) = shard.find_entry(hash, |known| is(&known.value)) {
            drop(known.remove());
        }
    }

    pub(super) fn forget_all(&self) {
        for shard in &self.shards {
            shard.lock().clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(number: u64) -> u64 {
        number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    #[test]
    fn what_is_used_stays_while_the_number_is_bounded() {
        let recent = SecondChanceCache::new(SHARDS * 8);
        let put = |number: u64| recent.put(spread(number), |known| *known == number, number);
        let knows = |number: u64| {
            recent
                .read(spread(number), |known| *known == number, |_| ())
                .is_some()
        };
        put(1);
        for number in 2..2000 {
            assert!(knows(1), "after {number}");
            put(number);
        }
        let kept: usize = recent.shards.iter().map(|shard| shard.lock().len()).sum();
        assert!(kept <= SHARDS * 8, "{kept} are kept");
        recent.forget(spread(1), |known| *known == 1);
        assert!(!knows(1));
        put(3);
        recent.forget_all();
        assert!(!knows(3));
    }

    #[test]
    fn a_later_value_takes_the_place_of_an_earlier_one() {
        let recent = SecondChanceCache::new(SHARDS);
        for value in ["first", "second"] {
            recent.put(7, |_: &&str| true, value);
        }
        assert_eq!(recent.read(7, |_| true, |value| *value), Some("second"));
    }
}
