//! The inodes of a mount: one per handle, and by ID while they have counted lookups.
//!
//! [`InodeRegistry`] owns weak references only. An inode is kept alive by a name in the dentry
//! cache, a counted lookup, an open file or a running operation. Invariant: two live inodes of one
//! mount never have the same handle. Handles are indexed by a keyed 64-bit hash, so a server cannot
//! construct collisions; colliding handles are still distinguished.
//!
//! [`LookedUpInodes`] owns the table from IDs to inodes with counted lookups. An entry takes 8
//! bytes, and the count is in the inode: a kernel can hold lookups of as many inodes as there are
//! names. Invariant: an inode is in the table if and only if its count is above 0.
//!
//! A kernel may request by ID an inode whose lookups it has all returned, because its file handles
//! (name_to_handle_at(2), an NFS server that exports the mount) contain the ID and hold no lookup.
//! Such an inode is found while it lives, that is while its name is in the dentry cache or while it
//! is among the most recently returned. The registry keeps a bounded number of their IDs.

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

use super::{Inode, InodeFlag};
use crate::{api::InodeId, mount_core::MountCore};

/// All live inodes of one mount.
pub(crate) struct InodeRegistry {
    pub(super) core: Arc<MountCore>,
    hasher: RandomState,
    index: Mutex<InodeIndex>,
    forgotten: Mutex<Forgotten>,
    last: AtomicU64,
}

/// Most IDs kept of live inodes whose lookups were all returned. Each takes 40 bytes.
const FORGOTTEN_MAX: usize = 1 << 17;

/// Inodes whose lookups were all returned.
#[derive(Debug, Default)]
struct Forgotten {
    by_id: HashMap<InodeId, Weak<Inode>>,
    /// The IDs of `by_id`, oldest first; some may be gone.
    order: VecDeque<InodeId>,
}

#[derive(Debug, Default)]
struct InodeIndex {
    by_hash: HashMap<u64, Weak<Inode>>,
    /// Inodes whose hash equals that of an earlier live inode.
    collided: Vec<Weak<Inode>>,
}

impl InodeRegistry {
    /// An empty registry. Each of its inodes holds a reference to it, and so to `core`.
    pub(crate) fn new(core: Arc<MountCore>) -> Arc<Self> {
        let last = AtomicU64::new(InodeId::ROOT.0 - 1);
        let hasher = RandomState::new();
        Arc::new(Self { core, hasher, index: Mutex::default(), forgotten: Mutex::default(), last })
    }

    fn hash(&self, handle: &FileHandle) -> u64 {
        self.hasher.hash_one(handle)
    }

    /// The inode of `handle`; created if there is none.
    pub(crate) fn inode(self: &Arc<Self>, handle: &FileHandle) -> Arc<Inode> {
        let hash = self.hash(handle);
        // The drop of an inode takes the lock below: inodes that are found but not returned are
        // dropped after it is released.
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
                let made = self.create(handle);
                known.collided.push(Arc::downgrade(&made));
                drop(known);
                made
            }
            None => {
                let made = self.create(handle);
                known.by_hash.insert(hash, Arc::downgrade(&made));
                made
            }
        }
    }

    /// The inode of `handle`, if there is one.
    pub(crate) fn find(&self, handle: &FileHandle) -> Option<Arc<Inode>> {
        let hash = self.hash(handle);
        // Dropped after the lock is released, as above.
        let mut candidates = Vec::new();
        {
            let known = self.index.lock();
            candidates.extend(known.by_hash.get(&hash).and_then(Weak::upgrade));
            candidates.extend(known.collided.iter().filter_map(Weak::upgrade));
        }
        candidates.into_iter().find(|inode| inode.handle() == handle)
    }

    fn create(self: &Arc<Self>, handle: &FileHandle) -> Arc<Inode> {
        let id = InodeId(self.last.fetch_add(1, Relaxed) + 1);
        Arc::new(Inode::new(id, handle.clone(), Arc::clone(self)))
    }

    /// Records that all lookups of `inode` were returned.
    pub(crate) fn add_forgotten(&self, inode: &Arc<Inode>) {
        inode.set(InodeFlag::Forgotten);
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

    /// The inode `id`, if it lives and its lookups were all returned recently.
    pub(crate) fn forgotten(&self, id: InodeId) -> Option<Arc<Inode>> {
        self.forgotten.lock().by_id.get(&id).and_then(Weak::upgrade)
    }

    /// Removes the ID of such an inode when the inode is dropped.
    pub(super) fn end_forgotten(&self, id: InodeId) {
        self.forgotten.lock().by_id.remove(&id);
    }

    /// Removes the handle of an inode that is dropped.
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

    /// The number of live inodes.
    pub(crate) fn len(&self) -> usize {
        let known = self.index.lock();
        known.by_hash.len() + known.collided.len()
    }
}

/// All inodes of a mount with counted lookups.
#[derive(Debug, Default)]
pub(crate) struct LookedUpInodes {
    hasher: RandomState,
    inodes: Mutex<HashTable<Arc<Inode>>>,
    /// The most recent inodes whose lookups were all returned, oldest first.
    last_forgotten: Mutex<VecDeque<Arc<Inode>>>,
}

impl LookedUpInodes {
    pub(crate) fn find(&self, id: InodeId) -> Option<Arc<Inode>> {
        let hash = self.hasher.hash_one(id);
        self.inodes.lock().find(hash, |inode| inode.id() == id).map(Arc::clone)
    }

    /// Those that satisfy `condition`.
    pub(crate) fn filtered(&self, condition: impl Fn(&Inode) -> bool) -> Vec<Arc<Inode>> {
        let all: Vec<_> = self.inodes.lock().iter().map(Arc::clone).collect();
        all.into_iter().filter(|inode| condition(inode)).collect()
    }

    /// Counts one more lookup.
    pub(crate) fn count_lookup(&self, inode: &Arc<Inode>) {
        let hash = self.hasher.hash_one(inode.id());
        let mut inodes = self.inodes.lock();
        if inode.add_lookup() == 1 {
            // A caller that uses names in it holds a lookup of it.
            inode.clear(InodeFlag::ReturnedNames);
            inodes.insert_unique(hash, Arc::clone(inode), |other| self.hasher.hash_one(other.id()));
        }
    }

    /// Subtracts `lookups` lookups. Returns the inode if none is left.
    pub(crate) fn release(&self, id: InodeId, lookups: u64) -> Option<Arc<Inode>> {
        let hash = self.hasher.hash_one(id);
        let mut inodes = self.inodes.lock();
        let entry = inodes.find_entry(hash, |inode| inode.id() == id).ok()?;
        if entry.get().remove_lookups(lookups) > 0 {
            return None;
        }
        Some(entry.remove().0)
    }

    /// Keeps `inode`, whose lookups were all returned, alive for a while.
    pub(crate) fn keep_forgotten(&self, inode: Arc<Inode>) {
        let mut last = self.last_forgotten.lock();
        let oldest = (last.len() == LAST_MAX).then(|| last.pop_front());
        last.push_back(inode);
        drop(last);
        drop(oldest);
    }
}

/// Most inodes that are kept alive by this list only. Each takes some hundred bytes.
const LAST_MAX: usize = 16_384;
