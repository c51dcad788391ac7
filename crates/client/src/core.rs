//! What everything of one mount shares: the options in force, the clocks, the counters, the way to
//! the server.
//!
//! Owns no inode: inodes hold the core, never the other way round. Its locks are leaves: nothing
//! else is locked under them.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use curt_observe::{ClientCounter, ClientCounters};
use curt_policy::{
    CacheOptions, Moment, ServerClock,
    prefetch::PrefetchBenefit,
    retransmitted::{ClockOffset, Execution},
};
use curt_types::Timestamp;
use parking_lot::{Mutex, RwLock};

use crate::{
    api::ChangeObserver,
    credentials::CallerInterner,
    data::{DataPlane, OFFSET_MAX},
    environment::Clock,
    fileid_map::FileidMap,
    inode::InodeRegistry,
    protocol::{Fsinfo, Protocol, WriteVerifier},
};

/// File systems whose clocks are told apart; names in further ones are always taken for racy.
const FILE_SYSTEMS_MAX: usize = 1024;

/// The shared part of a mount.
pub(crate) struct MountCore {
    pub(crate) protocol: Arc<dyn Protocol>,
    pub(crate) data: Arc<DataPlane>,
    pub(crate) counters: Arc<ClientCounters>,
    pub(crate) identities: CallerInterner,
    pub(crate) numbering: FileidMap,
    pub(crate) registry: InodeRegistry,
    pub(crate) observer: Option<Arc<dyn ChangeObserver>>,
    /// Whoever asks is a kernel.
    pub(crate) serves_kernel: AtomicBool,
    clock: Arc<dyn Clock>,
    /// Where the scale of [`Moment`]s begins: a second before the mount, so that a request can be
    /// dated before the first.
    start: Instant,
    options: RwLock<CacheOptions>,
    server_clocks: Mutex<HashMap<u64, ServerClock>>,
    /// How far each file system's clock is ahead of ours.
    clock_offsets: Mutex<HashMap<u64, ClockOffset>>,
    server_life: Mutex<ServerBoot>,
    /// The server said that it has no READDIRPLUS. Orders nothing.
    lacks_plus: AtomicBool,
    /// What asking for names together was worth.
    prefetch_benefit: Mutex<PrefetchBenefit>,
    time_step: Duration,
    /// The file system of the mount's root, and how large a file may be there.
    root_fsid: u64,
    file_size_max: u64,
}

/// By which lives of the server are told apart.
#[derive(Debug, Default)]
struct ServerBoot {
    verifier: Option<WriteVerifier>,
    since: Moment,
}

/// What a [`MountCore`] is made of.
pub(crate) struct MountCoreParts {
    pub(crate) protocol: Arc<dyn Protocol>,
    pub(crate) data: Arc<DataPlane>,
    pub(crate) counters: Arc<ClientCounters>,
    pub(crate) identities: CallerInterner,
    pub(crate) root_fsid: u64,
    pub(crate) observer: Option<Arc<dyn ChangeObserver>>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) options: CacheOptions,
    /// The root's FSINFO.
    pub(crate) limits: Fsinfo,
}

impl MountCore {
    pub(crate) fn new(parts: MountCoreParts) -> Arc<Self> {
        let step = parts.limits.time_step;
        let now = parts.clock.now();
        let start = now.checked_sub(Duration::from_secs(1)).unwrap_or(now);
        Arc::new(Self {
            protocol: parts.protocol,
            data: parts.data,
            counters: parts.counters,
            identities: parts.identities,
            numbering: FileidMap::new(parts.root_fsid),
            registry: InodeRegistry::default(),
            observer: parts.observer,
            serves_kernel: AtomicBool::new(false),
            start,
            clock: parts.clock,
            options: RwLock::new(parts.options),
            server_clocks: Mutex::default(),
            clock_offsets: Mutex::default(),
            server_life: Mutex::default(),
            lacks_plus: AtomicBool::new(false),
            prefetch_benefit: Mutex::default(),
            time_step: Duration::new(u64::try_from(step.seconds()).unwrap_or(0), step.nanoseconds()),
            root_fsid: parts.root_fsid,
            file_size_max: parts.limits.file_size_max,
        })
    }

    /// How large a file in the file system `fsid` may be. FSINFO was asked of the root's alone.
    /// There, as in Linux' client, no byte is taken that the server could only refuse later.
    pub(crate) fn size_max(&self, fsid: Option<u64>) -> u64 {
        if fsid == Some(self.root_fsid) && self.file_size_max > 0 {
            return self.file_size_max.min(OFFSET_MAX);
        }
        OFFSET_MAX
    }

