//! A mount's control socket: its figures, the options in force, and changes of options at run time.
//! A server's socket is made and queried in the same way ([`listen_at`], [`exchange`]), with a
//! protocol of its own.
//!
//! Each daemon listens on `PID.socket` in the directory of its user. Questions and answers are one
//! line of JSON each; a peer that sends nothing for a second, or more than 64 KiB, is disconnected.
//! Only root and the daemon's own user can reach the socket, because it shows what programs ask
//! for.

mod client;
mod difference;
mod directory;
mod event_stream;
mod messages;
pub mod metrics;
pub mod mountstats;
mod request_origins;
mod server;

pub use client::{ControlError, ask, exchange, exchange_keeping_connection, find, list, watch};
pub use difference::ReportContinuity;
pub use directory::directory;
pub use event_stream::{EventStream, ObjectPath, keep_ring};
pub use messages::{
    MemoryUsage, MountActivity, MountControlReply, MountControlRequest, MountReport, ServerCapabilities,
};
pub use request_origins::{RequestOrigin, RequestOriginCounter, RequestOrigins};
pub use server::{
    ControlSocket, ControlTarget, RemountError, ReplyThenEvents, answer, check_owner, listen, listen_at,
};
