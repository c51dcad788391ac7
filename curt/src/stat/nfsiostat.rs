//! nfsiostat(8)'s layout: rates per second, and times of READ and WRITE.

use std::fmt::Write as _;

use curt_observe::control::MountReport;
use curt_observe::{Operation, OperationFigure, OperationStatistics, TransportFigure};
use serde::Serialize;

/// Nanoseconds of a millisecond.
const MILLISECOND: f64 = 1e6;

/// Bytes per nfsiostat's kB.
const KILOBYTE: f64 = 1024.0;

/// The rates of a mount in a period.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct MountRates {
    ops_per_second: f64,
    rpc_backlog: f64,
    read: OperationRates,
    write: OperationRates,
}

/// The rates of an operation.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
struct OperationRates {
    ops_per_second: f64,
    kb_per_second: f64,
    kb_per_op: f64,
    retransmissions: u64,
    retransmissions_percent: f64,
    rtt_ms: f64,
    execute_ms: f64,
    queue_ms: f64,
    errors: u64,
    errors_percent: f64,
}

impl MountRates {
    /// The rates of a mount in `report.age_seconds`.
    pub(super) fn of(report: &MountReport) -> Self {
        // A mount may be younger than the clock's resolution.
        let seconds = if report.age_seconds > 0.0 { report.age_seconds } else { 1.0 };
        let sends = report.transport.value(TransportFigure::Sends);
        let backlog = report.transport.value(TransportFigure::Backlog);
        Self {
            ops_per_second: sends as f64 / seconds,
            rpc_backlog: ratio(backlog as f64, sends as f64) / seconds,
            read: OperationRates::of(&report.operations.of_all(Operation::is_read), seconds),
            write: OperationRates::of(&report.operations.of_all(Operation::is_write), seconds),
        }
    }

    /// As nfsiostat(8) prints them.
    pub(super) fn text(&self, report: &MountReport) -> String {
        let mut text = format!(
            "\n{} mounted on {}:\n\n{:>16}{:>16}\n{:>16.3}{:>16.3}\n\n",
            report.source,
            report.mount_point.display(),
            "ops/s",
            "rpc bklog",
            self.ops_per_second,
            self.rpc_backlog
        );
        for (name, rates) in [("read:", &self.read), ("write:", &self.write)] {
            rates.print(name, &mut text);
        }
        text
    }
}

impl OperationRates {
    fn of(figures: &OperationStatistics, seconds: f64) -> Self {
        let value = |figure| figures.value(figure) as f64;
        let operations = value(OperationFigure::Operations);
        let kilobytes =
            (value(OperationFigure::BytesSent) + value(OperationFigure::BytesReceived)) / KILOBYTE;
        let milliseconds = |figure| ratio(value(figure) / MILLISECOND, operations);
        let retransmissions = figures.retransmissions();
        let errors = figures.value(OperationFigure::Errors);
        Self {
            ops_per_second: operations / seconds,
            kb_per_second: kilobytes / seconds,
            kb_per_op: ratio(kilobytes, operations),
            retransmissions,
            retransmissions_percent: ratio(retransmissions as f64 * 100.0, operations),
            rtt_ms: milliseconds(OperationFigure::RoundTrip),
            execute_ms: milliseconds(OperationFigure::Execution),
            queue_ms: milliseconds(OperationFigure::QueueTime),
            errors,
            errors_percent: ratio(errors as f64 * 100.0, operations),
        }
    }

    fn print(&self, name: &str, text: &mut String) {
        // Writing to a String cannot fail.
        let _ = write!(text, "{name:<16}{:>8}", "ops/s");
        for head in ["kB/s", "kB/op", "retrans", "avg RTT (ms)", "avg exe (ms)", "avg queue (ms)", "errors"] {
            let _ = write!(text, "{head:>16}");
        }
        let share = |count: u64, percent: f64| format!("{count} ({percent:>3.1}%)");
        let _ = writeln!(
            text,
            "\n{:>24.3}{:>16.3}{:>16.3}{:>16}{:>16.3}{:>16.3}{:>16.3}{:>16}",
            self.ops_per_second,
            self.kb_per_second,
            self.kb_per_op,
            share(self.retransmissions, self.retransmissions_percent),
            self.rtt_ms,
            self.execute_ms,
            self.queue_ms,
            share(self.errors, self.errors_percent),
        );
    }
}

/// A quotient, or 0 if the divisor is 0.
fn ratio(part: f64, whole: f64) -> f64 {
    if whole == 0.0 { 0.0 } else { part / whole }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use curt_observe::{CompletedRequest, OperationCounters};
    use curt_proto::{nfs3::NfsProcedure, nfs4::Nfs4Operation};

    use super::*;

    #[test]
    fn rates_are_over_the_time_and_times_are_of_one_request() {
        let operations = OperationCounters::default();
        for failed in [false, true] {
            operations.ended(
                Operation::Nfs3(NfsProcedure::Read),
                &CompletedRequest {
                    transmissions: 2,
                    bytes_sent: 24,
                    bytes_received: 1000,
                    queue: Duration::from_millis(1),
                    execution: Duration::from_millis(4),
                    failed,
                    ..CompletedRequest::default()
                },
            );
        }
        let report = MountReport {
            source: "nas:/x".to_owned(),
            mount_point: "/mnt".into(),
            age_seconds: 4.0,
            operations: operations.snapshot(),
            ..MountReport::default()
        };
        let rates = MountRates::of(&report);
        assert_eq!(
            rates.read,
            OperationRates {
                ops_per_second: 0.5,
                kb_per_second: 0.5,
                kb_per_op: 1.0,
                retransmissions: 2,
                retransmissions_percent: 100.0,
                rtt_ms: 3.0,
                execute_ms: 4.0,
                queue_ms: 1.0,
                errors: 1,
                errors_percent: 50.0,
            }
        );
        assert_eq!(rates.write, OperationRates::default());
        let text = rates.text(&report);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], "nas:/x mounted on /mnt:");
        assert_eq!(lines[3], "           ops/s       rpc bklog");
        assert_eq!(
            lines[6],
            "read:              ops/s            kB/s           kB/op         retrans    avg RTT (ms)    avg exe (ms)  avg queue (ms)          errors"
        );
        assert_eq!(
            lines[7],
            "                   0.500           0.500           1.000      2 (100.0%)           3.000           4.000           1.000       1 (50.0%)"
        );
    }
    #[test]
    fn reads_and_writes_of_every_version_are_counted() {
        let operations = OperationCounters::default();
        let sent =
            [Nfs4Operation::Read, Nfs4Operation::ReadPlus, Nfs4Operation::Write, Nfs4Operation::Getattr];
        for operation in sent {
            operations.ended(operation.into(), &CompletedRequest::default());
        }
        let report = MountReport { operations: operations.snapshot(), ..MountReport::default() };
        let rates = MountRates::of(&report);
        assert_eq!((rates.read.ops_per_second, rates.write.ops_per_second), (2.0, 1.0));
    }
}
