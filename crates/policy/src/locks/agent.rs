//! The lock agent: the state machine of a mount's byte-range locks. It takes an event and returns
//! actions.

use core::mem;
use std::collections::{BTreeMap, VecDeque};

use curt_types::{ByteRange, Fault, LockType};

use super::{
    cancelled::CancelledOwners,
    events::{
        GrantedCallback, LocalLockOwner, LocalLockRequest, LockAction, LockCallId, LockError, LockFileId,
        LockOpenId, LockOptions, LockReply, LockRequestId, LockTimer,
    },
    intervals::LATE_INTERVAL,
    ranges::LockRanges,
    table::{
        FileLockTable, LateLock, LockReclaim, LockRelease, ReleasePhase, RequestStatus, whole_for_flock,
    },
    waiters::{EarlyCallback, LocalWaiterState, LockWaiter},
};
use crate::time::MonotonicTime;

/// Requests that wait for locks of one file.
pub const WAITERS_MAX: usize = 16_384;
/// Releases of one file in progress beyond which a lock that is not requested is not taken from a
/// server.
pub const RELEASES_MAX: usize = 1024;
/// The locks of a mount.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LockAgent {
    pub(super) options: LockOptions,
    pub(super) files: BTreeMap<LockFileId, FileLockTable>,
    /// The files in which an owner waits, once for each request.
    pub(super) waits: BTreeMap<LocalLockOwner, Vec<LockFileId>>,
    /// Owners of whom a LOCK was cancelled at the server, or forgotten by it, or asked for again,
    /// or sent again, or not answered: its callback may still be on its way, however late.
    pub(super) cancelled: CancelledOwners,
    /// Files and ranges whose waiters must be examined again.
    pub(super) changed: VecDeque<(LockFileId, ByteRange)>,
    /// Owners with a new lock that wait for others: waits for that lock may not end.
    holders_that_wait: Vec<(LockFileId, LocalLockOwner)>,
    pub(super) actions: Vec<LockAction>,
}

