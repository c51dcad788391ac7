//! `curt bench lock`: many processes take turns with one lock.
//!
//! Each process locks a file, holds it, unlocks it and rests. The turns within the given time, the
//! order of the turns and the waits are compared with those on another file system, and with what a
//! perfect queue would give.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use curt_observe::ClientCounter;
use curt_observe::control;
use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::output;

/// Arguments of `curt bench lock`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The file .curt-bench-lock is made in each directory and removed. Beside another directory, such as a local one, the runs are interleaved: other, measured, other, measured.\n\n\
                  Examples:\n  curt bench lock /mnt --beside /tmp\n  curt bench lock /mnt --processes 2000 --seconds 60 --json"
)]
pub(crate) struct LockArguments {
    /// A directory on the mount
    directory: PathBuf,
    /// Another directory to compare with
    #[arg(long, value_name = "DIR")]
    beside: Option<PathBuf>,
    /// Processes
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    processes: u32,
    /// How long each holds the lock, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    hold: u32,
    /// How long each rests afterwards, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 20, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    rest: u32,
    /// For how long turns begin, in seconds
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Runs in each directory
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pairs: u32,
    /// Print JSON: an array with an object for each run
    #[arg(long)]
    json: bool,
}

/// Arguments of one of the processes.
#[derive(Debug, clap::Args)]
pub(crate) struct LockWork {
    file: PathBuf,
    hold: u32,
    rest: u32,
    seconds: u32,
}

/// The figures of one run. Times are in seconds.
#[derive(Debug, Serialize)]
struct LockRun {
    directory: PathBuf,
    processes: u32,
    /// Turns that began within the time.
    grabs: usize,
    /// Those of a lock that is never free.
    ideal_grabs: f64,
    /// Turns of processes that had begun to wait within the time.
    drain_grabs: usize,
    drain_seconds: f64,
    ideal_drain_seconds: f64,
    /// Jain's index of the processes' turns within the time, and that of a perfect queue.
    fairness: f64,
    queue_fairness: f64,
    /// Turns that one process had more than another.
    ahead: usize,
    wait_p50: f64,
    wait_p99: f64,
    wait_max: f64,
    /// Of a Curt mount.
    #[serde(skip_serializing_if = "Option::is_none")]
    requests: Option<LockRequests>,
}

/// Requests of a mount.
#[derive(Debug, Serialize)]
struct LockRequests {
    lock: u64,
    denied: u64,
    repeated: u64,
    callbacks: u64,
}

/// A turn: when the process began to wait, and when it got the lock, in nanoseconds.
type Turn = (u64, u64);

/// Runs the benchmark.
pub(super) fn run(arguments: &LockArguments) -> Result<bool> {
    let mut runs = Vec::new();
    for _ in 0..arguments.pairs {
        for directory in arguments.beside.iter().chain([&arguments.directory]) {
            let run = measure(arguments, directory).with_context(|| directory.display().to_string())?;
            if !arguments.json {
                output::print(&text(&run))?;
            }
            runs.push(run);
        }
    }
    if arguments.json {
        output::print(&(serde_json::to_string_pretty(&runs)? + "\n"))?;
    }
    Ok(true)
}

fn measure(arguments: &LockArguments, directory: &Path) -> Result<LockRun> {
    let file = directory.join(".curt-bench-lock");
    File::create(&file)?;
    let before = counters(directory);
    let mut children = (0..arguments.processes)
        .map(|_| {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(["bench", "lock-work"]).arg(&file);
            command
                .args([arguments.hold, arguments.rest, arguments.seconds].map(|number| number.to_string()));
            Ok(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?)
        })
        .collect::<Result<Vec<Child>>>()?;
    // Each says that it is there before it is told to begin.
    let mut outputs = Vec::new();
    for child in &mut children {
        let mut output = BufReader::new(child.stdout.take().context("no output")?);
        output.read_line(&mut String::new())?;
        outputs.push(output);
    }
    let began = now();
    for child in &mut children {
        child.stdin.take().context("no input")?.write_all(&began.to_ne_bytes())?;
    }
    let readers = outputs.into_iter().map(|output| thread::spawn(move || read_turns(output)));
    let readers: Vec<_> = readers.collect();
    let turns = readers.into_iter().map(|reader| reader.join().unwrap_or_else(|_| Ok(Vec::new())));
    let turns = turns.collect::<Result<Vec<Vec<Turn>>>>()?;
    for mut child in children {
        let status = child.wait()?;
        ensure!(status.success(), "a process failed: {status}");
    }
    let requests = before.zip(counters(directory)).map(|(before, after)| LockRequests {
        lock: after.lock - before.lock,
        denied: after.denied - before.denied,
        repeated: after.repeated - before.repeated,
        callbacks: after.callbacks - before.callbacks,
    });
    std::fs::remove_file(&file)?;
    Ok(evaluate(arguments, directory, began, &turns, requests))
}

