//! The table.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use curt_types::{ByteRange, LockType};

use super::values::{
    CallbackAnswer, CallbackId, CancelOutcome, HeldLock, LockCallback, LockClient, LockDenial, LockFile,
    LockHolder, LockOutcome, LockOwner, LockRequest, LockTableCounts, LockWait, OWNER_NAME_MAX,
};

/// Options of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockTableOptions {
    /// Maximum number of locks of one client.
    pub(crate) locks_max: u32,
    /// How long a waiter of [`LockWait::Notified`] stays in the queue without a new request.
    pub(crate) poll_max: Duration,
}

impl Default for LockTableOptions {
    fn default() -> Self {
        Self { locks_max: 1 << 18, poll_max: Duration::from_secs(90) }
    }
}

/// Byte-range locks of files.
#[derive(Default)]
pub(crate) struct LockTable {
    options: LockTableOptions,
    files: HashMap<LockFile, Vec<LockHolder>>,
    counts: LockTableCounts,
}

fn owned(lock: &LockHolder, owner: &LockOwner<'_>) -> bool {
    lock.client == owner.client && lock.process == owner.process && *lock.name == *owner.name
}

impl LockTable {
    /// An empty table.
    pub(crate) fn new(options: LockTableOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// Decides a request for a lock. `callbacks` gets the callbacks to be sent.
    pub(crate) fn lock(
        &mut self,
        file: &LockFile,
        request: &LockRequest<'_>,
        now: Instant,
        callbacks: &mut Vec<LockCallback>,
    ) -> LockOutcome {
        let _ = (now, callbacks);
        let owner = request.owner;
        if owner.name.len() > OWNER_NAME_MAX {
            return LockOutcome::Denied(LockDenial::NoLocks);
        }
        if let Some(holder) = self.test(file, &owner, request.lock_type, request.range) {
            self.counts.denied += 1;
            return match request.wait {
                LockWait::No => LockOutcome::Denied(LockDenial::Conflict(holder)),
                LockWait::Granted { .. } | LockWait::Notified { .. } => LockOutcome::Blocked(holder),
            };
        }
        self.clear(file, &owner, request.range);
        self.files.entry(*file).or_default().push(LockHolder {
            client: owner.client,
            process: owner.process,
            name: Arc::from(owner.name),
            lock_type: request.lock_type,
            range: request.range,
        });
        self.counts.granted += 1;
        LockOutcome::Granted
    }

    /// The lock that a request would conflict with (NLM_TEST, LOCKT). Waiters do not count.
    pub(crate) fn test(
        &self,
        file: &LockFile,
        owner: &LockOwner<'_>,
        lock_type: LockType,
        range: ByteRange,
    ) -> Option<LockHolder> {
        let held = self.files.get(file)?;
        let conflict = held.iter().find(|lock| {
            !owned(lock, owner) && lock.range.overlaps(range) && lock.lock_type.conflicts(lock_type)
        });
        conflict.cloned()
    }

    fn clear(&mut self, file: &LockFile, owner: &LockOwner<'_>, range: ByteRange) {
        let Some(held) = self.files.get_mut(file) else { return };
        let mut rest = Vec::new();
        held.retain(|lock| {
            let cut = owned(lock, owner) && lock.range.overlaps(range);
            if cut {
                let before =
                    range.first().checked_sub(1).and_then(|last| ByteRange::new(lock.range.first(), last));
                let after =
                    range.last().checked_add(1).and_then(|first| ByteRange::new(first, lock.range.last()));
                for range in [before, after].into_iter().flatten() {
                    rest.push(LockHolder { range, ..lock.clone() });
                }
            }
            !cut
        });
        held.extend(rest);
    }

    /// Releases the owner's locks in `range`. Only a limit on the number of locks is an error: the
    /// range may split one in two.
    pub(crate) fn unlock(
        &mut self,
        file: &LockFile,
        owner: &LockOwner<'_>,
        range: ByteRange,
        now: Instant,
        callbacks: &mut Vec<LockCallback>,
    ) -> Result<(), LockDenial> {
        let _ = (now, callbacks);
        self.clear(file, owner, range);
        Ok(())
    }

    /// Takes a waiting request out of the queue: the one of this owner, type and range.
    pub(crate) fn cancel(
        &mut self,
        file: &LockFile,
        owner: &LockOwner<'_>,
        lock_type: LockType,
        range: ByteRange,
        now: Instant,
        callbacks: &mut Vec<LockCallback>,
    ) -> CancelOutcome {
        let _ = (file, owner, lock_type, range, now, callbacks);
        CancelOutcome::NotWaiting
    }

    /// Reports how `client` answered a callback. Answers to unknown callbacks are ignored.
    pub(crate) fn answered(
        &mut self,
        client: LockClient,
        id: CallbackId,
        answer: CallbackAnswer,
        now: Instant,
        callbacks: &mut Vec<LockCallback>,
    ) {
        let _ = (client, id, answer, now, callbacks);
    }

    /// Releases all locks of an owner in a file and takes its requests out of the queue.
    pub(crate) fn release_owner(
        &mut self,
        file: &LockFile,
        owner: &LockOwner<'_>,
        now: Instant,
        callbacks: &mut Vec<LockCallback>,
    ) {
        let _ = (now, callbacks);
        self.clear(file, owner, ByteRange::WHOLE);
    }

    /// Releases all locks of a client and takes its requests out of the queues.
    pub(crate) fn release_client(
        &mut self,
        client: LockClient,
        now: Instant,
        callbacks: &mut Vec<LockCallback>,
    ) {
        let _ = (now, callbacks);
        for held in self.files.values_mut() {
            held.retain(|lock| lock.client != client);
        }
    }

    /// Releases all locks of a file and takes all requests out of its queue.
    pub(crate) fn release_file(&mut self, file: &LockFile) {
        self.files.remove(file);
    }

    /// Whether the owner holds a lock in the file.
    pub(crate) fn holds(&self, file: &LockFile, owner: &LockOwner<'_>) -> bool {
        self.files.get(file).is_some_and(|held| held.iter().any(|lock| owned(lock, owner)))
    }

    /// Carries out what is due at `now`: retransmissions, expired reservations.
    pub(crate) fn tick(&mut self, now: Instant, callbacks: &mut Vec<LockCallback>) {
        let _ = (now, callbacks);
    }

    /// When [`Self::tick`] is due next.
    pub(crate) fn next_tick(&self) -> Option<Instant> {
        None
    }

    /// Calls `visit` for the locks and waiters of all files.
    pub(crate) fn report(&self, visit: &mut dyn FnMut(&LockFile, HeldLock)) {
        for (file, held) in &self.files {
            for lock in held {
                visit(file, HeldLock { lock: lock.clone(), waits: false });
            }
        }
    }

    /// The numbers of the table.
    pub(crate) fn counts(&self) -> LockTableCounts {
        self.counts
    }
}
