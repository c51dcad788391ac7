//! `curt mount`, and the helper of mount(8): arguments, daemonizing, exit statuses.

use std::ffi::OsString;
use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use curt_mount::daemon::{self, MountProgress, MountSpec};
use curt_mount::helper::{ExitStatus, HelperArguments, MountFailure};
use curt_mount::options::{self, MountSource, OptionDiagnostic, OptionError, ParsedOptions};
use curt_observe::control::{self, ControlError, Remount};
use rustix::process::Signal;

use crate::logs;
use crate::output::{self, say};

/// Arguments of `curt mount`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = after_help())]
pub(crate) struct MountArguments {
    #[arg(help = "What to mount: SERVER:/PATH, [IPv6]:/PATH or nfs://SERVER[:PORT]/PATH")]
    source: String,
    /// Where to mount it
    target: PathBuf,
    /// Mount options, comma-separated; may be repeated
    #[arg(short, long = "options", value_name = "OPTIONS")]
    options: Vec<String>,
    /// Stay in the foreground and log to standard error
    #[arg(long)]
    foreground: bool,
    /// Check everything but do not mount
    #[arg(short, long)]
    fake: bool,
    /// Do not write /run/mount/utab
    #[arg(short, long)]
    no_table: bool,
    /// Warn of unknown options instead of refusing them
    #[arg(short, long)]
    sloppy: bool,
    /// Print more messages
    #[arg(short, long)]
    verbose: bool,
    /// Mount in this mount namespace: a process id, or the path of a namespace
    #[arg(short = 'N', long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Append log lines to this file instead of the system log
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Log level: error, warn, info, debug, trace, off, or a filter in the syntax of RUST_LOG.
    /// RUST_LOG takes precedence
    #[arg(long, value_name = "LEVEL", default_value = "info", value_parser = logs::level)]
    log_level: String,
    /// Tell the parent over standard output when the mount is live
    #[arg(long, hide = true)]
    ready_to_parent: bool,
}

/// The end of the help text.
fn after_help() -> String {
    let own: Vec<_> = options::own().collect();
    format!(
        "Options: those of nfs(5) and mount(8), and Curt's own: {}. See docs/options.md.\n\n\
         fstab: server:/path /mnt curt _netdev,noaccesscheck,sloppycto=3 0 0\n\n\
         Exit status, as of mount(8): 0 mounted; 1 wrong invocation; 2 system error; 4 internal error; 8 interrupted; \
         16 /run/mount/utab not written; 32 not mounted.",
        own.join(", ")
    )
}

/// Reported by the background process when the mount is live, possibly after [`WAITING`]. Otherwise
/// it reports [`RETRYING`] or an exit status, followed by a line of text for the user.
const READY: &str = "ready";

/// Reported first, followed by a line of text, if the server does not respond and the user has to
/// wait for it.
const WAITING: &str = "waiting";

/// Reported if the server does not respond and mounting continues in the background (`bg`).
const RETRYING: &str = "retrying";

/// Runs `curt mount`.
pub(crate) fn run(arguments: MountArguments) -> ExitCode {
    finish("curt mount", attempt("curt mount", &arguments))
}

/// Runs as the helper of mount(8): `mount.curt SOURCE DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS]`.
pub(crate) fn helper(name: &str, words: impl Iterator<Item = OsString>) -> ExitCode {
    let parsed = match HelperArguments::parse(words) {
        Ok(parsed) => parsed,
        Err(error) => {
            return finish(name, Err(MountFailure::lasting(ExitStatus::Usage, error.to_string(), "")));
        }
    };
    if parsed.help || parsed.version {
        let printed = say!(
            "{name} {}\nusage: {name} SERVER:/PATH DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS]; the options: curt mount --help",
            env!("CARGO_PKG_VERSION")
        );
        return printed.map_or_else(|error| output::failed(name, &error), |()| ExitCode::SUCCESS);
    }
    let arguments = MountArguments {
        source: parsed.source,
        target: parsed.target,
        options: vec![parsed.options],
        foreground: false,
        fake: parsed.fake,
        no_table: parsed.no_table,
        sloppy: false,
        verbose: parsed.verbose,
        namespace: parsed.namespace,
        log: None,
        log_level: "info".to_owned(),
        ready_to_parent: false,
    };
    finish(name, attempt(name, &arguments))
}

