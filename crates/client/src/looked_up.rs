//! Counted look-ups: an inode's number is valid as long as there are any.
//!
//! Owns the table from numbers to inodes. An entry takes 8 bytes, and the count is in the inode: a
//! kernel can hold look-ups of as many inodes as there are names. Invariant: an inode is in the
//! table exactly while its count is above 0.
//!
//! A kernel may ask by number for inodes of which it has given back all look-ups: its file handles
//! (name_to_handle_at(2), a server that exports the mount) hold nothing else. Such an inode is
//! found as long as it lives, which [`crate::inode::InodeRegistry`] knows of a bounded number:
//! while its name is in the DentryCache, or it is one of the last that were given back.

use std::{
    collections::VecDeque,
    hash::{BuildHasher, RandomState},
    sync::Arc,
};

use hashbrown::HashTable;
use parking_lot::Mutex;

use crate::{identity::InodeId, inode::Inode};

/// All inodes of a mount with counted look-ups.
#[derive(Debug, Default)]
pub(crate) struct LookedUpInodes {
    hasher: RandomState,
    inodes: Mutex<HashTable<Arc<Inode>>>,
    pub(crate) last_forgotten: LastForgotten,
}

impl LookedUpInodes {
    /// The inode of this number.
    pub(crate) fn find(&self, id: InodeId) -> Option<Arc<Inode>> {
        let hash = self.hasher.hash_one(id);
        self.inodes
            .lock()
            .find(hash, |inode| inode.id() == id)
            .map(Arc::clone)
    }

    /// Counts one more look-up.
    pub(crate) fn hold(&self, inode: &Arc<Inode>) {
        let hash = self.hasher.hash_one(inode.id());
        let mut inodes = self.inodes.lock();
        if inode.add_lookup() == 1 {
            // Whoever asks for names in it holds it.
            inode.begins_to_be_held();
            inodes.insert_unique(hash, Arc::clone(inode), |other| self.hasher.hash_one(other.id()));
        }
    }

    /// Gives back `lookups` of them. Returns the inode if those were the last.
    pub(crate) fn release(&self, id: InodeId, lookups: u64) -> Option<Arc<Inode>> {
        let hash = self.hasher.hash_one(id);
        let mut inodes = self.inodes.lock();
        let entry = inodes.find_entry(hash, |inode| inode.id() == id).ok()?;
        if entry.get().remove_lookups(lookups) > 0 {
            return None;
        }
        Some(entry.remove().0)
    }
}

/// Inodes that live for no other reason, at most. Each takes some hundred bytes.
const LAST_MAX: usize = 16_384;

/// The last inodes of which all look-ups were given back, oldest first.
#[derive(Debug, Default)]
pub(crate) struct LastForgotten(Mutex<VecDeque<Arc<Inode>>>);

impl LastForgotten {
    pub(crate) fn add(&self, inode: Arc<Inode>) {
        let mut last = self.0.lock();
        let oldest = (last.len() == LAST_MAX).then(|| last.pop_front());
        last.push_back(inode);
        drop(last);
        drop(oldest);
    }
}
