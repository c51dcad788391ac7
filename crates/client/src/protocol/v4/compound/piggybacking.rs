//! The operations for opens and delegations that are added to a compound, and what becomes of them.

use curt_policy::open::{CLOSES_ALONE_MAX, CLOSES_MAX};
use curt_proto::nfs4::{Nfs4Operation, NfsStat4, Stateid};

use super::request::{CompoundRequest, OWN_OPERATIONS_MAX};
use crate::protocol::v4::{
    NfsV4,
    piggybacked::{ClosedOpens, PiggybackedKind, PiggybackedOperation},
    session::SlotGuard,
};

impl NfsV4 {
    /// Takes the operations for opens and delegations that are added to this compound.
    pub(super) fn take_piggybacked(
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
    pub(super) fn requeue_piggybacked(&self, piggybacked: Vec<PiggybackedOperation>) {
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
    pub(super) fn piggybacked_done(
        &self,
        operation: &PiggybackedOperation,
        outcome: Result<Stateid, NfsStat4>,
    ) {
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
}
