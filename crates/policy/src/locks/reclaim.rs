//! Reclaiming the locks of a mount after its server was restarted (RFC 1813 appendix II, RFC 8881
//! section 8.4.2.1).
//!
//! The locks of a file are reclaimed one after the other, in the order of owners; its waiters go on
//! after that. What cannot be reclaimed is lost: others may have locked and changed it.

use std::collections::BTreeMap;

use curt_types::ByteRange;

use super::{
    agent::LockAgent,
    events::{
        LocalLockOwner, LockAction, LockCallId, LockFileId, LockProcedure, LockReply, LockRequestId,
        LockServerCall, LockTimer,
    },
    intervals::{DENIALS_MAX, poll_interval},
    ranges::LockRanges,
    table::{FileLockTable, LockReclaim, LockRelease, OwnedLock, ReleasePhase, UnreclaimedLocks},
    waiters::{LocalWaiterState, LockWaiter},
};

impl FileLockTable {
    /// The first lock at the server of `owner` from byte `first` on, or else of the owners after
    /// it.
    fn lock_from(&self, owner: Option<LocalLockOwner>, first: Option<u64>) -> Option<OwnedLock> {
        let rest = first.and_then(|first| ByteRange::new(first, u64::MAX));
        self.holders.iter().find_map(|(holder, its)| {
            let range = match owner {
                Some(owner) if *holder < owner => None,
                Some(owner) if *holder == owner => rest,
                _ => Some(ByteRange::WHOLE),
            };
            let (range, lock_type) = its.ranges.within(range?).iter().next()?;
            Some(OwnedLock { owner: *holder, range, lock_type })
        })
    }
}

impl LockAgent {
    /// The server was restarted: it has forgotten all locks, and accepts reclaims for a while. Its
    /// earlier replies may still be on their way. `id` is used for the requests.
    pub fn server_restarted(&mut self, id: LockRequestId) -> Vec<LockAction> {
        for (file, table) in &mut self.files {
            for index in 0..table.waiters.len() {
                let waiter = &mut table.waiters[index];
                if waiter.is_at_server() {
                    self.cancelled.note((*file, waiter.wire_owner));
                }
                match waiter.state() {
                    LocalWaiterState::Blocked => {
                        waiter.pieces.clear();
                        waiter.acquired.clear();
                        table.waiters.set_state(index, LocalWaiterState::Queued);
                    }
                    LocalWaiterState::Asking => waiter.is_stale = true,
                    LocalWaiterState::Queued | LocalWaiterState::Polling => {}
                }
            }
            self.changed.push_back((*file, ByteRange::WHOLE));
        }
        let files: Vec<_> = self.files.keys().copied().collect();
        files.into_iter().for_each(|file| self.reclaim_from(file, id, None, None));
        self.take_actions()
    }

    /// Reclaims the next lock of a file, or ends its reclaim.
    fn reclaim_from(
        &mut self,
        file: LockFileId,
        id: LockRequestId,
        owner: Option<LocalLockOwner>,
        first: Option<u64>,
    ) {
        let Some(table) = self.files.get_mut(&file) else { return };
        let next = table.lock_from(owner, first);
        let (lost, failures) =
            table.reclaim.take().map(|reclaim| (reclaim.lost, reclaim.failures)).unwrap_or_default();
        let Some(lock) = next else {
            return self.release_lost(file, id, lost);
        };
        table.reclaim = Some(LockReclaim { id, lock, failures, is_delayed: false, lost });
        self.send_reclaim(file);
    }

    /// Unlocks what could not be reclaimed: a server that was not restarted still has it.
    fn release_lost(
        &mut self,
        file: LockFileId,
        id: LockRequestId,
        lost: BTreeMap<LocalLockOwner, UnreclaimedLocks>,
    ) {
        self.changed.push_back((file, ByteRange::WHOLE));
        for (owner, lost) in lost {
            let id = LockCallId { file, request: id, owner };
            self.push_release(LockRelease::new(id, lost.wire_owner, lost.ranges, None));
        }
    }

