//! A mount's life: from a plan to a live mount, its signals, and its end.

mod alone;
mod connecting;
mod ending;
mod events;
mod place;
mod running;
mod surroundings;

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use curt_client::caller::CallerTable;
use curt_client::mounting::Mounted;
use curt_client::threads::{SystemClock, Threads};
use curt_client::{Client, Environment};
use curt_fuse::{Device, Ended, Mount, MountFlags, MountOptions, Session, SessionOptions, Wishes};
use curt_policy::Users;
use curt_rpc::client::Interrupt;
use curt_trace::probe;
use parking_lot::Mutex;
use tracing::{debug, info, warn};

use crate::bridge::{Bridge, Changes, Rechecks};
use crate::control::{
    self, Controlled, Watching,
    metrics::{self, Metrics},
    mountstats::StatsFile,
};
use crate::explain::Explainer;
use crate::helper::{ExitStatus, Failure};
use crate::observed::{Observed, Probes};
use crate::options::{Allow, Atime, Settings, Source, shown};
pub use alone::ClientAlone;
use events::WireEvents;
use running::Running;

/// The type that mountinfo shows.
pub const TYPE: &str = "fuse.curt";

/// Threads for read-ahead and writing behind.
const BACKGROUND_THREADS: usize = 16;

/// How far the kernel reads ahead, in KiB: enough that a READ is always under way while the server is near, and little enough
/// that what arrives is still in the processors' caches when it is read. What a distant server needs is read ahead by the client.
const READ_AHEAD_KIB: u32 = 2048;

/// How long the server may take to hear that the export is not mounted any more.
const UNMOUNT_PATIENCE: Duration = Duration::from_secs(1);

/// What is to be mounted, where and how.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The server and its export.
    pub source: Source,
    /// The mount point.
    pub target: PathBuf,
    /// The options.
    pub settings: Settings,
    /// Whether /run/mount/utab shows the mount.
    pub table: bool,
    /// The mount namespace to mount in: a process id or a path.
    pub namespace: Option<String>,
}

