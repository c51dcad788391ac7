//! One compound: a SEQUENCE, operations for opens and delegations that are added to it
//! (`piggybacking`), and those of an intent.
//!
//! If the intent uses an open, its operations follow PUTFH of the file, and the OPEN if that is
//! delayed (`prefix`).
//!
//! Owns the retries. A compound is sent again in its slot while the server refuses SEQUENCE with
//! DELAY (`retransmission`). It is sent again, in another slot or session, if the server has
//! refused SEQUENCE otherwise, if a later operation asks for time (DELAY, GRACE), or if the stateid
//! of an open is unknown to the server, which is then opened again (`judgement`, `repair`). It is
//! not sent again after its last required operation was executed: what follows that only describes
//! its result. Must not know the purpose of an operation.

mod answer;
mod attempt;
mod call;
mod judgement;
mod piggybacking;
mod prefix;
mod repair;
pub(super) mod reply;
pub(super) mod request;
pub(super) mod retransmission;

use std::time::Duration;

use curt_rpc::client::CallError;

use self::{
    attempt::AttemptOutcome,
    reply::CompoundReply,
    request::{CompoundRequest, OWN_OPERATIONS_MAX},
    retransmission::{LostTransmission, REPAIRS_AT_ONCE, SlotOutcome},
};
use super::{
    NfsV4,
    abandoned_opens::AbandonedOpen,
    session::{CompoundPurpose, RecoveryStep, SlotOrRecovery},
};
use crate::protocol::rpc_client::JUKEBOX_DELAY_MIN;

/// How often a compound is sent again in all, [`REPAIRS_AT_ONCE`] included, because of lost
/// sessions and stateids. Then it fails in a hard mount, too: after some minutes.
const REPAIRS_MAX: u32 = 80;

/// Bytes of the reply to a change of a name or of attributes: SEQUENCE, piggybacked operations, a
/// handle and two sets of attributes. A server that keeps less is not asked to keep the reply.
const KEPT_REPLY: u32 = 1024;

/// Bytes of the result of each operation beyond those of one change, on average.
const KEPT_RESULT: u32 = 16;

/// The size of a reply that the server has to keep, of a compound of this many operations.
const fn kept_reply(operations: u32) -> u32 {
    KEPT_REPLY.saturating_add(KEPT_RESULT.saturating_mul(operations.saturating_sub(OWN_OPERATIONS_MAX)))
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
        let mut lost_opens = None;
        let reply = self.send_until_answered(request, purpose, &mut lost_opens);
        if let (Err(_), Some(opens)) = (&reply, lost_opens) {
            self.abandon(opens);
        }
        reply
    }

    /// As [`Self::send_for`]. `lost_opens` gets the opens of an attempt that may have been executed
    /// without a reply.
    fn send_until_answered(
        &self,
        request: &CompoundRequest<'_>,
        purpose: CompoundPurpose,
        lost_opens: &mut Option<Vec<AbandonedOpen>>,
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
                SlotOrRecovery::Slot(slot) if slot.is_doubtful() => {
                    match self.settle(slot, request.caller)? {
                        SlotOutcome::Free => AttemptOutcome::Again,
                        SlotOutcome::StillExecuting => AttemptOutcome::Wait(JUKEBOX_DELAY_MIN),
                    }
                }
                SlotOrRecovery::Slot(slot) => {
                    self.attempt(request, slot, purpose, may_piggyback, lost_opens)?
                }
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
}
