//! The text of the kernel's `/proc/self/mountstats` for one NFS mount: statvers 1.1, RPC iostats
//! 1.1.
//!
//! This module only owns the layout; the caller sets the numbers in [`Mountstats`]. The lines,
//! their order and the number of fields in each are those of Linux 6 (fs/nfs/super.c,
//! net/sunrpc/stats.c), as parsed by mountstats(8), nfsiostat(8) and Prometheus' node_exporter.

use std::fmt::Write as _;

use crate::operations::{OperationFigure, OperationSnapshot};
use crate::transport::{TransportFigure, TransportReport};

/// The fields of the `events:` line in order, with their names in mountstats(8).
pub const EVENTS: [&str; 27] = [
    "inoderevalidates",
    "dentryrevalidates",
    "datainvalidates",
    "attrinvalidates",
    "vfsopen",
    "vfslookup",
    "vfspermission",
    "vfsupdatepage",
    "vfsreadpage",
    "vfsreadpages",
    "vfswritepage",
    "vfswritepages",
    "vfsreaddir",
    "vfssetattr",
    "vfsflush",
    "vfsfsync",
    "vfslock",
    "vfsrelease",
    "congestionwait",
    "setattrtrunc",
    "extendwrite",
    "sillyrenames",
    "shortreads",
    "shortwrites",
    "delay",
    "pnfsreads",
    "pnfswrites",
];

/// The fields of the `bytes:` line, in its order.
pub const BYTES: [&str; 8] = [
    "normalreadbytes",
    "normalwritebytes",
    "directreadbytes",
    "directwritebytes",
    "serverreadbytes",
    "serverwritebytes",
    "readpages",
    "writepages",
];

/// Nanoseconds of a millisecond, the unit of the per-op times.
const MILLISECOND: u64 = 1_000_000;

/// Nanoseconds of a second, the unit of the connect time.
const SECOND: u64 = 1_000_000_000;

/// The statistics of one mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mountstats {
    /// `server:/path`.
    pub device: String,
    /// The mount point.
    pub mount_point: String,
    /// The options in force, with commas between them.
    pub options: String,
    /// Seconds since it was mounted.
    pub age: u64,
    /// The capabilities and sizes of the server, separated by commas: `caps=0x7,wtmult=512,…`.
    pub capabilities: String,
    /// The security flavour's number (RFC 5531): 1 is AUTH_SYS.
    pub flavour: u32,
    /// See [`EVENTS`].
    pub events: [u64; EVENTS.len()],
    /// See [`BYTES`].
    pub bytes: [u64; BYTES.len()],
    /// The traffic of all connections, on one line.
    pub transport: TransportReport,
    /// The statistics of each operation.
    pub operations: OperationSnapshot,
}

impl Mountstats {
    /// The text, with the empty line that ends it.
    #[must_use]
    pub fn text(&self) -> String {
        let (device, place) = (escaped(&self.device), escaped(&self.mount_point));
        let mut text = format!(
            "device {device} mounted on {place} with fstype nfs statvers=1.1\n\topts:\t{}\n\tage:\t{}\n\tcaps:\t{}\n\
             \tsec:\tflavor={flavour},pseudoflavor={flavour}\n\tevents:\t{}\n\tbytes:\t{}\n\
             \tRPC iostats version: 1.1  p/v: 100003/3 (nfs)\n",
            escaped(&self.options),
            self.age,
            escaped(&self.capabilities),
            joined(&self.events),
            joined(&self.bytes),
            flavour = self.flavour,
        );
        // Writing to a String cannot fail.
        let _ = writeln!(text, "\txprt:\ttcp {}", joined(&self.transport()));
        text.push_str("\tper-op statistics\n");
        for (name, figures) in self.operations.iter() {
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
            let _ = writeln!(text, "\t{name:>12}: {}", joined(&numbers));
        }
        text.push('\n');
        text
    }

    /// The thirteen numbers of `xprt: tcp`.
    fn transport(&self) -> [u64; 13] {
        let value = |figure| self.transport.value(figure);
        [
            self.transport.port.into(),
            value(TransportFigure::Binds),
            value(TransportFigure::Connects),
            value(TransportFigure::ConnectTime) / SECOND,
            self.transport.idle_seconds,
            value(TransportFigure::Sends),
            value(TransportFigure::Receives),
            value(TransportFigure::UnknownXids),
            value(TransportFigure::InFlight),
            value(TransportFigure::Backlog),
            self.transport.most_at_once,
            value(TransportFigure::Sending),
            value(TransportFigure::Pending),
        ]
    }
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
    use std::time::Duration;

    use curt_proto::{Operation, nfs3::NfsProcedure};

    use super::*;
    use crate::operations::{CompletedRequest, OperationCounters};

    fn mountstats() -> Mountstats {
        let operations = OperationCounters::default();
        for _ in 0..3 {
            operations.ended(
                Operation::Nfs3(NfsProcedure::Read),
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
        Mountstats {
            device: "nas:/a b".to_owned(),
            mount_point: "/mnt/with\ttab".to_owned(),
            options: "rw,vers=3".to_owned(),
            capabilities: "caps=0x7,wtmult=512".to_owned(),
            flavour: 1,
            operations: operations.snapshot(),
            ..Mountstats::default()
        }
    }

    #[test]
    fn every_line_has_the_kernels_words_and_as_many_fields() {
        let text = mountstats().text();
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
    fn the_documentation_says_of_every_field_what_it_counts() {
        let documentation = include_str!("../../../docs/figures.md");
        let told: Vec<&str> = documentation
            .lines()
            .filter(|line| line.starts_with('|'))
            .flat_map(|line| line.split('|').nth(1).unwrap_or_default().split([',', ' ']))
            .collect();
        for field in EVENTS.iter().chain(&BYTES) {
            assert!(told.contains(field), "docs/figures.md says nothing of {field}");
        }
    }

    #[test]
    fn times_are_milliseconds_of_the_sum_and_not_sums_of_milliseconds() {
        let text = mountstats().text();
        assert!(text.contains("\t        READ: 3 3 0 420 3000 1 6 7 0\n"), "{text}");
    }
}
