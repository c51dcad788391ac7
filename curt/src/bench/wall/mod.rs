//! `curt bench wall`: how long programs take on a mount, beside the exported directory itself and a
//! bare FUSE loop over it.

mod passthrough;
mod programs;

use std::io::Write;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use curt_bench::child::UserIds;
use curt_bench::processes::{CountingRelay, Curt, Machine, MountProcess, SETTLE, Testbed, progress_bar};
use curt_bench::report::{lay_out, ratios};
use curt_bench::statistics::{ConfidenceInterval, paired};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;
use tempfile::TempDir;

use self::passthrough::BareLoop;
use self::programs::WorkDone;
pub(super) use self::programs::{TimedProgram, WorkPhase, make_repository};

/// The options that are compared with the defaults.
const FEW_REQUESTS: &str = "noaccesscheck,sloppycto=3";

/// The column of the table that compares versions.
const VERSION_COLUMN: usize = 5;

/// The arguments of `curt bench wall`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Each program runs in its own process: in the exported directory (local), through a pass-through FUSE file\n\
                  system (loop), and on a new mount with default options and with those of --options, with each version of\n\
                  --vers; in turn, round by round, on one processor and on all. Each row shows the median of the rounds. A later\n\
                  version is compared with the first: the median of the ratios of times in the same round, with its interval of\n\
                  95 %. With a delay each request and each reply takes half of it.\n\
                  JSON: {\"machine\",\"rounds\",\"delayed_rounds\",\"rows\":[{\"work\",\"place\":\"local|loop|mount\",\"vers\",\"options\",\"cpus\",\n\
                  \"delay_ms\",\"seconds\",\"ratio_local\",\"ratio_loop\",\"ratio_version\":{\"median\",\"low\",\"high\"}|null,\"requests\",\n\
                  \"fuse_requests\",\"wrong\"}]}\n\
                  Exit status: 0 if every result was right, 1 if not."
)]
pub(crate) struct WallArguments {
    /// The versions of NFS
    #[arg(long, value_name = "VERSION", value_delimiter = ',', default_value = "3")]
    vers: Vec<String>,
    /// Mount options that are compared with the defaults
    #[arg(long, value_name = "OPTIONS", default_value = FEW_REQUESTS)]
    options: String,
    /// Rounds without a delay
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = super::at_least_one())]
    rounds: usize,
    /// Rounds with each delay
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = super::at_least_one())]
    delayed_rounds: usize,
    /// Round trips to the server, in milliseconds
    #[arg(long, value_name = "MS", value_delimiter = ',', default_value = "0,0.2,2")]
    delays: Vec<f64>,
    /// Run only these programs
    #[arg(long, value_name = "PROGRAM", value_delimiter = ',')]
    only: Vec<TimedProgram>,
    /// Where to run
    #[arg(long, value_name = "WHERE", value_delimiter = ',', default_value = "one,all")]
    cpus: Vec<Processors>,
    /// Where a directory for the files is made [default: /dev/shm, or else where temporary files
    /// are]
    #[arg(long, value_name = "DIR")]
    tree: Option<PathBuf>,
    /// Draw the times without a delay to this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print JSON on standard output
    #[arg(long)]
    json: bool,
}

/// Which processors everything runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Processors {
    /// All on one
    One,
    /// Wherever the kernel places it
    All,
}

/// The location in which a program runs.
#[derive(Clone, Debug, PartialEq, Eq)]
enum RunLocation {
    Local,
    Loop,
    Mount { version: String, options: String },
}

impl RunLocation {
    const fn name(&self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Loop => "loop",
            Self::Mount { .. } => "mount",
        }
    }

    /// The version of NFS and the options; empty without a mount.
    fn of_mount(&self) -> (&str, &str) {
        match self {
            Self::Mount { version, options } => (version, options),
            Self::Local | Self::Loop => ("", ""),
        }
    }
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
struct Measured {
    done: WorkDone,
    requests: u64,
    fuse_requests: u64,
}

/// One program in one location, in JSON.
#[derive(Debug, Serialize)]
struct WallRow {
    work: String,
    place: &'static str,
    vers: String,
    options: String,
    cpus: Processors,
    delay_ms: f64,
    seconds: f64,
    ratio_local: f64,
    ratio_loop: f64,
    /// By the first version with the same options.
    ratio_version: Option<ConfidenceInterval>,
    requests: u64,
    fuse_requests: u64,
    wrong: u64,
}

