//! Limits of the resources that clients may use, in total and each.

use std::time::Duration;

use crate::message::call::CALL_HEADER_MAX;

/// The limits of a server. A *client* is a peer address: see [`Limits::connections_per_client`].
#[derive(Clone, Debug)]
pub struct Limits {
    /// Maximum number of connections. A new connection beyond it replaces the one that has been
    /// idle longest; if none is idle, it is refused.
    pub connections: usize,
    /// The same for one client: an IPv4 address, or the 64-bit network prefix of an IPv6 address.
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
    /// The same for one client.
    pub unsent_per_client: usize,
    /// Maximum number of bytes of incomplete records of all idle connections. A connection that
    /// would exceed it is closed.
    pub half_records: usize,
    /// The same for one client.
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

/// The limit that was reached: each is logged and counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResourceLimit {
    /// [`Limits::connections`].
    Connections,
    /// [`Limits::connections_per_client`].
    ConnectionsPerClient,
    /// [`Limits::in_flight`].
    InFlight,
    /// [`Limits::threads_per_client`].
    ThreadsPerClient,
    /// [`Limits::unsent`].
    Unsent,
    /// [`Limits::unsent_per_client`].
    UnsentPerClient,
    /// [`Limits::half_records`].
    HalfRecords,
    /// [`Limits::half_records_per_client`].
    HalfRecordsPerClient,
    /// [`Limits::half_record_for`].
    HalfRecordFor,
    /// [`Limits::unsent_for`].
    UnsentFor,
    /// [`Limits::idle_for`].
    IdleFor,
    /// Descriptors or memory of the system.
    System,
}

impl ResourceLimit {
    /// All of them, in the order of their declaration.
    pub const ALL: [Self; 12] = [
        Self::Connections,
        Self::ConnectionsPerClient,
        Self::InFlight,
        Self::ThreadsPerClient,
        Self::Unsent,
        Self::UnsentPerClient,
        Self::HalfRecords,
        Self::HalfRecordsPerClient,
        Self::HalfRecordFor,
        Self::UnsentFor,
        Self::IdleFor,
        Self::System,
    ];

    /// The option of `curt serve` that changes the limit, for the log. (The quota of threads of a
    /// client follows from their number.)
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connections => "max-connections",
            Self::ConnectionsPerClient => "max-connections-per-client",
            Self::InFlight => "max-in-flight",
            Self::ThreadsPerClient => "threads",
            Self::Unsent => "max-unsent",
            Self::UnsentPerClient => "max-unsent-per-client",
            Self::HalfRecords => "max-half-records",
            Self::HalfRecordsPerClient => "max-half-records-per-client",
            Self::HalfRecordFor => "half-record-timeout",
            Self::UnsentFor => "unsent-timeout",
            Self::IdleFor => "idle-timeout",
            Self::System => "system",
        }
    }

    /// Whether reaching it is logged: idle connections end, and busy ones wait, in normal
    /// operation.
    pub(super) const fn is_news(self) -> bool {
        !matches!(self, Self::IdleFor | Self::InFlight)
    }
}
