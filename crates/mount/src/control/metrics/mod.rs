//! Figures for Prometheus: a small HTTP server on a unix socket or a port of this machine.
//!
//! [`Place`] is the address, [`Metrics`] listens there, `http` parses requests, `peers` holds the connections, and `figures` writes
//! a mount's figures. One thread serves all peers. Invariants: a slow peer holds one of [`PEERS_MAX`] places for seconds at
//! most, and the memory of one answer; no peer can make the thread wait; no request changes anything.

mod figures;
mod http;
mod peers;
mod place;

pub use figures::text;
pub use http::answer;
pub use peers::{Metrics, PEERS_MAX, Serving};
pub use place::Place;
