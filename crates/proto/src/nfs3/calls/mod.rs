//! Arguments and results of the procedures. Listings are in `listing`.
//!
//! GETATTR takes a [`NfsFh3`](super::NfsFh3) and returns a [`Fattr`](super::Fattr). READLINK,
//! FSSTAT, FSINFO and PATHCONF take a handle as well and have no argument type.

pub(super) mod data;
pub(super) mod file_system;
pub(super) mod inode;
pub(super) mod names;
