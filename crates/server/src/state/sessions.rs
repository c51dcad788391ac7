//! Sessions (RFC 8881 sections 2.10, 18.34, 18.36 and 18.37).

use std::{
    collections::HashMap,
    mem::size_of,
    sync::Arc,
    sync::atomic::{AtomicU32, AtomicUsize, Ordering},
    time::Duration,
};

use curt_proto::nfs4::{CallbackOperation, Clientid, SequenceId, SequenceStatusFlags, SessionId, SlotId};
use curt_rpc::server::Backchannel;
use parking_lot::{Mutex, RwLock};

use super::clients::ClientRecord;
use super::limits::{BACKCHANNELS_MAX, REPLY_MIN, REQUEST_MIN};
use super::slots::Slot;
use super::{Client, Principal, ServerState, SlotInUse, StateFault, has_much};

/// Number of shards of the table: as many as threads that contend for locks on machines of today.
const SHARDS: usize = 64;
/// The session has a backchannel, but no connection for it.
const BACKCHANNEL_DOWN: u32 = SequenceStatusFlags::CB_PATH_DOWN_SESSION;
/// The client has lost its last connection for callbacks.
const CLIENT_DOWN: u32 = SequenceStatusFlags::CB_PATH_DOWN;
/// Operations of a callback: CB_SEQUENCE and another one.
const CALLBACK_OPERATIONS: u32 = 2;
/// A new session uses at most this part of the memory that is left.
const RESERVED_PART: usize = 8;

/// The limits of a channel (`channel_attrs4`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChannelLimits {
    /// Maximum size of a request in bytes.
    pub(crate) request: u32,
    /// Maximum size of a reply in bytes.
    pub(crate) reply: u32,
    /// Maximum size of a cached reply in bytes.
    pub(crate) cached: u32,
    /// Maximum number of operations of a compound.
    pub(crate) operations: u32,
    /// Number of slots.
    pub(crate) slots: u32,
}

impl ChannelLimits {
    /// The limits that a peer asks for, within those of the server.
    fn negotiate(self, ours: &Self) -> Result<Self, StateFault> {
        if self.request < REQUEST_MIN || self.reply < REPLY_MIN || self.operations == 0 {
            return Err(StateFault::TooSmall);
        }
        if self.slots == 0 {
            return Err(StateFault::Invalid);
        }
        let reply = self.reply.min(ours.reply);
        Ok(Self {
            request: self.request.min(ours.request),
            reply,
            cached: self.cached.min(ours.cached).min(reply),
            operations: self.operations.min(ours.operations),
            slots: self.slots.min(ours.slots),
        })
    }
}

/// The credential of callbacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CallbackSecurity {
    /// AUTH_NONE.
    None,
    /// AUTH_SYS.
    Sys {
        /// The name of the machine.
        machine_name: Box<[u8]>,
        /// The user.
        uid: u32,
        /// The group.
        gid: u32,
    },
}

/// The arguments of CREATE_SESSION.
#[derive(Clone)]
pub(crate) struct CreateSession {
    /// The client.
    pub(crate) client: Clientid,
    /// The sequence id.
    pub(crate) sequence: SequenceId,
    /// The caller.
    pub(crate) principal: Principal,
    /// The fore channel.
    pub(crate) fore: ChannelLimits,
    /// The backchannel.
    pub(crate) back: ChannelLimits,
    /// The connection, if the client wants it to be the backchannel.
    pub(crate) backchannel: Option<Arc<dyn Backchannel>>,
    /// The program of callbacks.
    pub(crate) callback_program: u32,
    /// The credential of callbacks; none if the client accepts none that the server supports.
    pub(crate) callback_security: Option<CallbackSecurity>,
    /// The minor version of the request, and so of callbacks.
    pub(crate) minor_version: u32,
}

/// The results of CREATE_SESSION.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SessionCreated {
    /// The session.
    pub(crate) session: SessionId,
    /// The sequence id of the request.
    pub(crate) sequence: SequenceId,
    /// Whether the connection is the backchannel.
    pub(crate) has_backchannel: bool,
    /// The fore channel.
    pub(crate) fore: ChannelLimits,
    /// The backchannel.
    pub(crate) back: ChannelLimits,
}

/// The slot of a client's CREATE_SESSION requests.
pub(super) struct CreateSessionSlot {
    /// The sequence id of the last request.
    sequence: SequenceId,
    /// Its outcome.
    outcome: Result<SessionCreated, StateFault>,
}

