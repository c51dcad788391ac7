//! Converts two reports of a server to tables. Pure.

use curt_observe::stages::RequestStage;
use curt_observe::{Counter as _, Operation};

use super::table::{TableCell, TopTable, share};
use crate::serve::control::ServerReport;
use crate::stat::server_layers;

/// A server's statistics between two reports.
pub(super) fn tables(before: &ServerReport, now: &ServerReport) -> Vec<TopTable> {
    let done = if before.pid == now.pid { now.since(before) } else { now.clone() };
    let rate = |amount: u64| {
        TableCell::Rate(if done.age_seconds > 0.0 { amount as f64 / done.age_seconds } else { 0.0 })
    };
    vec![operations(&done, now, &rate), layers(&done, now, &rate), stages(now), events(&done, now, &rate)]
}

fn operations(done: &ServerReport, now: &ServerReport, rate: &dyn Fn(u64) -> TableCell) -> TopTable {
    let called = Operation::nfs().chain(Operation::nfs4());
    let called = called.filter(|operation| now.counters.requests.value(*operation) > 0);
    let rows = called.map(|operation| {
        let times = now.stages.operations.get(&operation);
        let time = |of: fn(&curt_observe::stages::Percentiles) -> f64| {
            times.map_or(TableCell::Nothing, |times| TableCell::Rate(of(&times.total)))
        };
        vec![
            TableCell::Text(operation.to_string()),
            rate(done.counters.requests.value(operation)),
            time(|total| total.p50_us),
            time(|total| total.p99_us),
            TableCell::Count(now.counters.requests.value(operation)),
        ]
    });
    TopTable::new("procedures", 1, "procedure calls_per_s p50_us p99_us calls", rows)
}

fn layers(done: &ServerReport, now: &ServerReport, rate: &dyn Fn(u64) -> TableCell) -> TopTable {
    let in_all = server_layers(now);
    let rows = server_layers(done).into_iter().zip(in_all).map(|(between, all)| {
        vec![
            TableCell::Text(between.layer.to_owned()),
            rate(between.hits),
            rate(between.misses),
            share(between.hits as f64, between.misses as f64),
            share(all.hits as f64, all.misses as f64),
            TableCell::Count(all.hits),
        ]
    });
    TopTable::new("caches", 1, "layer hits_per_s misses_per_s hit_percent hit_percent_in_all saved", rows)
}

fn stages(now: &ServerReport) -> TopTable {
    let mut rows = Vec::new();
    for (name, times) in &now.stages.operations {
        for stage in RequestStage::ALL {
            let Some(stage_times) = times.stages.get(stage.name()) else {
                continue;
            };
            rows.push(vec![
                TableCell::Text(format!("{name} {}", stage.name())),
                TableCell::Rate(stage_times.p50_us),
                TableCell::Rate(stage_times.p99_us),
                TableCell::Count(stage_times.count),
            ]);
        }
    }
    TopTable::new("stages", 1, "stage p50_us p99_us measured", rows)
}

fn events(done: &ServerReport, now: &ServerReport, rate: &dyn Fn(u64) -> TableCell) -> TopTable {
    let happened = now.counters.events.iter().filter(|(_, value)| *value != 0);
    let rows = happened.map(|(event, value)| {
        vec![
            TableCell::Text(event.name().to_owned()),
            rate(done.counters.events.value(event)),
            TableCell::Count(value),
        ]
    });
    TopTable::new("events", 1, "event per_s in_all", rows)
}

#[cfg(test)]
mod tests {
    use curt_observe::{ServerCounter, ServerCounters};
    use curt_proto::nfs3::NfsProcedure;

    use super::*;

    #[test]
    fn a_server_is_shown_by_what_it_did_between() {
        let counters = ServerCounters::default();
        let report = |age_seconds| ServerReport {
            pid: 1,
            age_seconds,
            counters: counters.snapshot(),
            ..ServerReport::default()
        };
        let read = Operation::Nfs3(NfsProcedure::Read);
        (0..10).for_each(|_| counters.calls.count(read));
        let before = report(10.0);
        (0..6).for_each(|_| counters.calls.count(read));
        counters.add(ServerCounter::TokenHit, 3);
        counters.add(ServerCounter::TokenMiss, 1);
        let tables = tables(&before, &report(12.0));
        assert_eq!(tables[0].rows[0][1], TableCell::Rate(3.0));
        assert_eq!(tables[0].rows[0][4], TableCell::Count(16));
        assert_eq!(tables[1].rows[0][3], TableCell::Rate(75.0));
        assert_eq!(tables[3].rows.len(), 2);
    }
}
