//! Two reports of each mount made into tables. Pure.

use curt_mount::control::{Causer, MountReport, Succession, Watched};
use curt_trace::{ClientCounter, OperationFigure, TransportFigure};

use super::caches::caches;
use super::table::{Cell, Table};

/// Nanoseconds of a millisecond.
const MILLISECOND: f64 = 1e6;

/// Bytes of a KiB.
pub(super) const KIBIBYTE: f64 = 1024.0;

/// A mount's figures between two samples, and its totals.
pub(super) struct Between<'a> {
    pub(super) now: &'a Watched,
    pub(super) done: MountReport,
    before: Option<&'a Watched>,
}

impl Between<'_> {
    /// An amount per second.
    pub(super) fn rate(&self, amount: f64) -> f64 {
        if self.done.age_seconds > 0.0 {
            amount / self.done.age_seconds
        } else {
            0.0
        }
    }
}

/// The tables of all mounts, or of the one at `only`.
pub(super) fn tables(before: &[Watched], now: &[Watched], only: Option<&str>) -> Vec<Table> {
    let all: Vec<Between<'_>> = now
        .iter()
        .map(|now| {
            let same = |one: &&Watched| {
                one.report.mount_point == now.report.mount_point
                    && now.report.succession(&one.report) == Succession::Later
            };
            let before = before.iter().find(same);
            let done = match before {
                Some(before) => now.report.since(&before.report),
                None => now.report.clone(),
            };
            Between { now, done, before }
        })
        .collect();
    let is_meant =
        |one: &&Between<'_>| only.is_none_or(|only| one.now.report.mount_point.display().to_string() == only);
    let meant: Vec<&Between<'_>> = all.iter().filter(is_meant).collect();
    let causers = |name, of: fn(&Watched) -> &[Causer]| causers(name, &meant, of);
    vec![
        overview(&all),
        procedures(&meant),
        caches(&meant),
        causers("processes", |watched| &watched.causers.processes),
        causers("paths", |watched| &watched.causers.paths),
    ]
}

fn overview(all: &[Between<'_>]) -> Table {
    let row = |one: &Between<'_>| {
        let done = &one.done;
        let total = |figure| done.operations.total(figure) as f64;
        let operations = total(OperationFigure::Operations);
        let bytes = |counter| one.rate(done.counters.events.value(counter) as f64 / KIBIBYTE);
        vec![
            Cell::Text(done.mount_point.display().to_string()),
            Cell::Text(done.source.clone()),
            Cell::Rate(one.rate(done.transport.value(TransportFigure::Sends) as f64)),
            Cell::Rate(one.rate(done.fuse.values().sum::<u64>() as f64)),
            Cell::Rate(bytes(ClientCounter::ReadBytes)),
            Cell::Rate(bytes(ClientCounter::WriteBytes)),
            average(total(OperationFigure::RoundTrip), operations),
            Cell::Count(done.operations.total(OperationFigure::Errors)),
            Cell::Count(one.now.report.counters.requests.total()),
        ]
    };
    Table {
        name: "mounts",
        columns: vec![
            "mount_point",
            "source",
            "requests_per_s",
            "kernel_per_s",
            "read_kib_per_s",
            "write_kib_per_s",
            "rtt_ms",
            "errors",
            "requests",
        ],
        rows: all.iter().map(row).collect(),
        by: 2,
    }
}

fn average(nanoseconds: f64, operations: f64) -> Cell {
    if operations > 0.0 {
        Cell::Rate(nanoseconds / MILLISECOND / operations)
    } else {
        Cell::Nothing
    }
}

fn procedures(meant: &[&Between<'_>]) -> Table {
    let sum = |value: &dyn Fn(&Between<'_>) -> f64| meant.iter().map(|one| value(one)).sum::<f64>();
    let rows = curt_trace::PROCEDURES.iter().filter_map(|name| {
        let total: u64 = meant
            .iter()
            .map(|one| one.now.report.counters.requests.value(name))
            .sum();
        if total == 0 {
            return None;
        }
        let of = |figure| sum(&|one| one.done.operations.of(name).value(figure) as f64);
        let operations = of(OperationFigure::Operations);
        let rate = |figures: [OperationFigure; 2], unit: f64| {
            sum(&|one| {
                let procedure = one.done.operations.of(name);
                one.rate(figures.map(|figure| procedure.value(figure)).iter().sum::<u64>() as f64 / unit)
            })
        };
        let per_second = sum(&|one| one.rate(one.done.counters.requests.value(name) as f64));
        let retransmissions = sum(&|one| one.done.operations.of(name).retransmissions() as f64);
        let bytes = [OperationFigure::BytesSent, OperationFigure::BytesReceived];
        Some(vec![
            Cell::Text((*name).to_owned()),
            Cell::Rate(per_second),
            Cell::Rate(rate(bytes, KIBIBYTE)),
            average(of(OperationFigure::RoundTrip), operations),
            average(of(OperationFigure::QueueTime), operations),
            Cell::Rate(retransmissions),
            Cell::Rate(of(OperationFigure::Errors)),
            Cell::Count(total),
        ])
    });
    Table {
        name: "procedures",
        columns: vec![
            "procedure",
            "requests_per_s",
            "kib_per_s",
            "rtt_ms",
            "queue_ms",
            "retransmissions",
            "errors",
            "requests",
        ],
        rows: rows.collect(),
        by: 1,
    }
}

fn causers(name: &'static str, meant: &[&Between<'_>], of: fn(&Watched) -> &[Causer]) -> Table {
    let mut rows = Vec::new();
    for one in meant {
        let known = one.before.map(of).unwrap_or_default();
        for causer in of(one.now) {
            let earlier = known.iter().find(|earlier| earlier.name == causer.name);
            // A count that is new in the table may include `error` requests of others.
            let done = match earlier {
                Some(earlier) => causer.requests.saturating_sub(earlier.requests),
                None => causer.requests - causer.error,
            };
            rows.push(vec![
                Cell::Text(causer.name.clone()),
                Cell::Text(one.now.report.mount_point.display().to_string()),
                Cell::Rate(one.rate(done as f64)),
                Cell::Count(causer.requests),
                Cell::Count(causer.error),
            ]);
        }
    }
    Table {
        name,
        columns: vec![
            if name == "paths" { "path" } else { "process" },
            "mount_point",
            "requests_per_s",
            "requests",
            "of_them_uncertain",
        ],
        rows,
        by: 2,
    }
}
