//! One compound: a SEQUENCE, the operations for opens that ride in it, and those of an intent.
//!
//! Owns the retries. A compound is sent again, in another slot or session, if the server has
//! refused SEQUENCE, if it asks for time (DELAY, GRACE), or if the stateid of an open is unknown to
//! it, which is then opened again. It is not sent again after its main operation was executed: what
//! follows that only describes its result. Must not know the purpose of an operation.

use std::{
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use curt_policy::open::{CLOSES_ALONE_MAX, CLOSES_MAX};
use curt_proto::{
    Operation,
    nfs4::{
        CloseArgs4, CompoundEncoder, CompoundResults, DelegreturnArgs4, Nfs4Operation, Nfs4Procedure, NfsFh4,
        NfsStat4, OpenDowngradeArgs4, PROGRAM, PutfhArgs4, ResultError, SequenceArgs4, SequenceOk4,
        ShareAccess4, Stateid, VERSION,
    },
};
use curt_rpc::client::{CallError, ReplySink};
use curt_types::Fault;
use curt_xdr::{Decode, DecodeError, Encode, Opaque};

use super::{
    NfsV4,
    open::{OpenKey, Rider, RiderOperation, UsableOpen, wire},
    session::{Need, Purpose, SlotGuard, SlotTurn},
};
use crate::protocol::{
    RpcCaller,
    rpc_client::{CallResult, CallSpec, JUKEBOX_DELAY_MAX, JUKEBOX_DELAY_MIN},
};

/// How often a compound is sent again because of lost sessions and stateids, before it fails.
const REPAIRS_MAX: u32 = 16;

/// The position of a main operation that no compound has: every operation may be repeated.
pub(super) const REPEATABLE: u32 = u32::MAX;

/// Appends the operations of an intent, which use this stateid.
pub(super) type Append<'a> = &'a (dyn Fn(&mut CompoundEncoder<'_>, Stateid) + Sync);

/// The compound of an intent.
#[derive(Clone, Copy)]
pub(super) struct CompoundRequest<'a> {
    pub(super) caller: RpcCaller<'a>,
    /// What it is counted as.
    pub(super) operation: Nfs4Operation,
    /// Its operations.
    pub(super) append: Append<'a>,
    /// The position of the operation that must not be executed twice, from 0; [`REPEATABLE`] if
    /// there is none. The server keeps its reply then.
    pub(super) main: u32,
    /// The open whose stateid it uses.
    pub(super) open: Option<&'a OpenKey>,
    /// Longest results of its operations, in bytes.
    pub(super) results_max: usize,
    /// May process the results of its operations in the receive buffer.
    pub(super) sink: Option<&'a Arc<dyn CompoundSink>>,
}

/// Processes the results of a compound's own operations in the receive buffer.
pub(super) trait CompoundSink: Send + Sync {
    /// As [`ReplySink::consume`].
    fn consume(&self, results: CompoundResults<'_>) -> bool;
}

/// The reply to a compound.
#[derive(Debug)]
pub(super) struct CompoundReply {
    pub(super) call: CallResult,
    riders: Vec<RiderOperation>,
    /// The open that it used is lost.
    is_lost: bool,
}

/// The most operations of an intent, with SEQUENCE.
const OWN_OPERATIONS_MAX: u32 = 9;

/// Longest SEQUENCE and riders in a reply, in bytes.
const HEAD_MAX: usize = 2048;

/// A call of COMPOUND.
struct CompoundCall<'a> {
    minor_version: u32,
    sequence: Option<SequenceArgs4>,
    riders: &'a [Rider],
    append: Append<'a>,
    stateid: Stateid,
}

impl Encode for CompoundCall<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        let mut operations = CompoundEncoder::new(out, Opaque::default(), self.minor_version);
        if let Some(sequence) = &self.sequence {
            operations.push(sequence);
        }
        for rider in self.riders {
            operations.push(&PutfhArgs4 { object: NfsFh4::from(&rider.file) });
            match rider.does {
                RiderOperation::Close => operations.push(&CloseArgs4 { seqid: 0, stateid: rider.stateid }),
                RiderOperation::Return => operations.push(&DelegreturnArgs4 { stateid: rider.stateid }),
                RiderOperation::Downgrade(access) => operations.push(&OpenDowngradeArgs4 {
                    stateid: rider.stateid,
                    seqid: 0,
                    share_access: ShareAccess4(wire(access)),
                    share_deny: 0,
                }),
            }
        }
        (self.append)(&mut operations, self.stateid);
        operations.finish();
    }
}

