//! Counts round trips of a client that follow each other, in a relay.
//!
//! A call depends on the replies that the client had received when it sent it. So its depth is one
//! more than the greatest depth of these replies, and the greatest depth of all calls is the number
//! of round trips that a program waited for, one after the other. The relay delays all records by
//! the same time, which has to be long compared with the time that the client takes itself.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use curt_bench::processes::relay::{RelayDecision, Watch, body, word};

/// The position of the message type in a record, and its values (RFC 5531 section 9).
const MESSAGE_TYPE: usize = 4;
const CALL: u32 = 0;
const REPLY: u32 = 1;

/// The round trips of all connections of a relay.
#[derive(Debug)]
pub struct RoundTrips {
    way: Duration,
    dependencies: Mutex<Dependencies>,
}

#[derive(Debug, Default)]
struct Dependencies {
    /// The depths of calls without a reply, by connection and transaction id.
    calls: HashMap<(u64, u32), u64>,
    /// When the client receives replies, and their depths; in the order of time.
    in_transit: VecDeque<(Instant, u64)>,
    /// The greatest depth that the client has received.
    received: u64,
    /// When calls came, and the greatest depth so far.
    sent: Vec<(Instant, u64)>,
}

impl RoundTrips {
    /// Counts in a relay that delays each record by `way`.
    #[must_use]
    pub fn new(way: Duration) -> Self {
        Self { way, dependencies: Mutex::default() }
    }

    /// The number of round trips before the client first sends nothing for `pause` after at least
    /// `calls` calls, or of all.
    #[must_use]
    pub fn before_pause(&self, calls: usize, pause: Duration) -> u64 {
        let dependencies = self.dependencies.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = &dependencies.sent;
        let ends = |pair: &&[(Instant, u64)]| pair[1].0 - pair[0].0 >= pause;
        let end = sent.windows(2).skip(calls).find(ends).map(|pair| pair[0]);
        end.or_else(|| sent.last().copied()).map_or(0, |(_, depth)| depth)
    }
}

impl Watch for RoundTrips {
    fn call(&self, connection: u64, record: Vec<u8>) -> RelayDecision {
        let bytes = body(&record);
        if let (Some(xid), Some(CALL)) = (word(bytes, 0), word(bytes, MESSAGE_TYPE)) {
            let now = Instant::now();
            let mut dependencies = self.dependencies.lock().unwrap_or_else(PoisonError::into_inner);
            while let Some((_, depth)) = dependencies.in_transit.pop_front_if(|(arrival, _)| *arrival <= now)
            {
                dependencies.received = dependencies.received.max(depth);
            }
            let depth = dependencies.received + 1;
            dependencies.calls.insert((connection, xid), depth);
            let greatest = dependencies.sent.last().map_or(0, |(_, greatest)| *greatest);
            dependencies.sent.push((now, greatest.max(depth)));
        }
        RelayDecision::Now(record)
    }

    fn reply(&self, connection: u64, record: Vec<u8>) -> RelayDecision {
        let bytes = body(&record);
        if let (Some(xid), Some(REPLY)) = (word(bytes, 0), word(bytes, MESSAGE_TYPE)) {
            let mut dependencies = self.dependencies.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(depth) = dependencies.calls.remove(&(connection, xid)) {
                dependencies.in_transit.push_back((Instant::now() + self.way, depth));
            }
        }
        RelayDecision::Now(record)
    }
}
