//! One lock per file, so that attributes before and after a change include only that change.
//!
//! The locks are a fixed number of stripes, selected by a hash of the handle: two files may share
//! one, which costs time but is correct. Several are taken in the order of their stripes. None is
//! held while waiting for a client; the locks of changes are not held while data are made durable
//! either, although the kernel may make a write wait for a disk meanwhile.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU32, Ordering};

use arrayvec::ArrayVec;
use parking_lot::{Mutex, MutexGuard};

use super::hashing::HandleHashBuilder;
use crate::handle::NodeHandle;

const STRIPES: usize = 4096;

pub(super) struct ChangeLocks {
    stripes: Box<[LockStripe]>,
    hasher: HandleHashBuilder,
}

#[derive(Default)]
struct LockStripe {
    lock: Mutex<()>,
    /// Number of times it was taken together with others, as changes of names do. Incremented
    /// before the lock is released: the Release there pairs with the Acquire of
    /// [`ChangeLocks::name_changes`] and of the next owner of the lock.
    name_changes: AtomicU32,
}

/// Maximum number of objects of a change: two directories, the renamed object and the replaced one.
const TOGETHER_MAX: usize = 4;

/// Locks that prevent other changes until dropped.
#[must_use]
pub(super) struct ChangeGuard<'a>(ArrayVec<(&'a LockStripe, MutexGuard<'a, ()>), TOGETHER_MAX>);

impl Drop for ChangeGuard<'_> {
    fn drop(&mut self) {
        for (stripe, _) in &self.0 {
            stripe.name_changes.fetch_add(1, Ordering::Release);
        }
    }
}

impl ChangeLocks {
    pub(super) fn new() -> Self {
        let stripes = std::iter::repeat_with(LockStripe::default).take(STRIPES).collect();
        Self { stripes, hasher: HandleHashBuilder::new() }
    }

    fn stripe(&self, handle: &NodeHandle) -> usize {
        let hash = self.hasher.hash_one(handle) % STRIPES as u64;
        usize::try_from(hash).expect("it is below the number of stripes")
    }

    /// Locks one object.
    pub(super) fn hold(&self, handle: &NodeHandle) -> MutexGuard<'_, ()> {
        self.stripes[self.stripe(handle)].lock.lock()
    }

    /// As [`ChangeLocks::hold`]; `None` if another thread holds the lock.
    pub(super) fn try_hold(&self, handle: &NodeHandle) -> Option<MutexGuard<'_, ()>> {
        self.stripes[self.stripe(handle)].lock.try_lock()
    }

    /// A counter that changes once another thread has changed names in a directory and released its
    /// lock: while it is the same, results of earlier look-ups in the directory were not changed
    /// through this tree.
    pub(super) fn name_changes(&self, directory: &NodeHandle) -> u32 {
        self.stripes[self.stripe(directory)].name_changes.load(Ordering::Acquire)
    }

    /// Locks several objects, at most four.
    pub(super) fn hold_all<'h>(&self, handles: impl IntoIterator<Item = &'h NodeHandle>) -> ChangeGuard<'_> {
        let mut stripes: ArrayVec<usize, TOGETHER_MAX> =
            handles.into_iter().map(|handle| self.stripe(handle)).collect();
        stripes.sort_unstable();
        let mut guards = ArrayVec::new();
        let mut last = None;
        for stripe in stripes {
            if last != Some(stripe) {
                let stripe = &self.stripes[stripe];
                guards.push((stripe, stripe.lock.lock()));
            }
            last = Some(stripe);
        }
        ChangeGuard(guards)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::HandleScheme;

    #[test]
    fn a_change_of_names_shows_once_its_lock_is_free_and_a_write_never() {
        let locks = ChangeLocks::new();
        let handle = |byte: u8| NodeHandle::new(HandleScheme::Kernel, 1, &[byte; 8]).expect("it is short");
        let (directory, file) = (handle(1), handle(2));
        let before = locks.name_changes(&directory);
        drop(locks.hold(&directory));
        drop(locks.try_hold(&directory));
        let lock = locks.hold_all([&directory, &file]);
        assert_eq!(locks.name_changes(&directory), before);
        drop(lock);
        assert_ne!(locks.name_changes(&directory), before);
    }

    #[test]
    fn several_in_any_order_and_one_file_twice_do_not_block_each_other_forever() {
        let locks = ChangeLocks::new();
        let handles: Vec<_> =
            (0..20).filter_map(|n| NodeHandle::new(HandleScheme::Kernel, 1, &[n; 8])).collect();
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
