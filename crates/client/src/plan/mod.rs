//! Plans: what is sent to the server for one wish of the client, and what the replies say in the client's own words.
//!
//! Owns the border between protocol and client: nothing of a protocol version's wire types passes it but handles,
//! verifiers and statuses. `v3` has one function per NFSv3 procedure (RFC 1813 §3.3); a later `v4` sends one compound for
//! the same wish and answers with the same [`values`]. Invariants: whatever a server sends becomes a value or an
//! error, never a panic; `sent_at` of an [`Answer`] was taken before its first transmission.
//! Must not know inodes, caches or what is believed of them.

pub mod statistics;
pub mod v3;
pub mod values;
pub mod wire;

pub use statistics::{EndedRequest, OperationFigure, Statistics};
pub use values::*;
pub use wire::{Asker, Wire};
