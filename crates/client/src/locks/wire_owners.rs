//! The numbers by which a server knows owners of locks.

use std::collections::{BTreeSet, HashMap, VecDeque};

use curt_policy::locks::LocalLockOwner;

use crate::protocol::{LOCK_OWNERS_MAX, WireOwner};

/// The numbers by which a server knows owners. A number that was used is used again as late as
/// possible, in case the server still remembers it.
#[derive(Default)]
pub(super) struct WireOwners {
    numbers: HashMap<LocalLockOwner, WireOwner>,
    owners: HashMap<WireOwner, LocalLockOwner>,
    free: VecDeque<WireOwner>,
    next: u32,
    /// The number of owners at which those without locks are looked for.
    tidy_at: usize,
}

/// Owners that are kept without a look at whether they have locks.
const OWNERS_KEPT: usize = 1024;

impl WireOwners {
    /// The number of `owner`; `None` if there are too many. `known` returns all owners that have
    /// locks; `forget` gets the numbers of others, which will be used again.
    pub(super) fn number(
        &mut self,
        owner: LocalLockOwner,
        known: impl FnOnce() -> BTreeSet<LocalLockOwner>,
        forget: impl FnOnce(&[WireOwner]),
    ) -> Option<WireOwner> {
        if let Some(number) = self.numbers.get(&owner) {
            return Some(*number);
        }
        if self.numbers.len() >= self.tidy_at.max(OWNERS_KEPT) {
            let known = known();
            let Self { numbers, owners, free, .. } = self;
            let mut forgotten = Vec::new();
            numbers.retain(|owner, number| {
                let is_known = known.contains(owner);
                if !is_known {
                    owners.remove(number);
                    forgotten.push(*number);
                }
                is_known
            });
            free.extend(&forgotten);
            forget(&forgotten);
            // When all numbers are used, each new owner looks for one.
            self.tidy_at = (numbers.len() * 2).min(usize::try_from(LOCK_OWNERS_MAX).unwrap_or(usize::MAX));
        }
        let number = if self.next < LOCK_OWNERS_MAX {
            self.next += 1;
            WireOwner(self.next - 1)
        } else {
            self.free.pop_front()?
        };
        self.numbers.insert(owner, number);
        self.owners.insert(number, owner);
        Some(number)
    }

    /// The owner with a number.
    pub(super) fn owner(&self, number: WireOwner) -> Option<LocalLockOwner> {
        self.owners.get(&number).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_keep_their_numbers_while_they_have_locks_and_there_are_not_too_many() {
        let mut owners = WireOwners::default();
        let first = LocalLockOwner::Posix(7);
        let nobody = BTreeSet::new;
        assert_eq!(owners.number(first, nobody, |_| {}), Some(WireOwner(0)));
        assert_eq!(owners.number(LocalLockOwner::Flock(7), nobody, |_| {}), Some(WireOwner(1)));
        let only_first = || BTreeSet::from([first]);
        for number in 0..u64::from(LOCK_OWNERS_MAX) * 2 {
            let given = owners.number(LocalLockOwner::Flock(number), only_first, |_| {});
            assert!(given.is_some_and(|given| given.0 < LOCK_OWNERS_MAX && given != WireOwner(0)));
        }
        assert_eq!(owners.number(first, only_first, |_| {}), Some(WireOwner(0)));
        assert_eq!(owners.owner(WireOwner(0)), Some(first));
        assert!(owners.numbers.len() <= 2 * OWNERS_KEPT);
        let all: BTreeSet<_> = (0..u64::from(LOCK_OWNERS_MAX)).map(LocalLockOwner::Flock).collect();
        let mut owners = WireOwners::default();
        for owner in &all {
            assert!(owners.number(*owner, || BTreeSet::from_iter(all.iter().copied()), |_| {}).is_some());
        }
        assert_eq!(owners.number(first, || all.clone(), |_| {}), None);
        assert!(owners.number(first, nobody, |_| {}).is_some(), "the others have no locks any more");
    }
}
