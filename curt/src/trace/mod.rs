//! `curt trace`: events of a running mount or server as they happen, recordings of them, what a crash left behind, and one
//! request of a server as a call graph.

mod graph;
mod live;
mod output;
mod recorded;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use curt_trace::events::{self, Filter};

use self::output::{Limits, Target};
use crate::errors;
use crate::serve::control::Which;

/// What `curt trace` takes.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  \
        curt trace /mnt                                       what programs on this mount ask, and what is sent\n  \
        curt trace --events 'rpc_*' --filter 'rtt > 10000000' /mnt   what took longer than 10 ms\n  \
        curt trace --server --filter 'error != 0 || status != 0'     what the only server of this machine refuses\n  \
        curt trace --perfetto trace.json --seconds 5 /mnt     5 s to look at in ui.perfetto.dev\n  \
        curt trace --record last.events /mnt; curt trace report last.events\n  \
        curt trace report                                     what processes left behind that were killed or failed, or in which a thread did\n  \
        curt trace --graph WRITE                              the next WRITE that a server is sent, as a call graph\n\n\
        A filter compares fields: == != < <= > >= and, for texts, =~ and !~ with * and ?; && || ! and parentheses join. A \
        comparison with a field that an event has not is false. 'curt trace --list' tells the events and fields. \
        Ctrl-C ends; how many events there were, and how many were lost, is said on standard error.\n\n\
        Exit status: 0; 1 if the mount or server is not found, refuses, or a file cannot be read or written."
)]
pub(crate) struct TraceArguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// The mount [default: the only one]
    #[arg(value_name = "MOUNT", conflicts_with = "server")]
    mount: Option<PathBuf>,
    /// Of a server instead: its process id or its state directory [default: the only one]
    #[arg(long, value_name = "PID|DIR", num_args = 0..=1, default_missing_value = "")]
    server: Option<String>,
    #[command(flatten)]
    chosen: Chosen,
    /// Write the events to this file, for 'curt trace report'
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "perfetto"])]
    record: Option<PathBuf>,
    /// End after so many seconds
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    seconds: Option<u64>,
    /// Tell what events there are, and end
    #[arg(long, conflicts_with_all = ["mount", "server", "record", "seconds", "graph", "filter", "json", "perfetto", "count"])]
    list: bool,
    /// With --list: as docs/events.md has it
    #[arg(long, requires = "list")]
    markdown: bool,
    /// Show the next request of this procedure (such as WRITE) of a server as a call graph; waits some seconds for it
    #[arg(long, value_name = "PROCEDURE", conflicts_with_all = ["mount", "record", "perfetto", "seconds", "count", "filter", "events"])]
    graph: Option<String>,
}

/// Which events are shown, and how.
#[derive(Debug, clap::Args)]
struct Chosen {
    /// Events whose names fit one of these patterns, which commas part
    #[arg(long, value_name = "PATTERNS", default_value = "*")]
    events: String,
    /// Only those of them for which this holds
    #[arg(long, value_name = "EXPRESSION", value_parser = Filter::parse)]
    filter: Option<Filter>,
    /// Print each event as an object of JSON in a line of its own
    #[arg(long, conflicts_with = "perfetto")]
    json: bool,
    /// Write a trace to this file that ui.perfetto.dev and chrome://tracing show
    #[arg(long, value_name = "FILE")]
    perfetto: Option<PathBuf>,
    /// End after so many events
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Show a recording, or what a process left behind that was killed or failed; without a FILE, which of the latter there are
    Report {
        /// What --record wrote, or a ring
        file: Option<PathBuf>,
        #[command(flatten)]
        chosen: Chosen,
    },
}

/// Shows events.
pub(crate) fn run(arguments: &TraceArguments) -> ExitCode {
    let done = match &arguments.command {
        Some(Command::Report {
            file: Some(file),
            chosen,
        }) => recorded::report(file, &chosen.target(None), &chosen.limits()),
        Some(Command::Report { file: None, chosen }) => recorded::list(chosen.json),
        None if arguments.list => list(arguments),
        None => match &arguments.graph {
            Some(procedure) => {
                let which = Which::from(arguments.server.as_deref().unwrap_or_default());
                graph::graph(&which, procedure, arguments.chosen.json).and_then(|text| output::print(&text))
            }
            None => live::watch(arguments),
        },
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read what was printed has seen enough.
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

impl Chosen {
    fn target(&self, record: Option<&PathBuf>) -> Target {
        match (&self.perfetto, record) {
            (Some(file), _) => Target::Perfetto(file.clone()),
            (None, Some(file)) => Target::Record(file.clone()),
            (None, None) if self.json => Target::Json,
            (None, None) => Target::Text,
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
