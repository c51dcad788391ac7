//! What `curt serve` can be told.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    str::FromStr,
};

use clap::{ArgAction, Args, ValueEnum};
use curt_mount::control::metrics::Place;
use curt_trace::events::RingLevel;

use super::limits::LimitArguments;

/// NFS's own port.
pub(super) const NFS_PORT: u16 = 2049;

/// One request of so many is measured where figures are offered and nothing else was said: few enough to cost nothing that shows.
const MEASURED_FOR_FIGURES: u32 = 16;

/// Export a directory, or what exports(5) says
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  curt serve /srv/data                       everybody may mount it; root is squashed\n  \
                  curt serve                                 what /etc/exports and /etc/exports.d/*.exports say\n  \
                  curt serve --check -c new.exports          whether that file is right\n  \
                  curt serve --ro --bind 127.0.0.1 .         read-only, for this machine\n  \
                  curt serve --memory                        an empty tree that is gone when the server ends\n\n\
                  Then, on a client:  curt mount SERVER:/srv/data /mnt   or   mount -t nfs -o vers=3 SERVER:/srv/data /mnt\n\n\
                  Sockets of systemd (LISTEN_FDS) are used instead of --bind; of these, one named \"mount\" answers MOUNT alone.\n\
                  SIGHUP reads the files of exports(5) again, and prints what changed.\n\
                  SIGTERM and SIGINT finish what was begun and sync; a second one ends at once. \
                  Exit status: 0 after a signal, 1 if it cannot serve, 2 for wrong arguments."
)]
pub(crate) struct ServeArguments {
    /// The directory to export [default: what exports(5) says, in /etc/exports and /etc/exports.d/*.exports]
    #[arg(value_name = "DIR", conflicts_with = "memory")]
    pub(super) directory: Option<PathBuf>,

    /// Export what this file of exports(5) says, or the *.exports of this directory, and nothing else; may be given more than once
    #[arg(short, long = "config", value_name = "FILE", conflicts_with_all = ["directory", "memory"])]
    pub(super) config: Vec<PathBuf>,

    /// Only check the files of exports(5): say what is wrong with them, and exit with 1 if they could not be served
    #[arg(long, conflicts_with_all = ["directory", "memory"])]
    pub(super) check: bool,

    /// Take users' groups from this machine instead of the sixteen at most that a request can carry
    #[arg(long)]
    pub(super) manage_gids: bool,

    /// Export an empty tree in memory instead, under this name
    #[arg(long, value_name = "/NAME", num_args = 0..=1, default_missing_value = "/memory", value_parser = export_name)]
    pub(super) memory: Option<String>,

    /// How much the tree in memory may hold, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 1024, requires = "memory")]
    pub(super) memory_size: u64,

    /// Listen here and nowhere else; may be given more than once. Without a port it is 2049 [default: every address, IPv4 and IPv6]
    #[arg(long, value_name = "ADDR[:PORT]", action = ArgAction::Append)]
    pub(super) bind: Vec<Bind>,

    /// Answer MOUNT on this port [default: the port of NFS]
    #[arg(long, value_name = "PORT")]
    pub(super) mount_port: Option<u16>,

    /// Allow no change
    #[arg(long)]
    pub(super) ro: bool,

    /// Whose requests are treated as the anonymous user's: root's, nobody's or everybody's [default: root's; not started as
    /// root: everybody's, who then work as whoever started it]
    #[arg(long, value_enum)]
    pub(super) squash: Option<SquashChoice>,

    /// The anonymous user's id [default: 65534]
    #[arg(long, value_name = "N")]
    pub(super) anonuid: Option<u32>,

    /// The anonymous user's group id [default: 65534]
    #[arg(long, value_name = "N")]
    pub(super) anongid: Option<u32>,

    /// Refuse clients whose port is not below 1024 (the default)
    #[arg(long, overrides_with = "insecure")]
    pub(super) secure: bool,

    /// Serve clients on any port, such as programs without privileges
    #[arg(long, overrides_with = "secure")]
    pub(super) insecure: bool,

    /// Where keys and tables are kept that must outlive a restart [default: /var/lib/curt as root, else ~/.local/state/curt]
    #[arg(long, value_name = "DIR")]
    pub(super) state: Option<PathBuf>,

    /// Sign handles with a new key: all that clients hold become stale
    #[arg(long)]
    pub(super) new_key: bool,

    /// Who makes the handles of files: the kernel, a table in the state directory, or the kernel where it can
    #[arg(long, value_enum, default_value_t = HandlesChoice::Auto)]
    pub(super) handles: HandlesChoice,

    /// Keep files open between requests: for two seconds after the last one, and half a second if it was a WRITE
    #[arg(long, value_enum, value_name = "ON|OFF", default_value_t = FilecacheChoice::On)]
    pub(super) filecache: FilecacheChoice,

    /// Do not register with rpcbind; clients must then be told the ports
    #[arg(long)]
    pub(super) no_rpcbind: bool,

    /// What becomes of a serving thread's system calls that serving never needs: they fail, they end the process, or nothing
    #[arg(long, value_enum, default_value_t = SeccompChoice::On)]
    pub(super) seccomp: SeccompChoice,

    /// Measure where the time of one request of N goes, for 'curt stat --server' and --metrics [default N: 16; without this: of 16 with
    /// --metrics, else of none]
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "16", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) stages: Option<u32>,

    /// Offer figures to Prometheus at a port of this machine (9049, 127.0.0.1:9049), at unix:/PATH, or, for others as well, at
    /// public:ADDRESS:PORT. One request of 16 is measured for its histograms, unless --stages says otherwise
    #[arg(long, value_name = "PLACE")]
    pub(super) metrics: Option<Place>,

    /// Which events are kept in a file in memory that is still there after a crash, for 'curt trace report': none (off), trouble and
    /// connections (rare), or what is done for each request, too (request, operation)
    #[arg(long, value_name = "LEVEL", default_value_t = RingLevel::default())]
    pub(super) ring: RingLevel,

    /// What to tell on standard error: error, warn, info, debug, trace, or a filter as RUST_LOG, which has precedence
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub(super) log_level: String,

    // Last, for the heading of these would be that of what follows, too.
    #[command(flatten)]
    pub(super) limits: LimitArguments,
}

impl ServeArguments {
    /// Whether clients must use a port below 1024.
    pub(super) const fn reserved_ports_only(&self) -> bool {
        self.secure || !self.insecure
    }

    /// One request of how many is measured; 0: none.
    pub(super) fn measured(&self) -> u32 {
        let for_figures = self.metrics.as_ref().map_or(0, |_| MEASURED_FOR_FIGURES);
        self.stages.unwrap_or(for_figures)
    }
}

/// Whose ids are not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum SquashChoice {
    Root,
    None,
    All,
}

/// What the filter of system calls does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum SeccompChoice {
    On,
    Kill,
    Off,
}

/// Whether files stay open between requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum FilecacheChoice {
    On,
    Off,
}

/// Who makes handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum HandlesChoice {
    Auto,
    Kernel,
    Table,
}

/// An address to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bind(pub(super) SocketAddr);

impl FromStr for Bind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(Self(address));
        }
        let bare = text
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
            .unwrap_or(text);
        match bare.parse::<IpAddr>() {
            Ok(address) => Ok(Self(SocketAddr::new(address, NFS_PORT))),
            Err(_) => Err("expected an address and a port, such as 127.0.0.1:2049 or [::1]:2049".into()),
        }
    }
}

fn export_name(text: &str) -> Result<String, String> {
    let whole = text.starts_with('/') && text.len() > 1 && !text.ends_with('/') && text.len() < 1024;
    if whole {
        Ok(text.into())
    } else {
        Err("expected an absolute path, such as /memory".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_come_with_or_without_its_port() {
        let bind = |text: &str| text.parse::<Bind>().map(|bind| bind.0.to_string());
        assert_eq!(bind("127.0.0.1:4000").as_deref(), Ok("127.0.0.1:4000"));
        assert_eq!(bind("127.0.0.1").as_deref(), Ok("127.0.0.1:2049"));
        assert_eq!(bind("[::1]:4000").as_deref(), Ok("[::1]:4000"));
        assert_eq!(bind("[::1]").as_deref(), Ok("[::1]:2049"));
        assert_eq!(bind("::").as_deref(), Ok("[::]:2049"));
        assert!(bind("localhost:2049").is_err());
        assert!(bind("127.0.0.1:70000").is_err());
    }

    #[test]
    fn the_last_of_secure_and_insecure_counts_and_secure_is_the_default() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            serve: ServeArguments,
        }
        let reserved = |words: &[&str]| {
            let line = ["serve", "/"].iter().chain(words);
            <Line as clap::Parser>::try_parse_from(line)
                .map(|line| line.serve.reserved_ports_only())
                .ok()
        };
        assert_eq!(reserved(&[]), Some(true));
        assert_eq!(reserved(&["--insecure"]), Some(false));
        assert_eq!(reserved(&["--insecure", "--secure"]), Some(true));
        assert_eq!(reserved(&["--secure", "--insecure"]), Some(false));
    }
}
