//! `curt bench lock`: many processes take turns with one lock.
//!
//! Each process locks a file, holds it, unlocks it and rests. The same is done with a local file.
//! Grabs, fairness and waits are compared with those, and with what a perfect FIFO would give.

mod acquisitions;
mod figures;
mod floor;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use curt_bench::processes::{Curt, Machine, MountProcess, Testbed, names, processor_time, progress_bar};
use curt_bench::report::{lay_out, progress};
use curt_observe::control::{self, MountReport};
use serde_json::json;
use tempfile::TempDir;

use self::acquisitions::AcquisitionPlan;
pub(super) use self::acquisitions::{LockWork, work};
use self::figures::{LockCost, LockRun, TurnTime};
use crate::output;

/// Processes of the run with `locks=server-first`.
const SERVER_FIRST_PROCESSES: u32 = 200;

/// Arguments of `curt bench lock`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Runs are interleaved: mount, local, mount, local; with --floor and --server-first: mount, local, floor, server-first, mount. A lock granted after --seconds have passed counts as part of the drain.\n\
                  JSON: {\"server\",\"vers\",\"options\",\"clients\",\"hold\",\"rest\",\"seconds\",\"runs\":[{\"place\":\"local|mount|floor|server-first\",\"processes\",\"grabs\",\"ideal_grabs\",\n\
                  \"client_grabs\":[n],\"drain_grabs\",\"drain_seconds\",\"ideal_drain_seconds\",\"jain\",\"fifo_jain\",\"ahead\",\"client_ahead\":[n],\"wait_p50\",\"wait_p99\",\"wait_max\",\"wrong\",\"stopped\",\n\
                  \"turn\":{\"beyond_hold\",\"LOCK\",\"UNLOCK\",\"GRANTED\",\"rest\"},\"cost\":{\"requests\":{\"LOCK\",\"UNLOCK\",\"CANCEL\",\"TEST\",\"GRANTED\"},\"denied\",\"client_cpu\",\"server_cpu\"}}]}; times are in seconds\n\
                  turn: the mean time of a turn beyond the hold. Of it LOCK, UNLOCK and GRANTED (waits for the callback of a blocked LOCK) are the server's and the network's,\n\
                  as the mounts measured them; rest is that of the mount, the kernel and the processes. Of several clients there is no rest: their requests overlap the turns.\n\
                  Exit status: 0; 1 if two processes held the lock at once.\n\n\
                  Examples:\n  curt bench lock --server nas:/export --processes 2000 --seconds 60 --json\n  curt bench lock --at /mnt --hold 5ms --rest 0ms"
)]
pub(crate) struct BenchLockArguments {
    /// The version of NFS
    #[arg(long, value_name = "VERSION", default_value = "3")]
    vers: String,
    /// Mount options [default: none]
    #[arg(long, value_name = "OPTIONS", default_value = "", hide_default_value = true)]
    options: String,
    /// Use this server instead of starting one
    #[arg(long, value_name = "HOST:/PATH")]
    server: Option<String>,
    /// Lock a file in this directory, on any file system
    #[arg(long, value_name = "DIR", conflicts_with_all = ["server", "options", "vers", "clients", "server_first"])]
    at: Option<PathBuf>,
    /// Where the local file is [default: where temporary files are]
    #[arg(long, value_name = "DIR")]
    local: Option<PathBuf>,
    /// Mounts
    #[arg(long, value_name = "C", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    clients: u32,
    /// Processes on each mount
    #[arg(long, value_name = "P", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    processes: u32,
    /// How long each holds the lock, such as 500us, 20ms or 1s
    #[arg(long, value_name = "TIME", default_value = "20ms", value_parser = held)]
    hold: Duration,
    /// Pause between unlocking and the next request
    #[arg(long, value_name = "TIME", default_value = "20ms", value_parser = duration)]
    rest: Duration,
    /// For how long processes begin to wait
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// How long the first lock of a run may take; servers grant none in their grace period
    #[arg(long, value_name = "TIME", default_value = "120s", value_parser = held)]
    first_lock: Duration,
    /// Pairs of runs
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pairs: u32,
    /// Let as many processes take turns through an agent that sends two messages to an echo over
    /// TCP after each: the least that turns take if a server is asked
    #[arg(long)]
    floor: bool,
    /// Let 200 processes on a mount with locks=server-first take turns after each pair, for at most
    /// twice the ideal time
    #[arg(long)]
    server_first: bool,
    /// Write a plot of lock acquisitions over time to this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print JSON on standard output
    #[arg(long)]
    json: bool,
}

/// A time with a unit, of at most an hour.
fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let scale = match &text[digits.len()..] {
        "us" => Some(1e-6),
        "ms" => Some(1e-3),
        "s" => Some(1.0),
        _ => None,
    };
    let is_plain = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let number: Option<f64> = digits.parse().ok().filter(|_| is_plain);
    let seconds = number.zip(scale).map(|(number, scale)| number * scale);
    seconds
        .filter(|seconds| *seconds <= 3600.0)
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| "takes a time of at most an hour, such as 500us, 20ms or 1s".to_owned())
}

