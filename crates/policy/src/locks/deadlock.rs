//! The wait-for graph of all files of a mount.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use curt_types::{ByteRange, LockType};

use super::{
    events::{LocalLockOwner, LocalLockRequest, LockFileId},
    table::{FileLockTable, conflict},
};

/// Owners that wait themselves whose requests are followed in one search. What lies behind more of
/// them counts as no deadlock, as in Linux (fs/locks.c, `MAX_DEADLK_ITERATIONS`). Any number of
/// owners may be waited for.
pub(super) const FOLLOWED_MAX: usize = 256;

/// The owners that a waiter waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitEdges {
    /// Locks: nothing but their owners can end the wait.
    Locks,
    /// Also earlier waiters.
    LocksAndWaiters,
}

/// All waits of a mount.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitGraph<'a> {
    pub(super) files: &'a BTreeMap<LockFileId, FileLockTable>,
    /// The files in which an owner waits, once for each request.
    pub(super) waits: &'a BTreeMap<LocalLockOwner, Vec<LockFileId>>,
}

impl WaitGraph<'_> {
    /// The owners that a request waits for, and those that they wait for, and so on.
    pub(super) fn awaited(&self, request: &LocalLockRequest, edges: WaitEdges) -> BTreeSet<LocalLockOwner> {
        let mut found = BTreeSet::new();
        self.any_awaited(request, edges, &mut |owner| {
            found.insert(owner);
            false
        });
        found
    }

    /// Whether an owner is among those of [`Self::awaited`].
    pub(super) fn awaits(&self, request: &LocalLockRequest, edges: WaitEdges, owner: LocalLockOwner) -> bool {
        self.awaits_lock_of(request, owner) || self.any_awaited(request, edges, &mut |other| other == owner)
    }

    /// Whether `is_wanted` holds for one of the owners of [`Self::awaited`]. It is asked of some of
    /// them more than once. Of owners that do not wait, which may be thousands, nothing is kept.
    fn any_awaited(
        &self,
        request: &LocalLockRequest,
        edges: WaitEdges,
        is_wanted: &mut dyn FnMut(LocalLockOwner) -> bool,
    ) -> bool {
        let mut seen = BTreeSet::new();
        let mut next = VecDeque::new();
        let mut look = |request: &LocalLockRequest, next: &mut VecDeque<_>| {
            self.any_blocker(request, edges, &mut |owner| {
                if self.waits.contains_key(&owner) && seen.insert(owner) {
                    next.push_back(owner);
                }
                is_wanted(owner)
            })
        };
        if look(request, &mut next) {
            return true;
        }
        for _ in 0..FOLLOWED_MAX {
            let Some(owner) = next.pop_front() else { break };
            if self.requests(owner).any(|request| look(request, &mut next)) {
                return true;
            }
        }
        false
    }

    /// Whether an owner itself has a lock that a request waits for.
    pub(super) fn awaits_lock_of(&self, request: &LocalLockRequest, owner: LocalLockOwner) -> bool {
        let holder = self.files.get(&request.file).and_then(|table| table.holders.get(&owner));
        let mut locks = holder.into_iter().flat_map(|holder| holder.ranges.overlapping(request.range));
        locks.any(|(_, lock_type)| conflict(request, owner, lock_type))
    }

    /// The waiting requests of an owner.
    fn requests(&self, owner: LocalLockOwner) -> impl Iterator<Item = &LocalLockRequest> {
        let files: BTreeSet<_> = self.waits.get(&owner).into_iter().flatten().collect();
        let tables = files.into_iter().filter_map(|file| self.files.get(file));
        let waiters = tables.flat_map(|table| &table.waiters);
        waiters.map(|waiter| &waiter.request).filter(move |request| request.owner == owner)
    }

    /// Whether `is_wanted` holds for one of the owners that a request itself waits for. It is asked
    /// of some of them more than once.
    fn any_blocker(
        &self,
        request: &LocalLockRequest,
        edges: WaitEdges,
        is_wanted: &mut dyn FnMut(LocalLockOwner) -> bool,
    ) -> bool {
        let Some(table) = self.files.get(&request.file) else { return false };
        if table.conflicts(request).any(|lock| is_wanted(lock.owner)) {
            return true;
        }
        if edges == WaitEdges::Locks {
            return false;
        }
        let earlier = table.waiters.iter().take_while(|waiter| waiter.request.id != request.id);
        let blockers = earlier.map(|waiter| &waiter.request).filter(|other| {
            other.range.overlaps(request.range) && conflict(request, other.owner, other.lock_type)
        });
        blockers.map(|other| other.owner).any(is_wanted)
    }
}

/// Whether a request that waits for these owners, and for those that they wait for, never ends.
/// Locks of flock(2) are not examined, as in Linux.
pub(super) fn is_deadlock(request: &LocalLockRequest, awaited: &BTreeSet<LocalLockOwner>) -> bool {
    request.wait && matches!(request.owner, LocalLockOwner::Posix(_)) && awaited.contains(&request.owner)
}

/// A waiter that was looked at, while nothing has changed since. Thousands may wait behind it: each
/// of them is compared with it alone.
pub(super) struct QueuedBefore {
    pub(super) request: LocalLockRequest,
    /// The owners that it waits for, when they are known.
    pub(super) awaited: Option<BTreeSet<LocalLockOwner>>,
}

impl QueuedBefore {
    /// Whether a later request that waits keeps waiting for this one.
    pub(super) fn precedes(&mut self, later: &LocalLockRequest, graph: &WaitGraph<'_>) -> bool {
        let first = &self.request;
        let conflicts = first.range.overlaps(later.range) && conflict(later, first.owner, first.lock_type);
        later.wait && conflicts && !graph.awaits_lock_of(first, later.owner) && {
            let awaited = || graph.awaited(first, WaitEdges::LocksAndWaiters);
            !self.awaited.get_or_insert_with(awaited).contains(&later.owner)
        }
    }

    /// Whether it precedes all later requests for bytes of `changed`; its place is `index`.
    pub(super) fn precedes_rest(&mut self, index: usize, changed: ByteRange, graph: &WaitGraph<'_>) -> bool {
        let first = &self.request;
        let Some(table) = graph.files.get(&first.file) else { return true };
        let excludes_all = first.lock_type == LockType::Write && first.range.common(changed) == Some(changed);
        excludes_all && table.waiters.all_wait() && {
            let awaited = || graph.awaited(first, WaitEdges::LocksAndWaiters);
            let awaited = self.awaited.get_or_insert_with(awaited);
            let passes = |owner: &LocalLockOwner| *owner == first.owner || awaited.contains(owner);
            let others = awaited.iter().filter(|owner| **owner != first.owner);
            let waits = others.chain([&first.owner]).flat_map(|owner| graph.waits.get(owner)).flatten();
            let earlier = table.waiters.iter().take(index + 1);
            waits.filter(|file| **file == first.file).count()
                == earlier.filter(|waiter| passes(&waiter.request.owner)).count()
        }
    }
}
