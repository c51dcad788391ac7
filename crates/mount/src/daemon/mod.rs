//! A mount's life: connecting, mounting, signals, and its end.

mod claimed_name;
mod connect;
mod mount_control;
mod mount_point;
mod shutdown;
mod unmounted_client;

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use curt_client::caller::CallerTable;
use curt_client::mounting::MountedExport;
use curt_client::threads::{BackgroundThreads, MonotonicClock};
use curt_client::{Environment, Superblock};
use curt_fuse::{
    FuseDevice, FuseMount, FuseSession, FuseSessionEnd, FuseSessionOptions, MountFlags, MountOptions,
    RequestedFeatures, feature,
};
use curt_observe::control::{
    self, MOUNT_SOCKET, RequestOriginCounter,
    metrics::{self, MetricsListener},
    mountstats::MountstatsFile,
};
use curt_observe::probe;
use curt_policy::MountUsers;
use parking_lot::Mutex;
use tracing::{debug, info, warn};

use crate::bridge::{Bridge, InvalidationQueue, OpenFileRevalidation};
use crate::explain::Explainer;
use crate::helper::{ExitStatus, MountFailure};
use crate::observed::ObservedFilesystem;
use crate::options::{AllowedUsers, Atime, MountSource, Settings, format_options};
use connect::TransportEventCounter;
use mount_control::MountControl;
pub use mount_point::TYPE;
pub use unmounted_client::UnmountedClient;

/// Threads for read-ahead and write-back.
const BACKGROUND_THREADS: usize = 16;

/// The kernel's read-ahead in KiB: enough to keep a READ in progress if the server is near, and
/// small enough that arriving data are still in the processors' caches when they are read. For a
/// distant server the client reads further ahead.
const READ_AHEAD_KIB: u32 = 2048;

/// Timeout of UMNT at the end.
const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(1);

/// An export, the place to mount it, and the options.
#[derive(Debug, Clone)]
pub struct MountSpec {
    /// The server and its export.
    pub source: MountSource,
    /// The mount point.
    pub target: PathBuf,
    /// The options.
    pub settings: Settings,
    /// Whether to write the mount to /run/mount/utab.
    pub table: bool,
    /// The mount namespace to mount in: a process id or a path.
    pub namespace: Option<String>,
}