impl RiderOperation {
    const fn operation(self) -> Nfs4Operation {
        match self {
            Self::Close => Nfs4Operation::Close,
            Self::Downgrade(_) => Nfs4Operation::OpenDowngrade,
            Self::Return => Nfs4Operation::Delegreturn,
        }
    }

    /// The rider's result: its new stateid.
    fn result(self, results: &mut CompoundResults<'_>) -> Result<Stateid, ResultError> {
        results.next::<()>(Nfs4Operation::Putfh)?;
        match self {
            Self::Return => results.next::<()>(self.operation()).map(|()| Stateid::INVALID),
            Self::Close | Self::Downgrade(_) => results.next(self.operation()),
        }
    }
}

impl CompoundReply {
    /// The results of the intent's own operations.
    ///
    /// # Errors
    /// What precedes them cannot be decoded, which was checked when the reply arrived.
    pub(super) fn results(&self) -> Result<CompoundResults<'_>, DecodeError> {
        let mut results = CompoundResults::new(self.call.reply.results())?;
        skip_head(&mut results, &self.riders)?;
        Ok(results)
    }

    /// Whether the open that the compound would have used is lost; there are no results then.
    pub(super) const fn is_lost(&self) -> bool {
        self.is_lost
    }
}

/// Decodes SEQUENCE and the riders, which all have succeeded.
fn skip_head(results: &mut CompoundResults<'_>, riders: &[RiderOperation]) -> Result<(), DecodeError> {
    let malformed = |error| match error {
        ResultError::Decode(error) => error,
        _ => DecodeError::Short,
    };
    results.next::<SequenceOk4>(Nfs4Operation::Sequence).map_err(malformed)?;
    for rider in riders {
        rider.result(results).map_err(malformed)?;
    }
    Ok(())
}

/// The result of an operation: the outer error is that of a malformed reply.
pub(super) fn outcome<T>(result: Result<T, ResultError>) -> Result<Result<T, NfsStat4>, DecodeError> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(ResultError::NotExecuted(NfsStat4::Ok)) => {
            // The server has answered fewer operations than it was asked for, and calls that
            // success.
            Err(DecodeError::Short)
        }
        Err(ResultError::Failed(status) | ResultError::NotExecuted(status)) => Ok(Err(status)),
        Err(ResultError::OtherOperation(operation)) => {
            Err(DecodeError::BadValue { name: "resop", value: operation.number() })
        }
        Err(ResultError::Decode(error)) => Err(error),
    }
}

/// The same for what only describes the result of an operation that has succeeded: it may be
/// missing.
pub(super) fn optional<T>(result: Result<T, ResultError>) -> Result<Option<T>, DecodeError> {
    outcome(result).map(Result::ok)
}

/// What becomes of a compound after one attempt.
enum Attempt {
    /// It has a reply.
    Done(CompoundReply),
    /// The server asks for time.
    Wait,
    /// Something was repaired, or has to be by [`Need`].
    Again,
    /// What rode in it was refused: it is sent without.
    Unburdened,
}

/// Passes a reply to a [`CompoundSink`], and keeps the result of SEQUENCE.
struct SequencedSink {
    sink: Arc<dyn CompoundSink>,
    riders: Vec<RiderOperation>,
    sequence: OnceLock<SequenceOk4>,
}

impl ReplySink for SequencedSink {
    fn consume(&self, results: &[u8]) -> bool {
        let Ok(mut results) = CompoundResults::new(results) else { return false };
        let mut head = results.clone();
        let Ok(sequence) = head.next::<SequenceOk4>(Nfs4Operation::Sequence) else { return false };
        if results.header().status != NfsStat4::Ok || skip_head(&mut results, &self.riders).is_err() {
            return false;
        }
        let is_consumed = self.sink.consume(results);
        if is_consumed {
            let _ = self.sequence.set(sequence);
        }
        is_consumed
    }
}

