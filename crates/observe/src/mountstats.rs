//! The text of the kernel's `/proc/self/mountstats` for one NFS mount: statvers 1.1, RPC iostats
//! 1.1.
//!
//! The lines, their order and the number of fields in each are those of Linux 6 (fs/nfs/super.c,
//! net/sunrpc/stats.c), as parsed by mountstats(8), nfsiostat(8) and Prometheus' node_exporter.
//! docs/figures.md describes each field.

use std::fmt::Write as _;
use std::time::Duration;

use curt_proto::Operation;

use crate::ClientCounter;
use crate::control::MountReport;
use crate::operations::OperationFigure;
use crate::transport::{TransportFigure, TransportReport};

/// Nanoseconds of a millisecond, the unit of the per-op times.
const MILLISECOND: u64 = 1_000_000;

/// Nanoseconds of a second, the unit of the connect time.
const SECOND: u64 = 1_000_000_000;

/// Page size of the counters of pages read and written.
const PAGE: u64 = 4096;

/// READDIRPLUS, hard links and symbolic links: the bits of `caps=` that apply to NFSv3
/// (linux/nfs_fs_sb.h).
const CAP_READDIRPLUS: u32 = 1;
const CAP_HARDLINKS: u32 = 1 << 1;
const CAP_SYMLINKS: u32 = 1 << 2;

/// The text for a mount, with the empty line that ends it.
#[must_use]
pub fn text(report: &MountReport) -> String {
    let is_of_nfs4 = report.operations.is_of_nfs4();
    let mut text = format!(
        "device {} mounted on {} with fstype nfs statvers=1.1\n\topts:\t{}\n\tage:\t{}\n\tcaps:\t{}\n\
         \tsec:\tflavor={flavour},pseudoflavor={flavour}\n\tevents:\t{}\n\tbytes:\t{}\n\
         \tRPC iostats version: 1.1  p/v: 100003/{version} (nfs)\n\txprt:\ttcp {}\n\tper-op statistics\n",
        escaped(&report.source),
        escaped(&report.mount_point.display().to_string()),
        escaped(&report.options),
        Duration::try_from_secs_f64(report.age_seconds).map_or(0, |age| age.as_secs()),
        capabilities(report),
        joined(&events(report).map(|(_, count)| count)),
        joined(&bytes(report).map(|(_, bytes)| bytes)),
        joined(&transport(&report.transport)),
        flavour = report.server.flavour,
        version = if is_of_nfs4 { 4 } else { 3 },
    );
    // All of them, as in the kernel: programs expect READ and WRITE.
    let operations: Vec<_> =
        if is_of_nfs4 { Operation::nfs4().collect() } else { Operation::nfs().collect() };
    for operation in operations {
        let figures = report.operations.of(operation);
        let milliseconds = |figure| figures.value(figure) / MILLISECOND;
        let numbers = [
            figures.value(OperationFigure::Operations),
            figures.value(OperationFigure::Transmissions),
            figures.value(OperationFigure::Timeouts),
            figures.value(OperationFigure::BytesSent),
            figures.value(OperationFigure::BytesReceived),
            milliseconds(OperationFigure::QueueTime),
            milliseconds(OperationFigure::RoundTrip),
            milliseconds(OperationFigure::Execution),
            figures.value(OperationFigure::Errors),
        ];
        // Writing to a String cannot fail.
        let _ = writeln!(text, "\t{:>12}: {}", operation.name(), joined(&numbers));
    }
    text.push('\n');
    text
}

/// The thirteen numbers of `xprt: tcp`: the traffic of all connections.
fn transport(report: &TransportReport) -> [u64; 13] {
    let value = |figure| report.value(figure);
    [
        report.port.into(),
        value(TransportFigure::Binds),
        value(TransportFigure::Connects),
        value(TransportFigure::ConnectTime) / SECOND,
        report.idle_seconds,
        value(TransportFigure::Sends),
        value(TransportFigure::Receives),
        value(TransportFigure::UnknownXids),
        value(TransportFigure::InFlight),
        value(TransportFigure::Backlog),
        report.most_at_once,
        value(TransportFigure::Sending),
        value(TransportFigure::Pending),
    ]
}

fn capabilities(report: &MountReport) -> String {
    let server = &report.server;
    let bits = [
        (server.readdirplus, CAP_READDIRPLUS),
        (server.links, CAP_HARDLINKS),
        (server.symlinks, CAP_SYMLINKS),
    ];
    let bits: u32 = bits.iter().filter(|(has, _)| *has).map(|(_, bit)| bit).sum();
    format!(
        "caps=0x{bits:x},wtmult={},dtsize={},bsize=0,namlen={}",
        server.write_multiple, server.listing_size, server.name_max
    )
}

