//! What clients hold at the server: byte-range locks of any protocol version, and the clients,
//! sessions and opens of NFSv4.
//!
//! The modules are state machines. They have no clock and no I/O; both are arguments.

pub mod locks;
