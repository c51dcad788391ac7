//! Listing directories, of any size and while they change.
//!
//! A directory keeps the names that it was last listed with (a [`Sequence`]), for those who list it while it does not change. An
//! open directory has a pass: the sequence that it reads, where in it, and what it was told. What always holds:
//!
//! - A reader goes on from its own cookie with the verifier that came with it, whatever expires or changes meanwhile: names that
//!   are there all the time are told once each, and a pass sends one request with cookie 0.
//! - A server that refuses a cookie is asked from the beginning once in a pass, and what was told is left out, exactly.
//! - What listings take of memory is bounded for the mount; what was not used for longest goes.
//! - No lock is held across a request.
//!
//! `asking` and `fetch` send, `filling` and `refreshing` ask for the names of a directory because one is wanted, `absence` answers for those that it does not have,
//! `ahead` is waiting for what was sent, `reading` tells, `patch` enters changes of our own.

mod absence;
mod ahead;
mod asking;
mod beside;
mod chunk;
mod circle;
mod fetch;
mod filling;
mod growing;
mod memory;
mod pass;
mod patch;
mod places;
mod priming;
mod reading;
mod refreshing;
mod sequence;
mod told;

use std::sync::Arc;

use curt_policy::Rights;
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::{
    client::Client,
    credentials::Identity,
    identity::{Caller, InodeId},
    inode::Inode,
};
pub(crate) use filling::Filled;
pub(crate) use memory::ListingMemory;
use pass::Pass;
pub(crate) use patch::{OwnChange, Says};
pub(crate) use sequence::Sequence;
use sequence::ServerPlace;

/// An open directory.
#[derive(Debug)]
pub struct OpenDirectory {
    inode: Arc<Inode>,
    identity: Arc<Identity>,
    pass: Mutex<Pass>,
}

impl OpenDirectory {
    /// The directory's inode. It is kept as long as the directory is open.
    #[must_use]
    pub fn id(&self) -> InodeId {
        self.inode.id()
    }
}

impl Client {
    /// Opens a directory to be listed. It is closed by letting go of it, which calls off what was asked for ahead of its reader.
    ///
    /// # Errors
    /// EACCES, ENOTDIR; those of ACCESS and GETATTR.
    pub fn opendir(&self, caller: &Caller, id: InodeId) -> Result<OpenDirectory, Errno> {
        let inode = self.held_directory(id)?;
        let asked = self.asked(caller);
        let intent = curt_policy::OpenIntent {
            read: true,
            ..curt_policy::OpenIntent::default()
        };
        debug_assert_eq!(intent.needs(), Rights::READ, "listing takes the right to read");
        self.decide_open(&asked, &inode, intent)?;
        let identity = Arc::clone(&asked.identity);
        let nothing = Sequence::new(&self.listing_memory, ServerPlace::default());
        Ok(OpenDirectory {
            inode,
            identity,
            pass: Mutex::new(Pass::new(nothing)),
        })
    }
}
