//! The client of one mount, and the context of one operation on it.
//!
//! [`Superblock`] owns the root, the counted lookups, the names, and the state that operations
//! share. The operations are functions in `ops/`; none holds a lock across a request.
//!
//! [`Op`] is created once per request. It reads the clock at its start and again after each wait.
//! Its options are those in force at its start.

use std::{
    cell::Cell,
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use curt_observe::{ClientCounter, ClientCounters, ClientSnapshot};
use curt_policy::{AccessReason, CacheOptions, MonotonicTime, access::AllowedBy, kernel_cache::wait_for};
use curt_rpc::client::Interrupt;
use curt_types::{FileHandle, FileKind};
use rustix::io::Errno;

use crate::{
    api::{FileSystemStatistics, InodeId, InodeStat},
    caller::{Caller, CallerInterner, InternedCaller, RpcSecurity},
    config::{ClientOptions, Environment},
    data::{DataPlane, UnsentData},
    dentry_cache::{DentryCache, KernelDentries},
    errno,
    event_fields::InodeEventFields,
    fsstat_cache::FsstatCache,
    inode::{
        Inode, InodeFlag, OpTime,
        registry::{InodeRegistry, LookedUpInodes},
        single_flight::InodeFlights,
    },
    locks::{MountLockReport, MountLocks},
    mount_core::MountCore,
    open_file::OpenFile,
    open_unlink::NameLocks,
    protocol::{DelegationEvents, Fsinfo, Pathconf, Protocol, RpcCaller, RpcClient},
    readdir::memory::ListingMemory,
    silly_directories::SillyDirectories,
    softreval::SoftRevalidation,
    stale_open::StaleOpenRetries,
    threads::{Background, separate},
};

/// The most threads that wait for write-back.
const AFTER_WRITEBACK_MAX: usize = 16;

/// The server's replies at mount time.
#[derive(Clone, Debug)]
pub struct MountedRoot {
    /// The handle of the mount's root.
    pub handle: FileHandle,
    /// Its FSINFO.
    pub limits: Fsinfo,
    /// Its PATHCONF.
    pub path_limits: Pathconf,
}

/// A mounted export. All methods may be called by many threads at once.
///
/// Each [`crate::FoundInode`] that is returned counts as one lookup of its inode. The inode's ID is
/// valid until all its lookups are returned ([`Superblock::forget`]).
pub struct Superblock {
    pub(crate) core: Arc<MountCore>,
    pub(crate) registry: Arc<InodeRegistry>,
    pub(crate) dentries: DentryCache,
    pub(crate) root: Arc<Inode>,
    pub(crate) server_limits: Fsinfo,
    pub(crate) path_limits: Pathconf,
    pub(crate) fsstat: FsstatCache,
    pub(crate) silly_names: AtomicU64,
    pub(crate) silly_directories: SillyDirectories,
    /// Serialises changes of one name.
    pub(crate) name_locks: NameLocks,
    /// Threads whose opens failed with ESTALE and are retried.
    pub(crate) stale_opens: StaleOpenRetries,
    /// The memory of directory listings.
    pub(crate) listing_memory: Arc<ListingMemory>,
    pub(crate) background: Arc<dyn Background>,
    /// Runs what waits for write-back, whose threads it must not take.
    pub(crate) after_writeback: Arc<dyn Background>,
    pub(crate) soft_revalidation: Option<Arc<SoftRevalidation>>,
    /// GETATTR requests in flight, which other operations may share.
    pub(crate) getattrs_in_flight: InodeFlights,
    /// Files whose copies are being dropped.
    pub(crate) drops: InodeFlights,
    /// Requests in flight for all names of a directory, which other operations may share.
    pub(crate) fills_in_flight: InodeFlights,
    pub(crate) locks: Arc<MountLocks>,
    /// Objects that the kernel finds in its own cache of names.
    pub(crate) kernel_dentries: KernelDentries,
    looked_up: LookedUpInodes,
}

/// Most components of a reported path: while directories are moved, cached names can form a cycle.
const DEPTH_MAX: usize = 256;

impl Superblock {
    /// The client of an export whose root handle is known. `protocol` sends requests with
    /// credentials of flavour `security`.
    ///
    /// # Errors
    /// The error of the root's GETATTR.
    pub fn new(
        root: &MountedRoot,
        protocol: Arc<dyn Protocol>,
        security: RpcSecurity,
        behaviour: &ClientOptions,
        environment: &Environment,
    ) -> Result<Self, Errno> {
        let identities = CallerInterner::new(security);
        let us = identities.of(&Caller::new(0, 0, &[]));
        let never = Interrupt::never();
        let caller = RpcCaller { credential: &us.credential, interrupt: &never };
        let answer = protocol.attributes(caller, &root.handle).map_err(errno::of_call)?;
        let attributes = answer.outcome.map_err(errno::of_fault)?;
        let core = MountCore::new(protocol, identities, attributes.fsid, root.limits, behaviour, environment);
        let patience = behaviour.soft_revalidation.map(|limit| {
            let alarms = separate(&environment.background, 1);
            SoftRevalidation::new(limit, Arc::clone(&environment.clock), alarms)
        });
        let registry = InodeRegistry::new(Arc::clone(&core));
        let inode = registry.inode(&root.handle);
        let _ = inode.absorb(&attributes, core.moment(answer.sent_at));
        let locks = MountLocks::new(Arc::clone(&core), behaviour.locks, &environment.background);
        let events: Weak<dyn DelegationEvents> = Arc::downgrade(&registry) as Weak<dyn DelegationEvents>;
        core.protocol.report_delegations(events, core.origin());
        core.protocol.allow_delegations(behaviour.cache.uses_delegations());
        let listing_memory = ListingMemory::new(behaviour.limits.listing_bytes, Arc::clone(&core.counters));
        let held = LookedUpInodes::default();
        held.count_lookup(&inode);
        Ok(Self {
            dentries: DentryCache::new(behaviour.limits, Arc::clone(&core.counters)),
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
            after_writeback: separate(&environment.background, AFTER_WRITEBACK_MAX),
            soft_revalidation: patience,
            getattrs_in_flight: InodeFlights::default(),
            drops: InodeFlights::default(),
            fills_in_flight: InodeFlights::default(),
            locks,
            kernel_dentries: KernelDentries::default(),
            looked_up: held,
            registry,
            core,
        })
    }

    /// The root's inode.
    #[must_use]
    pub fn root(&self) -> InodeId {
        self.root.id()
    }

    /// Returns `lookups` lookups of `id`. After the last one the ID is invalid. The root's ID is
    /// always valid.
    pub fn forget(&self, id: InodeId, lookups: u64) {
        if id != self.root.id() {
            let gone = self.looked_up.release(id, lookups);
            if let Some(inode) = gone.filter(|_| self.is_used_by_kernel()) {
                self.registry.add_forgotten(&inode);
                self.looked_up.keep_forgotten(inode);
            }
        }
    }

    /// Whether a kernel may have cached a positive entry for `name` in `directory`: it has received
    /// names of the directory, and no cached information excludes this one.
    #[must_use]
    pub fn may_be_cached(&self, directory: InodeId, name: &[u8]) -> bool {
        let Some(directory) =
            self.looked_up.find(directory).filter(|held| held.has(InodeFlag::ReturnedNames))
        else {
            return false;
        };
        match self.dentries.find(directory.id(), name) {
            Some(cached) => cached.child.is_some_and(|child| child.is_held()),
            None => true,
        }
    }

    /// The options in force.
    #[must_use]
    pub fn options(&self) -> CacheOptions {
        self.core.options()
    }

    /// Replaces the options in force (remount). They apply also to data cached before.
    pub fn set_options(&self, options: CacheOptions) {
        self.core.set_options(options);
        self.core.protocol.allow_delegations(options.uses_delegations());
    }

    /// A snapshot of the counters of decisions and requests.
    #[must_use]
    pub fn counters(&self) -> ClientSnapshot {
        ClientSnapshot {
            requests: self.core.protocol.rpc().statistics().snapshot().calls(),
            events: self.core.counters.events.snapshot(),
        }
    }

    /// The counters themselves, for a user that counts events of the client's transport.
    #[must_use]
    pub fn live_counters(&self) -> &Arc<ClientCounters> {
        &self.core.counters
    }

    /// The server's PATHCONF reply.
    #[must_use]
    pub fn path_limits(&self) -> &Pathconf {
        &self.path_limits
    }

    /// The server's FSINFO reply.
    #[must_use]
    pub fn server_limits(&self) -> &Fsinfo {
        &self.server_limits
    }

    /// Length of the root's file handle in bytes; 0 if it is not known.
    #[must_use]
    pub fn handle_bytes(&self) -> usize {
        self.find_inode(InodeId::ROOT).map_or(0, |root| root.handle().as_bytes().len())
    }

    /// The RPC client.
    #[must_use]
    pub fn rpc_client(&self) -> &Arc<RpcClient> {
        self.core.protocol.rpc()
    }

    /// The numbers of cached inodes, of positive names and of negative names.
    #[must_use]
    pub fn cached_counts(&self) -> (usize, usize, usize) {
        let (present, missing) = self.dentries.len();
        (self.registry.len(), present, missing)
    }

    /// The server's implementation as it names itself, and what it refuses and is not used.
    #[must_use]
    pub fn server(&self) -> (String, Vec<&'static str>) {
        self.core.protocol.server()
    }

    /// The number of files that are delegated to this client.
    #[must_use]
    pub fn delegations(&self) -> usize {
        self.core.protocol.delegations()
    }

    /// Bytes of memory used by directory listings.
    #[must_use]
    pub fn listing_bytes(&self) -> u64 {
        self.listing_memory.used()
    }

    /// The locks that are held or waited for.
    #[must_use]
    pub fn locks(&self) -> MountLockReport {
        self.locks.report()
    }

    /// Unlocks everything that is left, for at most `limit`, and ends all requests for locks: the
    /// mount ends. After a forced unmount the kernel closes no files.
    pub fn release_locks(&self, limit: Duration) {
        self.locks.release_all(limit);
    }

    /// The data cache and writeback, for memory statistics and unmount.
    #[must_use]
    pub fn data_plane(&self) -> &Arc<DataPlane> {
        &self.core.data
    }

    /// The inode `id`, which has counted lookups; ESTALE if unknown.
    pub(crate) fn find_inode(&self, id: InodeId) -> Result<Arc<Inode>, Errno> {
        if id == self.root.id() {
            return Ok(Arc::clone(&self.root));
        }
        let inode = self.looked_up.find(id).ok_or(Errno::STALE)?;
        inode.clear(InodeFlag::LookedUp);
        Ok(inode)
    }

    /// The inode `id` if it may be a directory.
    pub(crate) fn find_directory(&self, id: InodeId) -> Result<Arc<Inode>, Errno> {
        let inode = self.find_inode(id)?;
        let kind = inode.lock().attributes.newest().map(|known| known.kind);
        match kind {
            Some(FileKind::Directory) | None => Ok(inode),
            Some(_) => Err(Errno::NOTDIR),
        }
    }

    /// Counts one lookup of `inode`.
    pub(crate) fn count_lookup(&self, inode: &Arc<Inode>) {
        self.looked_up.count_lookup(inode);
    }

    /// Writes all dirty data, for at most `limit`; returns the data that were discarded. No data
    /// can be written afterwards.
    pub fn sync_all(&self, limit: Duration) -> Vec<UnsentData> {
        self.name_by_paths(self.core.data.sync_all(limit))
    }

    /// Writes the data that are dirty now, for at most `limit`. The mount stays usable, unlike
    /// after [`Superblock::sync_all`].
    pub fn write_all(&self, limit: Duration) {
        self.core.data.write_all(limit);
    }

    /// The data that are not on the server's stable storage.
    #[must_use]
    pub fn unwritten(&self) -> Vec<UnsentData> {
        self.name_by_paths(self.core.data.unwritten())
    }

    fn name_by_paths(&self, files: Vec<UnsentData>) -> Vec<UnsentData> {
        let named = files.into_iter().map(|file| {
            let inode = self.registry.inode(&file.handle);
            match self.path(inode.id()) {
                Some(path) => UnsentData { label: path.escape_ascii().to_string(), ..file },
                None => file,
            }
        });
        named.collect()
    }

    /// A path from the mount's root to an inode, as far as the names on it are cached.
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

    /// The file handle of `id`; `None` if `id` is unknown.
    #[must_use]
    pub fn file_handle(&self, id: InodeId) -> Option<FileHandle> {
        self.find_inode(id).ok().map(|inode| inode.handle().clone())
    }

    /// The last known attributes of `id`, however old, without any request: for a server that does
    /// not respond.
    #[must_use]
    pub fn last_attributes(&self, id: InodeId) -> Option<InodeStat> {
        let attributes = self.find_inode(id).ok()?.attributes()?;
        Some(InodeStat { attributes, valid: Duration::ZERO })
    }

    /// Passes the size of a file to `renew`, which has the kernel know it, if the kernel may have a
    /// smaller one than `size`, and a process may rely on it: one that has a lock, or any without
    /// an attribute cache.
    pub fn raise_kernel_size(&self, id: InodeId, size: u64, renew: impl Fn(u64)) {
        if self.locks.is_idle() && self.core.options().attribute_cache {
            return;
        }
        let Ok(inode) = self.find_inode(id) else { return };
        if let Some(data) = inode.data_if_any().filter(|data| data.kernel_size() < size) {
            // Not `size`: the file may have been truncated since.
            data.raise_kernel_size(|| inode.attributes().map_or(0, |known| known.size), renew);
        }
    }

    /// The fields of events about `id`, without any request; all zero if `id` is unknown.
    #[must_use]
    pub fn event_fields(&self, id: InodeId) -> InodeEventFields {
        self.find_inode(id).map_or_else(|_| InodeEventFields::default(), |inode| inode.event_fields())
    }

    /// Declares that the user of the library is a kernel, which looks a name up before it creates
    /// it.
    pub fn set_used_by_kernel(&self) {
        // Relaxed: a reader of the old value acts as if its lookup had come before.
        self.core.kernel.is_used_by_kernel.store(true, Relaxed);
    }

    /// Whether the kernel may cache names. On a server that ignores case the kernel would keep
    /// entries that another spelling of the name has changed.
    pub(crate) fn grants_names(&self) -> bool {
        self.is_used_by_kernel()
            && !self.core.kernel.withholds_names(|| self.core.now())
            && !self.path_limits.case_insensitive
    }

    /// Grants the kernel no lifetimes of names for this time from now on, and lets it keep no
    /// targets of symbolic links; returns when it has none. Zero: they are granted again as the
    /// options say.
    pub fn suspend_kernel_names(&self, duration: Duration) {
        self.core.kernel.suspend_names(duration, self.core.now());
        if let Some(observer) = self.core.observer.as_ref().filter(|_| !duration.is_zero()) {
            let links = self.looked_up.filtered(|inode| inode.has_link_text());
            for link in &links {
                observer.target_changed(link.id());
            }
            // They are notified in this order.
            if let Some(last) = links.iter().map(|link| link.id()).max() {
                observer.await_target_dropped(last);
            }
        }
    }

    /// Declares that the kernel caches the targets of symbolic links until it is notified.
    pub fn set_kernel_keeps_targets(&self) {
        self.core.kernel.keeps_targets.store(true, Relaxed);
    }

    /// How long the kernel may still cache names that it was granted until now.
    #[must_use]
    pub fn kernel_names_expire_in(&self) -> Duration {
        wait_for(self.core.kernel.names_expire(), self.core.kernel_time(self.core.now()))
    }

    /// Whether the user of the library is a kernel.
    pub(crate) fn is_used_by_kernel(&self) -> bool {
        self.core.kernel.is_used_by_kernel.load(Relaxed)
    }

    /// The last reply of [`crate::ops::statfs`], however old, if it is about the file system of
    /// `id`; zeros otherwise. Sends no request: for a server that does not respond.
    #[must_use]
    pub fn last_statistics(&self, id: InodeId) -> FileSystemStatistics {
        let fsid = self.find_inode(id).ok().and_then(|inode| inode.fsid());
        self.fsstat.last(fsid)
    }

    pub(crate) fn count(&self, counter: ClientCounter) {
        self.core.count(counter);
    }

    /// Counts a grant by `by`, or by an ACCESS request that was sent for the reason `why`.
    pub(crate) fn count_allowed(&self, by: AllowedBy, why: Option<AccessReason>) {
        match (why, by) {
            (Some(AccessReason::ConfirmDenial), _) => self.count(ClientCounter::AccessDenyOverturned),
            (Some(AccessReason::Unasked | AccessReason::ForeignData), _) => {}
            (None, AllowedBy::Server) => self.count(ClientCounter::AccessHitPositive),
            (None, AllowedBy::ModeBits) => self.count(ClientCounter::AccessLocalAllow),
        }
    }

    /// An operation of `caller` that begins now.
    #[must_use]
    pub fn op(&self, caller: &Caller) -> Op<'_> {
        self.op_at(caller, self.core.now())
    }

    /// An operation that began at `began`.
    #[must_use]
    pub fn op_since(&self, caller: &Caller, began: Instant) -> Op<'_> {
        self.op_at(caller, self.core.moment(began))
    }

    /// An operation that acts through an open file as its opener, and needs nothing else of the
    /// process with the ID `pid`.
    #[must_use]
    pub fn op_through(&self, file: &OpenFile, pid: u32, interrupt: Interrupt, began: Instant) -> Op<'_> {
        self.op_as(file.opener(), pid, interrupt, self.core.moment(began))
    }

    fn op_at(&self, caller: &Caller, began: MonotonicTime) -> Op<'_> {
        self.op_as(self.core.identities.of(caller), caller.pid, caller.interrupt.clone(), began)
    }

    fn op_as(
        &self,
        identity: Arc<InternedCaller>,
        pid: u32,
        interrupt: Interrupt,
        began: MonotonicTime,
    ) -> Op<'_> {
        Op {
            pid,
            server_since: self.core.server_since(),
            now: Cell::new(Some(began)),
            ..Op::new(self, identity, interrupt, began)
        }
    }
}

