//! Processes that take turns with one lock, and the times of their turns.
//!
//! All processes share two pipes: they begin when one of them carries the time, and write each turn
//! to the other, in one write(2), after they have unlocked.

use std::fs::File;
use std::io::{self, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use curt_bench::processes::{Curt, end_with_parent};
use indicatif::ProgressBar;
use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};

use super::floor::FloorLock;

/// The file that is locked.
const NAME: &str = ".curt-bench-lock";

/// Arguments of one of the processes. Times are in nanoseconds.
#[derive(Debug, clap::Args)]
pub(crate) struct LockWork {
    file: PathBuf,
    number: u32,
    hold: u64,
    rest: u64,
    time: u64,
    /// Queue without a file system; FILE is the directory of its sockets.
    #[arg(long)]
    floor: bool,
}

/// The lock that processes take turns with.
enum ContendedLock {
    File(File),
    Floor(FloorLock),
}

/// How turns are taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct AcquisitionPlan {
    /// Processes in each directory.
    pub(super) processes: u32,
    pub(super) hold: Duration,
    pub(super) rest: Duration,
    /// For how long processes begin to wait.
    pub(super) time: Duration,
    /// How long the first lock may take.
    pub(super) first_lock: Duration,
    /// When all are killed.
    pub(super) limit: Option<Duration>,
}

/// One acquisition of the lock. Times are in nanoseconds since the begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Acquisition {
    pub(super) process: u32,
    /// When the process began to wait.
    pub(super) wait: u64,
    /// When it got the lock.
    pub(super) grab: u64,
}

/// The acquisitions of one run, in the order of their grabs.
#[derive(Debug)]
pub(super) struct Acquisitions {
    pub(super) turns: Vec<Acquisition>,
    /// Whether the processes were killed.
    pub(super) is_stopped: bool,
}

/// The processes; they end with this value.
struct LockProcesses(Vec<Child>);

impl Drop for LockProcesses {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // It may have ended.
            let _ = child.kill();
        }
        for child in &mut self.0 {
            let _ = child.wait();
        }
    }
}

/// Makes the file in a directory, and has one process lock it for a moment: the grace period of a
/// server ends first.
pub(super) fn prepare(directory: &PathBuf, limit: Duration) -> Result<()> {
    let path = directory.join(NAME);
    File::create(&path).with_context(|| path.display().to_string())?;
    let (hold, rest) = (Duration::from_millis(1), Duration::ZERO);
    let plan =
        AcquisitionPlan { processes: 1, hold, rest, time: hold * 10, first_lock: limit, limit: Some(limit) };
    let turns = take(std::slice::from_ref(directory), &plan, false, &ProgressBar::hidden())?;
    ensure!(
        !turns.is_stopped,
        "{}: no lock is granted within {limit:?}. A server that has just started grants none in its grace period; \
         Ganesha and knfsd grant none without a status monitor: start rpc.statd on the server.",
        path.display()
    );
    Ok(())
}

/// Removes the file.
pub(super) fn remove(directory: &Path) -> Result<()> {
    let path = directory.join(NAME);
    std::fs::remove_file(&path).with_context(|| path.display().to_string())
}

/// Takes turns with the lock of one file that is seen in each directory, or without a file system
/// (see `floor.rs`).
pub(super) fn take(
    directories: &[PathBuf],
    plan: &AcquisitionPlan,
    is_floor: bool,
    bar: &ProgressBar,
) -> Result<Acquisitions> {
    let (begin_in, mut begin_out) = io::pipe()?;
    let (turns_in, turns_out) = io::pipe()?;
    let mut processes = LockProcesses(Vec::new());
    let nanoseconds = |time: Duration| time.as_nanos().to_string();
    let numbers = 0_u32..;
    let places = directories.iter().flat_map(|directory| (0..plan.processes).map(move |_| directory));
    for (number, directory) in numbers.zip(places) {
        let mut command = Curt::this().command();
        let path = if is_floor { directory.clone() } else { directory.join(NAME) };
        command.args(["bench", "lock-work"]).arg(path).arg(number.to_string());
        command.args([plan.hold, plan.rest, plan.time].map(nanoseconds));
        command.args(is_floor.then_some("--floor"));
        command.stdin(begin_in.try_clone()?).stdout(turns_out.try_clone()?);
        processes.0.push(end_with_parent(&mut command).spawn().context("cannot start a process")?);
    }
    drop((begin_in, turns_out));
    let mut records = Records(BufReader::new(turns_in));
    // Each sends a record when it is ready; then all begin.
    for _ in &processes.0 {
        records.next()?.context("a process ended before it began")?;
    }
    let began = now();
    for _ in &processes.0 {
        begin_out.write_all(&began.to_ne_bytes())?;
    }
    let pids: Vec<_> = processes.0.iter().map(Pid::from_child).collect();
    let (end, ended) = mpsc::channel::<()>();
    let (turns, is_stopped) = thread::scope(|scope| {
        let watch = plan.limit.map(|limit| {
            scope.spawn(move || {
                let is_over = ended.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout);
                // One that has ended is still this process's child.
                for pid in pids.into_iter().filter(|_| is_over) {
                    let _ = kill_process(pid, Signal::KILL);
                }
                is_over
            })
        });
        let turns = records.read_all(began, bar);
        drop(end);
        (turns, watch.is_some_and(|watch| watch.join().unwrap_or(false)))
    });
    let mut turns = turns?;
    for child in &mut processes.0 {
        let status = child.wait()?;
        ensure!(status.success() || is_stopped, "a process failed: {status}");
    }
    turns.sort_unstable_by_key(|turn| turn.grab);
    Ok(Acquisitions { turns, is_stopped })
}

