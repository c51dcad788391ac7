//! Counters of losses of written data: one for the tree, whose change makes clients send
//! uncommitted data again, and one for each file, which shows a writer that its own data may be
//! lost.
//!
//! The counter of a file is that of a stripe, which it may share with others: a loss of another
//! file then counts for it too, which costs its writer one more attempt and never hides a loss.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use super::hashing::HandleHashBuilder;
use crate::handle::NodeHandle;

const STRIPES: usize = 1024;

/// All counters are SeqCst: a thread that reads one after a sync that followed a loss sees the
/// loss.
pub(super) struct LossCounters {
    tree: AtomicU64,
    /// Losses of unknown files.
    anywhere: AtomicU64,
    files: Box<[AtomicU64]>,
    hasher: HandleHashBuilder,
}

impl LossCounters {
    /// The tree's counter has a new start value each time, because losses while the tree was closed
    /// are unknown; the value is far from the maximum.
    pub(super) fn new() -> Self {
        Self {
            tree: AtomicU64::new(RandomState::new().hash_one(0) >> 8),
            anywhere: AtomicU64::new(0),
            files: std::iter::repeat_with(|| AtomicU64::new(0)).take(STRIPES).collect(),
            hasher: HandleHashBuilder::new(),
        }
    }

    fn stripe(&self, file: &NodeHandle) -> &AtomicU64 {
        let at = self.hasher.hash_one(file) % STRIPES as u64;
        &self.files[usize::try_from(at).expect("it is below the number of stripes")]
    }

    /// The tree's counter.
    pub(super) fn of_tree(&self) -> u64 {
        self.tree.load(Ordering::SeqCst)
    }

    /// A file's counter.
    pub(super) fn of(&self, file: &NodeHandle) -> u64 {
        let own = self.stripe(file).load(Ordering::SeqCst);
        own.wrapping_add(self.anywhere.load(Ordering::SeqCst))
    }

    /// Counts a loss of data of this file, or of an unknown file.
    pub(super) fn count(&self, file: Option<&NodeHandle>) {
        let of_file = file.map_or(&self.anywhere, |file| self.stripe(file));
        of_file.fetch_add(1, Ordering::SeqCst);
        self.tree.fetch_add(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::HandleScheme;

    fn file(number: u32) -> NodeHandle {
        NodeHandle::new(HandleScheme::Kernel, 1, &number.to_be_bytes()).expect("it is short")
    }

    #[test]
    fn a_loss_is_reported_to_its_own_file_and_hardly_any_other() {
        let losses = LossCounters::new();
        let numbers = || (0..200).map(|number| losses.of(&file(number))).collect::<Vec<_>>();
        let (before, tree) = (numbers(), losses.of_tree());
        losses.count(Some(&file(7)));
        let after = numbers();
        assert_ne!(before[7], after[7]);
        let others = before.iter().zip(&after).filter(|(before, after)| before != after);
        assert!(others.count() < 10);
        assert_eq!(losses.of_tree(), tree + 1);
    }

    #[test]
    fn a_loss_of_unknown_data_is_reported_to_all() {
        let losses = LossCounters::new();
        let (before, tree) = (losses.of(&file(1)), losses.of_tree());
        losses.count(None);
        assert_ne!((losses.of(&file(1)), losses.of_tree()), (before, tree));
        assert!((0..200).all(|number| losses.of(&file(number)) == before + 1));
    }
}
