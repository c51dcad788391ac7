//! Statistics of a client's requests per procedure: those of the kernel's mountstats, and
//! round-trip times.
//!
//! Sums since the mount as in the Linux client (per-op statistics, RPC iostats 1.1), in finer
//! units. Each request is counted when it has ended, in the shard of its thread: this takes no
//! lock, and no cache line that other processors write.

use std::collections::BTreeMap;
use std::time::Duration;

use curt_proto::Operation;
use serde::{Deserialize, Serialize};

use crate::calls::CallCounts;
use crate::counters::{Counter, Snapshot, counter_table};
use crate::shard::Sharded;

counter_table! {
    /// A statistic of each procedure.
    OperationFigure {
        Operations "operations" Requests "A request ended, with or without a reply; it counts once, however often it was sent.";
        Transmissions "transmissions" Requests "A request was written to a socket; the excess over operations was sent again.";
        Timeouts "timeouts" Requests "A request was given up without a reply (soft, softerr).";
        BytesSent "bytes_sent" Bytes "Bytes of requests on the wire, with record marks and RPC headers.";
        BytesReceived "bytes_received" Bytes "Bytes of replies, with RPC headers and without record marks.";
        QueueTime "queue_ns" Nanoseconds "Time from a request's start until it was last written to a socket.";
        RoundTrip "rtt_ns" Nanoseconds "Time from then until its end.";
        Execution "execute_ns" Nanoseconds "Time from its start to its end.";
        Errors "errors" Requests "A request that the server refused, or that got no reply.";
        Delays "delays" Requests "A request that the server deferred (NFS3ERR_JUKEBOX) and that is repeated later.";
    }
}

/// The upper bounds of the histogram of round-trip times, in nanoseconds; one more bucket has no
/// bound.
pub const ROUND_TRIP_BOUNDS: [u64; 17] = [
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
];

/// The statistics and the histogram of one operation.
const PER_OPERATION: usize = OperationFigure::ALL.len() + ROUND_TRIP_BOUNDS.len() + 1;

/// A completed request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompletedRequest {
    /// Number of transmissions.
    pub transmissions: u64,
    /// Whether it timed out.
    pub timed_out: bool,
    /// See [`OperationFigure::BytesSent`].
    pub bytes_sent: u64,
    /// See [`OperationFigure::BytesReceived`].
    pub bytes_received: u64,
    /// See [`OperationFigure::QueueTime`].
    pub queue: Duration,
    /// See [`OperationFigure::Execution`].
    pub execution: Duration,
    /// The server returned an error, or did not reply.
    pub failed: bool,
    /// The server replied that it is busy (`NFS3ERR_JUKEBOX`).
    pub delayed: bool,
}

/// The statistics of all operations, shared by all threads that send requests.
pub struct OperationCounters {
    numbers: Sharded,
}

impl Default for OperationCounters {
    fn default() -> Self {
        Self { numbers: Sharded::new(Operation::COUNT * PER_OPERATION) }
    }
}

impl OperationCounters {
    /// Adds a completed request.
    pub fn ended(&self, operation: Operation, request: &CompletedRequest) {
        let first = operation.index() * PER_OPERATION;
        let round_trip = nanoseconds(request.execution.saturating_sub(request.queue));
        let add = |figure: OperationFigure, amount: u64| {
            if amount != 0 {
                self.numbers.add(first + figure.index(), amount);
            }
        };
        add(OperationFigure::Operations, 1);
        add(OperationFigure::Transmissions, request.transmissions);
        add(OperationFigure::Timeouts, request.timed_out.into());
        add(OperationFigure::BytesSent, request.bytes_sent);
        add(OperationFigure::BytesReceived, request.bytes_received);
        add(OperationFigure::QueueTime, nanoseconds(request.queue));
        add(OperationFigure::RoundTrip, round_trip);
        add(OperationFigure::Execution, nanoseconds(request.execution));
        add(OperationFigure::Errors, request.failed.into());
        add(OperationFigure::Delays, request.delayed.into());
        let class = ROUND_TRIP_BOUNDS.partition_point(|bound| *bound < round_trip);
        self.numbers.add(first + OperationFigure::ALL.len() + class, 1);
    }

    /// One statistic of an operation.
    #[must_use]
    pub fn value(&self, operation: Operation, figure: OperationFigure) -> u64 {
        self.numbers.sum(operation.index() * PER_OPERATION + figure.index())
    }

