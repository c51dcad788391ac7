//! `curt locks`: who holds the locks of a mount's files, and who waits for them.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use curt_observe::control::{self, LockRow, LocksReport, ReportLocks};

use crate::output;

/// Arguments of `curt locks`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A process id of 0 is unknown: the process is in another pid namespace. Locks of other machines are known to the server alone.\n\n\
                  Examples:\n  curt locks                 all locks of all mounts\n  curt locks /mnt/db/log     those of one file\n\n\
                  Exit status: 0 if the mount was found, else 1."
)]
pub(crate) struct LocksArguments {
    /// A mount, or a file or directory on a mount; without it, all mounts of this user
    path: Option<PathBuf>,
    /// Print JSON: an array with an object for each mount
    #[arg(long)]
    json: bool,
}

/// Prints the locks.
pub(crate) fn run(arguments: &LocksArguments) -> ExitCode {
    match print(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => output::failed("curt locks", &error),
    }
}

fn print(arguments: &LocksArguments) -> Result<()> {
    let mut reports = Vec::new();
    // As text, because access to the file system could block.
    let path = arguments.path.as_deref().map(std::path::absolute).transpose()?;
    for (socket, mount) in control::list(&control::directory())? {
        let below = match path.as_deref().map(|path| path.strip_prefix(&mount.mount_point)) {
            Some(Ok(below)) => Some(Path::new("/").join(below)),
            Some(Err(_)) => continue,
            None => None,
        };
        let mut report = control::call(&socket, &ReportLocks {})?;
        if let Some(below) = below.filter(|below| below != Path::new("/")) {
            report.locks.retain(|lock| Path::new(&lock.path).starts_with(&below));
        }
        reports.push(report);
    }
    match path {
        Some(path) if reports.is_empty() => bail!("{} is not on a mount of this user", path.display()),
        _ if arguments.json => output::print(&(serde_json::to_string_pretty(&reports)? + "\n")),
        _ => output::print(&reports.iter().map(text).collect::<String>()),
    }
}

/// A table of a mount's locks.
fn text(report: &LocksReport) -> String {
    let mut text = format!("{}:", report.mount_point.display());
    if report.locks.is_empty() {
        text += " no locks\n";
        return text;
    }
    text += "\n";
    let _ = writeln!(
        text,
        "  {:<8} {:>8} {:<6} {:<5} {:>9}  {:<24} file",
        "", "pid", "call", "type", "for", "bytes"
    );
    for lock in &report.locks {
        let _ = writeln!(text, "{}", line(lock));
    }
    text
}

fn line(lock: &LockRow) -> String {
    let state = if lock.is_held { "holds" } else { "waits" };
    let kind = if lock.is_write { "write" } else { "read" };
    let bytes = match lock.last {
        Some(last) => format!("{} to {last}", lock.first),
        None if lock.first == 0 => "all".to_owned(),
        None => format!("from {}", lock.first),
    };
    let path = if lock.path.is_empty() { format!("object {}", lock.object) } else { lock.path.clone() };
    let time = format!("{:.1?}", Duration::from_millis(milliseconds(lock.seconds)));
    format!("  {state:<8} {:>8} {:<6} {kind:<5} {time:>9}  {bytes:<24} {path}", lock.pid, lock.call)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
fn milliseconds(seconds: f64) -> u64 {
    (seconds * 1000.0) as u64
}

/// The summary of `curt stat --locks`.
pub(crate) fn summary(report: &LocksReport) -> String {
    let count = |is_held| report.locks.iter().filter(|lock| lock.is_held == is_held).count();
    let mut text = format!(
        "{}: {} held, {} waited for, longest queue {}\n",
        report.mount_point.display(),
        count(true),
        count(false),
        report.queue_max
    );
    for (what, times) in [("waited", &report.wait_microseconds), ("held", &report.hold_microseconds)] {
        for (limit, count) in times {
            let limit = Duration::from_micros(*limit);
            let _ = writeln!(text, "  {what:<7} less than {:>9}  {count:>9}", format!("{limit:?}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_states_are_readable() {
        let lock = LockRow {
            pid: 7,
            call: "fcntl".into(),
            path: "/a b".into(),
            seconds: 1.25,
            ..LockRow::default()
        };
        assert_eq!(line(&lock), "  waits           7 fcntl  read       1.2s  all                      /a b");
        let held = LockRow {
            first: 3,
            last: Some(9),
            is_held: true,
            is_write: true,
            path: String::new(),
            object: 5,
            ..lock
        };
        assert_eq!(
            line(&held),
            "  holds           7 fcntl  write      1.2s  3 to 9                   object 5"
        );
        let report =
            LocksReport { locks: vec![held], wait_microseconds: vec![(1024, 3)], ..LocksReport::default() };
        assert!(summary(&report).contains("1 held, 0 waited for"));
        assert!(summary(&report).contains("less than   1.024ms          3"));
    }
}
