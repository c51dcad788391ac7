//! Statistics of one call and of a connection.

use std::time::Duration;

use curt_observe::TransportFigure;
use curt_observe::{Counter as _, Snapshot};

/// How a call was sent, and its reply received. Also set for calls that fail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallStatistics {
    /// Number of complete transmissions.
    pub transmissions: u32,
    /// The time from the call's start to the last loss of a connection over which it had been sent
    /// completely. `None`: none was lost.
    pub lost: Option<Duration>,
    /// If the server closed that connection: the time from the call's start until it was sent over
    /// it.
    pub(super) ended_by_peer: Option<Duration>,
    /// Whether the server was probably restarted after the call was sent: it closed the connection
    /// soon after, or later and its host has refused another one since.
    pub restarted: bool,
    /// Bytes sent for the call, record marks included.
    pub bytes_sent: u64,
    /// Bytes of the reply, without record marks.
    pub bytes_received: u64,
    /// The time from the call's start to its last transmission.
    pub queued: Duration,
    /// The time for which the caller read for others after its reply.
    pub reading_for_others: Duration,
}

/// Traffic of one connection, or the sum of several. Changed under a lock that its users hold
/// anyway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ConnectionStatistics {
    pub(super) sends: u64,
    pub(super) receives: u64,
    pub(super) unknown_xids: u64,
    pub(super) in_flight_sum: u64,
    pub(super) sending_sum: u64,
    pub(super) pending_sum: u64,
    pub(super) most_at_once: u64,
}

/// Number of connections established, and the time for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ConnectStatistics {
    pub(super) binds: u64,
    pub(super) connects: u64,
    pub(super) time: Duration,
}

impl ConnectionStatistics {
    /// Records that a request was sent while `sending` others waited for the socket, and `pending`
    /// for the socket or a reply.
    pub(super) fn sent(&mut self, sending: usize, pending: usize) {
        self.sends += 1;
        self.in_flight_sum += self.sends.saturating_sub(self.receives);
        self.sending_sum += sending as u64;
        self.pending_sum += pending as u64;
    }

    /// Records that `requests` requests are in progress.
    pub(super) fn note_in_flight(&mut self, requests: usize) {
        self.most_at_once = self.most_at_once.max(requests as u64);
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.sends += other.sends;
        self.receives += other.receives;
        self.unknown_xids += other.unknown_xids;
        self.in_flight_sum += other.in_flight_sum;
        self.sending_sum += other.sending_sum;
        self.pending_sum += other.pending_sum;
        self.most_at_once = self.most_at_once.max(other.most_at_once);
    }

    /// The values for the table of transport figures.
    pub(super) fn figures(&self, connecting: &ConnectStatistics) -> Snapshot<TransportFigure> {
        let figure = |figure: &TransportFigure| match figure {
            TransportFigure::Binds => connecting.binds,
            TransportFigure::Connects => connecting.connects,
            TransportFigure::ConnectTime => u64::try_from(connecting.time.as_nanos()).unwrap_or(u64::MAX),
            TransportFigure::Sends => self.sends,
            TransportFigure::Receives => self.receives,
            TransportFigure::UnknownXids => self.unknown_xids,
            TransportFigure::InFlight => self.in_flight_sum,
            TransportFigure::Backlog => 0,
            TransportFigure::Sending => self.sending_sum,
            TransportFigure::Pending => self.pending_sum,
        };
        TransportFigure::ALL.iter().map(figure).collect()
    }
}

impl ConnectStatistics {
    pub(super) fn add(&mut self, other: &Self) {
        self.binds += other.binds;
        self.connects += other.connects;
        self.time += other.time;
    }
}
