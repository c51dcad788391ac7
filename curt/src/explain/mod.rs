//! `curt explain COMMAND…`: runs a command and explains its requests on Curt mounts: their causes,
//! the rules that saved others, and the requests of Linux.

mod command;
mod show;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use curt_mount::options::of_linux;
use curt_observe::control::{self, ControlError, EndExplanation, Explain, MountReport};
use curt_observe::explain::ExplainReport;
use curt_observe::{Cause, causes};
use serde_json::json;

use command::{CommandOutcome, LeftProcesses, NOT_EXPLAINED, WaitFor};

use crate::errors;

/// Arguments of `curt explain`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The explanation is printed on standard error when the command and all of its operations have ended; the command keeps standard output. \
                  Until then, processes that the command leaves behind are explained as well.\n\
                  --list describes the causes and rules; docs/explain.md describes how exact the numbers are.\n\
                  JSON: {\"status\",\"linux_options\",\"mounts\":[{\"mount_point\",\"source\",\"requests\":{\"GETATTR\":n,…},\"linux\":{…},\"others\":{…},\n\
                  \"causes\":[{\"cause\",\"sent\",\"linux\",\"saved\":{RULE:n},\"paths\":[{\"path\",\"sent\",\"linux\",\"saved\"}],\"paths_rest\"}],\"processes\":[…],\n\
                  \"unfinished\"}]}\n\
                  The Linux column is for a client that mounted when the command began, with empty caches.\n\
                  Exit status: the command's; 128 plus the signal's number if a signal ended it; 125 if nothing could be explained, 126 if the command cannot \
                  be run, 127 if it is not found.\n\
                  Examples:\n  curt explain ls -l /mnt\n  curt explain --expand open-check make\n  curt explain -o nocto,actimeo=600 curt bench page --at /mnt"
)]
pub(crate) struct ExplainArguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Show the paths of a cause, or of `all`; may be repeated
    #[arg(long, value_name = "CAUSE")]
    expand: Vec<String>,
    /// How many paths to show of each cause
    #[arg(long, value_name = "N", default_value_t = 10)]
    paths: usize,
    /// Mount options of the Linux client to compare with [default: none]
    #[arg(short, long = "options", value_name = "OPTIONS", default_value = "", hide_default_value = true)]
    options: String,
    /// Explain this mount only; may be repeated [default: all mounts of this user]
    #[arg(long, value_name = "DIR")]
    mount: Vec<PathBuf>,
    /// Write to this file instead of standard error
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// List the causes and rules with their meanings, and exit
    #[arg(long)]
    list: bool,
    /// Also wait for processes that the command leaves behind; a signal ends the wait
    #[arg(long)]
    wait: bool,
    /// The command, with its arguments
    #[arg(
        required_unless_present = "list",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    command: Vec<std::ffi::OsString>,
}

/// Maximum number of paths of each cause: limits the size of a mount's reply.
const PATHS_MAX: usize = 1000;

/// A mount and its explanation.
pub(crate) struct MountExplained {
    pub(crate) mount: MountReport,
    pub(crate) explained: ExplainReport,
}

/// Runs `curt explain`.
pub(crate) fn run(arguments: &ExplainArguments) -> ExitCode {
    match explain(arguments) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("curt explain: {}", errors::line(&error));
            ExitCode::from(NOT_EXPLAINED)
        }
    }
}

