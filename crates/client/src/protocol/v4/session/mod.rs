//! The session of a client: its slots, and what must be done before requests can be sent (RFC 8881
//! section 2.10).
//!
//! Owns the sequence numbers. A slot is used by one request at a time. Its number advances when the
//! server has executed SEQUENCE, and only then. A request without a reply leaves its slot in doubt:
//! the server may or may not have executed it. Such a slot is settled by a SEQUENCE alone, before
//! its next use. Sends nothing.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use curt_proto::nfs4::{
    Clientid, CreateSessionFlags, CreateSessionOk4, NfsStat4, SequenceArgs4, SequenceId, SequenceOk4,
    SequenceStatusFlags, SessionId, SlotId, Stateid,
};
use curt_rpc::client::{CallError, Interrupt, Wake};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::protocol::LeaseEnd;

/// The most slots that the client asks for and uses.
pub(super) const SLOTS_MAX: u32 = 128;

/// The lease that is assumed until the server has returned its own.
const LEASE_DEFAULT: Duration = Duration::from_secs(90);

/// The smallest requests and replies that a session must allow, in bytes.
pub(super) const MESSAGE_MIN: u32 = 4096;

/// Bytes of a compound beside the data of a READ or WRITE that a session's sizes include: headers,
/// a credential, a handle, piggybacked operations and two sets of attributes.
const OVERHEAD: u32 = 2048;

fn data_max(message_max: u32) -> u32 {
    message_max.saturating_sub(OVERHEAD).clamp(1024, 1 << 20)
}

/// The most revoked states that wait for FREE_STATEID. Of more the server goes on saying that it
/// has revoked some: nothing is served by delegations then.
const FREED_MAX: usize = 1 << 16;

/// The server has no connection for its calls, or none that works.
const UNBOUND: u32 = SequenceStatusFlags::CB_PATH_DOWN
    | SequenceStatusFlags::CB_PATH_DOWN_SESSION
    | SequenceStatusFlags::BACKCHANNEL_FAULT;

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
    /// How often opens were reclaimed.
    reclaims: u64,
    /// A thread runs recovery.
    is_recovering: bool,
    /// How often it has failed for all who waited for it, and why the last time.
    failures: u64,
    failure: Option<CallError>,
    generation: SessionGeneration,
    pub(super) client: Clientid,
    /// The sequence number of the next CREATE_SESSION.
    pub(super) create_sequence: SequenceId,
    pub(super) session: SessionId,
    /// The session that the server may still have for this client.
    at_server: Option<SessionId>,
    slots: Vec<Slot>,
    /// No slot after this one is busy.
    busy_to: usize,
    /// How many of them the server wants to be used.
    usable: usize,
    /// How many of them the server accepts requests in; `usable` at least.
    accepted: usize,
    /// How often slots were taken.
    taken: u64,
    pub(super) request_max: u32,
    pub(super) response_max: u32,
    /// The longest reply that the server keeps.
    response_kept_max: u32,
    pub(super) operations_max: u32,
    lease: Duration,
    renewed_at: Option<Instant>,
    /// The server has no connection for its calls.
    is_unbound: bool,
    /// When a connection was bound last because another was lost, and how many had been replaced by
    /// then.
    bound_at: Option<Instant>,
    pub(super) bound_replacements: u64,
    /// How often a connection was bound.
    bindings: u64,
    /// The server has accepted a backchannel.
    has_backchannel: bool,
    /// When states were last tested because the server reports that it has revoked some.
    tested_at: Option<Instant>,
    /// All states are to be tested.
    must_test: bool,
    /// Revoked states that this client has dropped, and the server keeps until it hears of that.
    to_free: BTreeMap<(FreeOrder, [u8; 12]), Stateid>,
    /// Until when delegations are valid.
    pub(super) lease_end: Arc<LeaseEnd>,
    /// How often replies have made delegations doubtful.
    lease_doubts: u64,
}

/// The order in which revoked states are freed: an open is not before its locks (RFC 8881 section
/// 18.38.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FreeOrder {
    Locks,
    Others,
}

/// A slot of the session.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// The number of its next request.
    sequence: SequenceId,
    is_busy: bool,
    doubt: SlotDoubt,
}

/// Whether the server may have executed a request with a slot's number, or may still execute it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotDoubt {
    /// Neither.
    None,
    /// Both are possible. The number of slots that had been taken when the doubt began.
    Since(u64),
    /// The former is possible. The server was told later that the slot is not used, and accepts no
    /// SEQUENCE in it any more (`sr_highest_slotid`, section 18.46.3).
    Past,
}

