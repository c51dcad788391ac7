//! ONC RPC (RFC 5531): records, calls, replies, credentials; what both ends of a connection have in
//! common; the client's connections and the server's threads.
//!
//! Owns framing, message headers and the sockets below them. Must not know any program's
//! procedures: arguments and results are bytes here. Invariants: nothing that a peer sends panics,
//! hangs a caller that is not waiting for that peer, or makes this crate keep more memory than what
//! was sent and allowed.

pub mod client;
pub mod clock;
pub mod connection;
pub mod message;
pub mod record;
pub mod security;
pub mod server;

pub use security::auth;