fn finish(name: &str, outcome: Result<(), MountFailure>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.what.is_empty() {
                eprintln!("{name}: {failure}");
            }
            ExitCode::from(failure.status as u8)
        }
    }
}

fn attempt(name: &str, arguments: &MountArguments) -> Result<(), MountFailure> {
    let options = option_string(arguments);
    let parsed = options::parse(&options).map_err(|error| refused(&error))?;
    if !arguments.ready_to_parent {
        remarks(name, &parsed, arguments.verbose);
    }
    if parsed.settings.generic.remount {
        return remount(arguments, &options);
    }
    let source = MountSource::parse(&arguments.source).map_err(|error| {
        MountFailure::lasting(
            ExitStatus::Usage,
            format!("{}: {error}", arguments.source),
            "expected server:/path",
        )
    })?;
    let plan = MountSpec {
        source,
        target: arguments.target.clone(),
        settings: parsed.settings,
        table: !arguments.no_table,
        namespace: arguments.namespace.clone(),
    };
    if arguments.fake {
        return daemon::check(&plan);
    }
    if arguments.foreground || arguments.ready_to_parent {
        let destination = match &arguments.log {
            Some(path) => logs::LogDestination::File(path.clone()),
            None if arguments.ready_to_parent => logs::LogDestination::SystemLog,
            None => logs::LogDestination::StandardError,
        };
        logs::start(&destination, &arguments.log_level).map_err(|error| {
            MountFailure::lasting(ExitStatus::System, format!("the log cannot be opened: {error}"), "")
        })?;
        return serve(&plan, arguments.ready_to_parent);
    }
    in_background(name, arguments, &plan)
}

fn option_string(arguments: &MountArguments) -> String {
    let mut options = arguments.options.join(",");
    if arguments.sloppy {
        options.push_str(",sloppy");
    }
    options
}

fn refused(error: &OptionError) -> MountFailure {
    MountFailure::lasting(ExitStatus::Usage, error.to_string(), "")
}

fn remarks(name: &str, parsed: &ParsedOptions, verbose: bool) {
    for remark in &parsed.remarks {
        match remark {
            OptionDiagnostic::Ignored { option, why } if verbose => {
                eprintln!("{name}: {option}: ignored, {why}")
            }
            OptionDiagnostic::Ignored { .. } => {}
            OptionDiagnostic::Warning { option, differs } => {
                eprintln!("{name}: warning: {option}: {differs}")
            }
        }
    }
}

fn remount(arguments: &MountArguments, options: &str) -> Result<(), MountFailure> {
    let not_done = |error: ControlError| {
        let status =
            if matches!(error, ControlError::Refused(_)) { ExitStatus::Usage } else { ExitStatus::Failed };
        MountFailure::lasting(status, error.to_string(), "")
    };
    let (socket, _) = control::find(&control::directory(), &arguments.target).map_err(not_done)?;
    if arguments.fake {
        return Ok(());
    }
    let command = Remount { options: options.to_owned(), table: !arguments.no_table };
    control::call(&socket, &command).map(drop).map_err(not_done)
}

/// Serves a mount in this process until it is unmounted.
fn serve(plan: &MountSpec, tell_parent: bool) -> Result<(), MountFailure> {
    if tell_parent {
        end_with_parent(true);
    }
    let outcome = daemon::run(plan, &|progress| {
        if tell_parent {
            match progress {
                MountProgress::Live => finish_report_to_parent(READY, ""),
                MountProgress::RetryingInForeground(failure, minutes) => {
                    report_to_parent(WAITING, &waiting(failure, minutes))
                }
                MountProgress::RetryingInBackground(failure) => {
                    finish_report_to_parent(RETRYING, &failure.what)
                }
            }
        }
    });
    match outcome {
        // The parent prints it, because its standard error is the user's. After a success the
        // parent has ended.
        Err(failure) if tell_parent => {
            finish_report_to_parent(&(failure.status as u8).to_string(), &failure.to_string());
            Err(MountFailure { what: String::new(), ..failure })
        }
        other => other,
    }
}

