//! One compound: a SEQUENCE, operations for opens that are added to it, and those of an intent.
//!
//! A compound that uses an open begins with PUTFH of its file, and with the OPEN if that is
//! delayed.
//!
//! Owns the retries. A compound is sent again in its slot while the server refuses SEQUENCE with
//! DELAY. It is sent again, in another slot or session, if the server has refused SEQUENCE
//! otherwise, if a later operation asks for time (DELAY, GRACE), or if the stateid of an open is
//! unknown to the server, which is then opened again. It is not sent again after its last required
//! operation was executed: what follows that only describes its result. Must not know the purpose
//! of an operation.

pub(super) mod request;

use std::{
    sync::{Arc, OnceLock, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use curt_policy::open::{CLOSES_ALONE_MAX, CLOSES_MAX};
use curt_proto::{
    Operation,
    nfs4::{
        Clientid, CloseArgs4, CompoundEncoder, CompoundResults, DelegreturnArgs4, Nfs4Operation,
        Nfs4Procedure, NfsStat4, OpenDowngradeArgs4, OpenOk4, PROGRAM, ResultError, SequenceArgs4,
        SequenceOk4, ShareAccess4, Stateid, VERSION,
    },
};
use curt_rpc::{
    auth::RpcCredential,
    client::{BulkData, CallArguments, CallError, ReplySink},
};
use curt_xdr::{Decode, DecodeError, Opaque};

use self::request::{Append, CompoundRequest, Execution, OWN_OPERATIONS_MAX, put_fh};
use super::{
    NfsV4,
    abandoned_opens::{AbandonedOpen, OpenTarget},
    lock_states::LockOfIo,
    open_codec::{GrantedOpen, OPEN_RESULTS_MAX, OpenRequest, wire},
    open_key::OpenKey,
    open_table::{SentOpen, UsableOpen},
    piggybacked::{ClosedOpens, PiggybackedKind, PiggybackedOperation},
    results::{CompoundSink, fault, outcome},
    server_traits::{ServerFeature, UsedFeatures},
    session::{CompoundPurpose, RecoveryStep, SessionGeneration, SlotGuard, SlotOrRecovery},
};
use crate::protocol::{
    OpenOwner, RpcCaller, ShareAccess,
    rpc_client::{CallResult, CallSpec, JUKEBOX_DELAY_MIN},
};

/// How often a compound is sent again at once because of lost sessions and stateids. After that it
/// fails in a soft mount, and in a hard one waits before each time.
const REPAIRS_AT_ONCE: u32 = 16;

/// How often in all, before it fails in a hard mount: after some minutes.
const REPAIRS_MAX: u32 = 80;

/// The reply to a compound.
#[derive(Debug)]
pub(super) struct CompoundReply {
    pub(super) call: CallResult,
    generation: SessionGeneration,
    prefix: PrefixLayout,
    /// Why none of the intent's own operations was executed, if their open is the reason.
    refused: Option<NfsStat4>,
}

/// The operations that precede those of an intent in one attempt, after SEQUENCE.
#[derive(Default)]
struct CompoundPrefix<'a> {
    piggybacked: Vec<PiggybackedOperation>,
    open: Option<UsedOpen<'a>>,
}

/// The open that a compound uses.
struct UsedOpen<'a> {
    key: &'a OpenKey,
    stateid: Stateid,
    /// An OPEN for reading precedes.
    delayed: Option<DelayedOpen>,
}

/// An OPEN for reading in a [`CompoundPrefix`].
#[derive(Clone)]
struct DelayedOpen {
    credential: Arc<RpcCredential>,
    wants_delegation: bool,
    features: UsedFeatures,
}

/// The operations of a [`CompoundPrefix`].
#[derive(Clone, Debug, Default)]
struct PrefixLayout {
    piggybacked: Vec<PiggybackedKind>,
    has_file: bool,
    has_open: bool,
}

/// Whether this is the result of that SEQUENCE.
fn answers(ok: &SequenceOk4, asked: &SequenceArgs4) -> bool {
    ok.session == asked.session && ok.sequence == asked.sequence && ok.slot == asked.slot
}

/// Bytes of the reply to a change of a name or of attributes: SEQUENCE, piggybacked operations, a
/// handle and two sets of attributes. A server that keeps less is not asked to keep the reply.
const KEPT_REPLY: u32 = 1024;

/// Bytes of the result of each operation beyond those of one change, on average.
const KEPT_RESULT: u32 = 16;

/// The size of a reply that the server has to keep, of a compound of this many operations.
const fn kept_reply(operations: u32) -> u32 {
    KEPT_REPLY.saturating_add(KEPT_RESULT.saturating_mul(operations.saturating_sub(OWN_OPERATIONS_MAX)))
}

/// Longest SEQUENCE and piggybacked operations in a reply, in bytes.
const PREFIX_MAX: usize = 2048;

/// A call of COMPOUND.
struct CompoundCall<'a> {
    minor_version: u32,
    sequence: Option<SequenceArgs4>,
    prefix: &'a CompoundPrefix<'a>,
    append: Append<'a>,
    data: &'a [u8],
    /// The client, for an OPEN.
    client: Clientid,
}

