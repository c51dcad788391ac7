//! What the administrator sees of the clients, and changes.

use std::{net::IpAddr, sync::Arc, time::Duration};

use curt_proto::nfs4::Clientid;

use super::ServerState;
use super::clients::ClientRecord;

/// A client and what it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientSummary {
    /// Its id.
    pub(crate) client: Clientid,
    /// Its owner.
    pub(crate) owner: Box<[u8]>,
    /// The name of its implementation.
    pub(crate) implementation: Box<[u8]>,
    /// The address from which it presented itself.
    pub(crate) peer: IpAddr,
    /// Whether it has confirmed its record.
    pub(crate) is_confirmed: bool,
    /// The time since its last renewal.
    pub(crate) since_renewal: Duration,
    /// Number of sessions.
    pub(crate) sessions: usize,
    /// Number of owners that have files open.
    pub(crate) owners: usize,
    /// Number of opens.
    pub(crate) opens: usize,
    /// Number of files that its owners of locks have locked, each owner counted.
    pub(crate) locks: usize,
    /// Number of delegations.
    pub(crate) delegations: usize,
}

impl ServerState {
    /// The clients, by id.
    pub(crate) fn clients(&self, now: Duration) -> Vec<ClientSummary> {
        let table = self.clients.lock();
        let of_record =
            |record: &ClientRecord| (Arc::clone(&record.client), record.is_confirmed, record.sessions.len());
        let records: Vec<_> = table.records.values().map(of_record).collect();
        // A client's states may be locked for long; others must not wait for them.
        drop(table);
        let summaries = records.iter().map(|(client, is_confirmed, sessions)| {
            let states = client.states.lock();
            ClientSummary {
                client: client.id,
                owner: client.owner.clone(),
                implementation: client.implementation.lock().clone(),
                peer: client.peer,
                is_confirmed: *is_confirmed,
                since_renewal: now.saturating_sub(client.renewed()),
                sessions: *sessions,
                owners: states.owners(),
                opens: states.opens(),
                locks: states.lock_states.len(),
                delegations: states.delegations(),
            }
        });
        let mut summaries: Vec<_> = summaries.collect();
        summaries.sort_by_key(|summary| summary.client);
        summaries
    }
}