impl Default for CreateSessionSlot {
    /// The first request has the sequence id 1. RFC 8881 section 18.36.4: a repetition before it
    /// gets NFS4ERR_SEQ_MISORDERED.
    fn default() -> Self {
        Self { sequence: SequenceId(0), outcome: Err(StateFault::Misordered) }
    }
}

impl CreateSessionSlot {
    pub(super) const fn next(&self) -> SequenceId {
        self.sequence.next()
    }
}

/// A session.
pub(crate) struct Session {
    /// Its id.
    pub(crate) id: SessionId,
    /// Its client.
    pub(crate) client: Arc<Client>,
    /// The limits of the fore channel.
    pub(crate) fore: ChannelLimits,
    /// The limits of the backchannel.
    pub(crate) back: ChannelLimits,
    /// The minor version of callbacks.
    pub(crate) minor_version: u32,
    callback: Mutex<CallbackPath>,
    slots: Box<[Slot]>,
    /// Number of compounds in progress. Relaxed: a session may be destroyed just before one begins.
    pub(super) active: AtomicUsize,
    /// `SEQ4_STATUS_*` of this session. Relaxed: sent with some later reply.
    pub(super) status_flags: AtomicU32,
}

/// How the server calls the client.
struct CallbackPath {
    program: u32,
    security: Option<CallbackSecurity>,
    connections: Vec<Arc<dyn Backchannel>>,
    /// Whether the client has bound a connection at any time.
    was_bound: bool,
    slots: Box<[CallbackSlot]>,
}

/// A slot of the backchannel.
struct CallbackSlot {
    /// The sequence id of its next callback.
    sequence: SequenceId,
    is_in_use: bool,
    /// The callback that was sent with this sequence id, if it is not known whether the client has
    /// executed it. There are as many of these as callbacks at once: one or two.
    unsettled: Option<SentCallback>,
}

/// The call of a callback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SentCallback {
    /// The operation after CB_SEQUENCE.
    pub(crate) operation: CallbackOperation,
    /// The arguments of CB_COMPOUND.
    pub(crate) arguments: Vec<u8>,
    /// Where the operation begins in the arguments.
    pub(crate) begin: usize,
}

impl SentCallback {
    /// Whether both have the same operation and arguments, whatever their slots are.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.arguments.get(self.begin..) == other.arguments.get(other.begin..)
    }
}

/// The outcome of a call for its slot.
pub(crate) enum CallbackSlotOutcome {
    /// The client has used the sequence id.
    Used,
    /// The client has not used the sequence id: it has refused the call, or there was none.
    Unused,
    /// The client may have executed this, or may execute it yet.
    Unknown(SentCallback),
}

/// How to send a callback.
pub(crate) enum CallbackRouting {
    /// By this route. Its slot is in use until [`Session::release_callback_slot`].
    Route(CallbackRoute),
    /// Later: all slots are in use.
    Busy,
    /// There is no way.
    Closed,
}

/// How to send the next callback.
pub(crate) struct CallbackRoute {
    /// The last connection that is open.
    pub(crate) connection: Arc<dyn Backchannel>,
    /// The program.
    pub(crate) program: u32,
    /// The credential.
    pub(crate) security: CallbackSecurity,
    /// The slot.
    pub(crate) slot: SlotId,
    /// The highest slot in use.
    pub(crate) highest_slot: SlotId,
    /// The sequence id in the slot.
    pub(crate) sequence: SequenceId,
    /// The callback that was sent with this sequence id before, and has to be sent again: no other
    /// contents may follow it (RFC 8881 section 2.10.6.1).
    pub(crate) unsettled: Option<SentCallback>,
}

impl CallbackPath {
    /// Adds a connection, unless it is bound already. Beyond the limit it replaces the oldest one.
    fn bind(&mut self, connection: Arc<dyn Backchannel>) {
        self.connections.retain(|other| other.is_open() && other.connection() != connection.connection());
        if self.connections.len() >= BACKCHANNELS_MAX {
            self.connections.remove(0);
        }
        self.connections.push(connection);
        self.was_bound = true;
    }

    fn is_open(&self) -> bool {
        self.connections.iter().any(|connection| connection.is_open())
    }
}

impl Session {
    pub(super) fn slot(&self, slot: SlotId) -> Option<&Slot> {
        self.slots.get(usize::try_from(slot.0).ok()?)
    }

