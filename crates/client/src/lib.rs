//! The NFS client: inodes and what is known of them, and the plans that ask for the rest.

pub mod caller;
pub mod data;
pub mod environment;
pub mod identity;
pub mod plan;
pub mod threads;
