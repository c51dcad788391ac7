//! Figures for Prometheus: a small HTTP server on a unix socket or a port of this machine.
//!
//! [`Place`] is where, [`Metrics`] listens there, `http` knows the requests, `peers` those who make them, and `figures` what a
//! mount tells. One thread serves all peers. Invariants: who is slow holds a place among [`PEERS_MAX`] for seconds at
//! most, and the memory of one answer; nobody can make it wait for him; nothing that is asked changes anything.

mod figures;
mod http;
mod peers;
mod place;

pub use figures::text;
pub use http::answer;
pub use peers::{Metrics, PEERS_MAX, Serving};
pub use place::Place;
