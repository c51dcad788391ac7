//! The messages on a control socket.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::request_origins::RequestOrigins;
use crate::explain::ExplainReport;

/// A question to a daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "ask")]
pub enum MountControlRequest {
    /// The mount's report: figures and options.
    Report,
    /// The same, and the processes and paths that cause requests: counted from the first such
    /// question until none has arrived for ten seconds.
    Watch,
    /// Change these options.
    Remount {
        /// An option string.
        options: String,
        /// Whether /run/mount/utab shall show them.
        table: bool,
    },
    /// Explain from now on the requests of the asking process and its descendants.
    Explain {
        /// Mount options of the Linux client to compare with.
        linux: String,
    },
    /// End the explanation and return it.
    Explained {
        /// The most paths to list for each cause.
        paths: usize,
    },
    /// Stream events until the connection is closed.
    Events {
        /// Which: patterns of their names, separated by commas.
        patterns: String,
    },
}

/// An answer of a daemon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MountControlReply {
    /// To [`MountControlRequest::Report`].
    Report(Box<MountReport>),
    /// To [`MountControlRequest::Watch`].
    Watched(Box<MountActivity>),
    /// To [`MountControlRequest::Remount`]: the options in force from now on.
    Remounted(String),
    /// To [`MountControlRequest::Explain`]: explaining has begun.
    Explaining,
    /// To [`MountControlRequest::ExplainReport`].
    Explained(Box<ExplainReport>),
    /// To [`MountControlRequest::Events`]: a recording follows, as
    /// [`curt_trace::events::recording`] says.
    Events,
    /// It cannot be done; why, and what to do.
    Refused(String),
    /// It was tried, and failed; why.
    Failed(String),
}

/// A mount, and the processes and paths that cause its requests.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MountActivity {
    /// The mount.
    #[serde(flatten)]
    pub report: MountReport,
    /// The processes and paths that cause requests.
    pub causers: RequestOrigins,
}

/// A mount and its figures since it was mounted. Fields that a daemon of another version does not
/// send are empty.
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
    /// How long it has been mounted, in seconds.
    pub age_seconds: f64,
    /// The client's counters.
    pub counters: curt_trace::ClientSnapshot,
    /// Requests that the kernel sent to the daemon, by operation.
    pub fuse: BTreeMap<String, u64>,
    /// The figures of each procedure's requests.
    pub operations: curt_trace::OperationSnapshot,
    /// The traffic of the connections.
    pub transport: curt_trace::TransportReport,
    /// What the daemon holds in memory at this moment.
    pub held: MemoryUsage,
    /// What the server reported about itself.
    pub server: ServerCapabilities,
}

/// What a mount's daemon holds in memory at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryUsage {
    /// Files, directories and other objects.
    pub objects: u64,
    /// Positive names.
    pub names: u64,
    /// Negative names.
    pub missing_names: u64,
    /// Bytes of memory that listings take.
    pub listing_bytes: u64,
    /// Bytes that are written and not on the server's disk yet.
    pub dirty_bytes: u64,
}

/// What a server reported at mount time, as far as tools print it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerCapabilities {
    /// The security flavour's number.
    pub flavour: u32,
    /// WRITE sizes should be multiples of it.
    pub write_multiple: u32,
    /// The READDIR size that it prefers.
    pub listing_size: u32,
    /// The longest name, in bytes.
    pub name_max: u32,
    /// Listings are requested with attributes.
    pub readdirplus: bool,
    /// It supports hard links.
    pub links: bool,
    /// It supports symbolic links.
    pub symlinks: bool,
}
