//! What is said on a control socket.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::watching::Causers;
use crate::explain::Explained;

/// What a daemon is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "ask")]
pub enum Question {
    /// What did you do, and with which options?
    Report,
    /// The same, and who causes requests: that is counted from the first such question on, until none has come for ten seconds.
    Watch,
    /// Take these options from now on.
    Remount {
        /// An option string.
        options: String,
        /// Whether /run/mount/utab shall show them.
        table: bool,
    },
    /// Explain from now on what the asking process and those below it cause.
    Explain {
        /// Mount options of the Linux client that is laid beside.
        linux: String,
    },
    /// What did they cause?
    Explained {
        /// For each cause, paths that are told one by one at most.
        paths: usize,
    },
    /// Tell me of events until I close the connection.
    Events {
        /// Which: patterns of their names, parted by commas.
        patterns: String,
    },
}

/// What a daemon answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// To [`Question::Report`].
    Report(Box<MountReport>),
    /// To [`Question::Watch`].
    Watched(Box<Watched>),
    /// To [`Question::Remount`]: the options in force from now on.
    Remounted(String),
    /// To [`Question::Explain`]: it is being done.
    Explaining,
    /// To [`Question::Explained`].
    Explained(Box<Explained>),
    /// To [`Question::Events`]: a recording follows, as [`curt_trace::events::recording`] says.
    Events,
    /// It cannot be done; why, and what to do.
    Refused(String),
    /// It was tried, and failed; why.
    Failed(String),
}

/// A mount, and who causes its requests.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Watched {
    /// The mount.
    #[serde(flatten)]
    pub report: MountReport,
    /// Who causes requests.
    pub causers: Causers,
}

/// A mount, and what it did since it began. Fields that a daemon of another version does not tell are empty.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
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
    /// What the requests cost, per procedure.
    pub operations: curt_trace::OperationSnapshot,
    /// What passed over the connections.
    pub transport: curt_trace::TransportReport,
    /// What is remembered at this moment.
    pub held: Held,
    /// What the server said of itself.
    pub server: ServerWords,
}

/// What a mount's daemon remembers at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Held {
    /// Files, directories and other objects.
    pub objects: u64,
    /// Names that are there.
    pub names: u64,
    /// Names that are missing.
    pub missing_names: u64,
    /// Bytes of memory that listings take.
    pub listing_bytes: u64,
    /// Bytes that are written and not on the server's disk yet.
    pub dirty_bytes: u64,
}

/// What a server said at mount time, as far as tools print it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerWords {
    /// The security flavour's number.
    pub flavour: u32,
    /// WRITE sizes should be multiples of it.
    pub write_multiple: u32,
    /// The READDIR size that it likes best.
    pub listing_size: u32,
    /// Bytes of a name.
    pub name_max: u32,
    /// Listings are asked for with attributes.
    pub readdirplus: bool,
    /// It makes hard links.
    pub links: bool,
    /// It makes symbolic links.
    pub symlinks: bool,
}
