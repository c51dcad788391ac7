//! What is said on a control socket.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What a daemon is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "ask")]
pub enum Question {
    /// What did you do, and with which options?
    Report,
    /// Take these options from now on.
    Remount {
        /// An option string.
        options: String,
        /// Whether /run/mount/utab shall show them.
        table: bool,
    },
}

/// What a daemon answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// To [`Question::Report`].
    Report(Box<MountReport>),
    /// To [`Question::Remount`]: the options in force from now on.
    Remounted(String),
    /// It cannot be done; why, and what to do.
    Refused(String),
    /// It was tried, and failed; why.
    Failed(String),
}

/// A mount, and what it did since it began.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MountReport {
    /// `server:/path`.
    pub source: String,
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// Process id of the daemon.
    pub pid: u32,
    /// Version of Curt.
    pub curt: String,
    /// NFS version spoken.
    pub vers: String,
    /// Options in force, defaults included.
    pub options: String,
    /// How long it is mounted, in seconds.
    pub age_seconds: f64,
    /// What was sent and decided.
    pub counters: curt_trace::ClientSnapshot,
    /// Requests that the kernel sent to the daemon, by operation.
    pub fuse: BTreeMap<String, u64>,
}
