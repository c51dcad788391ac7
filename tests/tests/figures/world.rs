//! A server and a mount with statistics, and work with a known number of requests.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use curt_tests::curt::{CurtMount, CurtServe, program};
use curt_tests::network::Network;
use curt_tests::process;
use curt_tests::prometheus::Samples;
use serde_json::Value;

/// Timeout of a command.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);
/// Number of WRITEs of the work, each FILE_SYNC.
pub(crate) const WRITES: u64 = 7;
/// Number of look-ups of missing names.
pub(crate) const MISSES: u64 = 5;
/// Size of each write.
pub(crate) const BLOCK: u64 = 4096;

/// A server and a mount with synchronous writes that looks names up one by one, each with
/// Prometheus metrics.
pub(crate) struct World {
    pub(crate) mount: CurtMount,
    pub(crate) serve: CurtServe,
    pub(crate) network: Network,
}

impl World {
    /// A server that measures each request.
    pub(crate) fn new(options: &str) -> Result<Self> {
        Self::with(&["--stages=1"], options)
    }

    /// A server with these arguments.
    pub(crate) fn with(arguments: &[&str], options: &str) -> Result<Self> {
        let network = Network::new()?;
        let export = network.make_directory("export")?;
        let serve = CurtServe::start(&network, &export, &[arguments, &["--metrics", "9050"]].concat())?;
        let options = format!("{},sync,dirfill=off,{options}", serve.ports());
        let mount = CurtMount::start(&network, "mount point", &serve.source(), &options)?;
        Ok(Self { mount, serve, network })
    }

    pub(crate) fn place(&self) -> &Path {
        self.mount.directory()
    }

    /// The work: WRITEs, and LOOKUPs of missing names.
    pub(crate) fn work(&self, name: &str) -> Result<()> {
        let place = self.place().display();
        let script = format!(
            "cd '{place}'; dd if=/dev/zero of={name} bs={BLOCK} count={WRITES} status=none; \
             for i in $(seq {MISSES}); do [ ! -e {name}-missing-$i ]; done"
        );
        self.network.shell(&script, LIMIT).map(drop)
    }

    pub(crate) fn curt(&self, arguments: &[&str]) -> Result<Command> {
        let mut command = self.network.command(program("curt")?);
        command.args(arguments);
        Ok(command)
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Result<String> {
        process::run(&mut self.curt(arguments)?, LIMIT)
    }

    pub(crate) fn json(&self, arguments: &[&str]) -> Result<Value> {
        Ok(serde_json::from_str(&self.run(arguments)?)?)
    }

    pub(crate) fn scrape(&self, port: u16, request: &str) -> Result<String> {
        let script =
            format!("exec 3<>/dev/tcp/127.0.0.1/{port}; printf '{request}\\r\\n\\r\\n' >&3; cat <&3");
        self.network.shell(&script, LIMIT)
    }

    pub(crate) fn metrics(&self, port: u16) -> Result<Samples> {
        let answer = self.scrape(port, "GET /metrics HTTP/1.1")?;
        let (head, body) = answer.split_once("\r\n\r\n").context("an answer has a head")?;
        ensure!(
            head.starts_with("HTTP/1.1 200 ") && head.contains("Content-Type: text/plain; version=0.0.4"),
            "{head}"
        );
        Samples::parse(body)
    }

    /// The real mountstats(8), with a file.
    pub(crate) fn mountstats(&self, file: &Path, flags: &str) -> Result<String> {
        self.network.shell(&format!("mountstats {flags} -f '{}'", file.display()), LIMIT)
    }

    pub(crate) fn raw(&self, name: &str) -> Result<PathBuf> {
        let file = self.network.directory().join(name);
        let shown = file.to_str().context("a path of ours is text")?;
        self.run(&["stat", "--layout", "raw", "--output", shown])?;
        Ok(file)
    }
}

pub(crate) fn procedure(report: &Value, name: &str, figure: &str) -> u64 {
    report["operations"][name][figure].as_u64().unwrap_or(u64::MAX)
}

/// The procedures of the work, and their numbers.
pub(crate) const KNOWN: [(&str, u64); 2] = [("WRITE", WRITES), ("CREATE", 1)];
