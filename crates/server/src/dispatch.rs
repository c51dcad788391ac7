//! Finds the procedure of a call. Decodes no arguments, and decides only which programs, versions
//! and procedures are served.

use std::sync::Arc;

use curt_proto::{mount3, nfs3};
use curt_rpc::auth::OpaqueAuth;
use curt_rpc::clock::TimeSource;
use curt_rpc::message::{CALL_HEADER_MAX, CallMessage, VersionRange};
use curt_rpc::server::{CallContext, CallFailure, RpcService};
use curt_trace::events::{ShortText, procedure_name};
use curt_trace::probe;
use curt_trace::stages::{self, StageTimes};
use curt_trace::{Operation, ServerCounter, ServerCounters};
use curt_vfs::FileCacheCounters;

use crate::authorisation_cache::AuthorisationCaches;
use crate::exports::{ExportDefinition, ExportsDifference, ExportsTable, NameService, SystemNames};
use crate::file_handle::HandleKey;
use crate::mount3::RemoteMountTable;
use crate::reply_cache::{self, ReplyCache, ReplyCacheLimits, ReplyTask};
use crate::request::NfsRequest;
use crate::state::{PersistentState, StateError, random};
use crate::write_verifier::WriteVerifiers;
use crate::{mount3 as mount_procedures, v3};

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
        let Setup {
            state,
            exports,
            counters,
        } = setup;
        let replies_secret = state.derived_secret("replies");
        let service = Self {
            key: state.handle_key(),
            exports: ExportsTable::new(names, clock.clone()),
            state,
            write_verifiers: WriteVerifiers::new(u64::from_ne_bytes(random()?)),
            remote_mounts: RemoteMountTable::default(),
            counters,
            reply_cache: ReplyCache::new(ReplyCacheLimits::default(), replies_secret, clock.clone()),
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
        probe!(NfsdReload {
            entries: count,
            reason: if replaced.is_ok() { "replaced" } else { "refused" }
        });
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
            Some(path) => {
                self.reply_cache
                    .save(&path, &self.state.derived_secret("saved replies"), &self.counters)
            }
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
        exports
            .iter()
            .map(|export| export.path().escape_ascii().to_string())
            .collect()
    }

    fn nfs(
        &self,
        call: &CallMessage<'_>,
        context: &mut CallContext<'_>,
        reply: &mut Vec<u8>,
    ) -> Result<(), CallFailure> {
        if call.version != nfs3::VERSION {
            let only = VersionRange {
                low: nfs3::VERSION,
                high: nfs3::VERSION,
            };
            return Err(CallFailure::ProgramMismatch(only));
        }
        let procedure =
            nfs3::NfsProcedure::from_number(call.procedure).ok_or(CallFailure::ProcedureUnavailable)?;
        let operation = Operation::Nfs3(procedure);
        self.counters.procedures.count(operation);
        stages::set_operation(operation);
        let perform = |task: ReplyTask, context: &mut CallContext<'_>, reply: &mut Vec<u8>| {
            let start = reply.len();
            let mut request = NfsRequest {
                service: self,
                credential: &call.credential,
                context,
            };
            match task {
                ReplyTask::Execute => {
                    v3::call(procedure, &mut request, call.arguments, reply)?;
                    self.count_status(procedure, reply.get(start..).unwrap_or_default());
                    Ok(())
                }
                ReplyTask::Recognise { failed, window } => {
                    v3::interrupted::recognise(procedure, failed, &mut request, call.arguments, window, reply)
                }
            }
        };
        if reply_cache::is_cached(procedure) {
            self.reply_cache
                .answer(call, context, reply, &self.counters, perform)
        } else {
            perform(ReplyTask::Execute, context, reply)
        }
    }

    /// Counts a reply that begins with an error status.
    fn count_status(&self, procedure: nfs3::NfsProcedure, results: &[u8]) {
        let Some(number) = results.first_chunk::<4>().map(|bytes| u32::from_be_bytes(*bytes)) else {
            return;
        };
        let special = match nfs3::NfsStat3::from_number(number) {
            None | Some(nfs3::NfsStat3::Ok) => return,
            Some(nfs3::NfsStat3::Stale) => Some(ServerCounter::ErrorsStale),
            Some(nfs3::NfsStat3::Badhandle) => Some(ServerCounter::ErrorsBadHandle),
            Some(nfs3::NfsStat3::Acces | nfs3::NfsStat3::Perm) => Some(ServerCounter::ErrorsAccess),
            Some(nfs3::NfsStat3::Io | nfs3::NfsStat3::Serverfault) => {
                tracing::warn!(%procedure, status = number, "the file system failed");
                Some(ServerCounter::ErrorsIo)
            }
            Some(_) => None,
        };
        self.counters.count(ServerCounter::Errors);
        if let Some(special) = special {
            self.counters.count(special);
        }
    }
}

