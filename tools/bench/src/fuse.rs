//! `cargo xtask bench fuse`: the cost of a GETATTR through a mount, compared with a bare FUSE file
//! system that calls an echo server.

use std::fs::File;
use std::time::Instant;

use anyhow::{Result, ensure};
use curt_bench::processes::{Curt, Testbed};
use curt_proto::nfs3::NfsProcedure;

use super::fuse_baseline::{self, BareBehaviour, BareMount};
use super::latency::echo;
use curt_bench::statistics::{ComparedSide, compared, median};

/// Arguments of `cargo xtask bench fuse`.
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
    let files = tempfile::tempdir()?;
    std::fs::write(files.path().join(fuse_baseline::FILE), "x")?;
    let mut world = Testbed::serving(&Curt::in_same_directory()?, files.path(), None)?;
    let mounted = world.mount("3", "actimeo=0")?;
    let (_echo, address) = echo::start()?;
    let directory = tempfile::Builder::new().prefix("curt-bare-").tempdir()?;
    let bare = BareMount::new(directory.path(), 1, BareBehaviour::Echo(address))?;
    let ours = File::open(mounted.directory().join(fuse_baseline::FILE))?;
    let reference = File::open(directory.path().join(fuse_baseline::FILE))?;
    let (mut our_rounds, mut reference_rounds) = (Vec::new(), Vec::new());
    // The first round of each is not counted: it warms up caches and threads.
    for round in 0..=arguments.rounds {
        let values = (microseconds(&ours, arguments.calls)?, microseconds(&reference, arguments.calls)?);
        if round > 0 {
            our_rounds.push(values.0);
            reference_rounds.push(values.1);
        }
    }
    let asked = mounted.report()?.counters.requests.value(NfsProcedure::Getattr);
    let calls = u64::try_from(arguments.calls * (arguments.rounds + 1))?;
    ensure!(
        asked >= calls,
        "of {calls} calls only {asked} reached the server: the others were answered from a cache"
    );
    drop((ours, reference));
    bare.end()?;
    mounted.end()?;
    let ours = ComparedSide { name: "mount", rounds: our_rounds };
    let reference = ComparedSide { name: "bare FUSE + echo", rounds: reference_rounds };
    super::print_compared(arguments.json, &[compared("GETATTR", "µs", &ours, &reference)])?;
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