impl CallArguments for CompoundCall<'_> {
    fn encode_around<'a>(&'a self, out: &mut Vec<u8>) -> BulkData<'a> {
        let mut operations = CompoundEncoder::new(out, Opaque::default(), self.minor_version);
        if let Some(sequence) = &self.sequence {
            operations.push(sequence);
        }
        for operation in &self.prefix.piggybacked {
            put_fh(&mut operations, &operation.key.file);
            match operation.kind {
                PiggybackedKind::Close => {
                    operations.push(&CloseArgs4 { seqid: 0, stateid: operation.stateid })
                }
                PiggybackedKind::Return => operations.push(&DelegreturnArgs4 { stateid: operation.stateid }),
                PiggybackedKind::Downgrade(access) => operations.push(&OpenDowngradeArgs4 {
                    stateid: operation.stateid,
                    seqid: 0,
                    share_access: ShareAccess4(wire(access)),
                    share_deny: 0,
                }),
            }
        }
        if let Some(open) = &self.prefix.open {
            put_fh(&mut operations, &open.key.file);
            if let Some(delayed) = &open.delayed {
                let wish = delayed.features.wish(delayed.wants_delegation);
                let open = OpenRequest::by_handle(self.client, open.key.owner, ShareAccess::Read, wish);
                operations.push(&open.arguments());
            }
        }
        (self.append)(&mut operations, self.prefix.stateid());
        operations.finish().map_or_else(BulkData::default, |omitted| {
            let length = usize::try_from(omitted.length).expect("a usize has 32 bits at least");
            BulkData::new(omitted.at, &self.data[..length])
        })
    }
}

impl CompoundReply {
    /// The reply to a request that is not sent, for this reason.
    pub(super) fn unsent(now: Instant, status: NfsStat4) -> Self {
        let call = CallResult {
            reply: curt_rpc::client::CallReply::from_results(Vec::new()),
            sent_at: now,
            lost_at: None,
            connection_lost_at: None,
            was_sent_again: false,
        };
        let (generation, prefix) = (SessionGeneration::default(), PrefixLayout::default());
        Self { call, generation, prefix, refused: Some(status) }
    }

    /// The results of the intent's own operations.
    ///
    /// # Errors
    /// The results before them cannot be decoded, which was checked when the reply arrived.
    pub(super) fn results(&self) -> Result<CompoundResults<'_>, DecodeError> {
        let mut results = CompoundResults::new(self.call.reply.results())?;
        decode_prefix(&mut results, &self.prefix)?;
        Ok(results)
    }

    /// The session that has executed it.
    pub(super) const fn generation(&self) -> SessionGeneration {
        self.generation
    }

    /// Why none of the intent's own operations was executed, if their open is the reason: then
    /// there are no results.
    pub(super) const fn refused(&self) -> Option<NfsStat4> {
        self.refused
    }
}

impl UsedOpen<'_> {
    /// The OPEN that precedes, if nobody waits for its reply.
    fn abandoned(&self) -> Option<AbandonedOpen> {
        self.delayed.as_ref().map(|delayed| AbandonedOpen {
            target: OpenTarget::File(self.key.file.clone()),
            owner: self.key.owner,
            credential: Arc::clone(&delayed.credential),
            access: ShareAccess::Read,
        })
    }
}

impl CompoundPrefix<'_> {
    /// The stateid that the intent's operations use.
    fn stateid(&self) -> Stateid {
        self.open.as_ref().map_or(Stateid::ANONYMOUS, |open| open.stateid)
    }

    fn layout(&self) -> PrefixLayout {
        PrefixLayout {
            piggybacked: self.piggybacked.iter().map(|operation| operation.kind).collect(),
            has_file: self.open.is_some(),
            has_open: self.open.as_ref().is_some_and(|open| open.delayed.is_some()),
        }
    }
}

impl PrefixLayout {
    /// The number of operations, with SEQUENCE.
    fn operations(&self) -> u32 {
        let piggybacked = u32::try_from(self.piggybacked.len()).unwrap_or(u32::MAX);
        1 + 2 * piggybacked + u32::from(self.has_file) + u32::from(self.has_open)
    }
}

/// Decodes SEQUENCE and what follows it, which all have succeeded. Returns the result of the OPEN.
fn decode_prefix(
    results: &mut CompoundResults<'_>,
    prefix: &PrefixLayout,
) -> Result<Option<GrantedOpen>, DecodeError> {
    let malformed = |error| match error {
        ResultError::Decode(error) => error,
        _ => DecodeError::Short,
    };
    results.next::<SequenceOk4>(Nfs4Operation::Sequence).map_err(malformed)?;
    for operation in &prefix.piggybacked {
        operation.result(results).map_err(malformed)?;
    }
    if prefix.has_file {
        results.next::<()>(Nfs4Operation::Putfh).map_err(malformed)?;
    }
    if !prefix.has_open {
        return Ok(None);
    }
    let ok: OpenOk4<'_> = results.next(Nfs4Operation::Open).map_err(malformed)?;
    Ok(Some(GrantedOpen::from(&ok)))
}

/// A transmission whose reply was lost, with the session that could have repeated it.
#[derive(Clone, Copy, Debug)]
pub(super) struct LostTransmission {
    sent_at: Instant,
    lost_at: Instant,
}

/// The state of a slot in doubt after a SEQUENCE alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotOutcome {
    /// Ready for another request, or lost with its session.
    Free,
    /// The server still executes the request in doubt.
    StillExecuting,
}

