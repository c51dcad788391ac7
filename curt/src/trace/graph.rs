//! `curt trace --graph`: one request of a running server as a nested call graph with times.

use anyhow::{Result, bail};
use curt_mount::control;

use crate::serve::control::{Answer, Question, Which, find};

/// The graph of the next request of this procedure, as text or JSON.
pub(super) fn graph(which: &Which, procedure: &str, json: bool) -> Result<String> {
    let (socket, _) = find(which)?;
    let procedure = procedure.to_ascii_uppercase();
    let question = Question::Graph {
        procedure: procedure.clone(),
    };
    match control::exchange(&socket, &question)? {
        Answer::Graph(graph) if json => Ok(serde_json::to_string_pretty(&graph)? + "\n"),
        Answer::Graph(graph) => Ok(graph.text(&procedure)),
        Answer::Refused(why) => bail!(why),
        Answer::Report(_) | Answer::Stages(_) | Answer::Events => {
            bail!("the server's answer is not understood")
        }
    }
}
