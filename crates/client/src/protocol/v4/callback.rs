//! The calls of the server over the client's connections (RFC 8881 section 20).
//!
//! Owns the slots of the backchannel. A call of another session is refused, whatever it asks. One
//! that is repeated while it is executed, over another connection, is delayed.
//! CB_RECALL ends the delegation that it names before it is answered; CB_RECALL_ANY ends those that
//! are too many. The client holds no write delegation, whose attributes CB_GETATTR could ask for,
//! and no layout. CB_NOTIFY_LOCK wakes the waiter that it names.
//! After CB_RECALL_SLOT fewer slots are used, and a SEQUENCE says so.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

use curt_proto::nfs4::{
    CALLBACK_VERSION, CallbackHeader, CallbackOperation, CbNotifyLockArgs4, CbRecallAnyArgs4, CbRecallArgs4,
    CbSequenceArgs4, CbSequenceOk4, ChannelAttributes, Nfs4Procedure, NfsStat4, SequenceId, SessionId,
    SlotId, TAG_MAX,
};
use curt_rpc::{
    message::{CallMessage, VersionRange},
    server::{CallContext, CallFailure, CallHandler, RpcService},
};
use curt_xdr::{Decode, Decoder, Encode, put_opaque};
use parking_lot::Mutex;

use super::{
    delegation_table::DelegationTable,
    lock_states::{self, LockStateTable},
    session::SessionMonitor,
};

/// The program that the client chooses for callbacks, of those that RPC leaves to users.
pub(super) const PROGRAM: u32 = 0x4000_0000;
/// Slots of the backchannel: calls are executed one at a time.
const SLOTS: u32 = 2;
/// The most operations of a callback compound.
const OPERATIONS_MAX: u32 = 8;
/// The largest request and reply in bytes.
const SIZE_MAX: u32 = 4096;

/// The limits of the backchannel that the client offers.
pub(super) fn limits() -> ChannelAttributes {
    ChannelAttributes {
        request_max: SIZE_MAX,
        response_max: SIZE_MAX,
        response_cached_max: SIZE_MAX,
        operations_max: OPERATIONS_MAX,
        requests_max: SLOTS,
        ..ChannelAttributes::default()
    }
}

/// Executes the server's calls.
#[derive(Debug, Default)]
pub(super) struct CallbackService {
    session: Mutex<CallbackSession>,
    locks: Arc<LockStateTable>,
    delegations: Arc<DelegationTable>,
    sessions: Arc<SessionMonitor>,
    /// The number of CREATE_SESSIONs without a reply.
    creating: AtomicU32,
    slots_recalled: SlotsRecalled,
}

/// The function that is called when the server has asked for slots.
#[derive(Default)]
struct SlotsRecalled(OnceLock<Box<dyn Fn() + Send + Sync>>);

impl fmt::Debug for SlotsRecalled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SlotsRecalled").finish_non_exhaustive()
    }
}

/// A CREATE_SESSION without a reply.
pub(super) struct CreatingSession<'a>(&'a CallbackService);

impl Drop for CreatingSession<'_> {
    fn drop(&mut self) {
        self.0.creating.fetch_sub(1, Relaxed);
    }
}

#[derive(Debug, Default)]
struct CallbackSession {
    session: Option<SessionId>,
    minor_version: u32,
    slots: [BackchannelSlot; SLOTS as usize],
}

impl CallbackSession {
    /// Whether calls of this version are executed. Before the first session that is not known: they
    /// are refused because of their session.
    fn takes_version(&self, minor_version: u32) -> bool {
        self.session.is_none() || self.minor_version == minor_version
    }
}

/// A slot and the reply to its last call.
#[derive(Debug, Default)]
struct BackchannelSlot {
    sequence: SequenceId,
    is_busy: bool,
    reply: Vec<u8>,
}

/// The outcome of CB_SEQUENCE for the operations behind it.
enum CbSequenceOutcome {
    Execute(CbSequenceOk4),
    Repeat(Vec<u8>),
    Refuse(NfsStat4),
}

impl CallbackService {
    /// The locks that the server may notify this client of.
    pub(super) fn locks(&self) -> Arc<LockStateTable> {
        Arc::clone(&self.locks)
    }

    /// The delegations that the server may recall.
    pub(super) fn delegations(&self) -> Arc<DelegationTable> {
        Arc::clone(&self.delegations)
    }

