//! ONC RPC (RFC 5531): records, calls, replies, credentials, the client's connections and the
//! server's threads.
//!
//! This crate implements record marking, message headers and sockets. It does not depend on the
//! procedures of a program: arguments and results are bytes. Invariants: nothing that a peer sends
//! causes a panic, blocks a caller that does not wait for that peer, or makes this crate allocate
//! more memory than was sent and allowed.

pub mod client;
pub mod clock;
pub mod connection;
pub mod message;
pub mod record;
pub mod security;
pub mod server;

/// Credentials, verifiers and the flavors AUTH_NONE and AUTH_SYS.
pub mod auth {
    pub use crate::security::{
        auth::*,
        credential::{AuthSysCredential, ContextCredential, MachineName, RpcCredential},
    };
}
