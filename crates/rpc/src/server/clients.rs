//! Resources used by each client: connections, threads, memory.
//!
//! A client is the source address of a connection, as far as [`client_network`] tells. Invariant: a
//! client has an entry exactly while it has a connection.

use std::{
    collections::{HashMap, VecDeque},
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use parking_lot::Mutex;

use super::{limit_log::LimitLog, worker_pool::ClientQuota};
use crate::clock::TimeSource;

/// All clients with connections.
pub(super) struct ClientAddressTable<J> {
    clients: Mutex<HashMap<IpAddr, Arc<ClientUsage<J>>>>,
}

impl<J> Default for ClientAddressTable<J> {
    fn default() -> Self {
        Self { clients: Mutex::default() }
    }
}

/// The resources of one client.
pub(super) struct ClientUsage<J> {
    pub(super) connections: AtomicUsize,
    /// Bytes of unsent replies.
    pub(super) unsent: AtomicUsize,
    /// See [`ReceivedBytes`](super::received_bytes::ReceivedBytes).
    pub(super) half_records: AtomicUsize,
    /// The result of the last search of its idle connections.
    pub(super) oldest_idle: Mutex<VecDeque<(Instant, u64)>>,
    /// Its quota of threads.
    pub(super) quota: Arc<ClientQuota<J>>,
}

/// Resources used by all connections together, and the log of reached limits.
pub(super) struct TotalUsage {
    pub(super) clock: TimeSource,
    /// Bytes of all backlogs.
    pub(super) unsent: AtomicUsize,
    /// See [`ReceivedBytes`](super::received_bytes::ReceivedBytes).
    pub(super) half_records: AtomicUsize,
    pub(super) limit_log: LimitLog,
}

impl TotalUsage {
    pub(super) fn new(clock: TimeSource) -> Self {
        Self {
            limit_log: LimitLog::new(clock.clone()),
            clock,
            unsent: AtomicUsize::new(0),
            half_records: AtomicUsize::new(0),
        }
    }
}

/// A connection's reference to its client.
pub(super) struct ClientRef<J> {
    clients: Arc<ClientAddressTable<J>>,
    address: IpAddr,
    pub(super) client: Arc<ClientUsage<J>>,
}

impl<J> ClientAddressTable<J> {
    /// Counts one more connection of `peer`.
    pub(super) fn add_connection(self: &Arc<Self>, peer: IpAddr) -> ClientRef<J> {
        let address = client_network(peer);
        let mut known = self.clients.lock();
        let client = known.entry(address).or_insert_with(|| {
            Arc::new(ClientUsage {
                connections: AtomicUsize::new(0),
                unsent: AtomicUsize::new(0),
                half_records: AtomicUsize::new(0),
                oldest_idle: Mutex::default(),
                quota: Arc::default(),
            })
        });
        // Relaxed, here and below: the lock of the map orders it.
        client.connections.fetch_add(1, Ordering::Relaxed);
        ClientRef { clients: Arc::clone(self), address, client: Arc::clone(client) }
    }

    /// Number of clients with connections.
    #[cfg(test)]
    fn count(&self) -> usize {
        self.clients.lock().len()
    }
}

impl<J> Drop for ClientRef<J> {
    fn drop(&mut self) {
        let mut known = self.clients.clients.lock();
        if self.client.connections.fetch_sub(1, Ordering::Relaxed) == 1 {
            known.remove(&self.address);
        }
    }
}

/// The part of an address that identifies a client: for IPv6 the first 64 bits, because a host may
/// use all addresses of its network. Limits are per this part.
#[must_use]
pub fn client_network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn a_client_is_known_while_it_has_connections() {
        let clients = Arc::new(ClientAddressTable::<()>::default());
        let client_refs = ["10.0.0.1", "::ffff:10.0.0.1", "10.0.0.2", "2001:db8::1", "2001:db8::2:1"]
            .map(|address| clients.add_connection(address.parse().unwrap()));
        assert_eq!(clients.count(), 3);
        let connections =
            client_refs.each_ref().map(|client_ref| client_ref.client.connections.load(Ordering::Relaxed));
        assert_eq!(connections, [2, 2, 1, 2, 2]);
        drop(client_refs);
        assert_eq!(clients.count(), 0);
    }
}
