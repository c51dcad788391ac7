//! Work in the background: opens are closed, delegations returned, slots settled, connections
//! bound, sessions replaced, and the lease renewed. And the delegation in the reply to an OPEN.

use std::{
    sync::{Arc, Weak, atomic::Ordering::Relaxed},
    time::Duration,
};

use curt_policy::{
    delegation::DelegationConditions,
    open::{CLOSES_ALONE_MAX, KEPT_FOR, WRITER_KEPT_FOR},
};
use curt_proto::nfs4::Nfs4Operation;
use curt_rpc::client::{CallError, Interrupt};
use curt_types::FileHandle;

use super::{
    NfsV4,
    abandoned_opens::{AbandonedOpen, OpenTarget},
    compound::{reply::CompoundReply, request::CompoundRequest, retransmission::SlotOutcome},
    delegation_table::OpenedForDelegation,
    maintenance_tasks::MaintenanceTask,
    open_codec::GrantedOpen,
    open_key::OpenKey,
    open_table::SentOpen,
    piggybacked::ClosedOpens,
};
use crate::protocol::{FileOperations, HeldDelegation, OpenOwner, RpcCaller, ShareAccess};

/// Compounds in a row that return no delegation before the rest is left for others.
const RETURN_ATTEMPTS: u32 = 8;

/// Compounds in a row that close no open before the rest is left for later.
const CLOSE_ATTEMPTS: u32 = 8;

/// The pause of a task that closes opens while another one does.
const CLOSING_PAUSE: Duration = Duration::from_millis(250);

/// Maximum interval between checks whether the lease is to be renewed: the lease may become
/// shorter.
const CHECK_PERIOD_MAX: Duration = Duration::from_secs(5);

/// The lease is renewed when it has not been for this part of it.
const RENEWAL_PART: u32 = 2;