impl Slot {
    const fn new(sequence: SequenceId) -> Self {
        Self { sequence, is_busy: false, doubt: SlotDoubt::None }
    }

    const fn is_doubtful(&self) -> bool {
        !matches!(self.doubt, SlotDoubt::None)
    }

    const fn may_be_executed(&self) -> bool {
        matches!(self.doubt, SlotDoubt::Since(_))
    }
}

/// The slot of a request. Dropping it leaves the slot in doubt.
#[derive(Debug)]
pub(super) struct SlotGuard<'a> {
    monitor: &'a SessionMonitor,
    generation: SessionGeneration,
    index: usize,
    pub(super) arguments: SequenceArgs4,
    /// The most operations of a compound.
    pub(super) operations_max: u32,
    /// The slot is in doubt.
    pub(super) is_doubtful: bool,
    /// [`SessionState::taken`] with it.
    number: u64,
    is_settled: bool,
    /// [`SessionState::lease_doubts`] and [`SessionState::bindings`] when it was taken.
    lease_doubts: u64,
    /// [`SessionState::reclaims`] then.
    reclaims: u64,
    bindings: u64,
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
            reclaims: 0,
            is_recovering: false,
            failures: 0,
            failure: None,
            generation: SessionGeneration::default(),
            client: Clientid(0),
            create_sequence: SequenceId(0),
            session: SessionId([0; 16]),
            at_server: None,
            slots: Vec::new(),
            busy_to: 0,
            usable: 0,
            accepted: 0,
            taken: 0,
            request_max: 0,
            response_max: 0,
            response_kept_max: 0,
            operations_max: 0,
            lease: LEASE_DEFAULT,
            renewed_at: None,
            is_unbound: false,
            bound_at: None,
            bound_replacements: 0,
            bindings: 0,
            has_backchannel: false,
            tested_at: None,
            must_test: false,
            to_free: BTreeMap::new(),
            lease_end: Arc::default(),
            lease_doubts: 0,
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
        let mut slots = state.slots.iter().take(state.usable);
        let settled = slots.clone().position(|slot| !slot.is_busy && !slot.is_doubtful());
        let index = settled.or_else(|| slots.position(|slot| !slot.is_busy))?;
        Some(self.guard(state, index, kept))
    }

    fn guard<'a>(&'a self, state: &mut SessionState, index: usize, kept: Option<u32>) -> SlotGuard<'a> {
        let cache_this = kept.is_some_and(|bytes| bytes <= state.response_kept_max);
        state.taken += 1;
        let slot = &mut state.slots[index];
        slot.is_busy = true;
        let (sequence, is_doubtful) = (slot.sequence, slot.is_doubtful());
        let highest = state.highest_busy(index);
        let id = |index: usize| SlotId(u32::try_from(index).unwrap_or(u32::MAX));
        let (session, slot, highest_slot) = (state.session, id(index), id(highest));
        SlotGuard {
            monitor: self,
            generation: state.generation,
            index,
            arguments: SequenceArgs4 { session, sequence, slot, highest_slot, cache_this },
            operations_max: state.operations_max,
            is_doubtful,
            number: state.taken,
            is_settled: false,
            lease_doubts: state.lease_doubts,
            reclaims: state.reclaims,
            bindings: state.bindings,
        }
    }

    /// A free slot in doubt, if requests can be sent. It may be one that the server wants not to be
    /// used. Those in which the server accepts nothing are settled by telling it
    /// ([`SessionState::must_tell_of_slots`]).
    pub(super) fn take_doubtful(&self) -> Option<SlotGuard<'_>> {
        let state = &mut *self.state.lock();
        let mut slots = state.slots.iter().take(state.accepted);
        let index = slots.position(|slot| slot.may_be_executed() && !slot.is_busy)?;
        (state.need == RecoveryStep::None).then(|| self.guard(state, index, None))
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
        if state.to_free.len() < FREED_MAX {
            // Whatever its newest sequence number is.
            state.to_free.entry((order, stateid.other)).or_insert(Stateid { seqid: 0, ..stateid });
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

    pub(super) const fn lease(&self) -> Duration {
        self.lease
    }

    pub(super) fn set_lease(&mut self, seconds: u32) {
        // A server without a lease would make the client renew it without pause.
        let lease = Duration::from_secs(if seconds == 0 { 1 } else { seconds.into() });
        if lease < self.lease {
            // Replies have extended it by more.
            self.lease_end.suspend();
        }
        self.lease = lease;
    }

    /// EXCHANGE_ID was answered. The server knows nothing of the client's state if it has given a
    /// new number, or has no confirmed record of that number (section 18.35.3).
    pub(super) fn exchanged(&mut self, client: Clientid, sequence: SequenceId, is_confirmed: bool) -> bool {
        let is_first = self.generation == SessionGeneration::default();
        let is_new = is_first || client != self.client || !is_confirmed;
        (self.client, self.create_sequence) = (client, sequence);
        self.must_reclaim |= is_new;
        self.at_server = self.at_server.filter(|_| !is_new);
        if is_new {
            self.to_free.clear();
            self.must_test = false;
        }
        self.need = RecoveryStep::Session;
        is_new
    }

    /// CREATE_SESSION was answered. Returns the session that it replaces, which is to be destroyed.
    pub(super) fn created(&mut self, ok: &CreateSessionOk4, now: Instant) -> Option<SessionId> {
        self.generation = self.generation.next();
        self.session = ok.session;
        let replaced = self.at_server.replace(ok.session).filter(|former| *former != ok.session);
        self.create_sequence = self.create_sequence.next();
        let count = usize::try_from(ok.fore.requests_max.clamp(1, SLOTS_MAX)).unwrap_or(1);
        self.slots = vec![Slot::new(SequenceId(1)); count];
        (self.usable, self.accepted) = (count, count);
        self.request_max = ok.fore.request_max;
        self.response_max = ok.fore.response_max;
        self.response_kept_max = ok.fore.response_cached_max;
        self.operations_max = ok.fore.operations_max;
        self.renewed_at = Some(now);
        self.bound_at = None;
        self.bound();
        self.has_backchannel = ok.flags.0 & CreateSessionFlags::CONN_BACK_CHAN != 0;
        self.need = match self.must_reclaim {
            true => RecoveryStep::Reclaim,
            false => self.least_need(),
        };
        replaced
    }

    /// The recovery steps other than session and opens.
    fn least_need(&self) -> RecoveryStep {
        if self.must_test || !self.to_free.is_empty() { RecoveryStep::TestStates } else { RecoveryStep::None }
    }

    /// CREATE_SESSION was answered with a session that is of no use.
    pub(super) const fn rejected(&mut self) {
        self.create_sequence = self.create_sequence.next();
    }

    /// The most data that a READ may ask for.
    pub(super) fn read_max(&self) -> u32 {
        data_max(self.response_max)
    }

    /// The most data of a WRITE.
    pub(super) fn write_max(&self) -> u32 {
        data_max(self.request_max)
    }

    /// The most bytes of the operations of a compound that has no data.
    pub(super) fn operations_bytes_max(&self) -> usize {
        usize::try_from(self.request_max.saturating_sub(OVERHEAD)).unwrap_or(usize::MAX)
    }

    /// The most bytes of the results of a compound that has no data.
    pub(super) fn results_bytes_max(&self) -> usize {
        usize::try_from(self.response_max.saturating_sub(OVERHEAD)).unwrap_or(usize::MAX)
    }

    /// Returns whether the server has lost all state but the session, and clears that flag.
    pub(super) const fn take_forgotten(&mut self) -> bool {
        std::mem::replace(&mut self.has_forgotten, false)
    }

    /// Records that the server does not know the client ID: recovery begins with EXCHANGE_ID.
    pub(super) const fn client_unknown(&mut self) {
        self.need = RecoveryStep::Client;
    }

    /// The revoked states that the server is to be told of, until that is done ([`Self::freed`]).
    pub(super) fn to_free(&self) -> Vec<Stateid> {
        self.to_free.values().copied().collect()
    }

    /// The server has been told of a revoked state.
    pub(super) fn freed(&mut self, stateid: Stateid) {
        for order in [FreeOrder::Locks, FreeOrder::Others] {
            self.to_free.remove(&(order, stateid.other));
        }
    }

    /// Whether all states are to be tested.
    pub(super) const fn must_test(&self) -> bool {
        self.must_test
    }

    /// A step of recovery is done; a later need stands.
    pub(super) fn satisfied(&mut self, need: RecoveryStep) {
        match need {
            RecoveryStep::Reclaim => (self.must_reclaim, self.reclaims) = (false, self.reclaims + 1),
            RecoveryStep::TestStates => self.must_test = false,
            RecoveryStep::None | RecoveryStep::Session | RecoveryStep::Client => {}
        }
        if self.need == need {
            // Other threads may have added to it.
            self.need = self.least_need();
        }
    }

    /// Whether the server can call this client, as far as is known.
    pub(super) const fn has_callbacks(&self) -> bool {
        self.has_backchannel && !self.is_unbound
    }

    /// Whether the lease has not been renewed for this time.
    pub(super) fn is_idle_for(&self, time: Duration, now: Instant) -> bool {
        self.renewed_at.is_none_or(|at| now.saturating_duration_since(at) >= time)
    }

    /// The server wants no more slots than these to be used.
    pub(super) fn limit_slots(&mut self, target: SlotId) {
        self.usable = self.slots_to(target);
        self.accepted = self.accepted.max(self.usable);
    }

    /// How many slots there are up to this one.
    fn slots_to(&self, highest: SlotId) -> usize {
        let highest = usize::try_from(highest.0).unwrap_or(usize::MAX);
        highest.saturating_add(1).clamp(1, self.slots.len().max(1))
    }

    /// Whether a connection is to be bound again now: at once if another was replaced since the
    /// last time (the server may not have noticed the loss), otherwise if the server has none, once
    /// in a lease.
    pub(super) fn must_bind(&mut self, now: Instant, replacements: u64) -> bool {
        let is_later = |at: Instant| now.saturating_duration_since(at) >= self.lease;
        let is_replaced = self.bound_replacements != replacements;
        self.bound_replacements = replacements;
        let is_due = is_replaced && self.has_backchannel
            || self.is_unbound && (is_replaced || self.bound_at.is_none_or(is_later));
        if is_due {
            self.bound_at = Some(now);
        }
        is_due
    }

    /// A connection is bound for the server's calls. So the session has a backchannel, also if the
    /// server has refused one in CREATE_SESSION.
    pub(super) const fn bound(&mut self) {
        self.bindings += 1;
        (self.is_unbound, self.has_backchannel) = (false, true);
    }

    /// Judges the connection for the server's calls by the flags of a reply. A reply to a request
    /// that was sent before the last one was bound says nothing new, nor does one that may be older
    /// than another.
    const fn judge_binding(&mut self, flags: u32, guard: &SlotGuard<'_>) {
        if flags & UNBOUND == 0 {
            self.is_unbound &= guard.lease_doubts != self.lease_doubts;
        } else if guard.bindings == self.bindings {
            self.is_unbound = true;
        }
    }

    /// A reply to SEQUENCE, which was sent at `sent_at`, extends the lease, unless it says that
    /// delegations are lost or cannot be recalled. So did another reply if there are more than
    /// `doubts` since its slot was taken: it may be of a later time.
    fn judge_lease(&mut self, flags: u32, sent_at: Instant, doubts: u64) {
        let revoked = SequenceStatusFlags::EXPIRED_ALL_STATE_REVOKED
            | SequenceStatusFlags::EXPIRED_SOME_STATE_REVOKED
            | SequenceStatusFlags::ADMIN_STATE_REVOKED;
        let delegations_revoked = SequenceStatusFlags::RECALLABLE_STATE_REVOKED;
        // A server that goes on saying so is not asked about it each time.
        let is_recent = |at: Instant| sent_at.saturating_duration_since(at) < self.lease / 2;
        if flags & (revoked | delegations_revoked) != 0 && !self.tested_at.is_some_and(is_recent) {
            self.tested_at = Some(sent_at);
            self.must_test = true;
            self.need = self.need.max(RecoveryStep::TestStates);
        }
        if flags & (revoked | delegations_revoked | UNBOUND) != 0 {
            self.lease_doubts += 1;
            self.lease_end.suspend();
        } else if doubts == self.lease_doubts {
            self.tested_at = None;
            self.lease_end.extend(sent_at + self.lease);
        }
    }

    /// Whether the outcome of a request that nobody waits for is unknown.
    pub(super) fn has_doubtful(&self) -> bool {
        self.slots.iter().any(Slot::may_be_executed)
    }

    /// Whether requests can be sent, and one in a slot that the server does not accept any more is
    /// in doubt until it is told that the slot is not used.
    pub(super) fn must_tell_of_slots(&self) -> bool {
        let mut unused = self.slots.iter().skip(self.accepted);
        self.need == RecoveryStep::None && unused.any(|slot| slot.may_be_executed() && !slot.is_busy)
    }

    /// The server was told of the highest slot in use, and accepts no more than these: it does not
    /// execute requests in higher ones any more. The slots that it only wants not to be used are
    /// settled by a SEQUENCE in them.
    fn told_of_slots(&mut self, guard: &SlotGuard<'_>, ok: &SequenceOk4) {
        // The server may wish for more than it accepts yet.
        self.limit_slots(ok.target_highest_slot.min(ok.highest_slot));
        self.accepted = self.slots_to(ok.highest_slot);
        let first = self.accepted.max(self.slots_to(guard.arguments.highest_slot));
        for slot in self.slots.iter_mut().skip(first).filter(|slot| !slot.is_busy) {
            if matches!(slot.doubt, SlotDoubt::Since(taken) if taken < guard.number) {
                slot.doubt = SlotDoubt::Past;
            }
        }
    }

    /// The highest busy slot; `taken` is busy. Searched for from the last one on, because a session
    /// has many slots and few are busy.
    fn highest_busy(&mut self, taken: usize) -> usize {
        let to = self.busy_to.max(taken).saturating_add(1).min(self.slots.len());
        self.busy_to = self.slots[..to].iter().rposition(|slot| slot.is_busy).unwrap_or(taken);
        self.busy_to
    }

    fn slot(&mut self, guard: &SlotGuard<'_>) -> Option<&mut Slot> {
        let is_current = self.generation == guard.generation;
        self.slots.get_mut(guard.index).filter(|_| is_current)
    }
}

