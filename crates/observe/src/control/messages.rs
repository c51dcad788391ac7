//! The messages on a control socket.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::stages::CallGraph;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::request_origins::RequestOrigins;
use super::server_report::ServerReport;
use crate::explain::ExplainReport;

/// A command to a control socket: one line of JSON, whose `ask` is the command's name. The reply is
/// a [`ControlReply`], also one line.
pub trait ControlCommand: Serialize + DeserializeOwned {
    /// The command's name.
    const NAME: &'static str;
    /// The type of its reply.
    type Reply: Serialize + DeserializeOwned;
}

/// The reply to a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlReply<T> {
    /// Success.
    Done(T),
    /// The command was refused; the reason, and what to do.
    Refused(String),
    /// The command failed.
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
    /// Streams events until the connection is closed: a recording follows the reply.
    WatchEvents "events" {
        /// Patterns of event names, separated by commas.
        patterns: String
    } -> ();

    /// Returns a mount's statistics and options.
    ReportMount "report" {} -> Box<MountReport>;

    /// The activity of a mount, and the processes and paths that cause requests: counted from the
    /// first such command until none has arrived for ten seconds.
    WatchMount "watch" {} -> Box<MountActivity>;

    /// Returns the byte-range locks of a mount.
    ReportLocks "locks" {} -> LocksReport;

    /// Changes options of a mount; returns all options in force.
    Remount "remount" {
        /// An option string.
        options: String,
        /// Whether to update /run/mount/utab.
        table: bool
    } -> String;

    /// Explains the requests of the calling process and its descendants from now on.
    Explain "explain" {
        /// Mount options of the Linux client to compare with.
        linux: String
    } -> ();

    /// Ends the explanation and returns it.
    EndExplanation "explained" {
        /// Maximum number of paths for each cause.
        paths: usize
    } -> Box<ExplainReport>;

    /// Returns a server's statistics.
    ReportServer "report" {} -> Box<ServerReport>;

    /// Returns the byte-range locks of a server's clients.
    ReportServerLocks "locks" {
        /// Maximum number of locks to return.
        rows: usize
    } -> ServerLocksReport;

    /// Measures the stages of one request in N from now on; 0: none. Resets the histograms.
    SetStages "stages" {
        /// N.
        every: u32
    } -> ();

    /// Returns the NFSv4 clients of a server.
    ReportClients "clients" {} -> Vec<ClientRow>;

    /// Removes an NFSv4 client with its opens, as if its lease had expired.
    ExpireClient "expire" {
        /// Its id.
        id: u64
    } -> ();

    /// Returns the call graph of the next request of a procedure.
    DrawGraph "graph" {
        /// The procedure's name.
        procedure: String
    } -> CallGraph;
}

/// An NFSv4 client of a server, and what it holds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientRow {
    /// Its id.
    pub id: u64,
    /// How it calls itself.
    pub name: String,
    /// How its implementation calls itself; empty if it does not.
    pub implementation: String,
    /// Its address.
    pub address: String,
    /// Whether it has created a session.
    pub confirmed: bool,
    /// The time since its last request, in seconds.
    pub idle_seconds: f64,
    /// Number of sessions.
    pub sessions: u64,
    /// Number of opens.
    pub opens: u64,
    /// Number of files that its owners of locks have locked, each owner counted.
    pub locks: u64,
    /// Number of delegations.
    pub delegations: u64,
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

/// A mount and its statistics since it was mounted. Fields that a daemon of another version does
/// not send are empty.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MountReport {
    /// `server:/path`.
    pub source: String,
    /// The mount point.
    pub mount_point: PathBuf,
    /// Process id of the daemon.
    pub pid: u32,
    /// Version of Curt.
    pub curt: String,
    /// NFS version in use.
    pub vers: String,
    /// Options in force, defaults included.
    pub options: String,
    /// Time since mounting, in seconds.
    pub age_seconds: f64,
    /// The client's counters.
    pub counters: crate::ClientSnapshot,
    /// Requests from the kernel to the daemon, by operation.
    pub fuse: BTreeMap<String, u64>,
    /// Statistics of each operation's requests.
    pub operations: crate::OperationSnapshot,
    /// The traffic of the connections.
    pub transport: crate::TransportReport,
    /// Whether the machine's administrator has enabled FUSE over io_uring, which is not used;
    /// `None` if the kernel does not have it.
    pub fuse_uring: Option<bool>,
    /// The daemon's current memory usage.
    pub held: MemoryUsage,
    /// Properties that the server reported.
    pub server: ServerCapabilities,
}