#[derive(Debug, Serialize)]
struct WallReport {
    machine: Machine,
    rounds: usize,
    delayed_rounds: usize,
    rows: Vec<WallRow>,
}

/// Runs it; whether every result was right.
pub(super) fn run(arguments: &WallArguments) -> Result<bool> {
    arguments.svg.as_deref().map_or(Ok(()), super::check_picture)?;
    let programs = programs(&arguments.only)?;
    let top = make_top(arguments.tree.as_deref())?;
    programs::make_trees(top.path(), &programs)?;
    if programs.contains(&TimedProgram::GitStatus) {
        let mut command = child(&["wall-repository"]);
        run_child(command.arg(top.path()))?;
    }
    std::thread::sleep(SETTLE);
    let allowed = sched_getaffinity(None)?;
    let mut rows = Vec::new();
    for cpus in &arguments.cpus {
        sched_setaffinity(None, &cpus.set(&allowed))?;
        for delay in &arguments.delays {
            let bed = WallTestbed::new(arguments, top.path(), *delay)?;
            rows.extend(bed.rows(&programs, *cpus)?);
        }
        sched_setaffinity(None, &allowed)?;
    }
    let report = WallReport {
        machine: Machine::this(),
        rounds: arguments.rounds,
        delayed_rounds: arguments.delayed_rounds,
        rows,
    };
    if let Some(path) = &arguments.svg {
        std::fs::write(path, report.picture()?).with_context(|| path.display().to_string())?;
    }
    let mut out = std::io::stdout().lock();
    match arguments.json {
        true => writeln!(out, "{}", serde_json::to_string(&report)?)?,
        false => write!(out, "{}", report.text())?,
    }
    Ok(report.rows.iter().all(|row| row.wrong == 0))
}

/// The requested programs that are installed on this machine.
fn programs(only: &[TimedProgram]) -> Result<Vec<TimedProgram>> {
    let all = if only.is_empty() { TimedProgram::value_variants() } else { only };
    let mut programs = Vec::new();
    for work in all {
        let has = |program: &str| {
            let mut command = Command::new(program);
            command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        };
        match work.program().filter(|program| !has(program)) {
            Some(program) if only.contains(work) => bail!("{} needs {program}", work.name()),
            Some(program) => eprintln!("{} is left out: there is no {program}", work.name()),
            None => programs.push(*work),
        }
    }
    Ok(programs)
}

/// The directory that is exported: in memory if possible, so that no disk is measured.
fn make_top(given: Option<&Path>) -> Result<TempDir> {
    let memory = Path::new("/dev/shm");
    let parent = match given {
        Some(given) => given.to_owned(),
        None if memory.is_dir() => memory.to_owned(),
        None => std::env::temp_dir(),
    };
    let top = tempfile::Builder::new().prefix("curt-wall-").tempdir_in(&parent);
    let top = top.with_context(|| parent.display().to_string())?;
    std::fs::set_permissions(top.path(), std::fs::Permissions::from_mode(0o755))?;
    Ok(top)
}

impl Processors {
    fn set(self, allowed: &CpuSet) -> CpuSet {
        let first = (0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu));
        match (self, first) {
            (Self::One, Some(first)) => {
                let mut set = CpuSet::new();
                set.set(first);
                set
            }
            _ => *allowed,
        }
    }
}

/// This program again; as the user `nobody` if root runs it, because servers treat root specially.
fn child(arguments: &[&str]) -> Command {
    let mut command = Curt::this().command();
    command.arg("bench").args(arguments);
    if rustix::process::geteuid().is_root() {
        command.uid(UserIds::NOBODY.uid).gid(UserIds::NOBODY.gid);
    }
    command
}

fn run_child(command: &mut Command) -> Result<Vec<u8>> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "{command:?} ended with {}", output.status);
    Ok(output.stdout)
}

/// A server, the way to it, and how often each place is measured.
struct WallTestbed<'a> {
    arguments: &'a WallArguments,
    top: &'a Path,
    delay_ms: f64,
    world: Testbed,
    relay: Option<CountingRelay>,
    rounds: usize,
}

