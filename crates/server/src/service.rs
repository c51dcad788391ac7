//! The service: its parts, and the operations of its operator.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use curt_observe::{ServerCounters, probe};
use curt_proto::mount3;
use curt_proto::nfs4;
use curt_rpc::clock::TimeSource;
use curt_rpc::message::CALL_HEADER_MAX;
use curt_types::Timestamp;
use curt_vfs::{FileCacheCounters, LeaseWatcher};

use crate::authorisation_cache::AuthorisationCaches;
use crate::exports::{ExportDefinition, ExportsDifference, ExportsTable, NameService, SystemNames};
use crate::file_handle::HandleKey;
use crate::lock_service::{LockService, NfsLocks};
use crate::mount3::RemoteMountTable;
use crate::nlm::LockManager;
use crate::recalls::{WaitingCalls, WaitingFiles};
use crate::replay::reply_cache::{ReplyCache, ReplyCacheLimits, timestamp};
use crate::state::locks::LockTableOptions;
use crate::state::{ClientSummary, ServerState, StateLimits};
use crate::state_directory::{ClientRecords, PersistentState, StateError, random};
use crate::v4::CallbackThreads;
use crate::versions::Versions;
use crate::write_verifier::WriteVerifiers;

/// Maximum size of the record of a call that a service can execute: a WRITE of the maximum size
/// with what is around it in a compound of NFSv4. All calls of other programs are shorter.
pub const RECORD_MAX: usize = CALL_HEADER_MAX + COMPOUND_ROOM + nfs4::DATA_MAX;

/// The room in a compound beside the data of a WRITE.
const COMPOUND_ROOM: usize = 16 << 10;

/// An NFSv4 client and what it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientState {
    /// Its id.
    pub id: u64,
    /// How it calls itself; other than printable characters are escaped.
    pub name: String,
    /// How its implementation calls itself; empty if it does not.
    pub implementation: String,
    /// Its address.
    pub address: IpAddr,
    /// Whether it has a session.
    pub confirmed: bool,
    /// The time since its last request.
    pub idle: Duration,
    /// Number of sessions.
    pub sessions: usize,
    /// Number of opens.
    pub opens: usize,
    /// Number of files that its owners of locks have locked, each owner counted.
    pub locks: usize,
    /// Number of delegations.
    pub delegations: usize,
}

impl From<ClientSummary> for ClientState {
    fn from(client: ClientSummary) -> Self {
        Self {
            id: client.client.0,
            name: client.owner.escape_ascii().to_string(),
            implementation: client.implementation.escape_ascii().to_string(),
            address: client.peer,
            confirmed: client.is_confirmed,
            idle: client.since_renewal,
            sessions: client.sessions,
            opens: client.opens,
            locks: client.locks,
            delegations: client.delegations,
        }
    }
}

/// The parts of a service.
pub struct NfsServiceConfig {
    /// The state that it keeps over restarts.
    pub state: PersistentState,
    /// The exports.
    pub exports: Vec<ExportDefinition>,
    /// Its counters.
    pub counters: Arc<ServerCounters>,
}

/// Why a service cannot be made from a [`NfsServiceConfig`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NfsServiceError {
    /// The state directory cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// The path of an export is longer than clients can mount.
    #[error("the path {path} has {length} bytes; the MOUNT protocol takes {limit}", limit = mount3::PATH_MAX)]
    PathTooLong {
        /// The export's path.
        path: String,
        /// Its length in bytes.
        length: usize,
    },
    /// Two exports with one path, which clients could not distinguish.
    #[error("{0} is exported twice")]
    Twice(String),
    /// `subtree_check`, for which the handles of the export have no room.
    #[error("{0}: the file system's handles are too long for subtree_check: use no_subtree_check")]
    NoRoomForParents(String),
    /// The thread for what is due later about locks cannot be started.
    #[error("cannot start a thread for locks: {0}")]
    LockThread(std::io::Error),
    /// The thread that ends waits for delegations cannot be started.
    #[error("cannot start a thread for delegations: {0}")]
    DelegationThread(std::io::Error),
    /// The threads that query name services cannot be started.
    #[error("cannot start a thread for name services: {0}")]
    Threads(std::io::Error),
}

