//! A mount's options as plain values, in the units of nfs(5).

use std::time::Duration;

use curt_policy::CacheOptions;
use curt_rpc::client::{AddressFamily, RecoveryMode};
use curt_trace::control::metrics::MetricsAddress;
use curt_trace::events::RingLevel;

/// Everything that a mount's options decide. Made by [`super::parse`]; `Default` is a mount without
/// options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Where the server is and how its ports are found.
    pub server: ServerSettings,
    /// How requests are sent, and how long to wait for replies.
    pub transport: TransportSettings,
    /// What is cached, and for how long. Whose requests arrive (`users`) is settled when it is
    /// known who mounts.
    pub cache: CacheOptions,
    /// Bounds of what the mount may hold in memory.
    pub memory: MemorySettings,
    /// How its figures are published.
    pub figures: FigureSettings,
    /// Which kinds of lock stay on this machine.
    pub local_locks: LocalLocks,
    /// AUTH flavour of the requests.
    pub security: SecurityFlavor,
    /// Options of every file system.
    pub generic: GenericSettings,
    /// Words that other programs look for in /run/mount/utab: `_netdev`, `x-*`. They mean nothing
    /// here.
    pub passed_through: Vec<String>,
}

/// Where the server is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerSettings {
    /// `port=`: NFS port; `None` asks the server's portmapper.
    pub port: Option<u16>,
    /// `mountport=`: port of the MOUNT service; `None` asks the portmapper.
    pub mount_port: Option<u16>,
    /// `mounthost=`: host of the MOUNT service, where it is not the server.
    pub mount_host: Option<String>,
    /// `addr=`: address of the server, where the name is not to be resolved.
    pub address: Option<String>,
    /// `mountaddr=`: the same for the MOUNT service.
    pub mount_address: Option<String>,
    /// `proto=`: which addresses of the server may be used.
    pub family: AddressFamily,
    /// `mountproto=`: the same for the MOUNT service.
    pub mount_family: AddressFamily,
}

/// How requests are sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransportSettings {
    /// `hard`, `soft`, `softerr`.
    pub hardness: RecoveryMode,
    /// `timeo=`: tenths of a second before a request counts as unanswered, 1 to 6000.
    pub timeo: u32,
    /// `retrans=`: how many retries before the user is told, or a soft mount gives up.
    pub retrans: u32,
    /// `softreval`: while the server does not answer, cached data are served although they have
    /// expired.
    pub softreval: bool,
    /// `nconnect=`: connections to the server, 1 to 16.
    pub nconnect: u8,
    /// `resvport`, `noresvport`; `None`: reserved as root, else not.
    pub reserved_port: Option<bool>,
    /// `rsize=` in bytes; `None`: what the server prefers, at most 1 MiB.
    pub rsize: Option<u32>,
    /// `wsize=` in bytes; `None`: what the server prefers, at most 1 MiB.
    pub wsize: Option<u32>,
    /// `retry=`: minutes a mount is tried again; `None`: 2 in the foreground, 10,000 in the
    /// background.
    pub retry: Option<u32>,
    /// `bg`: the first failure sends the mount to the background.
    pub background: bool,
}

/// Bounds of what the mount may hold in memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemorySettings {
    /// `names_max=`: names remembered at most; `None`: the client's default.
    pub names: Option<u64>,
    /// `dirty_max=`: bytes that the server has not on stable storage, at most; `None`: the client's
    /// default.
    pub dirty_bytes: Option<u64>,
    /// `listing_max=`: bytes that the names of listed directories take, at most; `None`: the
    /// client's default.
    pub listing_bytes: Option<u64>,
}

/// How the mount's figures are published beside its control socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FigureSettings {
    /// `mountstats=`: how often the mountstats file is written; zero: there is none.
    pub mountstats: Duration,
    /// `metrics=`: where Prometheus can scrape.
    pub metrics: Option<MetricsAddress>,
    /// `ring=`: which events are kept in a file that a crash leaves behind.
    pub ring: RingLevel,
}

impl Default for FigureSettings {
    fn default() -> Self {
        Self {
            mountstats: Duration::from_secs(10),
            metrics: None,
            ring: RingLevel::default(),
        }
    }
}

/// Which kinds of lock are kept on this machine alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LocalLocks {
    /// fcntl(2) locks: `local_lock=posix` or `all`, `nolock`.
    pub posix: bool,
    /// flock(2) locks: `local_lock=flock` or `all`, `nolock`.
    pub flock: bool,
}

/// AUTH flavour (RFC 5531, section 8).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SecurityFlavor {
    /// AUTH_SYS.
    #[default]
    Sys,
    /// AUTH_NONE.
    None,
}

/// Options of every file system (mount(8)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GenericSettings {
    /// `ro`.
    pub read_only: bool,
    /// `noexec`.
    pub noexec: bool,
    /// `nosuid`.
    pub nosuid: bool,
    /// `nodev`, the default: the kernel opens device nodes without asking us, and checks no rights
    /// of a mount that leaves them to the server.
    pub nodev: bool,
    /// `sync`: every write reaches stable storage before it returns.
    pub sync: bool,
    /// `dirsync`: the same for changes of directories, which NFS servers do anyway.
    pub dirsync: bool,
    /// `noatime`, `relatime`, `strictatime`.
    pub atime: Atime,
    /// `nodiratime`.
    pub nodiratime: bool,
    /// Who may use the mount.
    pub allow: AllowedUsers,
    /// `remount`: the mount is there already and its options change.
    pub remount: bool,
    /// `-s`, `sloppy`: unknown options are ignored with a warning.
    pub sloppy: bool,
}

/// Which access times the kernel keeps (the server keeps its own in any case).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Atime {
    /// The kernel's default.
    #[default]
    Relative,
    /// None.
    Never,
    /// Every access.
    Strict,
}

/// Who may use the mount.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AllowedUsers {
    /// Everybody if root mounts, else the user who mounted.
    #[default]
    Default,
    /// Everybody.
    Other,
    /// The user who mounted, and root.
    Root,
}

impl Default for GenericSettings {
    fn default() -> Self {
        Self {
            read_only: false,
            noexec: false,
            nosuid: false,
            nodev: true,
            sync: false,
            dirsync: false,
            atime: Atime::default(),
            nodiratime: false,
            allow: AllowedUsers::default(),
            remount: false,
            sloppy: false,
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            server: ServerSettings::default(),
            transport: TransportSettings {
                hardness: RecoveryMode::Hard,
                timeo: 600,
                retrans: 2,
                softreval: false,
                nconnect: 1,
                reserved_port: None,
                rsize: None,
                wsize: None,
                retry: None,
                background: false,
            },
            cache: CacheOptions::default(),
            memory: MemorySettings::default(),
            figures: FigureSettings::default(),
            local_locks: LocalLocks::default(),
            security: SecurityFlavor::Sys,
            generic: GenericSettings::default(),
            passed_through: Vec::new(),
        }
    }
}
