//! Counts events of the transport in the client's counters.

use std::sync::{Arc, OnceLock};

use curt_observe::{ClientCounter, ClientCounters};
use curt_rpc::client::TransportEvents;

/// Counts for a client that is created after its transport.
#[derive(Debug, Default)]
pub(super) struct TransportEventCounter(OnceLock<Arc<ClientCounters>>);

impl TransportEventCounter {
    /// Counts events in `counters` from now on.
    pub(super) fn count_in(&self, counters: Arc<ClientCounters>) {
        // A transport has one client.
        let _ = self.0.set(counters);
    }

    fn count(&self, counter: ClientCounter) {
        if let Some(counters) = self.0.get() {
            counters.count(counter);
        }
    }
}

impl TransportEvents for TransportEventCounter {
    fn sent(&self, _: usize) {}

    fn received(&self, _: usize) {}

    fn retransmitted(&self) {
        self.count(ClientCounter::RpcRetransmit);
    }

    fn connected(&self, again: bool) {
        if again {
            self.count(ClientCounter::RpcReconnect);
        }
    }

    fn not_responding(&self) {}

    fn responding_again(&self) {}

    fn malformed_reply(&self) {
        self.count(ClientCounter::RpcMalformed);
    }
}
