//! The names of a directory in memory, in a fixed order: each name keeps its cookie while it exists
//! (also after a rename within the directory), and cookies are not reused. So a listing that
//! continues after any cookie returns each name that exists throughout exactly once.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

/// The cookie of `.`; also the first one that is not the start.
pub(super) const DOT_COOKIE: u64 = 1;
/// The cookie of `..`.
pub(super) const DOT_DOT_COOKIE: u64 = 2;

#[derive(Clone, Copy)]
struct MemoryDirEntry {
    cookie: u64,
    fileid: u64,
}

/// The entries without `.` and `..`.
pub(super) struct MemoryDirectory {
    /// The parent's fileid; the root's is its own.
    pub(super) parent: u64,
    names: HashMap<Arc<[u8]>, MemoryDirEntry>,
    order: BTreeMap<u64, Arc<[u8]>>,
    next_cookie: u64,
}

impl MemoryDirectory {
    pub(super) fn new(parent: u64) -> Self {
        Self { parent, names: HashMap::new(), order: BTreeMap::new(), next_cookie: DOT_DOT_COOKIE + 1 }
    }

    pub(super) fn find(&self, name: &[u8]) -> Option<u64> {
        self.names.get(name).map(|place| place.fileid)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    /// Adds a name that does not exist.
    pub(super) fn add(&mut self, name: &[u8], fileid: u64) {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        self.put(name, MemoryDirEntry { cookie, fileid });
    }

    fn put(&mut self, name: &[u8], place: MemoryDirEntry) {
        let name: Arc<[u8]> = name.into();
        self.order.insert(place.cookie, Arc::clone(&name));
        let before = self.names.insert(name, place);
        assert!(before.is_none(), "a name is added only where there is none");
    }

    pub(super) fn remove(&mut self, name: &[u8]) -> Option<u64> {
        let place = self.names.remove(name)?;
        self.order.remove(&place.cookie);
        Some(place.fileid)
    }

    /// Renames the entry `from` to a name that does not exist.
    pub(super) fn rename(&mut self, from: &[u8], to: &[u8]) {
        if let Some(place) = self.names.remove(from) {
            self.order.remove(&place.cookie);
            self.put(to, place);
        }
    }

    /// Whether a listing can have returned `cookie`.
    pub(super) fn is_valid_cookie(&self, cookie: u64) -> bool {
        cookie < self.next_cookie
    }

    /// The entry after `cookie`: its cookie, name and fileid.
    pub(super) fn after(&self, cookie: u64) -> Option<(u64, Arc<[u8]>, u64)> {
        let (cookie, name) = self.order.range((Bound::Excluded(cookie), Bound::Unbounded)).next()?;
        Some((*cookie, Arc::clone(name), self.names.get(name)?.fileid))
    }
}
