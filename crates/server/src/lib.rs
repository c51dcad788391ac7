//! The NFS server: dispatch, handles, exports, identities, and what each request means.
//!
//! A call comes in from `curt-rpc`, is decoded (`v3`), its handle verified, the export's rules
//! applied, the caller's identity squashed (`authorise`), and only then does a verb (`ops`) ask the
//! [`Vfs`](curt_vfs::Vfs). Invariants: nothing of the file system is touched for a handle that this
//! server did not sign; no answer names anything outside of the export its handle belongs to; why a
//! request fails is a [`Fault`](curt_types::Fault) until a protocol version has a status for it. It
//! must not know sockets, threads, or how a tree is stored.

mod authorisation_cache;
mod authorise;
mod dispatch;
mod exports;
mod file_handle;
mod identity;
mod loopback;
mod mount3;
mod ops;
mod replay;
mod request;
mod service;
mod state;
mod sys;
mod v3;
mod write_verifier;

pub use exports::{
    ClientSpec, ClientSpecError, ClientSpecKind, EXPORTS_DIRECTORY, EXPORTS_FILE, EXPORTS_MAX, ExportClient,
    ExportDefinition, ExportExplanation, ExportRules, ExportsDifference, ExportsEntry, ExportsProblem,
    FileLine, Flavor, Fsid, IpNetwork, MountPoint, NameService, OPTIONS, OptionSupport, Options,
    ParsedExports, RulesByFlavor, Severity, Squash, SystemNames, explain, read_exports,
};
pub use file_handle::have_room_for_parents;
pub use loopback::{LoopbackStep, LoopbackTransport};
pub use service::{NfsService, RECORD_MAX, Setup, SetupError};
pub use state::{PersistentState, StateError};
