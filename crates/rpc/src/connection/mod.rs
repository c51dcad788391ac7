//! Code for both ends of a connection: calls that wait for their replies, and services that execute
//! calls.
//!
//! A connection carries calls in both directions (RFC 8881 section 2.10.3.1). The end that opened
//! the connection is in [`crate::client`], the end that accepted it in [`crate::server`]. Each has
//! a table of the calls that it sent, and may have a [`CallHandler`] for calls that it receives.
//! The message type (CALL or REPLY) selects between the two; the xids of the two directions are
//! independent (`docs/decisions/two-way-connections.md`).
//! nothing in the other. `docs/decisions/two-way-connections.md` says how.

mod answer;
mod context;
mod interrupt;
pub(crate) mod pending_call;
mod reply;
mod reply_sink;
mod request;
mod sendfile;
mod service;
pub(crate) mod waiter;

pub(crate) use answer::Answered;
pub use answer::CallHandler;
pub use context::CallContext;
pub(crate) use context::HandOverReading;
pub use interrupt::{Interrupt, Wake, WakerRegistration};
pub use reply::CallReply;
pub use reply_sink::ReplySink;
pub(crate) use reply_sink::offer;
pub use request::{CallError, RpcRequest};
pub(crate) use sendfile::SendfileOutcome;
pub use sendfile::SendfileRange;
pub use service::{Backchannel, RpcService};
