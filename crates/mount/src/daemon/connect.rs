//! Connecting to the server: the work of mount.nfs before the system call, with its retries and its
//! messages.

use std::cell::LazyCell;
use std::net::{IpAddr, ToSocketAddrs as _};
use std::num::NonZeroU8;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use curt_client::caller::RpcSecurity;
use curt_client::data::DataOptions;
use curt_client::mounting::{self, ExportSource, MountError, MountRetry, MountedExport};
use curt_client::protocol::v3::mounting::Nfs3Mount;
use curt_client::protocol::v3::nlm::{NlmClient, NlmOptions};
use curt_client::protocol::v4::identity::ClientIdentity;
use curt_client::protocol::v4::mounting::Nfs4Mount;
use curt_client::protocol::{v3, v4};
use curt_client::{Caller, ClientOptions, Environment, Limits, MountedRoot, Superblock};
use curt_observe::{ClientCounter, ClientCounters};
use curt_policy::locks::LockOptions;
use curt_proto::nfs4::NfsStat4;
use curt_rpc::client::{Interrupt, PortSource, ServerName, TcpOptions, TransportEvents};
use tracing::info;

use super::MountSpec;
use super::claimed_name::ClaimedName;
use crate::helper::{ExitStatus, MountFailure};
use crate::lock_service::LockHost;
use crate::options::{HANDOFFS_MAX, LocalLocks, SecurityFlavor, Settings};

/// `retry=` in minutes, in the foreground and in the background (nfs(5)).
const RETRY_FOREGROUND: u32 = 2;
const RETRY_BACKGROUND: u32 = 10_000;

/// Timeout of each call during mounting.
const QUESTION_MAX: Duration = Duration::from_secs(10);

/// The pause between attempts doubles up to this.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// The first part of each file that the daemon caches in addition to the kernel: all of a small
/// file.
const KEEP_READ: u64 = 256 << 10;

/// Maximum number of dirty bytes without `dirty_max=`, unless memory is short.
const DIRTY_MAX: u64 = 256 << 20;

/// Size of the cache of clean bytes: the kernel has its page cache, so this is for read-ahead.
const CACHE_BYTES: u64 = 32 << 20;

/// Maximum read-ahead of a sequential reader in bytes.
const READ_AHEAD: u64 = 8 << 20;

/// Number of minutes for which connecting is retried if the server does not respond.
pub(super) fn retry_minutes(settings: &Settings) -> u32 {
    let transport = &settings.transport;
    transport.retry.unwrap_or(if transport.background { RETRY_BACKGROUND } else { RETRY_FOREGROUND })
}

