//! A command that is run for somebody else: its signals, its children, its end.

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

/// Exit statuses as env(1) and timeout(1) have them.
pub(super) const NOT_EXPLAINED: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;
/// An exit status for a signal begins here.
const BY_SIGNAL: i32 = 128;

/// How it ended.
pub(super) enum CommandOutcome {
    /// With this status.
    Ended(u8),
    /// It was not run; the status for that, and why.
    NotRun(u8, io::Error),
}

/// From now on processes that lose their parent below this one become its children, so that what a
/// command leaves behind is still known to be its own.
pub(super) fn adopt_orphans() -> Result<()> {
    set_child_subreaper(Some(getpid())).context("cannot become a child subreaper")
}

/// What a command left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeftProcesses {
    /// Nothing that still runs.
    Nothing,
    /// Processes that go on.
    Running,
}

/// Whether processes that a command leaves behind are waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitFor {
    ForCommand,
    ForAll,
}

/// How often it is looked whether what was left behind has ended.
const LOOK: Duration = Duration::from_millis(20);

/// Runs it to its end, and then, if they are to be waited for, until those have ended that it left
/// behind. Signals that come meanwhile are passed on to it; once it has ended, one ends the waiting
/// for the others.
pub(super) fn run(command: &[OsString], wait: WaitFor) -> (CommandOutcome, LeftProcesses) {
    let signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2]);
    let mut signals = match signals {
        Ok(signals) => signals,
        Err(error) => {
            return (
                CommandOutcome::NotRun(NOT_EXPLAINED, error),
                LeftProcesses::Nothing,
            );
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

/// Whom signals are for.
struct SignalTarget {
    /// The command, until it has ended: its number may be another's then.
    command: Mutex<Option<Pid>>,
    /// A signal came after that.
    is_enough: AtomicBool,
}

impl SignalTarget {
    fn take(&self, signal: i32) {
        let command = self.command.lock();
        let Some(pid) = *command else {
            // Relaxed: it is looked at again and again.
            return self.is_enough.store(true, Ordering::Relaxed);
        };
        // A terminal's ^C and ^\ reach the command by themselves: it is in our process group.
        if io::stdin().is_terminal() && matches!(signal, SIGINT | SIGQUIT) {
            return;
        }
        if let Some(signal) = Signal::from_named_raw(signal) {
            // It has ended meanwhile.
            let _ = kill_process(pid, signal);
        }
    }

    /// Waits for the command's end, and reaps whoever ends before it: orphans of its are ours.
    fn until_ended(&self, command: Pid) -> io::Result<WaitStatus> {
        loop {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            match waitid(WaitId::All, options) {
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
                Ok(_) => {}
            }
            // As long as it is not reaped its number is its own.
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

/// Reaps whoever has ended.
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
    let number = status
        .exit_status()
        .or_else(|| status.terminating_signal().map(|signal| BY_SIGNAL + signal));
    number
        .and_then(|number| u8::try_from(number).ok())
        .unwrap_or(NOT_EXPLAINED)
}