/// If the user stops waiting for a server, nothing is mounted later.
fn end_with_parent(ends: bool) {
    // This does not fail on any known kernel; if it did, the mount would appear when the server
    // responds.
    let _ = rustix::process::set_parent_process_death_signal(ends.then_some(Signal::TERM));
}

fn waiting(failure: &MountFailure, minutes: u32) -> String {
    format!(
        "{}; retrying for up to {minutes} min (set retry=N to change this; bg retries in the background)",
        failure.what
    )
}

/// Sends a report to the parent, which continues to read.
fn report_to_parent(word: &str, text: &str) {
    // The parent may have ended.
    let _ = io::stdout().write_all(format!("{word}\n{text}\n").as_bytes());
    let _ = io::stdout().flush();
}

/// Sends the last report to the parent, and redirects standard output and error to /dev/null, so
/// that the parent's pipe ends.
fn finish_report_to_parent(word: &str, text: &str) {
    end_with_parent(false);
    report_to_parent(word, text);
    if let Ok(nowhere) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null") {
        // This fails only for lack of descriptors; the old ones then remain.
        let _ = rustix::stdio::dup2_stdout(&nowhere);
        let _ = rustix::stdio::dup2_stderr(&nowhere);
    }
}

/// Mounts in a separate process and waits until the mount is live, has failed, or is retried in the
/// background (`bg`).
fn in_background(name: &str, arguments: &MountArguments, plan: &MountSpec) -> Result<(), MountFailure> {
    daemon::check(plan)?;
    let system = |error: io::Error| {
        MountFailure::lasting(
            ExitStatus::System,
            format!("the background process cannot be started: {error}"),
            "",
        )
    };
    let mut child = background_command(arguments).map_err(system)?.spawn().map_err(system)?;
    let answer = match child.stdout.take() {
        Some(output) => read_child_report(name, output).map_err(system)?,
        None => String::new(),
    };
    let (word, text) = answer.split_once('\n').unwrap_or((&answer, ""));
    match word {
        READY => Ok(()),
        RETRYING => {
            eprintln!("{name}: {}\n{name}: retrying in the background", text.trim_end());
            Ok(())
        }
        status => {
            let status = status.parse().ok().and_then(ExitStatus::of);
            let text = if text.is_empty() {
                "the background process ended without a message; see its log"
            } else {
                text
            };
            Err(MountFailure::lasting(status.unwrap_or(ExitStatus::Internal), text.trim_end(), ""))
        }
    }
}

/// The last report of the background process. The message that the user has to wait is printed at
/// once.
fn read_child_report(name: &str, output: impl Read) -> io::Result<String> {
    let mut output = BufReader::new(output);
    let mut answer = String::new();
    output.read_line(&mut answer)?;
    if answer.trim_end() == WAITING {
        answer.clear();
        output.read_line(&mut answer)?;
        eprintln!("{name}: {}", answer.trim_end());
        answer.clear();
    }
    output.read_to_string(&mut answer)?;
    Ok(answer)
}

/// A command that starts this program again as the daemon. It is not forked, because a fork of a
/// program with threads may have locked mutexes.
fn background_command(arguments: &MountArguments) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("mount").arg("--ready-to-parent").args(["--log-level", &arguments.log_level]);
    if let Some(log) = &arguments.log {
        command.arg("--log").arg(std::path::absolute(log)?);
    }
    if let Some(namespace) = &arguments.namespace {
        command.args(["--namespace", namespace]);
    }
    if arguments.no_table {
        command.arg("--no-table");
    }
    if arguments.verbose {
        command.arg("--verbose");
    }
    command.arg("--options").arg(option_string(arguments));
    command.arg("--").arg(&arguments.source).arg(std::path::absolute(&arguments.target)?);
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
    Ok(command)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        arguments: MountArguments,
    }

    #[test]
    fn help_names_every_option_that_only_we_have() {
        let error = Cli::try_parse_from(["mount", "--help"]).unwrap_err();
        // Lines are wrapped at the terminal's width.
        let help = error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        for option in options::own().chain(["ring=off|rare|request|operation".to_owned()]) {
            assert!(help.contains(&option), "{option} is not in\n{help}");
        }
    }
}