    /// The session whose slots the server may ask for.
    pub(super) fn sessions(&self) -> Arc<SessionMonitor> {
        Arc::clone(&self.sessions)
    }

    /// Calls this when the server has asked for slots.
    pub(super) fn set_slots_recalled(&self, recalled: Box<dyn Fn() + Send + Sync>) {
        let _ = self.slots_recalled.0.set(recalled);
    }

    /// A CREATE_SESSION is sent: as long as the result exists, calls of unknown sessions are
    /// delayed.
    pub(super) fn begin_creating(&self) -> CreatingSession<'_> {
        self.creating.fetch_add(1, Relaxed);
        CreatingSession(self)
    }

    /// Accepts the calls of a session from now on, and of no other.
    pub(super) fn serve(&self, session: SessionId, minor_version: u32) {
        *self.session.lock() =
            CallbackSession { session: Some(session), minor_version, slots: Default::default() };
    }

    fn begin(&self, asked: &CbSequenceArgs4) -> CbSequenceOutcome {
        let mut state = self.session.lock();
        if state.session != Some(asked.session) {
            // The call may have overtaken the reply to CREATE_SESSION. Pairs with the guard's
            // accesses; a call at their time is answered either way.
            return CbSequenceOutcome::Refuse(match self.creating.load(Relaxed) {
                0 => NfsStat4::Badsession,
                _ => NfsStat4::Delay,
            });
        }
        let index = usize::try_from(asked.slot.0).unwrap_or(usize::MAX);
        let Some(slot) = state.slots.get_mut(index) else {
            return CbSequenceOutcome::Refuse(NfsStat4::Badslot);
        };
        if asked.highest_slot.0 >= SLOTS {
            return CbSequenceOutcome::Refuse(NfsStat4::BadHighSlot);
        }
        if asked.sequence == slot.sequence && slot.is_busy {
            return CbSequenceOutcome::Refuse(NfsStat4::Delay);
        }
        if asked.sequence == slot.sequence && !slot.reply.is_empty() {
            return CbSequenceOutcome::Repeat(slot.reply.clone());
        }
        if asked.sequence != slot.sequence.next() {
            return CbSequenceOutcome::Refuse(NfsStat4::SeqMisordered);
        }
        (slot.sequence, slot.is_busy) = (asked.sequence, true);
        slot.reply.clear();
        let highest = SlotId(SLOTS - 1);
        CbSequenceOutcome::Execute(CbSequenceOk4 {
            session: asked.session,
            sequence: asked.sequence,
            slot: asked.slot,
            highest_slot: highest,
            target_highest_slot: highest,
        })
    }

    fn keep(&self, asked: &CbSequenceArgs4, reply: &[u8]) {
        let mut state = self.session.lock();
        let index = usize::try_from(asked.slot.0).unwrap_or(usize::MAX);
        if state.session == Some(asked.session)
            && let Some(slot) = state.slots.get_mut(index)
            && slot.sequence == asked.sequence
        {
            (slot.is_busy, slot.reply) = (false, reply.to_vec());
        }
    }

    fn compound(&self, arguments: &[u8], reply: &mut Vec<u8>) -> Result<(), CallFailure> {
        let decoder = &mut Decoder::new(arguments);
        let header: CallbackHeader<'_> = decoder.get().map_err(|_| CallFailure::GarbageArguments)?;
        let start = reply.len();
        NfsStat4::Ok.encode(reply);
        debug_assert!(header.tag.bytes().len() <= TAG_MAX, "it was decoded");
        put_opaque(reply, header.tag.bytes());
        let count_at = reply.len();
        0_u32.encode(reply);
        let mut status = NfsStat4::Ok;
        let mut results = 0_u32;
        let mut begun = None;
        if !self.session.lock().takes_version(header.minor_version) {
            status = NfsStat4::MinorVersMismatch;
        } else if header.operations > OPERATIONS_MAX {
            status = NfsStat4::TooManyOps;
        } else {
            for position in 0..header.operations {
                let number = decoder.u32().ok();
                let operation = number.and_then(CallbackOperation::from_number);
                let operation = operation.unwrap_or(CallbackOperation::Illegal);
                operation.encode(reply);
                let at = reply.len();
                NfsStat4::Ok.encode(reply);
                results += 1;
                status = match (position, operation) {
                    (0, CallbackOperation::Sequence) => match decoder.get::<CbSequenceArgs4>() {
                        Ok(asked) => match self.begin(&asked) {
                            CbSequenceOutcome::Execute(ok) => {
                                ok.encode(reply);
                                begun = Some(asked);
                                NfsStat4::Ok
                            }
                            CbSequenceOutcome::Repeat(former) => {
                                reply.truncate(start);
                                reply.extend_from_slice(&former);
                                return Ok(());
                            }
                            CbSequenceOutcome::Refuse(status) => status,
                        },
                        Err(_) => NfsStat4::Badxdr,
                    },
                    (_, CallbackOperation::Sequence) => NfsStat4::SequencePos,
                    (0, CallbackOperation::Illegal) => NfsStat4::OpIllegal,
                    (0, _) => NfsStat4::OpNotInSession,
                    (_, operation) => self.execute(operation, decoder).unwrap_or(NfsStat4::Badxdr),
                };
                reply[at..at + 4].copy_from_slice(&status.number().to_be_bytes());
                if status != NfsStat4::Ok {
                    break;
                }
            }
        }
        reply[start..start + 4].copy_from_slice(&status.number().to_be_bytes());
        reply[count_at..count_at + 4].copy_from_slice(&results.to_be_bytes());
        if let Some(asked) = begun {
            self.keep(&asked, &reply[start..]);
        }
        Ok(())
    }
}

