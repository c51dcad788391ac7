//! Programs that list: `ls -l`, `find` and `rm -r`, each on a new mount, with the requests counted
//! by the relay.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use curt_bench::processes::{names, progress_bar};
use serde::Serialize;

use super::listing_run::ListingSetup;

/// Maximum number of names for `rm -r`.
const REMOVED_MAX: u64 = 100_000;

/// The most names if they first have to be created through a mount.
const REMOVED_ELSEWHERE_MAX: u64 = 10_000;

/// The cost of a program.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct ToolCost {
    /// Requests of all programs.
    rpc: u64,
    seconds: f64,
}

/// Runs all of them; `rm -r` in a directory created for it. `top` contains the listed directory, on
/// this machine or a mount.
pub(super) fn run(
    place: &mut ListingSetup<'_>,
    top: &std::path::Path,
    is_own: bool,
) -> Result<BTreeMap<&'static str, ToolCost>> {
    let most = if is_own { REMOVED_MAX } else { REMOVED_ELSEWHERE_MAX };
    let removed = place.count.min(most);
    let below = top.join("removed");
    let bar = progress_bar(&format!("making {removed} names to remove"));
    if below.exists() {
        // An interrupted run has removed some of it.
        std::fs::remove_dir_all(&below).with_context(|| below.display().to_string())?;
    }
    names::open_directory(&below)?;
    names::make(&names::directory(&below, removed), removed, super::JOBS, &bar)?;
    let mut costs = BTreeMap::new();
    for (tool, arguments, count) in [
        ("ls -l", &["ls", "-l"][..], place.count),
        ("find", &["find"], place.count),
        ("rm -r", &["rm", "-r"], removed),
    ] {
        let mounted = place.mount("")?;
        let top = match tool {
            "rm -r" => mounted.directory().join("removed"),
            _ => mounted.directory().to_owned(),
        };
        let directory = names::directory(&top, count);
        place.relay.begin(None);
        let began = Instant::now();
        let status = Command::new(arguments[0])
            .args(&arguments[1..])
            .arg(&directory)
            .stdout(Stdio::null())
            .status()
            .with_context(|| tool.to_owned())?;
        let seconds = began.elapsed().as_secs_f64();
        ensure!(status.success(), "{tool} {} ended with {status}", directory.display());
        let rpc = place.relay.counts().total;
        ensure!(tool != "rm -r" || !directory.exists(), "rm -r left something behind");
        costs.insert(tool, ToolCost { rpc, seconds });
        mounted.end()?;
    }
    std::fs::remove_dir_all(&below)?;
    Ok(costs)
}

/// As text, one line each.
pub(super) fn text(costs: &BTreeMap<&'static str, ToolCost>) -> String {
    let line =
        |(tool, cost): (&&str, &ToolCost)| format!("{tool}: {} requests, {:.1} s\n", cost.rpc, cost.seconds);
    costs.iter().map(line).collect()
}