impl fmt::Debug for Superblock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Superblock").field("root", &self.root).finish_non_exhaustive()
    }
}

/// Most rounds of decision and request before an operation fails.
const ROUNDS_MAX: usize = 16;

/// After this many rounds an operation uses the last reply.
const ROUNDS_BEFORE_CACHE: usize = 12;

/// One operation: its caller, its start time, and the options in force then.
pub struct Op<'a> {
    /// The mount of the operation.
    pub(crate) sb: &'a Superblock,
    /// The calling thread; 0 if there is none.
    pub(crate) pid: u32,
    pub(crate) identity: Arc<InternedCaller>,
    interrupt: Interrupt,
    pub(crate) began: MonotonicTime,
    /// When the server's last restart was detected.
    server_since: MonotonicTime,
    pub(crate) options: CacheOptions,
    /// The cached current time; cleared when a request is sent or awaited.
    now: Cell<Option<MonotonicTime>>,
    /// The server did not respond within the time of `softreval`: cached data are used.
    pub(crate) uses_cache: Cell<bool>,
}

impl<'a> Op<'a> {
    pub(crate) fn new(
        sb: &'a Superblock,
        identity: Arc<InternedCaller>,
        interrupt: Interrupt,
        began: MonotonicTime,
    ) -> Self {
        Self {
            sb,
            pid: 0,
            identity,
            interrupt,
            began,
            server_since: MonotonicTime::default(),
            options: sb.core.options(),
            now: Cell::new(None),
            uses_cache: Cell::new(false),
        }
    }