impl NfsV4 {
    /// Sends a compound of an intent until it is answered.
    pub(super) fn send(&self, request: &CompoundRequest<'_>) -> Result<CompoundReply, CallError> {
        self.send_for(request, Purpose::Ordinary).and_then(|reply| reply.ok_or(CallError::SystemError))
    }

    /// Sends a compound that is part of recovery; `None`: the session was lost meanwhile.
    pub(super) fn send_in_recovery(
        &self,
        request: &CompoundRequest<'_>,
    ) -> Result<Option<CompoundReply>, CallError> {
        self.send_for(request, Purpose::Recovery)
    }

    fn send_for(
        &self,
        request: &CompoundRequest<'_>,
        purpose: Purpose,
    ) -> Result<Option<CompoundReply>, CallError> {
        let interrupt = request.caller.interrupt;
        let (mut repairs, mut wait) = (0, JUKEBOX_DELAY_MIN);
        let mut lost_at: Option<Instant> = None;
        let mut carries = purpose == Purpose::Ordinary;
        loop {
            let turn = self.session.take_slot(purpose, request.main != REPEATABLE, interrupt)?;
            let attempt = match turn {
                SlotTurn::Recover => {
                    self.recover(interrupt)?;
                    continue;
                }
                SlotTurn::Slot(slot) if slot.is_doubtful => {
                    self.settle(slot, request.caller)?;
                    Attempt::Again
                }
                SlotTurn::Slot(slot) => self.attempt(request, slot, carries, &mut lost_at)?,
            };
            // Riders that the server refuses must not keep a request from being executed.
            carries &= !matches!(attempt, Attempt::Unburdened);
            match attempt {
                Attempt::Unburdened => {}
                Attempt::Done(mut reply) => {
                    reply.call.lost_at = reply.call.lost_at.or(lost_at);
                    return Ok(Some(reply));
                }
                Attempt::Wait => {
                    self.rpc.pause(wait, interrupt);
                    if interrupt.is_raised() {
                        return Err(CallError::Interrupted);
                    }
                    wait = (wait * 2).min(JUKEBOX_DELAY_MAX);
                }
                Attempt::Again => {
                    if purpose == Purpose::Recovery && self.session.lock().need() > Need::Reclaim {
                        return Ok(None);
                    }
                    repairs += 1;
                    if repairs > REPAIRS_MAX {
                        tracing::warn!(
                            operation = request.operation.name(),
                            "the server refuses a request's slot or stateid again and again"
                        );
                        return Err(CallError::SystemError);
                    }
                }
            }
        }
    }

    /// Settles a slot in doubt by a SEQUENCE alone.
    fn settle(&self, slot: SlotGuard<'_>, caller: RpcCaller<'_>) -> Result<(), CallError> {
        let arguments = SequenceArgs4 { cache_this: false, ..slot.arguments };
        let generation = slot.generation();
        let call = self.encoded(Some(arguments), &[], &|_, _| {}, Stateid::ANONYMOUS);
        let results = self.call_once(caller, Nfs4Operation::Sequence, &call, HEAD_MAX, None)?;
        let mut results = self.decoded(CompoundResults::new(results.reply.results()))?;
        let status = self.decoded(outcome(results.next::<SequenceOk4>(Nfs4Operation::Sequence)))?;
        // The kept reply of the request in doubt says that it was executed.
        match status.err().unwrap_or(NfsStat4::Ok) {
            NfsStat4::Delay => {
                drop(slot);
                self.rpc.pause(JUKEBOX_DELAY_MIN, caller.interrupt);
            }
            status => {
                if !slot.settled(status) {
                    self.session.demand(Need::Session, generation);
                }
            }
        }
        Ok(())
    }

