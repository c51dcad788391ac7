//! The command line of `curt serve`.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    str::FromStr,
};

use clap::{ArgAction, Args, ValueEnum, builder::RangedI64ValueParser};
use curt_observe::control::metrics::MetricsAddress;
use curt_observe::events::RingLevel;
use curt_server::Versions;

use super::limits::LimitArguments;
use crate::logs;

/// The registered port of NFS.
pub(super) const NFS_PORT: u16 = 2049;

/// With `--metrics` and without `--stages`, one request in this many is measured: the cost is
/// negligible.
const MEASURED_FOR_FIGURES: u32 = 16;

/// Export a directory, or the exports listed in exports(5) files
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  curt serve /srv/data                       any client may mount it; root is squashed\n  \
                  curt serve                                 exports /etc/exports and /etc/exports.d/*.exports\n  \
                  curt serve --check -c new.exports          checks that file only\n  \
                  curt serve --ro --bind 127.0.0.1 .         read-only, for this machine alone\n  \
                  curt serve --memory                        an empty tree in memory, lost when the server ends\n\n\
                  Then, on a client:  curt mount SERVER:/srv/data /mnt   or   mount -t nfs SERVER:/srv/data /mnt\n\n\
                  Sockets passed by systemd (LISTEN_FDS) replace --bind; a socket named \"mount\" serves the MOUNT protocol only.\n\
                  SIGHUP reads the exports(5) files again and logs what changed.\n\
                  SIGTERM and SIGINT let requests in progress finish, sync, and end the server; a second one ends it at once. \
                  Exit status: 0 after a signal, 1 if it cannot serve, 2 for wrong arguments."
)]
pub(crate) struct ServeArguments {
    /// The directory to export [default: the exports in /etc/exports and /etc/exports.d/*.exports]
    #[arg(value_name = "DIR", conflicts_with = "memory")]
    pub(super) directory: Option<PathBuf>,

    /// Use this exports(5) file, or the *.exports files of this directory, instead of the default
    /// ones; may be repeated
    #[arg(short, long = "config", value_name = "FILE", conflicts_with_all = ["directory", "memory"])]
    pub(super) config: Vec<PathBuf>,

    /// Only check the exports(5) files: print their errors, and exit with 1 if they could not be
    /// served
    #[arg(long, conflicts_with_all = ["directory", "memory"])]
    pub(super) check: bool,

    /// Look up users' groups on this machine instead of using those of the request (at most
    /// sixteen)
    #[arg(long)]
    pub(super) manage_gids: bool,

    /// Export an empty tree in memory instead, under this name
    #[arg(long, value_name = "/NAME", num_args = 0..=1, default_missing_value = "/memory", value_parser = export_name)]
    pub(super) memory: Option<String>,

    /// Size limit of the tree in memory, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 1024, requires = "memory")]
    pub(super) memory_size: u64,

    /// Listen on this address only; may be repeated. The port is 2049 unless given [default: every
    /// address, IPv4 and IPv6]
    #[arg(long, value_name = "ADDR[:PORT]", action = ArgAction::Append)]
    pub(super) bind: Vec<BindAddress>,

    /// Port for the MOUNT protocol [default: the same as for NFS]
    #[arg(long, value_name = "PORT")]
    pub(super) mount_port: Option<u16>,

    /// Do not serve locks of NFSv3 (NLM and NSM); clients then need the mount option nolock
    #[arg(long)]
    pub(super) no_locks: bool,

    /// Port for the lock manager (NLM) over TCP and UDP [default: the same as for NFS]
    #[arg(long, value_name = "PORT", conflicts_with = "no_locks")]
    pub(super) lock_port: Option<u16>,

    /// Port for the status monitor (NSM) over TCP and UDP, if rpc.statd does not run [default: the
    /// same as for the lock manager]
    #[arg(long, value_name = "PORT", conflicts_with = "no_locks")]
    pub(super) statd_port: Option<u16>,

    /// Seconds after a restart in which clients of NFSv3 reclaim their locks, and no client gets
    /// others; none if no such client had a lock [default: the lease (--lease) before the restart]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(..=3600))]
    pub(super) grace: Option<u32>,

    /// Processes of this machine and clients exclude each other: locks of clients are held in the
    /// kernel too. Keeps each locked file open; clients that wait for a process are granted the
    /// lock up to a second late
    #[arg(long, conflicts_with_all = ["no_locks", "memory"])]
    pub(super) kernel_locks: bool,

    /// Export read-only
    #[arg(long)]
    pub(super) ro: bool,

    /// Users to map to the anonymous user: root, none or all [default: root; if not started as
    /// root: all, and the anonymous user is the user who started the server]
    #[arg(long, value_enum)]
    pub(super) squash: Option<SquashChoice>,

    /// The anonymous user's id [default: 65534]
    #[arg(long, value_name = "N", value_parser = an_id())]
    pub(super) anonuid: Option<u32>,

    /// The anonymous user's group id [default: 65534]
    #[arg(long, value_name = "N", value_parser = an_id())]
    pub(super) anongid: Option<u32>,

    /// Refuse clients whose port is not below 1024 (the default)
    #[arg(long, overrides_with = "insecure")]
    pub(super) secure: bool,

    /// Accept clients on any port, including unprivileged programs
    #[arg(long, overrides_with = "secure")]
    pub(super) insecure: bool,

    /// Directory for keys and tables that must survive a restart [default: /var/lib/curt as root,
    /// else ~/.local/state/curt]
    #[arg(long, value_name = "DIR")]
    pub(super) state: Option<PathBuf>,

    /// Sign handles with a new key: all handles that clients hold become stale
    #[arg(long)]
    pub(super) new_key: bool,

    /// Where file handles come from: the kernel, a table in the state directory, or the kernel
    /// where possible (auto)
    #[arg(long, value_enum, default_value_t = HandlesChoice::Auto)]
    pub(super) handles: HandlesChoice,

    /// Keep files open between requests: for two seconds after the last READ, half a second after
    /// the last WRITE
    #[arg(long, value_enum, value_name = "ON|OFF", default_value_t = OnOff::On)]
    pub(super) filecache: OnOff,

    /// Save the last replies to calls that change names or attributes in the state directory:
    /// clients that repeat such a call after the server was killed get no error because of their
    /// own change. Costs two more system calls for each such call
    #[arg(long, value_enum, value_name = "ON|OFF", default_value_t = OnOff::Off)]
    pub(super) save_replies: OnOff,

    /// Versions of NFS to serve: 3, 4.1, 4.2, or 4 for both of 4
    #[arg(long, value_name = "LIST", default_value_t = Versions::default())]
    pub(super) vers: Versions,

    /// Seconds for which an NFSv4 client keeps its opens without a request
    #[arg(long, value_name = "S", default_value_t = 90, value_parser = clap::value_parser!(u32).range(10..=3600))]
    pub(super) lease: u32,

    /// Grant NFSv4 clients read delegations: they answer opens and reads of a file from their
    /// caches until another client wants to change it
    #[arg(long, value_enum, value_name = "ON|OFF", default_value_t = OnOff::On)]
    pub(super) delegations: OnOff,

    /// Delegate a file only with a lease of the kernel: a process on this machine that writes the
    /// file then waits until the delegation is back. Without leases NFSv4 clients do not notice
    /// such writes
    #[arg(long, value_enum, value_name = "ON|OFF", default_value_t = OnOff::On)]
    pub(super) local_leases: OnOff,

    /// Grant delegations of directories to NFSv4 clients that ask for them. Clients do not notice
    /// names that processes on this machine create, rename or remove
    #[arg(long, value_enum, value_name = "ON|OFF", default_value_t = OnOff::Off)]
    pub(super) directory_delegations: OnOff,

    /// Do not register with rpcbind; clients then need the port numbers as mount options
    #[arg(long)]
    pub(super) no_rpcbind: bool,

    /// Filter the system calls of serving threads: calls that are not on the list fail (on), end
    /// the process (kill), or are allowed (off)
    #[arg(long, value_enum, default_value_t = SeccompChoice::On)]
    pub(super) seccomp: SeccompChoice,

    /// Measure the time that one request in N spends in each stage, for 'curt stat --server'
    /// and --metrics [default N: 16; without this option: 16 with --metrics, else no request is
    /// measured]
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "16", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) stages: Option<u32>,

    /// Serve Prometheus metrics on a local port (9049, 127.0.0.1:9049), on unix:/PATH, or,
    /// reachable from other machines, on public:ADDRESS:PORT. The histograms measure one request in
    /// 16, or in N with --stages=N
    #[arg(long, value_name = "PLACE")]
    pub(super) metrics: Option<MetricsAddress>,

    /// Events to keep in a ring that survives a crash, for 'curt trace report': none (off), faults
    /// and connections (rare), or also those of each request (request, operation)
    #[arg(long, value_name = "LEVEL", default_value_t = RingLevel::default())]
    pub(super) ring: RingLevel,

    /// Log level on standard error: error, warn, info, debug, trace, off, or a filter in the syntax
    /// of RUST_LOG. RUST_LOG takes precedence
    #[arg(long, value_name = "LEVEL", default_value = "info", value_parser = logs::level)]
    pub(super) log_level: String,

    // Last, because clap applies this group's heading to every option that follows.
    #[command(flatten)]
    pub(super) limits: LimitArguments,
}

impl ServeArguments {
    /// Whether clients must use a port below 1024.
    pub(super) const fn reserved_ports_only(&self) -> bool {
        self.secure || !self.insecure
    }

    /// The N of "one request in N is measured"; 0: none.
    pub(super) fn measured(&self) -> u32 {
        let for_figures = self.metrics.as_ref().map_or(0, |_| MEASURED_FOR_FIGURES);
        self.stages.unwrap_or(for_figures)
    }
}

/// Users that are mapped to the anonymous user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum SquashChoice {
    Root,
    None,
    All,
}

/// The action of the filter for other system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum SeccompChoice {
    On,
    Kill,
    Off,
}

/// Whether a feature of the server is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum OnOff {
    On,
    Off,
}

/// The source of handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum HandlesChoice {
    Auto,
    Kernel,
    Table,
}

/// An address to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BindAddress(pub(super) SocketAddr);

impl FromStr for BindAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(Self(address));
        }
        let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
        match bare.parse::<IpAddr>() {
            Ok(address) => Ok(Self(SocketAddr::new(address, NFS_PORT))),
            Err(_) => Err("expected an address and a port, such as 127.0.0.1:2049 or [::1]:2049".into()),
        }
    }
}

/// A user or group id; the maximum means "no id" to the system, as in exports(5).
fn an_id() -> RangedI64ValueParser<u32> {
    RangedI64ValueParser::new().range(0..i64::from(u32::MAX))
}

fn export_name(text: &str) -> Result<String, String> {
    let is_valid = text.starts_with('/') && text.len() > 1 && !text.ends_with('/') && text.len() < 1024;
    if is_valid { Ok(text.into()) } else { Err("expected an absolute path, such as /memory".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_come_with_or_without_its_port() {
        let bind = |text: &str| text.parse::<BindAddress>().map(|bind| bind.0.to_string());
        assert_eq!(bind("127.0.0.1:4000").as_deref(), Ok("127.0.0.1:4000"));
        assert_eq!(bind("127.0.0.1").as_deref(), Ok("127.0.0.1:2049"));
        assert_eq!(bind("[::1]:4000").as_deref(), Ok("[::1]:4000"));
        assert_eq!(bind("[::1]").as_deref(), Ok("[::1]:2049"));
        assert_eq!(bind("::").as_deref(), Ok("[::]:2049"));
        assert!(bind("localhost:2049").is_err());
        assert!(bind("127.0.0.1:70000").is_err());
    }

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        serve: ServeArguments,
    }

    #[test]
    fn what_would_mean_nobody_or_log_nothing_is_refused() {
        let takes = |words: &[&str]| {
            let line = ["serve", "/"].iter().chain(words);
            <Line as clap::Parser>::try_parse_from(line).is_ok()
        };
        for option in ["--anonuid", "--anongid"] {
            assert!(takes(&[option, "0"]) && takes(&[option, "4294967294"]));
            assert!(!takes(&[option, "4294967295"]) && !takes(&[option, "4294967296"]));
        }
        assert!(takes(&["--log-level", "warn"]) && !takes(&["--log-level", "warning"]));
    }

    #[test]
    fn the_last_of_secure_and_insecure_counts_and_secure_is_the_default() {
        let reserved = |words: &[&str]| {
            let line = ["serve", "/"].iter().chain(words);
            <Line as clap::Parser>::try_parse_from(line).map(|line| line.serve.reserved_ports_only()).ok()
        };
        assert_eq!(reserved(&[]), Some(true));
        assert_eq!(reserved(&["--insecure"]), Some(false));
        assert_eq!(reserved(&["--insecure", "--secure"]), Some(true));
        assert_eq!(reserved(&["--secure", "--insecure"]), Some(false));
    }
}
