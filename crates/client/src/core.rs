//! The state that all parts of one mount share: options in force, clocks, counters and the
//! protocol.
//!
//! Owns no inode: the inode registry holds a reference to the core, never the reverse. Its locks
//! are leaves: no other lock is taken under them.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use curt_observe::{ClientCounter, ClientCounters};
use curt_policy::{
    CacheOptions, Moment, ServerClock, kernel_cache,
    open::OpenReadBenefit,
    prefetch::PrefetchBenefit,
    retransmitted::{ClockOffset, Execution},
};
use curt_rpc::client::Interrupt;
use curt_types::{Timestamp, WriteVerifier};
use parking_lot::{Mutex, RwLock};

use crate::{
    api::ChangeObserver,
    caller::CallerInterner,
    config::{ClientOptions, Environment},
    data::{DataPlane, options::OFFSET_MAX},
    fileid_map::FileidMap,
    protocol::{Fsinfo, Protocol},
    threads::Clock,
};

/// Most file systems whose clocks are tracked; names in further ones are always treated as racy.
const FILE_SYSTEMS_MAX: usize = 1024;

/// The shared part of a mount.
pub(crate) struct MountCore {
    pub(crate) protocol: Arc<dyn Protocol>,
    pub(crate) data: Arc<DataPlane>,
    pub(crate) counters: Arc<ClientCounters>,
    pub(crate) identities: CallerInterner,
    pub(crate) numbering: FileidMap,
    pub(crate) observer: Option<Arc<dyn ChangeObserver>>,
    /// The user of the library is a kernel (FUSE).
    pub(crate) serves_kernel: AtomicBool,
    /// The [`Moment`] until which no name is to be kept by a kernel; zero: now it may be.
    names_withheld_until: AtomicU64,
    /// The kernel caches the targets of symbolic links until it is notified.
    pub(crate) kernel_keeps_targets: AtomicBool,
    /// The [`Moment`] at which the last lifetime of a name ends that a kernel was granted.
    names_end: AtomicU64,
    clock: Arc<dyn Clock>,
    /// Origin of the [`Moment`] scale: one second before the mount, so that a time before the first
    /// request can be expressed.
    start: Instant,
    options: RwLock<CacheOptions>,
    server_clocks: Mutex<HashMap<u64, ServerClock>>,
    /// The offset of each file system's clock from the local one.
    clock_offsets: Mutex<HashMap<u64, ClockOffset>>,
    server_life: Mutex<ServerBoot>,
    /// The measured benefit of reading files together with their opens.
    open_reads: Mutex<OpenReadBenefit>,
    /// The same with the look-ups of their names.
    lookup_reads: Mutex<OpenReadBenefit>,
    /// The measured benefit of prefetching attributes with READDIRPLUS.
    prefetch_benefit: Mutex<PrefetchBenefit>,
    time_step: Duration,
    /// The file system of the mount's root, and its largest file size.
    root_fsid: u64,
    file_size_max: u64,
}

/// The state by which restarts of the server are detected.
#[derive(Debug, Default)]
struct ServerBoot {
    verifier: Option<WriteVerifier>,
    since: Moment,
}

impl MountCore {
    /// The core of a mount whose root has FSINFO `limits` and is in file system `root_fsid`.
    pub(crate) fn new(
        protocol: Arc<dyn Protocol>,
        identities: CallerInterner,
        root_fsid: u64,
        limits: Fsinfo,
        behaviour: &ClientOptions,
        environment: &Environment,
    ) -> Arc<Self> {
        let watchers = Arc::clone(protocol.rpc().watchers());
        let counters = Arc::new(ClientCounters { watchers, ..ClientCounters::default() });
        let clock = Arc::clone(&environment.clock);
        let now = clock.now();
        let data = DataPlane::new(
            Arc::clone(&protocol),
            behaviour.data,
            Arc::clone(&counters),
            Arc::clone(&clock),
            Arc::clone(&environment.background),
        );
        let step = limits.time_step;
        Arc::new(Self {
            protocol,
            data,
            counters,
            identities,
            numbering: FileidMap::new(root_fsid),
            observer: environment.observer.clone(),
            serves_kernel: AtomicBool::new(false),
            names_withheld_until: AtomicU64::new(0),
            kernel_keeps_targets: AtomicBool::new(false),
            names_end: AtomicU64::new(0),
            start: now.checked_sub(Duration::from_secs(1)).unwrap_or(now),
            clock,
            options: RwLock::new(behaviour.cache),
            server_clocks: Mutex::default(),
            clock_offsets: Mutex::default(),
            server_life: Mutex::default(),
            open_reads: Mutex::default(),
            lookup_reads: Mutex::default(),
            prefetch_benefit: Mutex::default(),
            time_step: Duration::new(u64::try_from(step.seconds()).unwrap_or(0), step.nanoseconds()),
            root_fsid,
            file_size_max: limits.file_size_max,
        })
    }

