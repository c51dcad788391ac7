//! Recovery of NFSv4 clients: the list of those that have state, the grace period, and the end of
//! leases.
//!
//! Invariants: a client is on the list before it gets its first new state; it is off the list
//! before another client gets what it loses, and loses nothing if it cannot be removed from the
//! list; the list is that of this run before the first state is granted after the grace period. So
//! whatever a client may reclaim after a restart is still its own (RFC 8881 section 8.4.3).
//!
//! A client that may use an export comes on the list when it completes its reclaims, so that its
//! first OPEN does not wait for the disk. One that reclaims is on the list of the last run until
//! then. If the grace period ends before, the client is on no list and keeps what
//! it has reclaimed; after another restart it may reclaim nothing, for others may have had, and
//! given up, what it had not reclaimed yet.
//!
//! The grace period lasts as long as the lease before the restart, because that is the lease that
//! the clients know: each of them sends a request within it. It goes on while they reclaim.

use curt_observe::ServerCounter;
use curt_proto::nfs4::{Clientid, Stateid};

use crate::service::NfsService;
use crate::state::locks::{LockClient, LockHolder};
use crate::state::{
    Client, DelegationRefusal, DelegationRequest, FileKey, OpenGranted, OpenRequest, RecordedClient,
    RecordedState, StateFault, WantedAccess,
};
use crate::state_directory::{RecordLimits, StateError};

impl NfsService {
    /// Begins the recovery of clients that had state when the last run ended. Called once, before
    /// requests and after [`Self::set_lease`].
    ///
    /// # Errors
    /// The list of clients cannot be read, or not be written for another reason than a full disk.
    pub fn recover_clients(&mut self) -> Result<(), StateError> {
        let limits = RecordLimits { lease: self.held.lease(), clients: self.held.clients_max() };
        let (records, last) = self.state.client_records(limits)?;
        self.client_records = records;
        self.last_lease = if last.lease.is_zero() { limits.lease } else { last.lease };
        let count = last.clients.len();
        if count > 0 {
            let grace = self.last_lease;
            tracing::info!(
                clients = count,
                seconds = grace.as_secs(),
                "NFSv4 clients may reclaim their state"
            );
            let clients = last.clients.into_iter();
            let clients = clients.map(|(owner, entry)| RecordedClient {
                owner,
                principal: entry.principal,
                held: entry.held,
            });
            let clients = clients.collect();
            let until = self.uptime().saturating_add(grace);
            let latest = until.saturating_add(grace);
            self.held.delegations.track_changes(latest);
            self.held.grace.begin(clients, until, latest);
        }
        Ok(())
    }

    /// Begins an OPEN: checks that the client may open or reclaim files now, and records a client
    /// without state. Called before a file is created.
    pub(crate) fn begin_open(&self, client: &Client, is_reclaim: bool) -> Result<(), StateFault> {
        self.held.may_open(client, is_reclaim)?;
        // A client that reclaims is on the list.
        if is_reclaim { Ok(()) } else { self.record_client(client) }
    }

    /// OPEN's part that concerns state.
    pub(crate) fn open_state(
        &self,
        client: &Client,
        asked: &OpenRequest<'_>,
    ) -> Result<OpenGranted, StateFault> {
        match self.held.open(client, asked) {
            Err(StateFault::ShareDenied) => {
                self.expire_holders(&asked.file, WantedAccess::Open(asked.mode))?;
                self.held.open(client, asked)
            }
            outcome => outcome,
        }
    }

    /// Delegates a file to a client. A client without delegations is recorded, which may block.
    pub(crate) fn delegate(
        &self,
        client: &Client,
        asked: DelegationRequest<'_>,
    ) -> Result<Stateid, DelegationRefusal> {
        // A client that reclaims is on the list.
        if asked.reclaim.is_none() && !client.may_have_delegations() {
            let held = RecordedState { has_delegations: true, ..RecordedState::default() };
            self.add_record(client, held).map_err(|_| DelegationRefusal::Resource)?;
        }
        self.held.delegate(client, asked, self.uptime())
    }

    /// Records a client that completes its reclaims, before it has state, so that its first OPEN
    /// does not wait for the disk. `may_delegate`: whether it may get delegations. If the client
    /// cannot be recorded, the OPEN tries again.
    pub(crate) fn record_ahead(&self, client: &Client, may_delegate: bool) {
        if !client.is_recorded() || may_delegate && !client.may_have_delegations() {
            let held = RecordedState { has_delegations: may_delegate, ..RecordedState::default() };
            let _ = self.add_record(client, held);
        }
    }

    /// RECLAIM_COMPLETE of all file systems.
    pub(crate) fn complete_reclaim(&self, client: &Client) -> Result<(), StateFault> {
        if client.has_states() {
            self.record_client(client)?;
        }
        self.held.reclaim_complete(client)
    }

    /// Whether only reclaims are granted now, by any protocol.
    #[must_use]
    pub fn is_in_grace(&self) -> bool {
        self.held.grace.is_on()
    }

    /// Records a client durably.
    fn record_client(&self, client: &Client) -> Result<(), StateFault> {
        if client.is_recorded() { Ok(()) } else { self.add_record(client, RecordedState::default()) }
    }

