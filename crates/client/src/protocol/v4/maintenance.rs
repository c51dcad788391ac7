//! Requests that maintain opens, delegations and the lease, and the delegation in an OPEN reply.

use std::{
    sync::{Arc, Weak, atomic::Ordering::Relaxed},
    time::Duration,
};

use curt_policy::{
    delegation::DelegationConditions,
    open::{CLOSES_ALONE_MAX, KEPT_FOR},
};
use curt_proto::nfs4::Nfs4Operation;
use curt_rpc::client::Interrupt;
use curt_types::FileHandle;

use super::{
    NfsV4, RESULTS_SMALL,
    compound::{CompoundRequest, REPEATABLE},
    delegation::OpenedForDelegation,
    open::{GrantedOpen, OpenKey, SentOpen},
};
use crate::protocol::{HeldDelegation, OpenOwner, RpcCaller, ShareAccess};

/// Compounds in which delegations are returned before the rest is left for others.
const RETURN_ATTEMPTS: usize = 8;

/// The lease is renewed when it has not been for this part of it.
const RENEWAL_PART: u32 = 2;

impl NfsV4 {
    /// Whether an OPEN of a file, which is sent now, asks for a delegation.
    pub(super) fn wants_delegation(&self, file: &FileHandle, access: ShareAccess) -> bool {
        let wish = DelegationConditions {
            is_allowed: self.delegations.is_allowed(),
            can_be_recalled: self.session.lock().has_callbacks(),
            only_reads: access == ShareAccess::Read,
            is_written_here: self.opens.is_written(file),
        };
        wish.is_wanted()
    }

    /// The server has executed an OPEN. Returns the delegation that the client has got.
    pub(super) fn opened(
        &self,
        file: &FileHandle,
        owner: OpenOwner<'_>,
        sent: SentOpen,
        result: GrantedOpen,
    ) -> Option<Arc<HeldDelegation>> {
        if !self.opens.opened(file, owner, sent, result, self.rpc.now()) {
            return None;
        }
        let key = OpenKey { file: file.clone(), owner: owner.number };
        let open = OpenedForDelegation {
            key: &key,
            credential: owner.credential,
            was_wanted: sent.wants_delegation,
            generation: sent.generation,
            is_written_here: self.opens.is_written(file),
        };
        let held = self.delegations.opened(&open, result.delegation, result.granting)?;
        self.opens.delegated(&key, &held);
        Some(held)
    }

    /// Returns delegations in the background.
    pub(super) fn return_delegations(&self) {
        if self.is_returning.swap(true, Relaxed) {
            return;
        }
        let this = Weak::clone(&self.this);
        let give_back = move || {
            let Some(this) = this.upgrade() else { return };
            this.send_returns(&Interrupt::never());
            this.is_returning.store(false, Relaxed);
            // What was added meanwhile.
            this.send_returns(&Interrupt::never());
        };
        self.background.spawn(Box::new(give_back));
    }

    /// Returns delegations in compounds of their own. What the server delays goes with a later one.
    pub(super) fn send_returns(&self, interrupt: &Interrupt) {
        let attempts = self.delegations.returns_count() / CLOSES_ALONE_MAX + RETURN_ATTEMPTS;
        for _ in 0..attempts {
            let Some(credential) = self.delegations.return_credential() else { return };
            if self.send(&alone(RpcCaller { credential: &credential, interrupt })).is_err() {
                return;
            }
        }
    }

    /// Closes opens without users in a while, unless another compound does so before.
    pub(super) fn close_soon(&self) {
        if self.is_closing.swap(true, Relaxed) {
            return;
        }
        let this = Weak::clone(&self.this);
        let close = move || {
            if let Some(this) = this.upgrade() {
                this.is_closing.store(false, Relaxed);
                this.close_unused(&Interrupt::never());
            }
        };
        self.background.spawn_after(KEPT_FOR, Box::new(close));
    }

    /// Closes opens without users, in compounds of their own.
    pub(super) fn close_unused(&self, interrupt: &Interrupt) {
        self.send_returns(interrupt);
        while let Some(credential) = self.opens.idle_credential() {
            let caller = RpcCaller { credential: &credential, interrupt };
            let piggybacked = self.opens.take_piggybacked(&credential, None, CLOSES_ALONE_MAX);
            if piggybacked.is_empty() {
                break;
            }
            self.opens.put_back_first(piggybacked);
            if self.send(&alone(caller)).is_err() {
                break;
            }
        }
    }

    /// Renews the lease when it has not been renewed by other requests, as long as the mount lasts.
    pub(super) fn keep_lease(self: &Arc<Self>) {
        let period = self.session.lock().lease() / RENEWAL_PART / 2;
        let this = Arc::downgrade(self);
        let renew = move || {
            if let Some(this) = this.upgrade() {
                this.renew_lease();
                this.keep_lease();
            }
        };
        self.background.spawn_after(period.max(Duration::from_millis(100)), Box::new(renew));
    }

    pub(super) fn renew_lease(&self) {
        let is_due = {
            let state = self.session.lock();
            state.is_idle_for(state.lease() / RENEWAL_PART, self.rpc.now())
        };
        if is_due {
            let never = Interrupt::never();
            let caller = RpcCaller { credential: &self.machine, interrupt: &never };
            if let Err(error) = self.send(&alone(caller)) {
                tracing::debug!(%error, "the lease is not renewed");
            }
        }
    }
}

/// A compound of SEQUENCE and the operations that are added to it.
pub(super) fn alone(caller: RpcCaller<'_>) -> CompoundRequest<'_> {
    CompoundRequest {
        caller,
        operation: Nfs4Operation::Sequence,
        append: &|_, _| {},
        main: REPEATABLE,
        open: None,
        lock: None,
        results_max: RESULTS_SMALL,
        sink: None,
        may_piggyback: true,
        keeps_reply: false,
    }
}