    /// The largest file size in file system `fsid`. FSINFO is requested for the root only. In the
    /// root's file system no byte is accepted that the server would refuse later, as in Linux.
    pub(crate) fn size_max(&self, fsid: Option<u64>) -> u64 {
        if fsid == Some(self.root_fsid) && self.file_size_max > 0 {
            return self.file_size_max.min(OFFSET_MAX);
        }
        OFFSET_MAX
    }

    pub(crate) fn now(&self) -> Moment {
        self.moment(self.clock.now())
    }

    /// Converts `instant` to the scale of this mount.
    pub(crate) fn moment(&self, instant: Instant) -> Moment {
        Moment::from_start(instant.saturating_duration_since(self.start))
    }

    pub(crate) fn options(&self) -> CacheOptions {
        *self.options.read()
    }

    pub(crate) fn set_options(&self, options: CacheOptions) {
        *self.options.write() = options;
    }

    /// Lets `duration` pass, or less if `interrupt` is raised.
    pub(crate) fn pause(&self, duration: Duration, interrupt: &Interrupt) {
        self.clock.pause(duration, interrupt);
    }

    /// Lets a kernel keep no name for at least this time; zero: it may again.
    pub(crate) fn withhold_names(&self, duration: Duration) {
        if duration.is_zero() {
            self.names_withheld_until.store(0, Relaxed);
        } else {
            self.names_withheld_until.fetch_max(self.now().plus(duration).nanoseconds(), Relaxed);
        }
    }

    /// Whether no name is to be kept by a kernel.
    pub(crate) fn withholds_names(&self) -> bool {
        let until = self.names_withheld_until.load(Relaxed);
        until != 0 && Moment::from_nanoseconds(until) > self.now()
    }

    /// A kernel was granted a lifetime of a name.
    pub(crate) fn note_name_lifetime(&self, end: Moment) {
        self.names_end.fetch_max(end.nanoseconds(), Relaxed);
    }

    /// Whether callers may have passed directories by names that the kernel kept.
    pub(crate) fn checks_paths(&self, now: Moment) -> bool {
        let end = self.names_end.load(Relaxed);
        end != 0 && kernel_cache::with_expiry_delay(Some(Moment::from_nanoseconds(end))) > Some(now)
    }

    /// When the kernel keeps no name any more.
    pub(crate) fn names_expire(&self) -> Option<Moment> {
        kernel_cache::with_expiry_delay(Some(Moment::from_nanoseconds(self.names_end.load(Relaxed))))
    }

    pub(crate) fn count(&self, counter: ClientCounter) {
        self.counters.count(counter);
    }

    /// The state of the clock of file system `fsid`.
    pub(crate) fn server_clock(&self, fsid: u64) -> ServerClock {
        let clocks = self.server_clocks.lock();
        clocks.get(&fsid).copied().unwrap_or_else(|| ServerClock::new(self.time_step))
    }

    /// Learns from the ctime in a reply to a request that changed nothing.
    pub(crate) fn learn_time(&self, fsid: u64, ctime: Timestamp, received_at: Moment) {
        self.with_clock(fsid, |clock| clock.learn(ctime, received_at));
    }

    /// Learns from the ctime that a change by this client set.
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

    /// The interval in which a call sent at `sent_at` was executed before `lost_at`, if it was
    /// executed, by the clock of file system `fsid`; `None` if that clock is not known well enough.
    pub(crate) fn execution(&self, fsid: u64, sent_at: Moment, lost_at: Moment) -> Option<Execution> {
        let slack = self.server_clock(fsid).guard();
        let offset = self.clock_offsets.lock().get(&fsid).copied();
        offset?.execution(sent_at, lost_at, slack)
    }

    /// The measured benefit of prefetching on this mount.
    pub(crate) fn prefetch_benefit(&self) -> PrefetchBenefit {
        *self.prefetch_benefit.lock()
    }

    /// Updates the measured benefit of prefetching.
    pub(crate) fn learn_prefetch(&self, learn: impl FnOnce(&mut PrefetchBenefit)) {
        learn(&mut self.prefetch_benefit.lock());
    }

    /// Reads or updates the measured benefit of reading files together with their opens.
    pub(crate) fn open_reads<T>(&self, with: impl FnOnce(&mut OpenReadBenefit) -> T) -> T {
        with(&mut self.open_reads.lock())
    }

    /// The same with the look-ups of their names.
    pub(crate) fn lookup_reads<T>(&self, with: impl FnOnce(&mut OpenReadBenefit) -> T) -> T {
        with(&mut self.lookup_reads.lock())
    }

    /// A cached negative entry was wrong although the directory's timestamps were unchanged: the
    /// file system's timestamps are coarse.
    pub(crate) fn proven_coarse(&self, fsid: u64) {
        self.with_clock(fsid, ServerClock::proven_coarse);
    }

    /// Records the write verifier of a reply; a different one means that the server has restarted.
    pub(crate) fn note_verifier(&self, verifier: WriteVerifier) {
        let now = self.now();
        let mut life = self.server_life.lock();
        if life.verifier.is_some_and(|known| known != verifier) {
            life.since = now;
        }
        life.verifier = Some(verifier);
    }

    /// When the server's last restart was detected.
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
