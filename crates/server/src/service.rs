//! The service: what it is made of, and what its operator may do with it.

use std::sync::Arc;

use curt_observe::{ServerCounters, probe};
use curt_proto::{mount3, nfs3};
use curt_rpc::clock::TimeSource;
use curt_rpc::message::CALL_HEADER_MAX;
use curt_vfs::FileCacheCounters;

use crate::authorisation_cache::AuthorisationCaches;
use crate::exports::{ExportDefinition, ExportsDifference, ExportsTable, NameService, SystemNames};
use crate::file_handle::HandleKey;
use crate::mount3::RemoteMountTable;
use crate::replay::reply_cache::{ReplyCache, ReplyCacheLimits};
use crate::state::{PersistentState, StateError, random};
use crate::write_verifier::WriteVerifiers;

/// The longest record of a call that a service can execute: a WRITE of all the data that it takes,
/// with its handle, offset, count, stability, and the length of the data. All other arguments are
/// shorter.
pub const RECORD_MAX: usize = CALL_HEADER_MAX + 4 + nfs3::FILE_HANDLE_MAX + 20 + nfs3::DATA_MAX;

/// What a service is made of.
pub struct Setup {
    /// What it keeps over restarts.
    pub state: PersistentState,
    /// What it exports.
    pub exports: Vec<ExportDefinition>,
    /// Its counters.
    pub counters: Arc<ServerCounters>,
}

/// Why a service cannot be made of a [`Setup`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The state directory cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// No client could mount a path as long as this.
    #[error("the path {path} has {length} bytes; the MOUNT protocol takes {limit}", limit = mount3::PATH_MAX)]
    PathTooLong {
        /// The export's path.
        path: String,
        /// How long it is.
        length: usize,
    },
    /// Two exports with one path: clients could not tell them apart.
    #[error("{0} is exported twice")]
    Twice(String),
    /// `subtree_check` where handles have no room for it.
    #[error("{0}: the file system's handles are too long for subtree_check: use no_subtree_check")]
    NoRoomForParents(String),
    /// The threads that ask name services cannot be started.
    #[error("cannot start a thread for name services: {0}")]
    Threads(std::io::Error),
}

/// NFS version 3 with MOUNT versions 1 and 3, over any number of exports.
pub struct NfsService {
    pub(crate) key: HandleKey,
    pub(crate) exports: ExportsTable,
    state: PersistentState,
    pub(crate) write_verifiers: WriteVerifiers,
    pub(crate) remote_mounts: RemoteMountTable,
    pub(crate) counters: Arc<ServerCounters>,
    pub(crate) reply_cache: ReplyCache,
    pub(crate) authorisations: AuthorisationCaches,
    pub(crate) clock: TimeSource,
}

impl NfsService {
    /// Gives exports and file systems their lasting numbers and begins a new life (a new write
    /// verifier).
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn new(setup: Setup) -> Result<Self, SetupError> {
        Self::with_environment(setup, Box::new(SystemNames), TimeSource::System)
    }

    /// As [`Self::new`], with another name service and another clock than this machine's.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn with_environment(
        setup: Setup,
        names: Box<dyn NameService>,
        clock: TimeSource,
    ) -> Result<Self, SetupError> {
        let Setup { state, exports, counters } = setup;
        let service = Self {
            key: state.handle_key(),
            exports: ExportsTable::new(names, clock.clone()),
            reply_cache: ReplyCache::new(
                ReplyCacheLimits::default(),
                state.derived_secret("replies"),
                clock.clone(),
                Arc::clone(&counters),
            ),
            state,
            write_verifiers: WriteVerifiers::new(u64::from_ne_bytes(random()?)),
            remote_mounts: RemoteMountTable::default(),
            counters,
            authorisations: AuthorisationCaches::default(),
            clock,
        };
        service.replace_exports(exports)?;
        Ok(service)
    }

    /// Replaces the exports, at once for all requests that begin afterwards; if that fails, the old
    /// ones stay. Handles of what is no longer exported are stale. Returns what changed.
    ///
    /// To be called by no thread that serves: names may have to be resolved.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn replace_exports(&self, exports: Vec<ExportDefinition>) -> Result<ExportsDifference, SetupError> {
        let count = exports.len();
        let replaced = self.exports.replace(&self.state, exports);
        probe!(NfsdReload { entries: count, reason: if replaced.is_ok() { "replaced" } else { "refused" } });
        let difference = replaced?;
        self.authorisations.invalidate(self.exports.generation());
        Ok(difference)
    }

    /// From now on a user's groups are those that this machine knows, whatever the credential says:
    /// AUTH_SYS has room for sixteen (`--manage-gids`).
    ///
    /// # Errors
    /// The threads that ask name services cannot be started.
    pub fn manage_groups(&self) -> std::io::Result<()> {
        self.exports.manage_groups()
    }

    /// From now on saves the calls that change names or attributes and their replies in the state
    /// directory, and answers those that an earlier run saved. Does nothing where no state outlives
    /// the process.
    ///
    /// # Errors
    /// The file cannot be read or made.
    pub fn save_replies(&mut self) -> std::io::Result<()> {
        match self.state.replies_file() {
            Some(path) => self.reply_cache.save(&path, &self.state.derived_secret("saved replies")),
            None => Ok(()),
        }
    }

    /// Makes everything that was written durable: for the end of a server. Errors are logged by
    /// path.
    ///
    /// Returns whether all of it was.
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

    /// The counters of all exports' file caches, added up; none if no export has a file cache.
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

/// Refuses a path that MOUNT cannot carry.
pub(crate) fn check_path(path: &[u8]) -> Result<(), SetupError> {
    if path.len() <= mount3::PATH_MAX {
        return Ok(());
    }
    Err(SetupError::PathTooLong { path: path.escape_ascii().to_string(), length: path.len() })
}
