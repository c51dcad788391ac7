//! Compounds to a server over trees in memory. `fixture` makes the server, a session and objects of
//! all types; `test_client` several clients of servers with any exports. The other files compare
//! the results with RFC 8881, one file for each kind of operation.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod attributes;
mod compounds;
mod conformance;
mod creations;
mod delegations;
mod delegations_in_grace;
mod fixture;
mod limits;
mod listing;
mod lock_callbacks;
mod lock_peers;
mod locks;
mod names;
mod object_types;
mod opens;
mod pseudo;
mod sessions;
mod set;
mod shared_locks;
mod state_rows;
mod test_client;
mod valid_errors;
mod wrong_arguments;
