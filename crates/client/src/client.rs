//! The client of one mount.
//!
//! Owns the root, the counted look-ups, the names, and the common beginning of all operations. Each
//! operation is a method in the file of its concept; none holds a mutex across a request.

use std::{
    cell::Cell,
    fmt,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use curt_policy::{CacheOptions, Moment};
use curt_rpc::client::Interrupt;
use curt_trace::{ClientCounter, ClientCounters, ClientSnapshot};
use curt_types::{FileHandle, FileKind};
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::{
    caller::RpcSecurity,
    config::{ClientOptions, Environment},
    core::{MountCore, MountCoreParts},
    credentials::{CallerInterner, InternedCaller},
    data::DataPlane,
    dentry_cache::DentryCache,
    environment::Background,
    errno,
    identity::{Caller, InodeId},
    inode::{Inode, SingleFlight},
    last_found::LastFound,
    listing::ListingMemory,
    looked_up::LookedUpInodes,
    open_unlink::NameLocks,
    protocol::{Fsinfo, Pathconf, RpcCaller, RpcClient, Statistics, v3},
    sillyrename::SillyDirectories,
    softreval::SoftRevalidation,
    stale_open::StaleOpenRetries,
    statfs::CachedFsstat,
};

/// What the server returned at mount time.
#[derive(Clone, Debug)]
pub struct MountedRoot {
    /// The handle of the mount's root.
    pub handle: FileHandle,
    /// Its FSINFO.
    pub limits: Fsinfo,
    /// Its PATHCONF.
    pub path_limits: Pathconf,
}

/// A mounted export. All methods may be called by many threads at once; each waits for what it asks
/// the server.
///
/// Each [`crate::Found`] that is returned counts as one look-up of its inode, which keeps the
/// inode's number valid until it is given back ([`Client::forget`]).
pub struct Client {
    pub(crate) core: Arc<MountCore>,
    pub(crate) dentries: DentryCache,
    pub(crate) root: Arc<Inode>,
    pub(crate) server_limits: Fsinfo,
    pub(crate) path_limits: Pathconf,
    pub(crate) cached_fsstat: Mutex<Option<CachedFsstat>>,
    pub(crate) silly_names: AtomicU64,
    pub(crate) silly_directories: SillyDirectories,
    /// Serialises changes of one name.
    pub(crate) name_locks: NameLocks,
    /// Threads whose opens failed and will be tried again.
    pub(crate) stale_opens: StaleOpenRetries,
    /// The memory of listings.
    pub(crate) listing_memory: Arc<ListingMemory>,
    /// Runs background work.
    pub(crate) background: Arc<dyn Background>,
    /// `softreval`.
    pub(crate) soft_revalidation: Option<Arc<SoftRevalidation>>,
    /// Requests for attributes that others may wait for.
    pub(crate) getattrs_in_flight: SingleFlight,
    /// Files of which copies are being dropped.
    pub(crate) drops: SingleFlight,
    /// Requests for the names of a directory that others may wait for.
    pub(crate) fills_in_flight: SingleFlight,
    /// What names led to that could not be kept.
    pub(crate) last_found: LastFound,
    looked_up: LookedUpInodes,
}

/// How often an operation decides anew before it fails.
const ROUNDS_MAX: usize = 16;

/// After so many rounds an operation uses the last answer.
const ROUNDS_BEFORE_CACHE: usize = 12;

/// One operation: who asks, since when.
pub(crate) struct OpContext {
    pub(crate) identity: Arc<InternedCaller>,
    pub(crate) interrupt: Interrupt,
    pub(crate) began: Moment,
    /// When the server's last restart was noticed.
    server_since: Moment,
    /// The server was silent for as long as `softreval` waits: cached data have to do.
    pub(crate) uses_cache: Cell<bool>,
}

impl OpContext {
    pub(crate) fn server_since(&self) -> Moment {
        self.server_since
    }

    pub(crate) fn new(identity: Arc<InternedCaller>, interrupt: Interrupt, began: Moment) -> Self {
        Self {
            identity,
            interrupt,
            began,
            server_since: Moment::default(),
            uses_cache: Cell::new(false),
        }
    }

    /// The rounds of deciding and asking. Each has asked the server something, so attributes that
    /// are not good enough after many are being changed faster than anybody can ask: what the last
    /// answer said was true after the operation began.
    pub(crate) fn rounds(&self) -> impl Iterator<Item = usize> {
        (0..ROUNDS_MAX).inspect(|round| {
            if *round == ROUNDS_BEFORE_CACHE {
                self.uses_cache.set(true);
            }
        })
    }

    pub(crate) fn rpc_caller(&self) -> RpcCaller<'_> {
        RpcCaller {
            credential: &self.identity.credential,
            interrupt: &self.interrupt,
        }
    }
}

