//! The locks, waiters and unfinished releases of one file.

use std::collections::{BTreeMap, VecDeque};

use curt_types::{ByteRange, LockType};

use super::{
    events::{
        LocalLockOwner, LocalLockRequest, LockCallId, LockOpenId, LockOptions, LockOrder, LockRequestId,
    },
    ranges::LockRanges,
    waiters::{LocalWaiterState, LockWaiter, LockWaiters},
};
use crate::time::MonotonicTime;

/// The locks of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct FileLockTable {
    pub(super) holders: BTreeMap<LocalLockOwner, LocalLockHolder>,
    pub(super) waiters: LockWaiters,
    pub(super) releases: Vec<LockRelease>,
    /// LOCKs that were sent more than once, for a while.
    pub(super) late_locks: Vec<LateLock>,
    /// The owner under which the server knows the locks of an owner to whom another owner's lock
    /// was passed. An entry lasts as long as its owner has anything here.
    pub(super) adopted: BTreeMap<LocalLockOwner, LocalLockOwner>,
    /// Number of times that a limit of hand-offs returned a lock of the file to the server, modulo
    /// `LIMITS_PER_PAUSE`. Counted anew after a wait for another client, and after the last lock.
    pub(super) handoff_limits: u8,
    /// Its locks are being reclaimed.
    pub(super) reclaim: Option<LockReclaim>,
}

/// An owner with locks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct LocalLockHolder {
    /// The ranges that its callers know to be held. The server holds at least these.
    pub(super) ranges: LockRanges,
    /// The open file description through which it locked last.
    pub(super) open: LockOpenId,
    /// Since when, and how often, its lock was passed on without a request.
    pub(super) handoffs: Option<(MonotonicTime, u32)>,
    /// The server had denied its lock before it granted it: other clients use these bytes, too, and
    /// wait if their server is fair. Its lock is not passed on without a request.
    pub(super) is_contended: bool,
}

/// Locks that are not held any more (or not yet), and that the server may still hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct LockRelease {
    pub(super) id: LockCallId,
    pub(super) wire_owner: LocalLockOwner,
    /// The ranges that the server may hold for them.
    pub(super) ranges: LockRanges,
    pub(super) phase: ReleasePhase,
    /// The changes to send to the server; the call in progress first.
    pub(super) steps: VecDeque<(ByteRange, Option<LockType>)>,
    pub(super) failures: u8,
    /// Whether it waits for a timer.
    pub(super) is_delayed: bool,
    /// Whether its locks were granted without a holder: [`LockServerCall::is_undo`].
    ///
    /// [`LockServerCall::is_undo`]: super::LockServerCall::is_undo
    pub(super) is_undo: bool,
    /// When it began, if other clients get time after it ([`ReleasePhase::Pauses`]).
    pub(super) pauses_since: Option<MonotonicTime>,
    /// The caller that waits for it.
    pub(super) caller: Option<LockRequestId>,
}

/// How far a release is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ReleasePhase {
    /// The bytes that were written under the lock have to be at the server first.
    AwaitsData,
    /// Another request of its owner for these bytes has to be answered first.
    Queued,
    /// A LOCK was sent whose caller does not wait any more.
    AwaitsLock(ByteRange),
    /// A CANCEL was sent for a LOCK that is blocked at the server.
    Cancels(ByteRange),
    /// Its steps are sent.
    SendsSteps,
    /// The server has confirmed it. This mount does not request the bytes again before the timer,
    /// so that other clients can lock them.
    Pauses,
}

/// A lock of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct OwnedLock {
    pub(super) owner: LocalLockOwner,
    pub(super) range: ByteRange,
    pub(super) lock_type: LockType,
}

/// A LOCK that was sent more than once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct LateLock {
    /// With the owner that the server knows.
    pub(super) id: LockCallId,
    pub(super) range: ByteRange,
    pub(super) lock_type: LockType,
}

/// Locks of an owner that could not be reclaimed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct UnreclaimedLocks {
    /// The owner that the server knows.
    pub(super) wire_owner: LocalLockOwner,
    pub(super) ranges: LockRanges,
}

/// How far the locks of a file are reclaimed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct LockReclaim {
    pub(super) id: LockRequestId,
    /// The lock that is being reclaimed.
    pub(super) lock: OwnedLock,
    pub(super) failures: u8,
    pub(super) is_delayed: bool,
    /// Locks that could not be reclaimed so far, by owner.
    pub(super) lost: BTreeMap<LocalLockOwner, UnreclaimedLocks>,
}

/// Whether a waiter may ask the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestStatus {
    /// Allowed to send.
    Eligible,
    /// Another owner of this mount holds a conflicting lock.
    Conflicts,
    /// The request comes after something that is in progress: a release, a reclaim, or a call of
    /// its owner; or after another waiter.
    Follows,
}

impl LockOptions {
    /// Whether conflicts within this mount are decided here before the server is asked.
    pub(super) fn is_local_first(&self) -> bool {
        self.order == LockOrder::LocalFirst
    }
}