impl RpcService for NfsService {
    fn call(
        &self,
        call: &CallMessage<'_>,
        context: &mut CallContext<'_>,
        reply: &mut Vec<u8>,
    ) -> Result<(), CallFailure> {
        let start = reply.len();
        probe!(NfsdCall {
            xid: call.xid,
            procedure: procedure_name(call.program, call.version, call.procedure).bytes(),
            uid: uid_of(&call.credential),
            peer: ShortText::of(context.peer()).bytes()
        });
        let outcome = match call.program {
            nfs3::PROGRAM => {
                self.counters.count(ServerCounter::Requests);
                self.nfs(call, context, reply)
            }
            mount3::PROGRAM => {
                self.counters.count(ServerCounter::RequestsMount);
                mount_procedures::call(self, call, context, reply)
            }
            _ => Err(CallFailure::ProgramUnavailable),
        };
        match outcome {
            Ok(()) => {}
            // It is a duplicate, and counted as such.
            Err(CallFailure::NoReply) => reply.truncate(start),
            Err(failure) => {
                self.counters.count(ServerCounter::RequestsRejected);
                reply.truncate(start);
                probe!(NfsdRejected {
                    xid: call.xid,
                    procedure: procedure_name(call.program, call.version, call.procedure).bytes(),
                    peer: ShortText::of(context.peer()).bytes(),
                    reason: ShortText::of(format_args!("{failure:?}")).bytes()
                });
            }
        }
        let results = reply.get(start..).unwrap_or_default();
        probe!(NfsdReply {
            xid: call.xid,
            procedure: procedure_name(call.program, call.version, call.procedure).bytes(),
            status: status_of(call.program, call.procedure, results),
            res: results.len()
        });
        outcome
    }

    fn stages(&self) -> Option<Arc<StageTimes>> {
        Some(Arc::clone(&self.counters.stages))
    }
}

/// The status with which results begin. Of MOUNT's procedures only MNT has one (RFC 1813, 5.2.1):
/// what DUMP and EXPORT begin with says whether a list goes on.
fn status_of(program: u32, procedure: u32, results: &[u8]) -> u32 {
    let has_one = match program {
        nfs3::PROGRAM => true,
        mount3::PROGRAM => procedure == mount3::MountProcedure::Mount as u32,
        _ => false,
    };
    let first = results.first_chunk().filter(|_| has_one);
    first.map_or(0, |status| u32::from_be_bytes(*status))
}

/// The uid in a credential; u32::MAX if it has none.
fn uid_of(credential: &OpaqueAuth<'_>) -> u32 {
    match credential {
        OpaqueAuth::Sys(sys) => sys.uid,
        OpaqueAuth::None | OpaqueAuth::Other { .. } => u32::MAX,
    }
}

/// Refuses a path that MOUNT cannot carry.
pub(crate) fn check_path(path: &[u8]) -> Result<(), SetupError> {
    if path.len() <= mount3::PATH_MAX {
        return Ok(());
    }
    Err(SetupError::PathTooLong {
        path: path.escape_ascii().to_string(),
        length: path.len(),
    })
}
