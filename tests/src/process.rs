//! Processes that end when their values are dropped.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
pub use curt_bench::processes::until;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// Timeout of a process after SIGTERM.
const GRACE: Duration = Duration::from_secs(60);
const GRACE_UNSEEN: Duration = Duration::from_secs(10);
/// Number of successive checks without new output of an ended process after which its output is
/// complete: two seconds, and more on a stalled machine.
const LAST_LOOKS: u32 = 200;
/// Timeout of a process to stop after SIGSTOP.
const STOPPED: Duration = Duration::from_secs(60);

/// The output of a process, both streams together.
#[derive(Default)]
struct ProcessOutput {
    text: Mutex<(String, usize)>,
    changed: Condvar,
}

impl ProcessOutput {
    fn lock(&self) -> MutexGuard<'_, (String, usize)> {
        self.text.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A process that is stopped when this value is dropped, by SIGTERM and if necessary by SIGKILL.
///
/// It is also stopped when the thread that started it ends: start it from the test's own thread.
pub struct RunningProcess {
    name: String,
    child: Child,
    printed: Arc<ProcessOutput>,
}

impl RunningProcess {
    /// Starts `command` and collects its output.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(name: &str, command: &mut Command) -> Result<Self> {
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A separate process group: the kernel continues all stopped processes of a group that
            // becomes orphaned, and signals to another group must not reach this process.
            .process_group(0)
            .spawn();
        let mut child = child.with_context(|| format!("starting {name}"))?;
        let printed = Arc::new(ProcessOutput::default());
        let streams: [Option<Box<dyn Read + Send>>; 2] = [
            child.stdout.take().map(|stream| Box::new(stream) as Box<dyn Read + Send>),
            child.stderr.take().map(|stream| Box::new(stream) as Box<dyn Read + Send>),
        ];
        for stream in streams.into_iter().flatten() {
            let printed = Arc::clone(&printed);
            printed.lock().1 += 1;
            // It ends with the stream: when the process, and processes that inherited the stream,
            // have ended.
            std::thread::spawn(move || {
                let mut lines = BufReader::new(stream);
                let mut line = Vec::new();
                while lines.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
                    printed.lock().0.push_str(&String::from_utf8_lossy(&line));
                    printed.changed.notify_all();
                    line.clear();
                }
                printed.lock().1 -= 1;
                printed.changed.notify_all();
            });
        }
        Ok(Self { name: name.to_owned(), child, printed })
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its output so far.
    #[must_use]
    pub fn output(&self) -> String {
        self.printed.lock().0.clone()
    }

    /// Writes `text` to its standard input.
    ///
    /// # Errors
    /// It has closed it.
    pub fn say(&mut self, text: &str) -> Result<()> {
        let input = self.child.stdin.as_mut().context("no standard input")?;
        input.write_all(text.as_bytes())?;
        Ok(input.flush()?)
    }

    /// Waits until it has printed a line that contains `text`.
    ///
    /// # Errors
    /// The timeout, or the process ended without it; includes its output.
    pub fn wait_for(&self, text: &str, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        let mut printed = self.printed.lock();
        while !printed.0.contains(text) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || printed.1 == 0 {
                bail!("{} did not say {text:?} but:\n{}", self.name, printed.0);
            }
            printed =
                self.printed.changed.wait_timeout(printed, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// The timeout.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let (name, printed) = (self.name.clone(), Arc::clone(&self.printed));
        let status = until(&format!("{name} ends"), limit, || Ok(self.child.try_wait()?))
            .with_context(|| format!("{name} has printed:\n{}", self.output()))?;
        // The last lines may not have been read yet; a process that inherited the streams must not
        // block this.
        let (mut length, mut looks) = (0, 0);
        let _ = until("the last lines", GRACE, || {
            let (text, open) = &*printed.lock();
            looks = if text.len() == length { looks + 1 } else { 0 };
            length = text.len();
            Ok((*open == 0 || looks >= LAST_LOOKS).then_some(()))
        });
        Ok(status)
    }

    /// Whether it is running.
    ///
    /// # Errors
    /// The system's.
    pub fn is_running(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Sends it a signal. For SIGSTOP, waits until all its threads are stopped: one of them handles
    /// the signal and stops the others, which continue to serve until it is scheduled.
    ///
    /// # Errors
    /// It has ended, or does not stop.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        if !self.is_running()? {
            bail!("{} has ended; it printed:\n{}", self.name, self.output());
        }
        kill_process(Pid::from_child(&self.child), signal)?;
        if signal == Signal::STOP {
            let tasks = format!("/proc/{}/task", self.pid());
            until("all threads are stopped", STOPPED, || Ok(all_stopped(&tasks)?.then_some(())))?;
        }
        Ok(())
    }