impl LockAgent {
    /// A mount without locks.
    #[must_use]
    pub fn new(options: LockOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// Requests a lock for a caller. It is answered in these actions or in those of a later event:
    /// with [`LockError::Deadlock`] if the wait would never end, with [`LockError::NoLocks`] if
    /// [`WAITERS_MAX`] requests wait, with [`LockError::Held`] if it does not wait and another
    /// owner has a conflicting lock, or with an error of the server.
    pub fn lock(&mut self, request: LocalLockRequest) -> Vec<LockAction> {
        let request = whole_for_flock(request);
        let table = self.files.entry(request.file).or_default();
        if table.waiters.len() >= WAITERS_MAX {
            self.answer(request.id, Err(LockError::NoLocks));
            return self.take_actions();
        }
        table.waiters.push(LockWaiter::new(request));
        let index = table.waiters.len() - 1;
        self.waits.entry(request.owner).or_default().push(request.file);
        if self.graph().is_deadlock(&request) {
            self.give_up(request.file, index);
            self.answer(request.id, Err(LockError::Deadlock));
            return self.take_actions();
        }
        if self.start_waiter(request.file, index) == Some(RequestStatus::Follows) {
            // What it comes after may be a LOCK of its own owner that is blocked at the server.
            self.pause_blocked(request.file, request.range);
        }
        self.advance_all();
        if self.options.is_local_first() {
            self.let_pass(&request);
        }
        self.take_actions()
    }

    /// An owner unlocks bytes of a file; `id` is answered when the server has confirmed it.
    pub fn unlock(
        &mut self,
        id: LockRequestId,
        file: LockFileId,
        owner: LocalLockOwner,
        range: ByteRange,
        now: MonotonicTime,
    ) -> Vec<LockAction> {
        self.release(LockCallId { file, request: id, owner }, owner.range_of(range), Some(id), now);
        self.take_actions()
    }

    /// As [`Self::unlock`] by a caller that did not wait until the bytes it wrote under the lock
    /// are at the server. The lock is taken from it now, so that a later one of the same owner is
    /// another lock; it is unlocked after [`Self::data_written`]. Returns the release, if the owner
    /// holds anything.
    pub fn unlock_after_data(
        &mut self,
        id: LockRequestId,
        file: LockFileId,
        owner: LocalLockOwner,
        range: ByteRange,
    ) -> Option<LockCallId> {
        let table = self.files.get_mut(&file)?;
        let (wire_owner, ranges) = (table.wire_owner(owner), table.take(owner, owner.range_of(range)));
        if ranges.is_empty() {
            return None;
        }
        let id = LockCallId { file, request: id, owner };
        let release = LockRelease::new(id, wire_owner, ranges, None);
        table.releases.push(LockRelease { phase: ReleasePhase::AwaitsData, ..release });
        Some(id)
    }

    /// The data written under the lock of a release are at the server.
    pub fn data_written(&mut self, release: LockCallId) -> Vec<LockAction> {
        let releases = self.files.get_mut(&release.file).into_iter().flat_map(|table| &mut table.releases);
        for waiting in releases.filter(|waiting| waiting.id == release) {
            if waiting.phase == ReleasePhase::AwaitsData {
                waiting.phase = ReleasePhase::Queued;
            }
        }
        self.changed.push_back((release.file, ByteRange::WHOLE));
        self.take_actions()
    }

    /// Callbacks may have been lost: asks again for what is blocked at the server.
    pub fn callbacks_lost(&mut self) -> Vec<LockAction> {
        let files: Vec<_> = self.files.keys().copied().collect();
        for file in files {
            let blocked = |(index, waiter): (usize, &LockWaiter)| {
                (waiter.state() == LocalWaiterState::Blocked).then_some(index)
            };
            let waiters = self.files.get(&file).into_iter().flat_map(|table| table.waiters.started());
            let blocked: Vec<_> = waiters.filter_map(blocked).collect();
            blocked.into_iter().for_each(|index| self.ask_again(file, index));
        }
        self.take_actions()
    }

    /// The last descriptor of an open file description is closed (RELEASE), which ends the locks
    /// that were made through it. No caller waits for this.
    pub fn close_open(
        &mut self,
        id: LockRequestId,
        file: LockFileId,
        open: LockOpenId,
        now: MonotonicTime,
    ) -> Vec<LockAction> {
        let holders = self.files.get(&file).into_iter().flat_map(|table| &table.holders);
        let owners: Vec<_> =
            holders.filter(|(_, holder)| holder.open == open).map(|(owner, _)| *owner).collect();
        for owner in owners {
            self.release(LockCallId { file, request: id, owner }, ByteRange::WHOLE, None, now);
        }
        self.take_actions()
    }

    /// A caller does not wait any more. It is answered at once; what it has at the server is undone
    /// after that.
    pub fn interrupt(&mut self, file: LockFileId, id: LockRequestId) -> Vec<LockAction> {
        let Some(table) = self.files.get_mut(&file) else { return Vec::new() };
        let awaited = |waiter: &LockWaiter| waiter.request.id == id && waiter.is_awaited;
        if let Some(index) = table.waiters.iter().position(awaited) {
            let waiter = &table.waiters[index];
            let piece = waiter.pieces.front().filter(|_| waiter.state() == LocalWaiterState::Asking);
            if piece.is_some_and(|piece| table.is_downgrade(&waiter.request, *piece)) {
                // Others may already have locked what was given up: it cannot be taken back.
                table.waiters[index].is_awaited = false;
            } else {
                self.give_up(file, index);
            }
            self.answer(id, Err(LockError::Interrupted));
        } else if let Some(release) = table.releases.iter_mut().find(|release| release.caller == Some(id)) {
            release.caller = None;
            self.answer(id, Err(LockError::Interrupted));
        }
        self.take_actions()
    }

    /// A LOCK of the owner that `id` names was sent more than once, as after the loss of a
    /// connection, and its reply follows. The server may have executed it as often: if it was
    /// blocked once and granted later, the callback may still be on its way. So may a copy of it,
    /// which the server executes after the UNLOCK: what nobody needs is unlocked once more, for
    /// `id`.
    pub fn sent_again(&mut self, id: LockCallId, range: ByteRange, lock_type: LockType) -> Vec<LockAction> {
        self.cancelled.note((id.file, id.owner));
        let table = self.files.entry(id.file).or_default();
        // An earlier timer has no effect then.
        table
            .late_locks
            .retain(|late| (late.id.owner, late.range, late.lock_type) != (id.owner, range, lock_type));
        if table.late_locks.len() < RELEASES_MAX {
            table.late_locks.push(LateLock { id, range, lock_type });
            self.set_late_timer(id);
        }
        self.take_actions()
    }

    fn set_late_timer(&mut self, id: LockCallId) {
        let timer = LockTimer::of_repeated(id);
        self.actions.push(LockAction::SetTimer { timer, after: LATE_INTERVAL });
    }

    /// No copy of a LOCK is on its way any more: unlocks what one of them may have locked.
    fn undo_late_lock(&mut self, file: LockFileId, index: usize) {
        let Some(table) = self.files.get_mut(&file) else { return };
        let LateLock { id, range, lock_type } = table.late_locks[index];
        let ranges = LockRanges::of(range, lock_type);
        let is_held = table.steps(id.owner, &ranges).iter().any(|(_, needed)| needed.is_some());
        if is_held || table.is_busy(id.owner, range, table.releases.len()) {
            // The owner's lock, or its next request for these bytes, is not put at risk for it.
            return self.set_late_timer(id);
        }
        table.late_locks.remove(index);
        let release = LockRelease::new(id, id.owner, ranges, None);
        self.push_release(LockRelease { is_undo: true, ..release });
    }

    /// Ends a call of [`LockAction::Send`] with the reply of the server. Returns the next calls of
    /// its request or release, the answer to its caller, and what waited for it. A reply to a call
    /// that is not in progress has no effect.
    pub fn replied(&mut self, call: LockCallId, reply: LockReply, now: MonotonicTime) -> Vec<LockAction> {
        let Some(table) = self.files.get(&call.file) else { return Vec::new() };
        let is_sent = |release: &LockRelease| {
            release.id == call && release.phase != ReleasePhase::Queued && !release.is_delayed
        };
        let asks = |(index, waiter): (usize, &LockWaiter)| {
            (waiter.call() == call && waiter.state() == LocalWaiterState::Asking).then_some(index)
        };
        let asked = table.waiters.started().find_map(asks);
        if self.is_reclaim(call) {
            self.reclaim_replied(call, reply);
        } else if let Some(index) = table.releases.iter().position(is_sent) {
            self.release_replied(call.file, index, reply, now);
        } else if let Some(index) = asked {
            self.lock_replied(call.file, index, reply);
        }
        self.take_actions()
    }

    /// The server calls back: it has granted a LOCK that was blocked. Whether that is confirmed to
    /// it; a lock without a waiter is released again, for `id`.
    ///
    /// A callback that may be that of an earlier LOCK of the owner grants nothing: the server is
    /// asked. Otherwise a late callback would grant a lock that another client holds. One that
    /// comes before the reply to its LOCK grants it with that reply.
    pub fn granted(
        &mut self,
        id: LockRequestId,
        file: LockFileId,
        callback: GrantedCallback,
    ) -> (bool, Vec<LockAction>) {
        let GrantedCallback { wire_owner, range, lock_type, is_repeated } = callback;
        let table = self.files.entry(file).or_default();
        let waits = |waiter: &LockWaiter| {
            waiter.is_at_server()
                && waiter.wire_owner == wire_owner
                && waiter.request.lock_type == lock_type
                && waiter.pieces.front() == Some(&range)
        };
        let withdrawn = |release: &LockRelease| {
            let (ReleasePhase::AwaitsLock(piece) | ReleasePhase::Cancels(piece)) = release.phase else {
                return false;
            };
            piece == range && release.wire_owner == wire_owner
        };
        let needed = table.needed(wire_owner, range);
        let is_held = needed.parts(range).iter().all(|(_, held)| *held >= Some(lock_type));
        let mut is_confirmed = true;
        if let Some(index) = table.waiters.iter().position(waits) {
            let waiter = &mut table.waiters[index];
            // It may be the callback of an earlier LOCK: then only a reply decides.
            let is_doubtful = is_repeated || self.cancelled.contains((file, wire_owner));
            let callback = if is_doubtful { EarlyCallback::AskAgain } else { EarlyCallback::Grants };
            match waiter.state() {
                LocalWaiterState::Blocked => self.called_back(file, index, callback),
                // The LOCK on its way may be executed later than an UNLOCK that follows now.
                _ => waiter.early_callback = waiter.early_callback.max(Some(callback)),
            }
        } else if !is_held && !table.releases.iter().any(withdrawn) {
            let overlaps = |waiter: &LockWaiter| {
                waiter.is_at_server()
                    && waiter.wire_owner == wire_owner
                    && waiter.request.range.overlaps(range)
            };
            // A callback for a lock that was not requested must not cancel a request in progress.
            let is_asked = table.waiters.iter().any(overlaps);
            is_confirmed = !is_asked && table.releases.len() < RELEASES_MAX;
            if is_confirmed {
                let call = LockCallId { file, request: id, owner: wire_owner };
                let ranges = LockRanges::of(range, lock_type);
                let release = LockRelease::new(call, wire_owner, ranges, None);
                self.push_release(LockRelease { is_undo: true, ..release });
            }
        }
        self.changed.push_back((file, range));
        (is_confirmed, self.take_actions())
    }

    /// The server reports that a lock may be free that `wire_owner` was denied: it is requested
    /// again. Returns whether a waiter exists.
    pub fn available(&mut self, file: LockFileId, wire_owner: LocalLockOwner) -> (bool, Vec<LockAction>) {
        let mut is_awaited = false;
        let count = self.files.get(&file).map_or(0, |table| table.waiters.len());
        for index in 0..count {
            let Some(table) = self.files.get_mut(&file) else { break };
            let Some(waiter) = table.waiters.get(index) else { break };
            if waiter.wire_owner != wire_owner || !waiter.is_awaited {
                continue;
            }
            match waiter.state() {
                LocalWaiterState::Blocked => self.send_piece(file, index),
                // The reply on its way is that of before.
                LocalWaiterState::Asking => {
                    table.waiters[index].early_callback = Some(EarlyCallback::AskAgain);
                }
                LocalWaiterState::Queued | LocalWaiterState::Polling => continue,
            }
            is_awaited = true;
        }
        (is_awaited, self.take_actions())
    }

    /// The server has taken the locks of `wire_owner` in a range away, or they could not be
    /// reclaimed: others may have locked and changed the bytes. Unlocks in progress get the result.
    pub fn lost(
        &mut self,
        file: LockFileId,
        wire_owner: LocalLockOwner,
        range: ByteRange,
    ) -> Vec<LockAction> {
        let Some(table) = self.files.get_mut(&file) else { return Vec::new() };
        let holders = table.holders.keys().copied();
        let owners: Vec<_> = holders.filter(|owner| table.wire_owner(*owner) == wire_owner).collect();
        let mut lost = Vec::new();
        for owner in owners {
            lost.push((owner, table.take(owner, range)));
            table.forget_adopted(owner);
        }
        // What was written under these is not at the server yet.
        let unwritten = table
            .releases
            .iter()
            .filter(|release| release.wire_owner == wire_owner && release.phase == ReleasePhase::AwaitsData);
        lost.extend(unwritten.map(|release| (release.id.owner, release.ranges.within(range))));
        self.actions.extend(lost.iter().flat_map(|(owner, ranges)| {
            let lost = ranges.iter();
            lost.map(|(range, lock_type)| LockAction::Lost { file, owner: *owner, range, lock_type })
        }));
        let is_lost = |release: &&mut LockRelease| {
            release.wire_owner == wire_owner && release.ranges.overlapping(range).next().is_some()
        };
        let callers: Vec<_> =
            table.releases.iter_mut().filter(is_lost).filter_map(|release| release.caller.take()).collect();
        for caller in callers {
            self.answer(caller, Err(LockError::Failed(Fault::Io)));
        }
        self.changed.push_back((file, range));
        self.take_actions()
    }

    /// Continues what a timer of [`LockAction::SetTimer`] was set for: repeats a LOCK, an UNLOCK or
    /// a reclaim, or ends a pause. A timer that was replaced has no effect.
    pub fn timer(&mut self, timer: LockTimer) -> Vec<LockAction> {
        let call = timer.call;
        let Some(table) = self.files.get_mut(&call.file) else { return Vec::new() };
        let is_repeated = timer == LockTimer::of_repeated(call);
        let delayed = |release: &LockRelease| release.id == call && release.is_delayed && is_repeated;
        let waits = |waiter: &LockWaiter| waiter.call() == call && waiter.timer == timer.number;
        let reclaims = |reclaim: &LockReclaim| reclaim.is_delayed && reclaim.id == call.request;
        if table.reclaim.as_ref().is_some_and(reclaims) {
            self.reclaim_again(call.file);
        } else if let Some(index) = table.late_locks.iter().position(|late| late.id == call) {
            self.undo_late_lock(call.file, index);
        } else if let Some(index) = table.releases.iter().position(delayed) {
            table.releases[index].is_delayed = false;
            self.send_step(call.file, index);
        } else if let Some(index) = table.waiters.iter().position(waits) {
            match table.waiters[index].state() {
                LocalWaiterState::Polling => {
                    table.waiters.set_state(index, LocalWaiterState::Queued);
                    let range = table.waiters[index].request.range;
                    self.changed.push_back((call.file, range));
                }
                LocalWaiterState::Blocked => self.ask_again(call.file, index),
                LocalWaiterState::Queued | LocalWaiterState::Asking => {}
            }
        }
        self.take_actions()
    }

    pub(super) fn answer(&mut self, caller: impl Into<Option<LockRequestId>>, result: Result<(), LockError>) {
        self.actions.extend(caller.into().map(|request| LockAction::Answer { request, result }));
    }

    pub(super) fn take_actions(&mut self) -> Vec<LockAction> {
        self.advance_all();
        mem::take(&mut self.actions)
    }

    fn advance_all(&mut self) {
        loop {
            while let Some((file, range)) = self.changed.pop_front() {
                self.start_releases(file);
                self.start_waiters(file, range);
                self.pause_blocked(file, range);
                if self.files.get(&file).is_some_and(FileLockTable::is_empty) {
                    self.files.remove(&file);
                }
            }
            let Some((file, holder)) = self.holders_that_wait.pop() else { return };
            self.end_deadlocks(file, holder);
            if self.options.is_local_first() {
                self.let_holder_pass(file, holder);
            }
        }
    }

    /// Records that an owner has a new lock. If the owner also waits for another lock, its waiters
    /// are checked for a deadlock, and those that may pass others now are examined.
    pub(super) fn note_holder(&mut self, file: LockFileId, owner: LocalLockOwner) {
        if self.waits.contains_key(&owner) {
            self.holders_that_wait.push((file, owner));
        }
    }

    /// Removes a waiter from the queue.
    pub(super) fn remove(&mut self, file: LockFileId, index: usize) -> Option<LockWaiter> {
        let table = self.files.get_mut(&file)?;
        let waiter = table.waiters.remove(index)?;
        let owner = waiter.request.owner;
        if let Some(files) = self.waits.get_mut(&owner) {
            if let Some(position) = files.iter().position(|waits| *waits == file) {
                files.swap_remove(position);
            }
            if files.is_empty() {
                self.waits.remove(&owner);
            }
        }
        self.changed.push_back((file, waiter.request.range));
        Some(waiter)
    }

    /// Removes a waiter, and releases whatever the server may have granted of its lock.
    pub(super) fn give_up(&mut self, file: LockFileId, index: usize) {
        let Some(mut waiter) = self.remove(file, index) else { return };
        if let Some(release) = waiter.cancel() {
            self.push_release(release);
        } else if let Some(table) = self.files.get_mut(&file) {
            table.forget_adopted(waiter.request.owner);
        }
    }
}