impl SlotGuard<'_> {
    /// The session of the slot.
    pub(super) const fn generation(&self) -> SessionGeneration {
        self.generation
    }

    /// The server has executed SEQUENCE, for a request that was sent at `sent_at`. Returns whether
    /// the server has no connection for its calls.
    pub(super) fn executed(mut self, ok: &SequenceOk4, sent_at: Instant) -> bool {
        self.is_settled = true;
        let monitor = self.monitor;
        let mut state = monitor.state.lock();
        if let Some(slot) = state.slot(&self) {
            *slot = Slot::new(slot.sequence.next());
            // The request may reach the server long after it is sent: the lease counts from before.
            state.renewed_at = state.renewed_at.max(Some(sent_at));
            state.told_of_slots(&self, ok);
            let flags = ok.status_flags.0;
            state.judge_binding(flags, &self);
            state.judge_lease(flags, sent_at, self.lease_doubts);
            // The server sets the flag until RECLAIM_COMPLETE, and it is also in replies that were
            // sent before RECLAIM_COMPLETE.
            if flags & SequenceStatusFlags::RESTART_RECLAIM_NEEDED != 0
                && !state.must_reclaim
                && state.reclaims == self.reclaims
            {
                (state.must_reclaim, state.has_forgotten) = (true, true);
                state.need = state.need.max(RecoveryStep::Reclaim);
            }
        }
        let is_unbound = state.is_unbound;
        drop(state);
        monitor.changed.notify_all();
        is_unbound
    }

    /// The server has refused SEQUENCE: the slot's number is still to be used.
    pub(super) fn refused(mut self) {
        self.is_settled = true;
        let monitor = self.monitor;
        if let Some(slot) = monitor.state.lock().slot(&self) {
            slot.is_busy = false;
        }
        monitor.changed.notify_all();
    }

    /// A SEQUENCE alone was answered with this status. Returns whether the slot can be used again:
    /// the number is used up, by this request or by the one in doubt.
    pub(super) fn settled(mut self, status: NfsStat4) -> bool {
        let is_used_up =
            matches!(status, NfsStat4::Ok | NfsStat4::SeqFalseRetry | NfsStat4::RetryUncachedRep);
        self.is_settled = true;
        let monitor = self.monitor;
        if let Some(slot) = monitor.state.lock().slot(&self) {
            slot.is_busy = false;
            if is_used_up {
                *slot = Slot::new(slot.sequence.next());
            }
        }
        monitor.changed.notify_all();
        is_used_up
    }
}

impl Drop for SlotGuard<'_> {
    fn drop(&mut self) {
        if self.is_settled {
            return;
        }
        let mut state = self.monitor.state.lock();
        let taken = state.taken;
        if let Some(slot) = state.slot(self) {
            (slot.is_busy, slot.doubt) = (false, SlotDoubt::Since(taken));
        }
        drop(state);
        self.monitor.changed.notify_all();
    }
}

#[cfg(test)]
mod tests;
