//! `curt trace --graph`: one request of a running server as a nested call graph with times.

use anyhow::Result;
use curt_observe::control::{self, DrawGraph};

use crate::serve::control::{ServerSelector, find};

/// The graph of the next request of this procedure, as text or JSON.
pub(super) fn graph(which: &ServerSelector, procedure: &str, json: bool) -> Result<String> {
    let (socket, _) = find(which)?;
    let procedure = procedure.to_ascii_uppercase();
    let command = DrawGraph { procedure: procedure.clone() };
    let graph = control::call(&socket, &command)?;
    Ok(if json { serde_json::to_string_pretty(&graph)? + "\n" } else { graph.text(&procedure) })
}