    /// Sends a compound once.
    fn attempt(
        &self,
        request: &CompoundRequest<'_>,
        slot: SlotGuard<'_>,
        carries: bool,
        lost_at: &mut Option<Instant>,
    ) -> Result<Attempt, CallError> {
        let usable = request.open.map_or(UsableOpen::None, |open| self.opens.usable(open));
        let stateid = match (usable, request.open) {
            (UsableOpen::Stateid(stateid), _) => stateid,
            (UsableOpen::None, _) => Stateid::ANONYMOUS,
            (UsableOpen::Lost, _) => {
                slot.refused();
                return Ok(Attempt::Done(lost(self.rpc.now())));
            }
            (UsableOpen::Reopen, open) => {
                slot.refused();
                if let Some(open) = open {
                    self.reopen(open, request.caller.interrupt)?;
                }
                return Ok(Attempt::Again);
            }
        };
        let most = match request.operation {
            _ if !carries => 0,
            Nfs4Operation::Sequence => CLOSES_ALONE_MAX,
            _ => CLOSES_MAX,
        };
        let room = slot.operations_max.saturating_sub(OWN_OPERATIONS_MAX) / 2;
        let most = most.min(usize::try_from(room).unwrap_or(0));
        let riders = self.opens.take_riders(request.caller.credential, Some(self.rpc.now()), most);
        let kinds: Vec<_> = riders.iter().map(|rider| rider.does).collect();
        let call = self.encoded(Some(slot.arguments), &riders, request.append, stateid);
        let sink = request.sink.map(|sink| {
            Arc::new(SequencedSink {
                sink: Arc::clone(sink),
                riders: kinds.clone(),
                sequence: OnceLock::new(),
            })
        });
        let as_sink = sink.as_ref().map(|sink| Arc::<SequencedSink>::clone(sink) as Arc<dyn ReplySink>);
        let results_max = request.results_max.saturating_add(HEAD_MAX);
        let sent = self.call_once(request.caller, request.operation, &call, results_max, as_sink.as_ref());
        let result = match sent {
            Ok(result) => result,
            Err(error) => {
                self.opens.put_back(riders);
                return Err(error);
            }
        };
        *lost_at = lost_at.or(result.lost_at);
        if let Some(sequence) = sink.as_ref().and_then(|sink| sink.sequence.get()) {
            // The next reply that is not consumed says again whether the backchannel is broken.
            let _ = slot.executed(sequence, result.sent_at);
            for rider in &riders {
                self.opens.rode(rider, Ok(rider.stateid));
            }
            return Ok(Attempt::Done(CompoundReply { call: result, riders: kinds, is_lost: false }));
        }
        self.judge(request, slot, riders, stateid, result)
    }

    /// Judges a reply that is not consumed.
    fn judge(
        &self,
        request: &CompoundRequest<'_>,
        slot: SlotGuard<'_>,
        riders: Vec<Rider>,
        stateid: Stateid,
        result: CallResult,
    ) -> Result<Attempt, CallError> {
        let generation = slot.generation();
        let sent_at = result.sent_at;
        let mut reply = CompoundReply { call: result, riders: Vec::new(), is_lost: false };
        let mut results = match CompoundResults::new(reply.call.reply.results()) {
            Ok(results) => results,
            Err(error) => {
                self.opens.put_back(riders);
                return Err(self.rpc.malformed("COMPOUND", error));
            }
        };
        let (status, count) = (results.header().status, results.header().results);
        let sequence = match outcome(results.next::<SequenceOk4>(Nfs4Operation::Sequence)) {
            Ok(sequence) => sequence,
            Err(error) => {
                self.opens.put_back(riders);
                return Err(self.rpc.malformed("SEQUENCE", error));
            }
        };
        match sequence {
            Ok(ok) if slot.matches(&ok) => {
                if slot.executed(&ok, sent_at)
                    && let Err(error) = self.bind_connection(request.caller.interrupt)
                {
                    tracing::debug!(%error, "the backchannel is not bound again");
                }
            }
            Ok(_) => {
                // The reply is not this request's: nothing of the session can be relied upon.
                tracing::warn!("the server has answered for another slot: the session is created again");
                self.opens.put_back(riders);
                drop(slot);
                self.session.demand(Need::Session, generation);
                return Err(CallError::SystemError);
            }
            Err(status) => {
                self.opens.put_back(riders);
                return self.refused(request, slot, status);
            }
        }
        let mut kinds = Vec::with_capacity(riders.len());
        let mut riders = riders.into_iter();
        while let Some(rider) = riders.next() {
            let rode = match outcome(rider.does.result(&mut results)) {
                Ok(rode) => rode,
                Err(error) => {
                    self.opens.put_back(riders.collect());
                    return Err(self.rpc.malformed(rider.does.operation().name(), error));
                }
            };
            self.opens.rode(&rider, rode);
            if rode.is_err() {
                // Nothing behind it was executed.
                self.opens.put_back(riders.collect());
                return Ok(Attempt::Unburdened);
            }
            kinds.push(rider.does);
        }
        let before = 1 + 2 * u32::try_from(kinds.len()).unwrap_or(u32::MAX);
        let failed_at = count.saturating_sub(before + 1);
        let was_executed = request.main != REPEATABLE && failed_at > request.main;
        reply.riders = kinds;
        if status == NfsStat4::Ok || was_executed {
            return Ok(Attempt::Done(reply));
        }
        Ok(match (status, request.open) {
            // The lock agent waits without a thread.
            (NfsStat4::Delay | NfsStat4::Grace, _) if request.operation == Nfs4Operation::Lock => {
                Attempt::Done(reply)
            }
            (NfsStat4::Delay | NfsStat4::Grace, _) => Attempt::Wait,
            // An earlier copy was executed and changed nothing; its reply is lost.
            (NfsStat4::RetryUncachedRep, _) if request.main == REPEATABLE => Attempt::Again,
            (
                NfsStat4::BadStateid
                | NfsStat4::StaleStateid
                | NfsStat4::OldStateid
                | NfsStat4::Expired
                | NfsStat4::AdminRevoked,
                Some(open),
            ) if stateid != Stateid::ANONYMOUS => {
                self.opens.doubt(open, stateid);
                Attempt::Again
            }
            (NfsStat4::StaleClientid, _) => {
                self.session.demand(Need::Client, generation);
                Attempt::Again
            }
            _ => Attempt::Done(reply),
        })
    }