fn read_turns(output: impl std::io::BufRead) -> Result<Vec<Turn>> {
    let parse = |line: String| -> Result<Turn> {
        let (wait, grab) = line.split_once(' ').context("half a line")?;
        Ok((wait.parse()?, grab.parse()?))
    };
    output.lines().map(|line| parse(line?)).collect()
}

/// The counters of the mount that a directory is on, if it is one of Curt's.
fn counters(directory: &Path) -> Option<LockRequests> {
    let directory = std::path::absolute(directory).ok()?;
    let mounts = control::list(&control::directory()).ok()?;
    let (_, mount) = mounts.into_iter().find(|(_, mount)| directory.starts_with(&mount.mount_point))?;
    let value = |counter| mount.counters.events.value(counter);
    Some(LockRequests {
        lock: value(ClientCounter::LockWire),
        denied: value(ClientCounter::LockDenied),
        repeated: value(ClientCounter::LockPoll),
        callbacks: value(ClientCounter::LockCallback),
    })
}

#[expect(clippy::cast_precision_loss, reason = "counts and times are far below 2^52")]
fn evaluate(
    arguments: &LockArguments,
    directory: &Path,
    began: u64,
    turns: &[Vec<Turn>],
    requests: Option<LockRequests>,
) -> LockRun {
    let nanoseconds = |seconds: u32| u64::from(seconds) * 1_000_000_000;
    let end = began + nanoseconds(arguments.seconds);
    let counts: Vec<usize> =
        turns.iter().map(|turns| turns.iter().filter(|(_, grab)| *grab < end).count()).collect();
    let mut waits: Vec<u64> = turns.iter().flatten().map(|(wait, grab)| grab - wait).collect();
    waits.sort_unstable();
    let wait = |share: f64| {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index")]
        let index = (waits.len().saturating_sub(1) as f64 * share) as usize;
        waits.get(index).map_or(0.0, |wait| *wait as f64 / 1e9)
    };
    let hold = f64::from(arguments.hold) / 1e3;
    let grabs: usize = counts.iter().sum();
    let drain_grabs = turns.iter().flatten().filter(|(_, grab)| *grab >= end).count();
    let last = turns.iter().flatten().map(|(_, grab)| *grab).max().unwrap_or(end);
    let (share, rest) = (grabs / counts.len(), grabs % counts.len());
    let queue: Vec<usize> = (0..counts.len()).map(|number| share + usize::from(number < rest)).collect();
    LockRun {
        directory: directory.to_owned(),
        processes: arguments.processes,
        grabs,
        ideal_grabs: f64::from(arguments.seconds) / hold,
        drain_grabs,
        drain_seconds: last.saturating_sub(end) as f64 / 1e9 + hold,
        ideal_drain_seconds: drain_grabs as f64 * hold,
        fairness: jain(&counts),
        queue_fairness: jain(&queue),
        ahead: counts.iter().max().unwrap_or(&0) - counts.iter().min().unwrap_or(&0),
        wait_p50: wait(0.5),
        wait_p99: wait(0.99),
        wait_max: wait(1.0),
        requests,
    }
}

