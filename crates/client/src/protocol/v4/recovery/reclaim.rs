//! Reclaiming after a restart of the server (RFC 8881 sections 8.4.2, 10.2.1 and 18.51): the opens
//! with their delegations, delegations without opens, locks, and RECLAIM_COMPLETE.

use std::sync::Arc;

use curt_proto::nfs4::{
    Clientid, CompoundEncoder, DelegationType, Nfs4Operation, NfsStat4, OpenClaim, ReclaimCompleteArgs4,
    Stateid,
};
use curt_rpc::{auth::RpcCredential, client::Interrupt};

use super::{RecoveryError, StepError, StepProgress};
use crate::protocol::{
    OpenOwner, RpcCaller, ShareAccess,
    v4::{
        NfsV4, attributes,
        compound::request::{CompoundRequest, get_attributes, put_fh},
        delegation_table::DelegationToReclaim,
        open_codec::{OPEN_RESULTS_MAX, OpenRequest},
        open_key::OpenKey,
        open_table::{OpenToRestore, SentOpen},
        results::{CompoundResultReader, optional, outcome},
        session::{RecoveryStep, SessionGeneration},
    },
};

/// The operations that reclaim an open and a delegation.
const OPERATIONS_TO_RECLAIM: u32 = 3;

/// The most OPENs of one compound that reclaims.
const RECLAIMS_MAX: usize = 16;

/// Bytes of the operations that reclaim one open, and as many of their results.
const RECLAIM_BYTES: usize = 512;

/// An OPEN that reclaims.
struct Reclaim<'a> {
    key: &'a OpenKey,
    access: ShareAccess,
    /// Also the delegation that came with it.
    is_delegated: bool,
}

/// The result of a compound that reclaims.
#[derive(Clone, Copy, Default)]
struct ReclaimedBatch {
    /// How many OPENs were executed.
    done: usize,
    /// Why the next one was refused: those behind it were not executed.
    refused: Option<NfsStat4>,
}

/// Whether an operation was refused because of those before it, or asks for time.
pub(super) const fn is_of_compound(status: NfsStat4) -> bool {
    matches!(status, NfsStat4::Delay | NfsStat4::Grace | NfsStat4::RepTooBig)
}

/// PUTFH and OPEN of each of these, and GETATTR behind those with a delegation.
fn push_reclaims(operations: &mut CompoundEncoder<'_>, batch: &[Reclaim<'_>], client: Clientid) {
    for Reclaim { key, access, is_delegated } in batch {
        let kind = if *is_delegated { DelegationType::Read } else { DelegationType::None };
        let open = OpenRequest {
            claim: OpenClaim::Previous(kind),
            ..OpenRequest::by_handle(client, key.owner, *access, 0)
        };
        put_fh(operations, &key.file);
        operations.push(&open.arguments());
        if *is_delegated {
            get_attributes(operations, attributes::OBJECT);
        }
    }
}

