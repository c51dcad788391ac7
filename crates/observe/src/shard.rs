//! Sharded counters: the part of a table of numbers in which a thread counts.
//!
//! A number to which many threads add is split into one part per shard, far enough apart that no
//! two share a cache line; readers add the parts. A thread always counts in one shard, so that
//! counting is an addition to memory that mostly this thread's processor writes.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Number of parts of a table. If there are more threads, they share the parts.
pub(crate) const SHARDS: usize = 16;

/// Numbers in one cache line and its neighbour, which processors fetch with it.
const LINE: usize = 16;

static NEXT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static MINE: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The shard of this thread, below [`SHARDS`].
#[inline]
pub(crate) fn mine() -> usize {
    MINE.with(|mine| {
        mine.get().unwrap_or_else(|| {
            // Relaxed: it only spreads the threads.
            let next = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
            mine.set(Some(next));
            next
        })
    })
}

#[derive(Default)]
#[repr(align(128))]
struct CacheLine([AtomicU64; LINE]);

/// A row of numbers in [`SHARDS`] parts.
pub(crate) struct Sharded {
    lines: Box<[CacheLine]>,
    per_shard: usize,
    len: usize,
}

impl Sharded {
    /// `len` numbers, all 0.
    pub(crate) fn new(len: usize) -> Self {
        let per_shard = len.div_ceil(LINE);
        Self { lines: (0..per_shard * SHARDS).map(|_| CacheLine::default()).collect(), per_shard, len }
    }

    /// Adds to number `index` of this thread's part.
    #[inline]
    pub(crate) fn add(&self, index: usize, amount: u64) {
        let line = mine() * self.per_shard + index / LINE;
        // Relaxed: a counter orders no other memory, and readers need no consistent snapshot.
        self.lines[line].0[index % LINE].fetch_add(amount, Ordering::Relaxed);
    }

    /// The sum of number `index` over all parts.
    pub(crate) fn sum(&self, index: usize) -> u64 {
        (0..SHARDS)
            .map(|shard| &self.lines[shard * self.per_shard + index / LINE].0[index % LINE])
            .map(|part| part.load(Ordering::Relaxed))
            .fold(0, u64::wrapping_add)
    }

    /// The sums of all numbers, in order.
    pub(crate) fn sums(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.len).map(|index| self.sum(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_threads_add_in_their_parts_is_summed_up() {
        let numbers = Sharded::new(LINE + 1);
        std::thread::scope(|scope| {
            for _ in 0..2 * SHARDS {
                scope.spawn(|| (0..1000).for_each(|_| numbers.add(LINE, 1)));
            }
        });
        assert_eq!(numbers.sum(LINE), 2000 * SHARDS as u64);
        assert_eq!(numbers.sums().sum::<u64>(), 2000 * SHARDS as u64);
    }

    #[test]
    fn parts_lie_on_lines_of_their_own() {
        let numbers = Sharded::new(1);
        let places = [0, 1].map(|line| std::ptr::from_ref(&numbers.lines[line]).addr());
        assert!(places[0] % 128 == 0 && places[1] - places[0] >= 128);
    }
}