    pub(super) fn highest_slot(&self) -> SlotId {
        SlotId(self.fore.slots - 1)
    }

    /// BIND_CONN_TO_SESSION with the given connection as backchannel.
    pub(crate) fn bind_backchannel(&self, connection: Arc<dyn Backchannel>) {
        self.callback.lock().bind(connection);
        self.status_flags.fetch_and(!BACKCHANNEL_DOWN, Ordering::Relaxed);
        self.client.status_flags.fetch_and(!CLIENT_DOWN, Ordering::Relaxed);
    }

    /// BACKCHANNEL_CTL.
    pub(crate) fn set_callback(&self, program: u32, security: CallbackSecurity) {
        let mut callback = self.callback.lock();
        callback.program = program;
        callback.security = Some(security);
    }

    /// Whether the client accepts a credential of callbacks that the server supports.
    pub(crate) fn has_callback_security(&self) -> bool {
        self.callback.lock().security.is_some()
    }

    /// Whether the client takes callbacks of a few operations, as far as is known.
    pub(crate) fn takes_callbacks(&self) -> bool {
        let callback = self.callback.lock();
        self.back.operations >= CALLBACK_OPERATIONS && callback.security.is_some() && callback.is_open()
    }

    /// How to send a callback now. A slot with an outcome that is not known comes first, so that
    /// there are no more of these than callbacks at once.
    pub(crate) fn callback_route(&self) -> CallbackRouting {
        let callback = &mut *self.callback.lock();
        let connection = callback.connections.iter().rev().find(|connection| connection.is_open());
        let (Some(connection), Some(security)) = (connection, &callback.security) else {
            return CallbackRouting::Closed;
        };
        let mut slots = callback.slots.iter();
        let unsettled = slots.position(|slot| !slot.is_in_use && slot.unsettled.is_some());
        let free = unsettled.or_else(|| callback.slots.iter().position(|slot| !slot.is_in_use));
        let Some(free) = free else { return CallbackRouting::Busy };
        callback.slots[free].is_in_use = true;
        let highest = callback.slots.iter().rposition(|slot| slot.is_in_use).unwrap_or(free);
        let number = |place: usize| SlotId(u32::try_from(place).expect("a limit of 32 bits"));
        CallbackRouting::Route(CallbackRoute {
            connection: Arc::clone(connection),
            program: callback.program,
            security: security.clone(),
            slot: number(free),
            highest_slot: number(highest),
            sequence: callback.slots[free].sequence,
            unsettled: callback.slots[free].unsettled.take(),
        })
    }

    /// A call has ended.
    pub(crate) fn release_callback_slot(&self, route: &CallbackRoute, outcome: CallbackSlotOutcome) {
        let mut callback = self.callback.lock();
        let place = usize::try_from(route.slot.0).unwrap_or(usize::MAX);
        if let Some(slot) = callback.slots.get_mut(place) {
            slot.is_in_use = false;
            match outcome {
                CallbackSlotOutcome::Used => slot.sequence = route.sequence.next(),
                CallbackSlotOutcome::Unused => {}
                CallbackSlotOutcome::Unknown(sent) => slot.unsettled = Some(sent),
            }
        }
    }

    /// A callback over this connection has failed: it is not used until the client binds one again.
    pub(crate) fn callback_failed(&self, connection: &Arc<dyn Backchannel>) {
        let mut callback = self.callback.lock();
        callback.connections.retain(|other| other.connection() != connection.connection());
        drop(callback);
        self.check_backchannel();
    }

    /// Updates the status flag of a backchannel that has lost its connection. Returns whether it
    /// was ever bound, and whether it has a connection.
    fn check_backchannel(&self) -> (bool, bool) {
        let callback = self.callback.lock();
        let (was_bound, is_open) = (callback.was_bound, callback.is_open());
        if was_bound && !is_open {
            self.status_flags.fetch_or(BACKCHANNEL_DOWN, Ordering::Relaxed);
        } else {
            self.status_flags.fetch_and(!BACKCHANNEL_DOWN, Ordering::Relaxed);
        }
        (was_bound, is_open)
    }

    /// Its memory, with the cached replies at their maximum size.
    fn reserved(&self) -> usize {
        let slots = number(self.fore.slots).saturating_mul(slot_memory(&self.fore));
        slots.saturating_add(fixed_memory(&self.back))
    }
}

