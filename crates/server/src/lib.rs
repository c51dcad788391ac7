//! The NFS server: dispatch, handles, exports, identities and one file per procedure.
//!
//! A call comes in from `curt-rpc`, is decoded, its handle verified, the export's rules applied,
//! the caller's identity squashed, and only then is the [`Vfs`](curt_vfs::Vfs) asked. Invariants:
//! nothing of the file system is touched for a handle that this server did not sign; no answer
//! names anything outside of the export its handle belongs to; every status comes from the one
//! table in `status`. It must not know sockets, threads, or how a tree is stored.

mod attributes;
mod authorisation_cache;
mod authorise;
mod dispatch;
mod exports;
mod file_handle;
mod identity;
mod loopback;
mod mount3;
mod name;
mod reply_cache;
mod request;
mod state;
mod status;
mod sys;
mod v3;
mod write_verifier;

pub use dispatch::{NfsService, RECORD_MAX, Setup, SetupError};
pub use exports::{
    ClientSpec, ClientSpecError, ClientSpecKind, EXPORTS_DIRECTORY, EXPORTS_FILE, EXPORTS_MAX, ExportClient,
    ExportDefinition, ExportExplanation, ExportRules, ExportsDifference, ExportsEntry, ExportsProblem,
    FileLine, Flavor, Fsid, IpNetwork, MountPoint, NameService, OPTIONS, OptionSupport, Options,
    ParsedExports, RulesByFlavor, Severity, Squash, SystemNames, explain, read_exports,
};
pub use file_handle::have_room_for_parents;
pub use loopback::{LoopbackStep, LoopbackTransport};
pub use state::{PersistentState, StateError};
