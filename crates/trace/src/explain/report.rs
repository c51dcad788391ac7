//! The report of an explanation, as it is sent over the control socket and printed by `--json`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Why one mount's requests were sent, from when a command began until it ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExplainReport {
    /// A row for each cause of which a request was sent, would have been sent by Linux, or was
    /// saved.
    pub causes: Vec<CauseRow>,
    /// Requests that the command caused, by procedure.
    pub requests: BTreeMap<String, u64>,
    /// Requests that none of the command's processes caused, by procedure: with `requests`, all
    /// that the mount sent.
    pub others: BTreeMap<String, u64>,
    /// What Linux would have sent for the command, by procedure.
    pub linux: BTreeMap<String, u64>,
    /// The command's processes that caused most requests.
    pub processes: Vec<ProcessRow>,
    /// The processes that are not in `processes`, together.
    pub processes_rest: UnlistedRequests,
    /// Operations of the command on this mount, as the kernel passed them on.
    pub operations: u64,
    /// How often the model of Linux ran out of room and forgot everything: its numbers are then too
    /// large.
    pub linux_forgot: u64,
    /// Something of the command was still in progress when the wait ended: its requests may be
    /// missing.
    pub unfinished: bool,
}

/// One cause.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CauseRow {
    /// Its name.
    pub cause: String,
    /// Requests that were sent.
    pub sent: u64,
    /// Requests that Linux would have sent.
    pub linux: u64,
    /// Requests that were spared, by rule.
    pub spared: BTreeMap<String, u64>,
    /// The paths with most requests.
    pub paths: Vec<PathRow>,
    /// The paths that are not in `paths`, together.
    pub paths_rest: UnlistedRequests,
}

/// How many requests something caused.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RequestTally {
    /// Requests that were sent.
    pub sent: u64,
    /// Requests that Linux would have sent.
    pub linux: u64,
    /// Requests that were spared.
    pub spared: u64,
}

/// One path of a cause.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PathRow {
    /// From the mount's root.
    pub path: String,
    /// Its requests.
    #[serde(flatten)]
    pub requests: RequestTally,
}

/// One process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessRow {
    /// Its number.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// Its requests.
    #[serde(flatten)]
    pub requests: RequestTally,
}

/// What is not listed one by one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UnlistedRequests {
    /// How many they are at least.
    pub count: u64,
    /// Their requests.
    #[serde(flatten)]
    pub requests: RequestTally,
}

impl ExplainReport {
    /// Requests of the command.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.requests.values().sum()
    }

    /// What Linux would have sent for it.
    #[must_use]
    pub fn linux_sent(&self) -> u64 {
        self.linux.values().sum()
    }

    /// Requests that were spared.
    #[must_use]
    pub fn spared(&self) -> u64 {
        self.causes.iter().flat_map(|row| row.spared.values()).sum()
    }
}
