//! The NFS protocols: wire types, and tables of procedures and statuses.
//!
//! RFC 1813 (NFSv3, MOUNT v3 and NLM v4), RFC 8881 (NFSv4.1), XNFS (NSM) and RFC 1833 (portmap,
//! rpcbind), in both directions. Invariants: values beyond a limit of the protocol cannot be
//! constructed, and are rejected when decoded; decoding borrows names and data from the message.
//! This crate does not depend on transports, caches, or errno.

pub mod mount3;
pub mod nfs3;
pub mod nfs4;
pub mod nlm4;
pub mod nsm;
pub mod portmap;

mod operation;

pub use operation::Operation;
