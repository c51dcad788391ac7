//! The words of the NFS protocols: wire types and one table each for procedures and statuses.
//!
//! Owns what RFC 1813 (NFSv3 and MOUNT v3) and RFC 1833 (portmap, rpcbind) put on the wire, in both
//! directions. Invariants: what does not fit a limit of the protocol cannot be built, and is
//! refused when it is decoded; decoding borrows names and data from the message. It must not know
//! transports, caches, or errno.

pub mod mount3;
pub mod nfs3;
pub mod portmap;

mod operation;

pub use operation::Operation;
