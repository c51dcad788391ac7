//! `cargo xtask bench fuse`: what a GETATTR through a mount costs, beside a bare FUSE loop that
//! asks an echo server.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use curt_bench::processes::{Curt, Daemon, Machine, Testbed, free_port};
use rustix::mount::{UnmountFlags, unmount};

use super::statistics::median;
use super::times::{ComparedSide, ComparedTimes};
use super::{floor, own_program};

/// What `cargo xtask bench fuse` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct FuseArguments {
    /// Rounds; each measures both sides
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = super::at_least_one())]
    rounds: usize,
    /// Calls of one side in a round
    #[arg(long, value_name = "N", default_value_t = 4000, value_parser = super::at_least_one())]
    calls: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &FuseArguments) -> Result<bool> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "bench fuse needs root: it mounts a bare FUSE loop"
    );
    let files = tempfile::tempdir()?;
    std::fs::write(files.path().join(floor::FILE), "x")?;
    let mut world = Testbed::serving(&Curt::beside()?, files.path(), None)?;
    let mounted = world.mount("3", "actimeo=0")?;
    let bare = BareFuseLoop::start()?;
    let ours = File::open(mounted.directory().join(floor::FILE))?;
    let reference = File::open(bare.directory.path().join(floor::FILE))?;
    let (mut our_rounds, mut reference_rounds) = (Vec::new(), Vec::new());
    // The first round of each is not counted: caches and threads warm up.
    for round in 0..=arguments.rounds {
        let values = (
            microseconds(&ours, arguments.calls)?,
            microseconds(&reference, arguments.calls)?,
        );
        if round > 0 {
            our_rounds.push(values.0);
            reference_rounds.push(values.1);
        }
    }
    let asked = mounted.report()?.counters.requests.value("GETATTR");
    let calls = u64::try_from(arguments.calls * (arguments.rounds + 1))?;
    ensure!(
        asked >= calls,
        "of {calls} calls only {asked} reached the server: the others were answered from a cache"
    );
    drop((ours, reference));
    mounted.end()?;
    let ours = ComparedSide::new("mount", our_rounds);
    let compared = ComparedTimes::new(
        "GETATTR",
        "µs",
        ours,
        ComparedSide::new("bare FUSE + echo", reference_rounds),
    );
    super::print(arguments.json, &Machine::this(), &[compared])?;
    Ok(true)
}

/// The median of the calls' times.
fn microseconds(file: &File, calls: usize) -> Result<f64> {
    let mut times = Vec::with_capacity(calls);
    for _ in 0..calls {
        let start = Instant::now();
        rustix::fs::fstat(file)?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(median(&times))
}

/// The bare loop and its echo server.
struct BareFuseLoop {
    directory: tempfile::TempDir,
    _echo: Daemon,
    _loop: Daemon,
}

impl BareFuseLoop {
    fn start() -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("curt-floor-").tempdir()?;
        let port = free_port()?;
        let limit = Duration::from_secs(10);
        let mut echo = Daemon::start(
            "the echo server",
            own_program().args(["latency-echo", &port.to_string()]),
        )?;
        echo.until("the echo server accepts", limit, || {
            Ok(std::net::TcpStream::connect(("127.0.0.1", port)).ok())
        })?;
        let mut command = own_program();
        command.arg("floor").arg(directory.path()).arg(port.to_string());
        let mut bare = Daemon::start("the bare FUSE loop", &mut command)?;
        bare.until("the bare FUSE loop is mounted", limit, || {
            Ok(is_there(directory.path()).then_some(()))
        })?;
        Ok(Self {
            directory,
            _echo: echo,
            _loop: bare,
        })
    }
}

fn is_there(directory: &Path) -> bool {
    directory.join(floor::FILE).symlink_metadata().is_ok()
}

impl Drop for BareFuseLoop {
    fn drop(&mut self) {
        if let Err(error) = unmount(self.directory.path(), UnmountFlags::DETACH).context("umount") {
            eprintln!("curt bench: {}: {error:#}", self.directory.path().display());
        }
    }
}
