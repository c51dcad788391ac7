//! The lock service: the verbs LOCK, TEST, UNLOCK and CANCEL for NLM and for NFSv4.
//!
//! The layer between a protocol and the lock table (`state::locks`). It owns the table's mutexes,
//! one for each of the shards that files are distributed over, the grace period, and the thread for
//! what is due later. Callbacks are handed to the protocol of their client with no mutex held.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use curt_types::{ByteRange, Fault, LockType};
use parking_lot::Mutex;

use crate::request::VerifiedHandle;
use crate::state::locks::{
    CallbackAnswer, CallbackId, CancelOutcome, HeldLock, LockCallback, LockClient, LockDenial, LockFile,
    LockHolder, LockOutcome, LockOwner, LockRequest, LockTable, LockTableCounts, LockTableOptions,
};

/// How a protocol carries out what the table decides. Calls come from any thread, with no mutex of
/// the lock service held, and must not wait for the client.
pub(crate) trait LockCallbacks: Send + Sync {
    /// Sends a callback. Its answer is reported with [`LockService::answered`], at the latest when
    /// the protocol gives up waiting for one.
    fn send(&self, callback: LockCallback);

    /// The client is about to get a lock, or to wait, and had neither. It must be recorded on disk
    /// before this returns, so that it is notified after a restart. On an error the request fails.
    fn client_begins(&self, client: LockClient) -> Result<(), Fault>;

    /// The client has had no lock and no waiter for some time: it need not be recorded any more.
    fn client_ends(&self, client: LockClient);
}

/// The lock service.
pub(crate) struct LockService {
    table: Mutex<LockTable>,
    hosts: OnceLock<Arc<dyn LockCallbacks>>,
    clientids: OnceLock<Arc<dyn LockCallbacks>>,
    grace_until: Mutex<Option<Instant>>,
}

impl LockService {
    /// A service without locks, clients and grace period.
    pub(crate) fn new(options: LockTableOptions) -> Self {
        Self {
            table: Mutex::new(LockTable::new(options)),
            hosts: OnceLock::new(),
            clientids: OnceLock::new(),
            grace_until: Mutex::new(None),
        }
    }

    /// Sets the callbacks of NLM hosts. Later calls have no effect.
    pub(crate) fn serve_hosts(&self, callbacks: Arc<dyn LockCallbacks>) {
        let _ = self.hosts.set(callbacks);
    }

    /// Sets the callbacks of NFSv4 clients. Later calls have no effect.
    pub(crate) fn serve_clientids(&self, callbacks: Arc<dyn LockCallbacks>) {
        let _ = self.clientids.set(callbacks);
    }

    /// Begins the grace period: until `until` only reclaims are granted.
    pub(crate) fn begin_grace(&self, until: Instant) {
        *self.grace_until.lock() = Some(until);
    }

    /// Ends the grace period early: all recorded clients have reclaimed, or none is recorded.
    pub(crate) fn end_grace(&self) {
        *self.grace_until.lock() = None;
    }

    /// Whether the grace period lasts.
    pub(crate) fn in_grace(&self, now: Instant) -> bool {
        self.grace_until.lock().is_some_and(|until| now < until)
    }

    /// LOCK. The fault is that of a file that cannot be locked: stale, not a regular file, not
    /// permitted.
    pub(crate) fn lock(
        &self,
        target: &VerifiedHandle<'_>,
        request: &LockRequest<'_>,
        now: Instant,
    ) -> Result<LockOutcome, Fault> {
        let grace = self.in_grace(now);
        match (grace, request.reclaim) {
            (true, false) => return Ok(LockOutcome::Denied(LockDenial::Grace)),
            (false, true) => return Ok(LockOutcome::Denied(LockDenial::NoGrace)),
            (true, true) | (false, false) => {}
        }
        let file = target.lock_file();
        Ok(self.with_table(|table, callbacks| table.lock(&file, request, now, callbacks)))
    }