/// The memory of a session without the slots of the fore channel, in bytes.
pub(super) fn fixed_memory(back: &ChannelLimits) -> usize {
    size_of::<Session>() + number(back.slots).saturating_mul(size_of::<CallbackSlot>())
}

/// The memory of a slot of the fore channel, in bytes.
pub(super) fn slot_memory(fore: &ChannelLimits) -> usize {
    number(fore.cached).saturating_add(size_of::<Slot>())
}

fn number(wire: u32) -> usize {
    usize::try_from(wire).unwrap_or(usize::MAX)
}

/// A part of the sessions. All ids in it were made by this server.
type SessionShard = RwLock<HashMap<SessionId, Arc<Session>, foldhash::fast::RandomState>>;

/// The sessions of all clients.
pub(super) struct SessionTable {
    shards: Box<[SessionShard]>,
    /// Maximum memory of all sessions in bytes.
    session_bytes: usize,
    /// Memory reserved by all sessions. Relaxed: changed with the table of clients locked.
    reserved: AtomicUsize,
}

impl SessionTable {
    pub(super) fn new(session_bytes: usize) -> Self {
        let shards = (0..SHARDS).map(|_| RwLock::default()).collect();
        Self { shards, session_bytes, reserved: AtomicUsize::new(0) }
    }

    /// The shard of an id, by a byte of the tag, or of whatever a client sent.
    fn shard(&self, id: &SessionId) -> &SessionShard {
        &self.shards[usize::from(id.0[15]) % SHARDS]
    }

    pub(super) fn find(&self, id: &SessionId) -> Option<Arc<Session>> {
        self.shard(id).read().get(id).cloned()
    }

    fn insert(&self, session: &Arc<Session>) {
        for counter in [&self.reserved, &session.client.of_address.reserved] {
            counter.fetch_add(session.reserved(), Ordering::Relaxed);
        }
        self.shard(&session.id).write().insert(session.id, Arc::clone(session));
    }

    pub(super) fn remove(&self, session: &Session) {
        if self.shard(&session.id).write().remove(&session.id).is_none() {
            return;
        }
        for counter in [&self.reserved, &session.client.of_address.reserved] {
            counter.fetch_sub(session.reserved(), Ordering::Relaxed);
        }
    }

    /// The fore channel with as many slots as there is memory for. The sessions of one address have
    /// as much memory as is free for others.
    fn fit(
        &self,
        fore: ChannelLimits,
        back: &ChannelLimits,
        client: &Client,
    ) -> Result<ChannelLimits, StateFault> {
        let own = client.of_address.reserved.load(Ordering::Relaxed);
        let left = self.session_bytes.saturating_sub(self.reserved.load(Ordering::Relaxed));
        // Whatever is reserved is as much less for others.
        let available = (left / RESERVED_PART).min(left.saturating_sub(own) / 2);
        let for_slots = available.saturating_sub(fixed_memory(back));
        let slots = u32::try_from(for_slots / slot_memory(&fore)).unwrap_or(u32::MAX);
        match slots.min(fore.slots) {
            0 if has_much(own, self.session_bytes) => Err(StateFault::NoSpace),
            0 => Err(StateFault::Delay),
            slots => Ok(ChannelLimits { slots, ..fore }),
        }
    }
}

impl ServerState {
    /// CREATE_SESSION. It may remove an earlier instance of the client.
    pub(crate) fn create_session(
        &self,
        asked: &CreateSession,
        now: Duration,
    ) -> Result<SessionCreated, StateFault> {
        let mut table = self.clients.lock();
        let record = table.records.get_mut(&asked.client).ok_or(StateFault::StaleClient)?;
        if asked.sequence == record.slot.sequence {
            return record.slot.outcome;
        }
        if asked.sequence != record.slot.next() {
            return Err(StateFault::Misordered);
        }
        // Wrong arguments use no sequence id.
        let fore = asked.fore.negotiate(&self.limits.fore)?;
        let back = asked.back.negotiate(&self.limits.back)?;
        let fore = match self.admit_session(record, asked, fore, &back) {
            Ok(fore) => fore,
            // The client repeats what is delayed.
            Err(StateFault::Delay) => return Err(StateFault::Delay),
            Err(fault) => {
                // RFC 8881 section 18.36.4: the sequence id is used, and the result kept, before
                // the principal and the limits are examined.
                record.slot = CreateSessionSlot { sequence: asked.sequence, outcome: Err(fault) };
                return Err(fault);
            }
        };
        let session = self.new_session(asked, Arc::clone(&record.client), fore, back);
        let created = SessionCreated {
            session: session.id,
            sequence: asked.sequence,
            has_backchannel: asked.backchannel.is_some(),
            fore,
            back,
        };
        self.confirm(&mut table, asked.client);
        if let Some(record) = table.records.get_mut(&asked.client) {
            record.slot = CreateSessionSlot { sequence: asked.sequence, outcome: Ok(created) };
            record.client.renew(now);
            self.sessions.insert(&session);
            record.sessions.push(session);
            // The new session may have the only backchannel.
            check_backchannels(record);
        }
        Ok(created)
    }