impl NfsV4 {
    /// Whether an OPEN of a file, which is sent now, asks for a delegation.
    pub(super) fn wants_delegation(&self, file: &FileHandle, access: ShareAccess) -> bool {
        let wish = DelegationConditions {
            is_allowed: self.delegations.is_allowed(),
            can_be_recalled: self.session.lock().backchannel.is_usable(),
            only_reads: access == ShareAccess::Read,
            is_written_here: self.opens.is_written(file),
            returning: self.delegations.returning(),
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
        let now = self.rpc.now();
        if !self.opens.opened(file, owner, sent, result, now) {
            return None;
        }
        let key = OpenKey { file: file.clone(), owner: owner.number };
        let open = OpenedForDelegation {
            key: &key,
            credential: owner.credential,
            was_wanted: sent.wants_delegation,
            generation: sent.generation,
            is_written_here: self.opens.is_written(file),
            now,
        };
        let held = self.delegations.opened(&open, result.delegation, result.granting)?;
        self.opens.delegated(&key, &held);
        Some(held)
    }

    /// Has a task performed in the background, after this pause, unless it is scheduled.
    fn schedule(&self, task: MaintenanceTask, pause: Option<Duration>) {
        if !self.tasks.begin(task) {
            return;
        }
        let this = Weak::clone(&self.this);
        let perform = Box::new(move || {
            if let Some(this) = this.upgrade() {
                this.perform(task);
            }
        });
        match pause {
            Some(pause) => self.background.spawn_after(pause, perform),
            None => self.background.spawn(perform),
        }
    }

    /// Performs a task. One that ends after its work never runs twice at a time, and looks again
    /// for what has come meanwhile: a server that does not reply holds one thread of each.
    fn perform(&self, task: MaintenanceTask) {
        let never = Interrupt::never();
        match task {
            MaintenanceTask::Close => self.close_in_turn(task, ClosedOpens::All),
            MaintenanceTask::CloseWriters => self.close_in_turn(task, ClosedOpens::Due),
            MaintenanceTask::Closing => unreachable!("it is not scheduled"),
            MaintenanceTask::Return => {
                while self.send_returns(&never) {
                    self.tasks.end(task);
                    // Delegations that were added meanwhile.
                    let is_due = self.delegations.return_credential(self.rpc.now()).is_some();
                    if !is_due || !self.tasks.begin(task) {
                        return;
                    }
                }
                self.tasks.end(task);
                self.return_later();
            }
            MaintenanceTask::ReturnLater => {
                self.tasks.end(task);
                self.return_delegations();
            }
            MaintenanceTask::Settle => {
                let is_settled = self.settle_all(&never);
                self.tasks.end(task);
                if !is_settled || self.session.lock().slots.has_doubtful() || !self.abandoned.is_empty() {
                    self.schedule(task, Some(KEPT_FOR));
                }
            }
            MaintenanceTask::ReportSlots => {
                let caller = RpcCaller { credential: &self.machine, interrupt: &never };
                let sent = self.send_sequence(caller);
                self.tasks.end(task);
                match sent {
                    // Its own reply may have said so.
                    Ok(_) if self.session.lock().must_replace() => self.replace_session_soon(),
                    Ok(_) => {}
                    Err(error) => tracing::debug!(%error, "the server is not told of the slots in use"),
                }
            }
            MaintenanceTask::Bind => loop {
                let replacements = || self.rpc.transport().replacements();
                let bound = replacements();
                self.session.lock().backchannel.bound_replacements = bound;
                if let Err(error) = self.bind_connection(&never) {
                    tracing::debug!(%error, "the backchannel is not bound again");
                }
                self.tasks.end(task);
                if replacements() == bound || !self.tasks.begin(task) {
                    return;
                }
            },
        }
    }

    /// Closes opens, unless another thread does: then again after a pause.
    fn close_in_turn(&self, task: MaintenanceTask, closed: ClosedOpens) {
        self.tasks.end(task);
        if self.tasks.begin(MaintenanceTask::Closing) {
            self.close_unused(closed, &Interrupt::never());
            self.tasks.end(MaintenanceTask::Closing);
        } else {
            self.schedule(task, Some(CLOSING_PAUSE));
        }
    }

    /// Returns delegations in the background. When the mount ends, they are not returned one by
    /// one.
    pub(super) fn return_delegations(&self) {
        if !self.has_ended.load(Relaxed) {
            self.schedule(MaintenanceTask::Return, None);
        }
    }

    /// Returns the delegations that wait in a while, unless other compounds do so before.
    pub(super) fn return_later(&self) {
        let Some(left) = self.delegations.next_return(self.rpc.now()) else { return };
        // One that is not delayed has failed for another reason.
        let pause = if left.is_zero() { KEPT_FOR } else { left };
        self.schedule(MaintenanceTask::ReturnLater, Some(pause));
    }

    /// Closes opens without users in a while, unless another compound does so before.
    pub(super) fn close_soon(&self) {
        self.schedule(MaintenanceTask::Close, Some(KEPT_FOR));
    }

    /// This open has no users any more: it is closed in a while, unless another compound does so
    /// before.
    pub(super) fn close_when_due(&self, key: &OpenKey) {
        if self.opens.is_written_by(key) {
            self.schedule(MaintenanceTask::CloseWriters, Some(WRITER_KEPT_FOR));
        } else {
            self.close_soon();
        }
    }

    /// Binds a connection in the background: no request waits for that. One that is replaced
    /// meanwhile may have been bound already: the new one is bound as well.
    pub(super) fn bind_later(&self) {
        self.schedule(MaintenanceTask::Bind, None);
    }

    /// The session is to be replaced: a SEQUENCE has that done, unless another request does so
    /// before.
    pub(super) fn replace_session_soon(&self) {
        self.schedule(MaintenanceTask::ReportSlots, Some(KEPT_FOR));
    }

    /// Sends SEQUENCE alone, which reports the slots in use.
    pub(super) fn report_slots(&self) {
        self.schedule(MaintenanceTask::ReportSlots, None);
    }

    /// Returns delegations in compounds of their own. What the server delays is returned later.
    /// Returns whether none is due any more.
    pub(super) fn send_returns(&self, interrupt: &Interrupt) -> bool {
        let (mut fewest, mut in_vain) = (self.delegations.returns_count(), 0);
        let is_done = loop {
            let Some(credential) = self.delegations.return_credential(self.rpc.now()) else { break true };
            let caller = RpcCaller { credential: &credential, interrupt };
            if in_vain >= RETURN_ATTEMPTS || self.send_sequence(caller).is_err() {
                break false;
            }
            // The session limits the number in one compound.
            let left = self.delegations.returns_count();
            in_vain = if left < fewest { 0 } else { in_vain + 1 };
            fewest = fewest.min(left);
        };
        self.return_later();
        is_done
    }

    /// A request was given up that may have opened these files. Its slot is settled in the
    /// background, and its opens are closed.
    pub(super) fn abandon(&self, opens: Vec<AbandonedOpen>) {
        self.abandoned.add(opens);
        self.schedule(MaintenanceTask::Settle, None);
    }

    /// Settles all slots, and opens what may be open at the server, so that it is closed. `false`:
    /// some are left.
    fn settle_all(&self, interrupt: &Interrupt) -> bool {
        // Their slots are in doubt already.
        let mut opens = self.abandoned.take();
        let is_settled = self.settle_slots(interrupt);
        while is_settled && let Some(open) = opens.pop() {
            if self.close_abandoned(&open, interrupt).is_err() {
                opens.push(open);
                break;
            }
        }
        let is_done = is_settled && opens.is_empty();
        self.abandoned.add(opens);
        is_done
    }

    fn settle_slots(&self, interrupt: &Interrupt) -> bool {
        while let Some(slot) = self.session.take_doubtful() {
            let caller = RpcCaller { credential: &self.machine, interrupt };
            if self.settle(slot, caller) != Ok(SlotOutcome::Free) {
                return false;
            }
        }
        let must_tell = self.session.lock().must_tell_of_slots();
        if must_tell && self.send_sequence(RpcCaller { credential: &self.machine, interrupt }).is_err() {
            return false;
        }
        !self.session.lock().slots.has_doubtful()
    }

    fn close_abandoned(&self, open: &AbandonedOpen, interrupt: &Interrupt) -> Result<(), CallError> {
        let owner = OpenOwner { number: open.owner, credential: &open.credential };
        let caller = RpcCaller { credential: &open.credential, interrupt };
        let file = match &open.target {
            OpenTarget::File(file) => file.clone(),
            OpenTarget::Name(directory, name) => match self.find(caller, directory, name)?.outcome {
                Ok(found) => found.handle,
                Err(_) => return Ok(()),
            },
        };
        self.open_again(&file, owner, open.access, interrupt)
    }

    /// Closes opens without users, in compounds of their own. What the server delays is closed
    /// later.
    pub(super) fn close_unused(&self, closed: ClosedOpens, interrupt: &Interrupt) {
        self.send_returns(interrupt);
        let (mut fewest, mut in_vain) = (self.opens.unused_count(), 0);
        while in_vain < CLOSE_ATTEMPTS {
            let now = self.rpc.now();
            let Some(credential) = self.opens.idle_credential(now, closed) else {
                if self.opens.has_postponed(now) {
                    self.close_soon();
                }
                return;
            };
            let caller = RpcCaller { credential: &credential, interrupt };
            let piggybacked = self.opens.take_piggybacked(&credential, now, closed, CLOSES_ALONE_MAX);
            if piggybacked.is_empty() {
                return;
            }
            self.opens.put_back_first(piggybacked);
            if self.send_sequence(caller).is_err() {
                return;
            }
            let left = self.opens.unused_count();
            in_vain = if left < fewest { 0 } else { in_vain + 1 };
            fewest = fewest.min(left);
        }
        self.close_soon();
    }

    /// Renews the lease when it has not been renewed by other requests, as long as the mount lasts.
    pub(super) fn keep_lease(self: &Arc<Self>) {
        let period = (self.session.lock().lease.length() / RENEWAL_PART / 2).min(CHECK_PERIOD_MAX);
        let this = Arc::downgrade(self);
        let renew = move || {
            if let Some(this) = this.upgrade() {
                this.renew_lease();
                this.delegations.end_unused(this.rpc.now());
                this.keep_lease();
            }
        };
        self.background.spawn_after(period.max(Duration::from_millis(100)), Box::new(renew));
    }

    pub(super) fn renew_lease(&self) {
        let is_due = {
            let lease = &self.session.lock().lease;
            lease.is_idle_for(lease.length() / RENEWAL_PART, self.rpc.now())
        };
        if is_due {
            let never = Interrupt::never();
            let caller = RpcCaller { credential: &self.machine, interrupt: &never };
            let request = CompoundRequest::idempotent(caller, Nfs4Operation::Sequence, &|_, _| {});
            // The server may hold the reply to a CLOSE.
            let request = CompoundRequest { operations: 1, may_piggyback: false, ..request };
            if let Err(error) = self.send(&request) {
                tracing::debug!(%error, "the lease is not renewed");
            }
        }
    }

    /// Sends SEQUENCE, and the operations that are added to it.
    fn send_sequence(&self, caller: RpcCaller<'_>) -> Result<CompoundReply, CallError> {
        let request = CompoundRequest::idempotent(caller, Nfs4Operation::Sequence, &|_, _| {});
        self.send(&CompoundRequest { operations: 1, ..request })
    }
}
