//! Counters and events: tables of names, units and meanings.
//!
//! Counters are incremented where a decision is made, never derived afterwards. Each has one row in
//! one table ([`client::ClientCounter`], [`operations::OperationFigure`],
//! [`transport::TransportFigure`], [`server::ServerCounter`]) with its name, its unit and the
//! meaning of one count. A [`Counters`] holds the values, [`Counters::snapshot`] copies them, two
//! snapshots can be [subtracted](Snapshot::since), and a snapshot is serialised as a map from name
//! to number, so that the tables of two runs can be compared.
//!
//! [`causes`] lists the reasons why a request is sent or saved; [`scope`] attributes a thread's
//! work to a process and a cause, and counts the work in progress; [`watch`] notifies observers of
//! each request.
//!
//! [`events`] are the tracepoints.
//!
//! Of the protocols this crate depends only on the table of operations ([`Operation`]). It uses no
//! clock outside of [`stages`], [`events`], [`control`] and [`process_tree`]. All crates may use
//! it, except those of the protocols' types (`types`, `xdr`, `proto`) and of decisions (`policy`,
//! `linux-model`).

mod counters;
#[cfg(test)]
mod generated;
mod named_enum;
mod shard;

pub mod calls;
pub mod causes;
pub mod client;
pub mod control;
pub mod events;
pub mod explain;
pub mod heavy_hitters;
pub mod mountstats;
#[cfg(test)]
mod nfs4_document;
mod operation_map;
pub mod operations;
pub mod process_tree;
pub mod prometheus;
pub mod scope;
pub mod server;
pub mod stages;
pub mod transport;
pub mod watch;

pub use calls::{CallCounters, CallCounts};
pub use causes::{Cause, Rule};
pub use client::{ClientCounter, ClientCounters, ClientSnapshot};
pub use counters::{CallSnapshot, Counter, Counters, Snapshot, Unit};
pub use curt_proto::Operation;
pub use operations::{
    CompletedRequest, OperationCounters, OperationFigure, OperationSnapshot, OperationStatistics,
};
pub use server::{ServerCounter, ServerCounters, ServerSnapshot};
pub use transport::{TransportFigure, TransportReport};
pub use watch::{Watcher, Watchers};
