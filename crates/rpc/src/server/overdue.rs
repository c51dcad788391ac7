//! Connections with an expired timeout: an incomplete record, unsent replies, or no calls.
//!
//! It has no state of its own: the checked state belongs to the connections. A check takes a moment
//! for each connection, and is rare.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use super::{
    connection::{ReaderState, ServerConnection},
    idle_set::IdleSet,
    limits::{Limits, ResourceLimit},
};

impl IdleSet {
    /// Closes each connection whose timeout has expired at `now`.
    pub(super) fn close_overdue(&self, limits: &Limits, now: Instant) {
        for connection in self.all() {
            let Some((limit, why)) = overdue(&connection, limits, now) else {
                continue;
            };
            // A call may have arrived since the check: then a thread has the connection, and it is
            // not closed.
            if limit != ResourceLimit::UnsentFor && connection.reading.lock().take().is_none() {
                continue;
            }
            connection.close_for(limit, why);
            // A connection that is being read is removed by its reader, which sees that it is
            // closed.
            if limit != ResourceLimit::UnsentFor || !matches!(*connection.reading.lock(), ReaderState::Busy) {
                self.remove(&connection);
            }
        }
    }
}

/// The timeout of a connection that has expired.
fn overdue(
    connection: &ServerConnection,
    limits: &Limits,
    now: Instant,
) -> Option<(ResourceLimit, &'static str)> {
    let since = |begin: Instant| now.saturating_duration_since(begin);
    if connection.unsent_since().is_some_and(|begin| since(begin) > limits.unsent_for) {
        return Some((ResourceLimit::UnsentFor, "it takes its replies too slowly"));
    }
    // A client that waits for a reply is not idle.
    if connection.has_backlog() || connection.in_flight.load(Ordering::Acquire) > 0 {
        return None;
    }
    let mut reading = connection.reading.lock();
    let ReaderState::Idle { receive_buffer, since: parked, .. } = &mut *reading else {
        return None;
    };
    match receive_buffer.incomplete_since(|| now).map(since) {
        Some(half) if half > limits.half_record_for => {
            Some((ResourceLimit::HalfRecordFor, "it sends a record too slowly"))
        }
        Some(_) => None,
        None => idle_for(since(*parked), limits),
    }
}

fn idle_for(idle: Duration, limits: &Limits) -> Option<(ResourceLimit, &'static str)> {
    (idle > limits.idle_for).then_some((ResourceLimit::IdleFor, "it is idle"))
}