/// Whether a request conflicts with a lock of this type of `owner` on bytes of its range.
pub(super) fn conflict(request: &LocalLockRequest, owner: LocalLockOwner, lock_type: LockType) -> bool {
    owner != request.owner && request.lock_type.conflicts(lock_type)
}

impl LockRelease {
    pub(super) fn new(
        id: LockCallId,
        wire_owner: LocalLockOwner,
        ranges: LockRanges,
        caller: Option<LockRequestId>,
    ) -> Self {
        Self {
            id,
            wire_owner,
            ranges,
            phase: ReleasePhase::Queued,
            steps: VecDeque::new(),
            failures: 0,
            is_delayed: false,
            is_undo: false,
            pauses_since: None,
            caller,
        }
    }
}

impl FileLockTable {
    pub(super) fn is_empty(&self) -> bool {
        self.holders.is_empty()
            && self.waiters.is_empty()
            && self.releases.is_empty()
            && self.late_locks.is_empty()
            && self.reclaim.is_none()
    }

    /// All owners that the server may know, or that a request names; some of them more than once.
    pub(super) fn owners(&self) -> impl Iterator<Item = LocalLockOwner> {
        let holders = self.holders.keys().copied();
        let waiters = self.waiters.iter().flat_map(|waiter| [waiter.request.owner, waiter.wire_owner]);
        let releases = self.releases.iter().flat_map(|release| [release.id.owner, release.wire_owner]);
        let adopted = self.adopted.iter().flat_map(|(owner, wire_owner)| [*owner, *wire_owner]);
        let late = self.late_locks.iter().map(|late| late.id.owner);
        holders.chain(waiters).chain(releases).chain(adopted).chain(late)
    }

    /// The owner that the server knows for `owner`.
    pub(super) fn wire_owner(&self, owner: LocalLockOwner) -> LocalLockOwner {
        self.adopted.get(&owner).copied().unwrap_or(owner)
    }

    /// Whether an owner may become `wire_owner` for the server: it is, or has nothing here but the
    /// waiting request `but`.
    pub(super) fn may_adopt(
        &self,
        owner: LocalLockOwner,
        wire_owner: LocalLockOwner,
        but: LockRequestId,
    ) -> bool {
        let own = |waiter: &LockWaiter| waiter.request.owner == owner && waiter.request.id != but;
        self.wire_owner(owner) == wire_owner
            || !(self.holders.contains_key(&owner)
                || self.waiters.iter().any(own)
                || self.releases.iter().any(|release| release.id.owner == owner))
    }

    /// Removes the wire owner of an owner without locks, waiters and releases.
    pub(super) fn forget_adopted(&mut self, owner: LocalLockOwner) {
        let is_known = self.adopted.contains_key(&owner)
            && (self.holders.contains_key(&owner)
                || self.waiters.iter().any(|waiter| waiter.request.owner == owner)
                || self.releases.iter().any(|release| release.id.owner == owner));
        if !is_known {
            self.adopted.remove(&owner);
        }
    }

