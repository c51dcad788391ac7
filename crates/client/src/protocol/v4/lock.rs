//! LOCK, LOCKU and LOCKT (RFC 8881 sections 18.10 to 18.12), and what becomes of lost locks.
//!
//! A LOCK that is denied is not kept by the server as over NLM: if it may notify
//! (`OPEN4_RESULT_MAY_NOTIFY_LOCK`), the lock agent treats it as blocked, and asks again when
//! CB_NOTIFY_LOCK comes; otherwise it polls. So nothing is granted but by a reply to LOCK, and to
//! withdraw a request takes none.

use std::{
    sync::{
        Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use curt_policy::locks::{LockError, LockReply};
use curt_proto::nfs4::{
    Clientid, CompoundEncoder, LockArgs4, LockDenied, LockType4, Locker, LocktArgs4, LockuArgs4,
    Nfs4Operation, NfsStat4, OpaqueLimited, ResultError, StateOwner, Stateid, lock_offset_and_length,
    lock_range,
};
use curt_rpc::client::CallError;
use curt_types::{ByteRange, Fault, FileHandle, LockType};

use super::{
    NfsV4,
    compound::{
        reply::CompoundReply,
        request::{Append, CompoundRequest, put_fh},
    },
    lock_states::{LockStateRef, LostLocks, UnlockTarget, Weakening},
    open_key::OpenKey,
    open_table::UsableOpen,
    results::{CompoundResultReader, fault, is_revoked, outcome},
    session::FreeOrder,
};
use crate::protocol::{
    LockAnswer, LockEvents, LockMode, LockOperations, LockTestReply, OpenCaller, RemoteLock, RpcCaller,
    ShareAccess, WireLock, WireOwner,
};

/// How often a request is sent again because its stateid was replaced meanwhile.
const STATEID_RETRIES_MAX: u32 = 16;

pub(super) const fn wire_type(lock_type: LockType, waits: bool) -> LockType4 {
    match (lock_type, waits) {
        (LockType::Read, false) => LockType4::Read,
        (LockType::Write, false) => LockType4::Write,
        (LockType::Read, true) => LockType4::ReadWait,
        (LockType::Write, true) => LockType4::WriteWait,
    }
}

/// The access of the open that a lock is based on.
pub(super) const fn access_for(lock_type: LockType) -> ShareAccess {
    match lock_type {
        LockType::Read => ShareAccess::Read,
        LockType::Write => ShareAccess::Write,
    }
}

/// Whether a status says that a stateid is not valid any more.
const fn is_stateid_refused(status: NfsStat4) -> bool {
    matches!(
        status,
        NfsStat4::BadStateid
            | NfsStat4::StaleStateid
            | NfsStat4::OldStateid
            | NfsStat4::Expired
            | NfsStat4::AdminRevoked
    )
}

/// The reply that a status of LOCK or LOCKU stands for.
fn reply_of(status: NfsStat4) -> LockReply {
    LockReply::Refused(match status {
        NfsStat4::Denied => return LockReply::Denied,
        NfsStat4::Grace | NfsStat4::Delay => return LockReply::Grace,
        NfsStat4::Deadlock => LockError::Deadlock,
        // Linux says the same (flock(2) does not check it itself).
        NfsStat4::Openmode => LockError::OpenMode,
        // The server has no ranges as large as this.
        NfsStat4::BadRange => LockError::Failed(Fault::Fbig),
        // Servers return these if they have no resources for another lock, or no locks at all.
        NfsStat4::Serverfault | NfsStat4::Resource | NfsStat4::LockNotsupp | NfsStat4::Notsupp => {
            LockError::NoLocks
        }
        status => LockError::Failed(fault(status)),
    })
}

impl LockOperations for NfsV4 {
    fn locks_by_open_mode(&self) -> bool {
        true
    }

    /// A server may forget who waits when the lease ends.
    fn blocked_lock_wait_max(&self) -> Duration {
        self.session.lock().lease.length() / 2
    }

    /// LOCK.
    fn lock(&self, open: OpenCaller<'_>, file: &FileHandle, lock: &WireLock, mode: LockMode) -> LockAnswer {
        if mode == LockMode::Reclaim {
            // Recovery has reclaimed all.
            return Ok(LockReply::Refused(LockError::NoLocks));
        }
        let (mut state, _used, is_new) = self.locks.begin(file, open.open, lock.owner, lock.range);
        self.opens.begin_lock(&state.open, is_new);
        let waits = mode == LockMode::Block;
        let kind = wire_type(lock.lock_type, waits);
        let access = access_for(lock.lock_type);
        for _ in 0..STATEID_RETRIES_MAX {
            if state.stateid.is_none() && self.opens.usable(&state.open, access) == UsableOpen::None {
                return Ok(LockReply::Refused(LockError::NoLocks));
            }
            let status = match self.send_lock(open.rpc(), &state, kind, lock.range)? {
                Ok(stateid) => {
                    if self.locks.granted(&state, stateid, lock) {
                        return Ok(LockReply::Granted);
                    }
                    // It was granted by the server of before.
                    state = self.locks.current_state(&state);
                    continue;
                }
                Err(status) => status,
            };
            let Some(stateid) = state.stateid.filter(|_| is_stateid_refused(status)) else {
                return Ok(self.denied(&state, lock.range, waits, status));
            };
            self.free_revoked(stateid, status);
            if self.lose_lock_state(file, stateid) {
                return Ok(LockReply::Refused(LockError::Failed(Fault::Io)));
            }
            state = self.locks.current_state(&state);
        }
        Err(CallError::SystemError)
    }

    /// LOCKU of what the owner has in the range.
    fn unlock(
        &self,
        caller: RpcCaller<'_>,
        file: &FileHandle,
        owner: WireOwner,
        range: ByteRange,
    ) -> LockAnswer {
        for _ in 0..STATEID_RETRIES_MAX {
            let state = match self.locks.unlockable(file, owner, range) {
                UnlockTarget::None => return Ok(LockReply::Granted),
                UnlockTarget::State(state) => state,
                UnlockTarget::UnknownStateid(state, range, lock_type) => {
                    let lock = WireLock { owner, range, lock_type };
                    if let Some(reply) = self.settle_lock(caller, &state, &lock)? {
                        return Ok(reply);
                    }
                    continue;
                }
            };
            let Some(stateid) = state.stateid else { continue };
            let (stateid, reply) = match self.send_unlock(caller, &state, stateid, range)? {
                Ok(stateid) => (stateid, LockReply::Granted),
                // The file is gone, or cannot be named any more.
                Err(status @ (NfsStat4::Stale | NfsStat4::Fhexpired)) => (stateid, reply_of(status)),
                Err(status) if is_stateid_refused(status) => {
                    self.free_revoked(stateid, status);
                    self.lose_lock_state(file, stateid);
                    continue;
                }
                Err(status) => return Ok(reply_of(status)),
            };
            if self.locks.unlocked(&state, stateid, range) {
                self.tidy_locks(file);
                return Ok(reply);
            }
        }
        Err(CallError::SystemError)
    }

    /// The server has granted nothing. Notifications without a receiver are refused.
    fn cancel_lock(&self, _: RpcCaller<'_>, file: &FileHandle, lock: &WireLock) -> LockAnswer {
        self.locks.withdraw(file, lock.owner, lock.range);
        Ok(LockReply::Granted)
    }

    /// LOCKT.
    fn test_lock(
        &self,
        caller: RpcCaller<'_>,
        file: &FileHandle,
        lock: &WireLock,
    ) -> Result<LockTestReply, CallError> {
        let (offset, length) = lock_offset_and_length(lock.range);
        let client = self.session.lock().client;
        let name = self.locks.name_for_test(file, lock.owner).bytes();
        let kind = wire_type(lock.lock_type, false);
        let append = |operations: &mut CompoundEncoder<'_>, _: Stateid| {
            put_fh(operations, file);
            operations.push(&LocktArgs4 { kind, offset, length, owner: owner(client, &name) });
        };
        let reply = self.send(&CompoundRequest::idempotent(caller, Nfs4Operation::Lockt, &append))?;
        let mut results = CompoundResultReader::new(self.decoded(reply.results())?, reply.generation());
        if let Err(fault) = self.decoded(results.pass(Nfs4Operation::Putfh))? {
            return Ok(LockTestReply::Refused(LockError::Failed(fault)));
        }
        let status = results.operations.status(Nfs4Operation::Lockt).and_then(|status| match status {
            NfsStat4::Ok => Ok(None),
            NfsStat4::Denied => Ok(Some(results.operations.decoder().get::<LockDenied<'_>>()?)),
            status => Err(ResultError::Failed(status)),
        });
        Ok(match self.decoded(outcome(status))? {
            Ok(None) => LockTestReply::Free,
            Ok(Some(denied)) => LockTestReply::Held(remote_lock(&denied)),
            Err(status) => LockTestReply::of_refusal(reply_of(status)),
        })
    }

    fn forget_locks(&self, file: &FileHandle) {
        self.tidy_locks(file);
    }

    fn report_lock_events(&self, events: Weak<dyn LockEvents>) {
        self.locks.report(events);
    }
}

impl NfsV4 {
    /// Records a LOCK that was not granted, and returns the reply to its caller.
    fn denied(&self, state: &LockStateRef, range: ByteRange, waits: bool, status: NfsStat4) -> LockReply {
        let is_notified =
            waits && self.opens.may_notify(&state.open) && self.session.lock().backchannel.is_usable();
        match reply_of(status) {
            LockReply::Denied if is_notified => {
                self.locks.denied(state, range, true);
                LockReply::Blocked
            }
            reply => {
                self.locks.denied(state, range, false);
                reply
            }
        }
    }

    /// Sends a LOCK. If it may have been executed and has no reply, its range counts as perhaps
    /// held, and as held no more strongly than it asks for.
    fn send_lock(
        &self,
        caller: RpcCaller<'_>,
        state: &LockStateRef,
        kind: LockType4,
        range: ByteRange,
    ) -> Result<Result<Stateid, NfsStat4>, CallError> {
        let was_sent = AtomicBool::new(false);
        let weakening = Weakening::new(&self.locks, state, range, Some(kind.lock_type()));
        let append = |operations: &mut CompoundEncoder<'_>, open_stateid: Stateid| {
            was_sent.store(true, Relaxed);
            weakening.begin();
            self.push_lock(operations, open_stateid, state, kind, range, false);
        };
        let again = |execution| weakening.again(execution);
        let request = CompoundRequest { again: Some(&again), ..lock_request(caller, state, kind, &append) };
        let locked = self.send(&request).and_then(|reply| self.result_of(&reply, Nfs4Operation::Lock));
        match locked {
            Ok(Ok(_)) => {}
            Ok(Err(_)) => weakening.refused(),
            Err(_) if was_sent.into_inner() => self.locks.may_hold(state, range, kind.lock_type()),
            Err(_) => {}
        }
        locked
    }

    pub(super) fn push_lock(
        &self,
        operations: &mut CompoundEncoder<'_>,
        open_stateid: Stateid,
        state: &LockStateRef,
        kind: LockType4,
        range: ByteRange,
        reclaim: bool,
    ) {
        let (offset, length) = lock_offset_and_length(range);
        let (client, name) = (self.session.lock().client, state.name.bytes());
        let locker = match state.stateid {
            Some(stateid) => Locker::Existing { stateid, seqid: 0 },
            None => Locker::New { open_seqid: 0, open_stateid, seqid: 0, owner: owner(client, &name) },
        };
        operations.push(&LockArgs4 { kind, reclaim, offset, length, locker });
    }

    /// The stateid that LOCK or LOCKU returns.
    pub(super) fn result_of(
        &self,
        reply: &CompoundReply,
        operation: Nfs4Operation,
    ) -> Result<Result<Stateid, NfsStat4>, CallError> {
        if let Some(status) = reply.refused() {
            return Ok(Err(status));
        }
        self.decoded(outcome(self.decoded(reply.results())?.next::<Stateid>(operation)))
    }

    /// Asks again for a lock whose reply was lost, to get its stateid. `None`: it is known now what
    /// the server holds.
    fn settle_lock(
        &self,
        caller: RpcCaller<'_>,
        state: &LockStateRef,
        lock: &WireLock,
    ) -> Result<Option<LockReply>, CallError> {
        let kind = wire_type(lock.lock_type, false);
        if self.opens.usable(&state.open, access_for(lock.lock_type)) == UsableOpen::None {
            self.locks.not_granted(state, lock.range);
            return Ok(None);
        }
        match self.send_lock(caller, state, kind, lock.range)? {
            Ok(stateid) => {
                self.locks.granted(state, stateid, lock);
            }
            Err(NfsStat4::Grace | NfsStat4::Delay) => return Ok(Some(LockReply::Grace)),
            Err(_) => self.locks.not_granted(state, lock.range),
        }
        Ok(None)
    }

    /// Sends a LOCKU. Unless it is refused, its range counts as perhaps held until the table is
    /// told of the result.
    fn send_unlock(
        &self,
        caller: RpcCaller<'_>,
        state: &LockStateRef,
        stateid: Stateid,
        range: ByteRange,
    ) -> Result<Result<Stateid, NfsStat4>, CallError> {
        let (offset, length) = lock_offset_and_length(range);
        let weakening = Weakening::new(&self.locks, state, range, None);
        let append = |operations: &mut CompoundEncoder<'_>, stateid: Stateid| {
            weakening.begin();
            operations.push(&LockuArgs4 { kind: LockType4::Write, seqid: 0, stateid, offset, length });
        };
        let again = |execution| weakening.again(execution);
        let request = CompoundRequest {
            open: Some((&state.open, ShareAccess::Read)),
            lock: Some(stateid),
            again: Some(&again),
            ..CompoundRequest::non_idempotent(caller, Nfs4Operation::Locku, 0, &append)
        };
        let reply = self.send(&request)?;
        let unlocked = self.result_of(&reply, Nfs4Operation::Locku);
        if matches!(unlocked, Ok(Err(_))) {
            weakening.refused();
        }
        unlocked
    }

    /// The server does not accept a lock's stateid. Returns whether locks are lost by that, which
    /// is reported; otherwise the stateid is one of before.
    pub(super) fn lose_lock_state(&self, file: &FileHandle, stateid: Stateid) -> bool {
        let Some(lost) = self.locks.stateid_refused(file, stateid) else { return false };
        self.report_lost(&lost);
        !lost.ranges.is_empty()
    }

    fn report_lost(&self, lost: &LostLocks) {
        if let (Some(events), Some(owner)) = (self.locks.events(), lost.owner) {
            for (range, _) in lost.ranges.iter() {
                events.lost(&lost.file, owner, range);
            }
        }
        self.locks.loss_reported(lost);
        self.tidy_locks(&lost.file);
    }

    /// An open is lost, because the server refuses it with this status, and with it what was locked
    /// through it. Returns whether lock states are to be freed.
    pub(super) fn lose_locks_of(&self, open: &OpenKey, status: NfsStat4) -> bool {
        let mut has_revoked = false;
        for lost in self.locks.lose_open(open) {
            if let Some(stateid) = lost.stateid.filter(|_| is_revoked(status)) {
                self.session.free(FreeOrder::Locks, stateid);
                has_revoked = true;
            }
            self.report_lost(&lost);
        }
        has_revoked
    }

    /// Removes the unused lock states of a file, and has its opens narrowed that nothing is locked
    /// through any more.
    pub(super) fn tidy_locks(&self, file: &FileHandle) {
        if self.locks.is_empty() {
            return;
        }
        let unpinned = self.locks.tidy(file, |open, is_locked| self.opens.note_locks(open, is_locked));
        let now = self.rpc.now();
        unpinned.iter().filter(|open| self.opens.unpin(open, now)).for_each(|open| self.close_when_due(open));
        self.opens.narrow_all(file).iter().for_each(|open| self.close_when_due(open));
    }

    /// A callback may have been lost: waiters for a notification ask again.
    pub(super) fn tell_callbacks_lost(&self) {
        if let Some(events) = self.locks.events().filter(|_| !self.locks.is_empty()) {
            events.callbacks_lost();
        }
    }
}

/// The compound of a LOCK that `append` adds.
pub(super) fn lock_request<'a>(
    caller: RpcCaller<'a>,
    state: &'a LockStateRef,
    kind: LockType4,
    append: Append<'a>,
) -> CompoundRequest<'a> {
    CompoundRequest {
        open: Some((&state.open, access_for(kind.lock_type()))),
        lock: state.stateid,
        ..CompoundRequest::non_idempotent(caller, Nfs4Operation::Lock, 0, append)
    }
}

fn owner<'a>(client: Clientid, name: &'a [u8]) -> StateOwner<'a> {
    StateOwner { clientid: client, owner: OpaqueLimited::new(name).unwrap_or_default() }
}

/// A lock of another client; one with a range that cannot be reaches to the end.
fn remote_lock(denied: &LockDenied<'_>) -> RemoteLock {
    let range = lock_range(denied.offset, denied.length);
    let to_end = ByteRange::new(denied.offset, u64::MAX).unwrap_or(ByteRange::WHOLE);
    RemoteLock { range: range.unwrap_or(to_end), lock_type: denied.kind.lock_type() }
}
