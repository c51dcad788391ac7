//! `curt trace`: one request of a running server as a nested call graph with times.

use std::process::ExitCode;

use anyhow::{Result, bail};
use curt_mount::control;

use crate::serve::control::{Answer, Question, Which, find};

/// What `curt trace` takes.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  curt trace --graph WRITE          the next WRITE that a client sends; waits some seconds for it"
)]
pub(crate) struct TraceArguments {
    /// The procedure of which the next request is shown, such as WRITE
    #[arg(long, value_name = "PROCEDURE")]
    graph: String,
    /// The server: its process id or its state directory [default: the only one]
    #[arg(long, value_name = "PID|DIR", default_value = "", hide_default_value = true)]
    server: String,
    /// Print JSON: every span with its depth, its beginning and how long it took
    #[arg(long)]
    json: bool,
}

/// Shows a request.
pub(crate) fn run(arguments: &TraceArguments) -> ExitCode {
    match graph(arguments) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("curt trace: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn graph(arguments: &TraceArguments) -> Result<String> {
    let (socket, _) = find(&Which::from(arguments.server.as_str()))?;
    let procedure = arguments.graph.to_ascii_uppercase();
    let question = Question::Graph {
        procedure: procedure.clone(),
    };
    match control::exchange(&socket, &question)? {
        Answer::Graph(graph) if arguments.json => Ok(serde_json::to_string_pretty(&graph)? + "\n"),
        Answer::Graph(graph) => Ok(graph.text(&procedure)),
        Answer::Refused(why) => bail!(why),
        Answer::Report(_) | Answer::Stages(_) => bail!("the server's answer is not understood"),
    }
}