    /// Requests of NFS.
    #[must_use]
    pub fn operations(&self) -> u64 {
        let all = Operation::nfs().chain(Operation::nfs4());
        all.map(|operation| self.value(operation, OperationFigure::Operations)).sum()
    }

    /// A copy of all current statistics of NFS and NLM: of the operations of NLM and NFSv4, of
    /// those that were sent. A compound counts as the operation that it is sent for.
    #[must_use]
    pub fn snapshot(&self) -> OperationSnapshot {
        let figures = |operation: Operation| {
            let first = operation.index() * PER_OPERATION;
            let figures = OperationFigure::ALL.iter().map(|figure| self.numbers.sum(first + figure.index()));
            let classes = first + OperationFigure::ALL.len()..first + PER_OPERATION;
            let figures = OperationStatistics {
                figures: figures.collect(),
                round_trips: classes.map(|class| self.numbers.sum(class)).collect(),
            };
            (operation, figures)
        };
        let others = Operation::nlm().chain(Operation::nfs4());
        let sent = others.filter(|operation| self.value(*operation, OperationFigure::Operations) > 0);
        OperationSnapshot(Operation::nfs().chain(sent).map(figures).collect())
    }
}

/// One operation's statistics at one time, or the difference of two of these.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OperationStatistics {
    /// The sums.
    #[serde(flatten)]
    pub figures: Snapshot<OperationFigure>,
    /// Number of round trips in each bucket of [`ROUND_TRIP_BOUNDS`], and in the last one, which
    /// has no bound.
    pub round_trips: Vec<u64>,
}

impl OperationStatistics {
    /// One statistic.
    #[must_use]
    pub fn value(&self, figure: OperationFigure) -> u64 {
        self.figures.value(figure)
    }

    /// Retransmissions.
    #[must_use]
    pub fn retransmissions(&self) -> u64 {
        let sent = self.value(OperationFigure::Transmissions);
        sent.saturating_sub(self.value(OperationFigure::Operations))
    }

    fn and(&self, other: &Self) -> Self {
        let figures = OperationFigure::ALL.iter().map(|figure| self.value(*figure) + other.value(*figure));
        let buckets = self.round_trips.len().max(other.round_trips.len());
        let in_bucket = |of: &Self, bucket| of.round_trips.get(bucket).copied().unwrap_or(0);
        let round_trips = (0..buckets).map(|bucket| in_bucket(self, bucket) + in_bucket(other, bucket));
        Self { figures: figures.collect(), round_trips: round_trips.collect() }
    }

    fn since(&self, earlier: &Self) -> Self {
        let then = earlier.round_trips.iter().copied().chain(std::iter::repeat(0));
        Self {
            figures: self.figures.since(&earlier.figures),
            round_trips: self
                .round_trips
                .iter()
                .zip(then)
                .map(|(now, then)| now.saturating_sub(then))
                .collect(),
        }
    }
}

/// The statistics of all operations of NFS and NLM at one time. In JSON an operation has its
/// [key](Operation::key).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationSnapshot(
    #[serde(with = "crate::operation_map")] BTreeMap<Operation, OperationStatistics>,
);

impl OperationSnapshot {
    /// The statistics of an operation.
    #[must_use]
    pub fn of(&self, operation: impl Into<Operation>) -> OperationStatistics {
        self.0.get(&operation.into()).cloned().unwrap_or_default()
    }

    /// The sums over some operations: those that mean the same in different versions.
    #[must_use]
    pub fn of_all(&self, is_meant: fn(Operation) -> bool) -> OperationStatistics {
        let meant = self.0.iter().filter(|(operation, _)| is_meant(**operation));
        meant.fold(OperationStatistics::default(), |sum, (_, statistics)| sum.and(statistics))
    }

    /// Whether requests of NFSv4 were sent.
    #[must_use]
    pub fn is_of_nfs4(&self) -> bool {
        Operation::nfs4().any(|operation| self.0.contains_key(&operation))
    }