    /// Records durably that a client has `held`, too.
    fn add_record(&self, client: &Client, held: RecordedState) -> Result<(), StateFault> {
        let mut record = RecordedClient::from(client);
        record.held = record.held.and(held);
        let recorded = self.client_records.add(client.id, &record, || client.is_removed());
        let is_recorded = recorded.map_err(|error| {
            tracing::error!(%error, "an NFSv4 client cannot be recorded: its opens are delayed");
            StateFault::Delay
        })?;
        if !is_recorded {
            return Err(StateFault::DeadSession);
        }
        client.set_recorded(record.held);
        Ok(())
    }

    /// Ends the grace period if its time has passed, or if all have reclaimed their state.
    fn end_grace_if_over(&self) {
        if !self.held.grace.is_over(self.uptime()) {
            return;
        }
        if let Err(error) = self.client_records.forget_last_run() {
            tracing::error!(%error, "the grace period goes on: the list of NFSv4 clients cannot be written");
            return;
        }
        self.held.grace.end();
        tracing::info!("the grace period has ended");
    }

    /// Ends the grace period if it is over, and the leases of clients from which nothing was heard
    /// for the time of a lease. To be called about once a second, and ten times in a grace period,
    /// by a thread that serves no calls: it creates files in the state directory.
    pub fn expire_leases(&self) {
        if let Err(error) = self.client_records.maintain() {
            tracing::error!(%error, "the list of NFSv4 clients cannot be replaced");
        }
        self.end_grace_if_over();
        let revoked = self.held.revoke_overdue(self.uptime());
        if revoked > 0 {
            self.counters.add(ServerCounter::DelegationsRevoked, revoked as u64);
            tracing::warn!(
                delegations = revoked,
                "NFSv4 clients have not returned delegations, and lose them"
            );
        }
        report_expired(self.held.expire(self.uptime()));
        self.release_departing();
        self.repeat_recalls();
        self.note_delegations();
    }

    /// Records that clients know of all changes of files that were delegated to them, if they do.
    fn note_delegations(&self) {
        if !self.held.notices_changes() {
            return;
        }
        if let Err(error) = self.state.set_changes_noticed_until(self.clock.coarse_wall_clock()) {
            tracing::debug!(%error, "delegations of files that change from now on cannot be reclaimed");
        }
    }

    /// Ends the leases of silent clients whose opens of `file` conflict with another request. Then
    /// the request is to be repeated, whatever this finds: what was in its way may be gone since.
    ///
    /// # Errors
    /// [`StateFault::Delay`] as long as such a client cannot be removed from the list.
    pub(crate) fn expire_holders(&self, file: &FileKey, wanted: WantedAccess) -> Result<(), StateFault> {
        report_expired(self.held.expire_holders(file, wanted, self.uptime()));
        self.release_departing();
        if self.held.is_denied_by_departing(file, wanted) { Err(StateFault::Delay) } else { Ok(()) }
    }

    /// Ends the lease of a silent client that holds a lock in conflict with another request.
    /// Returns whether the request is to be repeated.
    ///
    /// # Errors
    /// [`StateFault::Delay`] as long as the client cannot be removed from the list.
    pub(crate) fn expire_lock_holder(&self, holder: &LockHolder) -> Result<bool, StateFault> {
        let LockClient::Clientid(client) = holder.client else { return Ok(false) };
        let client = Clientid(client);
        if !self.held.expire_lock_holder(client, self.uptime()) {
            return Ok(false);
        }
        self.release_departing();
        if self.held.is_departing(client) { Err(StateFault::Delay) } else { Ok(true) }
    }

    /// Revokes the opens and delegations of files that are not exported any more.
    pub(crate) fn revoke_unexported(&self) {
        let exports = self.exports.current();
        let is_exported =
            |file: &FileKey| exports.iter().any(|export| export.file_system == file.file_system);
        let count = self.held.revoke_opens(|file| !is_exported(file));
        if count > 0 {
            tracing::warn!(
                states = count,
                "NFSv4 opens and delegations of file systems that are not exported any more are revoked"
            );
        }
    }

    /// Removes an NFSv4 client with its state, as if its lease had expired. Returns whether there
    /// is such a client.
    pub fn expire_client(&self, id: u64) -> bool {
        let is_removed = self.held.expire_client(Clientid(id)).is_ok();
        self.release_departing();
        is_removed
    }

    /// Removes the clients that have left, or have expired, from the list, and releases their
    /// state. Those that cannot be removed from the list keep it until a later call.
    pub(crate) fn release_departing(&self) {
        let mut departing = self.held.departing();
        if departing.is_empty() {
            return;
        }
        let identities = departing.iter().map(|client| (client.id, &*client.owner));
        if let Err(error) = self.client_records.remove(identities) {
            tracing::error!(%error, "NFSv4 clients stay on the list of clients with state, and keep it");
            departing.retain(|client| !self.client_records.holds(client.id, &client.owner));
        }
        self.held.release_departing(&departing);
    }
}

fn report_expired(clients: usize) {
    if clients > 0 {
        tracing::info!(clients, "leases of NFSv4 clients have ended");
    }
}

#[cfg(test)]
mod tests;