/// The next step after one attempt to send a compound.
enum AttemptOutcome {
    /// The compound has a reply.
    Done(CompoundReply),
    /// The server asks for time: this much at least.
    Wait(Duration),
    /// The cause was removed, or recovery will remove it: send again.
    Again,
    /// The server does not keep so large a reply. The compound is sent again with one that is not
    /// kept.
    WithoutKeptReply,
    /// A piggybacked operation was refused. The compound is sent again without any.
    WithoutPiggybacked,
    /// The compound may have been executed, and its reply is lost: send it again. If the connection
    /// was lost too, the lost transmission.
    Repeat(Option<LostTransmission>),
}

impl AttemptOutcome {
    /// Whether the required operations may have been executed; `None`: the attempt has brought
    /// their results. Who sends a request twice does not learn from a refusal what became of the
    /// first.
    const fn execution(&self, was_sent_once: bool) -> Option<Execution> {
        match self {
            Self::Done(_) => None,
            Self::Repeat(_) => Some(Execution::Possible),
            Self::Wait(_) | Self::Again | Self::WithoutKeptReply | Self::WithoutPiggybacked => {
                Some(if was_sent_once { Execution::None } else { Execution::Possible })
            }
        }
    }
}

/// Passes a reply to a [`CompoundSink`], and keeps the results of SEQUENCE and OPEN.
struct SequencedSink {
    sink: Arc<dyn CompoundSink>,
    asked: SequenceArgs4,
    prefix: PrefixLayout,
    consumed: OnceLock<ConsumedPrefix>,
}

#[derive(Clone, Copy)]
struct ConsumedPrefix {
    sequence: SequenceOk4,
    opened: Option<GrantedOpen>,
}

impl ReplySink for SequencedSink {
    fn consume(&self, results: &[u8]) -> bool {
        let Ok(mut results) = CompoundResults::new(results) else { return false };
        let mut sequence = results.clone();
        let Ok(sequence) = sequence.next::<SequenceOk4>(Nfs4Operation::Sequence) else { return false };
        if results.header().status != NfsStat4::Ok || !answers(&sequence, &self.asked) {
            return false;
        }
        let Ok(opened) = decode_prefix(&mut results, &self.prefix) else { return false };
        let is_consumed = self.sink.consume(results);
        if is_consumed {
            let _ = self.consumed.set(ConsumedPrefix { sequence, opened });
        }
        is_consumed
    }
}

/// A compound that was sent.
struct SentCompound<'a, 'b> {
    request: &'a CompoundRequest<'b>,
    slot: SlotGuard<'a>,
    prefix: CompoundPrefix<'b>,
}

/// A request that has failed, and its last transmission.
#[derive(Clone, Copy)]
struct AttemptedRequest<'a, 'b> {
    request: &'a CompoundRequest<'b>,
    /// The server was asked to keep the reply.
    was_kept: bool,
    /// The transmission whose connection was lost.
    lost: Option<LostTransmission>,
}

/// The outcome of a [`CompoundPrefix`].
enum PrefixOutcome {
    /// All of it was executed.
    Executed,
    /// A piggybacked operation was refused: nothing behind it was executed.
    PiggybackedRefused,
    /// PUTFH or OPEN was refused, or the compound was executed before.
    Refused(NfsStat4),
}

impl NfsV4 {
    /// Sends a compound of an intent until it is answered.
    pub(super) fn send(&self, request: &CompoundRequest<'_>) -> Result<CompoundReply, CallError> {
        self.send_for(request, CompoundPurpose::Ordinary)
            .and_then(|reply| reply.ok_or(CallError::SystemError))
    }

    /// Sends a request of as many operations as the session allows. If another session replaces it
    /// meanwhile, which allows fewer, the request is made again.
    pub(super) fn as_session_allows<T>(
        &self,
        send: impl Fn() -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        let generation = self.session.lock().generation();
        match send() {
            Err(CallError::GarbageArguments) if self.session.lock().generation() != generation => send(),
            answer => answer,
        }
    }

