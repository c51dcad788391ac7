//! One pass through the directory: `ls -f` on a new mount behind the relay, with each name checked,
//! with or without a second client that creates files.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use curt_bench::processes::names::{self, Listed};
use curt_bench::processes::{CountingRelay, Counts, MountProcess, Testbed, resident_mib};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

/// Interval at which the second client creates a file.
const CREATE_EACH: Duration = Duration::from_secs(1);

/// Maximum attribute timeout of directories on the mount; see [`OPTIONS`].
const BELIEVED: Duration = Duration::from_secs(2);

/// The mount's options in each pass.
pub(super) const OPTIONS: &str = "acdirmin=1,acdirmax=2";

/// Number of names between two progress samples.
const NOTE_EACH: u64 = 1000;

/// The result of a pass, as printed in JSON.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ListingRunFigures {
    /// Number of READDIRs and READDIRPLUSes.
    pub(super) readdir: u64,
    /// Listing requests with cookie 0.
    pub(super) cookie_zero: u64,
    pub(super) seconds: f64,
    /// Number of files that the second client created meanwhile.
    pub(super) created: u64,
    /// How often no reply contained the directory's attributes for longer than their timeout.
    pub(super) expired: u64,
    pub(super) missing: u64,
    pub(super) doubled: u64,
}

/// The result of a pass, with values that are not in JSON.
#[derive(Clone, Debug)]
pub(super) struct ListingRun {
    pub(super) figures: ListingRunFigures,
    pub(super) gave_up: bool,
    /// Seconds until the first name.
    pub(super) first: f64,
    /// Resident memory of the mount's daemon afterwards.
    pub(super) memory_mib: f64,
    /// Number of names by seconds.
    pub(super) progress: Vec<(f64, u64)>,
}

/// The parameters of a pass.
#[derive(Clone, Debug)]
pub(super) struct ListingRunPlan<'a> {
    /// Mount options in addition to [`OPTIONS`].
    pub(super) options: &'a str,
    /// The delay of every third reply.
    pub(super) hold: Option<Duration>,
    /// The directory where the second client creates files.
    pub(super) changing: Option<&'a Path>,
    /// The timeout of the pass.
    pub(super) limit: Option<Duration>,
}

/// The setup for passes.
pub(super) struct ListingSetup<'a> {
    pub(super) world: &'a mut Testbed,
    pub(super) relay: &'a CountingRelay,
    /// The mount options for the relay.
    pub(super) through: &'a str,
    pub(super) vers: &'a str,
    pub(super) count: u64,
}

impl ListingSetup<'_> {
    /// Mounts through the relay.
    pub(super) fn mount(&mut self, options: &str) -> Result<MountProcess> {
        let all = [options, self.through].join(",");
        self.world.mount(self.vers, all.trim_start_matches(','))
    }

    /// Runs a pass.
    pub(super) fn pass(&mut self, plan: &ListingRunPlan<'_>) -> Result<ListingRun> {
        if let Some(directory) = plan.changing {
            // Left by a failed pass.
            names::remove_created(directory)?;
        }
        let options = [OPTIONS, plan.options].join(",");
        let mounted = self.mount(options.trim_end_matches(','))?;
        let directory = names::directory(mounted.directory(), self.count);
        self.relay.begin(plan.hold);
        let (stop, stopped) = mpsc::channel::<()>();
        let (listed, created) = std::thread::scope(|scope| {
            let writer = plan.changing.map(|directory| scope.spawn(move || write(directory, &stopped)));
            let listed = list(&directory, self.count, plan.limit);
            drop(stop);
            let created = writer.map_or(Ok(0), |writer| {
                writer.join().unwrap_or_else(|_| anyhow::bail!("the second client failed"))
            });
            (listed, created)
        });
        let (listed, created) = (listed?, created?);
        let counts = self.relay.counts();
        let memory_mib = resident_mib(mounted.pid())?;
        mounted.end()?;
        if let Some(directory) = plan.changing {
            names::remove_created(directory)?;
        }
        let figures = ListingRunFigures {
            readdir: counts.readdir,
            cookie_zero: counts.cookie_zero,
            seconds: listed.seconds,
            created,
            expired: expired(&counts, listed.began),
            missing: listed.seen.missing(),
            doubled: listed.seen.doubled,
        };
        Ok(ListingRun {
            figures,
            gave_up: listed.gave_up,
            first: listed.progress.first().map_or(listed.seconds, |(seconds, _)| *seconds),
            memory_mib,
            progress: listed.progress,
        })
    }
}

/// How often the directory's attributes were not renewed for longer than their timeout.
fn expired(counts: &Counts, began: Instant) -> u64 {
    let mut last = began;
    let mut expired = 0;
    let mut renewed = counts.renewed.clone();
    renewed.sort_unstable();
    for reply in renewed {
        expired += u64::from(reply.saturating_duration_since(last) > BELIEVED);
        last = reply;
    }
    expired
}

struct LsRun {
    seen: Listed,
    began: Instant,
    seconds: f64,
    gave_up: bool,
    progress: Vec<(f64, u64)>,
}

/// Lists with `ls -f`, until its timeout.
fn list(directory: &Path, count: u64, limit: Option<Duration>) -> Result<LsRun> {
    let began = Instant::now();
    let mut child = Command::new("ls")
        .args(["-f", "-1"])
        .arg(directory)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run ls")?;
    let out = child.stdout.take().context("ls has an output")?;
    let pid = Pid::from_child(&child);
    let (end, ended) = mpsc::channel::<()>();
    let mut seen = Listed::new(count)?;
    let mut progress = Vec::new();
    let read = std::thread::scope(|scope| {
        let watch = limit.map(|limit| {
            scope.spawn(move || {
                let is_over = ended.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout);
                is_over && kill_process(pid, Signal::KILL).is_ok()
            })
        });
        let read = read_names(BufReader::new(out), &mut seen, |count| {
            progress.push((began.elapsed().as_secs_f64(), count));
        });
        drop(end);
        (read, watch.is_some_and(|watch| watch.join().unwrap_or(false)))
    });
    let status = child.wait()?;
    let (result, gave_up) = read;
    result?;
    ensure!(gave_up || status.success(), "ls -f {} ended with {status}", directory.display());
    let seconds = began.elapsed().as_secs_f64();
    progress.push((seconds, seen.count));
    Ok(LsRun { seen, began, seconds, gave_up, progress })
}

fn read_names(mut out: impl BufRead, seen: &mut Listed, mut note: impl FnMut(u64)) -> Result<()> {
    let mut line = Vec::new();
    // The last line is incomplete if the listing was stopped.
    while out.read_until(b'\n', &mut line)? > 0 && line.ends_with(b"\n") {
        seen.add(line.trim_ascii_end())?;
        if seen.count % NOTE_EACH == 1 {
            note(seen.count);
        }
        line.clear();
    }
    Ok(())
}

/// Creates one file per second until it is stopped; returns their number.
fn write(directory: &Path, stopped: &mpsc::Receiver<()>) -> Result<u64> {
    let mut number = 0;
    loop {
        names::create(directory, number)?;
        number += 1;
        if stopped.recv_timeout(CREATE_EACH) != Err(mpsc::RecvTimeoutError::Timeout) {
            return Ok(number);
        }
    }
}
