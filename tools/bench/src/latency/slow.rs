//! `cargo xtask bench latency --slow`: how much a slow operation on one export delays a quick one on another, sent behind it over the
//! same connection.
//!
//! The slow export is a file system of ours that takes its time for data (FUSE); the quick one lies in memory. A pair is sent at once, or the
//! quick call a little after the slow one, and the quick call's time is compared with that of one that is alone, in turns.

mod tree;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use curt_bench::processes::{Curt, Daemon, Machine, free_port};
use curt_fuse::{Mount, MountFlags, MountOptions, Session, SessionOptions};
use curt_proto::nfs3::{
    self, CommitArguments, DirectoryName, FileHandle, Filename, LookupOk, Procedure, ReadArguments,
};
use curt_rpc::auth::Credential;
use curt_rpc::record::MARK_SIZE;
use curt_xdr::{Encode, decode_all};
use serde::Serialize;

use self::tree::{FILE, SLOWNESS, SlowTree};
use super::line::{self, Line, connect};
use crate::say;
use crate::statistics::median;

/// How long the server may take to be there.
const START: Duration = Duration::from_secs(20);
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
struct Row {
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

#[derive(Serialize)]
struct Report {
    slow: Vec<Row>,
}

/// Measures and prints; whether no quick call was delayed by more than it may.
pub(super) fn run(credential: &Credential, pairs: usize, json: bool) -> Result<bool> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "bench latency --slow needs root: it mounts a slow file system"
    );
    let place = tempfile::Builder::new().prefix("curt-slow-").tempdir()?;
    let quick = tempfile::Builder::new()
        .prefix("curt-slow-")
        .tempdir_in("/dev/shm")?;
    let slow = place.path().join("slow-export");
    fs::create_dir(&slow)?;
    fs::write(quick.path().join(QUICK), "quick")?;
    let (mount, device) = Mount::new(&slow, &options()).context("mounting the slow file system")?;
    let session = Session::start(device, Arc::new(SlowTree), &SessionOptions::default())?;
    let measured = measure(place.path(), &slow, quick.path(), credential, pairs);
    let _ = mount.detach_if_there();
    session.interrupt_all();
    let report = Report { slow: measured? };
    if json {
        say(&serde_json::to_string(&report)?)?;
    } else {
        say(&format!("{}\n\n{}", Machine::this().line(), table(&report.slow)))?;
    }
    Ok(report.slow.iter().all(|row| row.delay_us <= DELAY_MAX_US))
}

fn options() -> MountOptions {
    MountOptions {
        source: "slow".into(),
        subtype: "slow".into(),
        flags: MountFlags {
            nosuid: true,
            nodev: true,
            ..MountFlags::default()
        },
        allow_other: true,
    }
}

fn measure(
    place: &Path,
    slow: &Path,
    quick: &Path,
    credential: &Credential,
    pairs: usize,
) -> Result<Vec<Row>> {
    let exports = place.join("exports");
    let word = "*(rw,insecure,no_root_squash,no_subtree_check)";
    fs::write(
        &exports,
        format!("{} {word}\n{} {word}\n", slow.display(), quick.display()),
    )?;
    let port = free_port()?;
    let mut command = Curt::beside()?.command();
    command
        .args(["serve", "-c"])
        .arg(&exports)
        .args(["--bind", &format!("127.0.0.1:{port}")])
        .args(["--mount-port", &port.to_string(), "--no-rpcbind", "--state"])
        .arg(place.join("state"));
    let mut daemon = Daemon::start("curt serve", &mut command)?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut line = daemon.until("curt serve accepts", START, || {
        Ok(Line::connect(address, credential).ok())
    })?;
    let slow = file(&mut line, slow, FILE)?;
    let quick = file(&mut line, quick, QUICK)?;
    let stream = connect(address)?;
    stream.set_read_timeout(Some(START))?;
    let mut pairs_of = Pairs {
        stream,
        credential: credential.clone(),
        quick,
        xid: 0,
    };
    let commit = CommitArguments {
        file: slow,
        offset: 0,
        count: 0,
    };
    let read = ReadArguments {
        file: slow,
        offset: 0,
        count: 4096,
    };
    let operations: [(Procedure, &dyn Encode); 2] = [(Procedure::Commit, &commit), (Procedure::Read, &read)];
    let mut rows = Vec::new();
    for operation in operations {
        for (sent, later) in [("together", None), ("1 ms later", Some(LATER))] {
            rows.push(pairs_of.row(operation, (sent, later), pairs)?);
        }
    }
    Ok(rows)
}

/// The handle of a file in the root of an export.
fn file(line: &mut Line, export: &Path, name: &str) -> Result<FileHandle> {
    let directory = line.mount(export.as_os_str().as_encoded_bytes())?;
    let name = Filename::new(name.as_bytes())?;
    let found = line.nfs(Procedure::Lookup, &DirectoryName { directory, name })?;
    Ok(decode_all::<LookupOk>(&found)?.object)
}

