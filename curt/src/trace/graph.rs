//! `curt trace --graph`: one request of a running server as a nested call graph with times.

use anyhow::{Result, bail};
use curt_mount::control;

use crate::serve::control::{ServerControlReply, ServerControlRequest, ServerSelector, find};

/// The graph of the next request of this procedure, as text or JSON.
pub(super) fn graph(which: &ServerSelector, procedure: &str, json: bool) -> Result<String> {
    let (socket, _) = find(which)?;
    let procedure = procedure.to_ascii_uppercase();
    let question = ServerControlRequest::Graph {
        procedure: procedure.clone(),
    };
    match control::exchange(&socket, &question)? {
        ServerControlReply::Graph(graph) if json => Ok(serde_json::to_string_pretty(&graph)? + "\n"),
        ServerControlReply::Graph(graph) => Ok(graph.text(&procedure)),
        ServerControlReply::Refused(why) => bail!(why),
        ServerControlReply::Report(_) | ServerControlReply::Stages(_) | ServerControlReply::Events => {
            bail!("the server's answer is not understood")
        }
    }
}