/// The fields of the `events:` line in order, with their names in mountstats(8).
#[must_use]
pub fn events(report: &MountReport) -> [(&'static str, u64); 27] {
    let counted = |counter| report.counters.events.value(counter);
    let requests_of = |operation: &str| report.fuse.get(operation).copied().unwrap_or(0);
    let written_back = counted(ClientCounter::KernelWriteBack);
    [
        ("inoderevalidates", report.counters.requests.of_all(Operation::is_getattr)),
        (
            "dentryrevalidates",
            counted(ClientCounter::PosHit)
                + counted(ClientCounter::PosStale)
                + counted(ClientCounter::NegHit),
        ),
        ("datainvalidates", counted(ClientCounter::DataInvalidated)),
        ("attrinvalidates", counted(ClientCounter::AttrInvalidated)),
        ("vfsopen", requests_of("OPEN") + requests_of("CREATE") + requests_of("OPENDIR")),
        ("vfslookup", requests_of("LOOKUP")),
        ("vfspermission", requests_of("ACCESS")),
        ("vfsupdatepage", requests_of("WRITE").saturating_sub(written_back)),
        // Single pages are never requested.
        ("vfsreadpage", 0),
        ("vfsreadpages", requests_of("READ")),
        ("vfswritepage", 0),
        ("vfswritepages", written_back),
        ("vfsreaddir", requests_of("READDIR") + requests_of("READDIRPLUS")),
        ("vfssetattr", requests_of("SETATTR")),
        ("vfsflush", requests_of("FLUSH")),
        ("vfsfsync", requests_of("FSYNC")),
        ("vfslock", requests_of("SETLK") + requests_of("SETLKW") + requests_of("GETLK")),
        ("vfsrelease", requests_of("RELEASE")),
        ("congestionwait", counted(ClientCounter::WriteThrottled)),
        ("setattrtrunc", counted(ClientCounter::SetSize)),
        ("extendwrite", counted(ClientCounter::WriteExtended)),
        ("sillyrenames", counted(ClientCounter::SillyRename)),
        ("shortreads", counted(ClientCounter::ReadShort)),
        ("shortwrites", counted(ClientCounter::WriteShort)),
        ("delay", report.operations.total(OperationFigure::Delays)),
        // NFSv3 has no pNFS.
        ("pnfsreads", 0),
        ("pnfswrites", 0),
    ]
}

/// The fields of the `bytes:` line in order, with their names in mountstats(8).
#[must_use]
pub fn bytes(report: &MountReport) -> [(&'static str, u64); 8] {
    let counted = |counter| report.counters.events.value(counter);
    let (read, read_direct) =
        (counted(ClientCounter::KernelReadBytes), counted(ClientCounter::KernelReadDirectBytes));
    let (written, written_direct) =
        (counted(ClientCounter::KernelWriteBytes), counted(ClientCounter::KernelWriteDirectBytes));
    let (from_server, to_server) = (counted(ClientCounter::ReadBytes), counted(ClientCounter::WriteBytes));
    [
        ("normalreadbytes", read.saturating_sub(read_direct)),
        ("normalwritebytes", written.saturating_sub(written_direct)),
        ("directreadbytes", read_direct),
        ("directwritebytes", written_direct),
        ("serverreadbytes", from_server),
        ("serverwritebytes", to_server),
        ("readpages", from_server.div_ceil(PAGE)),
        ("writepages", to_server.div_ceil(PAGE)),
    ]
}

/// A word without separators: these are written in octal, as the kernel does.
fn escaped(word: &str) -> String {
    let mut text = String::with_capacity(word.len());
    for character in word.chars() {
        match character {
            ' ' => text.push_str("\\040"),
            '\t' => text.push_str("\\011"),
            '\n' => text.push_str("\\012"),
            '\r' => text.push_str("\\015"),
            '\x0b' => text.push_str("\\013"),
            '\x0c' => text.push_str("\\014"),
            '\\' => text.push_str("\\134"),
            other => text.push(other),
        }
    }
    text
}

fn joined(numbers: &[u64]) -> String {
    let words: Vec<String> = numbers.iter().map(u64::to_string).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use curt_proto::nfs3::NfsProcedure;
    use curt_proto::nfs4::Nfs4Operation;

    use super::*;
    use crate::operations::{CompletedRequest, OperationCounters};
    use crate::{ClientCounters, ClientSnapshot};

    fn report() -> MountReport {
        report_of(NfsProcedure::Read.into())
    }

    /// A report of a mount that sent three of `operation`.
    fn report_of(operation: Operation) -> MountReport {
        let operations = OperationCounters::default();
        for _ in 0..3 {
            operations.ended(
                operation,
                &CompletedRequest {
                    transmissions: 1,
                    bytes_sent: 140,
                    bytes_received: 1000,
                    queue: Duration::from_micros(400),
                    execution: Duration::from_micros(2400),
                    ..CompletedRequest::default()
                },
            );
        }
        MountReport {
            source: "nas:/a b".to_owned(),
            mount_point: "/mnt/with\ttab".into(),
            options: "rw,vers=3".to_owned(),
            operations: operations.snapshot(),
            ..MountReport::default()
        }
    }

    #[test]
    fn every_line_has_the_kernels_words_and_as_many_fields() {
        let text = text(&report());
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            lines[0].join(" "),
            "device nas:/a\\040b mounted on /mnt/with\\011tab with fstype nfs statvers=1.1"
        );
        let begin: Vec<&str> = lines[1..11].iter().map(|line| line[0]).collect();
        let expected =
            ["opts:", "age:", "caps:", "sec:", "events:", "bytes:", "RPC", "xprt:", "per-op", "NULL:"];
        assert_eq!(begin, expected);
        assert_eq!(lines[5].len(), 1 + 27);
        assert_eq!(lines[6].len(), 1 + 8);
        assert_eq!(lines[8].len(), 2 + 13);
        let operations = &lines[10..32];
        assert!(operations.iter().all(|line| line.len() == 1 + 9));
        assert_eq!(lines.len(), 33, "an empty line ends it");
        assert!(lines[32].is_empty());
    }

    #[test]
    fn a_mount_of_nfsv4_has_the_operations_of_its_version() {
        let report = MountReport {
            counters: ClientSnapshot {
                requests: [(Nfs4Operation::Getattr, 5), (Nfs4Operation::Lookup, 9)].into_iter().collect(),
                ..ClientSnapshot::default()
            },
            ..report_of(Nfs4Operation::Read.into())
        };
        let text = text(&report);
        let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
        assert!(lines.contains(&"RPC iostats version: 1.1  p/v: 100003/4 (nfs)"), "{text}");
        assert!(lines.contains(&"READ: 3 3 0 420 3000 1 6 7 0"), "{text}");
        let named = |name: &str| lines.iter().filter(|line| line.starts_with(&format!("{name}:"))).count();
        assert_eq!([named("READ"), named("WRITE"), named("OPEN"), named("READDIRPLUS")], [1, 1, 1, 0]);
        assert_eq!(events(&report)[0], ("inoderevalidates", 5));
    }

    #[test]
    fn the_documentation_says_of_every_field_what_it_counts() {
        let documentation = include_str!("../../../docs/figures.md");
        let told: Vec<&str> = documentation
            .lines()
            .filter(|line| line.starts_with('|'))
            .flat_map(|line| line.split('|').nth(1).unwrap_or_default().split([',', ' ']))
            .collect();
        let report = report();
        for (field, _) in events(&report).into_iter().chain(bytes(&report)) {
            assert!(told.contains(&field), "docs/figures.md says nothing of {field}");
        }
    }

    #[test]
    fn requests_of_the_kernel_stand_where_its_own_client_counts_them() {
        let counters = ClientCounters::default();
        counters.add(ClientCounter::KernelReadBytes, 10_000);
        counters.add(ClientCounter::KernelReadDirectBytes, 4_096);
        counters.add(ClientCounter::ReadBytes, 4_097);
        counters.count(ClientCounter::KernelWriteBack);
        let report = MountReport {
            counters: counters.snapshot(),
            fuse: [("OPEN", 3), ("OPENDIR", 2), ("WRITE", 5)]
                .map(|(name, count)| (name.to_owned(), count))
                .into(),
            ..MountReport::default()
        };
        let events = std::collections::BTreeMap::from(events(&report));
        assert_eq!((events["vfsopen"], events["vfsupdatepage"], events["vfswritepages"]), (5, 4, 1));
        assert_eq!(bytes(&report).map(|(_, bytes)| bytes), [5_904, 0, 4_096, 0, 4_097, 0, 2, 0]);
    }

    #[test]
    fn times_are_milliseconds_of_the_sum_and_not_sums_of_milliseconds() {
        let text = text(&report());
        assert!(text.contains("\t        READ: 3 3 0 420 3000 1 6 7 0\n"), "{text}");
    }
}
