//! Listing directories, of any size and while they change.
//!
//! A directory keeps the names of its last listing (a [`DirectoryListing`]), for readers that list
//! it while it does not change. An open directory has a pass: the sequence that it reads, its
//! position, and the names that were returned. Invariants:
//!
//! - A reader continues from its own cookie with the verifier that came with it, whatever expires
//!   or changes meanwhile: names that exist all the time are returned once each, and a pass sends
//!   one request with cookie 0.
//! - If a server refuses a cookie, the listing starts from the beginning, once in a pass, and
//!   leaves out exactly the names that were already returned.
//! - The memory of listings is bounded for the mount; the least recently used are evicted.
//! - No lock is held across a request.
//!
//! `asking` and `fetch` send requests; `filling` and `refreshing` request a directory's names
//! because one is wanted; `absence` answers for names that a directory does not have; `ahead` waits
//! for requests; `reading` returns names to the reader; `patch` enters this client's own changes.

mod absence;
mod chunk;
mod cookie_loop;
mod cursor;
mod directory_listing;
mod emit;
mod extend;
mod fetch;
mod fill;
mod fill_around_name;
mod in_flight;
mod local_changes;
mod memory;
mod priming;
mod refresh;
mod request;
mod returned_names;
mod state;

use std::sync::Arc;

use curt_types::Access;
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::{
    client::Client,
    credentials::InternedCaller,
    identity::{Caller, InodeId},
    inode::Inode,
};
use cursor::ReaddirCursor;
pub(crate) use directory_listing::DirectoryListing;
use directory_listing::ReaddirCookie;
pub(crate) use fill::FillOutcome;
pub(crate) use local_changes::{LocalChange, NamePresence};
pub(crate) use memory::ListingMemory;

/// An open directory.
#[derive(Debug)]
pub struct OpenDirectory {
    inode: Arc<Inode>,
    identity: Arc<InternedCaller>,
    cursor: Mutex<ReaddirCursor>,
}

impl OpenDirectory {
    /// The directory's inode. It is kept as long as the directory is open.
    #[must_use]
    pub fn id(&self) -> InodeId {
        self.inode.id()
    }
}

impl Client {
    /// Opens a directory for listing. Dropping it closes it, which cancels a request that was sent
    /// ahead of its reader.
    ///
    /// # Errors
    /// EACCES, ENOTDIR; those of ACCESS and GETATTR.
    pub fn opendir(&self, caller: &Caller, id: InodeId) -> Result<OpenDirectory, Errno> {
        let inode = self.find_directory(id)?;
        let asked = self.op_context(caller);
        let intent = curt_policy::OpenIntent {
            read: true,
            ..curt_policy::OpenIntent::default()
        };
        debug_assert_eq!(intent.needs(), Access::READ, "listing takes the right to read");
        self.decide_open(&asked, &inode, intent)?;
        let identity = Arc::clone(&asked.identity);
        let nothing = DirectoryListing::new(&self.listing_memory, ReaddirCookie::default());
        Ok(OpenDirectory {
            inode,
            identity,
            cursor: Mutex::new(ReaddirCursor::new(nothing)),
        })
    }
}
