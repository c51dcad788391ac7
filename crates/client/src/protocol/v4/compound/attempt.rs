//! One attempt to have a compound executed: its open is chosen, and it is sent in a slot.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use curt_proto::nfs4::{NfsStat4, Stateid};
use curt_rpc::client::{CallError, ReplySink};

use super::{
    call::CompoundCall,
    prefix::{CompoundPrefix, DelayedOpen, PREFIX_MAX, UsedOpen},
    reply::{CompoundReply, SequencedSink},
    request::CompoundRequest,
    retransmission::LostTransmission,
};
use crate::protocol::{
    ShareAccess,
    v4::{
        NfsV4,
        abandoned_opens::AbandonedOpen,
        lock_states::LockOfIo,
        open_codec::OPEN_RESULTS_MAX,
        open_table::UsableOpen,
        results::Execution,
        server_traits::ServerFeature,
        session::{CompoundPurpose, SlotGuard},
    },
};

/// The next step after one attempt to send a compound.
pub(super) enum AttemptOutcome {
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
    pub(super) const fn execution(&self, was_sent_once: bool) -> Option<Execution> {
        match self {
            Self::Done(_) => None,
            Self::Repeat(_) => Some(Execution::Possible),
            Self::Wait(_) | Self::Again | Self::WithoutKeptReply | Self::WithoutPiggybacked => {
                Some(if was_sent_once { Execution::None } else { Execution::Possible })
            }
        }
    }
}

/// A compound that was sent.
pub(super) struct SentCompound<'a, 'b> {
    pub(super) request: &'a CompoundRequest<'b>,
    pub(super) slot: SlotGuard<'a>,
    pub(super) prefix: CompoundPrefix<'b>,
}

impl NfsV4 {
    /// Sends a compound once.
    pub(super) fn attempt(
        &self,
        request: &CompoundRequest<'_>,
        slot: SlotGuard<'_>,
        purpose: CompoundPurpose,
        may_piggyback: bool,
        lost_opens: &mut Option<Vec<AbandonedOpen>>,
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
            Some((key, UsableOpen::None)) => Some(UsedOpen::with_stateid(key, Stateid::ANONYMOUS)),
            Some((key, UsableOpen::Stateid(stateid))) => Some(UsedOpen::with_stateid(key, stateid)),
            Some((key, UsableOpen::Delayed(_))) if !features.has(ServerFeature::OpenByHandle) => {
                Some(UsedOpen::with_stateid(key, Stateid::ANONYMOUS))
            }
            Some((key, UsableOpen::Delayed(credential))) => {
                let wants_delegation = self.wants_delegation(&key.file, ShareAccess::Read);
                let client = self.session.lock().client;
                let delayed = Some(DelayedOpen { client, credential, wants_delegation, features });
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
        let delayed_open = open.as_ref().and_then(UsedOpen::abandoned);
        let attempt = self.attempt_with(request, slot, open, may_piggyback);
        if matches!(attempt, Err(_) | Ok(AttemptOutcome::Repeat(_))) {
            let openings = delayed.iter().chain(request.opening);
            openings.for_each(|opening| opening.lose_reply(request.caller.credential));
            let opens = lost_opens.get_or_insert_default();
            if opens.is_empty() {
                opens.extend(request.opens.map_or_else(Vec::new, |opens| opens()));
                opens.extend(delayed_open);
            }
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
        let call = CompoundCall {
            minor_version: self.minor_version,
            sequence: Some(sent.slot.arguments),
            prefix: &sent.prefix,
            append: request.append,
            data: request.data,
        };
        let room = if layout.has_open { OPEN_RESULTS_MAX } else { 0 };
        let results_max = request.results_max.saturating_add(PREFIX_MAX + room);
        let result = match self.transmit(request, &call, results_max, as_sink.as_ref()) {
            Ok(result) => result,
            Err(error) => {
                self.requeue_piggybacked(sent.prefix.piggybacked);
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
}