/// The progress of a mount.
#[derive(Debug)]
pub enum MountProgress<'a> {
    /// The mount is usable.
    Live,
    /// The server does not respond; mounting is retried in the foreground for this number of
    /// minutes.
    RetryingInForeground(&'a MountFailure, u32),
    /// The server does not respond; mounting is retried in the background (`bg`).
    RetryingInBackground(&'a MountFailure),
}

/// Checks the parts that need neither the server nor mount(2).
///
/// # Errors
/// The mount point cannot be used.
pub fn check(plan: &MountSpec) -> Result<(), MountFailure> {
    mount_point::mount_point(&plan.target, &plan.source.text()).map(drop)
}

/// Mounts, and serves the mount until it is unmounted.
///
/// # Errors
/// Mounting failed, or the session did.
pub fn run(plan: &MountSpec, progress: &dyn Fn(MountProgress<'_>)) -> Result<(), MountFailure> {
    if let Some(namespace) = &plan.namespace {
        mount_point::enter_namespace(namespace)?;
    }
    protect_from_memory_pressure();
    let target = mount_point::mount_point(&plan.target, &plan.source.text())?;
    // The same place has one path, however it is named.
    let plan = MountSpec { target: target.clone(), settings: settled(&plan.settings), ..plan.clone() };
    // Before any request to the server: if the metrics address is in use, the mount fails.
    let metrics = plan.settings.figures.metrics.as_ref();
    let metrics = metrics.map(listen_for_figures).transpose()?;
    // Dropped last, so that it includes the events of the end.
    let ring =
        control::keep_ring(mount_control::origin(&plan.source.text(), &target), plan.settings.figures.ring);
    let changes = Arc::new(InvalidationQueue::default());
    let environment = Environment {
        clock: Arc::new(MonotonicClock),
        background: Arc::new(BackgroundThreads::new(BACKGROUND_THREADS)),
        observer: Some(Arc::<InvalidationQueue>::clone(&changes)),
    };
    let events = Arc::new(TransportEventCounter::default());
    let mut reported = false;
    let mounted = connect::connect(&plan, &environment, &events, &mut |failure| {
        if std::mem::replace(&mut reported, true) {
            return;
        }
        progress(if plan.settings.transport.background {
            MountProgress::RetryingInBackground(failure)
        } else {
            MountProgress::RetryingInForeground(failure, connect::retry_minutes(&plan.settings))
        });
    })?;
    let mut settings = plan.settings.clone();
    let client = Arc::new(connect::client(&mounted, &mut settings, &environment)?);
    events.count_in(Arc::clone(client.live_counters()));
    let bridge =
        Arc::new(Bridge::new(Arc::clone(&client), CallerTable::new(environment.clock), Arc::clone(&changes)));
    let mut live = LiveMount::begin(&plan, &target, settings, client, &bridge, &changes)?;
    live.offer_figures(metrics);
    info!(source = live.running.source, mount_point = %target.display(), "mounted");
    trace_mount(&plan, &live.running.settings.lock());
    probe!(NfsMount { server: &live.running.source, name: target.as_os_str().as_bytes() });
    progress(MountProgress::Live);
    let ended = live.until_end(&mounted);
    if ended.is_err()
        && let Some(ring) = ring
    {
        ring.keep();
    }
    ended
}

/// Emits the events of the mount and its options.
fn trace_mount(plan: &MountSpec, settings: &Settings) {
    probe!(NfsMountPath { name: &plan.source.path[..] });
    for option in format_options(settings).split(',') {
        match option.split_once('=') {
            Some((option, value)) => probe!(NfsMountAssign { option, value }),
            None => probe!(NfsMountOption { option }),
        }
    }
}

/// Listens at the metrics address, if there is one.
fn listen_for_figures(address: &metrics::MetricsAddress) -> Result<MetricsListener, MountFailure> {
    MetricsListener::bind(address).map_err(|error| {
        MountFailure::lasting(
            ExitStatus::System,
            format!("metrics={address}: {error}"),
            "choose another address, or leave it out",
        )
    })
}

/// The settings, completed with defaults that depend on the mounting user.
fn settled(settings: &Settings) -> Settings {
    let mut settings = settings.clone();
    let generic = &mut settings.generic;
    let user = rustix::process::geteuid();
    if user.is_root() {
        if generic.allow == AllowedUsers::Default {
            generic.allow = AllowedUsers::Other;
        }
    } else {
        generic.nosuid = true;
        generic.nodev = true;
    }
    settings.cache.users = match generic.allow {
        AllowedUsers::Default => MountUsers::One(user.as_raw()),
        AllowedUsers::Other => MountUsers::Many,
        AllowedUsers::Root => MountUsers::WithRoot,
    };
    settings
}

/// A live mount, and what ends with it.
struct LiveMount {
    running: Arc<MountControl>,
    mount: Arc<FuseMount>,
    session: FuseSession<ObservedFilesystem>,
    changes: Arc<InvalidationQueue>,
    rechecks: OpenFileRevalidation,
    control: Option<control::ControlSocket>,
    figures: PublishedStatistics,
}

/// Publication of a mount's statistics in addition to its control socket.
#[derive(Default)]
struct PublishedStatistics {
    file: Option<MountstatsFile>,
    served: Option<metrics::MetricsServer>,
}

impl LiveMount {
    fn begin(
        plan: &MountSpec,
        target: &Path,
        settings: Settings,
        client: Arc<Superblock>,
        bridge: &Arc<Bridge>,
        changes: &Arc<InvalidationQueue>,
    ) -> Result<Self, MountFailure> {
        let system = |what: &str, error: std::io::Error| {
            MountFailure::lasting(ExitStatus::System, format!("{what}: {error}"), "")
        };
        let source = plan.source.text();
        let (mount, device) = FuseMount::new(target, &mount_options(&source, &settings))
            .map_err(|error| MountFailure::lasting(ExitStatus::Failed, error.to_string(), ""))?;
        let mount = Arc::new(mount);
        bridge.set_notifier(device.notifier());
        if settings.local_locks.posix {
            bridge.set_local_locks();
        }
        // FUSE file systems have no block device: their major number is 0.
        if let Some(minor) = mount.minor() {
            bridge.set_device((0, minor));
        }
        let explainer = Arc::new(Explainer::new(Arc::clone(&client)));
        let observed = Arc::new(ObservedFilesystem::new(
            Arc::clone(bridge),
            Arc::clone(&client),
            Arc::clone(&explainer),
        ));
        let session = start_session(device, observed, &settings).inspect_err(|_| shutdown::detach(&mount))?;
        if session.negotiated().has(feature::CACHE_SYMLINKS) {
            client.set_kernel_keeps_targets();
        }
        explainer.set_request_barrier(session.request_barrier());
        changes
            .start(session.notifier(), reading_revalidates(&plan.settings))
            .map_err(|error| system("no thread", error))?;
        let rechecks = OpenFileRevalidation::start(bridge).map_err(|error| system("no thread", error))?;
        shutdown::on_signals(Arc::clone(&mount), Arc::clone(&client))
            .map_err(|error| system("signals", error))?;
        let table = plan.table && rustix::process::geteuid().is_root();
        let running = Arc::new(MountControl {
            source,
            mount_point: target.to_owned(),
            client,
            bridge: Arc::clone(bridge),
            explainer,
            settings: Mutex::new(settings),
            since: Instant::now(),
            table,
            request_origins: RequestOriginCounter::default(),
        });
        if table && let Err(error) = running.publish_utab(&running.settings.lock()) {
            warn!(%error, "/run/mount/utab does not show this mount");
        }
        match mount.set_read_ahead(READ_AHEAD_KIB) {
            Ok(()) => running.client.data_plane().set_reader_ahead(u64::from(READ_AHEAD_KIB) * 1024),
            Err(error) => debug!(%error, "the kernel's read-ahead stays as it is"),
        }
        Ok(Self {
            control: control_socket(&running),
            running,
            mount,
            session,
            changes: Arc::clone(changes),
            rechecks,
            figures: PublishedStatistics::default(),
        })
    }

    /// Writes the mountstats file, and serves metrics if the options say so.
    fn offer_figures(&mut self, metrics: Option<MetricsListener>) {
        let mount = Arc::clone(&self.running);
        let report = move || mount.report();
        let interval = self.running.settings.lock().figures.mountstats;
        if !interval.is_zero() {
            let file = MountstatsFile::keep(&control::directory(), interval, report.clone());
            self.figures.file =
                file.inspect_err(|error| warn!(%error, "no mountstats file is kept for this mount")).ok();
        }
        let Some(metrics) = metrics else { return };
        info!("serving Prometheus metrics on {}", metrics.address());
        let served = metrics.serve(|| Ok(()), move || metrics::text(&report()));
        self.figures.served = served.inspect_err(|error| warn!(%error, "no figures are served")).ok();
    }

    /// Waits for the end of the mount, and removes its files.
    fn until_end(self, mounted: &MountedExport) -> Result<(), MountFailure> {
        let ended = self.session.wait();
        // The mount point first: a forced unmount wants it gone.
        shutdown::detach(&self.mount);
        drop(self.control);
        drop(self.figures);
        if self.running.table {
            self.running.remove_from_utab();
        }
        self.changes.end();
        drop(self.rechecks);
        info!(?ended, mount_point = %self.running.mount_point.display(), "unmounted");
        probe!(NfsUmount {
            server: &self.running.source,
            name: self.running.mount_point.as_os_str().as_bytes()
        });
        self.session.interrupt_all();
        shutdown::write_back(&self.running.client);
        self.running.client.release_locks(UNMOUNT_TIMEOUT);
        mounted.protocol.end(UNMOUNT_TIMEOUT);
        match ended {
            FuseSessionEnd::Unmounted | FuseSessionEnd::Aborted => Ok(()),
            FuseSessionEnd::Failed(error) => Err(MountFailure::lasting(
                ExitStatus::System,
                format!("the connection to the kernel failed: {error}"),
                "",
            )),
        }
    }
}

/// The socket on which `curt stat`, `curt trace` and remounts reach the mount, if it can be made.
fn control_socket(running: &Arc<MountControl>) -> Option<control::ControlSocket> {
    let socket = control::directory().join(format!("{}.{MOUNT_SOCKET}", std::process::id()));
    let listening = MountControl::commands(running).listen(socket);
    let unreachable = "no control socket: curt stat and remount do not reach this mount";
    listening.inspect_err(|error| warn!(%error, "{unreachable}")).ok()
}

fn mount_options(source: &str, settings: &Settings) -> MountOptions {
    let generic = &settings.generic;
    MountOptions {
        source: source.to_owned(),
        subtype: "curt".to_owned(),
        flags: MountFlags {
            read_only: generic.read_only,
            nosuid: generic.nosuid,
            nodev: generic.nodev,
            noexec: generic.noexec,
            noatime: generic.atime == Atime::Never,
            nodiratime: generic.nodiratime,
            strictatime: generic.atime == Atime::Strict,
            sync: generic.sync,
            dirsync: generic.dirsync,
        },
        allow_other: generic.allow != AllowedUsers::Default,
    }
}

fn reading_revalidates(settings: &Settings) -> bool {
    !settings.cache.attribute_cache
}

fn start_session(
    device: FuseDevice,
    seen: Arc<ObservedFilesystem>,
    settings: &Settings,
) -> Result<FuseSession<ObservedFilesystem>, MountFailure> {
    let locks = settings.local_locks;
    let only_user = match settings.generic.allow {
        AllowedUsers::Root => Some(rustix::process::geteuid().as_raw()),
        AllowedUsers::Default | AllowedUsers::Other => None,
    };
    let wishes = RequestedFeatures {
        posix_locks: !locks.posix,
        flock_locks: !locks.flock,
        reading_revalidates: reading_revalidates(settings),
    };
    let options = FuseSessionOptions { features: wishes, only_user, ..FuseSessionOptions::default() };
    FuseSession::start(device, seen, &options)
        .map_err(|error| MountFailure::lasting(ExitStatus::System, error.to_string(), ""))
}

/// As for sshd and udevd: killed last but for processes with -1000 when memory is short.
const OOM_SCORE_ADJ: &str = "-900";

/// Requests settings that protect a file system's daemon when memory is short. Failures are
/// harmless.
fn protect_from_memory_pressure() {
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJ) {
        debug!(%error, "oom_score_adj stays as it is: the kernel may end this mount when memory is short");
    }
    // PR_SET_IO_FLUSHER: memory allocation during write-back must not wait for the same write-back.
    if let Err(error) = rustix::process::configure_io_flusher_behavior(true) {
        debug!(%error, "PR_SET_IO_FLUSHER is refused: writing may wait for memory that waits for writing");
    }
}