impl NfsV4 {
    /// Reclaims the opens, the delegations without opens, and then the locks, and says that this is
    /// all.
    pub(super) fn reclaim(&self, caller: RpcCaller<'_>) -> Result<StepProgress, StepError> {
        let forgotten = {
            let mut session = self.session.lock();
            session.take_forgotten().then(|| session.generation())
        };
        if let Some(generation) = forgotten {
            self.forget_state(generation);
        }
        let interrupt = caller.interrupt;
        self.reclaim_opens(interrupt)?;
        self.reclaim_delegations(interrupt)?;
        self.reclaim_locks(interrupt)?;
        let complete = ReclaimCompleteArgs4 { one_file_system: false };
        let append = |operations: &mut CompoundEncoder<'_>, _: Stateid| {
            operations.push(&complete);
            // A server may have another lease when it is restarted.
            operations.bare(Nfs4Operation::Putrootfh);
            get_attributes(operations, attributes::LEASE);
        };
        let request = CompoundRequest::non_idempotent(caller, Nfs4Operation::ReclaimComplete, 0, &append);
        let reply = self.send_in_recovery(&request)?;
        let mut results = self.decoded(reply.results())?;
        match self.decoded(outcome(results.next::<()>(Nfs4Operation::ReclaimComplete)))? {
            Ok(()) | Err(NfsStat4::CompleteAlready | NfsStat4::Notsupp) => {
                self.delegations.to_reclaim().clear();
                self.decoded(optional(results.next::<()>(Nfs4Operation::Putrootfh)))?;
                let lease = CompoundResultReader::new(results, reply.generation()).values(attributes::LEASE);
                let lease = self.decoded(lease)?.and_then(|values| values.lease_time);
                let mut session = self.session.lock();
                if let Some(lease) = lease {
                    session.lease.set_length(lease);
                }
                session.satisfied(RecoveryStep::Reclaim);
                Ok(StepProgress::Done)
            }
            Err(status) => Err(RecoveryError::Refused(status).into()),
        }
    }

    /// The server knows nothing that was open before the session `next`.
    pub(super) fn forget_state(&self, next: SessionGeneration) {
        // First: what is abandoned from now on may be of the next session, and is closed in it.
        drop(self.abandoned.take());
        self.opens.forgotten_by_server(next);
        self.delegations.forgotten_by_server(next);
        self.locks.forgotten_by_server();
    }

    /// The most OPENs of one compound that reclaims.
    fn reclaims_max(&self) -> usize {
        let limits = self.session.lock().limits;
        let operations = limits.operations_max.saturating_sub(1) / OPERATIONS_TO_RECLAIM;
        let bytes = limits.operations_bytes_max().min(limits.results_bytes_max()) / RECLAIM_BYTES;
        usize::try_from(operations).unwrap_or(usize::MAX).min(bytes).clamp(1, RECLAIMS_MAX)
    }

    /// Reclaims the opens, with the delegations that came with them.
    fn reclaim_opens(&self, interrupt: &Interrupt) -> Result<(), StepError> {
        let most = self.reclaims_max();
        loop {
            let opens = self.opens.next_to_reclaim(most);
            let Some(OpenToRestore { credential, .. }) = opens.first() else { return Ok(()) };
            let accesses =
                opens.iter().flat_map(|open| open.accesses.iter().map(move |access| (open, *access)));
            let reclaims = accesses.map(|(OpenToRestore { key, .. }, access)| Reclaim {
                key,
                access,
                is_delegated: access == ShareAccess::Read && self.delegations.to_reclaim().contains(key),
            });
            let reclaims: Vec<_> = reclaims.collect();
            let ReclaimedBatch { mut done, refused } = self.reclaim_some(credential, &reclaims, interrupt)?;
            if refused == Some(NfsStat4::NoGrace) {
                tracing::info!("it is too late to reclaim open files: they are opened again");
                self.opens.none_reclaimed();
                self.delegations.to_reclaim().clear();
                return Ok(());
            }
            for open in &opens {
                let left = done.checked_sub(open.accesses.len());
                if left.is_none() && refused.is_none() {
                    break;
                }
                self.opens.not_reclaimed(&open.key);
                self.delegations.to_reclaim().remove(&open.key);
                let Some(left) = left else {
                    tracing::info!(?refused, "an open file cannot be reclaimed: it is opened again");
                    break;
                };
                done = left;
            }
        }
    }

    /// Reclaims the delegations of files that nobody has open.
    fn reclaim_delegations(&self, interrupt: &Interrupt) -> Result<(), StepError> {
        let most = self.reclaims_max();
        loop {
            let batch = self.delegations.to_reclaim().take(most);
            let Some(DelegationToReclaim { credential, .. }) = batch.first() else { return Ok(()) };
            let reclaims = batch.iter().map(|waiting| Reclaim {
                key: &waiting.key,
                access: ShareAccess::Read,
                is_delegated: true,
            });
            let reclaims: Vec<_> = reclaims.collect();
            let reclaimed = self.reclaim_some(credential, &reclaims, interrupt);
            let ReclaimedBatch { done, refused } = reclaimed.unwrap_or_default();
            // The first that is refused is lost, with all others if it is too late for them.
            let is_over = matches!(refused, Some(NfsStat4::NoGrace | NfsStat4::ReclaimBad));
            if is_over {
                self.delegations.to_reclaim().clear();
            } else {
                let gone = done + usize::from(refused.is_some());
                self.delegations.to_reclaim().put_back(batch.into_iter().skip(gone));
            }
            reclaimed?;
        }
    }

    /// Sends OPENs that reclaim, all of one owner, in one compound.
    fn reclaim_some(
        &self,
        credential: &Arc<RpcCredential>,
        batch: &[Reclaim<'_>],
        interrupt: &Interrupt,
    ) -> Result<ReclaimedBatch, StepError> {
        let Some(first) = batch.first() else { return Ok(ReclaimedBatch::default()) };
        let owner = OpenOwner { number: first.key.owner, credential };
        let client = self.session.lock().client;
        let append = |operations: &mut CompoundEncoder<'_>, _: Stateid| {
            push_reclaims(operations, batch, client);
        };
        let wants_delegation = batch.iter().any(|reclaim| reclaim.is_delegated);
        let opening = wants_delegation.then(|| self.delegations.begin_opening());
        let request = CompoundRequest {
            required: Some(1),
            results_max: 2 * OPEN_RESULTS_MAX * batch.len(),
            may_piggyback: false,
            opening: opening.as_ref(),
            ..CompoundRequest::idempotent(RpcCaller { credential, interrupt }, Nfs4Operation::Open, &append)
        };
        let reply = self.send_in_recovery(&request)?;
        let mut results = CompoundResultReader::new(self.decoded(reply.results())?, reply.generation());
        let lose_reply = || opening.iter().for_each(|opening| opening.lose_reply(credential));
        for (done, Reclaim { key, access, is_delegated }) in batch.iter().enumerate() {
            let sent = SentOpen {
                access: *access,
                wants_delegation: *is_delegated,
                generation: results.generation,
                is_reopening: true,
            };
            let held = match self.opened_again(&mut results.operations, key, owner, sent) {
                Ok(Ok(held)) => held,
                // These are sent again, first in a compound.
                Ok(Err(status)) if done > 0 && is_of_compound(status) => {
                    return Ok(ReclaimedBatch { done, refused: None });
                }
                Ok(Err(status)) => return Ok(ReclaimedBatch { done, refused: Some(status) }),
                // The first open counts as refused, with all its accesses. Others are sent again.
                Err(_) => {
                    lose_reply();
                    let refused = (*key == first.key).then_some(NfsStat4::Badxdr);
                    return Ok(ReclaimedBatch { done, refused });
                }
            };
            if held.is_none() && !self.opens.has_users(key) {
                self.close_soon();
            }
            if !*is_delegated {
                continue;
            }
            // If its open is sent again, the delegation is not reclaimed twice.
            self.delegations.to_reclaim().remove(key);
            match self.decoded(results.attributes()) {
                Ok(Some(about)) => held.iter().for_each(|held| {
                    self.delegations.report_confirmed(&key.file, held, &about, reply.call.sent_at);
                }),
                // What follows was not executed, and is sent again.
                Ok(None) => return Ok(ReclaimedBatch { done: done + 1, refused: None }),
                // Malformed (knfsd: see `CompoundResults::status`). So is what follows.
                Err(_) => {
                    lose_reply();
                    return Ok(ReclaimedBatch { done: done + 1, refused: None });
                }
            }
        }
        Ok(ReclaimedBatch { done: batch.len(), refused: None })
    }
}
