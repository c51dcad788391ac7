//! Figures for Prometheus: a small HTTP server on a unix socket or a port of this machine.
//!
//! [`MetricsAddress`] is the address, [`MetricsListener`] listens there, `http` parses requests,
//! and `families` writes a mount's figures. Each peer has a thread. Invariants: a slow peer holds
//! one of [`PEERS_MAX`] places for seconds at most, and the memory of one answer; a new peer takes
//! the place of the oldest; no request changes anything.

mod address;
mod families;
mod http;
mod server;

pub use address::MetricsAddress;
pub use families::text;
pub use http::answer;
pub use server::{MetricsListener, MetricsServer, PEERS_MAX};
