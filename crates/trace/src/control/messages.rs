//! The messages on a control socket.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::stages::CallGraph;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::request_origins::RequestOrigins;
use super::server_report::ServerReport;
use crate::explain::ExplainReport;

/// A command that a control socket takes: one line of JSON, whose `ask` is the command's name. The
/// reply is a [`ControlReply`], also in one line.
pub trait ControlCommand: Serialize + DeserializeOwned {
    /// Its name.
    const NAME: &'static str;
    /// What it returns.
    type Reply: Serialize + DeserializeOwned;
}

/// The reply to a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlReply<T> {
    /// It is done.
    Done(T),
    /// It cannot be done; why, and what to do.
    Refused(String),
    /// It was tried, and failed.
    Failed(String),
}

/// Declares commands: type, name, arguments and reply.
macro_rules! control_commands {
    ($($(#[$outer:meta])* $command:ident $name:literal { $($(#[$inner:meta])* $field:ident: $type:ty),* } -> $reply:ty;)*) => {$(
        $(#[$outer])*
        #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
        pub struct $command {
            $($(#[$inner])* pub $field: $type,)*
        }

        impl ControlCommand for $command {
            const NAME: &'static str = $name;
            type Reply = $reply;
        }
    )*};
}

control_commands! {
    /// Sends events until the connection is closed: a recording follows the reply.
    WatchEvents "events" {
        /// Which: patterns of their names, separated by commas.
        patterns: String
    } -> ();

    /// Asks for a mount's figures and options.
    ReportMount "report" {} -> Box<MountReport>;

    /// The same, and the processes and paths that cause requests: counted from the first such
    /// command until none has arrived for ten seconds.
    WatchMount "watch" {} -> Box<MountActivity>;

    /// Changes options of a mount; returns all that are then in force.
    Remount "remount" {
        /// An option string.
        options: String,
        /// Whether /run/mount/utab shall show them.
        table: bool
    } -> String;

    /// Explains from now on the requests of the asking process and its descendants.
    Explain "explain" {
        /// Mount options of the Linux client to compare with.
        linux: String
    } -> ();

    /// Ends the explanation and returns it.
    EndExplanation "explained" {
        /// The most paths to list for each cause.
        paths: usize
    } -> Box<ExplainReport>;

    /// Asks for a server's figures.
    ReportServer "report" {} -> Box<ServerReport>;

    /// Has one request of so many measured from now on; 0: none. What was measured is forgotten.
    SetStages "stages" {
        /// One of how many.
        every: u32
    } -> ();

    /// Asks what the next request of a procedure does.
    DrawGraph "graph" {
        /// Its name.
        procedure: String
    } -> CallGraph;
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
    pub counters: crate::ClientSnapshot,
    /// Requests that the kernel sent to the daemon, by operation.
    pub fuse: BTreeMap<String, u64>,
    /// The figures of each procedure's requests.
    pub operations: crate::OperationSnapshot,
    /// The traffic of the connections.
    pub transport: crate::TransportReport,
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
