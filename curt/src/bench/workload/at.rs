//! A workload below an existing directory: it can be explained, or be on another file system.

use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use curt_bench::replay::ReplayOutcome;
use curt_bench::workload::Workload;
use curt_observe::CallCounts;
use curt_observe::control;
use serde_json::json;

use super::{WorkloadArguments, difference, make_tree, replay};

/// Replays it; returns whether all results were right.
pub(super) fn run(
    workload: Workload,
    directory: &Path,
    pause: Duration,
    arguments: &WorkloadArguments,
) -> Result<bool> {
    if arguments.make_tree {
        make_tree(workload, directory, arguments.jobs, &format!("in {}", directory.display()))?;
    }
    let before = requests(directory);
    let outcome = replay(workload, directory, pause, &format!("{workload} in {}", directory.display()))?;
    let sent = before.zip(requests(directory)).map(|(before, after)| after.since(&before));
    for what in &outcome.described {
        eprintln!("unexpected result: {what}");
    }
    let differing = arguments.compare.then(|| difference(workload, directory, arguments.jobs)).flatten();
    if let Some(what) = &differing {
        eprintln!("unexpected result: {what}");
    }
    show(workload, directory, &outcome, sent.as_ref(), arguments.json)?;
    Ok(outcome.wrong == 0 && differing.is_none())
}

/// Prints the result, and the requests of a Curt mount.
fn show(
    workload: Workload,
    directory: &Path,
    outcome: &ReplayOutcome,
    sent: Option<&CallCounts>,
    as_json: bool,
) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if as_json {
        let mut line = json!({
            "workload": workload.name(), "at": directory, "operations": outcome.operations,
            "wrong": outcome.wrong, "seconds": outcome.seconds,
        });
        if let (Some(sent), Some(fields)) = (sent, line.as_object_mut()) {
            let mut calls: serde_json::Map<_, _> =
                sent.iter().map(|(operation, calls)| (operation.to_string(), json!(calls))).collect();
            calls.insert("total".to_owned(), json!(sent.total()));
            fields.insert("rpc".to_owned(), calls.into());
        }
        writeln!(out, "{line}")?;
    } else {
        let (operations, wrong, seconds) = (outcome.operations, outcome.wrong, outcome.seconds);
        let at = directory.display();
        writeln!(out, "{workload} at {at}: {operations} operations, {wrong} wrong, {seconds:.2} s")?;
        if let Some(sent) = sent {
            writeln!(out, "requests: {}", sent.total())?;
        }
    }
    Ok(())
}

/// The requests of this user's Curt mount at `directory`; `None` if there is none.
fn requests(directory: &Path) -> Option<CallCounts> {
    let (_, report) = control::find(&control::directory(), directory).ok()?;
    Some(report.counters.requests)
}
