//! Two looks made into tables of rates. Pure.

use curt_bench::report::lay_out;
use curt_mount::control::{Causer, MountReport, Succession, Watched};
use curt_trace::{ClientCounter, OperationFigure, TransportFigure};
use serde_json::{Map, Value, json};

use super::caches::caches;
use super::look::{Look, Told};
use super::server;

/// Nanoseconds of a millisecond.
const MILLISECOND: f64 = 1e6;

/// Bytes of a KiB.
pub(super) const KIBIBYTE: f64 = 1024.0;

/// What is shown at once.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Table {
    /// Its name: the tab's, and in JSON.
    pub(super) name: &'static str,
    /// The columns' names; the first is what a row is about.
    pub(super) columns: Vec<&'static str>,
    pub(super) rows: Vec<Vec<Cell>>,
    /// What to sort by at first.
    pub(super) by: usize,
}

/// What stands in a table.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Cell {
    Text(String),
    /// A rate, a time or a share.
    Rate(f64),
    Count(u64),
    /// There is none.
    Nothing,
}

impl Cell {
    pub(super) fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Rate(rate) if *rate >= 100.0 => format!("{rate:.0}"),
            Self::Rate(rate) if *rate >= 1.0 => format!("{rate:.1}"),
            Self::Rate(rate) => format!("{rate:.3}"),
            Self::Count(count) => count.to_string(),
            Self::Nothing => "-".to_owned(),
        }
    }

    /// The order of numbers, texts behind them.
    pub(super) fn compare(&self, other: &Self) -> std::cmp::Ordering {
        let number = |cell: &Self| match cell {
            Self::Rate(rate) => Some(*rate),
            Self::Count(count) => Some(*count as f64),
            Self::Text(_) | Self::Nothing => None,
        };
        match (number(self), number(other)) {
            (Some(one), Some(other)) => one.total_cmp(&other),
            (one, another) => one
                .is_some()
                .cmp(&another.is_some())
                .then_with(|| self.text().cmp(&other.text())),
        }
    }

    fn json(&self) -> Value {
        match self {
            Self::Text(text) => json!(text),
            Self::Rate(rate) => json!(rate),
            Self::Count(count) => json!(count),
            Self::Nothing => Value::Null,
        }
    }
}

impl Table {
    /// As text, with its name.
    pub(super) fn text(&self) -> String {
        let head = self.columns.iter().map(|column| (*column).to_owned()).collect();
        let mut rows = vec![head];
        rows.extend(
            self.rows
                .iter()
                .map(|row| row.iter().map(Cell::text).collect::<Vec<_>>()),
        );
        format!("{}:\n{}", self.name, lay_out(&rows))
    }
}

/// The tables as an object of arrays, with the time between the looks.
pub(super) fn json(before: &Look, now: &Look, tables: &[Table]) -> Value {
    let mut all = Map::new();
    all.insert("seconds".to_owned(), json!(seconds(before, now)));
    for table in tables {
        let rows = table.rows.iter().map(|row| {
            let cells = table.columns.iter().zip(row);
            Value::Object(
                cells
                    .map(|(column, cell)| ((*column).to_owned(), cell.json()))
                    .collect(),
            )
        });
        all.insert(table.name.to_owned(), rows.collect());
    }
    Value::Object(all)
}

/// The time between two looks.
pub(super) fn seconds(before: &Look, now: &Look) -> f64 {
    now.at.saturating_duration_since(before.at).as_secs_f64()
}

/// What two looks come to; of all mounts together, or of the one at `only`.
pub(super) fn tables(before: &Look, now: &Look, only: Option<&str>) -> Vec<Table> {
    match (&before.told, &now.told) {
        (Told::Mounts(before), Told::Mounts(now)) => mounts(before, now, only),
        // None was seen before: all of the time since they were mounted.
        (_, Told::Mounts(now)) => mounts(&[], now, only),
        (Told::Server(before), Told::Server(now)) => server::tables(before, now),
        (_, Told::Server(now)) => server::tables(now, now),
        (_, Told::Nobody(_)) => Vec::new(),
    }
}

/// What a mount did between two looks, and what it has done in all.
pub(super) struct Between<'a> {
    pub(super) now: &'a Watched,
    pub(super) done: MountReport,
    before: Option<&'a Watched>,
}

impl Between<'_> {
    /// So much in a second.
    pub(super) fn rate(&self, amount: f64) -> f64 {
        if self.done.age_seconds > 0.0 {
            amount / self.done.age_seconds
        } else {
            0.0
        }
    }
}

