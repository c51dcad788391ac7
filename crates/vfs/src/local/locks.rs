//! One lock per file, so that attributes before and after a change enclose that change alone.
//!
//! The locks are a fixed number of stripes, chosen by the handle: two files may share one, which costs time and never
//! correctness. Several are taken in the order of their stripes. None is held while a client is waited for; those that keep
//! changes apart are not held while data are made durable either, though the kernel may have a write wait for a disk meanwhile.

use std::hash::BuildHasher;

use arrayvec::ArrayVec;
use parking_lot::{Mutex, MutexGuard};

use super::hashing::HandleHashing;
use crate::handle::NodeHandle;

const STRIPES: usize = 4096;

pub(super) struct FileLocks {
    stripes: Box<[Mutex<()>]>,
    hasher: HandleHashing,
}

/// No change concerns more objects: two directories, what is moved and what it replaces.
const TOGETHER_MAX: usize = 4;

/// What keeps other changes away until it is dropped.
#[must_use]
pub(super) struct Held<'a> {
    _guards: ArrayVec<MutexGuard<'a, ()>, TOGETHER_MAX>,
}

impl FileLocks {
    pub(super) fn new() -> Self {
        let stripes = std::iter::repeat_with(|| Mutex::new(())).take(STRIPES).collect();
        Self {
            stripes,
            hasher: HandleHashing::new(),
        }
    }

    fn stripe(&self, handle: &NodeHandle) -> usize {
        let hash = self.hasher.hash_one(handle) % STRIPES as u64;
        usize::try_from(hash).expect("it is below the number of stripes")
    }

    /// Keeps other changes away from one object.
    pub(super) fn hold(&self, handle: &NodeHandle) -> MutexGuard<'_, ()> {
        self.stripes[self.stripe(handle)].lock()
    }

    /// As [`FileLocks::hold`]; `None` where somebody changes it at this moment.
    pub(super) fn try_hold(&self, handle: &NodeHandle) -> Option<MutexGuard<'_, ()>> {
        self.stripes[self.stripe(handle)].try_lock()
    }

    /// Keeps other changes away from several objects, of which there are at most four.
    pub(super) fn hold_all<'h>(&self, handles: impl IntoIterator<Item = &'h NodeHandle>) -> Held<'_> {
        let mut stripes: ArrayVec<usize, TOGETHER_MAX> =
            handles.into_iter().map(|handle| self.stripe(handle)).collect();
        stripes.sort_unstable();
        let mut guards = ArrayVec::new();
        let mut last = None;
        for stripe in stripes {
            if last != Some(stripe) {
                guards.push(self.stripes[stripe].lock());
            }
            last = Some(stripe);
        }
        Held { _guards: guards }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::HandleScheme;

    #[test]
    fn several_in_any_order_and_one_file_twice_do_not_block_each_other_forever() {
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
                            drop(locks.hold_all([a, b, a]));
                        }
                    }
                });
            }
        });
    }
}
