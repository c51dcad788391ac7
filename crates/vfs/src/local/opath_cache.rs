//! Recently used objects, kept open with `O_PATH` and indexed by handle. Opening by handle costs
//! several system calls and two changes of capabilities; a cache hit costs none.
//!
//! Such a descriptor grants no right: I/O opens the object with the caller's permissions. It refers
//! to the same object as the handle, even after renames; a removed object has a link count of 0,
//! which each user checks. But it keeps the space of a file that another process removes. So an
//! unused one is closed within two ticks, and one that is removed through the server at once.
//!
//! The number is bounded. The sweeper (`sweeper`), whose rounds are the ticks, closes idle ones.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use curt_sync::ClockCache;
use rustix::process::{Resource, getrlimit};

use super::hashing::HandleHashBuilder;
use crate::handle::NodeHandle;

/// Maximum number, whatever the limit of descriptors.
const HELD_MAX: u64 = 4096;
/// The fraction of the process's descriptors for this cache.
const DESCRIPTOR_SHARE: u64 = 4;

struct OPathEntry {
    handle: NodeHandle,
    fd: Arc<OwnedFd>,
}

pub(super) struct OPathCache {
    entries: ClockCache<OPathEntry, HandleHashBuilder>,
}

impl OPathCache {
    /// A cache for at most `most` objects; 0 caches none.
    pub(super) fn new(most: usize) -> Self {
        Self { entries: ClockCache::new(most) }
    }

    /// The number of objects for this process's limit of descriptors.
    pub(super) fn room() -> usize {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        usize::try_from((limit / DESCRIPTOR_SHARE).min(HELD_MAX)).unwrap_or(0)
    }

    /// Whether an object is cached.
    pub(super) fn contains(&self, handle: &NodeHandle) -> bool {
        self.find(handle).is_some()
    }

    pub(super) fn find(&self, handle: &NodeHandle) -> Option<Arc<OwnedFd>> {
        let is = |entry: &OPathEntry| entry.handle == *handle;
        self.entries.read(handle, is, |entry| Arc::clone(&entry.fd))
    }

    /// Caches an object, in place of others if necessary. Returns whether it is the first.
    pub(super) fn insert(&self, handle: &NodeHandle, fd: &Arc<OwnedFd>) -> bool {
        let is = |entry: &OPathEntry| entry.handle == *handle;
        let (handle, fd) = (*handle, Arc::clone(fd));
        let entry = OPathEntry { handle, fd };
        self.entries.put(handle, is, entry)
    }

    /// Removes an object.
    pub(super) fn release(&self, handle: &NodeHandle) {
        self.entries.remove(handle, |entry| entry.handle == *handle);
    }

    /// Removes all objects.
    pub(super) fn release_all(&self) {
        self.entries.clear();
    }

    /// Called at each tick: closes objects not used since the last one. Returns whether any is
    /// left.
    pub(super) fn sweep(&self) -> bool {
        self.entries.sweep();
        !self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::HandleScheme;

    fn handle(number: u32) -> NodeHandle {
        NodeHandle::new(HandleScheme::Kernel, 1, &number.to_be_bytes()).expect("it is short")
    }

    fn descriptor() -> Arc<OwnedFd> {
        let file = std::fs::File::open("/").expect("the root can be opened");
        Arc::new(file.into())
    }

    #[test]
    fn what_is_used_stays_and_what_is_idle_goes_within_two_ticks() {
        let cache = OPathCache::new(1000);
        let (used, idle) = (descriptor(), descriptor());
        assert!(cache.insert(&handle(1), &used));
        assert!(!cache.insert(&handle(2), &idle));
        for _ in 0..5 {
            assert!(cache.find(&handle(1)).is_some());
            assert!(cache.sweep());
        }
        assert_eq!((Arc::strong_count(&used), Arc::strong_count(&idle)), (2, 1));
        assert!(!cache.sweep());
        assert_eq!(Arc::strong_count(&used), 1);
        assert!(cache.find(&handle(1)).is_none());
    }
}