    /// The time of a delayed reclaim has come. The lock may have changed meanwhile.
    pub(super) fn reclaim_again(&mut self, file: LockFileId) {
        let Some(reclaim) = self.files.get(&file).and_then(|table| table.reclaim.as_ref()) else { return };
        let (id, lock) = (reclaim.id, reclaim.lock);
        self.reclaim_from(file, id, Some(lock.owner), Some(lock.range.first()));
    }

    /// Sends the reclaim of a file's lock that is due.
    fn send_reclaim(&mut self, file: LockFileId) {
        self.changed.push_back((file, ByteRange::WHOLE));
        let Some(table) = self.files.get_mut(&file) else { return };
        let Some(reclaim) = &mut table.reclaim else { return };
        let OwnedLock { owner, range, lock_type } = reclaim.lock;
        let id = LockCallId { file, request: reclaim.id, owner };
        let wire_owner = *table.adopted.get(&owner).unwrap_or(&owner);
        // What was on its way to the server may be executed after the reclaim.
        let waits = |(_, waiter): (usize, &LockWaiter)| {
            waiter.is_at_server() && waiter.wire_owner == wire_owner && waiter.request.range.overlaps(range)
        };
        let releases = |release: &LockRelease| {
            release.phase != ReleasePhase::Queued
                && release.wire_owner == wire_owner
                && release.ranges.overlapping(range).next().is_some()
        };
        reclaim.is_delayed = table.waiters.started().any(waits) || table.releases.iter().any(releases);
        if reclaim.is_delayed {
            let (timer, after) = (LockTimer::of_repeated(id), poll_interval(0));
            self.actions.push(LockAction::SetTimer { timer, after });
            return;
        }
        let procedure = LockProcedure::Reclaim { lock_type };
        self.actions.push(LockAction::Send(LockServerCall {
            id,
            wire_owner,
            range,
            procedure,
            is_undo: false,
        }));
    }

    /// Whether a call is that of a file's reclaim.
    pub(super) fn is_reclaim(&self, call: LockCallId) -> bool {
        let reclaim = self.files.get(&call.file).and_then(|table| table.reclaim.as_ref());
        reclaim.is_some_and(|reclaim| (reclaim.id, reclaim.lock.owner) == (call.request, call.owner))
    }

    pub(super) fn reclaim_replied(&mut self, call: LockCallId, reply: LockReply) {
        let Some(table) = self.files.get_mut(&call.file) else { return };
        let Some(reclaim) = &mut table.reclaim else { return };
        let OwnedLock { owner, range, .. } = reclaim.lock;
        match reply {
            LockReply::Granted => {}
            LockReply::Grace | LockReply::Unknown(_) => {
                reclaim.is_delayed = true;
                let after = poll_interval(reclaim.failures);
                reclaim.failures = reclaim.failures.saturating_add(1).min(DENIALS_MAX);
                self.actions.push(LockAction::SetTimer { timer: LockTimer::of_repeated(call), after });
                return;
            }
            LockReply::Denied | LockReply::Kept | LockReply::Blocked | LockReply::Refused(_) => {
                let wire_owner = table.wire_owner(owner);
                let taken = table.take(owner, range);
                table.forget_adopted(owner);
                let Some(reclaim) = &mut table.reclaim else { return };
                let ranges = LockRanges::default();
                let lost = reclaim.lost.entry(owner).or_insert(UnreclaimedLocks { wire_owner, ranges });
                lost.ranges.strengthen(&taken);
                for (range, lock_type) in taken.iter() {
                    self.actions.push(LockAction::Lost { file: call.file, owner, range, lock_type });
                }
            }
        }
        if let Some(reclaim) = self.files.get_mut(&call.file).and_then(|table| table.reclaim.as_mut()) {
            reclaim.failures = 0;
        }
        self.reclaim_from(call.file, call.request, Some(owner), range.last().checked_add(1));
    }
}
