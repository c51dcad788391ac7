//! `curt stat --server`: a server's requests, caches and times of stages.

use std::fmt::Write as _;

use anyhow::Result;
use curt_bench::report::lay_out;
use curt_observe::control::{self, ExpireClient, ReportClients, SetStages};
use curt_observe::stages::{OperationTimes, Percentiles, RequestStage, StageReport};
use curt_observe::{CallCounts, Counter as _, Operation, ServerCounter, ServerSnapshot};

use super::nfsstat::{operations, operations_of, row as row_of};
use super::{StatArguments, StatReport, StatSource};
use crate::serve::control::{ServerReport, ServerSelector, find};

/// The caches, with their counters of hits and misses.
const LAYERS: [(&str, &str, &str); 3] = [
    ("token of the connection", "token_hits", "token_misses"),
    ("export decision", "export_hits", "export_misses"),
    ("identity", "identity_hits", "identity_misses"),
];

/// Has a server measure one request of `every`; 0: none. Returns a message.
pub(super) fn measure(which: &ServerSelector, every: u32) -> Result<String> {
    let (socket, report) = find(which)?;
    control::call(&socket, &SetStages { every })?;
    let measured = match every {
        0 => "no request".to_owned(),
        every => format!("one request of {every}"),
    };
    Ok(format!("server {} measures {measured}\n", report.pid))
}

/// Successive reports on a server.
pub(super) struct ServerStatistics {
    which: ServerSelector,
    json: bool,
    all: bool,
    again: bool,
    before: Option<ServerReport>,
}

impl ServerStatistics {
    pub(super) fn new(arguments: &StatArguments, which: ServerSelector) -> Self {
        Self {
            which,
            json: arguments.json,
            all: arguments.all,
            again: arguments.interval.is_some(),
            before: None,
        }
    }
}

impl StatSource for ServerStatistics {
    fn report(&mut self) -> Result<StatReport> {
        let (_, now) = find(&self.which)?;
        // From now on this server, not one that replaces it.
        self.which = ServerSelector::Process(now.pid);
        let shown = match &self.before {
            Some(before) => now.since(before),
            None => (*now).clone(),
        };
        let text = match (self.json, self.again) {
            (true, true) => serde_json::to_string(&shown)? + "\n",
            (true, false) => serde_json::to_string_pretty(&shown)? + "\n",
            (false, _) => text(&shown, self.all),
        };
        self.before = Some(*now);
        Ok(StatReport { text, is_last: false })
    }
}

fn text(report: &ServerReport, all: bool) -> String {
    let mut text = format!(
        "Server {} (Curt {}, {:.0} s) exports {}\n\n",
        report.pid,
        report.curt,
        report.age_seconds,
        report.exports.join(", ")
    );
    text += &nfsstat(&report.counters);
    text += "\nLayers:\n";
    text += &lay_out(&layers(report));
    text += "\nFile cache:\n";
    for name in FILE_CACHE_LINES {
        let value = report.file_cache.get(name).copied().unwrap_or(0);
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name}: {value}");
    }
    text += "\nEvents:\n";
    let events = report.counters.events.iter();
    for (name, value) in events.filter(|(_, value)| all || *value != 0) {
        let _ = writeln!(text, "{value:>12} {:<28} {}", name.name(), name.meaning());
    }
    if all || !report.lock_calls.is_empty() {
        text += "\nLocks (NLM, NSM):\n";
    }
    for (name, calls) in &report.lock_calls {
        let _ = writeln!(text, "{calls:>12} {name}");
    }
    text += "\nLimits met:\n";
    for (name, times) in report.limits.iter().filter(|(_, times)| all || **times != 0) {
        let _ = writeln!(text, "{times:>12} {name}");
    }
    text.push('\n');
    text += &stages(&report.stages);
    text
}

/// The line with the number of hits of the file cache.
const CACHE_HITS: &str = "cache hits";
/// Linux's lines (/proc/fs/nfsd/filecache), in its order.
const FILE_CACHE_LINES: [&str; 9] = [
    "total inodes",
    "hash buckets",
    "lru entries",
    CACHE_HITS,
    "acquisitions",
    "allocations",
    "releases",
    "evictions",
    "mean age (ms)",
];

/// nfsstat's blocks of a server.
fn nfsstat(counters: &ServerSnapshot) -> String {
    let value = |counter| counters.events.value(counter);
    let rpc = [value(ServerCounter::Requests), value(ServerCounter::RequestsRejected)];
    let replies = [
        value(ServerCounter::ReplyCacheHit),
        value(ServerCounter::ReplyCacheMiss),
        value(ServerCounter::ReplyCacheNotCached),
    ];
    let io = [value(ServerCounter::ReadBytes), value(ServerCounter::WriteBytes)];
    let block = |title: &str, names: &[&str], numbers: &[u64]| {
        format!("{title}:\n{}{}\n", row_of(names), row_of(numbers))
    };
    block("Server rpc stats", &["calls", "badcalls"], &rpc)
        + &block("Server reply cache", &["hits", "misses", "nocache"], &replies)
        + &block("Server io stats", &["read", "write"], &io)
        + "Server nfs v3:\n"
        + &operations(&counters.requests)
        + &nfsstat_of_4(&counters.requests)
}

/// nfsstat's blocks of NFSv4: nothing if no client has used it.
fn nfsstat_of_4(calls: &CallCounts) -> String {
    let counted = |operation: Operation| (operation, calls.value(operation));
    let (procedures, operations): (Vec<_>, Vec<_>) = Operation::nfs4()
        .map(counted)
        .partition(|(operation, _)| matches!(operation, Operation::Nfs4Procedure(_)));
    if procedures.iter().all(|(_, calls)| *calls == 0) {
        return String::new();
    }
    format!(
        "\nServer nfs v4:\n{}\nServer nfs v4 operations:\n{}",
        operations_of(&procedures),
        operations_of(&operations)
    )
}

