//! `curt trace`: live events of a mount or server, recordings of them, what a crash left behind,
//! and one request of a server as a call graph.

mod graph;
mod live;
mod output;
mod recorded;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use curt_trace::events::{self, Filter};

use self::output::{Limits, OutputTarget};
use crate::errors;
use crate::serve::control::ServerSelector;

/// What `curt trace` takes.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  \
        curt trace /mnt                                       what programs on this mount ask for, and what is sent\n  \
        curt trace --events 'rpc_*' --filter 'rtt > 10000000' /mnt   requests that took longer than 10 ms\n  \
        curt trace --server --filter 'error != 0 || status != 0'     what this user's only server refuses\n  \
        curt trace --perfetto trace.json --seconds 5 /mnt     5 s, to view in ui.perfetto.dev\n  \
        curt trace --record last.events /mnt; curt trace report last.events\n  \
        curt trace report                                     what killed, failed or panicked processes left behind\n  \
        curt trace --graph WRITE                              the next WRITE at a server, as a call graph\n\n\
        A filter compares fields with == != < <= > >= and, for text, =~ and !~ with * and ?; combine comparisons with && || ! and parentheses. A \
        comparison with a field that an event does not have is false. 'curt trace --list' lists the events and their fields. \
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
    #[arg(long, conflicts_with_all = ["mount", "server", "record", "seconds", "graph", "filter", "json", "perfetto", "count"])]
    list: bool,
    /// With --list: in the form of docs/events.md
    #[arg(long, requires = "list")]
    markdown: bool,
    /// Show a server's next request of this procedure (such as WRITE) as a call graph; waits some
    /// seconds for it
    #[arg(long, value_name = "PROCEDURE", conflicts_with_all = ["mount", "record", "perfetto", "seconds", "count", "filter", "events"])]
    graph: Option<String>,
}

/// Which events are shown, and how.
#[derive(Debug, clap::Args)]
struct EventSelection {
    /// Only events whose names match one of these comma-separated patterns
    #[arg(long, value_name = "PATTERNS", default_value = "*")]
    events: String,
    /// Only events for which this expression is true
    #[arg(long, value_name = "EXPRESSION", value_parser = Filter::parse)]
    filter: Option<Filter>,
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
    /// Show a recording, or what a killed or failed process left behind; without FILE, list what
    /// was left behind
    Report {
        /// A file written by --record, or a ring
        file: Option<PathBuf>,
        #[command(flatten)]
        chosen: EventSelection,
    },
}

/// Shows events.
pub(crate) fn run(arguments: &TraceArguments) -> ExitCode {
    let done = match &arguments.command {
        Some(TraceCommand::Report {
            file: Some(file),
            chosen,
        }) => recorded::report(file, &chosen.target(None), &chosen.limits()),
        Some(TraceCommand::Report { file: None, chosen }) => recorded::list(chosen.json),
        None if arguments.list => list(arguments),
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
        // The reader of our output closed it, as `head` does: not an error.
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("curt trace: {}", errors::line(&error));
            ExitCode::FAILURE
        }
    }
}

fn list(arguments: &TraceArguments) -> Result<()> {
    if arguments.markdown {
        return output::print(&events::markdown());
    }
    output::print(&events::list(&events::select(&arguments.chosen.events)?))
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

    fn limits(&self) -> Limits {
        Limits {
            patterns: self.events.clone(),
            filter: self.filter.clone(),
            count: self.count.unwrap_or(u64::MAX),
        }
    }
}
