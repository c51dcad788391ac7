//! The session of a client, and what must be done before requests can be sent (RFC 8881 section
//! 2.10).
//!
//! Owns the `slots` and their numbers, and that of the next session (`create_sequence`). The flags
//! in replies to SEQUENCE are about the `lease`, the `backchannel` and `revoked_states`. Sends
//! nothing.

mod backchannel;
mod create_sequence;
mod lease;
mod limits;
mod revoked_states;
mod slots;

use std::{sync::Arc, time::Instant};

use curt_proto::nfs4::{
    Clientid, CreateSessionOk4, NfsStat4, SequenceArgs4, SequenceId, SequenceOk4, SequenceStatusFlags,
    SessionId, Stateid,
};
use curt_rpc::client::{CallError, Interrupt, Wake};
use parking_lot::{Condvar, Mutex, MutexGuard};

use self::{
    backchannel::{Backchannel, UNBOUND},
    create_sequence::CreateSequence,
    lease::Lease,
    limits::SessionLimits,
    revoked_states::{REVOKED, RevokedStates},
    slots::{Slots, TakenSlot},
};
pub(super) use self::{revoked_states::FreeOrder, slots::SLOTS_MAX};

/// Counts the sessions of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SessionGeneration(u64);

impl SessionGeneration {
    /// The number of the next session.
    pub(super) const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// The recovery that is necessary before requests can be sent. Each step includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RecoveryStep {
    /// Nothing.
    None,
    /// The server has revoked state: it is acknowledged, and the rest is tested.
    TestStates,
    /// Opens are reclaimed, and RECLAIM_COMPLETE is sent.
    Reclaim,
    /// CREATE_SESSION.
    Session,
    /// EXCHANGE_ID.
    Client,
}

/// Whether a compound waits for recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CompoundPurpose {
    /// Waits until recovery has ended.
    Ordinary,
    /// Is part of recovery.
    Recovery,
}

/// The session, and the threads that wait for it.
#[derive(Debug)]
pub(super) struct SessionMonitor {
    state: Mutex<SessionState>,
    changed: Condvar,
}

/// The state of the client and its session.
#[derive(Debug)]
pub(super) struct SessionState {
    need: RecoveryStep,
    /// After the session is created, opens have to be reclaimed.
    must_reclaim: bool,
    /// The server has kept the session, but nothing else.
    has_forgotten: bool,
    /// When a reply has last shown that, unless a later one is without the flag.
    forgotten_at: Option<Instant>,
    /// How often opens were reclaimed.
    reclaims: u64,
    /// A thread runs recovery.
    is_recovering: bool,
    /// How often it has failed for all who waited for it, and why the last time.
    failures: u64,
    failure: Option<CallError>,
    generation: SessionGeneration,
    pub(super) client: Clientid,
    pub(super) create_sequence: CreateSequence,
    pub(super) session: SessionId,
    /// The session that the server may still have for this client.
    at_server: Option<SessionId>,
    pub(super) slots: Slots,
    /// The session that the current one has replaced, and how many requests are outstanding in it.
    replaced: (SessionGeneration, usize),
    pub(super) limits: SessionLimits,
    pub(super) lease: Lease,
    pub(super) backchannel: Backchannel,
    pub(super) revoked: RevokedStates,
}

/// The slot of a request. Dropping it leaves the slot in doubt.
#[derive(Debug)]
pub(super) struct SlotGuard<'a> {
    monitor: &'a SessionMonitor,
    generation: SessionGeneration,
    taken: TakenSlot,
    pub(super) arguments: SequenceArgs4,
    /// The most operations of a compound.
    pub(super) operations_max: u32,
    is_settled: bool,
    /// [`Lease::doubts`], [`Backchannel::bindings`] and [`SessionState::reclaims`] when it was
    /// taken.
    lease_doubts: u64,
    bindings: u64,
    reclaims: u64,
}

/// A slot for a compound, or the recovery that has to precede it.
pub(super) enum SlotOrRecovery<'a> {
    Slot(SlotGuard<'a>),
    /// The caller must run recovery, then call [`SessionMonitor::recovered`].
    Recover,
}

