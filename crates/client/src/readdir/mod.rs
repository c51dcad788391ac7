//! Listings of directories, of any size and while they change.
//!
//! State, and the modules that change it:
//! - `cache`: a [`cache::DirectoryListing`] is a directory's names in the server's order, as far as
//!   they were requested, in chunks of one reply each. It grows at its end only. `memory` bounds
//!   all listings of a mount and evicts chunks; `local_changes` enters this client's own changes.
//!   The inode holds the listing of the directory's current state; one of a former state lives as
//!   long as it has readers.
//! - `cursor`: the position of an open directory, and the names that were returned to it.
//! - `fetch`: the request for the names after a listing, one at a time: a caller sends it, waits
//!   for it, or takes the reply of a read-ahead.
//!
//! `emit` returns names to a reader; `prefetch` requests further names and attributes along with
//! one, as [`curt_policy::prefetch`] decides; `names` caches names and attributes from a
//! listing with attributes, and answers for names that a complete directory does not contain.
//!
//! Invariants:
//! - A reader continues from its own cookie with the verifier that came with it, whatever expires
//!   or changes meanwhile: names that exist all the time are returned once each, and a pass sends
//!   one request with cookie 0.
//! - If a server refuses a cookie, the listing starts from the beginning, once in a pass, and skips
//!   exactly the names that were already returned (`bad_cookie`).
//! - The memory of listings is bounded for the mount; the least recently used chunks are evicted.
//! - No lock is held across a request. A listing's lock is a leaf, taken under an inode's state or
//!   by itself.

mod bad_cookie;
pub(crate) mod cache;
mod cursor;
pub(crate) mod emit;
mod fetch;
pub(crate) mod local_changes;
pub(crate) mod memory;
pub(crate) mod names;
pub(crate) mod prefetch;
mod returned_names;

use std::sync::{Arc, atomic::AtomicBool};

use cursor::ReaddirCursor;
use parking_lot::Mutex;

use crate::{api::InodeId, caller::InternedCaller, inode::Inode};

/// An open directory.
#[derive(Debug)]
pub struct OpenDirectory {
    inode: Arc<Inode>,
    identity: Arc<InternedCaller>,
    /// The directory was listed together with its open, and not read since.
    was_listed: AtomicBool,
    cursor: Mutex<ReaddirCursor>,
}

impl OpenDirectory {
    /// The directory's inode, which lives as long as the directory is open.
    #[must_use]
    pub fn id(&self) -> InodeId {
        self.inode.id()
    }
}
