//! A command that is run for somebody else: its signals, its children, its end.

use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, getpid, kill_process, set_child_subreaper};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

/// Exit statuses as env(1) and timeout(1) have them.
pub(super) const NOT_EXPLAINED: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;
/// An exit status for a signal begins here.
const BY_SIGNAL: i32 = 128;

/// How it ended.
pub(super) enum Outcome {
    /// With this status.
    Ended(u8),
    /// It was not run; the status for that, and why.
    NotRun(u8, io::Error),
}

/// From now on processes that lose their parent below this one become its children, so that what a command leaves behind is still
/// known to be its own.
pub(super) fn adopt_orphans() -> Result<()> {
    set_child_subreaper(Some(getpid())).context("orphans cannot be taken in")
}

/// Runs it to its end. Signals that come meanwhile are passed on.
pub(super) fn run(command: &[OsString]) -> Outcome {
    let signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2]);
    let mut signals = match signals {
        Ok(signals) => signals,
        Err(error) => return Outcome::NotRun(NOT_EXPLAINED, error),
    };
    let mut child = match Command::new(&command[0]).args(&command[1..]).spawn() {
        Ok(child) => child,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Outcome::NotRun(NOT_FOUND, error),
        Err(error) => return Outcome::NotRun(NOT_EXECUTABLE, error),
    };
    let handle = signals.handle();
    let pid = Pid::from_child(&child);
    // A terminal's ^C and ^\ reach the command by themselves: it is in our process group.
    let by_terminal = io::stdin().is_terminal();
    let passing = std::thread::spawn(move || {
        for signal in signals.forever() {
            if by_terminal && matches!(signal, SIGINT | SIGQUIT) {
                continue;
            }
            if let Some(signal) = Signal::from_named_raw(signal) {
                // It has ended meanwhile.
                let _ = kill_process(pid, signal);
            }
        }
    });
    let status = child.wait();
    handle.close();
    let _ = passing.join();
    match status {
        Ok(status) => Outcome::Ended(status_of(status)),
        Err(error) => Outcome::NotRun(NOT_EXPLAINED, error),
    }
}

fn status_of(status: ExitStatus) -> u8 {
    let number = status
        .code()
        .or_else(|| status.signal().map(|signal| BY_SIGNAL + signal));
    number
        .and_then(|number| u8::try_from(number).ok())
        .unwrap_or(NOT_EXPLAINED)
}