    /// TEST (LOCKT): the lock that a request would conflict with. Not refused during the grace
    /// period.
    pub(crate) fn test(
        &self,
        target: &VerifiedHandle<'_>,
        owner: &LockOwner<'_>,
        lock_type: LockType,
        range: ByteRange,
    ) -> Result<Option<LockHolder>, Fault> {
        Ok(self.table.lock().test(&target.lock_file(), owner, lock_type, range))
    }

    /// UNLOCK. What is not held is not an error. `Denied` only because of a limit.
    pub(crate) fn unlock(
        &self,
        target: &VerifiedHandle<'_>,
        owner: &LockOwner<'_>,
        range: ByteRange,
        now: Instant,
    ) -> Result<(), LockDenial> {
        let file = target.lock_file();
        self.with_table(|table, callbacks| table.unlock(&file, owner, range, now, callbacks))
    }

    /// CANCEL: takes a waiting request out of the queue.
    pub(crate) fn cancel(
        &self,
        target: &VerifiedHandle<'_>,
        owner: &LockOwner<'_>,
        lock_type: LockType,
        range: ByteRange,
        now: Instant,
    ) -> CancelOutcome {
        let file = target.lock_file();
        self.with_table(|table, callbacks| table.cancel(&file, owner, lock_type, range, now, callbacks))
    }

    /// Reports the answer to a callback. `client` is the one that answered; answers to callbacks
    /// that were not sent to it are ignored.
    pub(crate) fn answered(&self, client: LockClient, id: CallbackId, answer: CallbackAnswer, now: Instant) {
        self.with_table(|table, callbacks| table.answered(client, id, answer, now, callbacks));
    }

    /// Releases all locks of an owner in a file and takes its requests out of the queue.
    pub(crate) fn release_owner(&self, target: &VerifiedHandle<'_>, owner: &LockOwner<'_>, now: Instant) {
        let file = target.lock_file();
        self.with_table(|table, callbacks| table.release_owner(&file, owner, now, callbacks));
    }

    /// Releases all locks of a client and takes its requests out of the queues: it has restarted,
    /// or its lease has expired.
    pub(crate) fn release_client(&self, client: LockClient, now: Instant) {
        self.with_table(|table, callbacks| table.release_client(client, now, callbacks));
    }

    /// Releases all locks of a file: it has been removed, or its export.
    pub(crate) fn release_file(&self, file: &LockFile) {
        self.table.lock().release_file(file);
    }

    /// Whether the owner holds a lock in the file (`NFS4ERR_LOCKS_HELD`).
    pub(crate) fn holds(&self, target: &VerifiedHandle<'_>, owner: &LockOwner<'_>) -> bool {
        self.table.lock().holds(&target.lock_file(), owner)
    }

    /// Carries out what is due at `now`. Returns when it is to be called next.
    pub(crate) fn tick(&self, now: Instant) -> Option<Instant> {
        self.with_table(|table, callbacks| {
            table.tick(now, callbacks);
            table.next_tick()
        })
    }

    /// Calls `visit` for the locks and waiters of all files.
    pub(crate) fn report(&self, visit: &mut dyn FnMut(&LockFile, HeldLock)) {
        self.table.lock().report(visit);
    }

    /// The numbers of all tables.
    pub(crate) fn counts(&self) -> LockTableCounts {
        self.table.lock().counts()
    }

    fn with_table<T>(&self, run: impl FnOnce(&mut LockTable, &mut Vec<LockCallback>) -> T) -> T {
        let mut callbacks = Vec::new();
        let value = run(&mut self.table.lock(), &mut callbacks);
        for callback in callbacks {
            let protocol = match callback.lock.client {
                LockClient::Host(_) => self.hosts.get(),
                LockClient::Clientid(_) => self.clientids.get(),
                LockClient::Local => None,
            };
            if let Some(protocol) = protocol {
                protocol.send(callback);
            }
        }
        value
    }
}