impl Client {
    /// A client of an export whose root handle is known; its requests go over `wire`, signed as
    /// `security` says.
    ///
    /// # Errors
    /// The root's attributes cannot be had.
    pub fn new(
        root: &MountedRoot,
        wire: Arc<RpcClient>,
        security: RpcSecurity,
        behaviour: &ClientOptions,
        environment: &Environment,
    ) -> Result<Self, Errno> {
        let counters = Arc::new(ClientCounters {
            watchers: Arc::clone(wire.watchers()),
            ..ClientCounters::default()
        });
        let identities = CallerInterner::new(security);
        let us = identities.of(&Caller::new(0, 0, &[]));
        let never = Interrupt::never();
        let asker = RpcCaller {
            credential: &us.credential,
            interrupt: &never,
        };
        let answer = v3::getattr(&wire, asker, &root.handle).map_err(errno::of_call)?;
        let attributes = answer.outcome.map_err(errno::of_fault)?;
        let clock = Arc::clone(&environment.clock);
        let plane = DataPlane::new(
            Arc::clone(&wire),
            behaviour.data,
            Arc::clone(&counters),
            Arc::clone(&clock),
            Arc::clone(&environment.background),
        );
        let patience = behaviour.soft_revalidation.map(|limit| {
            SoftRevalidation::new(limit, Arc::clone(&clock), Arc::clone(&environment.background))
        });
        let core = MountCore::new(MountCoreParts {
            rpc: wire,
            data: plane,
            counters: Arc::clone(&counters),
            identities,
            root_fsid: attributes.fsid,
            observer: environment.observer.clone(),
            clock,
            options: behaviour.cache,
            limits: root.limits,
        });
        let inode = core.registry.inode(&core, &root.handle);
        let _ = inode.absorb(&attributes, core.moment(answer.sent_at));
        let listing_memory = ListingMemory::new(behaviour.limits.listing_bytes, Arc::clone(&counters));
        let held = LookedUpInodes::default();
        held.hold(&inode);
        Ok(Self {
            dentries: DentryCache::new(behaviour.limits, counters),
            root: inode,
            server_limits: root.limits,
            path_limits: root.path_limits,
            cached_fsstat: Mutex::default(),
            silly_names: AtomicU64::new(0),
            silly_directories: SillyDirectories::default(),
            name_locks: NameLocks::default(),
            stale_opens: StaleOpenRetries::default(),
            listing_memory,
            background: Arc::clone(&environment.background),
            soft_revalidation: patience,
            getattrs_in_flight: SingleFlight::default(),
            drops: SingleFlight::default(),
            fills_in_flight: SingleFlight::default(),
            last_found: LastFound::default(),
            looked_up: held,
            core,
        })
    }

    /// The root's inode.
    #[must_use]
    pub fn root(&self) -> InodeId {
        self.root.id()
    }

    /// Gives back `lookups` look-ups of `id`: after the last one its number may not be used any
    /// more. The root stays.
    pub fn forget(&self, id: InodeId, lookups: u64) {
        if id != self.root.id() {
            let gone = self.looked_up.release(id, lookups);
            if let Some(inode) = gone.filter(|_| self.serves_a_kernel()) {
                self.core.registry.add_forgotten(&inode);
                self.looked_up.last_forgotten.add(inode);
            }
        }
    }