/// Jain's index: 1 if all are equal, 1/n if one has everything.
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn jain(counts: &[usize]) -> f64 {
    let sum: f64 = counts.iter().map(|count| *count as f64).sum();
    let squares: f64 = counts.iter().map(|count| (*count as f64).powi(2)).sum();
    if squares == 0.0 { 1.0 } else { sum * sum / (counts.len() as f64 * squares) }
}

fn text(run: &LockRun) -> String {
    let mut text = format!(
        "{}: {} processes\n  turns {} of {:.0}, then {} in {:.2} s (ideal {:.2} s)\n  \
         fairness {:.4} (perfect queue {:.4}), at most {} ahead\n  wait p50 {:.3} s, p99 {:.3} s, longest {:.3} s\n",
        run.directory.display(),
        run.processes,
        run.grabs,
        run.ideal_grabs,
        run.drain_grabs,
        run.drain_seconds,
        run.ideal_drain_seconds,
        run.fairness,
        run.queue_fairness,
        run.ahead,
        run.wait_p50,
        run.wait_p99,
        run.wait_max
    );
    if let Some(LockRequests { lock, denied, repeated, callbacks }) = &run.requests {
        text += &format!(
            "  LOCK {lock}: {denied} denied or blocked, {repeated} repeated, {callbacks} granted by callback\n"
        );
    }
    text
}

/// One of the processes.
pub(super) fn work(work: &LockWork) -> Result<()> {
    let file = File::options().read(true).write(true).open(&work.file)?;
    let (mut input, mut output) = (std::io::stdin().lock(), std::io::stdout().lock());
    writeln!(output, "ready")?;
    output.flush()?;
    let mut began = [0; 8];
    input.read_exact(&mut began)?;
    let end = u64::from_ne_bytes(began) + u64::from(work.seconds) * 1_000_000_000;
    let mut turns: Vec<Turn> = Vec::new();
    loop {
        let wait = now();
        if wait >= end {
            break;
        }
        fcntl_lock(&file, FlockOperation::LockExclusive)?;
        turns.push((wait, now()));
        thread::sleep(Duration::from_millis(work.hold.into()));
        fcntl_lock(&file, FlockOperation::Unlock)?;
        thread::sleep(Duration::from_millis(work.rest.into()));
    }
    for (wait, grab) in turns {
        writeln!(output, "{wait} {grab}")?;
    }
    Ok(())
}

/// The monotonic clock, which all processes share, in nanoseconds.
fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let part = |value: i64| u64::try_from(value).unwrap_or(0);
    part(time.tv_sec) * 1_000_000_000 + part(time.tv_nsec)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(processes: u32) -> LockArguments {
        LockArguments {
            directory: PathBuf::new(),
            beside: None,
            processes,
            hold: 100,
            rest: 0,
            seconds: 1,
            pairs: 1,
            json: false,
        }
    }

    #[test]
    fn figures_are_those_of_the_turns() {
        const S: u64 = 1_000_000_000;
        let turns = vec![vec![(S, S), (S, S + S / 2)], vec![(S, S + S / 4), (S + S / 2, 2 * S + S / 4)]];
        let run = evaluate(&arguments(2), Path::new("/"), S, &turns, None);
        assert_eq!((run.grabs, run.drain_grabs, run.ahead), (3, 1, 1));
        assert!((run.ideal_grabs - 10.0).abs() < 1e-9 && (run.drain_seconds - 0.35).abs() < 1e-9);
        assert!((run.fairness - 0.9).abs() < 1e-9 && (run.queue_fairness - 0.9).abs() < 1e-9);
        assert!((run.wait_max - 0.75).abs() < 1e-9);
        assert!((jain(&[5, 0]) - 0.5).abs() < 1e-9 && (jain(&[0, 0]) - 1.0).abs() < 1e-9);
        assert!(text(&run).contains("turns 3 of 10, then 1 in 0.35 s (ideal 0.10 s)"));
    }

    #[test]
    fn lines_of_processes_are_read_whole() -> Result<()> {
        assert_eq!(read_turns(&b"1 2\n3 4\n"[..])?, [(1, 2), (3, 4)]);
        assert!(read_turns(&b"1\n"[..]).is_err());
        Ok(())
    }
}
