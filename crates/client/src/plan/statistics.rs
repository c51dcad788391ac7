//! Requests counted, per procedure: what mountstats, nfsiostat and nfsstat print.
//!
//! Owns the numbers only; the table of names is the procedure's own. Counts are exact, each is updated alone (a reader may
//! see a call's start without its bytes).

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// One procedure's numbers since the mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcedureStatistics {
    /// Requests, each counted once however often it was sent.
    pub operations: u64,
    /// Times that a request was put on the wire (more than `operations`: retransmissions).
    pub transmissions: u64,
    /// Requests that ended by a time limit (major timeouts).
    pub timeouts: u64,
    /// Bytes of arguments with their data, RPC header not counted.
    pub bytes_sent: u64,
    /// Bytes of results.
    pub bytes_received: u64,
    /// Time before the request was on the wire, summed.
    pub queue: Duration,
    /// Time from the wire to the reply, summed.
    pub round_trip: Duration,
    /// Time from the wish to the answer, waits for a busy server included, summed.
    pub execution: Duration,
    /// Requests that the server refused, or that got no answer.
    pub errors: u64,
}

/// How many procedures a table holds: NFSv3 has 22.
const PROCEDURES: usize = 22;

/// The numbers of all procedures, shared by whoever calls.
#[derive(Debug, Default)]
pub struct Statistics {
    rows: [Row; PROCEDURES],
}

#[derive(Debug, Default)]
struct Row {
    operations: AtomicU64,
    transmissions: AtomicU64,
    timeouts: AtomicU64,
    bytes_sent: AtomicU64,
    bytes_received: AtomicU64,
    queue_nanoseconds: AtomicU64,
    round_trip_nanoseconds: AtomicU64,
    execution_nanoseconds: AtomicU64,
    errors: AtomicU64,
}

impl Statistics {
    /// Adds one request's numbers to those of procedure `number`; a number that no procedure has is dropped.
    pub fn add(&self, number: u32, more: &ProcedureStatistics) {
        let Some(row) = usize::try_from(number)
            .ok()
            .and_then(|number| self.rows.get(number))
        else {
            return;
        };
        row.operations.fetch_add(more.operations, Relaxed);
        row.transmissions.fetch_add(more.transmissions, Relaxed);
        row.timeouts.fetch_add(more.timeouts, Relaxed);
        row.bytes_sent.fetch_add(more.bytes_sent, Relaxed);
        row.bytes_received.fetch_add(more.bytes_received, Relaxed);
        row.queue_nanoseconds.fetch_add(nanoseconds(more.queue), Relaxed);
        row.round_trip_nanoseconds
            .fetch_add(nanoseconds(more.round_trip), Relaxed);
        row.execution_nanoseconds
            .fetch_add(nanoseconds(more.execution), Relaxed);
        row.errors.fetch_add(more.errors, Relaxed);
    }

    /// The numbers of procedure `number`; zeros for a number that no procedure has.
    #[must_use]
    pub fn of(&self, number: u32) -> ProcedureStatistics {
        let Some(row) = usize::try_from(number)
            .ok()
            .and_then(|number| self.rows.get(number))
        else {
            return ProcedureStatistics::default();
        };
        ProcedureStatistics {
            operations: row.operations.load(Relaxed),
            transmissions: row.transmissions.load(Relaxed),
            timeouts: row.timeouts.load(Relaxed),
            bytes_sent: row.bytes_sent.load(Relaxed),
            bytes_received: row.bytes_received.load(Relaxed),
            queue: Duration::from_nanos(row.queue_nanoseconds.load(Relaxed)),
            round_trip: Duration::from_nanos(row.round_trip_nanoseconds.load(Relaxed)),
            execution: Duration::from_nanos(row.execution_nanoseconds.load(Relaxed)),
            errors: row.errors.load(Relaxed),
        }
    }

    /// Requests of all procedures.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.rows.iter().map(|row| row.operations.load(Relaxed)).sum()
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
