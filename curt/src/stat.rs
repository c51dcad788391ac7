//! `curt stat`: the statistics of mounts, in the layouts of nfsstat(8), nfsiostat(8) and
//! mountstats(8), in the kernel's format and as JSON; with `--server`, those of a server.

mod mounts;
mod mountstats;
mod nfsiostat;
mod nfsstat;
mod server;

use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use curt_observe::control::{self, ReportLocks};

use crate::output;
use crate::serve::control::ServerSelector;

pub(crate) use nfsstat::requests;
pub(crate) use server::server_layers;

/// Arguments of `curt stat`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "With --interval the first report covers the time since the mount or the server started, and each further one the time since the \
                  previous report; new, restarted and removed mounts are marked.\n\n\
                  Examples:\n  curt stat /mnt                                    requests, decisions and options\n  \
                  curt stat --layout nfsiostat --interval 5         rates and times of READ and WRITE, every 5 seconds\n  \
                  curt stat --layout raw --output /tmp/m /mnt && mountstats -f /tmp/m\n\n\
                  Exit status: 0 if every given mount or server was found, else 1."
)]
pub(crate) struct StatArguments {
    /// The mount to show; without it, all mounts of this user
    mount: Option<PathBuf>,
    /// Show a server instead, given by its process id or its state directory; without either, this
    /// user's only server
    #[arg(long, value_name = "PID|DIR", num_args = 0..=1, default_missing_value = "", conflicts_with_all = ["mount", "layout"])]
    server: Option<String>,
    /// Have the server measure the stages of one request in N; 0: of none
    #[arg(long, value_name = "N", requires = "server", conflicts_with = "interval")]
    stages: Option<u32>,
    /// List the NFSv4 clients of the server, with what they hold
    #[arg(long, requires = "server", conflicts_with_all = ["interval", "stages"])]
    clients: bool,
    /// Have the server remove the NFSv4 client with this id, as if its lease had expired
    #[arg(long, value_name = "ID", requires = "server", value_parser = client_id, conflicts_with_all = ["interval", "stages", "clients"])]
    expire: Option<u64>,
    /// The program whose layout to use; raw: the format of the kernel's /proc/self/mountstats
    #[arg(long, value_enum, default_value_t = StatLayout::Nfsstat)]
    layout: StatLayout,
    /// Show locks instead: how many are held and waited for, and for how long
    #[arg(long, conflicts_with_all = ["server", "layout", "interval", "all"])]
    locks: bool,
    /// Report repeatedly, every S seconds
    #[arg(short, long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    interval: Option<u32>,
    /// Stop after N reports [default: never]
    #[arg(short, long, value_name = "N", requires = "interval", value_parser = clap::value_parser!(u32).range(1..))]
    count: Option<u32>,
    /// Print JSON: an array with an object for each mount, or the object of the server;
    /// with --interval a line for each report
    #[arg(long)]
    json: bool,
    /// Show counters that are zero as well
    #[arg(long)]
    all: bool,
    /// Write to this file; a regular file is replaced atomically
    #[arg(short, long, value_name = "FILE", conflicts_with = "interval")]
    output: Option<PathBuf>,
}

/// The program whose layout is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum StatLayout {
    Nfsstat,
    Nfsiostat,
    Mountstats,
    Raw,
}

/// A report, and whether there may be another.
struct StatReport {
    text: String,
    is_last: bool,
}

/// A source of successive reports.
trait StatSource {
    /// The statistics since the last report, or since the start.
    fn report(&mut self) -> Result<StatReport>;
}

/// Prints the statistics.
pub(crate) fn run(arguments: &StatArguments) -> ExitCode {
    match print(arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => output::failed("curt stat", &error),
    }
}

/// Whether all requested mounts were found until the end.
fn print(arguments: &StatArguments) -> Result<bool> {
    if arguments.locks {
        return print_once(arguments, &locks(arguments)?);
    }
    let mut reporting: Box<dyn StatSource> = match &arguments.server {
        Some(which) => {
            let which = ServerSelector::from(which.as_str());
            if let Some(every) = arguments.stages {
                return output::print(&server::measure(&which, every)?).map(|()| true);
            }
            if arguments.clients {
                return print_once(arguments, &server::clients(&which, arguments.json)?);
            }
            if let Some(id) = arguments.expire {
                return output::print(&server::expire(&which, id)?).map(|()| true);
            }
            Box::new(server::ServerStatistics::new(arguments, which))
        }
        None => Box::new(mounts::MountStatistics::new(arguments)),
    };
    let Some(interval) = arguments.interval else {
        return print_once(arguments, &reporting.report()?.text);
    };
    let mut left = arguments.count;
    loop {
        let StatReport { text, is_last } = reporting.report()?;
        output::print(&text)?;
        left = left.map(|left| left - 1);
        if is_last || left == Some(0) {
            return Ok(!is_last);
        }
        thread::sleep(Duration::from_secs(interval.into()));
    }
}

fn print_once(arguments: &StatArguments, text: &str) -> Result<bool> {
    match &arguments.output {
        Some(file) => output::write(file, text).with_context(|| file.display().to_string())?,
        None => output::print(text)?,
    }
    Ok(true)
}

/// A client's id, as `--clients` shows it or decimal.
fn client_id(text: &str) -> Result<u64, std::num::ParseIntError> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    }
}

/// The statistics of locks of one or all mounts.
fn locks(arguments: &StatArguments) -> Result<String> {
    let directory = control::directory();
    let mounts = match &arguments.mount {
        Some(mount) => vec![control::find(&directory, mount)?],
        None => control::list(&directory)?,
    };
    let reports = mounts.iter().map(|(socket, _)| control::call(socket, &ReportLocks {}));
    let reports = reports.collect::<Result<Vec<_>, _>>()?;
    if arguments.json {
        return Ok(serde_json::to_string_pretty(&reports)? + "\n");
    }
    Ok(reports.iter().map(crate::locks::summary).collect())
}
