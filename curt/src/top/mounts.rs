//! Converts two reports of each mount to tables. Pure.

use curt_observe::control::{MountActivity, MountReport, ReportContinuity, RequestOrigin};
use curt_observe::{ClientCounter, Operation, OperationFigure, TransportFigure};

use super::caches::caches;
use super::table::{TableCell, TopTable};

/// Nanoseconds of a millisecond.
const MILLISECOND: f64 = 1e6;

/// Bytes of a KiB.
pub(super) const KIBIBYTE: f64 = 1024.0;

/// A mount's statistics between two samples, and its totals.
pub(super) struct MountDelta<'a> {
    pub(super) now: &'a MountActivity,
    pub(super) done: MountReport,
    before: Option<&'a MountActivity>,
}

impl MountDelta<'_> {
    /// An amount per second.
    pub(super) fn rate(&self, amount: f64) -> f64 {
        if self.done.age_seconds > 0.0 { amount / self.done.age_seconds } else { 0.0 }
    }
}

/// The tables of all mounts, or of the one at `only`.
pub(super) fn tables(before: &[MountActivity], now: &[MountActivity], only: Option<&str>) -> Vec<TopTable> {
    let all: Vec<MountDelta<'_>> = now
        .iter()
        .map(|now| {
            let same = |one: &&MountActivity| {
                one.report.mount_point == now.report.mount_point
                    && now.report.continuity_with(&one.report) == ReportContinuity::SameMount
            };
            let before = before.iter().find(same);
            let done = match before {
                Some(before) => now.report.since(&before.report),
                None => now.report.clone(),
            };
            MountDelta { now, done, before }
        })
        .collect();
    let is_meant = |one: &&MountDelta<'_>| {
        only.is_none_or(|only| one.now.report.mount_point.display().to_string() == only)
    };
    let meant: Vec<&MountDelta<'_>> = all.iter().filter(is_meant).collect();
    let causers = |name, of: fn(&MountActivity) -> &[RequestOrigin]| causers(name, &meant, of);
    vec![
        overview(&all),
        operations(&meant),
        caches(&meant),
        causers("processes", |watched| &watched.causers.processes),
        causers("paths", |watched| &watched.causers.paths),
    ]
}

fn overview(all: &[MountDelta<'_>]) -> TopTable {
    let row = |one: &MountDelta<'_>| {
        let done = &one.done;
        let total = |figure| done.operations.total(figure) as f64;
        let operations = total(OperationFigure::Operations);
        let bytes = |counter| one.rate(done.counters.events.value(counter) as f64 / KIBIBYTE);
        vec![
            TableCell::Text(done.mount_point.display().to_string()),
            TableCell::Text(done.source.clone()),
            TableCell::Rate(one.rate(done.transport.value(TransportFigure::Sends) as f64)),
            TableCell::Rate(one.rate(done.fuse.values().sum::<u64>() as f64)),
            TableCell::Rate(bytes(ClientCounter::ReadBytes)),
            TableCell::Rate(bytes(ClientCounter::WriteBytes)),
            average(total(OperationFigure::RoundTrip), operations),
            TableCell::Count(done.operations.total(OperationFigure::Errors)),
            TableCell::Count(one.now.report.counters.requests.total()),
        ]
    };
    TopTable::new(
        "mounts",
        2,
        "mount_point source requests_per_s kernel_per_s read_kib_per_s write_kib_per_s rtt_ms errors requests",
        all.iter().map(row),
    )
}

fn average(nanoseconds: f64, operations: f64) -> TableCell {
    if operations > 0.0 {
        TableCell::Rate(nanoseconds / MILLISECOND / operations)
    } else {
        TableCell::Nothing
    }
}

fn operations(meant: &[&MountDelta<'_>]) -> TopTable {
    let sum = |value: &dyn Fn(&MountDelta<'_>) -> f64| meant.iter().map(|one| value(one)).sum::<f64>();
    let rows = Operation::nfs().filter_map(|operation| {
        let total: u64 = meant.iter().map(|one| one.now.report.counters.requests.value(operation)).sum();
        if total == 0 {
            return None;
        }
        let of = |figure| sum(&|one| one.done.operations.of(operation).value(figure) as f64);
        let operations = of(OperationFigure::Operations);
        let rate = |figures: [OperationFigure; 2], unit: f64| {
            sum(&|one| {
                let statistics = one.done.operations.of(operation);
                one.rate(figures.map(|figure| statistics.value(figure)).iter().sum::<u64>() as f64 / unit)
            })
        };
        let per_second = sum(&|one| one.rate(one.done.counters.requests.value(operation) as f64));
        let retransmissions = sum(&|one| one.done.operations.of(operation).retransmissions() as f64);
        let bytes = [OperationFigure::BytesSent, OperationFigure::BytesReceived];
        Some(vec![
            TableCell::Text(operation.to_string()),
            TableCell::Rate(per_second),
            TableCell::Rate(rate(bytes, KIBIBYTE)),
            average(of(OperationFigure::RoundTrip), operations),
            average(of(OperationFigure::QueueTime), operations),
            TableCell::Rate(retransmissions),
            TableCell::Rate(of(OperationFigure::Errors)),
            TableCell::Count(total),
        ])
    });
    TopTable::new(
        "procedures",
        1,
        "procedure requests_per_s kib_per_s rtt_ms queue_ms retransmissions errors requests",
        rows,
    )
}

fn causers(
    name: &'static str,
    meant: &[&MountDelta<'_>],
    of: fn(&MountActivity) -> &[RequestOrigin],
) -> TopTable {
    let mut rows = Vec::new();
    for one in meant {
        let before = one.before.map(of).unwrap_or_default();
        for causer in of(one.now) {
            let earlier = before.iter().find(|earlier| earlier.name == causer.name);
            // A count that is new in the table may include `error` requests of others.
            let done = match earlier {
                Some(earlier) => causer.requests.saturating_sub(earlier.requests),
                None => causer.requests - causer.error,
            };
            rows.push(vec![
                TableCell::Text(causer.name.clone()),
                TableCell::Text(one.now.report.mount_point.display().to_string()),
                TableCell::Rate(one.rate(done as f64)),
                TableCell::Count(causer.requests),
                TableCell::Count(causer.error),
            ]);
        }
    }
    let columns = if name == "paths" {
        "path mount_point requests_per_s requests of_them_uncertain"
    } else {
        "process mount_point requests_per_s requests of_them_uncertain"
    };
    TopTable::new(name, 2, columns, rows)
}
