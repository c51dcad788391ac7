//! The control socket of a mount or a server: statistics, options in force, events, and changes at
//! run time.
//!
//! Each daemon listens on `PID.socket` (a mount) or `PID.server` in its user's directory. A command
//! and its reply are one line of JSON each; a peer that sends nothing for a second, or more than 64
//! KiB, is disconnected. A daemon registers its commands ([`ControlCommands::on`]); [`call`] sends
//! one. Only root and the daemon's own user can use the socket, because it shows which files
//! programs use.

mod client;
mod difference;
mod directory;
mod event_stream;
mod messages;
pub mod metrics;
pub mod mountstats;
mod request_origins;
mod server;
mod server_report;

pub use client::{ControlError, MOUNT_SOCKET, call, call_all, call_keeping_connection, find, list};
pub use difference::ReportContinuity;
pub use directory::directory;
pub use event_stream::{EventStream, ObjectPath, keep_ring};
pub use messages::{
    ControlCommand, ControlReply, DrawGraph, EndExplanation, Explain, LockRow, LocksReport, MemoryUsage,
    MountActivity, MountReport, Remount, ReportLocks, ReportMount, ReportServer, ReportServerLocks,
    ServerCapabilities, ServerLockRow, ServerLocksReport, SetStages, WatchEvents, WatchMount,
};
pub use request_origins::{RequestOrigin, RequestOriginCounter, RequestOrigins};
pub use server::{ControlCommands, ControlSocket};
pub use server_report::{FILE_CACHE_MOMENTS, ServerReport};
