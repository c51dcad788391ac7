//! mountstats(8)'s layout: a mount's options, bytes and the statistics of each operation.

use std::fmt::Write as _;

use curt_observe::control::MountReport;
use curt_observe::{Operation, OperationFigure, OperationStatistics, TransportFigure, mountstats};

/// Nanoseconds of a millisecond.
const MILLISECOND: f64 = 1e6;

/// The text of the lines about bytes, in the order of the values.
const BYTES: [(&str, &str); 6] = [
    ("applications read", "via read(2)"),
    ("applications wrote", "via write(2)"),
    ("applications read", "via O_DIRECT read(2)"),
    ("applications wrote", "via O_DIRECT write(2)"),
    ("client read", "via NFS READ"),
    ("client wrote", "via NFS WRITE"),
];

/// A mount's statistics; `all`: with the client's counters.
pub(super) fn text(report: &MountReport, all: bool) -> String {
    let flavour = report.server.flavour;
    let mut text = format!(
        "Stats for {} mounted on {}:\n\n  NFS mount options: {}\n  NFS mount age: {}\n  NFS security flavor: {flavour}  pseudoflavor: {flavour}\n",
        report.source,
        report.mount_point.display(),
        report.options,
        age(report.age_seconds),
    );
    // Writing to a String cannot fail.
    if all {
        text.push_str("\nNFS events:\n");
        for (name, count) in mountstats::events(report) {
            let _ = writeln!(text, "  {name}: {count}");
        }
    }
    text.push_str("\nNFS byte counts:\n");
    for ((user, how), (_, bytes)) in BYTES.iter().zip(mountstats::bytes(report)) {
        let _ = writeln!(text, "  {user} {bytes} bytes {how}");
    }
    let value = |figure| report.transport.value(figure);
    let sends = value(TransportFigure::Sends);
    let _ = writeln!(
        text,
        "RPC statistics:\n  {sends} RPC requests sent, {} RPC replies received ({} XIDs not found)\n  average backlog queue length: {}\n",
        value(TransportFigure::Receives),
        value(TransportFigure::UnknownXids),
        value(TransportFigure::Backlog).checked_div(sends).unwrap_or(0),
    );
    let mut operations: Vec<(Operation, OperationStatistics)> = report.operations.iter().collect();
    operations.retain(|(_, figures)| figures.value(OperationFigure::Operations) > 0);
    // In the order of the operations if they are equal.
    operations.sort_by_key(|(_, figures)| std::cmp::Reverse(figures.value(OperationFigure::Operations)));
    let total = report.operations.total(OperationFigure::Operations);
    for (operation, figures) in &operations {
        lines(*operation, figures, total, &mut text);
    }
    text
}

fn lines(operation: Operation, figures: &OperationStatistics, total: u64, text: &mut String) {
    let value = |figure| figures.value(figure);
    let operations = value(OperationFigure::Operations);
    let percent = |part: u64, whole: u64| (part * 100).checked_div(whole).unwrap_or(0);
    let _ = write!(text, "{operation}:\n\t{operations} ops ({}%)", percent(operations, total));
    let retransmissions = figures.retransmissions();
    let timeouts = value(OperationFigure::Timeouts);
    if retransmissions != 0 || timeouts != 0 {
        let share = percent(retransmissions, operations);
        let _ = write!(text, "\t{retransmissions} retrans ({share}%)\t{timeouts} major timeouts");
    }
    let errors = value(OperationFigure::Errors);
    if errors != 0 {
        let _ = write!(text, "\t{errors} errors ({}%)", percent(errors, operations));
    }
    let milliseconds = |figure| value(figure) as f64 / MILLISECOND / operations as f64;
    let _ = writeln!(
        text,
        "\n\tavg bytes sent per op: {}\tavg bytes received per op: {}\n\tbacklog wait: {:.6}\tRTT: {:.6}\ttotal execute time: {:.6} (milliseconds)",
        value(OperationFigure::BytesSent) / operations,
        value(OperationFigure::BytesReceived) / operations,
        milliseconds(OperationFigure::QueueTime),
        milliseconds(OperationFigure::RoundTrip),
        milliseconds(OperationFigure::Execution),
    );
}

/// An age in mountstats(8)'s format: `1 day, 2:03:04`.
fn age(seconds: f64) -> String {
    let seconds = std::time::Duration::try_from_secs_f64(seconds).map_or(0, |age| age.as_secs());
    let clock = format!("{}:{:02}:{:02}", seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    match seconds / 86_400 {
        0 => clock,
        1 => format!("1 day, {clock}"),
        days => format!("{days} days, {clock}"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use curt_observe::{CompletedRequest, Operation, OperationCounters};
    use curt_proto::nfs3::NfsProcedure;

    use super::*;

    #[test]
    fn operations_are_sorted_by_number_of_calls() {
        let operations = OperationCounters::default();
        let request = |failed| CompletedRequest {
            transmissions: 1,
            bytes_sent: 100,
            bytes_received: 300,
            queue: Duration::from_micros(250),
            execution: Duration::from_millis(1),
            failed,
            ..CompletedRequest::default()
        };
        operations.ended(Operation::Nfs3(NfsProcedure::Getattr), &request(false));
        (0..3).for_each(|_| operations.ended(Operation::Nfs3(NfsProcedure::Lookup), &request(true)));
        let report = MountReport {
            age_seconds: 90_061.9,
            operations: operations.snapshot(),
            ..MountReport::default()
        };
        let shown = text(&report, false);
        assert!(
            shown.ends_with(
                "LOOKUP:\n\t3 ops (75%)\t3 errors (100%)\n\tavg bytes sent per op: 100\tavg bytes received per op: 300\n\
                 \tbacklog wait: 0.250000\tRTT: 0.750000\ttotal execute time: 1.000000 (milliseconds)\n\
                 GETATTR:\n\t1 ops (25%)\n\tavg bytes sent per op: 100\tavg bytes received per op: 300\n\
                 \tbacklog wait: 0.250000\tRTT: 0.750000\ttotal execute time: 1.000000 (milliseconds)\n"
            ),
            "{shown}"
        );
        assert!(shown.contains("NFS mount age: 1 day, 1:01:01\n") && !shown.contains("vfsopen"), "{shown}");
        assert!(text(&report, true).contains("  vfsopen: 0\n"));
    }
}
