//! Packet captures: dumpcap records, [`CaptureFile::calls`] counts the calls, and tshark reports
//! malformed packets.

mod packets;
mod streams;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use curt_observe::Operation;
use curt_proto::nfs4::CallbackOperation;

use crate::network::Network;
use crate::process::{self, RunningProcess};

/// The program number of NFS (RFC 1813 section 3).
const PROGRAM: u32 = 100_003;
/// Number of successive checks at intervals of 10 ms that find nothing new at the end of a capture:
/// dumpcap writes at least every 250 ms, and later on a busy machine. Checks are counted instead of
/// time, because on a stalled machine time passes without progress.
const QUIET_LOOKS: u32 = 400;
/// Timeout of a capture to stop growing after the traffic has ended.
const SETTLED: Duration = Duration::from_secs(60);
/// Timeout of tshark.
const READ: Duration = Duration::from_secs(600);

/// A running capture.
pub struct Capture {
    running: RunningProcess,
    file: PathBuf,
    port: u16,
}

/// A finished capture.
pub struct CaptureFile {
    file: PathBuf,
    port: u16,
}

impl Capture {
    /// Captures traffic of TCP port `port` on all interfaces of the network.
    ///
    /// # Errors
    /// dumpcap does not start.
    pub fn start(network: &Network, name: &str, port: u16) -> Result<Self> {
        let file = network.directory().join(format!("{name}.pcap"));
        let mut command = network.command("dumpcap");
        // lo for local peers, the bridge for kernels: a packet passes one of them once.
        command
            .args(["-q", "-B", "128", "-f", &format!("tcp port {port}")])
            // dumpcap's buffer between the capturing threads and the file: with the default of 1 MB
            // it drops packets.
            .args(["-C", "268435456", "-N", "1000000"])
            // Options before the interfaces apply to both.
            .args(["-i", "lo", "-i", "br0", "-w"])
            .arg(&file);
        let running = RunningProcess::start("dumpcap", &mut command)?;
        running.wait_for("File: ", Duration::from_secs(60))?;
        Ok(Self { running, file, port })
    }

    /// Waits until the file stops growing: when dumpcap ends, it drops packets that it has not read
    /// from the kernel.
    fn settle(&self) -> Result<()> {
        let (mut last, mut looks) = (0, 0);
        process::until("the capture is written", SETTLED, || {
            let length = std::fs::metadata(&self.file)?.len();
            looks = if length == last { looks + 1 } else { 0 };
            last = length;
            Ok((looks >= QUIET_LOOKS).then_some(()))
        })
    }

    /// Ends it.
    ///
    /// # Errors
    /// Packets were lost, so that the capture cannot be used.
    pub fn stop(mut self) -> Result<CaptureFile> {
        self.settle()?;
        self.running.signal(rustix::process::Signal::INT)?;
        self.running.wait(Duration::from_secs(60))?;
        // "Packets received/dropped on interface 'lo': 123/0
        // (pcap:0/dumpcap:0/flushed:0/ps_ifdrop:0) (100.0%)"
        for line in self.running.output().lines().filter(|line| line.contains("received/dropped")) {
            let dropped =
                line.rsplit_once(": ").and_then(|(_, rest)| rest.split_once('/')).map(|(_, rest)| rest);
            let none = dropped.is_some_and(|rest| rest.split_whitespace().next() == Some("0"));
            anyhow::ensure!(none, "the capture is not complete: {line}");
        }
        Ok(CaptureFile { file: self.file, port: self.port })
    }
}

impl CaptureFile {
    fn tshark(&self, network: &Network, arguments: &[&str]) -> Result<String> {
        let mut command = network.command("tshark");
        command
            // On a loaded machine packets may be captured out of order; tshark would otherwise
            // treat them as lost.
            .args(["-n", "-o", "tcp.reassemble_out_of_order:TRUE", "-r"])
            .arg(&self.file)
            .args(["-d", &format!("tcp.port=={},rpc", self.port)]);
        process::run(command.args(arguments), READ)
    }

    /// The calls of each NFSv3 procedure sent to the port, counted from the bytes of each
    /// connection.
    ///
    /// # Errors
    /// The capture is incomplete.
    pub fn calls(&self) -> Result<BTreeMap<String, u64>> {
        let file = std::fs::read(&self.file)?;
        let segments = packets::segments(&file)?;
        let mut counts = BTreeMap::new();
        for bytes in streams::streams(&segments, self.port)? {
            streams::count_calls(&bytes, PROGRAM, &mut counts)?;
        }
        let named = |(procedure, count)| -> Result<_> {
            let operation = Operation::nfs3(procedure);
            Ok((operation.with_context(|| format!("procedure {procedure}"))?.name().to_owned(), count))
        };
        counts.into_iter().map(named).collect()
    }

    /// The names of the callbacks that clients have answered, without CB_SEQUENCE.
    ///
    /// # Errors
    /// tshark fails, or knows another operation than we.
    pub fn callbacks(&self, network: &Network) -> Result<BTreeSet<&'static str>> {
        let answers = ["-Y", "nfs.cb.operation && rpc.msgtyp == 1", "-T", "fields", "-e", "nfs.cb.operation"];
        let text = self.tshark(network, &answers)?;
        let numbers = text.split([',', '\n']).filter(|number| !number.is_empty());
        let named = numbers.map(|number| {
            let operation = CallbackOperation::from_number(number.parse()?);
            Ok(operation.with_context(|| format!("operation {number}"))?.name())
        });
        let mut names: BTreeSet<_> = named.collect::<Result<_>>()?;
        names.remove(CallbackOperation::Sequence.name());
        Ok(names)
    }

    /// The packets that tshark reports as malformed, one line each; there should be none.
    ///
    /// # Errors
    /// tshark fails.
    pub fn malformed(&self, network: &Network) -> Result<Vec<String>> {
        let text = self.tshark(network, &["-Y", "_ws.malformed || _ws.expert.severity == error"])?;
        Ok(text.lines().map(str::to_owned).collect())
    }
}