impl CallbackService {
    /// Executes an operation. The status of those that are not understood ends the compound, so
    /// that their arguments need not be decoded.
    fn execute(
        &self,
        operation: CallbackOperation,
        decoder: &mut Decoder<'_>,
    ) -> Result<NfsStat4, curt_xdr::DecodeError> {
        Ok(match operation {
            CallbackOperation::Recall => {
                let CbRecallArgs4 { stateid, object, .. } = CbRecallArgs4::decode(decoder)?;
                self.delegations.recall(&object.into(), stateid)
            }
            CallbackOperation::RecallAny => {
                let CbRecallAnyArgs4 { objects_to_keep, types } = CbRecallAnyArgs4::decode(decoder)?;
                if !types.without(CbRecallAnyArgs4::TYPES).is_empty() {
                    return Ok(NfsStat4::Inval);
                }
                if types.contains(CbRecallAnyArgs4::READ_DELEGATIONS) {
                    self.delegations.limit(usize::try_from(objects_to_keep).unwrap_or(usize::MAX));
                }
                NfsStat4::Ok
            }
            CallbackOperation::NotifyLock => {
                let notified = CbNotifyLockArgs4::decode(decoder)?;
                lock_states::notified(&self.locks, notified.object, notified.owner.owner.bytes())
            }
            CallbackOperation::RecallSlot => {
                self.sessions.lock().slots.limit(SlotId::decode(decoder)?);
                if let Some(recalled) = self.slots_recalled.0.get() {
                    recalled();
                }
                NfsStat4::Ok
            }
            CallbackOperation::Getattr => NfsStat4::Badhandle,
            CallbackOperation::Layoutrecall => NfsStat4::NomatchingLayout,
            CallbackOperation::Illegal => NfsStat4::OpIllegal,
            CallbackOperation::Sequence
            | CallbackOperation::Notify
            | CallbackOperation::PushDeleg
            | CallbackOperation::RecallableObjAvail
            | CallbackOperation::WantsCancelled
            | CallbackOperation::NotifyDeviceid
            | CallbackOperation::Offload => NfsStat4::Notsupp,
        })
    }
}

impl RpcService for CallbackService {
    fn call(
        &self,
        call: &CallMessage<'_>,
        _: &mut CallContext<'_>,
        reply: &mut Vec<u8>,
    ) -> Result<(), CallFailure> {
        if call.program != PROGRAM {
            return Err(CallFailure::ProgramUnavailable);
        }
        if call.version != CALLBACK_VERSION {
            let only = VersionRange { low: CALLBACK_VERSION, high: CALLBACK_VERSION };
            return Err(CallFailure::ProgramMismatch(only));
        }
        match Nfs4Procedure::from_number(call.procedure) {
            Some(Nfs4Procedure::Null) => Ok(()),
            Some(Nfs4Procedure::Compound) => self.compound(call.arguments, reply),
            None => Err(CallFailure::ProcedureUnavailable),
        }
    }
}

/// The handler of a connection's calls.
pub(super) fn handler(service: &Arc<CallbackService>) -> CallHandler {
    CallHandler::of(Arc::<CallbackService>::clone(service) as Arc<dyn RpcService>)
}

#[cfg(test)]
mod tests;