/// How far a mount has come.
#[derive(Debug)]
pub enum Progress<'a> {
    /// The mount can be used.
    Live,
    /// The server does not answer; mounting is retried in the foreground for so many minutes.
    Waiting(&'a Failure, u32),
    /// The server does not answer; mounting is retried in the background (`bg`).
    Retrying(&'a Failure),
}

/// Checks what can be checked without the server and without mounting.
///
/// # Errors
/// The mount point cannot be mounted on.
pub fn check(plan: &Plan) -> Result<(), Failure> {
    place::mount_point(&plan.target, &plan.source.text()).map(drop)
}

/// Mounts, and serves the mount until it is unmounted.
///
/// # Errors
/// Mounting failed, or the session did.
pub fn run(plan: &Plan, progress: &dyn Fn(Progress<'_>)) -> Result<(), Failure> {
    if let Some(namespace) = &plan.namespace {
        place::enter_namespace(namespace)?;
    }
    surroundings::prepare();
    let target = place::mount_point(&plan.target, &plan.source.text())?;
    let plan = Plan {
        settings: settled(&plan.settings),
        ..plan.clone()
    };
    // Before the server is asked anything: whoever wants figures at a place that is taken has no mount.
    let metrics = plan.settings.figures.metrics.as_ref();
    let metrics = metrics.map(listen_for_figures).transpose()?;
    // Dropped last: what happens at the end is kept, too.
    let ring = control::keep_ring(
        running::origin(&plan.source.text(), &target),
        plan.settings.figures.ring,
    );
    let changes = Arc::new(Changes::default());
    let environment = Environment {
        clock: Arc::new(SystemClock),
        background: Arc::new(Threads::new(BACKGROUND_THREADS)),
        observer: Some(Arc::<Changes>::clone(&changes)),
    };
    let events = Arc::new(WireEvents::default());
    let mut told = false;
    let mounted = connecting::connect(&plan, &environment, &events, &mut |failure| {
        if std::mem::replace(&mut told, true) {
            return;
        }
        progress(if plan.settings.transport.background {
            Progress::Retrying(failure)
        } else {
            Progress::Waiting(failure, connecting::retry_minutes(&plan.settings))
        });
    })?;
    let mut settings = plan.settings.clone();
    let client = Arc::new(connecting::client(&mounted, &mut settings, &environment)?);
    events.count_in(Arc::clone(client.live_counters()));
    let bridge = Arc::new(Bridge::new(
        Arc::clone(&client),
        CallerTable::new(environment.clock),
        Arc::clone(&changes),
    ));
    let mut live = Live::begin(&plan, &target, settings, client, &bridge, &changes)?;
    live.offer_figures(metrics);
    info!(source = live.running.source, mount_point = %target.display(), "mounted");
    tell_mount(&plan, &live.running.settings.lock());
    probe!(NfsMount {
        server: &live.running.source,
        name: target.as_os_str().as_bytes()
    });
    progress(Progress::Live);
    let ended = live.until_end(&mounted);
    if ended.is_err()
        && let Some(ring) = ring
    {
        ring.keep();
    }
    ended
}

/// Emits the events of what is mounted, and with which options.
fn tell_mount(plan: &Plan, settings: &Settings) {
    probe!(NfsMountPath {
        name: &plan.source.path[..]
    });
    for option in shown(settings).split(',') {
        match option.split_once('=') {
            Some((option, value)) => probe!(NfsMountAssign { option, value }),
            None => probe!(NfsMountOption { option }),
        }
    }
}

/// Listens at the address for metrics, if the options name one.
fn listen_for_figures(place: &metrics::Place) -> Result<Metrics, Failure> {
    Metrics::bind(place).map_err(|error| {
        Failure::lasting(
            ExitStatus::System,
            format!("metrics={place}: {error}"),
            "choose another place, or leave it out",
        )
    })
}

/// The settings, completed by what depends on the user who mounts.
fn settled(settings: &Settings) -> Settings {
    let mut settings = settings.clone();
    let generic = &mut settings.generic;
    if rustix::process::geteuid().is_root() {
        if generic.allow == Allow::Default {
            generic.allow = Allow::Other;
        }
    } else {
        generic.nosuid = true;
        generic.nodev = true;
    }
    settings.cache.users = if generic.allow == Allow::Default {
        Users::One
    } else {
        Users::Many
    };
    settings
}

/// The bridge and its observers.
type Seen = Observed<Bridge, (Probes, Arc<Explainer>)>;

/// A mount that is live, and what ends with it.
struct Live {
    running: Arc<Running>,
    mount: Arc<Mount>,
    session: Session<Seen>,
    changes: Arc<Changes>,
    rechecks: Rechecks,
    control: Option<control::Listening>,
    figures: Figures,
}

/// How a mount's figures are published beside its control socket.
#[derive(Default)]
struct Figures {
    file: Option<StatsFile>,
    served: Option<metrics::Serving>,
}

impl Live {
    fn begin(
        plan: &Plan,
        target: &Path,
        settings: Settings,
        client: Arc<Client>,
        bridge: &Arc<Bridge>,
        changes: &Arc<Changes>,
    ) -> Result<Self, Failure> {
        let system = |what: &str, error: std::io::Error| {
            Failure::lasting(ExitStatus::System, format!("{what}: {error}"), "")
        };
        let source = plan.source.text();
        let (mount, device) = Mount::new(target, &mount_options(&source, &settings))
            .map_err(|error| Failure::lasting(ExitStatus::Failed, error.to_string(), ""))?;
        let mount = Arc::new(mount);
        bridge.set_notifier(device.notifier());
        // FUSE's file systems have no device of their own: their major number is 0.
        if let Some(minor) = mount.minor() {
            bridge.set_device((0, minor));
        }
        let explainer = Arc::new(Explainer::new(Arc::clone(&client)));
        let observers = (Probes::new(&client), Arc::clone(&explainer));
        let observed = Arc::new(Observed::new(Arc::clone(bridge), observers));
        let session = start_session(device, observed, &settings).inspect_err(|_| ending::detach(&mount))?;
        explainer.set_arrivals(session.arrivals());
        changes
            .tell(session.notifier(), reading_revalidates(&plan.settings))
            .map_err(|error| system("no thread", error))?;
        let rechecks = Rechecks::start(bridge).map_err(|error| system("no thread", error))?;
        ending::on_signals(Arc::clone(&mount), Arc::clone(&client))
            .map_err(|error| system("signals", error))?;
        let table = plan.table && rustix::process::geteuid().is_root();
        let running = Arc::new(Running {
            source,
            mount_point: target.to_owned(),
            client,
            bridge: Arc::clone(bridge),
            explainer,
            settings: Mutex::new(settings),
            since: Instant::now(),
            table,
            watching: Watching::default(),
        });
        if table && let Err(error) = running.show(&running.settings.lock()) {
            warn!(%error, "/run/mount/utab does not show this mount");
        }
        match mount.set_read_ahead(READ_AHEAD_KIB) {
            Ok(()) => running
                .client
                .data_plane()
                .set_reader_ahead(u64::from(READ_AHEAD_KIB) * 1024),
            Err(error) => debug!(%error, "the kernel's read-ahead stays as it is"),
        }
        let speaker: Arc<dyn Controlled> = Arc::<Running>::clone(&running);
        let control = control::listen(&control::directory(), speaker)
            .inspect_err(
                |error| warn!(%error, "no control socket: curt stat and remount do not reach this mount"),
            )
            .ok();
        Ok(Self {
            running,
            mount,
            session,
            changes: Arc::clone(changes),
            rechecks,
            control,
            figures: Figures::default(),
        })
    }

    /// Keeps the mountstats file, and serves metrics if the options say so.
    fn offer_figures(&mut self, metrics: Option<Metrics>) {
        let speaker: Arc<dyn Controlled> = Arc::<Running>::clone(&self.running);
        let interval = self.running.settings.lock().figures.mountstats;
        if !interval.is_zero() {
            let kept = StatsFile::keep(&control::directory(), interval, Arc::clone(&speaker));
            self.figures.file = kept
                .inspect_err(|error| warn!(%error, "no mountstats file is kept for this mount"))
                .ok();
        }
        let Some(metrics) = metrics else { return };
        info!("figures for Prometheus: {}", metrics.place());
        let served = metrics.serve(|| Ok(()), move || metrics::text(&speaker.report()));
        self.figures.served = served
            .inspect_err(|error| warn!(%error, "no figures are served"))
            .ok();
    }

    /// Waits for the end of the mount, and removes what belonged to it.
    fn until_end(self, mounted: &Mounted) -> Result<(), Failure> {
        let ended = self.session.wait();
        // The place in the tree first: whoever forced the end wants it gone.
        ending::detach(&self.mount);
        drop(self.control);
        drop(self.figures);
        if self.running.table {
            self.running.hide();
        }
        self.changes.end();
        drop(self.rechecks);
        info!(?ended, mount_point = %self.running.mount_point.display(), "unmounted");
        probe!(NfsUmount {
            server: &self.running.source,
            name: self.running.mount_point.as_os_str().as_bytes()
        });
        self.session.interrupt_all();
        ending::write_back(&self.running.client);
        mounted
            .mount_service
            .unmount(UNMOUNT_PATIENCE, &Interrupt::never());
        match ended {
            Ended::Unmounted | Ended::Aborted => Ok(()),
            Ended::Failed(error) => Err(Failure::lasting(
                ExitStatus::System,
                format!("the connection to the kernel failed: {error}"),
                "",
            )),
        }
    }
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
        allow_other: generic.allow != Allow::Default,
    }
}

fn reading_revalidates(settings: &Settings) -> bool {
    !settings.cache.attribute_cache
}

fn start_session(device: Device, seen: Arc<Seen>, settings: &Settings) -> Result<Session<Seen>, Failure> {
    let locks = settings.local_locks;
    let only_user = match settings.generic.allow {
        Allow::Root => Some(rustix::process::geteuid().as_raw()),
        Allow::Default | Allow::Other => None,
    };
    let wishes = Wishes {
        posix_locks: !locks.posix,
        flock_locks: !locks.flock,
        reading_revalidates: reading_revalidates(settings),
    };
    let options = SessionOptions {
        wishes,
        only_user,
        ..SessionOptions::default()
    };
    Session::start(device, seen, &options)
        .map_err(|error| Failure::lasting(ExitStatus::System, error.to_string(), ""))
}