    /// The locks that conflict with a request.
    pub(super) fn conflicts<'a>(
        &'a self,
        request: &'a LocalLockRequest,
    ) -> impl Iterator<Item = OwnedLock> + 'a {
        let locks = self.holders.iter().flat_map(|(owner, holder)| {
            let locks = holder.ranges.overlapping(request.range);
            locks.map(|(range, lock_type)| OwnedLock { owner: *owner, range, lock_type })
        });
        locks.filter(|lock| conflict(request, lock.owner, lock.lock_type))
    }

    /// Whether a waiter waits for a lock of an owner.
    pub(super) fn awaits_lock_of(&self, owner: LocalLockOwner) -> bool {
        self.holders.get(&owner).is_some_and(|holder| {
            self.waiters.iter().any(|waiter| {
                let mut locks = holder.ranges.overlapping(waiter.request.range);
                locks.any(|(_, lock_type)| conflict(&waiter.request, owner, lock_type))
            })
        })
    }

    /// Whether a release of another owner keeps a request from being granted.
    pub(super) fn is_being_released(&self, request: &LocalLockRequest) -> bool {
        self.releases.iter().any(|release| {
            let mut locks = release.ranges.overlapping(request.range);
            locks.any(|(_, lock_type)| conflict(request, release.id.owner, lock_type))
        })
    }

    /// Whether a call for the same owner at the server and bytes of `range` is in progress, or
    /// comes first: that of a release before number `before`.
    pub(super) fn is_busy(&self, wire_owner: LocalLockOwner, range: ByteRange, before: usize) -> bool {
        let is_first = |(number, release): &(usize, &LockRelease)| {
            release.wire_owner == wire_owner && (*number < before || release.phase != ReleasePhase::Queued)
        };
        let reclaimed = self.reclaim.as_ref().is_some_and(|reclaim| {
            self.wire_owner(reclaim.lock.owner) == wire_owner && reclaim.lock.range.overlaps(range)
        });
        let mut releases = self.releases.iter().enumerate().filter(is_first);
        reclaimed
            || releases.any(|(_, release)| release.ranges.overlapping(range).next().is_some())
            || self.waiters.started().any(|(_, waiter)| {
                waiter.is_at_server()
                    && waiter.wire_owner == wire_owner
                    && waiter.request.range.overlaps(range)
            })
    }

    /// Whether a waiter that is blocked at the server keeps another request of its owner waiting.
    pub(super) fn is_in_the_way(&self, blocked: &LockWaiter) -> bool {
        let range = blocked.request.range;
        let mut waiters = self.waiters.iter().filter(|waiter| waiter.state() == LocalWaiterState::Queued);
        waiters.any(|waiter| {
            waiter.request.range.overlaps(range)
                && self.wire_owner(waiter.request.owner) == blocked.wire_owner
        }) || self.releases.iter().any(|release| {
            release.phase == ReleasePhase::Queued
                && release.wire_owner == blocked.wire_owner
                && release.ranges.overlapping(range).next().is_some()
        })
    }

    /// The locks that the server has to hold for `wire_owner` within `range`.
    pub(super) fn needed(&self, wire_owner: LocalLockOwner, range: ByteRange) -> LockRanges {
        let mut needed = LockRanges::default();
        for (_, holder) in self.holders.iter().filter(|(owner, _)| self.wire_owner(**owner) == wire_owner) {
            needed.strengthen(&holder.ranges.within(range));
        }
        needed
    }

    /// The calls that leave the server with what it has to hold, instead of `ranges`.
    pub(super) fn steps(
        &self,
        wire_owner: LocalLockOwner,
        ranges: &LockRanges,
    ) -> VecDeque<(ByteRange, Option<LockType>)> {
        let parts = ranges.iter().flat_map(|(range, lock_type)| {
            let parts = self.needed(wire_owner, range).parts(range);
            parts.into_iter().filter(move |(_, needed)| *needed != Some(lock_type))
        });
        parts.collect()
    }

    /// Takes the bytes of `range` from an owner; what it held of them.
    pub(super) fn take(&mut self, owner: LocalLockOwner, range: ByteRange) -> LockRanges {
        let Some(holder) = self.holders.get_mut(&owner) else { return LockRanges::default() };
        let taken = holder.ranges.within(range);
        holder.ranges.set(range, None);
        if holder.ranges.is_empty() {
            self.holders.remove(&owner);
        }
        taken
    }

    /// Gives an owner a lock, for which it had to wait for another client or not.
    pub(super) fn grant(&mut self, request: &LocalLockRequest, is_contended: bool) {
        let holder = self.holders.entry(request.owner).or_insert_with(|| LocalLockHolder {
            ranges: LockRanges::default(),
            open: request.open,
            handoffs: None,
            is_contended,
        });
        holder.ranges.set(request.range, Some(request.lock_type));
        (holder.open, holder.is_contended) = (request.open, is_contended);
        if is_contended {
            self.handoff_limits = 0;
        }
    }

    /// Write locks on bytes of `range` that the server has for `wire_owner` are read locks now.
    pub(super) fn downgrade(&mut self, wire_owner: LocalLockOwner, range: ByteRange) {
        for (owner, holder) in &mut self.holders {
            if *self.adopted.get(owner).unwrap_or(owner) == wire_owner {
                for (part, _) in holder.ranges.within(range).iter() {
                    holder.ranges.set(part, Some(LockType::Read));
                }
            }
        }
    }

    /// The ranges to lock for a request, in the order of the calls. A range whose locks would all
    /// become stronger is locked at once. Locks that become weaker come last and by themselves:
    /// until all others are granted they must not be given up.
    pub(super) fn pieces(&self, request: &LocalLockRequest) -> VecDeque<ByteRange> {
        let parts = match self.holders.get(&request.owner) {
            Some(holder) => holder.ranges.parts(request.range),
            None => return VecDeque::from([request.range]),
        };
        if parts.iter().all(|(_, held)| *held == Some(request.lock_type)) {
            return VecDeque::new();
        }
        let is_weaker = |held: Option<LockType>| held > Some(request.lock_type);
        let mut runs: Vec<(ByteRange, bool)> = Vec::new();
        for (part, held) in parts {
            match runs.last_mut() {
                Some((run, weaker)) if *weaker == is_weaker(held) => {
                    *run = ByteRange::new(run.first(), part.last()).unwrap_or(part);
                }
                _ => runs.push((part, is_weaker(held))),
            }
        }
        let of = |wanted| runs.iter().filter(move |(_, weaker)| *weaker == wanted).map(|(run, _)| *run);
        of(false).chain(of(true)).collect()
    }

    /// Whether an owner holds a stronger lock on all of `range` than it asks for.
    pub(super) fn is_downgrade(&self, request: &LocalLockRequest, range: ByteRange) -> bool {
        let holds = |holder: &LocalLockHolder| {
            holder.ranges.parts(range).iter().all(|(_, held)| *held > Some(request.lock_type))
        };
        self.holders.get(&request.owner).is_some_and(holds)
    }
}

/// A request of flock(2) is for the whole file.
pub(super) fn whole_for_flock(request: LocalLockRequest) -> LocalLockRequest {
    LocalLockRequest { range: request.owner.range_of(request.range), ..request }
}
