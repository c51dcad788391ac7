//! One lock per file, so that attributes before and after a change enclose that change alone.
//!
//! The locks are a fixed number of stripes, chosen by the handle: two files may share one, which costs time and never
//! correctness. Two are taken in the order of their stripes. None is held over I/O that may wait for a disk or a visitor.

use std::hash::{BuildHasher, RandomState};

use parking_lot::{Mutex, MutexGuard};

use crate::handle::NodeHandle;

const STRIPES: usize = 4096;

pub(super) struct FileLocks {
    stripes: Box<[Mutex<()>]>,
    hasher: RandomState,
}

/// What keeps other changes away until it is dropped.
#[must_use]
pub(super) struct Held<'a> {
    _first: MutexGuard<'a, ()>,
    _second: Option<MutexGuard<'a, ()>>,
}

impl FileLocks {
    pub(super) fn new() -> Self {
        let stripes = std::iter::repeat_with(|| Mutex::new(())).take(STRIPES).collect();
        Self {
            stripes,
            hasher: RandomState::new(),
        }
    }

    fn stripe(&self, handle: &NodeHandle) -> usize {
        let hash = self.hasher.hash_one(handle) % STRIPES as u64;
        usize::try_from(hash).expect("it is below the number of stripes")
    }

    pub(super) fn hold(&self, handle: &NodeHandle) -> Held<'_> {
        Held {
            _first: self.stripes[self.stripe(handle)].lock(),
            _second: None,
        }
    }

    pub(super) fn hold_both(&self, one: &NodeHandle, other: &NodeHandle) -> Held<'_> {
        let (one, other) = (self.stripe(one), self.stripe(other));
        let first = self.stripes[one.min(other)].lock();
        let second = (one != other).then(|| self.stripes[one.max(other)].lock());
        Held {
            _first: first,
            _second: second,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::HandleScheme;

    #[test]
    fn pairs_in_either_order_and_of_one_file_do_not_block_each_other_forever() {
        let locks = FileLocks::new();
        let handles: Vec<_> = (0..20)
            .filter_map(|n| NodeHandle::new(HandleScheme::Kernel, 1, &[n; 8]))
            .collect();
        std::thread::scope(|scope| {
            for turn in 0..2 {
                let (locks, handles) = (&locks, &handles);
                scope.spawn(move || {
                    for one in handles {
                        for other in handles {
                            let (a, b) = if turn == 0 { (one, other) } else { (other, one) };
                            drop(locks.hold_both(a, b));
                        }
                    }
                });
            }
        });
    }
}
