//! A mount's options as plain values, in the units of nfs(5).

use std::time::Duration;

use curt_observe::control::metrics::MetricsAddress;
use curt_observe::events::RingLevel;
use curt_policy::CacheOptions;
use curt_policy::locks::LockOrder;
use curt_rpc::client::{AddressFamily, RecoveryMode};

/// The settings of a mount. Created by [`super::parse`]; `Default` is a mount without options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The version of NFS.
    pub version: NfsVersion,
    /// The server, and how its ports are found.
    pub server: ServerSettings,
    /// How requests are sent, and how long to wait for replies.
    pub transport: TransportSettings,
    /// The cache options: contents and lifetimes. `users` is set when the mounting user is known.
    pub cache: CacheOptions,
    /// Limits of the mount's memory.
    pub memory: MemorySettings,
    /// How its statistics are published.
    pub figures: FigureSettings,
    /// Which locks are local.
    pub local_locks: LocalLocks,
    /// How locks are requested from the server.
    pub locks: LockSettings,
    /// Authentication flavor of the requests.
    pub security: SecurityFlavor,
    /// Options of every file system.
    pub generic: GenericSettings,
    /// Options that other programs look for in /run/mount/utab: `_netdev`, `x-*`. They have no
    /// effect on Curt.
    pub passed_through: Vec<String>,
}

/// The version of NFS (`vers=`, `nfsvers=`, `minorversion=`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum NfsVersion {
    /// 3.
    #[default]
    Three,
    /// 4, with the highest minor version that the server has.
    Four,
    /// 4.1.
    FourOne,
    /// 4.2.
    FourTwo,
}

impl NfsVersion {
    /// The minor versions of 4 to be tried, in this order; none for version 3.
    #[must_use]
    pub const fn minors(self) -> &'static [u32] {
        match self {
            Self::Three => &[],
            Self::Four => &[2, 1],
            Self::FourOne => &[1],
            Self::FourTwo => &[2],
        }
    }

    /// The name in options.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Three => "3",
            Self::Four => "4",
            Self::FourOne => "4.1",
            Self::FourTwo => "4.2",
        }
    }
}

/// Where the server is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerSettings {
    /// `port=`: NFS port; `None`: from the server's portmapper.
    pub port: Option<u16>,
    /// `mountport=`: port of the MOUNT service; `None`: from the portmapper.
    pub mount_port: Option<u16>,
    /// `mounthost=`: host of the MOUNT service, if it is not the server.
    pub mount_host: Option<String>,
    /// `addr=`: address of the server, instead of resolving its name.
    pub address: Option<String>,
    /// `mountaddr=`: the same for the MOUNT service.
    pub mount_address: Option<String>,
    /// `proto=`: the address family of the server.
    pub family: AddressFamily,
    /// `mountproto=`: the same for the MOUNT service.
    pub mount_family: AddressFamily,
}

/// How requests are sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransportSettings {
    /// `hard`, `soft`, `softerr`.
    pub hardness: RecoveryMode,
    /// `timeo=`: tenths of a second before a request times out, 1 to 6000.
    pub timeo: u32,
    /// `retrans=`: number of retries before the user is notified, or a soft mount fails.
    pub retrans: u32,
    /// `softreval`: while the server does not respond, expired cache entries are served.
    pub softreval: bool,
    /// `nconnect=`: connections to the server, 1 to 16.
    pub nconnect: u8,
    /// `resvport`, `noresvport`; `None`: reserved for root, otherwise not.
    pub reserved_port: Option<bool>,
    /// `rsize=` in bytes; `None`: what the server prefers, at most 1 MiB.
    pub rsize: Option<u32>,
    /// `wsize=` in bytes; `None`: what the server prefers, at most 1 MiB.
    pub wsize: Option<u32>,
    /// `retry=`: minutes for which mounting is retried; `None`: 2 in the foreground, 10,000 in the
    /// background.
    pub retry: Option<u32>,
    /// `bg`: after the first failure, mounting continues in the background.
    pub background: bool,
}

/// Limits of the mount's memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemorySettings {
    /// `names_max=`: maximum number of cached names; `None`: the client's default.
    pub names: Option<u64>,
    /// `dirty_max=`: maximum number of dirty bytes; `None`: the client's default.
    pub dirty_bytes: Option<u64>,
    /// `listing_max=`: maximum memory for the names of listed directories in bytes; `None`: the
    /// client's default.
    pub listing_bytes: Option<u64>,
}

/// How the mount's statistics are published in addition to its control socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FigureSettings {
    /// `mountstats=`: interval of writing the mountstats file; zero: no file.
    pub mountstats: Duration,
    /// `metrics=`: the address for Prometheus.
    pub metrics: Option<MetricsAddress>,
    /// `ring=`: which events are stored in a file that survives a crash.
    pub ring: RingLevel,
}

impl Default for FigureSettings {
    fn default() -> Self {
        Self { mountstats: Duration::from_secs(10), metrics: None, ring: RingLevel::default() }
    }
}

/// Which locks are local to this machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LocalLocks {
    /// fcntl(2) locks: `local_lock=posix` or `all`, `nolock`.
    pub posix: bool,
    /// flock(2) locks: `local_lock=flock` or `all`, `nolock`.
    pub flock: bool,
}

/// How locks are requested from the server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LockSettings {
    /// `locks=`: who asks the server.
    pub order: LockOrder,
    /// `lockhandoff=`: how many consecutive times a lock passes between processes of this mount
    /// without a request; `None`: not at all with NFSv3, 16 times with NFSv4.
    pub handoffs: Option<u32>,
    /// `lockport=`: the port of the server's lock manager; `None`: from its portmapper.
    pub lock_port: Option<u16>,
    /// The ports at which servers call this machine, if this mount receives their calls.
    pub callback_ports: CallbackPorts,
}

/// The ports at which servers call the programs of locks on this machine, over TCP and UDP.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CallbackPorts {
    /// `lockcallbackport=`: that of NLM; `None`: any that is free.
    pub lock_manager: Option<u16>,
    /// `statdport=`: that of NSM; `None`: the one of NLM.
    pub status_monitor: Option<u16>,
}

/// Authentication flavor (RFC 5531 section 8).
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
    /// `nodev`, the default: the kernel opens device nodes without a request to the daemon, and
    /// does not check permissions on such a mount.
    pub nodev: bool,
    /// `sync`: each write is on stable storage before it returns.
    pub sync: bool,
    /// `dirsync`: the same for changes of directories; NFS servers always do this.
    pub dirsync: bool,
    /// `noatime`, `relatime`, `strictatime`.
    pub atime: Atime,
    /// `nodiratime`.
    pub nodiratime: bool,
    /// Which users may use the mount.
    pub allow: AllowedUsers,
    /// `remount`: changes the options of an existing mount.
    pub remount: bool,
    /// `-s`, `sloppy`: unknown options are ignored with a warning.
    pub sloppy: bool,
}

/// The kernel's handling of access times (the server's are independent of it).
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

/// Which users may use the mount.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AllowedUsers {
    /// All users if root mounts, otherwise the mounting user.
    #[default]
    Default,
    /// All users.
    Other,
    /// The mounting user, and root.
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
            version: NfsVersion::default(),
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
            locks: LockSettings::default(),
            security: SecurityFlavor::Sys,
            generic: GenericSettings::default(),
            passed_through: Vec::new(),
        }
    }
}
