//! How much the peers together, and one of them, may take.

use std::time::Duration;

use crate::message::CALL_HEADER_MAX;

/// The bounds of a server. A *client* here is a peer address: see
/// [`Limits::connections_per_client`].
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections at once. When one more comes, that which was idle for longest is closed; if none
    /// is idle, the new one.
    pub connections: usize,
    /// The same for one client: an IPv4 address, or the 64 bits of an IPv6 address that name its
    /// network.
    pub connections_per_client: usize,
    /// Threads that serve at once. What is beyond waits until one is free.
    pub threads: usize,
    /// Threads that serve one client at once, at most. It takes no more than are free besides, so
    /// that the next client finds some.
    pub threads_per_client: usize,
    /// The most bytes of a record. A longer one costs its sender the connection as soon as its
    /// length is announced. Whatever it calls, a record within the bound is read and answered: one
    /// bound for all procedures, because who wants to send much may always call the one with the
    /// longest arguments.
    pub record: usize,
    /// Calls of one connection that are being executed at once. Beyond it nothing more is read from
    /// the connection.
    pub in_flight: usize,
    /// Bytes of replies, of all connections together, that wait for clients to take them. A
    /// connection that would exceed it is closed.
    pub unsent: usize,
    /// The same for one client.
    pub unsent_per_client: usize,
    /// Bytes of incomplete records, of all parked connections together. A connection that would
    /// exceed it is closed.
    pub half_records: usize,
    /// The same for one client.
    pub half_records_per_client: usize,
    /// How long a client may take for one record before its connection is closed.
    pub half_record_for: Duration,
    /// How long a client may leave replies untaken before its connection is closed: all of them, or
    /// at least [`UNSENT_PROGRESS_MIN`] bytes at a time.
    pub unsent_for: Duration,
    /// How long a connection without calls is kept.
    pub idle_for: Duration,
    /// How long replies that clients do not take are waited for at a shutdown.
    pub shutdown_timeout: Duration,
}

/// A client that has taken this many bytes of what waits for it is given [`Limits::unsent_for`]
/// once more.
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

/// The shortest and the longest time between two looks at all parked connections.
const LOOKS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(5));

impl Limits {
    /// How often parked connections are looked at, so that none stays much longer than it may.
    pub(super) fn look_interval(&self) -> Duration {
        let shortest = self.half_record_for.min(self.unsent_for).min(self.idle_for);
        (shortest / 8).clamp(LOOKS.0, LOOKS.1)
    }
}

/// Which limit something met: each is told in the log, and counted.
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
    /// All of them, in the order in which they are declared.
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

    /// What an operator reads who wants to know which option of `curt serve` to change. (A client's
    /// share of the threads follows from their number.)
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

    /// Whether meeting it is worth a line in the log: connections end for idleness, and busy ones
    /// wait, every day.
    pub(super) const fn is_news(self) -> bool {
        !matches!(self, Self::IdleFor | Self::InFlight)
    }
}
