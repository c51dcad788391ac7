//! nfsstat(8)'s layout: calls of each operation, and the client's decisions.

use std::fmt::Write as _;

use curt_observe::control::MountReport;
use curt_observe::{CallCounts, ClientSnapshot, Counter as _, Operation};

/// A mount's statistics as text.
pub(super) fn mount(report: &MountReport, all: bool) -> String {
    let uring = match report.fuse_uring {
        Some(true) => "enabled on this machine, not used",
        Some(false) => "not enabled on this machine",
        None => "not in this kernel",
    };
    let delegations = match report.held.delegations {
        0 => String::new(),
        held => format!("  delegations held: {held}\n"),
    };
    let server = match report.server.implementation.as_str() {
        "" => String::new(),
        name if report.server.refused.is_empty() => format!("  server: {name}\n"),
        name => format!("  server: {name}, without {}\n", report.server.refused.join(", ")),
    };
    let mut text = format!(
        "{} mounted on {} (NFSv{}, {:.0} s)\n  {}\n  FUSE over io_uring: {uring}\n{server}{delegations}\n",
        report.source,
        report.mount_point.display(),
        report.vers,
        report.age_seconds,
        report.options
    );
    text += &requests(&report.counters, &report.vers);
    text += "\nDecisions:\n";
    for (name, value) in report.counters.events.iter().filter(|(_, value)| all || *value != 0) {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{value:>12} {:<24} {}", name.name(), name.meaning());
    }
    text
}

/// nfsstat's blocks of a client.
pub(crate) fn requests(counters: &ClientSnapshot, version: &str) -> String {
    let total = counters.requests.total();
    let retransmissions = counters.events.value(curt_observe::ClientCounter::RpcRetransmit);
    let head = row(&["calls", "retrans", "authrefrsh"]);
    let numbers = row(&[total, retransmissions, total]);
    let is_of_4 = version.starts_with('4');
    let of_version = |operation: &Operation| matches!(operation, Operation::Nfs4(_)) == is_of_4;
    let requests: Vec<_> = counters.requests.iter().filter(|(operation, _)| of_version(operation)).collect();
    format!("Client rpc stats:\n{head}{numbers}\nClient nfs v{version}:\n") + &operations_of(&requests)
}

/// Words or numbers in nfsstat's columns of eleven characters; longer ones widen their column, so
/// that none run together.
pub(super) fn row(cells: &[impl std::fmt::Display]) -> String {
    let mut text: String = cells.iter().map(|cell| format!("{cell:<10} ")).collect();
    text.push('\n');
    text
}

/// nfsstat's table: a line of names, a line of counts with their percentage.
pub(super) fn operations(calls: &CallCounts) -> String {
    operations_of(&calls.iter().collect::<Vec<_>>())
}

/// The counts of some operations: percentages are of these.
pub(super) fn operations_of(calls: &[(Operation, u64)]) -> String {
    const COLUMNS: usize = 6;
    let total: u64 = calls.iter().map(|(_, calls)| calls).sum();
    let mut text = String::new();
    for row in calls.chunks(COLUMNS) {
        for (operation, _) in row {
            let _ = write!(text, "{:<17}", operation.name().to_ascii_lowercase());
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
        for (_, calls) in row {
            let percentage = calls.checked_mul(100).and_then(|calls| calls.checked_div(total)).unwrap_or(0);
            let _ = write!(text, "{calls:<9} {:<7}", format!("{percentage}%"));
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{mount, requests};
    use curt_observe::control::MountReport;
    use curt_observe::{ClientCounter, ClientCounters, Operation};
    use curt_proto::nfs3::NfsProcedure;

    fn counters() -> ClientCounters {
        let counters = ClientCounters::default();
        (0..3).for_each(|_| counters.calls.count(Operation::Nfs3(NfsProcedure::Getattr)));
        counters.calls.count(Operation::Nfs3(NfsProcedure::Lookup));
        counters.count(ClientCounter::NegHit);
        counters
    }

    #[test]
    fn requests_stand_in_the_layout_of_nfsstat() {
        let text = requests(&counters().snapshot(), "3");
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[1], "calls      retrans    authrefrsh ");
        assert_eq!(lines[2], "4          0          4          ");
        assert_eq!(
            lines[5],
            "null             getattr          setattr          lookup           access           readlink"
        );
        assert_eq!(
            lines[6],
            "0         0%     3         75%    0         0%     1         25%    0         0%     0         0%"
        );
    }

    #[test]
    fn large_numbers_do_not_run_together() {
        assert_eq!(super::row(&[53_687_091_200_u64, 34_748_074]), "53687091200 34748074   \n");
        let counters = ClientCounters::default();
        counters.calls.count(Operation::Nfs3(NfsProcedure::Getattr));
        let text = super::operations(&counters.snapshot().requests);
        assert!(text.contains("1         100%"), "{text}");
    }

    #[test]
    fn a_mount_shows_its_options_and_what_was_saved() {
        let report = MountReport {
            source: "nas:/export".to_owned(),
            options: "rw,noaccesscheck".to_owned(),
            vers: "3".to_owned(),
            counters: counters().snapshot(),
            ..MountReport::default()
        };
        let text = mount(&report, false);
        assert!(
            text.contains("rw,noaccesscheck") && text.contains("neg_hit") && !text.contains("pos_hit"),
            "{text}"
        );
        assert!(mount(&report, true).contains("pos_hit"));
        assert!(text.contains("FUSE over io_uring: not in this kernel"), "{text}");
        let mut report = MountReport { fuse_uring: Some(true), ..report };
        report.server.implementation = "Linux 6.12".into();
        report.server.refused = vec!["CLAIM_FH".into(), "NVERIFY".into()];
        let text = mount(&report, false);
        assert!(text.contains("FUSE over io_uring: enabled"));
        assert!(text.contains("  server: Linux 6.12, without CLAIM_FH, NVERIFY\n"), "{text}");
    }
}