    /// What follows from a refused SEQUENCE.
    fn refused(
        &self,
        request: &CompoundRequest<'_>,
        slot: SlotGuard<'_>,
        status: NfsStat4,
    ) -> Result<Attempt, CallError> {
        let generation = slot.generation();
        match status {
            // The request that is in doubt may still be executed: the same number again.
            NfsStat4::Delay => {
                slot.refused();
                Ok(Attempt::Wait)
            }
            NfsStat4::ConnNotBoundToSession => {
                slot.refused();
                self.bind_connection(request.caller.interrupt)?;
                Ok(Attempt::Again)
            }
            NfsStat4::Badsession
            | NfsStat4::Deadsession
            | NfsStat4::SeqMisordered
            | NfsStat4::SeqFalseRetry
            | NfsStat4::RetryUncachedRep
            | NfsStat4::Badslot
            | NfsStat4::BadHighSlot => {
                drop(slot);
                self.session.demand(Need::Session, generation);
                Ok(Attempt::Again)
            }
            NfsStat4::StaleClientid => {
                drop(slot);
                self.session.demand(Need::Client, generation);
                Ok(Attempt::Again)
            }
            status => {
                slot.refused();
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
        let call = self.encoded(None, &[], append, Stateid::ANONYMOUS);
        let result = self.call_once(caller, operation, &call, 4 * HEAD_MAX, None)?;
        let mut results = self.decoded(CompoundResults::new(result.reply.results()))?;
        let header = *results.header();
        if header.results == 0 && header.status != NfsStat4::Ok {
            // A minor version that the server does not have.
            return Ok(Err(header.status));
        }
        self.decoded(outcome(results.next(operation)))
    }

    fn encoded<'a>(
        &self,
        sequence: Option<SequenceArgs4>,
        riders: &'a [Rider],
        append: Append<'a>,
        stateid: Stateid,
    ) -> CompoundCall<'a> {
        CompoundCall { minor_version: self.minor_version, sequence, riders, append, stateid }
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
            bulk: &[],
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

/// The reply to a request whose open, or lock, is lost.
pub(super) fn lost(now: Instant) -> CompoundReply {
    let reply = curt_rpc::client::CallReply::from_results(Vec::new());
    CompoundReply {
        call: CallResult { reply, sent_at: now, lost_at: None },
        riders: Vec::new(),
        is_lost: true,
    }
}

/// The fault of a status, for an intent.
pub(super) fn fault(status: NfsStat4) -> Fault {
    Fault::from(status)
}

/// The longest pause between two attempts of recovery.
pub(super) const RECOVERY_PAUSE: Duration = JUKEBOX_DELAY_MIN;