/// Connects, with retries as the options specify; `retrying` is called after the first failure that
/// may be temporary.
pub(super) fn connect(
    plan: &MountSpec,
    environment: &Environment,
    events: &Arc<TransportEventCounter>,
    retrying: &mut dyn FnMut(&MountFailure),
) -> Result<MountedExport, MountFailure> {
    let timeout = Duration::from_secs(60 * u64::from(retry_minutes(&plan.settings)));
    let began = Instant::now();
    let export = export(plan);
    // Servers of NFSv3 know no names of mounts.
    let identity =
        LazyCell::new(|| ClientIdentity::of_mount(&plan.source.text(), &plan.target, ClaimedName::claim));
    let mut pause = Duration::from_secs(1);
    let mut not_registered = 0;
    loop {
        let error = match attempt(plan, &export, &identity, environment, events) {
            Ok(mounted) => return Ok(mounted),
            Err(error) => error,
        };
        not_registered = if error.retry() == MountRetry::Thrice { not_registered + 1 } else { 0 };
        let over =
            error.retry() == MountRetry::Never || not_registered == 3 || began.elapsed() + pause > timeout;
        let failure = failure(plan, &error);
        if over {
            return Err(failure);
        }
        info!("{}; trying again in {} s", failure.what, pause.as_secs());
        retrying(&failure);
        environment.clock.pause(pause, &Interrupt::never());
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Connects once, with the first of the minor versions that the server has.
fn attempt(
    plan: &MountSpec,
    export: &ExportSource,
    identity: &impl Deref<Target = ClientIdentity>,
    environment: &Environment,
    events: &Arc<TransportEventCounter>,
) -> Result<MountedExport, MountError> {
    let events = || Arc::<TransportEventCounter>::clone(events);
    let never = Interrupt::never();
    let mut refused = None;
    for minor_version in plan.settings.version.minors() {
        let mount = Nfs4Mount {
            minor_version: *minor_version,
            identity: (**identity).clone(),
            background: Arc::clone(&environment.background),
            clock: Arc::clone(&environment.clock),
        };
        match v4::mounting::mount(export, mount, events(), &never) {
            Err(error @ MountError::Session(NfsStat4::MinorVersMismatch)) => refused = Some(error),
            mounted => return mounted,
        }
    }
    match refused {
        Some(error) => Err(error),
        None => {
            let locks = || lock_manager(export, &plan.settings);
            let mount = Nfs3Mount { locks: &locks, clock: Arc::clone(&environment.clock) };
            v3::mounting::mount(export, mount, events(), &never)
        }
    }
}

fn export(plan: &MountSpec) -> ExportSource {
    let Settings { server, transport, security, .. } = &plan.settings;
    let nfs_port = server.port.or(plan.source.port);
    let reserved_port = transport.reserved_port.unwrap_or_else(|| rustix::process::geteuid().is_root());
    let address = server.address.as_deref().unwrap_or(&plan.source.host);
    let mut options = TcpOptions::new(address.into(), PortSource::Fixed(nfs_port.unwrap_or(0)));
    options.family = server.family;
    options.nconnect = NonZeroU8::new(transport.nconnect).unwrap_or(NonZeroU8::MIN);
    options.timeout = Duration::from_millis(u64::from(transport.timeo) * 100);
    options.retrans = transport.retrans;
    options.recovery = transport.hardness;
    options.reserved_port = reserved_port;
    let mount_host = server.mount_address.as_deref().or(server.mount_host.as_deref());
    ExportSource {
        path: plan.source.path.clone().into_bytes(),
        transport: options,
        nfs_port,
        mount_server: mount_host.map(ServerName::from),
        mount_family: server.mount_family,
        mount_port: server.mount_port,
        credential: flavour(*security).credential(&Caller::new(0, 0, &[])),
        timeout: QUESTION_MAX,
    }
}

fn flavour(security: SecurityFlavor) -> RpcSecurity {
    match security {
        SecurityFlavor::Sys => RpcSecurity::sys(),
        SecurityFlavor::None => RpcSecurity::None,
    }
}

/// The client of the mounted export. Updates the settings to the actual transfer sizes.
pub(super) fn client(
    mounted: &MountedExport,
    settings: &mut Settings,
    environment: &Environment,
) -> Result<Superblock, MountFailure> {
    let limits = &mounted.limits;
    let transport = &mut settings.transport;
    let read_size = mounting::transfer_size(transport.rsize, limits.read_preferred, limits.read_max);
    let write_size = mounting::transfer_size(transport.wsize, limits.write_preferred, limits.write_max);
    (transport.rsize, transport.wsize) = (Some(read_size), Some(write_size));
    let default_dirty = || tenth_of_memory().map_or(DIRTY_MAX, |tenth| tenth.min(DIRTY_MAX));
    let data = DataOptions {
        read_size,
        write_size,
        read_ahead: READ_AHEAD,
        cache_bytes: CACHE_BYTES,
        // The kernel caches large files that were read.
        keep_read: KEEP_READ,
        unwritten_bytes: settings.memory.dirty_bytes.unwrap_or_else(default_dirty),
        synchronous: settings.generic.sync || !settings.cache.attribute_cache,
        ..DataOptions::default()
    };
    let mut names = Limits::default();
    if let Some(most) = settings.memory.names.and_then(|most| usize::try_from(most).ok()) {
        names = Limits { names: most, missing_names: most / 5, ..names };
    }
    if let Some(bytes) = settings.memory.listing_bytes {
        names.listing_bytes = bytes;
    }
    let behaviour = ClientOptions {
        cache: settings.cache,
        data,
        limits: names,
        soft_revalidation: settings.transport.softreval.then(|| silence_max(settings)),
        locks: LockOptions { order: settings.locks.order, handoffs_max: handoffs(settings) },
    };
    let root = MountedRoot {
        handle: mounted.root.clone(),
        limits: mounted.limits,
        path_limits: mounted.path_limits,
    };
    let protocol = Arc::clone(&mounted.protocol);
    Superblock::new(&root, protocol, flavour(settings.security), &behaviour, environment).map_err(|error| {
        MountFailure::lasting(ExitStatus::Failed, format!("the export's root cannot be read: {error}"), "")
    })
}

/// How many consecutive times a lock passes between processes. Lock managers of NFSv3 grant to
/// waiters of other clients in turn, so that nothing need be saved at their cost; with NFSv4 a
/// client with many processes has to ask again for each.
fn handoffs(settings: &Settings) -> u32 {
    let is_nfs4 = !settings.version.minors().is_empty();
    settings.locks.handoffs.unwrap_or(if is_nfs4 { HANDOFFS_MAX } else { 0 })
}

/// The locks of a mount over NFSv3: those of the server, unless the options ask for local ones.
fn lock_manager(export: &ExportSource, settings: &Settings) -> Option<NlmClient> {
    if settings.local_locks == (LocalLocks { posix: true, flock: true }) {
        return None;
    }
    let options = NlmOptions {
        transport: export.transport.clone(),
        port: settings.locks.lock_port,
        host_name: rustix::system::uname().nodename().to_bytes().to_vec(),
        timeout: QUESTION_MAX,
    };
    Some(NlmClient::new(options, LockHost::new(server_addresses(export), settings.locks)))
}

/// The addresses that callbacks of the server may come from.
fn server_addresses(export: &ExportSource) -> Vec<IpAddr> {
    let all: Vec<IpAddr> = match &export.transport.server {
        ServerName::Address(address) => vec![*address],
        ServerName::Name(name) => {
            let found = (name.as_str(), 0).to_socket_addrs();
            found.map(|found| found.map(|address| address.ip()).collect()).unwrap_or_default()
        }
    };
    let family = export.transport.family;
    all.into_iter().filter(|address| family.has(*address)).collect()
}

/// The time that a request waits for its reply until the user is notified, or a soft mount times
/// out.
fn silence_max(settings: &Settings) -> Duration {
    let transport = &settings.transport;
    Duration::from_millis(u64::from(transport.timeo) * 100) * transport.retrans.saturating_add(1)
}

/// The message of mount.nfs for a failure, and what to try.
fn failure(plan: &MountSpec, error: &MountError) -> MountFailure {
    let source = plan.source.text();
    let (host, path) = (&plan.source.host, &plan.source.path);
    let (what, advice) = match error {
        MountError::AccessDenied { .. } => (
            format!("access denied by server while mounting {source}"),
            format!(
                "see what {host} exports to whom: showmount -e {host}; not root here? try an export with 'insecure'"
            ),
        ),
        MountError::NoSuchPath => (
            format!("mounting {source} failed, reason given by server: No such file or directory"),
            format!("see what {host} exports: showmount -e {host}"),
        ),
        MountError::NotADirectory => (
            format!("mounting {source} failed, reason given by server: Not a directory"),
            format!("mount the directory that holds {path}"),
        ),
        MountError::UnknownHost(_) => {
            (error.to_string(), "check the server's name and its address family".to_owned())
        }
        MountError::Refused { .. } => (
            error.to_string(),
            format!("is the NFS server of {host} running, and this the right port? try port=N,mountport=N"),
        ),
        MountError::NotRegistered { .. } => (
            error.to_string(),
            "the server may offer NFSv4 alone, or be starting; try port=2049,mountport=N".to_owned(),
        ),
        MountError::Version { .. } => {
            (error.to_string(), format!("see what {host} offers: rpcinfo -p {host}"))
        }
        MountError::Session(NfsStat4::MinorVersMismatch) => (
            format!("requested NFS version or transport protocol is not supported: {error}"),
            format!("{host} does not offer vers={}; try another", plan.settings.version.name()),
        ),
        MountError::Session(NfsStat4::ClidInuse) => (
            error.to_string(),
            "another user of this machine has mounted the same export here; mount as that user".to_owned(),
        ),
        MountError::Flavors { .. } => {
            (error.to_string(), "the flavours of this version: sec=sys, sec=none".to_owned())
        }
        MountError::ReservedPort => (error.to_string(), "mount as root, or with noresvport".to_owned()),
        _ => (format!("mounting {source} failed: {error}"), String::new()),
    };
    match error.retry() {
        MountRetry::Always | MountRetry::Thrice => MountFailure::passing(what, advice),
        MountRetry::Never => MountFailure::lasting(ExitStatus::Failed, what, advice),
    }
}

/// A tenth of this machine's memory in bytes; `None` if unknown.
fn tenth_of_memory() -> Option<u64> {
    let information = rustix::system::sysinfo();
    information.totalram.checked_mul(u64::from(information.mem_unit)).map(|bytes| bytes / 10)
}

/// Counts for a client that is created after its transport.
#[derive(Default)]
pub(super) struct TransportEventCounter(OnceLock<Arc<ClientCounters>>);

impl TransportEventCounter {
    /// Counts events in `counters` from now on.
    pub(super) fn count_in(&self, counters: Arc<ClientCounters>) {
        // A transport has one client.
        let _ = self.0.set(counters);
    }

    fn count(&self, counter: ClientCounter) {
        if let Some(counters) = self.0.get() {
            counters.count(counter);
        }
    }
}

impl TransportEvents for TransportEventCounter {
    fn sent(&self, _: usize) {}

    fn received(&self, _: usize) {}

    fn retransmitted(&self) {
        self.count(ClientCounter::RpcRetransmit);
    }

    fn connected(&self, again: bool) {
        if again {
            self.count(ClientCounter::RpcReconnect);
        }
    }

    fn not_responding(&self) {}

    fn responding_again(&self) {}

    fn malformed_reply(&self) {
        self.count(ClientCounter::RpcMalformed);
    }
}
