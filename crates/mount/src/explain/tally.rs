//! Counts by key, in bounded memory: the largest are kept separately, the evicted ones as a sum, so
//! that totals are exact.

use std::collections::HashMap;
use std::hash::Hash;

use curt_observe::explain::{RequestTally, UnlistedRequests};

/// The order of keys: by requests, then by requests saved.
const fn size(tally: &RequestTally) -> (u64, u64) {
    (tally.sent + tally.linux, tally.saved)
}

/// Counts by key.
#[derive(Debug)]
pub(super) struct RequestTallies<K> {
    largest: HashMap<K, RequestTally>,
    rest: UnlistedRequests,
    room: usize,
}

impl<K: Copy + Eq + Hash + Ord> RequestTallies<K> {
    pub(super) fn new(room: usize) -> Self {
        Self { largest: HashMap::new(), rest: UnlistedRequests::default(), room: room.max(2) }
    }

    /// Counts for `key`. If there is no room for it, the smaller half is moved to the sum.
    pub(super) fn count(&mut self, key: K, count: impl FnOnce(&mut RequestTally)) {
        if self.largest.len() >= self.room && !self.largest.contains_key(&key) {
            self.make_room();
        }
        count(self.largest.entry(key).or_default());
    }

    fn make_room(&mut self) {
        let mut all: Vec<(K, RequestTally)> = self.largest.drain().collect();
        let half = all.len() / 2;
        all.sort_by_key(|(key, tally)| (std::cmp::Reverse(size(tally)), *key));
        for (_, tally) in all.drain(half..) {
            add(&mut self.rest, &tally);
        }
        self.largest.extend(all);
    }

    /// The `most` largest, in order, and the sum of the others.
    pub(super) fn largest(&self, most: usize) -> (Vec<(K, RequestTally)>, UnlistedRequests) {
        let mut all: Vec<(K, RequestTally)> =
            self.largest.iter().map(|(key, tally)| (*key, *tally)).collect();
        all.sort_by_key(|(key, tally)| (std::cmp::Reverse(size(tally)), *key));
        let mut rest = self.rest;
        for (_, tally) in all.drain(most.min(all.len())..) {
            add(&mut rest, &tally);
        }
        (all, rest)
    }
}

const fn add(rest: &mut UnlistedRequests, tally: &RequestTally) {
    rest.count += 1;
    rest.requests.sent += tally.sent;
    rest.requests.linux += tally.linux;
    rest.requests.saved += tally.saved;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_exact_whatever_had_to_go() {
        let mut tallies = RequestTallies::new(8);
        for round in 0..1000_u32 {
            tallies.count(round % 97, |tally| tally.sent += 1);
            tallies.count(1000, |tally| tally.sent += 1);
            assert!(tallies.largest.len() <= 8);
        }
        let (largest, rest) = tallies.largest(3);
        assert_eq!(largest[0], (1000, RequestTally { sent: 1000, ..RequestTally::default() }));
        let told: u64 = largest.iter().map(|(_, tally)| tally.sent).sum();
        assert_eq!(told + rest.requests.sent, 2000);
    }

    #[test]
    fn up_to_the_limit_all_stay_and_one_beyond_it_removes_half() {
        let mut tallies = RequestTallies::new(8);
        for key in 0..8_u32 {
            (0..=key).for_each(|_| tallies.count(key, |tally| tally.saved += 1));
        }
        assert_eq!(tallies.largest(8).1, UnlistedRequests::default());
        tallies.count(8, |tally| tally.linux += 1);
        let (largest, rest) = tallies.largest(8);
        assert_eq!(largest.len(), 5);
        assert_eq!((rest.count, rest.requests.saved), (4, 1 + 2 + 3 + 4));
    }
}