/// NFS versions 3, 4.1 and 4.2 with MOUNT versions 1 and 3, and on request NLM version 4 and NSM
/// version 1, over any number of exports.
pub struct NfsService {
    pub(crate) key: HandleKey,
    pub(crate) exports: ExportsTable,
    pub(crate) state: Arc<PersistentState>,
    pub(crate) client_records: ClientRecords,
    pub(crate) write_verifiers: WriteVerifiers,
    pub(crate) remote_mounts: RemoteMountTable,
    pub(crate) counters: Arc<ServerCounters>,
    pub(crate) reply_cache: ReplyCache,
    pub(crate) authorisations: AuthorisationCaches,
    /// Byte-range locks, for NLM and for NFSv4.
    pub(crate) locks: Arc<LockService>,
    pub(crate) lock_manager: Arc<LockManager>,
    pub(crate) clock: TimeSource,
    pub(crate) versions: Versions,
    /// The state of NFSv4 clients, and the share reservations of all versions.
    pub(crate) held: ServerState,
    /// The calls that wait for delegations to be returned.
    pub(crate) waiting_calls: Arc<WaitingCalls>,
    /// Reports processes of this machine that want to write files with delegations; none if they
    /// do not matter.
    pub(crate) lease_watcher: OnceLock<LeaseWatcher>,
    /// This service, for callbacks that come later.
    pub(crate) this: OnceLock<Weak<Self>>,
    /// Whether delegations need leases of the kernel (`--local-leases`).
    pub(crate) uses_leases: bool,
    /// Ends the threads that call NFSv4 clients.
    pub(crate) callback_threads: OnceLock<CallbackThreads>,
    /// Whether delegations are granted (`--no-delegations`).
    grants_delegations: bool,
    /// Whether directories have delegations (`--directory-delegations`).
    grants_directory_delegations: bool,
    /// The server in EXCHANGE_ID: the same after a restart with the same handles.
    pub(crate) server_owner: [u8; 16],
    started: Instant,
    /// The last time at which an earlier run is known to have noticed changes of delegated files.
    noticed_until: Option<Timestamp>,
    /// The lease of the last run, which NFSv4 clients know; or of this one, if there was none.
    pub(crate) last_lease: Duration,
}

impl NfsService {
    /// Assigns exports and file systems their stable numbers and begins a new run with a new write
    /// verifier.
    ///
    /// # Errors
    /// [`NfsServiceError`].
    pub fn new(setup: NfsServiceConfig) -> Result<Self, NfsServiceError> {
        Self::with_environment(setup, Box::new(SystemNames), TimeSource::System)
    }

    /// As [`Self::new`], with the given name service and clock instead of this machine's.
    ///
    /// # Errors
    /// [`NfsServiceError`].
    pub fn with_environment(
        setup: NfsServiceConfig,
        names: Box<dyn NameService>,
        clock: TimeSource,
    ) -> Result<Self, NfsServiceError> {
        let NfsServiceConfig { state, exports, counters } = setup;
        let state_secret = state.derived_secret("sessions");
        let server_owner = state.derived_secret("server owner");
        let locks = Arc::new(LockService::new(LockTableOptions::default()));
        let held = ServerState::new(
            StateLimits::default(),
            u32::from_ne_bytes(random()?),
            &state_secret,
            Arc::clone(locks.grace()),
            Some(Box::new(NfsLocks { service: Arc::clone(&locks), clock: clock.clone() })),
        );
        let last_lease = held.lease();
        let noticed_until = state.changes_noticed_until().map(timestamp);
        let waiting_calls = Arc::<WaitingCalls>::default();
        held.delegations.observe(Box::new(WaitingFiles(Arc::clone(&waiting_calls))));
        let service = Self {
            key: state.handle_key(),
            exports: ExportsTable::new(names, clock.clone()),
            reply_cache: ReplyCache::new(
                ReplyCacheLimits::default(),
                state.derived_secret("replies"),
                clock.clone(),
                Arc::clone(&counters),
            ),
            state: Arc::new(state),
            client_records: ClientRecords::default(),
            write_verifiers: WriteVerifiers::new(u64::from_ne_bytes(random()?)),
            remote_mounts: RemoteMountTable::default(),
            counters,
            authorisations: AuthorisationCaches::default(),
            held,
            waiting_calls,
            lease_watcher: OnceLock::new(),
            this: OnceLock::new(),
            uses_leases: true,
            callback_threads: OnceLock::new(),
            grants_delegations: true,
            grants_directory_delegations: false,
            server_owner,
            started: clock.now(),
            noticed_until,
            last_lease,
            lock_manager: Arc::default(),
            locks,
            clock,
            versions: Versions::default(),
        };
        service.replace_exports(exports)?;
        Ok(service)
    }

    /// Whether a file with this ctime may have been changed since the run that delegated it ended.
    /// Some file systems keep whole seconds, or every other.
    pub(crate) fn may_be_changed_unnoticed(&self, ctime: Timestamp) -> bool {
        self.noticed_until.is_none_or(|until| match ctime.parts() {
            (seconds, 0) => seconds + 2 > until.seconds(),
            _ => ctime >= until,
        })
    }

    /// The time for which hosts of NLM reclaim locks after a restart, unless another is given: as
    /// long as NFSv4 clients do. To be called after [`Self::recover_clients`].
    #[must_use]
    pub const fn default_grace(&self) -> Duration {
        self.last_lease
    }