    /// The current time. The clock is read once, and again after each wait.
    pub(crate) fn now(&self) -> MonotonicTime {
        let now = self.now.get().unwrap_or_else(|| self.sb.core.now());
        self.now.set(Some(now));
        now
    }

    /// The time to compare the ends of the kernel's lifetimes of names with.
    pub(crate) fn kernel_time(&self) -> MonotonicTime {
        self.sb.core.kernel_time(self.now())
    }

    /// The times by which attributes are judged for this operation.
    pub(crate) fn time(&self) -> OpTime {
        OpTime {
            began: self.began,
            now: self.now(),
            server_since: self.server_since,
            uses_cache: self.uses_cache.get(),
        }
    }

    /// Interrupts a wait of this operation. The caller is about to wait, so the clock is read again
    /// afterwards.
    pub(crate) fn interrupt(&self) -> &Interrupt {
        self.now.set(None);
        &self.interrupt
    }

    /// The rounds of decision and request. Each round has sent a request. If attributes are still
    /// not valid after many rounds, they change faster than the client can revalidate them; the
    /// last reply is used then, since it was true after the operation began.
    pub(crate) fn rounds(&self) -> impl Iterator<Item = usize> {
        (0..ROUNDS_MAX).inspect(|round| {
            if *round == ROUNDS_BEFORE_CACHE {
                self.uses_cache.set(true);
            }
        })
    }

    /// The protocol that sends its requests.
    pub(crate) fn protocol(&self) -> &'a dyn Protocol {
        &*self.sb.core.protocol
    }

    pub(crate) fn rpc_caller(&self) -> RpcCaller<'_> {
        RpcCaller { credential: &self.identity.credential, interrupt: self.interrupt() }
    }

    /// Records the result of an operation on a path other than an open, which a kernel retries once
    /// after ESTALE.
    pub(crate) fn note_path_result<T>(&self, result: Result<T, Errno>) -> Result<T, Errno> {
        match &result {
            Err(Errno::STALE) if self.pid != 0 && self.sb.is_used_by_kernel() => {
                self.sb.stale_opens.note_path(self.pid, self.began);
            }
            _ if !self.sb.stale_opens.is_empty() => self.sb.stale_opens.end_path(self.pid),
            _ => {}
        }
        result
    }
}

impl fmt::Debug for Op<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Op").field("began", &self.began).finish_non_exhaustive()
    }
}