impl<'a> WallTestbed<'a> {
    fn new(arguments: &'a WallArguments, top: &'a Path, delay_ms: f64) -> Result<Self> {
        let world = Testbed::serving(&Curt::this(), top, None)?;
        let round_trip = Duration::try_from_secs_f64(delay_ms / 1000.0).context("--delays")?;
        let relay = match (round_trip.is_zero(), world.port()) {
            (false, Some(port)) => {
                Some(CountingRelay::start((Ipv4Addr::LOCALHOST, port).into(), round_trip)?)
            }
            _ => None,
        };
        let rounds = if relay.is_some() { arguments.delayed_rounds } else { arguments.rounds };
        Ok(Self { arguments, top, delay_ms, world, relay, rounds })
    }

    fn rows(mut self, programs: &[TimedProgram], cpus: Processors) -> Result<Vec<WallRow>> {
        let places = places(self.arguments);
        let place = match cpus {
            Processors::One => "on one processor",
            Processors::All => "on all processors",
        };
        let bar = progress_bar(&format!("{} ms away, {place}", self.delay_ms));
        bar.set_length((programs.len() * self.rounds * places.len()) as u64);
        let mut rows = Vec::new();
        for work in programs {
            let mut measured = vec![Vec::new(); places.len()];
            for _ in 0..self.rounds {
                for (place, measured) in places.iter().zip(&mut measured) {
                    measured.push(self.measure(*work, place)?);
                    bar.inc(1);
                }
            }
            let all: Vec<Measured> = measured.iter().map(|of| median(of)).collect();
            let [local, bare] = [0, 1].map(|place| all.get(place).map_or(f64::NAN, |of| of.done.seconds));
            for (index, (place, median)) in places.iter().zip(&all).enumerate() {
                let (version, options) = place.of_mount();
                let first = places.iter().position(
                    |place| matches!(place, RunLocation::Mount { options: of, .. } if of.as_str() == options),
                );
                let first = first.filter(|first| *first < index && !version.is_empty());
                rows.push(WallRow {
                    work: work.name(),
                    place: place.name(),
                    vers: version.to_owned(),
                    options: options.to_owned(),
                    cpus,
                    delay_ms: self.delay_ms,
                    seconds: median.done.seconds,
                    ratio_local: median.done.seconds / local,
                    ratio_loop: median.done.seconds / bare,
                    ratio_version: first
                        .map(|first| paired(&seconds(&measured[index]), &seconds(&measured[first]))),
                    requests: median.requests,
                    fuse_requests: median.fuse_requests,
                    wrong: median.done.wrong,
                });
            }
        }
        bar.finish_and_clear();
        Ok(rows)
    }

    fn measure(&mut self, work: TimedProgram, place: &RunLocation) -> Result<Measured> {
        match place {
            RunLocation::Local => self.perform(work, self.top, |_| Ok((0, 0))),
            RunLocation::Loop => {
                let target = tempfile::Builder::new().prefix("curt-loop-").tempdir()?;
                let bare = BareLoop::start(self.top, target.path())?;
                let measured = self.perform(work, target.path(), |_| Ok((0, bare.requests())));
                bare.end()?;
                measured
            }
            RunLocation::Mount { version, options } => {
                let through = self.relay.as_ref().map(|relay| format!("port={}", relay.port()));
                let options: Vec<&str> = [options.as_str(), through.as_deref().unwrap_or_default()]
                    .into_iter()
                    .filter(|part| !part.is_empty())
                    .collect();
                let mounted = self.world.mount(version, &options.join(","))?;
                let measured = self.perform(work, mounted.directory(), |work| counts(&mounted, work));
                mounted.end()?;
                measured
            }
        }
    }

    /// Prepares and does each part of it below `top`; the counts are those that `counts` grows by
    /// while the parts are done.
    fn perform(
        &self,
        work: TimedProgram,
        top: &Path,
        counts: impl Fn(TimedProgram) -> Result<(u64, u64)>,
    ) -> Result<Measured> {
        let run = |phase: &str, part: u64| -> Result<WorkDone> {
            let mut command = child(&["wall-work", &work.name(), phase, &part.to_string()]);
            let said = run_child(command.arg(top))?;
            serde_json::from_slice(&said).context("unexpected output of the measured process")
        };
        let mut all = Measured { done: WorkDone { seconds: 0.0, wrong: 0 }, requests: 0, fuse_requests: 0 };
        for part in 0..work.parts() {
            if work.needs_preparation() {
                run("prepare", part)?;
            }
            let before = counts(work)?;
            let done = run("perform", part)?;
            let after = counts(work)?;
            all.done.seconds += done.seconds;
            all.done.wrong += done.wrong;
            all.requests += after.0 - before.0;
            all.fuse_requests += after.1 - before.1;
        }
        Ok(all)
    }
}

