//! The reply to a compound, whose results are read when it has arrived, or in the receive buffer.

use std::{
    sync::{Arc, OnceLock},
    time::Instant,
};

use curt_proto::nfs4::{CompoundResults, Nfs4Operation, NfsStat4, SequenceArgs4, SequenceOk4};
use curt_rpc::client::ReplySink;
use curt_xdr::DecodeError;

use super::prefix::{PrefixLayout, decode_prefix};
use crate::protocol::{
    rpc_client::CallResult,
    v4::{open_codec::GrantedOpen, results::CompoundSink, session::SessionGeneration},
};

/// The reply to a compound.
#[derive(Debug)]
pub(in crate::protocol::v4) struct CompoundReply {
    pub(in crate::protocol::v4) call: CallResult,
    pub(super) generation: SessionGeneration,
    pub(super) prefix: PrefixLayout,
    /// Why none of the intent's own operations was executed, if their open is the reason.
    pub(super) refused: Option<NfsStat4>,
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
    pub(in crate::protocol::v4) fn results(&self) -> Result<CompoundResults<'_>, DecodeError> {
        let mut results = CompoundResults::new(self.call.reply.results())?;
        decode_prefix(&mut results, &self.prefix)?;
        Ok(results)
    }

    /// The session that has executed it.
    pub(in crate::protocol::v4) const fn generation(&self) -> SessionGeneration {
        self.generation
    }

    /// Why none of the intent's own operations was executed, if their open is the reason: then
    /// there are no results.
    pub(in crate::protocol::v4) const fn refused(&self) -> Option<NfsStat4> {
        self.refused
    }
}

/// Whether this is the result of that SEQUENCE.
pub(super) fn answers(ok: &SequenceOk4, asked: &SequenceArgs4) -> bool {
    ok.session == asked.session && ok.sequence == asked.sequence && ok.slot == asked.slot
}

/// Passes a reply to a [`CompoundSink`], and keeps the results of SEQUENCE and OPEN.
pub(super) struct SequencedSink {
    pub(super) sink: Arc<dyn CompoundSink>,
    pub(super) asked: SequenceArgs4,
    pub(super) prefix: PrefixLayout,
    pub(super) consumed: OnceLock<ConsumedPrefix>,
}

#[derive(Clone, Copy)]
pub(super) struct ConsumedPrefix {
    pub(super) sequence: SequenceOk4,
    pub(super) opened: Option<GrantedOpen>,
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