    /// Whether a kernel may have cached an object for `name` in `directory`: it was told of names
    /// there, and none of what is known of this one speaks against it.
    #[must_use]
    pub fn may_be_cached(&self, directory: InodeId, name: &[u8]) -> bool {
        let Some(directory) = self.looked_up.find(directory).filter(|held| held.told_names()) else {
            return false;
        };
        match self.dentries.find(directory.id(), name) {
            Some(kept) => kept.child.is_some_and(|child| child.is_held()),
            None => true,
        }
    }

    /// The options in force.
    #[must_use]
    pub fn options(&self) -> CacheOptions {
        self.core.options()
    }

    /// From now on `options` are in force (remount), also for what was learned under other options.
    pub fn set_options(&self, options: CacheOptions) {
        self.core.set_options(options);
    }

    /// A snapshot of the counters of decisions and requests.
    #[must_use]
    pub fn counters(&self) -> ClientSnapshot {
        ClientSnapshot {
            requests: self.core.rpc.statistics().snapshot().calls(),
            events: self.core.counters.events.snapshot(),
        }
    }

    /// The counters themselves, for whoever counts on the client's behalf (its transport's events).
    #[must_use]
    pub fn live_counters(&self) -> &Arc<ClientCounters> {
        &self.core.counters
    }

    /// Requests with their bytes and times, per procedure.
    #[must_use]
    pub fn statistics(&self) -> &Statistics {
        self.core.rpc.statistics()
    }

    /// The server's PATHCONF.
    #[must_use]
    pub fn path_limits(&self) -> &Pathconf {
        &self.path_limits
    }

    /// What the server reported about itself at mount time.
    #[must_use]
    pub fn server_limits(&self) -> &Fsinfo {
        &self.server_limits
    }

    /// Bytes of the root's file handle; 0 if it is not known.
    #[must_use]
    pub fn handle_bytes(&self) -> usize {
        self.find_inode(InodeId::ROOT)
            .map_or(0, |root| root.handle().as_bytes().len())
    }

    /// The way to the server.
    #[must_use]
    pub fn wire(&self) -> &Arc<RpcClient> {
        &self.core.rpc
    }

    /// For how long a request has been waiting without any reply from the server; `None` while none
    /// waits.
    #[must_use]
    pub fn silent_for(&self) -> Option<Duration> {
        self.core.rpc.transport().silent_for()
    }

    /// How many objects, names that are there, and names that are missing are known.
    #[must_use]
    pub fn cached_counts(&self) -> (usize, usize, usize) {
        let (present, missing) = self.dentries.len();
        (self.core.registry.len(), present, missing)
    }

    /// Bytes of memory that listings take.
    #[must_use]
    pub fn listing_bytes(&self) -> u64 {
        self.listing_memory.used()
    }

    /// The data half, for bytes in memory and the end of the mount.
    #[must_use]
    pub fn data_plane(&self) -> &Arc<DataPlane> {
        &self.core.data
    }

    pub(crate) fn op_context(&self, caller: &Caller) -> OpContext {
        let identity = self.core.identities.of(caller);
        OpContext {
            server_since: self.core.server_since(),
            ..OpContext::new(identity, caller.interrupt.clone(), self.core.now())
        }
    }

    /// The inode that somebody holds a look-up of.
    pub(crate) fn find_inode(&self, id: InodeId) -> Result<Arc<Inode>, Errno> {
        if id == self.root.id() {
            return Ok(Arc::clone(&self.root));
        }
        let inode = self.looked_up.find(id).ok_or(Errno::STALE)?;
        inode.clear_looked_up();
        Ok(inode)
    }

    /// The same, if it can be a directory.
    pub(crate) fn find_directory(&self, id: InodeId) -> Result<Arc<Inode>, Errno> {
        let inode = self.find_inode(id)?;
        let kind = inode.facts().state.facts().map(|known| known.kind);
        match kind {
            Some(FileKind::Directory) | None => Ok(inode),
            Some(_) => Err(Errno::NOTDIR),
        }
    }

    /// Somebody is given a look-up of `inode`.
    pub(crate) fn hold(&self, inode: &Arc<Inode>) {
        self.looked_up.hold(inode);
    }

    pub(crate) fn count(&self, counter: ClientCounter) {
        self.core.count(counter);
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("root", &self.root)
            .finish_non_exhaustive()
    }
}
