//! Recovery of NFSv4 clients: the list of those that have state, the grace period, and the end of
//! leases.
//!
//! Invariants: a client is on the list before it gets its first state; it is off the list before
//! anybody else gets what it loses; the list is that of this run before the first state is granted
//! after the grace period. So whatever a client may reclaim after a restart is still its own (RFC
//! 8881 section 8.4.3).

use std::sync::atomic::Ordering;

use curt_proto::nfs4::Clientid;

use crate::service::NfsService;
use crate::state::{Client, ExpiredClients, OpenGranted, OpenRequest, StateFault};
use crate::state_directory::StateError;

impl NfsService {
    /// Begins the recovery of clients that had state when the last run ended. Called once, before
    /// requests and after [`Self::set_lease`].
    ///
    /// # Errors
    /// The list of clients cannot be read or written.
    pub fn recover_clients(&mut self) -> Result<(), StateError> {
        let lease = self.held.lease();
        let (records, last) = self.state.client_records(lease)?;
        self.client_records = records;
        let count = last.clients.len();
        if count > 0 {
            let grace = lease.max(last.lease);
            tracing::info!(
                clients = count,
                seconds = grace.as_secs(),
                "NFSv4 clients may reclaim their state"
            );
            self.held.grace.begin(last.clients, self.uptime() + grace);
        }
        Ok(())
    }

    /// OPEN's part that concerns state.
    pub(crate) fn open_state(
        &self,
        client: &Client,
        asked: &OpenRequest<'_>,
    ) -> Result<OpenGranted, StateFault> {
        self.end_grace_if_over();
        let granted = match self.held.open(client, asked) {
            // The conflicting open may be of a client whose lease has expired.
            Err(StateFault::ShareDenied) if self.expire_at_conflict() => self.held.open(client, asked)?,
            outcome => outcome?,
        };
        // A client that reclaims is on the list.
        if !asked.is_reclaim
            && let Err(fault) = self.record_client(client)
        {
            self.held.withdraw_open(client, &granted);
            return Err(fault);
        }
        Ok(granted)
    }

    /// RECLAIM_COMPLETE of all file systems.
    pub(crate) fn complete_reclaim(&self, client: &Client) -> Result<(), StateFault> {
        if client.has_states() {
            self.record_client(client)?;
        }
        self.held.reclaim_complete(client)?;
        self.end_grace_if_over();
        Ok(())
    }

    /// Records a client durably.
    fn record_client(&self, client: &Client) -> Result<(), StateFault> {
        // Pairs with the store: whoever sees it set finds the record on the disk.
        if client.is_recorded.load(Ordering::Acquire) {
            return Ok(());
        }
        let recorded = self.client_records.add(&client.into());
        recorded.map_err(|error| {
            tracing::error!(%error, "an NFSv4 client cannot be recorded: its request is delayed");
            StateFault::Delay
        })?;
        client.is_recorded.store(true, Ordering::Release);
        Ok(())
    }

    /// Ends the grace period if its time has passed, or if all have reclaimed their state.
    pub(crate) fn end_grace_if_over(&self) {
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
    /// for the time of a lease. To be called about once a second, by a thread that serves no calls.
    pub fn expire_leases(&self) {
        self.end_grace_if_over();
        self.release(self.held.expire(self.uptime()));
    }

    /// As [`Self::expire_leases`], for a conflict with state that may be of an expired client.
    /// Returns whether there was any such client.
    fn expire_at_conflict(&self) -> bool {
        self.held.expire_at_conflict(self.uptime()).is_some_and(|expired| self.release(expired))
    }

    /// Removes an NFSv4 client with its state, as if its lease had expired. Returns whether there
    /// is such a client.
    pub fn expire_client(&self, id: u64) -> bool {
        self.held.expire_client(Clientid(id)).is_ok_and(|expired| self.release(expired))
    }

    /// Removes clients from the list, and releases their state. Returns whether there are any.
    fn release(&self, expired: ExpiredClients) -> bool {
        let count = expired.count();
        if count == 0 {
            return false;
        }
        if let Err(error) = self.client_records.remove(expired.recorded_owners()) {
            tracing::error!(%error, "expired NFSv4 clients stay on the list of clients with state");
        }
        self.held.release_expired(expired);
        tracing::info!(clients = count, "leases of NFSv4 clients have ended");
        true
    }
}
