//! A bounded table of counts, which finds the most frequent of more keys than it can hold.
//!
//! The space-saving sketch (Metwally, Agrawal, El Abbadi 2005): a key that is not in a full table
//! replaces the one with the lowest count and inherits that count. So a count is never too small,
//! and too large by at most its [`error`](CountEstimate::error). Every key with more than one
//! `limit`th of all counts is in the table.

use std::collections::HashMap;
use std::hash::Hash;

/// The estimated count of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CountEstimate {
    /// The largest possible count.
    pub count: u64,
    /// The part of it that may belong to other keys.
    pub error: u64,
}

impl CountEstimate {
    /// The smallest possible count.
    #[must_use]
    pub const fn lower_bound(self) -> u64 {
        self.count - self.error
    }
}

/// A bounded table of counts.
#[derive(Debug)]
pub struct HeavyHitters<K, V> {
    limit: usize,
    counts: HashMap<K, (CountEstimate, V)>,
}

impl<K: Eq + Hash + Clone, V> HeavyHitters<K, V> {
    /// A table of `limit` keys; `limit` is at least 1.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { limit: limit.max(1), counts: HashMap::new() }
    }

    /// Counts `key`. `value` makes the value of a key that was not in the table.
    pub fn count(&mut self, key: K, value: impl FnOnce() -> V) {
        if let Some((count, _)) = self.counts.get_mut(&key) {
            count.count += 1;
            return;
        }
        let mut error = 0;
        if self.counts.len() >= self.limit {
            let lightest = self.counts.iter().min_by_key(|(_, (count, _))| count.count);
            let Some((lightest, (count, _))) = lightest else {
                return;
            };
            error = count.count;
            let lightest = lightest.clone();
            self.counts.remove(&lightest);
        }
        let count = CountEstimate { count: error + 1, error };
        self.counts.insert(key, (count, value()));
    }

    /// The entries of the table, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, CountEstimate, &V)> {
        self.counts.iter().map(|(key, (count, value))| (key, *count, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heavy_ones_stay_and_no_count_is_too_small() {
        let mut table = HeavyHitters::new(8);
        let mut made = 0;
        for round in 0..1000_u32 {
            table.count(1, || made += 1);
            if round % 2 == 0 {
                table.count(2, || ());
            }
            // Each of these comes once.
            table.count(1000 + round, || ());
        }
        assert_eq!(made, 1, "what is known of a key is made once");
        let of = |wanted: u32| table.iter().find(|(key, ..)| **key == wanted).map(|(_, count, ())| count);
        assert!(of(1).is_some_and(|count| count.count >= 1000 && count.lower_bound() <= 1000));
        assert!(of(2).is_some_and(|count| count.count >= 500 && count.lower_bound() <= 500));
        assert_eq!(table.iter().count(), 8);
    }

    #[test]
    fn a_table_that_is_not_full_counts_exactly_and_one_more_key_replaces_the_lightest() {
        let mut table = HeavyHitters::new(2);
        (0..3).for_each(|_| table.count('a', || ()));
        table.count('b', || ());
        assert!(table.iter().all(|(_, count, ())| count.error == 0));
        table.count('c', || ());
        let mut all: Vec<_> = table.iter().map(|(key, count, ())| (*key, count.count, count.error)).collect();
        all.sort_unstable();
        assert_eq!(all, [('a', 3, 0), ('c', 2, 1)]);
    }
}