fn explain(arguments: &ExplainArguments) -> Result<u8> {
    if arguments.list {
        write!(std::io::stdout(), "{}", causes::list())?;
        return Ok(0);
    }
    for cause in &arguments.expand {
        if cause != "all" && Cause::named(cause).is_none() {
            let names: Vec<_> = Cause::ALL.iter().map(|cause| cause.name()).collect();
            bail!("unknown cause {cause}; the causes are: all, {}", names.join(", "));
        }
    }
    let mut output: Box<dyn Write> = match &arguments.output {
        Some(path) => Box::new(File::create(path).with_context(|| path.display().to_string())?),
        None => Box::new(std::io::stderr()),
    };
    of_linux(&arguments.options)?;
    let mounts = mounts(&arguments.mount)?;
    if mounts.is_empty() {
        bail!("this user has no Curt mounts; make one with: curt mount SERVER:/PATH DIR");
    }
    command::adopt_orphans()?;
    let begun = begin(&mounts, &arguments.options)?;
    let wait = if arguments.wait { WaitFor::ForAll } else { WaitFor::ForCommand };
    let (outcome, left) = command::run(&arguments.command, wait);
    let paths = arguments.paths.min(PATHS_MAX);
    let explained = end(begun, paths)?;
    let status = match outcome {
        CommandOutcome::Ended(status) => status,
        CommandOutcome::NotRun(status, why) => {
            eprintln!("curt explain: {}: {why}", Path::new(&arguments.command[0]).display());
            return Ok(status);
        }
    };
    if left == LeftProcesses::Running {
        eprintln!(
            "curt explain: the command left processes behind, whose further requests are not explained (use --wait)"
        );
    }
    if arguments.json {
        let mounts: Vec<_> = explained.iter().map(as_json).collect::<Result<_>>()?;
        let all = json!({ "status": status, "linux_options": arguments.options, "mounts": mounts });
        writeln!(output, "{all}")?;
    } else {
        write!(output, "{}", show::text(&explained, &arguments.options, &arguments.expand))?;
    }
    Ok(status)
}

/// The mounts at these directories, or all.
fn mounts(chosen: &[PathBuf]) -> Result<Vec<(PathBuf, MountReport)>> {
    let directory = control::directory();
    if chosen.is_empty() {
        return control::list(&directory).context("the mounts of this user");
    }
    let found = chosen.iter().map(|mount| control::find(&directory, mount));
    Ok(found.collect::<Result<_, _>>()?)
}

fn as_json(mount: &MountExplained) -> Result<serde_json::Value> {
    let mut value = serde_json::to_value(&mount.explained)?;
    if let Some(fields) = value.as_object_mut() {
        fields.insert("mount_point".to_owned(), json!(mount.mount.mount_point));
        fields.insert("source".to_owned(), json!(mount.mount.source));
        fields.insert("mount_options".to_owned(), json!(mount.mount.options));
    }
    Ok(value)
}

/// Begins an explanation on each mount. A mount that ends meanwhile, explains another command, or
/// has another version, is skipped with a message.
fn begin<'a>(mounts: &'a [(PathBuf, MountReport)], linux: &str) -> Result<Vec<&'a (PathBuf, MountReport)>> {
    let mut begun = Vec::new();
    for mount in mounts {
        let command = Explain { linux: linux.to_owned() };
        match control::call(&mount.0, &command) {
            Ok(()) => begun.push(mount),
            Err(error) => {
                let place = mount.1.mount_point.display();
                eprintln!("curt explain: {place} is left out: {error}");
            }
        }
    }
    if begun.is_empty() {
        bail!("no mount can be explained");
    }
    Ok(begun)
}

/// The explanations of mounts on which the command did something.
fn end(begun: Vec<&(PathBuf, MountReport)>, paths: usize) -> Result<Vec<MountExplained>> {
    let mut all = Vec::new();
    for (socket, mount) in begun {
        match control::call(socket, &EndExplanation { paths }) {
            Ok(explained) => {
                if explained.operations > 0 || explained.sent() > 0 || explained.unfinished {
                    all.push(MountExplained { mount: mount.clone(), explained: *explained });
                }
            }
            Err(ControlError::Answer) => bail!("{}: {}", mount.mount_point.display(), ControlError::Answer),
            // Possibly unmounted by the command.
            Err(error) => eprintln!("curt explain: {}: {error}", mount.mount_point.display()),
        }
    }
    Ok(all)
}
