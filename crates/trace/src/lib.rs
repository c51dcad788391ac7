//! Counters and events: one table of names, units and meanings.
//!
//! What a program did is told by counters that are incremented where a decision is made, never derived afterwards. Each
//! counter has one row in one table ([`client::ClientCounter`], [`operations::OperationFigure`], [`transport::TransportFigure`],
//! [`server::ServerCounter`]): its name, its unit and what one count means. A [`Counters`] holds the numbers, [`Counters::snapshot`] copies them, two snapshots
//! [subtract](Snapshot::since), and a snapshot serialises as a map from name to number, so that a table printed in one
//! run can be laid beside another's.
//!
//! Why each request was sent, and what spared one, is said in the words of [`causes`]; [`scope`] tells on whose behalf and why a
//! thread works, [`watch`] lets somebody hear of each request, [`under_way`] wait for the last.
//!
//! What happens, as it happens, is told by [`events`].
//!
//! This crate knows no protocol, and no clock outside of [`stages`] and [`events`]; it must stay usable from every other one.

mod counters;
mod shard;

pub mod causes;
pub mod client;
pub mod events;
pub mod heavy;
pub mod mountstats;
pub mod operations;
pub mod procedures;
pub mod prometheus;
pub mod scope;
pub mod server;
pub mod stages;
pub mod transport;
pub mod under_way;
pub mod watch;

pub use causes::{Cause, Rule};
pub use client::{ClientCounter, ClientCounters, ClientSnapshot};
pub use counters::{Counter, Counters, Snapshot, Unit};
pub use operations::{EndedRequest, OperationFigure, OperationSnapshot, Operations, ProcedureFigures};
pub use procedures::{PROCEDURES, ProcedureCalls, Procedures};
pub use server::{ServerCounter, ServerCounters, ServerSnapshot};
pub use transport::{TransportFigure, TransportReport};
pub use watch::{Watcher, Watchers};
