//! Code for both ends of a connection: calls that wait for their replies, and services that execute
//! calls.
//!
//! A connection carries calls in both directions (RFC 8881 section 2.10.3.1). The end that opened
//! the connection is in [`crate::client`], the end that accepted it in [`crate::server`]. Each has
//! a table of the calls that it sent, and may have a [`CallHandler`] for calls that it receives.
//! The message type (CALL or REPLY) selects between the two; the xids of the two directions are
//! independent (`docs/decisions/two-way-connections.md`).

pub(crate) mod answer;
pub(crate) mod arguments;
pub(crate) mod context;
pub(crate) mod pending_call;
pub(crate) mod reply;
pub(crate) mod reply_sink;
pub(crate) mod request;
pub(crate) mod sendfile;
pub(crate) mod service;
pub(crate) mod waiter;

pub use answer::CallHandler;
pub use arguments::{BulkAtEnd, BulkData, CallArguments};
pub use context::{CallContext, DeferredCall};
pub use curt_sync::{Interrupt, Wake, WakerRegistration};
pub use reply::CallReply;
pub use reply_sink::ReplySink;
pub use request::{CallError, RpcRequest};
pub use sendfile::SendfileRange;
pub use service::{Backchannel, RpcService};
