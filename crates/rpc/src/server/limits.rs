//! Limits of the resources that clients may use, in total and each.

use std::time::Duration;

use curt_observe::named_enum;

use crate::message::call::CALL_HEADER_MAX;

/// The limits of a server. A *client* is a peer address: see [`Limits::connections_per_client`].
#[derive(Clone, Debug)]
pub struct Limits {
    /// Maximum number of connections. A new connection beyond it replaces the one that has been
    /// idle longest; if none is idle, it is refused.
    pub connections: usize,
    /// Connections of one client: an IPv4 address, or the 64-bit network prefix of an IPv6 address.
    pub connections_per_client: usize,
    /// Maximum number of serving threads. Further work waits until one is free.
    pub threads: usize,
    /// Maximum number of threads that serve one client at once. A client uses at most as many as
    /// remain free, so that the next client finds some.
    pub threads_per_client: usize,
    /// Maximum size of a record in bytes. A longer one ends its connection as soon as its length is
    /// announced. Each record within the limit is read and answered, whatever its procedure: one
    /// limit for all procedures is sufficient, because a client can always call the one with the
    /// longest arguments.
    pub record: usize,
    /// Maximum number of calls of one connection in progress. Beyond it nothing more is read from
    /// the connection.
    pub in_flight: usize,
    /// Maximum number of unsent bytes of replies of all connections. A connection that would exceed
    /// it is closed.
    pub unsent: usize,
    /// Unsent replies of one client.
    pub unsent_per_client: usize,
    /// Maximum number of bytes of calls that are incomplete, or that wait for a thread or for
    /// another client, of all connections. A connection whose incomplete call would exceed it is
    /// closed. Half of it is for calls that wait: beyond that nothing more is received for a
    /// thread that is not free, and calls that wait for another client are told to come again.
    pub half_records: usize,
    /// Bytes of such calls of one client.
    pub half_records_per_client: usize,
    /// Maximum time in which a client must send a record, before its connection is closed.
    pub half_record_for: Duration,
    /// Maximum time for which replies may be unsent, before the connection is closed. It starts
    /// again after each [`UNSENT_PROGRESS_MIN`] bytes.
    pub unsent_for: Duration,
    /// Maximum time of a connection without calls.
    pub idle_for: Duration,
    /// Maximum wait for clients to receive their replies at shutdown.
    pub shutdown_timeout: Duration,
}

/// After a client has received this many bytes of its unsent replies, [`Limits::unsent_for`] starts
/// again.
pub const UNSENT_PROGRESS_MIN: usize = 64 << 10;

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 8192,
            connections_per_client: 1024,
            threads: 512,
            threads_per_client: 384,
            record: CALL_HEADER_MAX + (1 << 20),
            in_flight: 64,
            unsent: 256 << 20,
            unsent_per_client: 128 << 20,
            half_records: 256 << 20,
            half_records_per_client: 64 << 20,
            half_record_for: Duration::from_secs(60),
            unsent_for: Duration::from_secs(300),
            idle_for: Duration::from_secs(360),
            shutdown_timeout: Duration::from_secs(5),
        }
    }
}

/// Minimum and maximum interval of checks of idle connections.
const LOOKS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(5));

impl Limits {
    /// The interval of checks of idle connections, so that none exceeds its timeout much.
    pub(super) fn look_interval(&self) -> Duration {
        let shortest = self.half_record_for.min(self.unsent_for).min(self.idle_for);
        (shortest / 8).clamp(LOOKS.0, LOOKS.1)
    }
}

named_enum! {
    /// The limit that was reached: each is logged and counted. Its name is the option of `curt
    /// serve` that changes the limit. (The quota of threads of a client follows from their number.)
    ResourceLimit {
        Connections "max-connections" "All connections.";
        ConnectionsPerClient "max-connections-per-client" "Connections of a client.";
        InFlight "max-in-flight" "Calls of a connection in progress.";
        ThreadsPerClient "threads" "Threads that a client occupies.";
        Unsent "max-unsent" "Bytes of replies that no client has received.";
        UnsentPerClient "max-unsent-per-client" "Bytes of replies that a client has not received.";
        HalfRecords "max-half-records" "Bytes of calls that are incomplete or wait.";
        HalfRecordsPerClient "max-half-records-per-client" "Bytes of a client's calls that are incomplete or wait.";
        HalfRecordFor "half-record-timeout" "Time until a call is complete.";
        UnsentFor "unsent-timeout" "Time until a client receives a reply.";
        IdleFor "idle-timeout" "Time without calls on a connection.";
        System "system" "Descriptors or memory of the system.";
    }
}

impl ResourceLimit {
    /// Whether reaching it is logged: idle connections end, and busy ones wait, in normal
    /// operation.
    pub(super) const fn is_news(self) -> bool {
        !matches!(self, Self::IdleFor | Self::InFlight)
    }
}
