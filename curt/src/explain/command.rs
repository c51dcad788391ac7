//! Runs a command: its signals, its children, its end.

use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus, getpid, kill_process, set_child_subreaper,
    wait, waitid,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

/// Exit statuses as in env(1) and timeout(1).
pub(super) const NOT_EXPLAINED: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;
/// Exit statuses of signals begin here.
const BY_SIGNAL: i32 = 128;

/// The outcome of a command.
pub(super) enum CommandOutcome {
    /// The exit status.
    Ended(u8),
    /// The command was not run; the exit status for this, and the error.
    NotRun(u8, io::Error),
}

/// Makes this process a subreaper: orphans of the command become its children, so that they still
/// belong to the command.
pub(super) fn adopt_orphans() -> Result<()> {
    set_child_subreaper(Some(getpid())).context("cannot become a child subreaper")
}

/// Processes that a command left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeftProcesses {
    /// None is running.
    Nothing,
    /// Some are running.
    Running,
}

/// Whether to wait for processes that a command leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitFor {
    ForCommand,
    ForAll,
}

/// Interval of checks for processes that were left behind.
const LOOK: Duration = Duration::from_millis(20);

/// Runs the command, and then waits, if requested, for processes that it left behind. Signals are
/// passed on to the command; after its end, a signal ends the wait.
pub(super) fn run(command: &[OsString], wait: WaitFor) -> (CommandOutcome, LeftProcesses) {
    let signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2]);
    let mut signals = match signals {
        Ok(signals) => signals,
        Err(error) => {
            return (CommandOutcome::NotRun(NOT_EXPLAINED, error), LeftProcesses::Nothing);
        }
    };
    let child = match Command::new(&command[0]).args(&command[1..]).spawn() {
        Ok(child) => child,
        Err(error) => {
            let status = match error.kind() {
                io::ErrorKind::NotFound => NOT_FOUND,
                _ => NOT_EXECUTABLE,
            };
            return (CommandOutcome::NotRun(status, error), LeftProcesses::Nothing);
        }
    };
    let handle = signals.handle();
    let target = Arc::new(SignalTarget {
        command: Mutex::new(Some(Pid::from_child(&child))),
        is_enough: AtomicBool::new(false),
    });
    let passed = Arc::clone(&target);
    let passing = std::thread::spawn(move || {
        for signal in signals.forever() {
            passed.take(signal);
        }
    });
    let outcome = match target.until_ended(Pid::from_child(&child)) {
        Ok(status) => CommandOutcome::Ended(status_of(status)),
        Err(error) => CommandOutcome::NotRun(NOT_EXPLAINED, error),
    };
    let mut left = reap_all();
    while wait == WaitFor::ForAll
        && left == LeftProcesses::Running
        && !target.is_enough.load(Ordering::Relaxed)
    {
        std::thread::sleep(LOOK);
        left = reap_all();
    }
    handle.close();
    let _ = passing.join();
    (outcome, left)
}

/// The target of signals.
struct SignalTarget {
    /// The command, until it has ended: its process id may be reused then.
    command: Mutex<Option<Pid>>,
    /// Whether a signal arrived after the command's end.
    is_enough: AtomicBool,
}

impl SignalTarget {
    fn take(&self, signal: i32) {
        let command = self.command.lock();
        let Some(pid) = *command else {
            // Relaxed: it is checked repeatedly.
            return self.is_enough.store(true, Ordering::Relaxed);
        };
        // The command gets a terminal's ^C and ^\ itself, because it is in this process group.
        if io::stdin().is_terminal() && matches!(signal, SIGINT | SIGQUIT) {
            return;
        }
        if let Some(signal) = Signal::from_named_raw(signal) {
            // It has ended meanwhile.
            let _ = kill_process(pid, signal);
        }
    }

    /// Waits for the command's end, and reaps orphans that end before it.
    fn until_ended(&self, command: Pid) -> io::Result<WaitStatus> {
        loop {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            match waitid(WaitId::All, options) {
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
                Ok(_) => {}
            }
            // Until it is reaped its process id is not reused.
            let mut target = self.command.lock();
            match wait(WaitOptions::NOHANG)? {
                Some((pid, status)) if pid == command => {
                    *target = None;
                    return Ok(status);
                }
                Some(_) | None => {}
            }
        }
    }
}

/// Reaps all ended children.
fn reap_all() -> LeftProcesses {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => return LeftProcesses::Running,
            // There are no children.
            Err(_) => return LeftProcesses::Nothing,
        }
    }
}

fn status_of(status: WaitStatus) -> u8 {
    let number =
        status.exit_status().or_else(|| status.terminating_signal().map(|signal| BY_SIGNAL + signal));
    number.and_then(|number| u8::try_from(number).ok()).unwrap_or(NOT_EXPLAINED)
}
