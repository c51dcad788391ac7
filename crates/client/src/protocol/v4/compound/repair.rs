//! What is done about a refusal before a compound is sent again: a pause, recovery, another
//! stateid, or a reply that the server need not keep.

use std::time::Duration;

use curt_proto::nfs4::{Nfs4Operation, NfsStat4, Stateid};
use curt_rpc::client::CallError;

use super::{
    attempt::AttemptOutcome,
    prefix::CompoundPrefix,
    request::CompoundRequest,
    retransmission::{LostTransmission, lost_transmission},
};
use crate::protocol::{
    rpc_client::{CallResult, JUKEBOX_DELAY_MIN},
    v4::{
        NfsV4,
        session::{RecoveryStep, SessionGeneration, SlotGuard},
    },
};

/// The first pause after NFS4ERR_DELAY; each is twice the one before, up to some seconds. The usual
/// reason is a delegation that is being recalled, which takes the other client a round trip or two.
const DELAY_MIN: Duration = Duration::from_millis(2);

/// A request that has failed, and its last transmission.
#[derive(Clone, Copy)]
pub(super) struct AttemptedRequest<'a, 'b> {
    pub(super) request: &'a CompoundRequest<'b>,
    /// The server was asked to keep the reply.
    pub(super) was_kept: bool,
    /// The transmission whose connection was lost.
    pub(super) lost: Option<LostTransmission>,
}

impl NfsV4 {
    /// Decides how a failure with this status is repaired before the compound is sent again;
    /// `None`: it is not sent again.
    pub(super) fn repair(
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
    pub(super) fn refused(
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
}