    /// The present.
    pub(crate) fn now(&self) -> Moment {
        self.moment(self.clock.now())
    }

    /// `instant` on the scale of this mount.
    pub(crate) fn moment(&self, instant: Instant) -> Moment {
        Moment::from_start(instant.saturating_duration_since(self.start))
    }

    /// The options in force.
    pub(crate) fn options(&self) -> CacheOptions {
        *self.options.read()
    }

    /// From now on these are in force.
    pub(crate) fn set_options(&self, options: CacheOptions) {
        *self.options.write() = options;
    }

    pub(crate) fn count(&self, counter: ClientCounter) {
        self.counters.count(counter);
    }

    /// What is known of the clock by which file system `fsid` dates changes.
    pub(crate) fn server_clock(&self, fsid: u64) -> ServerClock {
        let clocks = self.server_clocks.lock();
        clocks.get(&fsid).copied().unwrap_or_else(|| ServerClock::new(self.time_step))
    }

    /// Takes in the ctime of a reply to a request that changed nothing.
    pub(crate) fn learn_time(&self, fsid: u64, ctime: Timestamp, received_at: Moment) {
        self.with_clock(fsid, |clock| clock.learn(ctime, received_at));
    }

    /// Takes in the ctime that a change of ours left.
    pub(crate) fn learn_time_of_change(
        &self,
        fsid: u64,
        ctime: Timestamp,
        sent_at: Moment,
        received_at: Moment,
    ) {
        self.with_clock(fsid, |clock| clock.learn_from_change(ctime, sent_at, received_at));
        let step = self.server_clock(fsid).guard() / 2;
        let mut offsets = self.clock_offsets.lock();
        if offsets.len() < FILE_SYSTEMS_MAX || offsets.contains_key(&fsid) {
            let offset = offsets.entry(fsid).or_default();
            offset.learn(ctime, sent_at, received_at, step);
        }
    }

    /// When a call that was sent at `sent_at` was executed before `lost_at`, if it was, by the
    /// clock of file system `fsid`; `None` if too little is known of that.
    pub(crate) fn execution(&self, fsid: u64, sent_at: Moment, lost_at: Moment) -> Option<Execution> {
        let slack = self.server_clock(fsid).guard();
        let offset = self.clock_offsets.lock().get(&fsid).copied();
        offset?.execution(sent_at, lost_at, slack)
    }

    /// Whether the server has no listings with attributes.
    pub(crate) fn lacks_plus(&self) -> bool {
        self.lacks_plus.load(Relaxed)
    }

    /// The server said that it has none.
    pub(crate) fn note_lack_of_plus(&self) {
        if !self.lacks_plus.swap(true, Relaxed) {
            tracing::info!("the server has no READDIRPLUS: directories are listed without attributes");
        }
    }

    /// What is remembered of asking for names together on this mount.
    pub(crate) fn prefetch_benefit(&self) -> PrefetchBenefit {
        *self.prefetch_benefit.lock()
    }

    /// Something more is to be remembered of it.
    pub(crate) fn learn_prefetch(&self, learn: impl FnOnce(&mut PrefetchBenefit)) {
        learn(&mut self.prefetch_benefit.lock());
    }

    /// A name was found that was known to be missing under the same stamp.
    pub(crate) fn proven_coarse(&self, fsid: u64) {
        self.with_clock(fsid, ServerClock::proven_coarse);
    }

    /// A reply carried this write verifier; another one than before is another life of the server.
    pub(crate) fn note_verifier(&self, verifier: WriteVerifier) {
        let now = self.now();
        let mut life = self.server_life.lock();
        if life.verifier.is_some_and(|known| known != verifier) {
            life.since = now;
        }
        life.verifier = Some(verifier);
    }

    /// When the server's present life was noticed.
    pub(crate) fn server_since(&self) -> Moment {
        self.server_life.lock().since
    }

    fn with_clock(&self, fsid: u64, learn: impl FnOnce(&mut ServerClock)) {
        let mut clocks = self.server_clocks.lock();
        if clocks.len() < FILE_SYSTEMS_MAX || clocks.contains_key(&fsid) {
            learn(clocks.entry(fsid).or_insert_with(|| ServerClock::new(self.time_step)));
        }
    }
}

impl fmt::Debug for MountCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").field("counters", &self.counters).finish_non_exhaustive()
    }
}
