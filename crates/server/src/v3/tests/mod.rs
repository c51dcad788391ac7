//! Calls to a server over a tree in memory with a fixed clock. `fixture` makes both. The other
//! files compare the replies with RFC 1813, one file for each kind of procedure.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod attributes;
mod data;
mod exports;
mod fixture;
mod handles;
mod hostile;
mod interrupted;
mod listing;
mod name_services;
mod names;
mod permissions;
mod statuses;