    /// As [`Self::send`], for this purpose; `None`: the session was lost during recovery.
    pub(super) fn send_for(
        &self,
        request: &CompoundRequest<'_>,
        purpose: CompoundPurpose,
    ) -> Result<Option<CompoundReply>, CallError> {
        let interrupt = request.caller.interrupt;
        let (mut repairs, mut wait) = (0, Duration::ZERO);
        let mut lost: Option<LostTransmission> = None;
        // An attempt before this one.
        let mut may_be_executed = false;
        let mut kept = request.keeps_reply.then(|| kept_reply(request.operations));
        let mut may_piggyback = request.may_piggyback && purpose == CompoundPurpose::Ordinary;
        loop {
            let turn = self.session.take_slot(purpose, kept, interrupt)?;
            let attempt = match turn {
                SlotOrRecovery::Recover => {
                    self.recover(interrupt)?;
                    continue;
                }
                SlotOrRecovery::Slot(slot) if slot.is_doubtful => match self.settle(slot, request.caller)? {
                    SlotOutcome::Free => AttemptOutcome::Again,
                    SlotOutcome::StillExecuting => AttemptOutcome::Wait(JUKEBOX_DELAY_MIN),
                },
                SlotOrRecovery::Slot(slot) => self.attempt(request, slot, purpose, may_piggyback)?,
            };
            match attempt {
                // Piggybacked operations that the server refuses must not keep a request from being
                // executed.
                AttemptOutcome::WithoutPiggybacked => may_piggyback = false,
                AttemptOutcome::WithoutKeptReply => kept = None,
                AttemptOutcome::Done(mut reply) => {
                    // Within a session nothing is executed twice.
                    reply.call.lost_at = lost.map(|lost| lost.lost_at);
                    reply.call.sent_at = lost.map_or(reply.call.sent_at, |lost| lost.sent_at);
                    return Ok(Some(reply));
                }
                AttemptOutcome::Wait(least) => {
                    let unexecuted = request.opening.filter(|_| !may_be_executed);
                    unexecuted.inspect(|opening| opening.suspend());
                    wait = self.pause_longer(wait.max(least), interrupt)?;
                    unexecuted.inspect(|opening| opening.resume());
                }
                AttemptOutcome::Again | AttemptOutcome::Repeat(_) => {
                    may_be_executed |= matches!(attempt, AttemptOutcome::Repeat(_));
                    if let AttemptOutcome::Repeat(Some(transmission)) = attempt {
                        lost.get_or_insert(transmission).lost_at = transmission.lost_at;
                    }
                    if purpose == CompoundPurpose::Recovery
                        && self.session.lock().need() > RecoveryStep::Reclaim
                    {
                        return Ok(None);
                    }
                    repairs += 1;
                    if repairs <= REPAIRS_AT_ONCE {
                        continue;
                    }
                    if !self.is_hard || repairs > REPAIRS_MAX {
                        tracing::warn!(
                            operation = request.operation.name(),
                            "the server refuses a request's slot or stateid again and again"
                        );
                        return Err(CallError::SystemError);
                    }
                    wait = self.pause_longer(wait.max(JUKEBOX_DELAY_MIN), interrupt)?;
                }
            }
        }
    }

    /// Settles a slot in doubt by a SEQUENCE alone. As long as the server executes the request in
    /// doubt it asks for time.
    pub(super) fn settle(
        &self,
        slot: SlotGuard<'_>,
        caller: RpcCaller<'_>,
    ) -> Result<SlotOutcome, CallError> {
        let arguments = SequenceArgs4 { cache_this: false, ..slot.arguments };
        let generation = slot.generation();
        let prefix = CompoundPrefix::default();
        let call = self.encoded(Some(arguments), &prefix, &|_, _| {}, &[]);
        let results = self.call_once(caller, Nfs4Operation::Sequence, &call, PREFIX_MAX, None)?;
        let mut results = self.decoded(CompoundResults::new(results.reply.results()))?;
        let status = self.decoded(outcome(results.next::<SequenceOk4>(Nfs4Operation::Sequence)))?;
        // The cached reply shows that the request in doubt was executed.
        match status.err().unwrap_or(NfsStat4::Ok) {
            NfsStat4::Delay => Ok(SlotOutcome::StillExecuting),
            status => {
                if !slot.settled(status) {
                    self.session.require_recovery(RecoveryStep::Session, generation);
                }
                Ok(SlotOutcome::Free)
            }
        }
    }

    /// Sends a compound once.
    fn attempt(
        &self,
        request: &CompoundRequest<'_>,
        slot: SlotGuard<'_>,
        purpose: CompoundPurpose,
        may_piggyback: bool,
    ) -> Result<AttemptOutcome, CallError> {
        let lock = self.lock_of(request);
        // After the look-up: a loss is reported before the table forgets the lock.
        if request.is_lost.is_some_and(|is_lost| is_lost()) {
            slot.refused();
            return Ok(AttemptOutcome::Done(CompoundReply::unsent(self.rpc.now(), NfsStat4::Io)));
        }
        let stateid = match lock {
            LockOfIo::None => None,
            LockOfIo::Stateid(stateid) => Some(stateid),
            // The session of this slot is lost: the next one comes after recovery.
            LockOfIo::Forgotten => {
                slot.refused();
                return Ok(AttemptOutcome::Again);
            }
        };
        let usable =
            |key, access| stateid.map_or_else(|| self.opens.usable(key, access), UsableOpen::Stateid);
        let features = self.server.used();
        let open = match request.open.map(|(key, access)| (key, usable(key, access))) {
            None => None,
            Some((key, UsableOpen::None)) => {
                Some(UsedOpen { key, stateid: Stateid::ANONYMOUS, delayed: None })
            }
            Some((key, UsableOpen::Stateid(stateid))) => Some(UsedOpen { key, stateid, delayed: None }),
            Some((key, UsableOpen::Delayed(_))) if !features.has(ServerFeature::OpenByHandle) => {
                Some(UsedOpen { key, stateid: Stateid::ANONYMOUS, delayed: None })
            }
            Some((key, UsableOpen::Delayed(credential))) => {
                let wants_delegation = self.wants_delegation(&key.file, ShareAccess::Read);
                let delayed = Some(DelayedOpen { credential, wants_delegation, features });
                Some(UsedOpen { key, stateid: Stateid::CURRENT, delayed })
            }
            Some((_, UsableOpen::Lost)) => {
                slot.refused();
                return Ok(AttemptOutcome::Done(CompoundReply::unsent(self.rpc.now(), NfsStat4::Io)));
            }
            // The OPEN would wait for the end of recovery.
            Some((_, UsableOpen::Reopen)) if purpose == CompoundPurpose::Recovery => {
                slot.refused();
                return Ok(AttemptOutcome::Done(CompoundReply::unsent(self.rpc.now(), NfsStat4::BadStateid)));
            }
            Some((key, UsableOpen::Reopen)) => {
                slot.refused();
                self.reopen(key, request.caller.interrupt)?;
                return Ok(AttemptOutcome::Again);
            }
        };
        let is_opening = open.as_ref().is_some_and(|open| open.delayed.is_some());
        let delayed = is_opening.then(|| self.delegations.begin_opening());
        let attempt = self.attempt_with(request, slot, open, may_piggyback);
        if matches!(attempt, Err(_) | Ok(AttemptOutcome::Repeat(_))) {
            let openings = delayed.iter().chain(request.opening);
            openings.for_each(|opening| opening.lose_reply(request.caller.credential));
        }
        attempt
    }

