//! Connections whose time is up: half a record for too long, replies that nobody takes, no calls at
//! all.
//!
//! Owns no state: what is looked at belongs to the connections. Looking costs a moment for each
//! connection, and is done seldom.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use super::{
    Limits,
    connection::{ReaderState, ServerConnection},
    idle_set::IdleSet,
    limits::ResourceLimit,
};

impl IdleSet {
    /// Closes every connection that is overdue at `now`.
    pub(super) fn close_overdue(&self, limits: &Limits, now: Instant) {
        for connection in self.all() {
            let Some((limit, why)) = overdue(&connection, limits, now) else {
                continue;
            };
            // Between the look and this a call may have come: then somebody has it, and it is left
            // alone.
            if limit != ResourceLimit::UnsentFor
                && self.take(&connection, &mut connection.reading.lock()).is_none()
            {
                continue;
            }
            connection.close_for(limit, why);
            // One that is being read is removed by its reader, who sees it closed.
            if limit != ResourceLimit::UnsentFor || !matches!(*connection.reading.lock(), ReaderState::Busy) {
                self.remove(&connection);
            }
        }
    }
}

/// Which limit of time a connection has met.
fn overdue(
    connection: &ServerConnection,
    limits: &Limits,
    now: Instant,
) -> Option<(ResourceLimit, &'static str)> {
    let since = |begin: Instant| now.saturating_duration_since(begin);
    if connection
        .unsent_since()
        .is_some_and(|begin| since(begin) > limits.unsent_for)
    {
        return Some((ResourceLimit::UnsentFor, "it takes its replies too slowly"));
    }
    // Whoever waits for an answer is not idle, and reads on when there is one.
    if connection.has_backlog() || connection.in_flight.load(Ordering::Acquire) > 0 {
        return None;
    }
    let mut reading = connection.reading.lock();
    let ReaderState::Idle { inbox, since: parked } = &mut *reading else {
        return None;
    };
    match inbox.incomplete_since(|| now).map(since) {
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