/// A time that is not zero.
fn held(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    if time.is_zero() { Err("takes a time above 0, such as 20ms".to_owned()) } else { Ok(time) }
}

impl BenchLockArguments {
    fn plan(&self) -> AcquisitionPlan {
        AcquisitionPlan {
            processes: self.processes,
            hold: self.hold,
            rest: self.rest,
            time: Duration::from_secs(self.seconds.into()),
            first_lock: self.first_lock,
            limit: None,
        }
    }

    /// The run with `locks=server-first`: fewer processes, and a time limit.
    fn server_first_plan(&self) -> AcquisitionPlan {
        let processes = self.processes.min(SERVER_FIRST_PROCESSES);
        let plan = self.plan();
        AcquisitionPlan { processes, limit: Some((plan.time + self.hold * processes) * 2), ..plan }
    }
}

/// Where turns are taken besides the local file.
enum LockedPlace {
    Directory(PathBuf),
    Served { world: Testbed, _export: Option<TempDir> },
}

/// Runs the benchmark; returns whether the lock was exclusive.
pub(super) fn run(arguments: &BenchLockArguments) -> Result<bool> {
    arguments.svg.as_deref().map_or(Ok(()), super::check_picture)?;
    let local = match &arguments.local {
        Some(directory) => TempDir::with_prefix_in("curt-bench-", directory)?,
        None => TempDir::with_prefix("curt-bench-")?,
    };
    let mut place = LockedPlace::new(arguments)?;
    let plan = arguments.plan();
    let mut runs = Vec::new();
    for _ in 0..arguments.pairs {
        let both = AcquisitionPlan { processes: plan.processes * arguments.clients, ..plan };
        runs.push(place.take("mount", &arguments.options, arguments, &plan)?);
        runs.push(take("local", &[local.path().to_owned()], &both, None)?);
        if arguments.floor {
            runs.push(floor(&both)?);
        }
        if arguments.server_first {
            let options = [arguments.options.as_str(), "locks=server-first"].join(",");
            let plan = arguments.server_first_plan();
            runs.push(place.take("server-first", options.trim_start_matches(','), arguments, &plan)?);
        }
    }
    if let Some(path) = &arguments.svg {
        let lines: Vec<_> = runs.iter().map(|run| (run.place, run.progress.as_slice())).collect();
        let svg = progress::lines("grabs of one lock over time", "grabs", &lines)?;
        std::fs::write(path, svg).with_context(|| path.display().to_string())?;
    }
    print(arguments, &place, &runs)?;
    Ok(runs.iter().all(|run| run.wrong == 0))
}

impl LockedPlace {
    fn new(arguments: &BenchLockArguments) -> Result<Self> {
        if let Some(directory) = &arguments.at {
            return Ok(Self::Directory(std::path::absolute(directory)?));
        }
        if let Some(server) = &arguments.server {
            return Ok(Self::Served { world: Testbed::elsewhere(&Curt::this(), server)?, _export: None });
        }
        let export = TempDir::with_prefix("curt-bench-")?;
        names::open_directory(export.path())?;
        let world = Testbed::serving(&Curt::this(), export.path(), None)?;
        Ok(Self::Served { world, _export: Some(export) })
    }

    fn source(&self) -> String {
        match self {
            Self::Directory(directory) => directory.display().to_string(),
            Self::Served { world, .. } => world.source().to_owned(),
        }
    }

    /// Takes turns, on new mounts if it is not a directory.
    fn take(
        &mut self,
        name: &'static str,
        options: &str,
        arguments: &BenchLockArguments,
        plan: &AcquisitionPlan,
    ) -> Result<LockRun> {
        let world = match self {
            Self::Directory(directory) => return take(name, std::slice::from_ref(directory), plan, None),
            Self::Served { world, .. } => world,
        };
        let mounts = (0..arguments.clients).map(|_| world.mount(&arguments.vers, options));
        let mounts = mounts.collect::<Result<Vec<_>>>()?;
        let directories: Vec<_> = mounts.iter().map(|mount| mount.directory().to_owned()).collect();
        let run = take(name, &directories, plan, world.server_pid())?;
        mounts.into_iter().try_for_each(MountProcess::end)?;
        Ok(run)
    }
}

/// Takes turns in directories that all have the same file.
fn take(
    name: &'static str,
    directories: &[PathBuf],
    plan: &AcquisitionPlan,
    server: Option<u32>,
) -> Result<LockRun> {
    directories.iter().try_for_each(|directory| acquisitions::prepare(directory, plan.first_lock))?;
    let clients = directories.len();
    let count = plan.processes as usize * clients;
    let bar = progress_bar(&format!("{name}: {count} processes for {} s", plan.time.as_secs()));
    bar.set_length(expected(plan));
    let before = cost(directories, server);
    let taken = acquisitions::take(directories, plan, false, &bar)?;
    let cost = before.zip(cost(directories, server)).map(|(before, after)| after.since(&before));
    bar.finish_and_clear();
    acquisitions::remove(&directories[0])?;
    Ok(LockRun::new(name, clients, plan, &taken, cost))
}

