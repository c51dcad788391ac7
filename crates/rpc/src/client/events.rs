//! Events of a transport, for statistics.

/// Receives events of the transport. Called on the threads of callers, partly under a connection's
/// lock: implementations count and return, and make no calls.
pub trait TransportEvents: Send + Sync {
    /// A call of `bytes` (record marks included) was passed to the socket.
    fn sent(&self, bytes: usize);
    /// A reply of `bytes` (record marks included) was received.
    fn received(&self, bytes: usize);
    /// A call was sent again with the same xid.
    fn retransmitted(&self);
    /// A connection was established; `again` if it replaces a lost one.
    fn connected(&self, again: bool);
    /// The server has not replied for so long that users are notified. Once per outage.
    fn not_responding(&self);
    /// The first reply after [`TransportEvents::not_responding`].
    fn responding_again(&self);
    /// A reply could not be decoded.
    fn malformed_reply(&self);
}

/// Ignores all events.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoTransportEvents;

impl TransportEvents for NoTransportEvents {
    fn sent(&self, _: usize) {}
    fn received(&self, _: usize) {}
    fn retransmitted(&self) {}
    fn connected(&self, _: bool) {}
    fn not_responding(&self) {}
    fn responding_again(&self) {}
    fn malformed_reply(&self) {}
}
