//! How much a slow operation on one export delays a quick one on another, sent behind it over the
//! same connection.
//!
//! The slow export is a file system of ours that takes its time for data (FUSE); the quick one lies
//! in memory. A pair is sent at once, or the quick call a little after the slow one, and the quick
//! call's time is compared with that of one that is alone, in turns.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use curt_proto::nfs3::{CommitArguments, NfsFh3, NfsProcedure, ReadArguments};
use curt_rpc::auth::RpcCredential;
use curt_xdr::Encode;
use serde::Serialize;

use super::MEMORY;
use super::calls::{PreparedCalls, put_call};
use super::check::ReplyChecks;
use super::client::{LatencyConnection, connect};
use super::subject::serve;
use super::tree::look_up;
use crate::bare::{self, BareMount};
use crate::statistics::median;

/// What the slow operations take.
const SLOWNESS: Duration = Duration::from_millis(5);
/// Bytes of the slow file.
const SLOW_BYTES: u64 = 1 << 20;
/// Before these many pairs of a kind nothing is counted.
const WARM: usize = 20;
/// How long after the slow call the quick one is sent, where it is not sent with it.
const LATER: Duration = Duration::from_millis(1);
/// The most that a quick call may be delayed, in µs.
const DELAY_MAX_US: f64 = 200.0;
/// The quick file.
const QUICK: &str = "quick";

/// How the quick call was sent, and what became of it.
#[derive(Debug, Serialize)]
pub(super) struct SlowRow {
    /// The slow operation.
    op: &'static str,
    /// Whether the quick call came in the same segment, or later.
    sent: &'static str,
    /// The quick call's time when nothing is before it: median.
    alone_us: f64,
    /// Behind the slow call: median and 99th percentile.
    behind_us: f64,
    behind_p99_us: f64,
    /// The difference of the medians.
    delay_us: f64,
    /// The slow call's own time: median.
    slow_us: f64,
}

impl SlowRow {
    /// Whether the quick call was not delayed by more than it may.
    pub(super) fn holds(&self) -> bool {
        self.delay_us <= DELAY_MAX_US
    }
}

/// Measures both slow operations, with so many pairs of each kind.
pub(super) fn measure(credential: &RpcCredential, pairs: usize) -> Result<Vec<SlowRow>> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "--slow needs root: it mounts a slow file system"
    );
    let place = tempfile::Builder::new().prefix("curt-slow-").tempdir()?;
    let quick = tempfile::Builder::new().prefix("curt-slow-").tempdir_in(MEMORY)?;
    let slow = place.path().join("slow-export");
    fs::create_dir(&slow)?;
    fs::write(quick.path().join(QUICK), "quick")?;
    let mount = BareMount::new(&slow, SLOW_BYTES, SLOWNESS)?;
    let rows = on_exports(place.path(), &slow, quick.path(), credential, pairs);
    mount.end()?;
    rows
}

fn on_exports(
    place: &Path,
    slow: &Path,
    quick: &Path,
    credential: &RpcCredential,
    pairs: usize,
) -> Result<Vec<SlowRow>> {
    let exports = place.join("exports");
    let line = |path: &Path| {
        format!(
            "{} *(rw,insecure,no_root_squash,no_subtree_check)\n",
            path.display()
        )
    };
    fs::write(&exports, line(slow) + &line(quick))?;
    let (_daemon, address, line) = serve(&["-c".as_ref(), exports.as_ref()], place, credential)?;
    let file = |export: &Path, name: &str| -> Result<NfsFh3> {
        let root = line.mount(export.as_os_str().as_encoded_bytes())?;
        look_up(&line, root, name)
    };
    let (file, quick) = (file(slow, bare::FILE)?, file(quick, QUICK)?);
    let (offset, count) = (0, 0);
    let commit = CommitArguments { file, offset, count };
    let count = 4096;
    let read = ReadArguments { file, offset, count };
    let operations: [(NfsProcedure, &dyn Encode); 2] =
        [(NfsProcedure::Commit, &commit), (NfsProcedure::Read, &read)];
    let mut rows = Vec::new();
    for (procedure, arguments) in operations {
        let calls = [(procedure, arguments), (NfsProcedure::Getattr, &quick)];
        let calls = calls.map(|(procedure, arguments)| {
            let mut call = Vec::new();
            put_call(&mut call, credential, procedure, arguments);
            call
        });
        let calls = PreparedCalls::ready(calls.to_vec());
        let mut lane = LatencyConnection::new(connect(address)?, calls, ReplyChecks::success());
        for (sent, later) in [("together", None), ("1 ms later", Some(LATER))] {
            let (mut alone, mut behind, mut slow) = (Vec::new(), Vec::new(), Vec::new());
            for turn in 0..WARM + pairs {
                let one = lane.times(&[1], None)?;
                let both = lane.times(&[0, 1], later)?;
                if turn >= WARM {
                    let microseconds = |time: Duration| time.as_secs_f64() * 1e6;
                    alone.push(microseconds(one[0]));
                    slow.push(microseconds(both[0]));
                    behind.push(microseconds(both[1]));
                }
            }
            rows.push(row(procedure, sent, &alone, behind, &slow)?);
        }
    }
    Ok(rows)
}

fn row(
    procedure: NfsProcedure,
    sent: &'static str,
    alone: &[f64],
    mut behind: Vec<f64>,
    slow: &[f64],
) -> Result<SlowRow> {
    let slow_us = median(slow);
    ensure!(
        slow_us >= SLOWNESS.as_secs_f64() * 1e6,
        "{procedure} takes {slow_us:.0} µs: it never came to the slow file system"
    );
    behind.sort_by(f64::total_cmp);
    let (alone_us, behind_us) = (median(alone), median(&behind));
    Ok(SlowRow {
        op: procedure.name(),
        sent,
        alone_us,
        behind_us,
        behind_p99_us: behind[(behind.len() * 99 / 100).min(behind.len() - 1)],
        delay_us: behind_us - alone_us,
        slow_us,
    })
}