    /// Whether a client may have another session, and its fore channel.
    fn admit_session(
        &self,
        record: &ClientRecord,
        asked: &CreateSession,
        fore: ChannelLimits,
        back: &ChannelLimits,
    ) -> Result<ChannelLimits, StateFault> {
        if !record.is_confirmed && record.client.principal != asked.principal {
            return Err(StateFault::ClientInUse);
        }
        if record.sessions.len() >= self.limits.sessions_per_client {
            return Err(StateFault::NoSpace);
        }
        self.sessions.fit(fore, back, &record.client)
    }

    fn new_session(
        &self,
        asked: &CreateSession,
        client: Arc<Client>,
        fore: ChannelLimits,
        back: ChannelLimits,
    ) -> Arc<Session> {
        Arc::new(Session {
            id: self.ids.session(),
            client,
            fore,
            back,
            callback: Mutex::new(CallbackPath {
                program: asked.callback_program,
                security: asked.callback_security.clone(),
                connections: asked.backchannel.iter().cloned().collect(),
                was_bound: asked.backchannel.is_some(),
                slots: (0..back.slots)
                    .map(|_| CallbackSlot { sequence: SequenceId(1), is_in_use: false, unsettled: None })
                    .collect(),
            }),
            minor_version: asked.minor_version,
            slots: (0..fore.slots).map(|_| Slot::default()).collect(),
            active: AtomicUsize::new(0),
            status_flags: AtomicU32::new(0),
        })
    }

    /// The session with this id.
    pub(crate) fn session(&self, id: &SessionId) -> Result<Arc<Session>, StateFault> {
        self.sessions.find(id).ok_or(StateFault::BadSession)
    }

    /// DESTROY_SESSION, in a compound that uses the slot `own`, if any.
    pub(crate) fn destroy_session(&self, id: &SessionId, own: Option<&SlotInUse>) -> Result<(), StateFault> {
        let mut table = self.clients.lock();
        let session = self.session(id)?;
        let own = own.is_some_and(|own| own.session().id == *id);
        if session.active.load(Ordering::Relaxed) > usize::from(own) {
            return Err(StateFault::Delay);
        }
        let record = table.records.get_mut(&session.client.id);
        let sessions = record.map(|record: &mut ClientRecord| &mut record.sessions);
        if let Some(sessions) = sessions {
            sessions.retain(|other| other.id != *id);
        }
        self.sessions.remove(&session);
        Ok(())
    }

    /// A session of the client over which callbacks can be sent.
    pub(crate) fn session_with_callbacks(&self, client: Clientid) -> Option<Arc<Session>> {
        let table = self.clients.lock();
        let sessions = &table.records.get(&client)?.sessions;
        sessions.iter().find(|session| session.takes_callbacks()).cloned()
    }

    /// Updates the status flags of the backchannels of a client.
    pub(crate) fn check_callback_path(&self, client: Clientid) {
        if let Some(record) = self.clients.lock().records.get(&client) {
            check_backchannels(record);
        }
    }

    /// Checks the callback paths of all clients.
    pub(super) fn check_callback_paths(&self) {
        self.clients.lock().records.values().for_each(check_backchannels);
    }
}

/// A client that has lost its last backchannel is told so (RFC 8881 section 18.46.3). One that has
/// never bound any is not: it would bind a connection that cannot carry calls.
fn check_backchannels(record: &ClientRecord) {
    let (mut was_bound, mut is_open) = (false, false);
    for session in &record.sessions {
        let of_session = session.check_backchannel();
        was_bound |= of_session.0;
        is_open |= of_session.1;
    }
    if was_bound && !is_open {
        record.client.status_flags.fetch_or(CLIENT_DOWN, Ordering::Relaxed);
    } else {
        record.client.status_flags.fetch_and(!CLIENT_DOWN, Ordering::Relaxed);
    }
}
