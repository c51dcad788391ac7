//! A server's Prometheus metrics, on a thread with the restrictions of serving threads.

use std::io;

use anyhow::{Context, Result};
use curt_observe::Operation;
use curt_observe::control::metrics::{MetricsListener, MetricsServer};
use curt_observe::metrics;
use curt_observe::operations::ROUND_TRIP_BOUNDS;
use curt_observe::prometheus::{Exposition, MetricType};
use curt_observe::stages::BucketCounts;

use super::arguments::ServeArguments;
use super::control::{FILE_CACHE_MOMENTS, ServerControl, ServerReport};
use super::seccomp::SeccompFilters;
use super::{privileges, serving};

use crate::errors;

/// Bucket bounds of stages in nanoseconds, in addition to those of round trips.
const STAGE_BOUNDS: [u64; 8] = [250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000];

/// Serves metrics at the requested address, if any.
pub(super) fn serve(arguments: &ServeArguments, control: ServerControl) -> Result<Option<MetricsServer>> {
    let Some(metrics_address) = &arguments.metrics else {
        return Ok(None);
    };
    let metrics =
        MetricsListener::bind(metrics_address).with_context(|| format!("--metrics {metrics_address}"))?;
    tracing::info!("serving Prometheus metrics on {}", metrics.address());
    let filters = serving::violation_action(arguments.seccomp).map(SeccompFilters::new).transpose()?;
    let confine = move || {
        let confined = privileges::keep_to_serve();
        let confined = confined.and_then(|()| filters.map_or(Ok(()), |filters| filters.apply()));
        confined.map_err(|error| io::Error::other(errors::line(&error)))
    };
    let figures = move || {
        let bounds: Vec<u64> =
            STAGE_BOUNDS.into_iter().chain(ROUND_TRIP_BOUNDS.into_iter().skip(1)).collect();
        text(&control.report(), &control.stages().classes(&bounds), &bounds)
    };
    let serving = metrics.serve(confine, figures).context("--metrics")?;
    Ok(Some(serving))
}

/// The text for a server.
fn text(report: &ServerReport, classes: &[BucketCounts], bounds: &[u64]) -> String {
    let mut out = Exposition::default();
    let about = [("version", report.curt.as_str())];
    metrics!(out, &about; "curt_server_info" "The version of Curt." 1;);
    metrics! { out, &[];
        "curt_server_age_seconds" "Time since the server started." report.age_seconds;
        "curt_server_exports" "Number of exports." report.exports.len();
        "curt_server_file_cache_opened_total" "File cache: number of misses." report.file_cache_misses;
        "curt_server_stages_every" "One request in this many is measured in stages; 0: none." report.stages.every;
    }
    let mut calls = out.family(
        "curt_server_calls_total",
        MetricType::Counter,
        "Calls of NFS, per procedure, and operations of NFSv4.",
    );
    let requests = &report.counters.requests;
    let of_4 = Operation::nfs4().map(|operation| (operation, requests.value(operation)));
    for (operation, count) in requests.iter().chain(of_4.filter(|(_, count)| *count > 0)) {
        calls.sample(&[("procedure", &operation.key())], count);
    }
    let mut lock_calls = out.family(
        "curt_server_lock_calls_total",
        MetricType::Counter,
        "Calls of NLM and NSM that occurred, per procedure.",
    );
    for (procedure, count) in &report.lock_calls {
        lock_calls.sample(&[("procedure", procedure)], count);
    }
    out.table("curt_server", &[([], &report.counters.events)]);
    let mut limits = out.family(
        "curt_server_limits_met_total",
        MetricType::Counter,
        "Number of times that a client reached a limit, by the option that sets the limit.",
    );
    for (limit, count) in &report.limits {
        limits.sample(&[("limit", limit)], count);
    }
    file_cache(&mut out, report);
    let mut requests = out.family(
        "curt_server_request_seconds",
        MetricType::Histogram,
        "Time of a measured request, from its last byte received to the last byte of its reply.",
    );
    for one in classes.iter().filter(|one| one.stage.is_none()) {
        requests.histogram(&[("procedure", &one.operation.key())], bounds, &one.counts, one.sum);
    }
    let mut stages = out.family(
        "curt_server_stage_seconds",
        MetricType::Histogram,
        "Time that a measured request spent in a stage.",
    );
    for one in classes {
        let Some(stage) = one.stage else { continue };
        let key = one.operation.key();
        let labels = [("procedure", &*key), ("stage", stage.name())];
        stages.histogram(&labels, bounds, &one.counts, one.sum);
    }
    out.text()
}

/// Linux's lines of the file cache: gauges and counters.
fn file_cache(out: &mut Exposition, report: &ServerReport) {
    for (line, value) in &report.file_cache {
        let name = format!("curt_server_file_cache_{}", line.replace(' ', "_"));
        let meaning = format!("File cache: {line}, as /proc/fs/nfsd/filecache has it.");
        if let Some(name) = name.strip_suffix("_(ms)") {
            out.one(&format!("{name}_seconds"), &meaning, &[], *value as f64 / 1000.0);
        } else if FILE_CACHE_MOMENTS.contains(&line.as_str()) {
            out.one(&name, &meaning, &[], value);
        } else {
            out.one(&format!("{name}_total"), &meaning, &[], value);
        }
    }
}

#[cfg(test)]
mod tests {
    use curt_observe::stages::RequestStage;
    use curt_observe::{ServerCounter, ServerCounters};
    use curt_proto::nfs3::NfsProcedure;

    use super::*;

    #[test]
    fn a_server_reports_calls_events_caches_and_stages() {
        let counters = ServerCounters::default();
        counters.add(ServerCounter::ReadBytes, 4096);
        counters.calls.count(Operation::Nfs3(NfsProcedure::Read));
        let mut report = ServerReport {
            counters: counters.snapshot(),
            limits: [("threads".to_owned(), 3)].into(),
            ..ServerReport::default()
        };
        for line in ["total inodes", "cache hits", "mean age (ms)"] {
            report.file_cache.insert(line.to_owned(), 5);
        }
        let classes = [None, Some(RequestStage::FileSystem)].map(|stage| BucketCounts {
            operation: Operation::Nfs3(NfsProcedure::Read),
            stage,
            counts: vec![1, 2],
            sum: 7_000,
        });
        let text = text(&report, &classes, &[2_500]);
        for line in [
            "curt_server_calls_total{procedure=\"READ\"} 1",
            "curt_server_read_bytes_total 4096",
            "curt_server_limits_met_total{limit=\"threads\"} 3",
            "curt_server_file_cache_total_inodes 5",
            "curt_server_file_cache_cache_hits_total 5",
            "curt_server_file_cache_mean_age_seconds 0.005",
            "curt_server_request_seconds_bucket{procedure=\"READ\",le=\"0.0000025\"} 1",
            "curt_server_request_seconds_count{procedure=\"READ\"} 3",
            "curt_server_stage_seconds_sum{procedure=\"READ\",stage=\"file_system\"} 0.000007",
        ] {
            assert!(text.lines().any(|present| present == line), "{line} is not in\n{text}");
        }
    }
}