    /// Stops it by SIGTERM and waits for its end.
    ///
    /// # Errors
    /// It did not end in time and was killed.
    pub fn stop(&mut self) -> Result<ExitStatus> {
        self.stop_within(GRACE)
    }

    fn stop_within(&mut self, grace: Duration) -> Result<ExitStatus> {
        if self.is_running()? {
            self.signal(Signal::TERM)?;
        }
        self.wait(grace)
    }
}

impl Drop for RunningProcess {
    fn drop(&mut self) {
        if self.stop_within(GRACE_UNSEEN).is_err() {
            // Nothing else can be done if this fails.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if std::thread::panicking() {
            eprintln!("--- {} printed:\n{}", self.name, self.output());
        }
    }
}

/// Runs `command` and returns its standard output.
///
/// # Errors
/// It cannot be started, does not end in time, or fails; includes its output.
pub fn run(command: &mut Command, limit: Duration) -> Result<String> {
    let shown = show(command);
    let (status, output, errors) = finish(command, limit)?;
    if !status.success() {
        bail!("{shown}: {status}\n{errors}{output}");
    }
    Ok(output)
}

/// Whether all threads of a `/proc/PID/task` are stopped.
fn all_stopped(tasks: &str) -> Result<bool> {
    for task in std::fs::read_dir(tasks)? {
        // A thread that has just ended does not matter.
        let Ok(line) = std::fs::read_to_string(task?.path().join("stat")) else {
            continue;
        };
        // "1234 (a name) T …"
        let state = line.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        // One that waits in the kernel and cannot be interrupted (D) stops before it goes on.
        if !matches!(state, Some('T' | 't' | 'D' | 'X' | 'Z')) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Runs `command`, and returns its status and its output on both streams. Processes that it leaves
/// behind with these streams have the same time again, and are then killed.
///
/// # Errors
/// It cannot be started or does not end in time.
pub fn finish(command: &mut Command, limit: Duration) -> Result<(ExitStatus, String, String)> {
    let shown = show(command);
    let started =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).spawn();
    let mut child = started.with_context(|| format!("starting {shown}"))?;
    let group = Pid::from_child(&child);
    let (mut out, mut errors) = (child.stdout.take(), child.stderr.take());
    let read = |stream: Option<&mut dyn Read>| {
        let mut bytes = Vec::new();
        if let Some(stream) = stream {
            // Output that cannot be read is missing.
            let _ = stream.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    };
    std::thread::scope(|scope| {
        let out = scope.spawn(move || read(out.as_mut().map(|stream| stream as &mut dyn Read)));
        let errors = scope.spawn(move || read(errors.as_mut().map(|stream| stream as &mut dyn Read)));
        let status = until(&shown, limit, || Ok(child.try_wait()?));
        if status.is_err() {
            child.kill()?;
            child.wait()?;
        }
        let ended = || Ok((out.is_finished() && errors.is_finished()).then_some(()));
        if status.is_err() || until(&shown, limit, ended).is_err() {
            // ESRCH: the group has no process any more.
            let _ = kill_process_group(group, Signal::KILL);
        }
        let join = |thread: std::thread::ScopedJoinHandle<'_, String>| thread.join().unwrap_or_default();
        let (out, errors) = (join(out), join(errors));
        Ok((status.with_context(|| format!("it has printed:\n{errors}{out}"))?, out, errors))
    })
}

fn show(command: &Command) -> String {
    let mut text = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        // Writing to a String cannot fail.
        let _ = write!(text, " {}", argument.to_string_lossy());
    }
    text
}

#[cfg(test)]
mod tests {
    use anyhow::ensure;

    use super::*;

    #[test]
    fn a_stopped_process_is_stopped_when_the_call_returns() -> Result<()> {
        let mut running =
            RunningProcess::start("a loop", Command::new("sh").args(["-c", "while :; do :; done"]))?;
        let tasks = format!("/proc/{}/task", running.pid());
        ensure!(!all_stopped(&tasks)?);
        running.signal(Signal::STOP)?;
        ensure!(all_stopped(&tasks)?);
        running.signal(Signal::CONT)?;
        until("it goes on", STOPPED, || Ok((!all_stopped(&tasks)?).then_some(())))?;
        running.stop().map(drop)
    }
}
