//! The NFS server: dispatch, handles, exports, identities, and the meaning of each request.
//!
//! A call comes from `curt-rpc`. It is decoded (`v3`, `v4`, `nlm`), its handle is verified, the
//! export's rules are applied and the caller's identity is squashed (`authorise`). Then a verb
//! (`ops`) calls the [`Vfs`](curt_vfs::Vfs). Invariants: no file is accessed for a handle that this
//! server did not sign; no reply names an object outside the export of its handle; the cause of a
//! failure is a [`Fault`](curt_types::Fault) until a protocol version encodes it as a status. This
//! crate does not depend on sockets or on how a tree is stored. Its threads call clients back, wake
//! waiters (`lock_service`, `v4`), and query name services (`exports`).

mod authorisation_cache;
mod authorise;
mod dispatch;
mod exports;
mod file_handle;
mod kernel_locked_files;
mod lock_report;
mod lock_service;
mod mount3;
mod nlm;
mod ops;
mod recalls;
mod recovery;
mod replay;
mod request;
mod service;
mod squash;
mod state;
mod state_directory;
mod sys;
mod v3;
mod v4;
mod versions;
mod write_verifier;

pub use exports::{
    ClientSpec, ClientSpecError, ClientSpecKind, CredentialFlavor, EXPORTS_DIRECTORY, EXPORTS_FILE,
    EXPORTS_MAX, ExportClient, ExportDefinition, ExportExplanation, ExportRules, ExportsDifference,
    ExportsEntry, ExportsProblem, FileLine, Fsid, IpNetwork, MountPoint, NameService, Options, ParsedExports,
    RulesByFlavor, Severity, Squash, SystemNames, explain, read_exports,
};
pub use file_handle::have_room_for_parents;
pub use lock_report::{ClientLock, ServerLockReport};
pub use nlm::{
    GrantId, GrantedCallOutcome, GrantedLock, HostToNotify, LockPeers, LockServing, PeerCall, PeerCallKind,
    RestartNotices,
};
pub use service::{ClientState, NfsService, NfsServiceConfig, NfsServiceError, RECORD_MAX};
pub use state::locks;
pub use state_directory::{PersistentState, StateError};
pub use versions::{UnknownVersion, Versions};
