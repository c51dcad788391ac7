//! A compound in its slot (RFC 8881 sections 2.9.2 and 2.10.6): sent until the server has looked at
//! it; a slot whose reply is lost is settled.

use std::{sync::Arc, time::Instant};

use curt_proto::nfs4::{CompoundResults, Nfs4Operation, NfsStat4, ResultError, SequenceArgs4, SequenceOk4};
use curt_rpc::client::{CallError, ReplySink};

use super::{
    call::CompoundCall,
    prefix::{CompoundPrefix, PREFIX_MAX},
    request::CompoundRequest,
};
use crate::protocol::{
    RpcCaller,
    rpc_client::{CallResult, JUKEBOX_DELAY_MIN},
    v4::{
        NfsV4,
        results::outcome,
        session::{RecoveryStep, SlotGuard},
    },
};

/// How often a compound is sent again at once because of lost sessions and stateids. After that it
/// fails in a soft mount, and in a hard one waits before each time.
pub(super) const REPAIRS_AT_ONCE: u32 = 16;

/// A transmission whose reply was lost, with the session that could have repeated it.
#[derive(Clone, Copy, Debug)]
pub(super) struct LostTransmission {
    pub(super) sent_at: Instant,
    pub(super) lost_at: Instant,
}

/// The state of a slot in doubt after a SEQUENCE alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::protocol::v4) enum SlotOutcome {
    /// Ready for another request, or lost with its session.
    Free,
    /// The server still executes the request in doubt.
    StillExecuting,
}

impl NfsV4 {
    /// Sends a compound until the server has looked at its slot. It keeps the slot and stays the
    /// same while the server refuses SEQUENCE with DELAY, which may be because an earlier copy is
    /// still executed (RFC 8881 section 15.1.1.3): another request with this sequence number could
    /// get the reply to that copy.
    pub(super) fn transmit(
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

    /// Settles a slot in doubt by a SEQUENCE alone. As long as the server executes the request in
    /// doubt it asks for time.
    pub(in crate::protocol::v4) fn settle(
        &self,
        slot: SlotGuard<'_>,
        caller: RpcCaller<'_>,
    ) -> Result<SlotOutcome, CallError> {
        let arguments = SequenceArgs4 { cache_this: false, ..slot.arguments };
        let generation = slot.generation();
        let prefix = CompoundPrefix::default();
        let call = CompoundCall {
            minor_version: self.minor_version,
            sequence: Some(arguments),
            prefix: &prefix,
            append: &|_, _| {},
            data: &[],
        };
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
pub(super) fn lost_transmission(result: &CallResult) -> Option<LostTransmission> {
    let lost_at = result.connection_lost_at?;
    Some(LostTransmission { sent_at: result.sent_at, lost_at })
}
