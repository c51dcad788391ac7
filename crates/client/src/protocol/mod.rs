//! Plans: the requests that carry out an intent of the client, and their replies in the client's
//! own types.
//!
//! Owns the boundary between protocol and client: of a protocol version's wire types only handles,
//! verifiers and statuses pass it. `v3` has one function per NFSv3 procedure (RFC 1813 §3.3); a
//! later `v4` would send one compound for the same intent and return the same [`values`].
//! Invariants: whatever a server sends becomes a value or an error, never a panic; `sent_at` of an
//! [`Answer`] was taken before its first transmission. Must not know inodes or caches.

pub mod rpc_client;
pub mod statistics;
pub mod v3;
pub mod values;

pub use rpc_client::{RpcCaller, RpcClient};
pub use statistics::{CompletedRequest, OperationFigure, Statistics};
pub use values::*;