impl Default for SessionMonitor {
    fn default() -> Self {
        let state = SessionState {
            need: RecoveryStep::Client,
            must_reclaim: true,
            has_forgotten: false,
            forgotten_at: None,
            reclaims: 0,
            is_recovering: false,
            failures: 0,
            failure: None,
            generation: SessionGeneration::default(),
            client: Clientid(0),
            create_sequence: CreateSequence::default(),
            session: SessionId([0; 16]),
            at_server: None,
            slots: Slots::default(),
            replaced: (SessionGeneration::default(), 0),
            limits: SessionLimits::default(),
            lease: Lease::default(),
            backchannel: Backchannel::default(),
            revoked: RevokedStates::default(),
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }
}

impl Wake for SessionMonitor {
    fn wake(&self) {
        // When this lock is taken, a waiter has either seen the raised flag or is asleep.
        drop(self.state.lock());
        self.changed.notify_all();
    }
}

impl SessionMonitor {
    pub(super) fn lock(&self) -> MutexGuard<'_, SessionState> {
        self.state.lock()
    }

    /// Waits for a free slot, the lowest first, and those in doubt last. The server is asked to
    /// keep a reply of `kept` bytes, unless its limit is smaller.
    ///
    /// # Errors
    /// [`CallError::Interrupted`], or that of a recovery which has failed meanwhile for all.
    pub(super) fn take_slot(
        self: &Arc<Self>,
        purpose: CompoundPurpose,
        kept: Option<u32>,
        interrupt: &Interrupt,
    ) -> Result<SlotOrRecovery<'_>, CallError> {
        let mut state = self.state.lock();
        let failures = state.failures;
        let mut registration = None;
        loop {
            if purpose == CompoundPurpose::Ordinary
                && state.failures != failures
                && let Some(error) = state.failure
            {
                return Err(error);
            }
            if purpose == CompoundPurpose::Ordinary
                && state.need != RecoveryStep::None
                && !state.is_recovering
            {
                state.is_recovering = true;
                return Ok(SlotOrRecovery::Recover);
            }
            let may_send = purpose == CompoundPurpose::Recovery || state.need == RecoveryStep::None;
            if may_send && let Some(guard) = self.free_slot(&mut state, kept) {
                return Ok(SlotOrRecovery::Slot(guard));
            }
            if interrupt.is_raised() {
                return Err(CallError::Interrupted);
            }
            if registration.is_none() {
                drop(state);
                let waker: Arc<dyn Wake> = Arc::<Self>::clone(self);
                registration = Some(interrupt.register(waker));
                state = self.state.lock();
                continue;
            }
            self.changed.wait(&mut state);
        }
    }

    fn free_slot<'a>(&'a self, state: &mut SessionState, kept: Option<u32>) -> Option<SlotGuard<'a>> {
        let taken = state.slots.take_free()?;
        Some(self.guard(state, taken, kept))
    }

    fn guard<'a>(&'a self, state: &SessionState, taken: TakenSlot, kept: Option<u32>) -> SlotGuard<'a> {
        SlotGuard {
            monitor: self,
            generation: state.generation,
            taken,
            arguments: SequenceArgs4 {
                session: state.session,
                sequence: taken.sequence,
                slot: taken.id,
                highest_slot: taken.highest,
                cache_this: kept.is_some_and(|bytes| state.limits.is_kept(bytes)),
            },
            operations_max: state.limits.operations_max,
            is_settled: false,
            lease_doubts: state.lease.doubts,
            bindings: state.backchannel.bindings,
            reclaims: state.reclaims,
        }
    }

    /// A free slot in doubt, if requests can be sent.
    pub(super) fn take_doubtful(&self) -> Option<SlotGuard<'_>> {
        let state = &mut *self.state.lock();
        if state.need != RecoveryStep::None {
            return None;
        }
        let taken = state.slots.take_doubtful()?;
        Some(self.guard(state, taken, None))
    }

    /// The recovery thread has ended. If it has failed for all who wait for it, each of them would
    /// otherwise try in turn, and the last one wait for all.
    pub(super) fn recovered(&self, failure: Option<CallError>) {
        let mut state = self.state.lock();
        state.is_recovering = false;
        if failure.is_some() {
            (state.failures, state.failure) = (state.failures + 1, failure);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// The server has revoked a state that this client has dropped.
    pub(super) fn free(&self, order: FreeOrder, stateid: Stateid) {
        let mut state = self.state.lock();
        if state.revoked.free(order, stateid) {
            state.need = state.need.max(RecoveryStep::TestStates);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// A request of this session has shown that something is needed.
    pub(super) fn require_recovery(&self, need: RecoveryStep, generation: SessionGeneration) {
        let mut state = self.state.lock();
        if state.generation == generation {
            state.need = state.need.max(need);
        }
        drop(state);
        self.changed.notify_all();
    }
}

impl SessionState {
    pub(super) const fn need(&self) -> RecoveryStep {
        self.need
    }

    /// The number of the session.
    pub(super) const fn generation(&self) -> SessionGeneration {
        self.generation
    }

    /// EXCHANGE_ID was answered. The server knows nothing of the client's state if it has given a
    /// new number, or has no confirmed record of that number (section 18.35.3).
    pub(super) fn exchanged(&mut self, client: Clientid, sequence: SequenceId, is_confirmed: bool) -> bool {
        let is_first = self.generation == SessionGeneration::default();
        let is_new = is_first || client != self.client || !is_confirmed;
        self.client = client;
        self.create_sequence.exchanged(sequence, is_new);
        self.must_reclaim |= is_new;
        self.at_server = self.at_server.filter(|_| !is_new);
        if is_new {
            self.revoked.forget();
        }
        self.need = RecoveryStep::Session;
        is_new
    }

    /// CREATE_SESSION was answered. Returns the session that it replaces, which is to be destroyed.
    pub(super) fn created(&mut self, ok: &CreateSessionOk4, now: Instant) -> Option<SessionId> {
        self.replaced = (self.generation, self.slots.busy());
        self.generation = self.generation.next();
        self.session = ok.session;
        let replaced = self.at_server.replace(ok.session).filter(|former| *former != ok.session);
        self.create_sequence.executed();
        self.slots.created(ok.fore.requests_max);
        self.limits = SessionLimits::from(&ok.fore);
        self.lease.renew(now);
        self.backchannel.created(ok.flags);
        self.need = match self.must_reclaim {
            true => RecoveryStep::Reclaim,
            false => self.least_need(),
        };
        replaced
    }

    /// The recovery steps other than session and opens.
    fn least_need(&self) -> RecoveryStep {
        if self.revoked.is_any() { RecoveryStep::TestStates } else { RecoveryStep::None }
    }

    /// CREATE_SESSION was answered with a session that is of no use.
    pub(super) const fn rejected(&mut self) {
        self.create_sequence.executed();
    }

    /// CREATE_SESSION was refused, for another reason than its number. Recovery begins with
    /// EXCHANGE_ID.
    pub(super) const fn not_created(&mut self) {
        self.create_sequence.refused();
        self.client_unknown();
    }

    /// CREATE_SESSION was refused because of its number. Recovery begins with EXCHANGE_ID.
    pub(super) const fn misordered(&mut self) {
        self.create_sequence.misordered();
        self.client_unknown();
    }

    /// Returns whether the server has lost all state but the session, and clears that flag.
    pub(super) const fn take_forgotten(&mut self) -> bool {
        std::mem::replace(&mut self.has_forgotten, false)
    }

    /// Records that the server does not know the client ID: recovery begins with EXCHANGE_ID.
    pub(super) const fn client_unknown(&mut self) {
        self.need = RecoveryStep::Client;
    }

    /// A step of recovery is done; a later need stands.
    pub(super) fn satisfied(&mut self, need: RecoveryStep) {
        match need {
            RecoveryStep::Reclaim => (self.must_reclaim, self.reclaims) = (false, self.reclaims + 1),
            RecoveryStep::TestStates => self.revoked.tested(),
            RecoveryStep::None | RecoveryStep::Session | RecoveryStep::Client => {}
        }
        if self.need == need {
            // Other threads may have added to it.
            self.need = self.least_need();
        }
    }

    /// As [`Backchannel::must_bind`], of a session that is not to be replaced.
    pub(super) fn must_bind(&mut self, now: Instant, replacements: u64) -> bool {
        self.backchannel.must_bind(now, replacements, self.lease.length()) && !self.must_replace()
    }

    /// Whether another session has to replace this one.
    pub(super) fn must_replace(&self) -> bool {
        self.need >= RecoveryStep::Session
    }

    /// Whether requests are outstanding in the session that was replaced.
    pub(super) const fn is_replaced_in_use(&self) -> bool {
        self.replaced.1 > 0
    }

    /// A reply to SEQUENCE, which was sent at `sent_at`, extends the lease, unless it says that
    /// delegations are lost or cannot be recalled. If another reply has said so since its slot was
    /// taken, that may be of a later time.
    fn judge_lease(&mut self, flags: u32, sent_at: Instant, is_newest: bool) {
        if self.revoked.judge(flags, sent_at, self.lease.length()) {
            self.need = self.need.max(RecoveryStep::TestStates);
        }
        if flags & (REVOKED | UNBOUND) != 0 {
            self.lease.doubt();
        } else if is_newest {
            self.lease.extend(sent_at);
            self.revoked.none_reported();
        }
    }

    /// Whether the slot of a request that ends is one of this session.
    fn has_slot(&mut self, guard: &SlotGuard<'_>) -> bool {
        if self.replaced.0 == guard.generation {
            self.replaced.1 = self.replaced.1.saturating_sub(1);
        }
        self.generation == guard.generation
    }

    /// Whether requests can be sent, and the server has to be told of a slot
    /// ([`Slots::must_tell`]).
    pub(super) fn must_tell_of_slots(&self) -> bool {
        self.need == RecoveryStep::None && self.slots.must_tell()
    }
}

impl SlotGuard<'_> {
    /// The session of the slot.
    pub(super) const fn generation(&self) -> SessionGeneration {
        self.generation
    }

    /// Whether the slot is in doubt.
    pub(super) const fn is_doubtful(&self) -> bool {
        self.taken.is_doubtful
    }

    /// The server has executed SEQUENCE, for a request that was sent at `sent_at`. Returns whether
    /// the server has no connection for its calls.
    pub(super) fn executed(mut self, ok: &SequenceOk4, sent_at: Instant) -> bool {
        self.is_settled = true;
        let monitor = self.monitor;
        let mut state = monitor.state.lock();
        if state.has_slot(&self) {
            state.slots.advance(&self.taken);
            state.lease.renew(sent_at);
            state.slots.told(&self.taken, ok);
            let flags = ok.status_flags.0;
            let is_newest = self.lease_doubts == state.lease.doubts;
            state.backchannel.judge(flags, self.bindings, is_newest);
            state.judge_lease(flags, sent_at, is_newest);
            let lease = state.lease.length();
            if state.backchannel.is_newly_faulty(flags, sent_at, lease) {
                state.need = state.need.max(RecoveryStep::Session);
            }
            // The server sets the flag until RECLAIM_COMPLETE, and it is also in replies that were
            // sent before RECLAIM_COMPLETE. A server that goes on setting it gets all state again
            // once in a lease.
            let is_recent = |at: Instant| sent_at.saturating_duration_since(at) < lease;
            if !state.must_reclaim && state.reclaims == self.reclaims {
                if flags & SequenceStatusFlags::RESTART_RECLAIM_NEEDED == 0 {
                    state.forgotten_at = None;
                } else if !state.forgotten_at.is_some_and(is_recent) {
                    (state.must_reclaim, state.has_forgotten) = (true, true);
                    state.forgotten_at = Some(sent_at);
                    state.need = state.need.max(RecoveryStep::Reclaim);
                }
            }
        }
        let is_unbound = state.backchannel.is_unbound;
        drop(state);
        monitor.changed.notify_all();
        is_unbound
    }

    /// The server has refused SEQUENCE: the slot's number is still to be used.
    pub(super) fn refused(mut self) {
        self.end(Slots::release);
    }

    /// A SEQUENCE alone was answered with this status. Returns whether the slot can be used again:
    /// the number is used up, by this request or by the one in doubt.
    pub(super) fn settled(mut self, status: NfsStat4) -> bool {
        let is_used_up =
            matches!(status, NfsStat4::Ok | NfsStat4::SeqFalseRetry | NfsStat4::RetryUncachedRep);
        self.end(if is_used_up { Slots::advance } else { Slots::release });
        is_used_up
    }

    /// Ends the use of the slot in this way, unless its session is lost.
    fn end(&mut self, end: fn(&mut Slots, &TakenSlot)) {
        self.is_settled = true;
        let mut state = self.monitor.state.lock();
        if state.has_slot(self) {
            end(&mut state.slots, &self.taken);
        }
        drop(state);
        self.monitor.changed.notify_all();
    }
}

impl Drop for SlotGuard<'_> {
    fn drop(&mut self) {
        if !self.is_settled {
            self.end(Slots::doubt);
        }
    }
}

#[cfg(test)]
mod tests;
