//! Counters and events: one table of names, units and meanings.
//!
//! What a program did is told by counters that are incremented where a decision is made, never derived afterwards. Each
//! counter has one row in one table ([`client::ClientCounter`], [`server::ServerCounter`]): its name, its unit and what
//! one count means. A [`Counters`] holds the numbers, [`Counters::snapshot`] copies them, two snapshots
//! [subtract](Snapshot::since), and a snapshot serialises as a map from name to number, so that a table printed in one
//! run can be laid beside another's.
//!
//! This crate knows no protocol, and no clock outside of [`stages`]; it must stay usable from every other one.

mod counters;

pub mod client;
pub mod procedures;
pub mod server;
pub mod stages;

pub use client::{ClientCounter, ClientCounters, ClientSnapshot};
pub use counters::{Counter, Counters, Snapshot, Unit};
pub use procedures::{PROCEDURES, ProcedureCalls, Procedures};
pub use server::{ServerCounter, ServerCounters, ServerSnapshot};
