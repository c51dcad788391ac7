//! A state whose clients lock files in a table of locks, without a clock.

use std::collections::HashSet;
use std::time::Instant;

use curt_types::{ByteRange, LockType};
use parking_lot::Mutex;

use super::super::locks::{
    ClientAccount, ClientLimits, LockClient, LockDenial, LockOutcome, LockOwner, LockRequest, LockTable,
    LockTableOptions, LockWait,
};
use super::super::{ClientLocks, LockStateRequest};
use super::*;

/// A table of locks.
pub(super) struct TableOfLocks {
    table: Mutex<LockTable>,
    now: Instant,
    /// Locks remain when their states end.
    keeps: bool,
}

impl TableOfLocks {
    /// Asks for a lock of the whole file.
    pub(super) fn lock(
        &self,
        asked: &LockStateRequest<'_>,
        owner: &LockOwner<'_>,
    ) -> Result<LockOutcome, StateFault> {
        let account = Arc::new(ClientAccount::new(owner.client, ClientLimits::CLIENT, None));
        let (lock_type, range) = (asked.lock_type, ByteRange::WHOLE);
        let request = LockRequest { owner: *owner, lock_type, range, wait: LockWait::No, reclaim: false };
        let table = &mut *self.table.lock();
        Ok(table.lock(&asked.file, &request, &account, None, self.now, &mut Vec::new()))
    }

    /// Releases an owner's lock.
    pub(super) fn unlock(&self, file: &FileKey, owner: &LockOwner<'_>) -> Result<(), LockDenial> {
        self.table.lock().unlock(file, owner, ByteRange::WHOLE, self.now, &mut Vec::new())
    }

    /// Locks so many ranges of a file for owners of another client, 100 each.
    pub(super) fn fill(&self, file: &FileKey, count: u32) {
        let client = LockClient::Clientid(0);
        let account = Arc::new(ClientAccount::new(client, ClientLimits::CLIENT, None));
        let table = &mut *self.table.lock();
        for number in 0..count {
            let (name, first) = ((number % (count / 100)).to_be_bytes(), u64::from(number) * 2);
            let request = LockRequest {
                owner: LockOwner { client, process: 0, name: &name },
                lock_type: LockType::Read,
                range: ByteRange::new(first, first).unwrap(),
                wait: LockWait::No,
                reclaim: false,
            };
            let outcome = table.lock(file, &request, &account, None, self.now, &mut Vec::new());
            assert_eq!(outcome, LockOutcome::Granted);
        }
    }

    /// Number of locks.
    pub(super) fn len(&self) -> u64 {
        self.table.lock().counts().locks
    }
}

impl ClientLocks for Arc<TableOfLocks> {
    fn holds(&self, file: &FileKey, owner: &LockOwner<'_>) -> bool {
        self.table.lock().holds(file, owner)
    }

    fn is_wanted_for_writing(&self, file: &FileKey) -> bool {
        self.table.lock().is_wanted_for_writing(file)
    }

    fn release_owner(&self, file: &FileKey, owner: &LockOwner<'_>) {
        if !self.keeps {
            self.table.lock().release_owner(file, owner, self.now, &mut Vec::new());
        }
    }

    fn cancel_based_on(&self, _: &FileKey, _: Clientid, _: u64) {}

    fn clients_waited_for(&self) -> HashSet<Clientid> {
        HashSet::new()
    }
}

/// No clients. With `keeps`, locks remain when their states end.
pub(super) fn with_lock_table(keeps: bool) -> (ServerState, Arc<TableOfLocks>) {
    let table = Mutex::new(LockTable::new(LockTableOptions::default()));
    let locks = Arc::new(TableOfLocks { table, now: Instant::now(), keeps });
    let as_locks = Some(Box::new(Arc::clone(&locks)) as Box<dyn ClientLocks>);
    (ServerState::new(StateLimits::default(), 7, &[1; 16], Arc::default(), as_locks), locks)
}
