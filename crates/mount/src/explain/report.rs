//! What an explanation says: the words of it, as they go over the control socket and into `--json`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// How one mount's requests came about, from when a command began until it ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Explained {
    /// A row for each cause that sent a request, would have done so in Linux, or had one spared.
    pub causes: Vec<CauseRow>,
    /// Requests that the command caused, by procedure.
    pub requests: BTreeMap<String, u64>,
    /// Requests that nobody of the command's processes caused, by procedure: with `requests`, all that the mount sent.
    pub others: BTreeMap<String, u64>,
    /// What Linux would have sent for the command, by procedure.
    pub linux: BTreeMap<String, u64>,
    /// The command's processes that caused most.
    pub processes: Vec<ProcessRow>,
    /// What the processes caused that are not in `processes`, together.
    pub processes_rest: Rest,
    /// Operations of the command on this mount, as its kernel passed them on.
    pub operations: u64,
    /// How often Linux's model had to forget everything for want of room: its numbers are too large then.
    pub linux_forgot: u64,
    /// Something of the command was still under way when it was no longer waited for: its requests may be missing.
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
    pub paths_rest: Rest,
}

/// One path of a cause.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PathRow {
    /// From the mount's root.
    pub path: String,
    /// Requests that were sent.
    pub sent: u64,
    /// Requests that Linux would have sent.
    pub linux: u64,
    /// Requests that were spared.
    pub spared: u64,
}

/// One process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessRow {
    /// Its number.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// Requests that were sent.
    pub sent: u64,
    /// Requests that Linux would have sent.
    pub linux: u64,
    /// Requests that were spared.
    pub spared: u64,
}

/// What is not told one by one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rest {
    /// How many they are at least.
    pub count: u64,
    /// Requests that were sent.
    pub sent: u64,
    /// Requests that Linux would have sent.
    pub linux: u64,
    /// Requests that were spared.
    pub spared: u64,
}

impl Explained {
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