/// The byte-range locks of a mount at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LocksReport {
    /// The mount point.
    pub mount_point: PathBuf,
    /// The locks, by file: the holders, then the waiters in their order.
    pub locks: Vec<LockRow>,
    /// The longest queue of waiters so far.
    pub queue_max: u64,
    /// How often a lock was waited for less than so many microseconds, and not less than the entry
    /// before.
    pub wait_microseconds: Vec<(u64, u64)>,
    /// The histogram of how long locks were held.
    pub hold_microseconds: Vec<(u64, u64)>,
}

/// A lock that is held or waited for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LockRow {
    /// The file's path in the mount; empty if it is not cached.
    pub path: String,
    /// The file's inode number in the mount's kernel.
    pub object: u64,
    /// `fcntl` or `flock`.
    pub call: String,
    /// The process that requested it; 0 if unknown.
    pub pid: u32,
    /// The first byte.
    pub first: u64,
    /// The last byte; `null`: to the end of the file.
    pub last: Option<u64>,
    /// Whether it is exclusive.
    pub is_write: bool,
    /// Whether it is held; otherwise it is waited for.
    pub is_held: bool,
    /// For how long, in seconds.
    pub seconds: f64,
}

/// The byte-range locks of a server's clients at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerLocksReport {
    /// Process id of the server.
    pub pid: u32,
    /// The exported paths.
    pub exports: Vec<String>,
    /// Whether only reclaims are granted.
    pub is_in_grace: bool,
    /// The numbers of files, locks, owners and waiters, and totals since the start.
    pub counts: BTreeMap<String, u64>,
    /// The locks, by file: the holders, then the waiters in the order of their turns. Not all if
    /// there are more than were requested.
    pub locks: Vec<ServerLockRow>,
}

/// A lock that a client holds or waits for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerLockRow {
    /// An export of the file's file system; empty if there is none any more.
    pub export: String,
    /// The file's inode number; `null` if it no longer exists.
    pub fileid: Option<u64>,
    /// The client's address, or `clientid` and its number.
    pub client: String,
    /// The process, as the client numbers it (`svid`).
    pub process: u32,
    /// The first byte.
    pub first: u64,
    /// The last byte; `null`: to the end of the file.
    pub last: Option<u64>,
    /// Whether it is exclusive.
    pub is_write: bool,
    /// Whether it is held; otherwise it is waited for.
    pub is_held: bool,
}

/// A mount daemon's memory usage at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryUsage {
    /// Files, directories and other objects.
    pub objects: u64,
    /// Positive names.
    pub names: u64,
    /// Negative names.
    pub missing_names: u64,
    /// Memory used by listings, in bytes.
    pub listing_bytes: u64,
    /// Dirty bytes: not on the server's stable storage yet.
    pub dirty_bytes: u64,
    /// Delegations.
    pub delegations: u64,
}

/// Properties that a server reported at mount time, as far as tools print them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerCapabilities {
    /// The security flavor's number.
    pub flavour: u32,
    /// WRITE sizes should be multiples of it (wtmult).
    pub write_multiple: u32,
    /// The server's preferred READDIR size (dtpref).
    pub listing_size: u32,
    /// Maximum length of a name in bytes.
    pub name_max: u32,
    /// Listings are requested with attributes.
    pub readdirplus: bool,
    /// The server supports hard links.
    pub links: bool,
    /// The server supports symbolic links.
    pub symlinks: bool,
    /// Its name and version over NFSv4.1 (eir_server_impl_id).
    pub implementation: String,
    /// Features that the server refused, for which the client uses alternatives.
    pub refused: Vec<String>,
}
