//! `cargo xtask bench slow-exports`: the delay of a quick operation on one export by a slow one on
//! another, sent before it over the same connection.
//!
//! The slow export is a FUSE file system of this program that delays data; the quick one is in
//! memory. A pair is sent at once, or the quick call a little after the slow one. The quick call's
//! time is compared with that of a single call, in alternation.

use std::ffi::OsStr;
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use curt_bench::processes::{Curt, Testbed};
use curt_proto::nfs3::{CommitArguments, NfsFh3, NfsProcedure};
use serde_json::{Value, json};

use super::fuse_baseline::{self, BareBehaviour, BareMount};
use super::latency::connection::{LatencyConnection, connect};
use super::latency::operations::{PreparedCalls, ReplyChecks, call, read};
use super::latency::subject::LatencyExport;
use super::latency::{MEMORY, credential};
use curt_bench::statistics::median;

/// The time of the slow operations.
const SLOWNESS: Duration = Duration::from_millis(5);
/// Size of the slow file in bytes.
const SLOW_BYTES: u64 = 1 << 20;
/// Number of pairs of a kind before the first that is counted.
const WARM: usize = 20;
/// Time from the slow call to the quick one, if they are not sent together.
const LATER: Duration = Duration::from_millis(1);
/// Maximum permitted delay of a quick call in µs.
const DELAY_MAX_US: f64 = 200.0;
/// The quick file.
const QUICK: &str = "quick";

/// Arguments of `cargo xtask bench slow-exports`.
#[derive(Debug, clap::Args)]
pub(crate) struct SlowExportsArguments {
    /// Pairs of a slow and a quick call, of each kind
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = super::at_least_one())]
    pairs: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &SlowExportsArguments) -> Result<bool> {
    let rows = measure(arguments.pairs)?;
    super::print_rows(arguments.json, &json!({ "slow": rows }))?;
    Ok(rows.iter().all(|row| row["delay_us"].as_f64().is_some_and(|delay| delay <= DELAY_MAX_US)))
}

/// Measures both slow operations, with so many pairs of each kind.
fn measure(pairs: usize) -> Result<Vec<Value>> {
    ensure!(rustix::process::geteuid().is_root(), "it needs root: it mounts a slow file system");
    let place = tempfile::Builder::new().prefix("curt-slow-").tempdir()?;
    let quick = tempfile::Builder::new().prefix("curt-slow-").tempdir_in(MEMORY)?;
    let slow = place.path().join("slow-export");
    fs::create_dir(&slow)?;
    fs::write(quick.path().join(QUICK), "quick")?;
    let mount = BareMount::new(&slow, SLOW_BYTES, BareBehaviour::Slow(SLOWNESS))?;
    let rows = on_exports(place.path(), &slow, quick.path(), pairs);
    mount.end()?;
    rows
}

fn on_exports(place: &Path, slow: &Path, quick: &Path, pairs: usize) -> Result<Vec<Value>> {
    let credential = &credential();
    let exports = place.join("exports");
    let options = "*(rw,insecure,no_root_squash,no_subtree_check)";
    let lines = [slow, quick].map(|path| format!("{} {options}\n", path.display()));
    fs::write(&exports, lines.concat())?;
    let arguments = [OsStr::new("-c"), exports.as_os_str()];
    let server = Testbed::serving_with(&Curt::in_same_directory()?, quick, None, &arguments)?;
    let port = server.port().context("the server was started here")?;
    let find = |export: &Path, name: &str| -> Result<NfsFh3> {
        let path = export.as_os_str().as_encoded_bytes();
        let export = LatencyExport::mount("127.0.0.1", port, Some(port), path, credential)?;
        Ok(NfsFh3::new(export.find(&export.root, name)?.as_bytes())?)
    };
    let (file, quick) = (find(slow, fuse_baseline::FILE)?, find(quick, QUICK)?);
    let (offset, count) = (0, 0);
    let commit = CommitArguments { file, offset, count };
    let commit = call(credential, NfsProcedure::Commit, &commit);
    let read = read(credential, file, 0, 4096)?;
    let mut rows = Vec::new();
    for (operation, slow) in [("COMMIT", commit), ("READ", read)] {
        let calls = vec![slow, call(credential, NfsProcedure::Getattr, &quick)];
        let (stream, calls) = (connect((Ipv4Addr::LOCALHOST, port))?, PreparedCalls::ready(calls));
        let mut connection = LatencyConnection::new(stream, calls, ReplyChecks::Success);
        for (sent, later) in [("together", None), ("1 ms later", Some(LATER))] {
            let (mut alone, mut behind, mut slow) = (Vec::new(), Vec::new(), Vec::new());
            for turn in 0..WARM + pairs {
                let one = connection.times(1..2, None)?;
                let both = connection.times(0..2, later)?;
                if turn >= WARM {
                    let microseconds = |time: Duration| time.as_secs_f64() * 1e6;
                    alone.push(microseconds(one[0]));
                    slow.push(microseconds(both[0]));
                    behind.push(microseconds(both[1]));
                }
            }
            let (alone_us, behind_us, slow_us) = (median(&alone), median(&behind), median(&slow));
            ensure!(
                slow_us >= SLOWNESS.as_secs_f64() * 1e6,
                "{operation} takes {slow_us:.0} µs: it never came to the slow file system"
            );
            behind.sort_by(f64::total_cmp);
            rows.push(json!({
                "op": operation, "sent": sent, "alone_us": alone_us, "behind_us": behind_us,
                "behind_p99_us": behind[(behind.len() * 99 / 100).min(behind.len() - 1)],
                "delay_us": behind_us - alone_us, "slow_us": slow_us,
            }));
        }
    }
    Ok(rows)
}
