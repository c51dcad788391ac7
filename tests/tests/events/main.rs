//! Events of a running mount and server, by bpftrace, by `curt trace`, and in the ring of a killed
//! process.
#![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

mod live;
mod probes;
mod ring;
mod stalled;

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use curt_tests::curt::{CurtMount, CurtServe, program};
use curt_tests::network::Network;

/// Timeout of each step.
const LIMIT: Duration = Duration::from_secs(180);

/// A server, and a mount of it.
struct World {
    // In the order in which they end.
    mount: CurtMount,
    serve: CurtServe,
    export: PathBuf,
    network: Network,
}

impl World {
    fn new(options: &str, serve_arguments: &[&str]) -> Self {
        let network = Network::new().unwrap();
        let export = network.make_directory("export").unwrap();
        let serve = CurtServe::start(&network, &export, serve_arguments).unwrap();
        let options = format!("{},{options}", serve.ports());
        let options = options.trim_end_matches(',');
        let mount = CurtMount::start(&network, "mnt", &serve.source(), options).unwrap();
        Self { mount, serve, export, network }
    }

    /// Runs a shell script in the mount.
    fn on_mount(&self, script: &str) -> String {
        let directory = self.mount.directory().display();
        self.network.shell(&format!("cd {directory}; {script}"), LIMIT).unwrap()
    }

    fn curt(&self, arguments: &[&str]) -> Command {
        let mut command = self.network.command(program("curt").unwrap());
        command.args(arguments);
        command
    }

    fn directory(&self) -> &str {
        self.mount.directory().to_str().unwrap()
    }
}
