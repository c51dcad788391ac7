//! `curt locks`: who holds locks of a mount's or a server's files, and who waits for them.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use curt_observe::control::{
    self, LockRow, LocksReport, ReportLocks, ReportServerLocks, ServerLockRow, ServerLocksReport,
};

use crate::output;
use crate::serve::control::{ServerSelector, find};

/// Maximum number of a server's locks that are shown.
const SERVER_ROWS_MAX: usize = 10_000;

/// Arguments of `curt locks`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A process id of 0 is unknown: the process is in another pid namespace. Locks of other machines are known to the server alone.\n\n\
                  Examples:\n  curt locks                 all locks of all mounts\n  curt locks /mnt/db/log     those of one file\n  curt locks --server        those of this user's server\n\n\
                  Exit status: 0 if the mount or server was found, else 1."
)]
pub(crate) struct LocksArguments {
    /// A mount, or a file or directory on a mount; without it, all mounts of this user
    path: Option<PathBuf>,
    /// Show the locks of a server's clients instead. The server is given by its process id or its
    /// state directory; without either, this user's only server
    #[arg(long, value_name = "PID|DIR", num_args = 0..=1, default_missing_value = "", conflicts_with = "path")]
    server: Option<String>,
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
    if let Some(which) = &arguments.server {
        let (socket, _) = find(&ServerSelector::from(which.as_str()))?;
        let report = control::call(&socket, &ReportServerLocks { rows: SERVER_ROWS_MAX })?;
        return match arguments.json {
            true => output::print(&(serde_json::to_string_pretty(&report)? + "\n")),
            false => output::print(&server_text(&report)),
        };
    }
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

/// A table of the locks of a server's clients.
fn server_text(report: &ServerLocksReport) -> String {
    let count = |name| report.counts.get(name).copied().unwrap_or(0);
    let (files, held, waiters) = (count("files"), count("locks"), count("waiters"));
    let mut text = format!(
        "server {} of {}: {held} held, {waiters} waited for, in {files} files\n",
        report.pid,
        report.exports.join(", ")
    );
    if report.is_in_grace {
        text += "  in the grace period: only reclaims are granted\n";
    }
    if report.locks.is_empty() {
        return text;
    }
    let _ =
        writeln!(text, "  {:<8} {:<24} {:>10} {:<5} {:<24} file", "", "client", "process", "type", "bytes");
    for lock in &report.locks {
        let _ = writeln!(text, "{}", server_line(lock));
    }
    let shown = u64::try_from(report.locks.len()).unwrap_or(u64::MAX);
    if shown < held + waiters {
        let _ = writeln!(text, "  and {} more", held + waiters - shown);
    }
    text
}

fn server_line(lock: &ServerLockRow) -> String {
    let state = if lock.is_held { "holds" } else { "waits" };
    let kind = if lock.is_write { "write" } else { "read" };
    let bytes = bytes(lock.first, lock.last);
    let file = lock.fileid.map_or_else(|| "removed file".to_owned(), |fileid| format!("inode {fileid}"));
    let place = if lock.export.is_empty() { String::new() } else { format!(" of {}", lock.export) };
    let ServerLockRow { client, process, .. } = lock;
    format!("  {state:<8} {client:<24} {process:>10} {kind:<5} {bytes:<24} {file}{place}")
}

fn bytes(first: u64, last: Option<u64>) -> String {
    match last {
        Some(last) => format!("{first} to {last}"),
        None if first == 0 => "all".to_owned(),
        None => format!("from {first}"),
    }
}

fn line(lock: &LockRow) -> String {
    let state = if lock.is_held { "holds" } else { "waits" };
    let kind = if lock.is_write { "write" } else { "read" };
    let bytes = bytes(lock.first, lock.last);
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
        let row = ServerLockRow {
            client: "10.0.0.1".into(),
            process: 9,
            fileid: Some(12),
            export: "/srv".into(),
            ..ServerLockRow::default()
        };
        assert_eq!(
            server_line(&row),
            "  waits    10.0.0.1                          9 read  all                      inode 12 of /srv"
        );
        let counts = [("files", 2), ("locks", 5)].map(|(name, count)| (name.to_owned(), count));
        let of_server = ServerLocksReport {
            pid: 4,
            exports: vec!["/srv".into()],
            counts: counts.into(),
            locks: vec![row],
            ..ServerLocksReport::default()
        };
        let text = server_text(&of_server);
        assert!(text.starts_with("server 4 of /srv: 5 held, 0 waited for, in 2 files\n"), "{text}");
        assert!(text.ends_with("  and 4 more\n"), "{text}");
        assert!(summary(&report).contains("1 held, 0 waited for"));
        assert!(summary(&report).contains("less than   1.024ms          3"));
    }
}
