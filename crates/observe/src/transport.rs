//! The traffic of a client's connections: the statistics of the kernel's `xprt:` line.

use serde::{Deserialize, Serialize};

use crate::counters::{Snapshot, counter_table};

counter_table! {
    /// A statistic of a transport, summed over its connections.
    TransportFigure {
        Binds "binds" Requests "A portmapper was asked for the server's port before a connection was made.";
        Connects "connects" Events "A connection to the server was made.";
        ConnectTime "connect_ns" Nanoseconds "Time spent connecting, failed attempts included.";
        Sends "sends" Requests "A request was written to a socket.";
        Receives "receives" Requests "A reply was received.";
        UnknownXids "unknown_xids" Requests "A reply matched no waiting request.";
        InFlight "in_flight_sum" Requests "Requests sent and not yet answered, summed over all sends.";
        Backlog "backlog_sum" Requests "Requests in the backlog, summed over all sends: always 0, as there are no slots.";
        Sending "sending_sum" Requests "Requests waiting for the socket, summed over all sends.";
        Pending "pending_sum" Requests "Requests waiting for the socket or for a reply, summed over all sends.";
    }
}

/// A transport's statistics at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TransportReport {
    /// The sums.
    #[serde(flatten)]
    pub figures: Snapshot<TransportFigure>,
    /// The local port of the first connection; 0 while there is none.
    pub port: u16,
    /// Seconds since the last request or reply.
    pub idle_seconds: u64,
    /// Maximum number of requests in progress at once on one connection.
    pub most_at_once: u64,
    /// Number of connections.
    pub connections: u64,
}

impl TransportReport {
    /// One statistic.
    #[must_use]
    pub fn value(&self, figure: TransportFigure) -> u64 {
        self.figures.value(figure)
    }

    /// The differences between `earlier` and this; other values are current.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self { figures: self.figures.since(&earlier.figures), ..self.clone() }
    }
}