    /// Each operation of NFSv3, and those of NLM and NFSv4 that were sent, with their statistics,
    /// in the order of [`Operation::index`].
    pub fn iter(&self) -> impl Iterator<Item = (Operation, OperationStatistics)> + '_ {
        let others = Operation::nlm().chain(Operation::nfs4());
        let sent = others.filter(|operation| self.0.contains_key(operation));
        Operation::nfs().chain(sent).map(|operation| (operation, self.of(operation)))
    }

    /// The sum of a statistic over all operations.
    #[must_use]
    pub fn total(&self, figure: OperationFigure) -> u64 {
        self.0.values().map(|statistics| statistics.value(figure)).sum()
    }

    /// Number of calls of each operation of NFS.
    #[must_use]
    pub fn calls(&self) -> CallCounts {
        self.iter()
            .filter(|(operation, _)| !matches!(operation, Operation::Nlm(_)))
            .map(|(operation, figures)| (operation, figures.value(OperationFigure::Operations)))
            .collect()
    }

    /// The difference between `earlier` and this.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let differences =
            self.0.iter().map(|(operation, now)| (*operation, now.since(&earlier.of(*operation))));
        Self(differences.collect())
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use curt_proto::nfs3::NfsProcedure;
    use curt_proto::nlm4::NlmProcedure;

    use super::*;

    const READ: Operation = Operation::Nfs3(NfsProcedure::Read);

    fn request(queue: u64, execution: u64) -> CompletedRequest {
        CompletedRequest {
            transmissions: 2,
            bytes_sent: 120,
            bytes_received: 4096,
            queue: Duration::from_micros(queue),
            execution: Duration::from_micros(execution),
            failed: true,
            ..CompletedRequest::default()
        }
    }

    #[test]
    fn queue_and_round_trip_add_up_to_the_execution() {
        let operations = OperationCounters::default();
        operations.ended(READ, &request(30, 130));
        // The clock stood still while the transport's clock continued.
        operations.ended(READ, &request(30, 0));
        let snapshot = operations.snapshot().of(READ);
        let figures = [
            OperationFigure::Operations,
            OperationFigure::Transmissions,
            OperationFigure::BytesReceived,
            OperationFigure::QueueTime,
            OperationFigure::RoundTrip,
            OperationFigure::Execution,
            OperationFigure::Errors,
        ];
        let figures = figures.map(|figure| snapshot.value(figure));
        assert_eq!(figures, [2, 4, 8192, 60_000, 100_000, 130_000, 2]);
        assert_eq!(snapshot.retransmissions(), 2);
        assert_eq!(operations.snapshot().total(OperationFigure::Operations), 2);
    }

    #[test]
    fn a_round_trip_falls_into_the_class_whose_bound_it_does_not_exceed() {
        let operations = OperationCounters::default();
        for bound in ROUND_TRIP_BOUNDS {
            operations.ended(
                READ,
                &CompletedRequest { execution: Duration::from_nanos(bound), ..CompletedRequest::default() },
            );
        }
        operations.ended(
            READ,
            &CompletedRequest {
                execution: Duration::from_nanos(ROUND_TRIP_BOUNDS[16] + 1),
                ..CompletedRequest::default()
            },
        );
        assert_eq!(operations.snapshot().of(READ).round_trips, vec![1; 18]);
    }

    #[test]
    fn requests_of_nlm_have_statistics_and_are_no_calls_of_nfs() {
        let operations = OperationCounters::default();
        assert!(operations.snapshot().iter().all(|(operation, _)| !operation.is_lock()));
        operations.ended(Operation::Nlm(NlmProcedure::Lock), &request(10, 40));
        let snapshot = operations.snapshot();
        assert_eq!(snapshot.of_all(Operation::is_lock).value(OperationFigure::RoundTrip), 30_000);
        assert_eq!(snapshot.iter().filter(|(operation, _)| operation.is_lock()).count(), 1);
        assert_eq!((snapshot.total(OperationFigure::Operations), snapshot.calls().total()), (1, 0));
    }

    #[test]
    fn differences_are_what_was_done_between() {
        let operations = OperationCounters::default();
        operations.ended(READ, &request(10, 20));
        let before = operations.snapshot();
        operations.ended(READ, &request(10, 40));
        operations.ended(Operation::Nfs3(NfsProcedure::Getattr), &request(1, 2));
        let between = operations.snapshot().since(&before);
        assert_eq!(between.calls().total(), 2);
        assert_eq!(between.of(READ).value(OperationFigure::RoundTrip), 30_000);
        assert_eq!(between.of(READ).round_trips.iter().sum::<u64>(), 1);
        assert_eq!(before.since(&between).total(OperationFigure::Operations), 0);
    }
}
