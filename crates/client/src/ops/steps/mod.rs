//! Steps of operations that are no system call of their own.

pub(crate) mod open_retry;
pub(crate) mod retransmitted;
pub(crate) mod server_open;
pub(crate) mod siblings;
pub(crate) mod silly_rename;
