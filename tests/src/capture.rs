//! What tshark saw on the wire.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use curt_trace::PROCEDURES;

use crate::network::Network;
use crate::process::{self, Running};

/// How long tshark may take to read a capture again.
const READ: Duration = Duration::from_secs(180);

/// A capture that is running.
pub struct Capture {
    running: Running,
    file: PathBuf,
    port: u16,
}

/// A capture that is done.
pub struct Captured {
    file: PathBuf,
    port: u16,
}

impl Capture {
    /// Records what goes to and from TCP port `port` on any interface of the network.
    ///
    /// # Errors
    /// tshark does not start.
    pub fn start(network: &Network, name: &str, port: u16) -> Result<Self> {
        let file = network.directory().join(format!("{name}.pcap"));
        let mut command = network.command("dumpcap");
        // lo for peers on this machine, the bridge for kernels: a packet passes one of them once.
        command
            .args(["-q", "-B", "128", "-f", &format!("tcp port {port}")])
            // What dumpcap keeps between the thread of each interface and the file: it drops beyond 1 MB otherwise.
            .args(["-C", "268435456", "-N", "1000000"])
            // What stands before the interfaces is for both of them.
            .args(["-i", "lo", "-i", "br0", "-w"])
            .arg(&file);
        let running = Running::start("dumpcap", &mut command)?;
        running.wait_for("File: ", Duration::from_secs(20))?;
        Ok(Self { running, file, port })
    }

    /// Ends it.
    ///
    /// # Errors
    /// Packets were lost, so that nothing can be said.
    pub fn stop(mut self) -> Result<Captured> {
        self.running.signal(rustix::process::Signal::INT)?;
        self.running.wait(Duration::from_secs(20))?;
        // "Packets received/dropped on interface 'lo': 123/0 (pcap:0/dumpcap:0/flushed:0/ps_ifdrop:0) (100.0%)"
        for line in self
            .running
            .output()
            .lines()
            .filter(|line| line.contains("received/dropped"))
        {
            let dropped = line
                .rsplit_once(": ")
                .and_then(|(_, rest)| rest.split_once('/'))
                .map(|(_, rest)| rest);
            let none = dropped.is_some_and(|rest| rest.split_whitespace().next() == Some("0"));
            anyhow::ensure!(none, "the capture is not complete: {line}");
        }
        Ok(Captured {
            file: self.file,
            port: self.port,
        })
    }
}

impl Captured {
    fn tshark(&self, network: &Network, arguments: &[&str]) -> Result<String> {
        let mut command = network.command("tshark");
        command
            // Packets of a loaded machine may have been captured out of order.
            .args(["-n", "-o", "tcp.reassemble_out_of_order:TRUE", "-r"])
            .arg(&self.file)
            .args(["-d", &format!("tcp.port=={},rpc", self.port)]);
        process::run(command.args(arguments), READ)
    }

    /// The calls of each NFSv3 procedure.
    ///
    /// # Errors
    /// tshark's.
    pub fn calls(&self, network: &Network) -> Result<BTreeMap<String, u64>> {
        // Several records in a packet give several values in one line, those of other programs among them.
        let fields = [
            "-Y",
            "rpc.msgtyp == 0",
            "-T",
            "fields",
            "-e",
            "rpc.msgtyp",
            "-e",
            "rpc.program",
            "-e",
            "rpc.procedure",
        ];
        let text = self.tshark(network, &fields)?;
        let mut counts = BTreeMap::new();
        for line in text.lines() {
            let mut columns = line.split('\t').skip(1).map(|column| column.split(','));
            let (Some(programs), Some(procedures)) = (columns.next(), columns.next()) else {
                continue;
            };
            for (_, procedure) in programs
                .zip(procedures)
                .filter(|(program, _)| *program == "100003")
            {
                let index: usize = procedure.parse().with_context(|| line.to_owned())?;
                let name = PROCEDURES
                    .get(index)
                    .with_context(|| format!("procedure {index}"))?;
                *counts.entry((*name).to_owned()).or_default() += 1;
            }
        }
        Ok(counts)
    }

    /// What tshark calls malformed, a line for each; there should be none.
    ///
    /// # Errors
    /// tshark's.
    pub fn malformed(&self, network: &Network) -> Result<Vec<String>> {
        let text = self.tshark(network, &["-Y", "_ws.malformed || _ws.expert.severity == error"])?;
        Ok(text.lines().map(str::to_owned).collect())
    }
}
