//! The state that all parts of one mount share: options in force, clocks, counters and the
//! protocol.
//!
//! Owns no inode: the inode registry holds a reference to the core, never the reverse. Its locks
//! are leaves: no other lock is taken under them, except those of the servers' clocks.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use curt_observe::{ClientCounter, ClientCounters};
use curt_policy::{CacheOptions, MonotonicTime, prefetch::PrefetchBenefit, speculation::SpeculationBenefits};
use curt_rpc::client::Interrupt;
use curt_types::WriteVerifier;
use parking_lot::{Mutex, RwLock};

use crate::{
    api::ChangeObserver,
    caller::CallerInterner,
    config::{ClientOptions, Environment},
    data::{DataPlane, options::OFFSET_MAX},
    fileid_map::FileidMap,
    kernel_caches::KernelCaches,
    protocol::{Fsinfo, Protocol},
    server_clocks::ServerClocks,
    threads::Clock,
};

/// The shared part of a mount.
pub(crate) struct MountCore {
    pub(crate) protocol: Arc<dyn Protocol>,
    pub(crate) data: Arc<DataPlane>,
    pub(crate) counters: Arc<ClientCounters>,
    pub(crate) identities: CallerInterner,
    pub(crate) numbering: FileidMap,
    pub(crate) observer: Option<Arc<dyn ChangeObserver>>,
    /// The caches of the kernel that uses the mount.
    pub(crate) kernel: KernelCaches,
    /// The server's clocks.
    pub(crate) clocks: ServerClocks,
    clock: Arc<dyn Clock>,
    /// Origin of the [`MonotonicTime`] scale: one second before the mount, so that a time before
    /// the first request can be expressed.
    start: Instant,
    options: RwLock<CacheOptions>,
    server_life: Mutex<ServerBoot>,
    /// The measured benefits of speculative requests.
    speculations: Mutex<SpeculationBenefits>,
    /// The measured benefit of prefetching attributes with listings.
    prefetch_benefit: Mutex<PrefetchBenefit>,
    /// The file system of the mount's root, and its largest file size.
    root_fsid: u64,
    file_size_max: u64,
}

/// The state by which restarts of the server are detected.
#[derive(Debug, Default)]
struct ServerBoot {
    verifier: Option<WriteVerifier>,
    since: MonotonicTime,
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
        let time_step = Duration::new(u64::try_from(step.seconds()).unwrap_or(0), step.nanoseconds());
        Arc::new(Self {
            protocol,
            data,
            counters,
            identities,
            numbering: FileidMap::new(root_fsid),
            observer: environment.observer.clone(),
            kernel: KernelCaches::new(&*clock),
            clocks: ServerClocks::new(time_step),
            start: now.checked_sub(Duration::from_secs(1)).unwrap_or(now),
            clock,
            options: RwLock::new(behaviour.cache),
            server_life: Mutex::default(),
            speculations: Mutex::default(),
            prefetch_benefit: Mutex::default(),
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

    pub(crate) fn now(&self) -> MonotonicTime {
        self.moment(self.clock.now())
    }

    /// The time to compare the ends of the kernel's lifetimes of names with.
    pub(crate) fn kernel_time(&self, now: MonotonicTime) -> MonotonicTime {
        self.kernel.awake_time(now, &*self.clock, || self.now(), || self.clocks.suspended())
    }

    /// The origin of the scale of this mount.
    pub(crate) const fn origin(&self) -> Instant {
        self.start
    }

    /// Converts `instant` to the scale of this mount.
    pub(crate) fn moment(&self, instant: Instant) -> MonotonicTime {
        MonotonicTime::from_start(instant.saturating_duration_since(self.start))
    }

    /// The reverse of [`Self::moment`].
    pub(crate) fn instant(&self, moment: MonotonicTime) -> Instant {
        self.start + Duration::from_nanos(moment.nanoseconds())
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

    pub(crate) fn count(&self, counter: ClientCounter) {
        self.counters.count(counter);
    }

    /// The measured benefit of prefetching on this mount.
    pub(crate) fn prefetch_benefit(&self) -> PrefetchBenefit {
        *self.prefetch_benefit.lock()
    }

    /// Updates the measured benefit of prefetching.
    pub(crate) fn learn_prefetch(&self, learn: impl FnOnce(&mut PrefetchBenefit)) {
        learn(&mut self.prefetch_benefit.lock());
    }

    /// Reads or updates the measured benefits of speculative requests.
    pub(crate) fn speculations<T>(&self, with: impl FnOnce(&mut SpeculationBenefits) -> T) -> T {
        with(&mut self.speculations.lock())
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
    pub(crate) fn server_since(&self) -> MonotonicTime {
        self.server_life.lock().since
    }
}