/// The NFSv4 clients of a server.
pub(super) fn clients(which: &ServerSelector, json: bool) -> Result<String> {
    let (socket, _) = find(which)?;
    let clients = control::call(&socket, &ReportClients {})?;
    if json {
        return Ok(serde_json::to_string_pretty(&clients)? + "\n");
    }
    let head =
        ["id", "address", "idle (s)", "sessions", "opens", "locks", "delegations", "name", "implementation"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(clients.into_iter().map(|client| {
        vec![
            format!("{:#x}", client.id),
            client.address,
            format!("{:.0}", client.idle_seconds),
            if client.confirmed { client.sessions.to_string() } else { "unconfirmed".to_owned() },
            client.opens.to_string(),
            client.locks.to_string(),
            client.delegations.to_string(),
            client.name,
            client.implementation,
        ]
    }));
    Ok(lay_out(&rows))
}

/// Has a server remove a client. Returns a message.
pub(super) fn expire(which: &ServerSelector, id: u64) -> Result<String> {
    let (socket, report) = find(which)?;
    control::call(&socket, &ExpireClient { id })?;
    Ok(format!("server {} has removed the client {id:#x} and its opens\n", report.pid))
}

/// Hits and misses of a cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheLayer {
    pub(crate) layer: &'static str,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
}

/// All caches of a server.
pub(crate) fn server_layers(report: &ServerReport) -> Vec<CacheLayer> {
    let value = |name: &str| {
        let mut events = report.counters.events.iter();
        events.find(|(event, _)| event.name() == name).map_or(0, |(_, value)| value)
    };
    let counted =
        LAYERS.map(|(layer, hits, misses)| CacheLayer { layer, hits: value(hits), misses: value(misses) });
    let file_cache = CacheLayer {
        layer: "file cache",
        hits: report.file_cache.get(CACHE_HITS).copied().unwrap_or(0),
        misses: report.file_cache_misses,
    };
    counted.into_iter().chain([file_cache]).collect()
}

fn layers(report: &ServerReport) -> Vec<Vec<String>> {
    let mut rows = vec![["layer", "hits", "misses", "hit"].map(str::to_owned).to_vec()];
    for CacheLayer { layer, hits, misses } in server_layers(report) {
        let share = (hits * 100).checked_div(hits + misses);
        rows.push(vec![
            layer.to_owned(),
            hits.to_string(),
            misses.to_string(),
            share.map_or_else(|| "-".to_owned(), |share| format!("{share}%")),
        ]);
    }
    rows
}

fn stages(report: &StageReport) -> String {
    if report.operations.is_empty() {
        return match report.every {
            0 => "Time per stage is not measured. Switch it on with: curt stat --server PID --stages 16\n"
                .to_owned(),
            every => format!("Time per stage: one request of {every} is measured, and none was yet.\n"),
        };
    }
    let sampled = match report.every {
        0 => "switched off now".to_owned(),
        every => format!("one request of {every} measured"),
    };
    let mut text = format!("Time per stage (µs, p50 / p99; {sampled}):\n");
    let mut head = vec!["procedure".to_owned(), "measured".to_owned(), "all".to_owned()];
    head.extend(RequestStage::ALL.map(|stage| stage.name().to_owned()));
    let mut rows = vec![head];
    rows.extend(report.operations.iter().map(|(operation, times)| row(*operation, times)));
    text += &lay_out(&rows);
    text
}

fn row(operation: Operation, times: &OperationTimes) -> Vec<String> {
    let shown = |times: &Percentiles| format!("{:.2} / {:.2}", times.p50_us, times.p99_us);
    let mut row = vec![operation.to_string(), times.count.to_string(), shown(&times.total)];
    row.extend(RequestStage::ALL.map(|stage| {
        let times = times.stages.get(stage.name());
        times.map_or_else(|| "-".to_owned(), shown)
    }));
    row
}

#[cfg(test)]
mod tests {
    use curt_observe::stages::{StageTimes, begin, finish, proceed, set_operation};
    use curt_observe::{Operation, ServerCounters};
    use curt_proto::nfs3::NfsProcedure;

    use super::*;

    #[test]
    fn every_layer_has_counters_of_these_names() {
        for (_, hits, misses) in LAYERS {
            for name in [hits, misses] {
                assert!(ServerCounter::ALL.iter().any(|counter| counter.name() == name), "{name}");
            }
        }
    }

    #[test]
    fn what_was_measured_is_shown_with_the_sampling() {
        let counters = ServerCounters::default();
        counters.count(ServerCounter::TokenHit);
        let times = StageTimes::default();
        times.set_every(16);
        begin(&times);
        set_operation(Operation::Nfs3(NfsProcedure::Write));
        proceed(RequestStage::FileSystem);
        finish(&times, || ());
        let mut report = ServerReport {
            counters: counters.snapshot(),
            stages: times.report(),
            limits: [("threads".to_owned(), 3), ("idle-timeout".to_owned(), 0)].into(),
            ..ServerReport::default()
        };
        let shown = text(&report, false);
        for part in [
            "one request of 16",
            "WRITE",
            "file_system",
            "mean age (ms): 0",
            "100%",
            "token_hits",
            "3 threads",
        ] {
            assert!(shown.contains(part), "{part} is not in\n{shown}");
        }
        assert!(!shown.contains("idle-timeout") && text(&report, true).contains("0 idle-timeout"));
        report.stages = StageReport::default();
        assert!(text(&report, false).contains("--stages 16"));
    }
}
