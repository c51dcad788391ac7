//! Prometheus metrics: a small HTTP server on a unix socket or a local port.
//!
//! [`MetricsAddress`] is the address, [`MetricsListener`] listens there, `http` parses requests,
//! and `mount_families` writes a mount's metrics. Each peer has a thread. Invariants: a slow peer
//! occupies one of [`PEERS_MAX`] slots for some seconds at most, and the memory of one response; a
//! new peer replaces the oldest; requests have no side effects.

mod address;
mod http;
mod listener;
mod mount_families;

pub use address::MetricsAddress;
pub use http::answer;
pub use listener::{MetricsListener, MetricsServer, PEERS_MAX};
pub use mount_families::text;
