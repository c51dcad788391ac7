//! The wait-for graph of all files of a mount: deadlocks, and waiters that pass others because of
//! whom they wait for.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use curt_types::{ByteRange, LockType};

use super::{
    agent::LockAgent,
    events::{LocalLockOwner, LocalLockRequest, LockError, LockFileId},
    table::{FileLockTable, conflict},
    waiters::{LocalWaiterState, LockWaiter},
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
    /// The owners that wait themselves among those that a request waits for, and those that they
    /// wait for, and so on.
    pub(super) fn awaited(&self, request: &LocalLockRequest, edges: WaitEdges) -> BTreeSet<LocalLockOwner> {
        let mut found = BTreeSet::new();
        self.any_awaited(request, edges, &mut |owner| {
            if self.waits.contains_key(&owner) {
                found.insert(owner);
            }
            false
        });
        found
    }

    /// Whether a request waits for an owner, or for one that waits for it, and so on.
    pub(super) fn awaits(&self, request: &LocalLockRequest, edges: WaitEdges, owner: LocalLockOwner) -> bool {
        self.awaits_lock_of(request, owner) || self.any_awaited(request, edges, &mut |other| other == owner)
    }

    /// Whether a request that waits never ends, since its owner waits for itself. Locks of flock(2)
    /// are not examined, as in Linux.
    pub(super) fn is_deadlock(&self, request: &LocalLockRequest) -> bool {
        request.wait
            && matches!(request.owner, LocalLockOwner::Posix(_))
            && self.may_close_cycle(request, WaitEdges::Locks)
            && self.awaits(request, WaitEdges::Locks, request.owner)
    }

    /// Whether the wait of a request may have closed a cycle: it waits for an owner that waits, and
    /// others may wait for its own one.
    pub(super) fn may_close_cycle(&self, request: &LocalLockRequest, edges: WaitEdges) -> bool {
        self.any_blocker(request, edges, &mut |owner| self.waits.contains_key(&owner))
            && (self.waits.get(&request.owner).is_some_and(|files| files.len() > 1)
                || self.files.values().any(|table| table.awaits_lock_of(request.owner)))
    }

    /// Whether `is_wanted` holds for one of the owners that a request waits for, and those that
    /// they wait for, and so on. It is asked of some of them more than once. Of owners that do not
    /// wait, which may be thousands, nothing is kept.
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
                // Further ones are not followed.
                if seen.len() < FOLLOWED_MAX && self.waits.contains_key(&owner) && seen.insert(owner) {
                    next.push_back(owner);
                }
                is_wanted(owner)
            })
        };
        if look(request, &mut next) {
            return true;
        }
        while let Some(owner) = next.pop_front() {
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
    pub(super) fn requests(&self, owner: LocalLockOwner) -> impl Iterator<Item = &LocalLockRequest> {
        let files: BTreeSet<_> = self.waits.get(&owner).into_iter().flatten().collect();
        let tables = files.into_iter().filter_map(|file| self.files.get(file));
        let waiters = tables.flat_map(|table| &table.waiters).inspect(|_| count_visit());
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
        if table.conflicts(request).inspect(|_| count_visit()).any(|lock| is_wanted(lock.owner)) {
            return true;
        }
        if edges == WaitEdges::Locks {
            return false;
        }
        let earlier = table.waiters.iter().take_while(|waiter| waiter.request.id != request.id);
        let blockers = earlier.inspect(|_| count_visit()).map(|waiter| &waiter.request).filter(|other| {
            other.range.overlaps(request.range) && conflict(request, other.owner, other.lock_type)
        });
        blockers.map(|other| other.owner).any(is_wanted)
    }
}

/// Counts the visit of a lock or waiter, for tests of how many a search makes.
fn count_visit() {
    #[cfg(test)]
    VISITS.with(|visits| visits.set(visits.get() + 1));
}

#[cfg(test)]
thread_local! {
    /// The number of locks and waiters that searches of this thread visited.
    static VISITS: core::cell::Cell<u64> = const { core::cell::Cell::new(0) };
}

/// A waiter that was looked at, while nothing has changed since. Thousands may wait behind it: each
/// of them is compared with it alone.
pub(super) struct QueuedBefore {
    pub(super) request: LocalLockRequest,
    /// See [`WaitGraph::awaited`]; when they are known.
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

impl LockAgent {
    /// The graph of all waits.
    pub(super) const fn graph(&self) -> WaitGraph<'_> {
        WaitGraph { files: &self.files, waits: &self.waits }
    }

    /// If a new request waits, the owners that it waits for may pass others now, which wait for its
    /// owner: see [`Self::status`].
    pub(super) fn let_pass(&mut self, request: &LocalLockRequest) {
        let Some(table) = self.files.get(&request.file) else { return };
        let waits = |waiter: &LockWaiter| {
            waiter.request.id == request.id && waiter.state() == LocalWaiterState::Queued && request.wait
        };
        let edges = WaitEdges::LocksAndWaiters;
        if table.waiters.iter().rev().any(waits) && self.graph().may_close_cycle(request, edges) {
            let awaited = self.graph().awaited(request, edges);
            self.examine(&awaited);
        }
    }

