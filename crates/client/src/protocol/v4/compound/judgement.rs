//! What the reply to an attempt says: of the session, of the operations that precede those of the
//! intent, and of these.

use std::{sync::atomic::Ordering::Relaxed, time::Instant};

use curt_proto::nfs4::{CompoundResults, Nfs4Operation, NfsStat4, OpenOk4, SequenceOk4};
use curt_rpc::client::CallError;

use super::{
    attempt::{AttemptOutcome, SentCompound},
    prefix::{CompoundPrefix, PrefixLayout, UsedOpen},
    repair::AttemptedRequest,
    reply::{CompoundReply, answers},
    retransmission::lost_transmission,
};
use crate::protocol::{
    OpenOwner, ShareAccess,
    rpc_client::CallResult,
    v4::{
        NfsV4,
        open_codec::GrantedOpen,
        open_table::SentOpen,
        results::{fault, outcome},
        session::{RecoveryStep, SessionGeneration, SlotGuard},
    },
};

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
    /// Judges a reply that is not consumed.
    pub(super) fn judge(
        &self,
        sent: SentCompound<'_, '_>,
        layout: PrefixLayout,
        result: CallResult,
    ) -> Result<AttemptOutcome, CallError> {
        let SentCompound { request, slot, mut prefix } = sent;
        let (generation, was_kept) = (slot.generation(), slot.arguments.cache_this);
        let attempted = AttemptedRequest { request, was_kept, lost: lost_transmission(&result) };
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
            Ok(ok) if answers(&ok, &slot.arguments) => self.sequence_executed(slot, &ok, result.sent_at),
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
        let header = *results.header();
        let refused = match self.judge_prefix(&mut results, &mut prefix, generation)? {
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

    /// A delayed OPEN was executed.
    pub(super) fn opened_within(
        &self,
        open: &UsedOpen<'_>,
        opened: GrantedOpen,
        generation: SessionGeneration,
    ) {
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

    /// SEQUENCE was executed. If the server has no connection for its calls, or has lost one, a
    /// connection is bound in the background; if the session is at fault, it is replaced.
    pub(super) fn sequence_executed(&self, slot: SlotGuard<'_>, ok: &SequenceOk4, sent_at: Instant) {
        let replacements = self.rpc.transport().replacements();
        // Relaxed: that of another thread may be seen later, which asks once more.
        let is_same = self.replacements.swap(replacements, Relaxed) == replacements;
        if !slot.executed(ok, sent_at) && is_same {
            return;
        }
        let (must_bind, must_replace) = {
            let mut state = self.session.lock();
            (state.must_bind(sent_at, replacements), state.must_replace())
        };
        if must_replace {
            self.replace_session_soon();
        } else if must_bind {
            self.bind_later();
        }
    }
}