fn mounts(before: &[Watched], now: &[Watched], only: Option<&str>) -> Vec<Table> {
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

/// How much of both the first is.
pub(super) fn share(part: f64, rest: f64) -> Cell {
    if part + rest > 0.0 {
        Cell::Rate(part * 100.0 / (part + rest))
    } else {
        Cell::Nothing
    }
}

fn causers(name: &'static str, meant: &[&Between<'_>], of: fn(&Watched) -> &[Causer]) -> Table {
    let mut rows = Vec::new();
    for one in meant {
        let known = one.before.map(of).unwrap_or_default();
        for causer in of(one.now) {
            let earlier = known.iter().find(|earlier| earlier.name == causer.name);
            // Of one that is new in the table, what may be others' is not its.
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that fails may panic")]
pub(super) mod tests {
    use std::time::{Duration, Instant};

    use curt_mount::control::Causers;
    use curt_trace::{ClientCounters, EndedRequest, Operations};

    use super::*;

    /// A look at a mount that has made `lookups` requests in `age` seconds, each of which a name in memory spared twice.
    pub(in crate::top) fn look(start: Instant, age: u32, lookups: u64) -> Look {
        let (operations, counters) = (Operations::default(), ClientCounters::default());
        for _ in 0..lookups {
            operations.ended(
                3,
                &EndedRequest {
                    transmissions: 1,
                    bytes_sent: 512,
                    bytes_received: 512,
                    execution: Duration::from_millis(2),
                    ..EndedRequest::default()
                },
            );
            counters.add(ClientCounter::PosHit, 2);
            counters.count(ClientCounter::PosMiss);
        }
        let operations = operations.snapshot();
        let mut counters = counters.snapshot();
        counters.requests = operations.calls();
        let causer = |name: &str, error| Causer {
            name: name.to_owned(),
            requests: lookups,
            error,
        };
        let report = MountReport {
            source: "nas:/export".to_owned(),
            mount_point: "/mnt".into(),
            pid: 7,
            age_seconds: age.into(),
            counters,
            operations,
            ..MountReport::default()
        };
        let causers = Causers {
            processes: vec![causer("42 make", 0)],
            paths: vec![causer("/src/a.c", 1)],
            ..Causers::default()
        };
        Look {
            at: start + Duration::from_secs(age.into()),
            told: Told::Mounts(vec![Watched { report, causers }]),
        }
    }

    #[test]
    fn rates_are_of_the_time_between_two_looks() {
        let start = Instant::now();
        let (before, now) = (look(start, 10, 100), look(start, 12, 150));
        let tables = tables(&before, &now, None);
        let table = |name: &str| tables.iter().find(|table| table.name == name).unwrap();
        let cell = |name: &str, row: usize, column: &str| {
            let table = table(name);
            let at = table.columns.iter().position(|one| *one == column).unwrap();
            table.rows[row][at].clone()
        };
        assert_eq!(
            cell("procedures", 0, "procedure"),
            Cell::Text("LOOKUP".to_owned())
        );
        assert_eq!(cell("procedures", 0, "requests_per_s"), Cell::Rate(25.0));
        assert_eq!(cell("procedures", 0, "kib_per_s"), Cell::Rate(25.0));
        assert_eq!(cell("procedures", 0, "rtt_ms"), Cell::Rate(2.0));
        assert_eq!(cell("procedures", 0, "requests"), Cell::Count(150));
        assert_eq!(cell("caches", 1, "hits_per_s"), Cell::Rate(50.0));
        let Cell::Rate(hit) = cell("caches", 1, "hit_percent") else {
            panic!("there were hits")
        };
        assert!((66.6..66.7).contains(&hit), "{hit}");
        assert_eq!(cell("caches", 1, "spared"), Cell::Rate(300.0));
        assert_eq!(cell("processes", 0, "requests_per_s"), Cell::Rate(25.0));
        assert_eq!(cell("paths", 0, "of_them_uncertain"), Cell::Count(1));
        let told = json(&before, &now, &tables);
        assert_eq!(told["seconds"], 2.0);
        assert_eq!(told["processes"][0]["process"], "42 make");
        assert_eq!(told["mounts"][0]["rtt_ms"], 2.0);
        assert!(table("caches").text().starts_with("caches:\ncache "));
    }

    #[test]
    fn one_mount_is_shown_alone_and_a_mount_that_is_new_since_it_began() {
        let start = Instant::now();
        let now = look(start, 10, 100);
        let empty = Look {
            at: start,
            told: Told::Mounts(Vec::new()),
        };
        let all = tables(&empty, &now, None);
        assert_eq!(all[1].rows[0][1], Cell::Rate(10.0));
        assert!(tables(&empty, &now, Some("/other"))[1].rows.is_empty());
        assert_eq!(tables(&empty, &now, Some("/mnt"))[1].rows.len(), 1);
    }

    #[test]
    fn numbers_are_sorted_as_numbers_and_stand_before_nothing() {
        let mut cells = [Cell::Nothing, Cell::Rate(9.0), Cell::Count(10), Cell::Rate(0.5)];
        cells.sort_by(|one, other| other.compare(one));
        assert_eq!(
            cells,
            [Cell::Count(10), Cell::Rate(9.0), Cell::Rate(0.5), Cell::Nothing]
        );
    }
}