    /// An owner that waits has a new lock. If others wait for that lock, the owner, and those that
    /// it waits for, may pass others now: see [`Self::status`].
    pub(super) fn let_holder_pass(&mut self, file: LockFileId, holder: LocalLockOwner) {
        if !self.files.get(&file).is_some_and(|table| table.awaits_lock_of(holder)) {
            return;
        }
        let graph = self.graph();
        let awaited = |request| graph.awaited(request, WaitEdges::LocksAndWaiters);
        let mut owners: BTreeSet<_> = graph.requests(holder).flat_map(awaited).collect();
        owners.insert(holder);
        self.examine(&owners);
    }

    /// Has the waiters of the files examined in which these owners wait.
    fn examine(&mut self, owners: &BTreeSet<LocalLockOwner>) {
        let files = owners.iter().filter_map(|owner| self.waits.get(owner)).flatten();
        let files: BTreeSet<_> = files.copied().collect();
        self.changed.extend(files.into_iter().map(|file| (file, ByteRange::WHOLE)));
    }

    /// An owner has a new lock. If it also waits for others, that may have closed a cycle: as in
    /// Linux, which looks again when it wakes a waiter, those in the cycle that wait for the lock
    /// fail.
    pub(super) fn end_deadlocks(&mut self, file: LockFileId, holder: LocalLockOwner) {
        let graph = self.graph();
        let awaited_in: Vec<_> = self.files.values().filter(|table| !table.waiters.is_empty()).collect();
        let has_locks =
            |owner: &LocalLockOwner| awaited_in.iter().any(|table| table.holders.contains_key(owner));
        let waiters = self.files.get(&file).into_iter().flat_map(|table| &table.waiters);
        let requests = waiters.filter(|waiter| waiter.is_awaited).map(|waiter| waiter.request);
        // Nobody waits for one without locks.
        let requests =
            requests.filter(|request| graph.awaits_lock_of(request, holder) && has_locks(&request.owner));
        for request in requests.collect::<Vec<_>>() {
            if !self.graph().is_deadlock(&request) {
                continue;
            }
            let mut waiters = self.files.get(&file).into_iter().flat_map(|table| &table.waiters);
            let Some(index) = waiters.position(|waiter| waiter.request.id == request.id) else { continue };
            self.give_up(file, index);
            self.answer(request.id, Err(LockError::Deadlock));
        }
    }