    /// Sends a compound once, which uses this open.
    fn attempt_with<'b>(
        &self,
        request: &CompoundRequest<'b>,
        slot: SlotGuard<'_>,
        open: Option<UsedOpen<'b>>,
        may_piggyback: bool,
    ) -> Result<AttemptOutcome, CallError> {
        let piggybacked = self.take_piggybacked(request, &slot, may_piggyback);
        let sent = SentCompound { request, slot, prefix: CompoundPrefix { piggybacked, open } };
        let layout = sent.prefix.layout();
        let sink = request.sink.map(|sink| {
            let (sink, prefix) = (Arc::clone(sink), layout.clone());
            let asked = sent.slot.arguments;
            Arc::new(SequencedSink { sink, asked, prefix, consumed: OnceLock::new() })
        });
        let as_sink = sink.as_ref().map(|sink| Arc::<SequencedSink>::clone(sink) as Arc<dyn ReplySink>);
        let call = self.encoded(Some(sent.slot.arguments), &sent.prefix, request.append, request.data);
        let room = if layout.has_open { OPEN_RESULTS_MAX } else { 0 };
        let results_max = request.results_max.saturating_add(PREFIX_MAX + room);
        let result = match self.transmit(request, &call, results_max, as_sink.as_ref()) {
            Ok(result) => result,
            Err(error) => {
                let SentCompound { slot, prefix, .. } = sent;
                let mut opens = request.opens.map_or_else(Vec::new, |opens| opens());
                opens.extend(prefix.open.as_ref().and_then(UsedOpen::abandoned));
                self.requeue_piggybacked(prefix.piggybacked);
                drop(slot);
                self.abandon(opens);
                return Err(error);
            }
        };
        let Some(consumed) = sink.as_ref().and_then(|sink| sink.consumed.get()) else {
            let was_sent_once = result.connection_lost_at.is_none() && !result.was_sent_again;
            let attempt = self.judge(sent, layout, result)?;
            if let (Some(again), Some(execution)) = (request.again, attempt.execution(was_sent_once)) {
                again(execution);
            }
            return Ok(attempt);
        };
        let generation = sent.slot.generation();
        self.sequence_executed(sent.slot, &consumed.sequence, result.sent_at);
        for operation in &sent.prefix.piggybacked {
            self.piggybacked_done(operation, Ok(operation.stateid));
        }
        if let (Some(open), Some(opened)) = (&sent.prefix.open, consumed.opened) {
            self.opened_within(open, opened, generation);
        }
        Ok(AttemptOutcome::Done(CompoundReply { call: result, generation, prefix: layout, refused: None }))
    }

    /// Sends a compound until the server has looked at its slot. It keeps the slot and stays the
    /// same while the server refuses SEQUENCE with DELAY, which may be because an earlier copy is
    /// still executed (RFC 8881 section 15.1.1.3): another request with this sequence number could
    /// get the reply to that copy.
    fn transmit(
        &self,
        request: &CompoundRequest<'_>,
        call: &CompoundCall<'_>,
        results_max: usize,
        sink: Option<&Arc<dyn ReplySink>>,
    ) -> Result<CallResult, CallError> {
        let interrupt = request.caller.interrupt;
        let (mut wait, mut bindings) = (JUKEBOX_DELAY_MIN, 0);
        let mut repeated_from = None;
        loop {
            let mut result = self.call_once(request.caller, request.operation, call, results_max, sink)?;
            if let Some(sent_at) = repeated_from {
                // The first copy may have been executed at any time since it was sent.
                result.sent_at = sent_at;
                result.connection_lost_at = Some(self.rpc.now());
            }
            repeated_from = lost_transmission(&result).map(|lost| lost.sent_at);
            match refusal_of_sequence(&result) {
                Some(NfsStat4::Delay) => wait = self.pause_longer(wait, interrupt)?,
                Some(NfsStat4::ConnNotBoundToSession) if bindings < REPAIRS_AT_ONCE => {
                    bindings += 1;
                    self.bind_connection(interrupt)?;
                }
                _ => return Ok(result),
            }
        }
    }

    /// The operations for opens that are added to this compound.
    fn take_piggybacked(
        &self,
        request: &CompoundRequest<'_>,
        slot: &SlotGuard<'_>,
        may_piggyback: bool,
    ) -> Vec<PiggybackedOperation> {
        let most = match request.operation {
            _ if !may_piggyback => 0,
            Nfs4Operation::Sequence => CLOSES_ALONE_MAX,
            // It has left room for what it needs.
            _ if request.operations > OWN_OPERATIONS_MAX => usize::MAX,
            _ => CLOSES_MAX,
        };
        let room = slot.operations_max.saturating_sub(request.operations) / 2;
        let most = most.min(usize::try_from(room).unwrap_or(0));
        let (credential, now) = (request.caller.credential, self.rpc.now());
        let mut piggybacked = self.delegations.take_returns(credential, now, most);
        let returns = piggybacked.len();
        for returned in &piggybacked {
            // The open that the delegation kept is closed with it.
            self.opens.undelegated(&returned.key, now);
        }
        let most = most.saturating_sub(returns);
        piggybacked.extend(self.opens.take_piggybacked(credential, now, ClosedOpens::Due, most));
        if returns > 0 && self.opens.unused_count() > 0 {
            // Opens of other credentials, or more than there is room for.
            self.close_soon();
        }
        piggybacked
    }

    /// Piggybacked operations whose compound was not executed, or not known to be.
    fn requeue_piggybacked(&self, piggybacked: Vec<PiggybackedOperation>) {
        let (returns, others): (Vec<_>, Vec<_>) =
            piggybacked.into_iter().partition(|operation| operation.kind == PiggybackedKind::Return);
        if !returns.is_empty() {
            self.delegations.put_back(returns);
            self.return_later();
        }
        if !others.is_empty() {
            self.opens.put_back(others);
            self.close_soon();
        }
    }

    /// A piggybacked operation was executed, or refused with this status; NFS4ERR_BADXDR: its
    /// result is malformed.
    fn piggybacked_done(&self, operation: &PiggybackedOperation, outcome: Result<Stateid, NfsStat4>) {
        if let Err(status) = outcome {
            self.free_revoked(operation.stateid, status);
        }
        if operation.kind == PiggybackedKind::Return {
            self.delegations.returned(operation, outcome.map(|_| ()), self.rpc.now());
            if outcome.is_err() {
                // It may wait for a compound of its own credential.
                self.return_later();
            }
        } else {
            self.opens.piggybacked_done(operation, outcome, self.rpc.now());
            if matches!(outcome, Err(NfsStat4::Delay | NfsStat4::Grace | NfsStat4::Badxdr)) {
                self.close_soon();
            }
        }
    }

    /// A delayed OPEN was executed.
    fn opened_within(&self, open: &UsedOpen<'_>, opened: GrantedOpen, generation: SessionGeneration) {
        if let Some(delayed) = &open.delayed {
            let owner = OpenOwner { number: open.key.owner, credential: &delayed.credential };
            let wants_delegation = delayed.wants_delegation;
            let sent =
                SentOpen { access: ShareAccess::Read, wants_delegation, generation, is_reopening: false };
            self.opened(&open.key.file, owner, sent, opened);
            if !self.opens.has_users(open.key) {
                // The last close was while it was in flight.
                self.close_soon();
            }
        }
    }

    /// SEQUENCE was executed. A connection is bound for the server's calls in the background if it
    /// has none, or has lost one.
    fn sequence_executed(&self, slot: SlotGuard<'_>, ok: &SequenceOk4, sent_at: Instant) {
        let replacements = self.rpc.transport().replacements();
        // Relaxed: that of another thread may be seen later, which asks once more.
        let is_same = self.replacements.swap(replacements, Relaxed) == replacements;
        if !slot.executed(ok, sent_at) && is_same {
            return;
        }
        let must_bind = self.session.lock().must_bind(sent_at, replacements);
        if must_bind {
            self.bind_later();
        }
    }

    /// Judges a reply that is not consumed.
    fn judge(
        &self,
        sent: SentCompound<'_, '_>,
        layout: PrefixLayout,
        result: CallResult,
    ) -> Result<AttemptOutcome, CallError> {
        let SentCompound { request, slot, mut prefix } = sent;
        let (generation, was_kept) = (slot.generation(), slot.arguments.cache_this);
        let attempted = AttemptedRequest { request, was_kept, lost: lost_transmission(&result) };
        let (header, outcome) = {
            let decoded = CompoundResults::new(result.reply.results());
            let sequence = decoded.and_then(|mut results| {
                let sequence = outcome(results.next::<SequenceOk4>(Nfs4Operation::Sequence))?;
                Ok((results, sequence))
            });
            let (mut results, sequence) = match sequence {
                Ok(decoded) => decoded,
                Err(error) => {
                    self.requeue_piggybacked(prefix.piggybacked);
                    return Err(self.rpc.malformed("SEQUENCE", error));
                }
            };
            match sequence {
                Ok(ok) if answers(&ok, &slot.arguments) => {
                    self.sequence_executed(slot, &ok, result.sent_at);
                }
                Ok(_) => {
                    // The reply is not this request's: nothing of the session can be relied upon.
                    tracing::warn!("the server has answered for another slot: the session is created again");
                    self.requeue_piggybacked(prefix.piggybacked);
                    drop(slot);
                    self.session.require_recovery(RecoveryStep::Session, generation);
                    // It may have been executed.
                    return match request.keeps_reply {
                        false => Ok(AttemptOutcome::Repeat(None)),
                        true => Err(CallError::SystemError),
                    };
                }
                Err(status) => {
                    self.requeue_piggybacked(prefix.piggybacked);
                    return self.refused(request, slot, status, &result);
                }
            }
            (*results.header(), self.judge_prefix(&mut results, &mut prefix, generation)?)
        };
        let refused = match outcome {
            PrefixOutcome::PiggybackedRefused => return Ok(AttemptOutcome::WithoutPiggybacked),
            PrefixOutcome::Executed => None,
            PrefixOutcome::Refused(status) => Some(status),
        };
        if let Some(status) = refused
            && let Some(delayed) = prefix.open.as_ref().and_then(|open| open.delayed.as_ref())
            && self.server.refused_open(fault(status), delayed.features)
        {
            return Ok(AttemptOutcome::Again);
        }
        let failed_at = header.results.saturating_sub(layout.operations() + 1);
        let was_executed = request.required.is_some_and(|required| failed_at > required);
        // The lock agent waits without a thread.
        let waits_elsewhere = request.operation == Nfs4Operation::Lock
            && matches!(header.status, NfsStat4::Delay | NfsStat4::Grace);
        if header.status != NfsStat4::Ok
            && !was_executed
            && !waits_elsewhere
            && let Some(attempt) = self.repair(&attempted, &prefix, header.status, generation)
        {
            return Ok(attempt);
        }
        Ok(AttemptOutcome::Done(CompoundReply { call: result, generation, prefix: layout, refused }))
    }

    /// Judges what precedes the operations of the intent.
    fn judge_prefix(
        &self,
        results: &mut CompoundResults<'_>,
        prefix: &mut CompoundPrefix<'_>,
        generation: SessionGeneration,
    ) -> Result<PrefixOutcome, CallError> {
        let mut piggybacked = std::mem::take(&mut prefix.piggybacked).into_iter();
        while let Some(operation) = piggybacked.next() {
            let result = match outcome(operation.kind.result(results)) {
                Ok(result) => result,
                Err(error) => {
                    self.piggybacked_done(&operation, Err(NfsStat4::Badxdr));
                    self.requeue_piggybacked(piggybacked.collect());
                    return Err(self.rpc.malformed(operation.kind.operation().name(), error));
                }
            };
            if result == Err(NfsStat4::RetryUncachedRep) {
                // An earlier copy of the compound was executed.
                self.requeue_piggybacked(std::iter::once(operation).chain(piggybacked).collect());
                return Ok(PrefixOutcome::Refused(NfsStat4::RetryUncachedRep));
            }
            if result == Err(NfsStat4::RepTooBigToCache) {
                self.requeue_piggybacked(std::iter::once(operation).chain(piggybacked).collect());
                return Ok(PrefixOutcome::PiggybackedRefused);
            }
            if result.is_err() {
                // The others precede one that is delayed when it is sent again.
                self.requeue_piggybacked(piggybacked.collect());
                self.piggybacked_done(&operation, result);
                return Ok(PrefixOutcome::PiggybackedRefused);
            }
            self.piggybacked_done(&operation, result);
        }
        let Some(open) = &prefix.open else { return Ok(PrefixOutcome::Executed) };
        if let Err(status) = self.decoded(outcome(results.next::<()>(Nfs4Operation::Putfh)))? {
            return Ok(PrefixOutcome::Refused(status));
        }
        if let Some(delayed) = &open.delayed {
            let opened = outcome(results.next::<OpenOk4<'_>>(Nfs4Operation::Open));
            match self.decoded(opened)? {
                Ok(ok) => {
                    self.server.accepted_open(delayed.features);
                    self.opened_within(open, GrantedOpen::from(&ok), generation);
                }
                Err(status) => return Ok(PrefixOutcome::Refused(status)),
            }
        }
        Ok(PrefixOutcome::Executed)
    }

    /// Decides how a failure with this status is repaired before the compound is sent again;
    /// `None`: it is not sent again.
    fn repair(
        &self,
        attempted: &AttemptedRequest<'_, '_>,
        prefix: &CompoundPrefix<'_>,
        status: NfsStat4,
        generation: SessionGeneration,
    ) -> Option<AttemptOutcome> {
        let AttemptedRequest { request, was_kept, lost } = *attempted;
        match (status, &prefix.open) {
            (NfsStat4::Delay, _) => Some(AttemptOutcome::Wait(DELAY_MIN)),
            (NfsStat4::Grace, _) => Some(AttemptOutcome::Wait(JUKEBOX_DELAY_MIN)),
            // An earlier copy was executed, and its reply is lost: a change is known by its effect.
            (NfsStat4::RetryUncachedRep, _) if !was_kept => {
                Some(AttemptOutcome::Repeat(lost.filter(|_| request.keeps_reply)))
            }
            (NfsStat4::RepTooBigToCache, _) if was_kept => Some(AttemptOutcome::WithoutKeptReply),
            (
                NfsStat4::BadStateid
                | NfsStat4::StaleStateid
                | NfsStat4::OldStateid
                | NfsStat4::Expired
                | NfsStat4::AdminRevoked,
                Some(open),
            ) if open.stateid != Stateid::ANONYMOUS && request.lock.is_none() => {
                // It is that of the open or of a lock. A server that does not know the current
                // stateid gets that of the OPEN next.
                let _ = self.doubt_open(open.key, open.stateid, status);
                self.lose_lock_state(&open.key.file, open.stateid);
                self.free_revoked(open.stateid, status);
                Some(AttemptOutcome::Again)
            }
            (NfsStat4::Openmode, Some(open))
                if matches!(request.operation, Nfs4Operation::Write | Nfs4Operation::Setattr)
                    && request.lock.is_none()
                    && self.opens.access_refused(open.key, open.stateid) =>
            {
                Some(AttemptOutcome::Again)
            }
            (NfsStat4::StaleClientid, _) => {
                self.session.require_recovery(RecoveryStep::Client, generation);
                Some(AttemptOutcome::Again)
            }
            _ => None,
        }
    }

    /// Decides the next step after a refused SEQUENCE.
    fn refused(
        &self,
        request: &CompoundRequest<'_>,
        slot: SlotGuard<'_>,
        status: NfsStat4,
        result: &CallResult,
    ) -> Result<AttemptOutcome, CallError> {
        let generation = slot.generation();
        let lost = lost_transmission(result);
        let again = match lost {
            None if status != NfsStat4::RetryUncachedRep => AttemptOutcome::Again,
            lost => AttemptOutcome::Repeat(lost),
        };
        match status {
            NfsStat4::RepTooBigToCache if slot.arguments.cache_this => {
                slot.refused();
                Ok(AttemptOutcome::WithoutKeptReply)
            }
            NfsStat4::Badsession
            | NfsStat4::Deadsession
            | NfsStat4::SeqMisordered
            | NfsStat4::SeqFalseRetry
            | NfsStat4::RetryUncachedRep
            | NfsStat4::Badslot
            | NfsStat4::BadHighSlot => {
                drop(slot);
                self.session.require_recovery(RecoveryStep::Session, generation);
                Ok(again)
            }
            NfsStat4::StaleClientid => {
                drop(slot);
                self.session.require_recovery(RecoveryStep::Client, generation);
                Ok(again)
            }
            // The connection could not be bound: that may need time.
            NfsStat4::ConnNotBoundToSession => {
                match lost {
                    None => slot.refused(),
                    Some(_) => drop(slot),
                }
                Ok(again)
            }
            status => {
                // An earlier copy may still be executed: then the slot stays in doubt.
                match lost {
                    None => slot.refused(),
                    Some(_) => drop(slot),
                }
                tracing::warn!(operation = request.operation.name(), %status, "the server refuses SEQUENCE");
                Err(match status {
                    NfsStat4::ReqTooBig | NfsStat4::TooManyOps => CallError::GarbageArguments,
                    _ => CallError::SystemError,
                })
            }
        }
    }

    /// A compound without SEQUENCE, sent once; its results are those of one operation.
    pub(super) fn send_alone<T: for<'a> Decode<'a>>(
        &self,
        caller: RpcCaller<'_>,
        operation: Nfs4Operation,
        append: Append<'_>,
    ) -> Result<Result<T, NfsStat4>, CallError> {
        let prefix = CompoundPrefix::default();
        let call = self.encoded(None, &prefix, append, &[]);
        let result = self.call_once(caller, operation, &call, 4 * PREFIX_MAX, None)?;
        let mut results = self.decoded(CompoundResults::new(result.reply.results()))?;
        let header = *results.header();
        if header.results == 0 && header.status != NfsStat4::Ok {
            // A minor version that the server does not have.
            return Ok(Err(header.status));
        }
        self.decoded(outcome(results.next(operation)))
    }

    fn encoded<'a>(
        &'a self,
        sequence: Option<SequenceArgs4>,
        prefix: &'a CompoundPrefix<'a>,
        append: Append<'a>,
        data: &'a [u8],
    ) -> CompoundCall<'a> {
        let client = self.session.lock().client;
        CompoundCall { minor_version: self.minor_version, sequence, prefix, append, data, client }
    }

    fn call_once(
        &self,
        caller: RpcCaller<'_>,
        operation: Nfs4Operation,
        call: &CompoundCall<'_>,
        results_max: usize,
        sink: Option<&Arc<dyn ReplySink>>,
    ) -> Result<CallResult, CallError> {
        let outgoing = CallSpec {
            program: PROGRAM,
            version: VERSION,
            procedure: Nfs4Procedure::Compound.number(),
            arguments: call,
            results_max,
            jukebox: Some(NfsStat4::Delay.number()),
            status_at: 0,
            transport: None,
            operation: Some(Operation::Nfs4(operation)),
            sink,
        };
        self.rpc.call_without_retry(caller, outgoing)
    }

    /// Logs a malformed reply.
    pub(super) fn decoded<T>(&self, decoded: Result<T, DecodeError>) -> Result<T, CallError> {
        decoded.map_err(|error| self.rpc.malformed("COMPOUND", error))
    }
}

/// The status with which the server refuses the SEQUENCE of a compound.
fn refusal_of_sequence(result: &CallResult) -> Option<NfsStat4> {
    let mut results = CompoundResults::new(result.reply.results()).ok()?;
    if results.header().status == NfsStat4::Ok {
        return None;
    }
    match results.next::<SequenceOk4>(Nfs4Operation::Sequence) {
        Err(ResultError::Failed(status)) => Some(status),
        _ => None,
    }
}

/// The transmission of a request whose connection was lost before its reply.
fn lost_transmission(result: &CallResult) -> Option<LostTransmission> {
    let lost_at = result.connection_lost_at?;
    Some(LostTransmission { sent_at: result.sent_at, lost_at })
}

/// The first pause after NFS4ERR_DELAY; each is twice the one before, up to some seconds. The usual
/// reason is a delegation that is being recalled, which takes the other client a round trip or two.
const DELAY_MIN: Duration = Duration::from_millis(2);
