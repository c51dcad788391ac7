//! Compounds to a server over trees in memory. `fixture` makes the server and a session. The other
//! files compare the results with RFC 8881, one file for each kind of operation.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod attributes;
mod fixture;
mod listing;
mod names;
mod object_types;
mod set;
