//! Owners whose callbacks may be those of an earlier LOCK.

use std::collections::VecDeque;

use super::events::{LocalLockOwner, LockFileId};

/// Owners that are remembered. More would have to ask again within the time that a callback takes.
const OWNERS_MAX: usize = 4096;

/// Owners of whom a LOCK was cancelled, in the order of the last time: the oldest is forgotten
/// first, because the callback for it is the least likely to be still on its way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct CancelledOwners(VecDeque<(LockFileId, LocalLockOwner)>);

impl CancelledOwners {
    /// Remembers an owner.
    pub(super) fn note(&mut self, owner: (LockFileId, LocalLockOwner)) {
        if let Some(at) = self.0.iter().position(|known| *known == owner) {
            self.0.remove(at);
        } else if self.0.len() >= OWNERS_MAX {
            self.0.pop_front();
        }
        self.0.push_back(owner);
    }

    /// Whether a LOCK of an owner was cancelled.
    pub(super) fn contains(&self, owner: (LockFileId, LocalLockOwner)) -> bool {
        self.0.contains(&owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_owner_is_forgotten_whatever_its_numbers() {
        let owner = |number: usize| {
            let number = u64::try_from(number).unwrap_or(0);
            // Later owners have smaller numbers.
            (LockFileId(1 << 20), LocalLockOwner::Posix((1 << 20) - number))
        };
        let mut cancelled = CancelledOwners::default();
        (0..OWNERS_MAX).for_each(|number| cancelled.note(owner(number)));
        assert!((0..OWNERS_MAX).all(|number| cancelled.contains(owner(number))));
        // It is cancelled again: the next one is the oldest.
        cancelled.note(owner(0));
        cancelled.note(owner(OWNERS_MAX));
        let forgotten: Vec<_> =
            (0..=OWNERS_MAX).filter(|number| !cancelled.contains(owner(*number))).collect();
        assert_eq!(forgotten, [1]);
        assert_eq!(cancelled.0.len(), OWNERS_MAX);
    }
}