/// A connection on which a quick call follows a slow one.
struct Pairs {
    stream: TcpStream,
    credential: Credential,
    quick: FileHandle,
    xid: u32,
}

/// How long the two calls of a pair took, in µs.
struct Times {
    quick: f64,
    slow: f64,
}

impl Pairs {
    fn row(
        &mut self,
        (procedure, arguments): (Procedure, &dyn Encode),
        (sent, later): (&'static str, Option<Duration>),
        pairs: usize,
    ) -> Result<Row> {
        let (mut alone, mut behind, mut slow) = (Vec::new(), Vec::new(), Vec::new());
        for turn in 0..WARM + pairs {
            let one = self.alone()?;
            let both = self.pair(procedure, arguments, later)?;
            if turn >= WARM {
                alone.push(one);
                behind.push(both.quick);
                slow.push(both.slow);
            }
        }
        let slow_us = median(&slow);
        ensure!(
            slow_us >= SLOWNESS.as_secs_f64() * 1e6,
            "{procedure} takes {slow_us:.0} µs: it never came to the slow file system"
        );
        behind.sort_by(f64::total_cmp);
        let (alone_us, behind_us) = (median(&alone), median(&behind));
        Ok(Row {
            op: procedure.name(),
            sent,
            alone_us,
            behind_us,
            behind_p99_us: behind[(behind.len() * 99 / 100).min(behind.len() - 1)],
            delay_us: behind_us - alone_us,
            slow_us,
        })
    }

    fn encode(&mut self, out: &mut Vec<u8>, procedure: Procedure, arguments: &dyn Encode) -> u32 {
        self.xid += 1;
        let program = (nfs3::PROGRAM, nfs3::VERSION, procedure.number());
        line::encode(out, self.xid, program, &self.credential, arguments);
        self.xid
    }

    /// The time of a quick call with nothing before it, in µs.
    fn alone(&mut self) -> Result<f64> {
        let mut out = Vec::new();
        let quick = self.quick;
        let xid = self.encode(&mut out, Procedure::Getattr, &quick);
        let start = Instant::now();
        std::io::Write::write_all(&mut self.stream, &out)?;
        let answered = self.answered()?;
        ensure!(answered == xid, "a reply to no call");
        Ok(start.elapsed().as_secs_f64() * 1e6)
    }

    /// The times of a slow call and a quick one behind it.
    fn pair(
        &mut self,
        procedure: Procedure,
        arguments: &dyn Encode,
        later: Option<Duration>,
    ) -> Result<Times> {
        let mut out = Vec::new();
        let slow = self.encode(&mut out, procedure, arguments);
        let begun = Instant::now();
        if let Some(later) = later {
            std::io::Write::write_all(&mut self.stream, &out)?;
            out.clear();
            std::thread::sleep(later);
        }
        let file = self.quick;
        let quick = self.encode(&mut out, Procedure::Getattr, &file);
        let start = Instant::now();
        std::io::Write::write_all(&mut self.stream, &out)?;
        let mut times = Times {
            quick: 0.0,
            slow: 0.0,
        };
        for _ in 0..2 {
            match self.answered()? {
                xid if xid == quick => times.quick = start.elapsed().as_secs_f64() * 1e6,
                xid if xid == slow => times.slow = begun.elapsed().as_secs_f64() * 1e6,
                xid => bail!("a reply to no call: {xid}"),
            }
        }
        Ok(times)
    }

    /// Receives a reply, which is to be a success; the number of its call.
    fn answered(&mut self) -> Result<u32> {
        let mut reply = vec![0; MARK_SIZE];
        std::io::Read::read_exact(&mut self.stream, &mut reply)?;
        let mark = u32::from_be_bytes([reply[0], reply[1], reply[2], reply[3]]);
        reply.resize(MARK_SIZE + usize::try_from(mark & 0x7fff_ffff)?, 0);
        std::io::Read::read_exact(&mut self.stream, &mut reply[MARK_SIZE..])?;
        let results = line::results(&reply)?;
        ensure!(
            results.starts_with(&[0; 4]),
            "a call failed: {:?}",
            results.first_chunk::<4>()
        );
        Ok(super::client::number_at(&reply))
    }
}

fn table(rows: &[Row]) -> String {
    use std::fmt::Write as _;
    let mut text = String::from(
        "A GETATTR behind a slow operation on another export, over one connection (µs, medians)\n\n  \
         slow operation  sent        alone  behind  p99 behind  delay  (the slow one)\n",
    );
    for row in rows {
        let _ = writeln!(
            text,
            "  {:<14}  {:<10}  {:>5.1}  {:>6.1}  {:>10.1}  {:>5.1}  {:>14.0}",
            row.op, row.sent, row.alone_us, row.behind_us, row.behind_p99_us, row.delay_us, row.slow_us
        );
    }
    text
}
