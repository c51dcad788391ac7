//! Arguments and results of the procedures, by what they are about. Listings are in `listing`.
//!
//! GETATTR takes a [`NfsFh3`](super::NfsFh3) and returns a [`Fattr`](super::Fattr), as do
//! READLINK, FSSTAT, FSINFO and PATHCONF take a bare handle: these have no argument type of their
//! own.

pub(super) mod data;
pub(super) mod file_system;
pub(super) mod inode;
pub(super) mod names;
