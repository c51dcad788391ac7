//! The client of one mount.
//!
//! Owns the root, the counted look-ups, the names, and the common beginning of all operations. Each
//! operation is a method in the file of its concept; none holds a mutex across a request.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use curt_observe::{ClientCounter, ClientCounters, ClientSnapshot};
use curt_policy::CacheOptions;
use curt_rpc::client::Interrupt;
use curt_types::{FileHandle, FileKind};
use rustix::io::Errno;

use crate::{
    api::{FileSystemStatistics, InodeEventFields, InodeStat},
    caller::RpcSecurity,
    config::{ClientOptions, Environment},
    core::{MountCore, MountCoreParts},
    credentials::CallerInterner,
    data::{DataPlane, UnsentData},
    dentry_cache::DentryCache,
    environment::Background,
    errno,
    identity::{Caller, InodeId},
    inode::{Inode, LookedUpInodes, SingleFlight},
    last_found::LastFound,
    open_unlink::NameLocks,
    protocol::{Fsinfo, Pathconf, Protocol, RpcCaller, RpcClient},
    readdir::ListingMemory,
    sillyrename::SillyDirectories,
    softreval::SoftRevalidation,
    stale_open::StaleOpenRetries,
    statfs::FsstatCache,
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
/// Each [`crate::FoundInode`] that is returned counts as one look-up of its inode, which keeps the
/// inode's number valid until it is given back ([`Superblock::forget`]).
pub struct Superblock {
    pub(crate) core: Arc<MountCore>,
    pub(crate) dentries: DentryCache,
    pub(crate) root: Arc<Inode>,
    pub(crate) server_limits: Fsinfo,
    pub(crate) path_limits: Pathconf,
    pub(crate) fsstat: FsstatCache,
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

/// Components of a path that is told: names can be kept in a circle while directories are moved
/// about.
const DEPTH_MAX: usize = 256;

impl Superblock {
    /// A mounted export whose root handle is known; `protocol` asks its server, with credentials
    /// as `security` says.
    ///
    /// # Errors
    /// The root's attributes cannot be had.
    pub fn new(
        root: &MountedRoot,
        protocol: Arc<dyn Protocol>,
        security: RpcSecurity,
        behaviour: &ClientOptions,
        environment: &Environment,
    ) -> Result<Self, Errno> {
        let counters = Arc::new(ClientCounters {
            watchers: Arc::clone(protocol.rpc().watchers()),
            ..ClientCounters::default()
        });
        let identities = CallerInterner::new(security);
        let us = identities.of(&Caller::new(0, 0, &[]));
        let never = Interrupt::never();
        let asker = RpcCaller { credential: &us.credential, interrupt: &never };
        let answer = protocol.attributes(asker, &root.handle).map_err(errno::of_call)?;
        let attributes = answer.outcome.map_err(errno::of_fault)?;
        let clock = Arc::clone(&environment.clock);
        let plane = DataPlane::new(
            Arc::clone(&protocol),
            behaviour.data,
            Arc::clone(&counters),
            Arc::clone(&clock),
            Arc::clone(&environment.background),
        );
        let patience = behaviour.soft_revalidation.map(|limit| {
            SoftRevalidation::new(limit, Arc::clone(&clock), Arc::clone(&environment.background))
        });
        let core = MountCore::new(MountCoreParts {
            protocol,
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
            fsstat: FsstatCache::new(root.path_limits.longest_name()),
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
            requests: self.core.protocol.rpc().statistics().snapshot().calls(),
            events: self.core.counters.events.snapshot(),
        }
    }

    /// The counters themselves, for whoever counts on the client's behalf (its transport's events).
    #[must_use]
    pub fn live_counters(&self) -> &Arc<ClientCounters> {
        &self.core.counters
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
        self.find_inode(InodeId::ROOT).map_or(0, |root| root.handle().as_bytes().len())
    }

    /// The way to the server.
    #[must_use]
    pub fn wire(&self) -> &Arc<RpcClient> {
        self.core.protocol.rpc()
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

    /// Writes all that is unwritten, for at most `limit`; returns what had to be given up. Nothing
    /// can be written afterwards.
    pub fn sync_all(&self, limit: Duration) -> Vec<UnsentData> {
        self.name_by_paths(self.core.data.sync_all(limit))
    }

    /// Writes what is unwritten now, for at most `limit`. Unlike after [`Superblock::sync_all`],
    /// everything goes on.
    pub fn write_all(&self, limit: Duration) {
        self.core.data.write_all(limit);
    }

    /// What is not on the server's disk at this moment.
    #[must_use]
    pub fn unwritten(&self) -> Vec<UnsentData> {
        self.name_by_paths(self.core.data.unwritten())
    }

    fn name_by_paths(&self, files: Vec<UnsentData>) -> Vec<UnsentData> {
        let named = files.into_iter().map(|file| {
            let inode = self.core.registry.inode(&self.core, &file.handle);
            match self.path(inode.id()) {
                Some(path) => UnsentData { label: path.escape_ascii().to_string(), ..file },
                None => file,
            }
        });
        named.collect()
    }

    /// A path from the mount's root to an object, as far as the names on it are still known.
    #[must_use]
    pub fn path(&self, id: InodeId) -> Option<Vec<u8>> {
        let mut names = Vec::new();
        let mut at = id;
        while at != self.root() {
            let (directory, name) = self.dentries.origin(at)?;
            names.push(name);
            at = directory;
            if names.len() > DEPTH_MAX {
                return None;
            }
        }
        names.reverse();
        Some([b"/".as_slice(), &names.join(&b'/')].concat())
    }

    /// The last known attributes of `id`, however old, without any request: for a server that does
    /// not answer.
    #[must_use]
    pub fn last_attributes(&self, id: InodeId) -> Option<InodeStat> {
        let attributes = self.find_inode(id).ok()?.attributes()?;
        Some(InodeStat { attributes, valid: Duration::ZERO })
    }

    /// The fields of events about `id`, without any request; all zero if it is unknown.
    #[must_use]
    pub fn event_fields(&self, id: InodeId) -> InodeEventFields {
        self.find_inode(id).map_or_else(|_| InodeEventFields::default(), |inode| inode.event_fields())
    }

    /// Whoever asks is a kernel: it looks a name up before it makes it.
    pub fn serves_kernel(&self) {
        // Relaxed: who reads the old value answers as if the look-up had come before.
        self.core.serves_kernel.store(true, Relaxed);
    }

    /// Whether whoever asks is a kernel.
    pub(crate) fn serves_a_kernel(&self) -> bool {
        self.core.serves_kernel.load(Relaxed)
    }

    /// The last answer of [`crate::ops::statfs`], however old, if that was about the file system
    /// that `id` is in, and else zeros; without any request: for a server that does not answer.
    #[must_use]
    pub fn last_statistics(&self, id: InodeId) -> FileSystemStatistics {
        let fsid = self.find_inode(id).ok().and_then(|inode| inode.fsid());
        self.fsstat.last(fsid)
    }

    pub(crate) fn count(&self, counter: ClientCounter) {
        self.core.count(counter);
    }
}

impl fmt::Debug for Superblock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Superblock").field("root", &self.root).finish_non_exhaustive()
    }
}
