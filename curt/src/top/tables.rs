//! Converts two samples to tables of rates. Pure.

use serde_json::{Map, Value, json};

use super::sample::{Sample, SampleData};
use super::table::TopTable;
use super::{mounts, server};

/// The tables as an object of arrays, with the time between the samples.
pub(super) fn json(before: &Sample, now: &Sample, tables: &[TopTable]) -> Value {
    let mut all = Map::new();
    all.insert("seconds".to_owned(), json!(seconds(before, now)));
    for table in tables {
        let rows = table.rows.iter().map(|row| {
            let cells = table.columns.iter().zip(row);
            Value::Object(cells.map(|(column, cell)| ((*column).to_owned(), cell.json())).collect())
        });
        all.insert(table.name.to_owned(), rows.collect());
    }
    Value::Object(all)
}

/// The time between two samples.
pub(super) fn seconds(before: &Sample, now: &Sample) -> f64 {
    now.at.saturating_duration_since(before.at).as_secs_f64()
}

/// The tables of two samples; of all mounts together, or of the one at `only`.
pub(super) fn tables(before: &Sample, now: &Sample, only: Option<&str>) -> Vec<TopTable> {
    match (&before.data, &now.data) {
        (SampleData::Mounts(before), SampleData::Mounts(now)) => mounts::tables(before, now, only),
        // There is no earlier sample: rates since mounting.
        (_, SampleData::Mounts(now)) => mounts::tables(&[], now, only),
        (SampleData::Server(before), SampleData::Server(now)) => server::tables(before, now),
        (_, SampleData::Server(now)) => server::tables(now, now),
        (_, SampleData::Nobody(_)) => Vec::new(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that fails may panic")]
pub(super) mod tests {
    use std::time::{Duration, Instant};

    use curt_observe::control::{MountActivity, MountReport, RequestOrigin, RequestOrigins};
    use curt_observe::{ClientCounter, ClientCounters, CompletedRequest, Operation, OperationCounters};
    use curt_proto::nfs3::NfsProcedure;

    use super::super::table::TableCell;
    use super::*;

    /// A sample of a mount that has sent `lookups` requests in `age` seconds; for each, cached
    /// names saved two more.
    pub(in crate::top) fn sample(start: Instant, age: u32, lookups: u64) -> Sample {
        let (operations, counters) = (OperationCounters::default(), ClientCounters::default());
        for _ in 0..lookups {
            operations.ended(
                Operation::Nfs3(NfsProcedure::Lookup),
                &CompletedRequest {
                    transmissions: 1,
                    bytes_sent: 512,
                    bytes_received: 512,
                    execution: Duration::from_millis(2),
                    ..CompletedRequest::default()
                },
            );
            counters.add(ClientCounter::PosHit, 2);
            counters.count(ClientCounter::PosMiss);
        }
        let operations = operations.snapshot();
        let mut counters = counters.snapshot();
        counters.requests = operations.calls();
        let causer = |name: &str, error| RequestOrigin { name: name.to_owned(), requests: lookups, error };
        let report = MountReport {
            source: "nas:/export".to_owned(),
            mount_point: "/mnt".into(),
            pid: 7,
            age_seconds: age.into(),
            counters,
            operations,
            ..MountReport::default()
        };
        let causers = RequestOrigins {
            processes: vec![causer("42 make", 0)],
            paths: vec![causer("/src/a.c", 1)],
            ..RequestOrigins::default()
        };
        Sample {
            at: start + Duration::from_secs(age.into()),
            data: SampleData::Mounts(vec![MountActivity { report, causers }]),
        }
    }

    #[test]
    fn rates_are_of_the_time_between_two_looks() {
        let start = Instant::now();
        let (before, now) = (sample(start, 10, 100), sample(start, 12, 150));
        let tables = tables(&before, &now, None);
        let table = |name: &str| tables.iter().find(|table| table.name == name).unwrap();
        let cell = |name: &str, row: usize, column: &str| {
            let table = table(name);
            let at = table.columns.iter().position(|one| *one == column).unwrap();
            table.rows[row][at].clone()
        };
        assert_eq!(cell("procedures", 0, "procedure"), TableCell::Text("LOOKUP".to_owned()));
        assert_eq!(cell("procedures", 0, "requests_per_s"), TableCell::Rate(25.0));
        assert_eq!(cell("procedures", 0, "kib_per_s"), TableCell::Rate(25.0));
        assert_eq!(cell("procedures", 0, "rtt_ms"), TableCell::Rate(2.0));
        assert_eq!(cell("procedures", 0, "requests"), TableCell::Count(150));
        assert_eq!(cell("caches", 1, "hits_per_s"), TableCell::Rate(50.0));
        let TableCell::Rate(hit) = cell("caches", 1, "hit_percent") else { panic!("there were hits") };
        assert!((66.6..66.7).contains(&hit), "{hit}");
        assert_eq!(cell("caches", 1, "saved"), TableCell::Rate(300.0));
        assert_eq!(cell("processes", 0, "requests_per_s"), TableCell::Rate(25.0));
        assert_eq!(cell("paths", 0, "of_them_uncertain"), TableCell::Count(1));
        let result = json(&before, &now, &tables);
        assert_eq!(result["seconds"], 2.0);
        assert_eq!(result["processes"][0]["process"], "42 make");
        assert_eq!(result["mounts"][0]["rtt_ms"], 2.0);
        assert!(table("caches").text().starts_with("caches:\ncache "));
    }

    #[test]
    fn one_mount_is_shown_alone_and_a_mount_that_is_new_since_it_began() {
        let start = Instant::now();
        let now = sample(start, 10, 100);
        let empty = Sample { at: start, data: SampleData::Mounts(Vec::new()) };
        let all = tables(&empty, &now, None);
        assert_eq!(all[1].rows[0][1], TableCell::Rate(10.0));
        assert!(tables(&empty, &now, Some("/other"))[1].rows.is_empty());
        assert_eq!(tables(&empty, &now, Some("/mnt"))[1].rows.len(), 1);
    }

    #[test]
    fn numbers_are_sorted_as_numbers_and_stand_before_nothing() {
        let mut cells =
            [TableCell::Nothing, TableCell::Rate(9.0), TableCell::Count(10), TableCell::Rate(0.5)];
        cells.sort_by(|one, other| other.compare(one));
        assert_eq!(
            cells,
            [TableCell::Count(10), TableCell::Rate(9.0), TableCell::Rate(0.5), TableCell::Nothing]
        );
    }
}
