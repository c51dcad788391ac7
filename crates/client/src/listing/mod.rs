//! Listing directories.
//!
//! Owns the pages of a directory's names in the server's order. An open directory keeps the pages of its own pass, so that
//! it goes on from its own cookie and verifier and never starts again unseen; a directory keeps the pages of its last pass
//! for those who list it while it does not change. Engines for huge and changing directories take this module's place and
//! keep its entry, [`crate::Client::readdir`].

mod fetch;
mod pass;
mod reading;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use curt_policy::{NameLabel, Rights};
use curt_proto::nfs3::CookieVerifier;
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::{
    client::Client,
    credentials::Identity,
    identity::{Caller, InodeId},
    inode::Inode,
    plan::Kind,
};
use pass::Pass;

/// Names of one pass that are kept for others, and for starting again.
pub(crate) const NAMES_KEPT_MAX: usize = 65_536;

/// One name of a page.
#[derive(Debug, Clone)]
pub(crate) struct ListedEntry {
    pub(crate) name: Box<[u8]>,
    /// Unique within the mount.
    pub(crate) fileid: u64,
    pub(crate) kind: Option<Kind>,
    pub(crate) cookie: u64,
}

/// The names of one reply.
#[derive(Debug)]
pub(crate) struct Page {
    /// The cookie that it follows.
    pub(crate) after: u64,
    pub(crate) names: Vec<ListedEntry>,
    pub(crate) verifier: CookieVerifier,
    pub(crate) is_last: bool,
}

/// A whole directory, kept for those who list it next.
pub(crate) struct Listing {
    pub(crate) label: NameLabel,
    pub(crate) pages: Vec<Arc<Page>>,
    names: usize,
    /// Counts the names of all listings of the mount.
    total: Arc<AtomicUsize>,
}

impl Listing {
    pub(crate) fn new(label: NameLabel, pages: Vec<Arc<Page>>, total: &Arc<AtomicUsize>) -> Self {
        let names = pages.iter().map(|page| page.names.len()).sum();
        total.fetch_add(names, Relaxed);
        Self {
            label,
            pages,
            names,
            total: Arc::clone(total),
        }
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        self.total.fetch_sub(self.names, Relaxed);
    }
}

impl fmt::Debug for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listing")
            .field("label", &self.label)
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}

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
    /// Opens a directory to be listed. It is closed by letting go of it.
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
        Ok(OpenDirectory {
            inode,
            identity,
            pass: Mutex::default(),
        })
    }
}
