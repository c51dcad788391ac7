//! `curt trace`: live events of a mount or server, recordings, events before a crash, and one
//! request of a server as a call graph.

mod event_output;
mod graph;
mod live;
mod recorded;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use curt_observe::events::{self, EventFilter};

use self::event_output::{Limits, OutputTarget};
use crate::output;
use crate::serve::control::ServerSelector;

/// Arguments of `curt trace`.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  \
        curt trace /mnt                                       operations of programs on this mount, and requests sent\n  \
        curt trace --event 'rpc_*' --slower 10 /mnt           requests that took 10 ms or longer\n  \
        curt trace --path /src --uid 1000 /mnt                what this user's programs do below /mnt/src\n  \
        curt trace --server --event nfsd_reply                each call of this user's only server\n  \
        curt trace --perfetto trace.json --seconds 5 /mnt     5 s, to view in ui.perfetto.dev\n  \
        curt trace --record last.events /mnt; curt trace report last.events\n  \
        curt trace report                                     lists the rings of processes that were killed, failed or panicked\n  \
        curt trace --graph WRITE                              the next WRITE at a server, as a call graph\n\n\
        With several of --event, --path, --uid and --slower, events have to satisfy all of them. What happens within an operation belongs to its user and path, and \
        so do the requests that it sends. A ring has no paths of a mount. 'curt trace --list' lists the events and their fields. \
        Ctrl-C ends the trace; the numbers of events shown and lost are printed on standard error.\n\n\
        Exit status: 0, or 1 if the mount or server is not found or refuses, or if a file cannot be read or written."
)]
pub(crate) struct TraceArguments {
    #[command(subcommand)]
    command: Option<TraceCommand>,
    /// The mount [default: the only one]
    #[arg(value_name = "MOUNT", conflicts_with = "server")]
    mount: Option<PathBuf>,
    /// Trace a server instead, given by its process id or its state directory [default: the only
    /// one]
    #[arg(long, value_name = "PID|DIR", num_args = 0..=1, default_missing_value = "")]
    server: Option<String>,
    #[command(flatten)]
    chosen: EventSelection,
    /// Write the events to this file, for 'curt trace report'
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "perfetto"])]
    record: Option<PathBuf>,
    /// Stop after N seconds
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    seconds: Option<u64>,
    /// List all events, and exit
    #[arg(long, conflicts_with_all = ["mount", "server", "record", "seconds", "graph", "path", "uid", "slower", "json", "perfetto", "count"])]
    list: bool,
    /// Show a server's next request of this procedure (such as WRITE) as a call graph; waits some
    /// seconds for it
    #[arg(long, value_name = "PROCEDURE", conflicts_with_all = ["mount", "record", "perfetto", "seconds", "count", "event", "path", "uid", "slower"])]
    graph: Option<String>,
}

/// Selection and format of events.
#[derive(Debug, clap::Args)]
struct EventSelection {
    /// Only events whose names match this pattern, with * and ?; may be repeated
    #[arg(long, value_name = "GLOB")]
    event: Vec<String>,
    /// Only events about this path or paths below it, relative to the root of the mount, as in
    /// 'curt top'; for a server: calls on this export or exports below it
    #[arg(long, value_name = "PREFIX", value_parser = absolute)]
    path: Option<OsString>,
    /// Only events caused by programs of this user, given by its uid
    #[arg(long, value_name = "N")]
    uid: Option<u32>,
    /// Only the ends of operations that took at least MS milliseconds
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..))]
    slower: Option<u64>,
    /// Print each event as a JSON object on a line of its own
    #[arg(long, conflicts_with = "perfetto")]
    json: bool,
    /// Write a trace file for ui.perfetto.dev and chrome://tracing
    #[arg(long, value_name = "FILE")]
    perfetto: Option<PathBuf>,
    /// Stop after N events
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

#[derive(Debug, clap::Subcommand)]
enum TraceCommand {
    /// Show a recording, or the ring of a killed or failed process; without FILE, list the rings
    Report {
        /// A file written by --record, or a ring
        file: Option<PathBuf>,
        #[command(flatten)]
        chosen: EventSelection,
    },
}

fn absolute(path: &str) -> Result<OsString, &'static str> {
    if path.starts_with('/') { Ok(path.into()) } else { Err("it begins with /, the root of the mount") }
}

/// Shows events.
pub(crate) fn run(arguments: &TraceArguments) -> ExitCode {
    let done = match &arguments.command {
        Some(TraceCommand::Report { file: Some(file), chosen }) => {
            recorded::report(file, &chosen.target(None), &chosen.limits())
        }
        Some(TraceCommand::Report { file: None, chosen }) => recorded::list(chosen.json),
        None if arguments.list => events::select(&arguments.chosen.patterns())
            .map_err(Into::into)
            .and_then(|selected| output::print(&events::list(&selected))),
        None => match &arguments.graph {
            Some(procedure) => {
                let which = ServerSelector::from(arguments.server.as_deref().unwrap_or_default());
                graph::graph(&which, procedure, arguments.chosen.json).and_then(|text| output::print(&text))
            }
            None => live::watch(arguments),
        },
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => output::failed("curt trace", &error),
    }
}

impl EventSelection {
    fn target(&self, record: Option<&PathBuf>) -> OutputTarget {
        match (&self.perfetto, record) {
            (Some(file), _) => OutputTarget::Perfetto(file.clone()),
            (None, Some(file)) => OutputTarget::Record(file.clone()),
            (None, None) if self.json => OutputTarget::Json,
            (None, None) => OutputTarget::Text,
        }
    }

    /// The patterns of all names, separated by commas.
    fn patterns(&self) -> String {
        if self.event.is_empty() { "*".to_owned() } else { self.event.join(",") }
    }

    fn limits(&self) -> Limits {
        Limits {
            filter: EventFilter::new(
                self.event.clone(),
                self.path.clone().map(OsString::into_encoded_bytes),
                self.uid.map(u64::from),
                self.slower.map(|milliseconds| milliseconds.saturating_mul(1_000_000)),
            ),
            count: self.count.unwrap_or(u64::MAX),
        }
    }
}