/// The locations in which each program runs, in the order of a round.
fn places(arguments: &WallArguments) -> Vec<RunLocation> {
    let mut places = vec![RunLocation::Local, RunLocation::Loop];
    for options in ["", &arguments.options] {
        places.extend(
            arguments
                .vers
                .iter()
                .map(|version| RunLocation::Mount { version: version.clone(), options: options.to_owned() }),
        );
    }
    places
}

/// The requests that a mount has sent, and those that the kernel has sent to it.
fn counts(mounted: &MountProcess, work: TimedProgram) -> Result<(u64, u64)> {
    // Between the parts of a work names would become too old.
    let report = if work.parts() > 1 { mounted.report()? } else { mounted.report_at_rest()? };
    Ok((report.counters.requests.total(), report.fuse.values().sum()))
}

/// The one in the middle by time, with the wrong results of all.
fn median(all: &[Measured]) -> Measured {
    let mut all = all.to_vec();
    all.sort_by(|one, other| one.done.seconds.total_cmp(&other.done.seconds));
    let wrong = all.iter().map(|measured| measured.done.wrong).sum();
    let mut middle = all[all.len() / 2];
    middle.done.wrong = wrong;
    middle
}

fn seconds(all: &[Measured]) -> Vec<f64> {
    all.iter().map(|measured| measured.done.seconds).collect()
}

impl WallRow {
    /// The location in which the program ran.
    fn title(&self) -> String {
        match self.vers.as_str() {
            "" => self.place.to_owned(),
            "3" => super::workload::title(&self.options).to_owned(),
            version => format!("{version}, {}", super::workload::title(&self.options)),
        }
    }

    fn cells(&self) -> Vec<String> {
        // A star marks what a bare loop does in less time.
        let star = if self.ratio_loop > 1.0 { " *" } else { "" };
        vec![
            self.work.clone(),
            format!("{}{star}", self.title()),
            format!("{:.4}", self.seconds),
            format!("{:.2}", self.ratio_local),
            format!("{:.2}", self.ratio_loop),
            self.ratio_version.map_or_else(String::new, |ratio| {
                format!("{:.2} ({:.2} to {:.2})", ratio.median, ratio.low, ratio.high)
            }),
            self.requests.to_string(),
            self.fuse_requests.to_string(),
            self.wrong.to_string(),
        ]
    }
}

impl WallReport {
    fn text(&self) -> String {
        let mut text = format!("{}\n", self.machine.line());
        let head = [
            "work",
            "where",
            "seconds",
            "of local",
            "of loop",
            "of first version",
            "requests",
            "FUSE requests",
            "wrong",
        ];
        let compares_versions = self.rows.iter().any(|row| row.ratio_version.is_some());
        for part in self.parts() {
            let cpus = match part[0].cpus {
                Processors::One => "one processor",
                Processors::All => "all processors",
            };
            text.push_str(&format!("\n{cpus}, round trip {} ms more\n\n", part[0].delay_ms));
            let mut table = vec![head.map(str::to_owned).to_vec()];
            table.extend(part.iter().map(WallRow::cells));
            if !compares_versions {
                table.iter_mut().for_each(|cells| drop(cells.remove(VERSION_COLUMN)));
            }
            text.push_str(&lay_out(&table));
        }
        text.push_str("\n*: the bare FUSE loop takes less time.\n");
        text
    }

    /// The rows of each round trip on the same processors.
    fn parts(&self) -> impl Iterator<Item = &[WallRow]> {
        self.rows.chunk_by(|one, other| (one.cpus, one.delay_ms) == (other.cpus, other.delay_ms))
    }

    /// The times without a delay, as multiples of the exported directory's.
    fn picture(&self) -> Result<String> {
        let first = self.parts().next().context("nothing was measured")?;
        let shown: Vec<&WallRow> = first.iter().filter(|row| row.place != "local").collect();
        let groups: Vec<(String, Vec<f64>)> = shown
            .chunk_by(|one, other| one.work == other.work)
            .map(|rows| (rows[0].work.clone(), rows.iter().map(|row| row.ratio_local).collect()))
            .collect();
        let places = groups.first().map_or(0, |group| group.1.len());
        let series: Vec<String> = shown.iter().take(places).map(|row| row.title()).collect();
        let series: Vec<&str> = series.iter().map(String::as_str).collect();
        let title = "time as a multiple of the exported directory's";
        Ok(ratios::bars(title, &series, &groups)?)
    }
}
