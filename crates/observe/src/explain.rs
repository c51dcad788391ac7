//! The report of an explanation, as sent over the control socket and printed by `--json`: the cause
//! of each request of a command, the rule that saved each one not sent, and what Linux would have
//! sent. A mount makes it (`mount/explain`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The requests of one mount, from the start of a command to its end.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExplainReport {
    /// A row for each cause of which a request was sent, would have been sent by Linux, or was
    /// saved.
    pub causes: Vec<CauseRow>,
    /// Requests that the command caused, by operation.
    pub requests: BTreeMap<String, u64>,
    /// Requests caused by other processes, by operation: together with `requests`, all requests of
    /// the mount.
    pub others: BTreeMap<String, u64>,
    /// Requests that Linux would have sent for the command, by operation.
    pub linux: BTreeMap<String, u64>,
    /// The command's processes with most requests.
    pub processes: Vec<ProcessRow>,
    /// The sum of the other processes.
    pub processes_rest: UnlistedRequests,
    /// Operations of the command on this mount, as received from the kernel.
    pub operations: u64,
    /// How often the model of Linux ran out of memory and dropped its state: its numbers are then
    /// too large.
    pub linux_forgot: u64,
    /// Operations of the command were still in progress when the wait timed out: their requests may
    /// be missing.
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
    /// Requests saved, by rule.
    pub saved: BTreeMap<String, u64>,
    /// The paths with most requests.
    pub paths: Vec<PathRow>,
    /// The sum of the other paths.
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
    /// Requests saved.
    pub saved: u64,
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
    /// Its process id.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// Its requests.
    #[serde(flatten)]
    pub requests: RequestTally,
}

/// The sum of entries that are not listed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UnlistedRequests {
    /// The number of entries, at least.
    pub count: u64,
    /// The requests of the entries.
    #[serde(flatten)]
    pub requests: RequestTally,
}

impl ExplainReport {
    /// Requests of the command.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.requests.values().sum()
    }

    /// Requests that Linux would have sent for the command.
    #[must_use]
    pub fn linux_sent(&self) -> u64 {
        self.linux.values().sum()
    }

    /// Requests saved.
    #[must_use]
    pub fn saved(&self) -> u64 {
        self.causes.iter().flat_map(|row| row.saved.values()).sum()
    }
}