    /// Replaces the exports atomically for all later requests; on an error the old ones stay.
    /// Handles of removed exports are stale. Returns the changes.
    ///
    /// A serving thread must not call it: it may wait for name services.
    ///
    /// # Errors
    /// [`NfsServiceError`].
    pub fn replace_exports(
        &self,
        exports: Vec<ExportDefinition>,
    ) -> Result<ExportsDifference, NfsServiceError> {
        let count = exports.len();
        let replaced = self.exports.replace(&self.state, exports);
        probe!(NfsdReload { entries: count, reason: if replaced.is_ok() { "replaced" } else { "refused" } });
        let difference = replaced?;
        self.authorisations.invalidate(self.exports.generation());
        self.revoke_unexported();
        Ok(difference)
    }

    /// Uses the groups of this machine's user database from now on, whatever the credential
    /// contains: AUTH_SYS has room for sixteen (`--manage-gids`).
    ///
    /// # Errors
    /// The threads that query name services cannot be started.
    pub fn manage_groups(&self) -> std::io::Result<()> {
        self.exports.manage_groups()
    }

    /// Holds the locks of clients in the kernel as well from now on, so that they and processes of
    /// this machine exclude each other (`--kernel-locks`). To be called before requests.
    pub fn use_kernel_locks(&self) {
        self.locks.use_kernel_locks();
    }

    /// Saves the calls that change names or attributes and their replies in the state directory
    /// from now on, and answers calls that an earlier run saved. Does nothing if the state is in
    /// memory.
    ///
    /// # Errors
    /// The file cannot be read or created.
    pub fn save_replies(&mut self) -> std::io::Result<()> {
        match self.state.replies_file() {
            Some(path) => self.reply_cache.save(&path, &self.state.derived_secret("saved replies")),
            None => Ok(()),
        }
    }

    /// The time since this service was made, by which leases are counted.
    pub(crate) fn uptime(&self) -> Duration {
        self.clock.now().saturating_duration_since(self.started)
    }

    /// Answers these versions of NFS from now on.
    pub fn set_versions(&mut self, versions: Versions) {
        self.versions = versions;
    }

    /// Sets the time for which an NFSv4 client keeps its state without a request (`--lease`).
    pub fn set_lease(&mut self, lease: Duration) {
        self.held.set_lease(lease);
    }

    /// Whether to grant delegations. They are granted only once callbacks are served.
    pub fn set_delegations(&mut self, are_granted: bool) {
        self.grants_delegations = are_granted;
    }

    /// Whether to grant delegations of directories, too. The kernel does not report changes by
    /// processes of this machine: they must make none.
    pub fn set_directory_delegations(&mut self, are_granted: bool) {
        self.grants_directory_delegations = are_granted;
    }

    /// Whether delegations of directories are granted, and can be recalled.
    pub(crate) fn grants_directory_delegations(&self) -> bool {
        self.grants_directory_delegations && self.waiting_calls.can_recall()
    }

    /// Whether a delegation needs a lease of the kernel, so that it is recalled before a process of
    /// this machine writes the file. To be called before callbacks are served.
    pub fn set_local_leases(&mut self, are_used: bool) {
        self.uses_leases = are_used;
    }

    /// Whether delegations are granted, and can be recalled.
    pub(crate) fn grants_delegations(&self) -> bool {
        self.grants_delegations && self.waiting_calls.can_recall()
    }

    /// The NFSv4 clients and what they hold.
    #[must_use]
    pub fn clients(&self) -> Vec<ClientState> {
        self.held.clients(self.uptime()).into_iter().map(ClientState::from).collect()
    }

    /// Makes all written data durable, at the end of a server. Errors are logged with their paths.
    ///
    /// Returns whether all data are durable.
    pub fn sync_all(&self) -> bool {
        let mut all = true;
        for export in self.exports.current().iter() {
            if let Err(error) = export.vfs.sync_all() {
                let path = export.path().escape_ascii();
                tracing::error!(%path, %error, "written data could not be made durable");
                all = false;
            }
        }
        all
    }

    /// The sum of the counters of all exports' file caches; none if no export has a file cache.
    #[must_use]
    pub fn file_cache(&self) -> Option<FileCacheCounters> {
        let exports = self.exports.current();
        let counters = exports.iter().filter_map(|export| export.vfs.file_cache());
        counters.reduce(|one, other| one.and(&other))
    }

    /// The exported paths.
    #[must_use]
    pub fn export_paths(&self) -> Vec<String> {
        let exports = self.exports.current();
        exports.iter().map(|export| export.path().escape_ascii().to_string()).collect()
    }
}

impl Drop for NfsService {
    fn drop(&mut self) {
        self.waiting_calls.end();
    }
}

/// Refuses a path that is too long for MOUNT.
pub(crate) fn check_path(path: &[u8]) -> Result<(), NfsServiceError> {
    if path.len() <= mount3::PATH_MAX {
        return Ok(());
    }
    Err(NfsServiceError::PathTooLong { path: path.escape_ascii().to_string(), length: path.len() })
}