    /// Whether an earlier waiter comes first: one that conflicts, unless it waits for this owner;
    /// or one that the server refuses the same bytes.
    pub(super) fn follows_waiter(&self, table: &FileLockTable, index: usize) -> bool {
        let request = &table.waiters[index].request;
        table.waiters.iter().take(index).any(|earlier| {
            let other = &earlier.request;
            if !other.range.overlaps(request.range) || other.owner == request.owner {
                return false;
            }
            if conflict(request, other.owner, other.lock_type) {
                return !self.graph().awaits(other, WaitEdges::LocksAndWaiters, request.owner);
            }
            earlier.denials > 0 && other.range.common(request.range) == Some(other.range)
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

    use super::*;
    use crate::{
        locks::{LockAction, LockAgent, LockError, LockOpenId, LockOptions, LockReply, LockRequestId},
        time::MonotonicTime,
    };

    const FILE: LockFileId = LockFileId(1);
    const OTHER: LockFileId = LockFileId(2);

    fn byte(number: u64) -> ByteRange {
        ByteRange::new(number, number).unwrap()
    }

    /// An agent, and the largest number of visits that one event made.
    struct CountedAgent {
        agent: LockAgent,
        visits: u64,
        /// The answers so far.
        answered: Vec<(LockRequestId, Result<(), LockError>)>,
    }

    impl CountedAgent {
        fn new() -> Self {
            Self { agent: LockAgent::new(LockOptions::default()), visits: 0, answered: Vec::new() }
        }

        fn count(&mut self, event: impl FnOnce(&mut LockAgent) -> Vec<LockAction>) -> Vec<LockAction> {
            let before = VISITS.get();
            let actions = event(&mut self.agent);
            self.visits = self.visits.max(VISITS.get() - before);
            actions
        }

        /// An owner locks a range; the server grants what it is asked for.
        fn lock(&mut self, file: LockFileId, owner: u64, lock_type: LockType, range: ByteRange, wait: bool) {
            let id = LockRequestId(u64::try_from(self.answered.len()).unwrap() + 1_000_000 * owner);
            let (owner, open) = (LocalLockOwner::Posix(owner), LockOpenId(owner));
            let request = LocalLockRequest { id, file, owner, open, range, lock_type, wait };
            let mut actions = VecDeque::from(self.count(|agent| agent.lock(request)));
            while let Some(action) = actions.pop_front() {
                match action {
                    LockAction::Send(call) => {
                        let replied = |agent: &mut LockAgent| {
                            agent.replied(call.id, LockReply::Granted, MonotonicTime::default())
                        };
                        actions.extend(self.count(replied));
                    }
                    LockAction::Answer { request, result } => self.answered.push((request, result)),
                    LockAction::SetTimer { .. } | LockAction::HandedOff { .. } | LockAction::Lost { .. } => {}
                }
            }
        }
    }

    #[test]
    fn an_event_visits_each_lock_and_waiter_a_few_times_if_all_waiters_hold_locks() {
        for owners in [200, 2_000] {
            let mut agent = CountedAgent::new();
            agent.lock(FILE, 0, LockType::Write, byte(0), true);
            for owner in 1..=owners {
                agent.lock(FILE, owner, LockType::Write, byte(owner), true);
            }
            for owner in 1..=owners {
                agent.lock(FILE, owner, LockType::Write, byte(0), true);
            }
            // One that holds nothing waits for all of them.
            agent.lock(FILE, owners + 1, LockType::Write, ByteRange::WHOLE, true);
            assert_eq!(agent.answered.len() as u64, owners + 1, "all others wait");
            assert!(agent.visits < 10 * owners, "{} of {owners} owners", agent.visits);
        }
    }

    #[test]
    fn a_new_lock_of_one_that_waits_visits_each_lock_and_waiter_a_few_times() {
        for owners in [200, 2_000] {
            let mut agent = CountedAgent::new();
            let last = owners;
            for reader in 1..=owners {
                agent.lock(FILE, reader, LockType::Read, ByteRange::WHOLE, true);
            }
            agent.lock(OTHER, 0, LockType::Write, byte(0), true);
            agent.lock(OTHER, last, LockType::Write, byte(0), true);
            for writer in 1..=owners {
                agent.lock(FILE, owners + writer, LockType::Write, ByteRange::WHOLE, true);
            }
            agent.lock(FILE, last, LockType::Read, byte(9), false);
            assert_eq!(agent.answered.len() as u64, owners + 2, "it holds the byte");
            assert!(agent.visits < 10 * owners, "{} of {owners} owners", agent.visits);
        }
    }

    #[test]
    fn a_request_that_does_not_wait_searches_for_no_cycle() {
        let mut agent = CountedAgent::new();
        agent.lock(OTHER, 0, LockType::Write, byte(0), true);
        for owner in 1..=9 {
            agent.lock(FILE, owner, LockType::Read, byte(0), true);
            agent.lock(OTHER, owner, LockType::Write, byte(0), true);
        }
        agent.visits = 0;
        agent.lock(FILE, 10, LockType::Write, byte(0), false);
        assert_eq!(agent.visits, 0);
        assert_eq!(agent.answered.last().unwrap().1, Err(LockError::Held));
    }

    /// Random numbers (xorshift64).
    struct Random(u64);

    impl Random {
        fn below(&mut self, limit: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 20) % limit
        }
    }

    /// An event of one of a few owners of two files.
    fn random_event(agent: &mut LockAgent, random: &mut Random, id: LockRequestId) -> Vec<LockAction> {
        let file = LockFileId(random.below(2));
        let owner = LocalLockOwner::Posix(random.below(5));
        let first = random.below(4);
        let range = ByteRange::new(first, first + random.below(3)).unwrap();
        match random.below(12) {
            0 | 1 => agent.unlock(id, file, owner, range, MonotonicTime::default()),
            2 => agent.interrupt(file, LockRequestId(random.below(id.0 + 1))),
            _ => {
                let lock_type = if random.below(4) == 0 { LockType::Read } else { LockType::Write };
                let (open, wait) = (LockOpenId(1), random.below(4) != 0);
                agent.lock(LocalLockRequest { id, file, owner, open, range, lock_type, wait })
            }
        }
    }

    #[test]
    fn each_event_lets_those_pass_that_may() {
        for seed in 1..=10_000 {
            let mut random = Random(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
            let mut agent = LockAgent::new(LockOptions::default());
            for id in 0..24 {
                let mut actions = VecDeque::from(random_event(&mut agent, &mut random, LockRequestId(id)));
                while let Some(action) = actions.pop_front() {
                    if let LockAction::Send(call) = action {
                        let reply = LockReply::Granted;
                        actions.extend(agent.replied(call.id, reply, MonotonicTime::default()));
                    }
                }
                let mut again = agent.clone();
                again.changed.extend([LockFileId(0), LockFileId(1)].map(|file| (file, ByteRange::WHOLE)));
                assert_eq!(again.take_actions(), [], "event {id} of seed {seed}");
            }
        }
    }
}
