//! The inodes of a mount: one per handle, and by number while somebody holds a look-up of them.
//!
//! [`InodeRegistry`] owns weak references only: what keeps an inode alive is a name in the
//! DentryCache, a look-up that somebody holds, an open file, or a running operation. Invariant: two
//! living inodes of one mount never have the same handle. Handles are found by a keyed hash of 64
//! bits, which a server cannot aim at; two handles with one hash are still told apart.
//!
//! [`LookedUpInodes`] owns the table from numbers to inodes with counted look-ups. An entry takes 8
//! bytes, and the count is in the inode: a kernel can hold look-ups of as many inodes as there are
//! names. Invariant: an inode is in the table exactly while its count is above 0.
//!
//! A kernel may ask by number for inodes of which it has given back all look-ups: its file handles
//! (name_to_handle_at(2), a server that exports the mount) hold nothing else. Such an inode is
//! found as long as it lives, which the registry knows of a bounded number: while its name is in
//! the DentryCache, or it is one of the last that were given back.

use std::{
    collections::{HashMap, VecDeque},
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use curt_types::FileHandle;
use hashbrown::HashTable;
use parking_lot::Mutex;

use super::Inode;
use crate::{core::MountCore, identity::InodeId};

/// All living inodes of one mount.
#[derive(Debug)]
pub(crate) struct InodeRegistry {
    hasher: RandomState,
    index: Mutex<InodeIndex>,
    forgotten: Mutex<Forgotten>,
    last: AtomicU64,
}

/// Numbers of inodes that live though all look-ups of them were given back, at most. They take 40
/// bytes each.
const FORGOTTEN_MAX: usize = 1 << 17;

/// Inodes of which somebody has given back all look-ups.
#[derive(Debug, Default)]
struct Forgotten {
    by_id: HashMap<InodeId, Weak<Inode>>,
    /// The same, oldest first, and some that are gone.
    order: VecDeque<InodeId>,
}

#[derive(Debug, Default)]
struct InodeIndex {
    by_hash: HashMap<u64, Weak<Inode>>,
    /// Inodes whose hash another living one had first.
    collided: Vec<Weak<Inode>>,
}

impl Default for InodeRegistry {
    fn default() -> Self {
        let last = AtomicU64::new(InodeId::ROOT.0 - 1);
        Self { hasher: RandomState::new(), index: Mutex::default(), forgotten: Mutex::default(), last }
    }
}

impl InodeRegistry {
    fn hash(&self, handle: &FileHandle) -> u64 {
        self.hasher.hash_one(handle)
    }

    /// The inode of `handle`, made if there is none.
    pub(crate) fn inode(&self, core: &Arc<MountCore>, handle: &FileHandle) -> Arc<Inode> {
        let hash = self.hash(handle);
        // An inode that is let go takes the lock below: whatever is found and not returned outlives
        // it.
        let mut passed_over = Vec::new();
        let mut known = self.index.lock();
        let first = known.by_hash.get(&hash).and_then(Weak::upgrade);
        match first {
            Some(inode) if inode.handle() == handle => inode,
            Some(other) => {
                passed_over.push(other);
                for inode in known.collided.iter().filter_map(Weak::upgrade) {
                    if inode.handle() == handle {
                        return inode;
                    }
                    passed_over.push(inode);
                }
                let made = self.make(core, handle);
                known.collided.push(Arc::downgrade(&made));
                drop(known);
                made
            }
            None => {
                let made = self.make(core, handle);
                known.by_hash.insert(hash, Arc::downgrade(&made));
                made
            }
        }
    }

    fn make(&self, core: &Arc<MountCore>, handle: &FileHandle) -> Arc<Inode> {
        let id = InodeId(self.last.fetch_add(1, Relaxed) + 1);
        Arc::new(Inode::new(id, handle.clone(), Arc::clone(core)))
    }

    /// All look-ups of `inode` were given back.
    pub(crate) fn add_forgotten(&self, inode: &Arc<Inode>) {
        inode.is_forgotten();
        let forgotten = &mut *self.forgotten.lock();
        if forgotten.by_id.insert(inode.id(), Arc::downgrade(inode)).is_some() {
            return;
        }
        forgotten.order.push_back(inode.id());
        if forgotten.order.len() > FORGOTTEN_MAX
            && let Some(oldest) = forgotten.order.pop_front()
        {
            forgotten.by_id.remove(&oldest);
        }
    }

    /// The inode of this number, if it lives and is one of the last of which all look-ups were
    /// given back.
    pub(crate) fn forgotten(&self, id: InodeId) -> Option<Arc<Inode>> {
        self.forgotten.lock().by_id.get(&id).and_then(Weak::upgrade)
    }

    /// An inode is gone of which that is so.
    pub(super) fn end_forgotten(&self, id: InodeId) {
        self.forgotten.lock().by_id.remove(&id);
    }

    /// An inode with this handle is gone.
    pub(super) fn forget(&self, handle: &FileHandle) {
        let hash = self.hash(handle);
        let mut known = self.index.lock();
        if known.by_hash.get(&hash).is_some_and(|inode| inode.strong_count() == 0) {
            known.by_hash.remove(&hash);
        }
        if !known.collided.is_empty() {
            known.collided.retain(|inode| inode.strong_count() > 0);
        }
    }

    /// How many inodes live.
    pub(crate) fn len(&self) -> usize {
        let known = self.index.lock();
        known.by_hash.len() + known.collided.len()
    }
}

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
        self.inodes.lock().find(hash, |inode| inode.id() == id).map(Arc::clone)
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
