//! A mount's metrics as Prometheus metric families.

use crate::operations::ROUND_TRIP_BOUNDS;
use crate::prometheus::{Exposition, MetricType};
use crate::{OperationFigure, OperationStatistics, metrics};

use super::super::messages::MountReport;

/// The text format for a mount.
#[must_use]
pub fn text(report: &MountReport) -> String {
    let mut out = Exposition::default();
    let mount_point = report.mount_point.display().to_string();
    let mount = ("mount_point", mount_point.as_str());
    let about = [
        mount,
        ("source", report.source.as_str()),
        ("nfs_version", report.vers.as_str()),
        ("version", report.curt.as_str()),
    ];
    metrics!(out, &about; "curt_mount_info" "Source, mount point and version of Curt." 1;);
    metrics! { out, &[mount];
        "curt_mount_age_seconds" "Time since the mount." report.age_seconds;
        "curt_mount_transport_connections" "Connections to the server." report.transport.connections;
        "curt_mount_transport_idle_seconds" "Time since the last request or reply." report.transport.idle_seconds;
        "curt_mount_transport_most_requests_at_once"
            "The most requests that were under way at once on one connection." report.transport.most_at_once;
        "curt_mount_held_objects" "Files, directories and other objects that are known." report.held.objects;
        "curt_mount_held_names" "Names that are known to be there." report.held.names;
        "curt_mount_held_missing_names" "Names that are known to be missing." report.held.missing_names;
        "curt_mount_held_listing_bytes" "Memory that listings take." report.held.listing_bytes;
        "curt_mount_held_dirty_bytes"
            "Bytes that are written and not on the server's disk yet." report.held.dirty_bytes;
        "curt_mount_held_delegations"
            "Files that the server has delegated to the mount." report.held.delegations;
    }
    operations(&mut out, mount.1, report);
    out.table("curt_mount_transport", &[([mount], &report.transport.figures)]);
    out.table("curt_mount", &[([mount], &report.counters.events)]);
    let mut family = out.family(
        "curt_mount_kernel_requests_total",
        MetricType::Counter,
        "Requests that the kernel sent to the daemon.",
    );
    for (operation, count) in &report.fuse {
        family.sample(&[mount, ("operation", operation)], count);
    }
    out.text()
}

fn operations(out: &mut Exposition, mount_point: &str, report: &MountReport) {
    let all: Vec<(String, OperationStatistics)> =
        report.operations.iter().map(|(operation, statistics)| (operation.to_string(), statistics)).collect();
    let rows: Vec<_> = all
        .iter()
        .map(|(procedure, figures)| {
            let labels = vec![("mount_point", mount_point), ("procedure", procedure.as_str())];
            (labels, &figures.figures)
        })
        .collect();
    out.table("curt_mount_rpc", &rows);
    let mut family = out.family(
        "curt_mount_round_trip_seconds",
        MetricType::Histogram,
        "Time from the last transmission of a request to its end, by procedure.",
    );
    for (procedure, figures) in &all {
        if figures.value(OperationFigure::Operations) == 0 {
            continue;
        }
        let sum = figures.value(OperationFigure::RoundTrip);
        let labels = [("mount_point", mount_point), ("procedure", procedure.as_str())];
        family.histogram(&labels, &ROUND_TRIP_BOUNDS, &figures.round_trips, sum);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use curt_proto::nfs3::NfsProcedure;

    use crate::{CompletedRequest, Operation, OperationCounters};

    use super::*;

    #[test]
    fn a_mount_reports_requests_times_decisions_and_what_it_holds() {
        let operations = OperationCounters::default();
        operations.ended(
            Operation::Nfs3(NfsProcedure::Read),
            &CompletedRequest {
                transmissions: 2,
                execution: Duration::from_millis(2),
                ..CompletedRequest::default()
            },
        );
        let report = MountReport {
            source: "nas:/a\"b".to_owned(),
            mount_point: "/mnt".into(),
            vers: "3".to_owned(),
            operations: operations.snapshot(),
            fuse: BTreeMap::from([("READ".to_owned(), 9)]),
            ..MountReport::default()
        };
        let text = text(&report);
        for line in [
            "curt_mount_info{mount_point=\"/mnt\",source=\"nas:/a\\\"b\",nfs_version=\"3\",version=\"\"} 1",
            "curt_mount_rpc_transmissions_total{mount_point=\"/mnt\",procedure=\"READ\"} 2",
            "curt_mount_round_trip_seconds_bucket{mount_point=\"/mnt\",procedure=\"READ\",le=\"0.0025\"} 1",
            "curt_mount_round_trip_seconds_sum{mount_point=\"/mnt\",procedure=\"READ\"} 0.002",
            "curt_mount_kernel_requests_total{mount_point=\"/mnt\",operation=\"READ\"} 9",
            "curt_mount_neg_hit_total{mount_point=\"/mnt\"} 0",
            "curt_mount_held_names{mount_point=\"/mnt\"} 0",
        ] {
            assert!(text.lines().any(|text_line| text_line == line), "{line} is not in\n{text}");
        }
    }
}