/// Takes turns without a file system.
fn floor(plan: &AcquisitionPlan) -> Result<LockRun> {
    let bar = progress_bar(&format!("floor: {} processes for {} s", plan.processes, plan.time.as_secs()));
    bar.set_length(expected(plan));
    let taken = floor::take(plan, &bar)?;
    bar.finish_and_clear();
    Ok(LockRun::new("floor", 1, plan, &taken, None))
}

/// About how many turns there will be.
fn expected(plan: &AcquisitionPlan) -> u64 {
    u64::try_from(plan.time.as_nanos() / plan.hold.as_nanos()).unwrap_or(u64::MAX)
}

/// The cost so far of the Curt mounts of directories; `None` if one is not on such a mount.
fn cost(directories: &[PathBuf], server: Option<u32>) -> Option<LockCost> {
    let mounts = directories.iter().map(|directory| report(directory)).collect::<Option<Vec<_>>>()?;
    let times = mounts.iter().map(|mount| processor_time(mount.pid).ok());
    let client = times.sum::<Option<Duration>>()?;
    Some(LockCost { mounts, client, server: server.and_then(|pid| processor_time(pid).ok()) })
}

/// The report of the Curt mount that a directory is on.
fn report(directory: &Path) -> Option<MountReport> {
    let mounts = control::list(&control::directory()).ok()?;
    mounts.into_iter().map(|(_, mount)| mount).find(|mount| directory.starts_with(&mount.mount_point))
}

fn print(arguments: &BenchLockArguments, place: &LockedPlace, runs: &[LockRun]) -> Result<()> {
    let BenchLockArguments { vers, options, clients, hold, rest, seconds, .. } = arguments;
    if arguments.json {
        let report = json!({
            "server": place.source(), "vers": vers, "options": options, "clients": clients,
            "hold": hold.as_secs_f64(), "rest": rest.as_secs_f64(), "seconds": seconds, "runs": runs,
        });
        return output::print(&format!("{report}\n"));
    }
    let rows: Vec<_> =
        std::iter::once(HEAD.map(str::to_owned).to_vec()).chain(runs.iter().map(row)).collect();
    output::print(&format!(
        "{}\n{} s of turns at {}, {hold:?} held and {rest:?} of rest\n{}",
        Machine::this().line(),
        seconds,
        place.source(),
        lay_out(&rows)
    ))
}

const HEAD: [&str; 24] = [
    "run",
    "processes",
    "grabs",
    "ideal",
    "drain",
    "s",
    "ideal",
    "Jain",
    "FIFO",
    "ahead",
    "p50 s",
    "p99 s",
    "beyond hold ms",
    "LOCK ms",
    "UNLOCK ms",
    "GRANTED ms",
    "rest ms",
    "LOCK",
    "UNLOCK",
    "CANCEL",
    "GRANTED",
    "denied",
    "client CPU s",
    "server CPU s",
];

fn row(run: &LockRun) -> Vec<String> {
    let request = |name| run.cost.as_ref().map(|cost| cost.requests.get(name).copied().unwrap_or(0));
    let shown = |value: Option<u64>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
    let time = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
    let milliseconds = |seconds: Option<f64>| {
        seconds.map_or_else(|| "-".to_owned(), |seconds| format!("{:.2}", seconds * 1e3))
    };
    let TurnTime { beyond_hold, server, rest } = &run.turn;
    let of_server = |name| milliseconds(server.get(name).copied());
    let name = if run.stopped { format!("{} (stopped)", run.place) } else { run.place.to_owned() };
    vec![
        name,
        run.processes.to_string(),
        run.grabs.to_string(),
        format!("{:.0}", run.ideal_grabs),
        run.drain_grabs.to_string(),
        format!("{:.2}", run.drain_seconds),
        format!("{:.2}", run.ideal_drain_seconds),
        format!("{:.4}", run.jain),
        format!("{:.4}", run.fifo_jain),
        run.ahead.to_string(),
        format!("{:.3}", run.wait_p50),
        format!("{:.3}", run.wait_p99),
        milliseconds(Some(*beyond_hold)),
        of_server("LOCK"),
        of_server("UNLOCK"),
        of_server("GRANTED"),
        milliseconds(*rest),
        shown(request("LOCK")),
        shown(request("UNLOCK")),
        shown(request("CANCEL")),
        shown(request("GRANTED")),
        shown(run.cost.as_ref().map(|cost| cost.denied)),
        time(run.cost.as_ref().map(|cost| cost.client_cpu)),
        time(run.cost.as_ref().and_then(|cost| cost.server_cpu)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units_and_a_largest_value() {
        for (text, microseconds) in [("500us", 500), ("20ms", 20_000), ("1.5s", 1_500_000), ("0s", 0)] {
            assert_eq!(duration(text), Ok(Duration::from_micros(microseconds)));
        }
        for text in ["", "20", "ms", "-1s", "1h", "3601s", "1e3s", "infs"] {
            assert!(duration(text).is_err(), "{text}");
        }
        assert!(held("0ms").is_err() && held("1ms").is_ok());
    }
}
