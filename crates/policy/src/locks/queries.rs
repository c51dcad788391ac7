//! What is held, wanted or being released in a mount.

use std::collections::BTreeSet;

use super::{
    agent::LockAgent,
    events::{LocalLockOwner, LocalLockRequest, LockCallId, LockFileId, LockTest},
    ranges::LockRanges,
    table::{FileLockTable, OwnedLock, ReleasePhase, whole_for_flock},
};

impl LockAgent {
    /// Whether a lock could be placed.
    #[must_use]
    pub fn test(&self, request: LocalLockRequest) -> LockTest {
        let request = whole_for_flock(request);
        let table = self.files.get(&request.file);
        let conflict = table.and_then(|table| table.conflicts(&request).next());
        match conflict {
            Some(OwnedLock { owner, range, lock_type }) => LockTest::Held(owner, range, lock_type),
            None => LockTest::AskServer(table.map_or(request.owner, |table| table.wire_owner(request.owner))),
        }
    }

    /// Whether another owner of this mount is unlocking what keeps a lock from being placed: the
    /// server may still report it.
    #[must_use]
    pub fn is_being_released(&self, request: LocalLockRequest) -> bool {
        let request = whole_for_flock(request);
        self.files.get(&request.file).is_some_and(|table| table.is_being_released(&request))
    }

    /// The locks that an owner holds of a file.
    #[must_use]
    pub fn held(&self, file: LockFileId, owner: LocalLockOwner) -> LockRanges {
        let holder = self.files.get(&file).and_then(|table| table.holders.get(&owner));
        holder.map(|holder| holder.ranges.clone()).unwrap_or_default()
    }

    /// Whether an owner holds anything of a file.
    #[must_use]
    pub fn holds(&self, file: LockFileId, owner: LocalLockOwner) -> bool {
        self.files.get(&file).is_some_and(|table| table.holders.contains_key(&owner))
    }

    /// Whether the owner of a request holds locks of another open file description. That is usual
    /// for a process. The owner of a lock of an open file description is named by its address in
    /// the kernel, which the next one may have: then these locks end with the close of the earlier
    /// one.
    #[must_use]
    pub fn holds_through_another(&self, request: LocalLockRequest) -> bool {
        let table = self.files.get(&request.file);
        table
            .and_then(|table| table.holders.get(&request.owner))
            .is_some_and(|holder| holder.open != request.open)
    }

    /// Whether a LOCK that was not sent yet has no waiter any more, so that it is not sent.
    #[must_use]
    pub fn is_withdrawn(&self, call: LockCallId) -> bool {
        let releases = self.files.get(&call.file).into_iter().flat_map(|table| &table.releases);
        releases
            .into_iter()
            .any(|release| release.id == call && matches!(release.phase, ReleasePhase::AwaitsLock(_)))
    }

    /// Whether nothing is held, wanted or being released.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.files.is_empty()
    }

    /// Whether something is held, wanted or being released in a file.
    #[must_use]
    pub fn knows(&self, file: LockFileId) -> bool {
        self.files.contains_key(&file)
    }

    /// The owners that hold something of a file, and what.
    pub fn holders(&self, file: LockFileId) -> impl Iterator<Item = (LocalLockOwner, &LockRanges)> {
        let holders = self.files.get(&file).into_iter().flat_map(|table| &table.holders);
        holders.map(|(owner, holder)| (*owner, &holder.ranges))
    }

    /// The requests that wait in a file, in the order of their arrival.
    pub fn waiters(&self, file: LockFileId) -> impl Iterator<Item = &LocalLockRequest> {
        let waiters = self.files.get(&file).into_iter().flat_map(|table| &table.waiters);
        waiters.filter(|waiter| waiter.is_awaited).map(|waiter| &waiter.request)
    }

    /// The number of requests that wait in a file, also of those whose callers were interrupted.
    #[must_use]
    pub fn waiter_count(&self, file: LockFileId) -> usize {
        self.files.get(&file).map_or(0, |table| table.waiters.len())
    }

    /// All owners that the server may know, or that a request names.
    #[must_use]
    pub fn owners(&self) -> BTreeSet<LocalLockOwner> {
        self.files.values().flat_map(FileLockTable::owners).collect()
    }

    /// As [`Self::owners`], of one file.
    #[must_use]
    pub fn owners_of(&self, file: LockFileId) -> BTreeSet<LocalLockOwner> {
        self.files.get(&file).into_iter().flat_map(FileLockTable::owners).collect()
    }
}