/// The records that processes write: their number and two times, all 0 once each is there.
struct Records<R>(R);

impl<R: io::Read> Records<R> {
    fn next(&mut self) -> Result<Option<[u64; 3]>> {
        let mut bytes = [[0; 8]; 3];
        match self.0.read_exact(bytes.as_flattened_mut()) {
            Ok(()) => Ok(Some(bytes.map(u64::from_ne_bytes))),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn read_all(&mut self, began: u64, bar: &ProgressBar) -> Result<Vec<Acquisition>> {
        let mut turns = Vec::new();
        while let Some([process, wait, grab]) = self.next()? {
            let since = |time: u64| time.saturating_sub(began);
            turns.push(Acquisition { process: process.try_into()?, wait: since(wait), grab: since(grab) });
            bar.inc(1);
        }
        Ok(turns)
    }
}

/// One of the processes.
pub(crate) fn work(work: &LockWork) -> Result<()> {
    let lock = match work.floor {
        true => ContendedLock::Floor(FloorLock::open(&work.file, work.number)?),
        false => ContendedLock::File(File::options().read(true).write(true).open(&work.file)?),
    };
    // Not line-buffered: a turn is one write(2).
    let mut output = File::from(rustix::io::dup(rustix::stdio::stdout())?);
    let mut write = |record: [u64; 3]| output.write_all(record.map(u64::to_ne_bytes).as_flattened());
    write([0; 3])?;
    let mut began = [0; 8];
    File::from(rustix::io::dup(rustix::stdio::stdin())?).read_exact(&mut began)?;
    let end = u64::from_ne_bytes(began) + work.time;
    loop {
        let wait = now();
        if wait >= end {
            return Ok(());
        }
        lock.lock().with_context(|| work.file.display().to_string())?;
        let grab = now();
        thread::sleep(Duration::from_nanos(work.hold));
        lock.unlock()?;
        write([work.number.into(), wait, grab])?;
        thread::sleep(Duration::from_nanos(work.rest));
    }
}

impl ContendedLock {
    fn lock(&self) -> Result<()> {
        match self {
            Self::Floor(lock) => Ok(lock.lock()?),
            Self::File(file) => match fcntl_lock(file, FlockOperation::LockExclusive) {
                Err(error @ Errno::NOLCK) => Err(error)
                    .context("the server has no lock manager, or no status monitor: start rpc.statd there"),
                locked => Ok(locked?),
            },
        }
    }

    fn unlock(&self) -> Result<()> {
        match self {
            Self::Floor(lock) => Ok(lock.unlock()?),
            Self::File(file) => Ok(fcntl_lock(file, FlockOperation::Unlock)?),
        }
    }
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

    #[test]
    fn records_are_read_whole_and_their_times_begin_with_the_run() -> Result<()> {
        let bytes = [[7_u64, 105, 109], [8, 100, 200]].map(|record| record.map(u64::to_ne_bytes));
        let bytes = bytes.as_flattened().as_flattened();
        let read = |bytes| Records(bytes).read_all(100, &ProgressBar::hidden());
        let expected =
            [Acquisition { process: 7, wait: 5, grab: 9 }, Acquisition { process: 8, wait: 0, grab: 100 }];
        assert_eq!(read(bytes)?, expected);
        assert_eq!(read(&bytes[..30])?, expected[..1], "one that was killed");
        Ok(())
    }
}
