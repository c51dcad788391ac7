//! Runs `latency` of tools/bench with Ganesha as peer, in a separate network and on the same
//! directory in memory, and prints its output.
//!
//! `cargo xtask compare latency` calls this and generates the documents' tables. All arguments are
//! passed to the benchmark.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result};
use curt_tests::curt::program;
use curt_tests::ganesha::Ganesha;
use curt_tests::network::Network;

/// A directory in memory.
const MEMORY: &str = "/dev/shm";

fn main() -> ExitCode {
    match compare() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("compare-latency: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn compare() -> Result<bool> {
    let network = Network::new()?;
    let directory = tempfile::Builder::new()
        .prefix("curt-compare-")
        .tempdir_in(MEMORY)
        .with_context(|| format!("{MEMORY} is where the files are to be, in memory"))?;
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o777))?;
    let _rpcbind = network.rpcbind()?;
    let ganesha = Ganesha::start(&network, directory.path())?;
    let peer = format!("ganesha=127.0.0.1:2049{},pid={}", directory.path().display(), ganesha.pid());
    let mut command: Command = network.command(program("curt-tools-bench")?);
    command.args(["latency", "--peer", &peer, "--directory"]);
    command.arg(directory.path()).args(std::env::args_os().skip(1));
    let status = command.stdin(Stdio::null()).status()?;
    Ok(status.success())
}
