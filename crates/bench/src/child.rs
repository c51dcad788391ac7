//! A replay in a separate process, possibly as another user.
//!
//! The parent starts a program whose `main` calls [`perform`]; the child prints a line of JSON for
//! each page and one for the outcome.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::replay::{PageView, Replay, ReplayOutcome};
use crate::workload::Workload;

/// A user and group id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserIds {
    /// The user's id.
    pub uid: u32,
    /// The group's id.
    pub gid: u32,
}

impl UserIds {
    /// User and group 65534: the user of a replay that root started, because servers treat root
    /// specially.
    pub const NOBODY: Self = Self { uid: 65534, gid: 65534 };
}

/// A line of the child's output.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ChildMessage {
    Page(PageView),
    Outcome(ReplayOutcome),
}

/// Why a replay in a child failed.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// The child could not be started, or its output not be read.
    #[error("the replay's process: {0}")]
    Io(#[from] io::Error),
    /// The child printed something else.
    #[error("the replay's process said: {0}")]
    Unexpected(String),
    /// The child ended early; the reason is on its standard error.
    #[error("the replay's process ended early ({0})")]
    Ended(std::process::ExitStatus),
}

/// The child's part: replays `workload` below `top`, or only the first pages of it, and prints the
/// results to `out`.
///
/// # Errors
/// The directory cannot be opened, or `out` cannot be written.
pub fn perform(
    workload: Workload,
    top: &Path,
    pause: Duration,
    pages_max: usize,
    out: &mut dyn Write,
) -> io::Result<ReplayOutcome> {
    let (tree, trace) = (workload.tree(), workload.trace());
    let replay = Replay::new(&trace, &tree, top)?.pages(pages_max);
    let mut lost = None;
    let outcome = replay.run(pause, |page| {
        if let Err(error) = say(out, &ChildMessage::Page(page.clone())) {
            lost = Some(error);
        }
    });
    if let Some(error) = lost {
        return Err(error);
    }
    say(out, &ChildMessage::Outcome(outcome.clone()))?;
    Ok(outcome)
}

fn say(out: &mut dyn Write, message: &ChildMessage) -> io::Result<()> {
    let mut line = serde_json::to_string(message)?;
    line.push('\n');
    out.write_all(line.as_bytes())?;
    out.flush()
}

/// The parent's part: runs `command`, whose process calls [`perform`] with its standard output, as
/// `user` if given (which needs root).
///
/// # Errors
/// The child could not be started, ended early, or printed something else.
pub fn supervise(
    command: &mut Command,
    user: Option<UserIds>,
    mut page_done: impl FnMut(&PageView),
) -> Result<ReplayOutcome, ChildError> {
    if let Some(UserIds { uid, gid }) = user {
        // As root this also drops all supplementary groups.
        command.uid(uid).gid(gid);
    }
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let output = child.stdout.take().expect("standard output was asked for as a pipe");
    let mut outcome = None;
    let mut heard = Ok(());
    for line in BufReader::new(output).lines() {
        let message = line.map_err(ChildError::Io);
        match message.and_then(|line| serde_json::from_str(&line).map_err(|_| ChildError::Unexpected(line))) {
            Ok(ChildMessage::Page(page)) => page_done(&page),
            Ok(ChildMessage::Outcome(done)) => outcome = Some(done),
            Err(error) => heard = Err(error),
        }
        if heard.is_err() {
            // Its further output is not needed.
            child.kill()?;
            break;
        }
    }
    let status = child.wait()?;
    heard?;
    match outcome {
        Some(outcome) => Ok(outcome),
        None => Err(ChildError::Ended(status)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn pages_and_outcome_are_received() {
        let outcome = ReplayOutcome {
            operations: 7,
            wrong: 1,
            described: vec!["x".into()],
            ..ReplayOutcome::default()
        };
        let mut written = Vec::new();
        say(&mut written, &ChildMessage::Page(PageView { operations: 3, seconds: 0.5 })).unwrap();
        say(&mut written, &ChildMessage::Outcome(outcome.clone())).unwrap();
        let script = format!("printf '%s' '{}'", String::from_utf8(written).unwrap());
        let mut pages = 0;
        assert_eq!(supervise(&mut shell(&script), None, |page| pages += page.operations).unwrap(), outcome);
        assert_eq!(pages, 3);
    }

    #[test]
    fn a_child_that_fails_or_babbles_is_an_error() {
        assert!(matches!(supervise(&mut shell("exit 3"), None, |_| ()), Err(ChildError::Ended(_))));
        assert!(matches!(
            supervise(&mut shell("echo hello; sleep 60"), None, |_| ()),
            Err(ChildError::Unexpected(_))
        ));
        assert!(matches!(supervise(&mut Command::new("/nonexistent"), None, |_| ()), Err(ChildError::Io(_))));
    }
}
