//! Recently used objects, held open with `O_PATH` under their handles: opening by handle costs
//! several system calls and two changes of capabilities; finding an object here costs none.
//!
//! Such a descriptor grants no right: I/O opens the object with the caller's rights. While it is
//! open it refers to the same object as the handle, whatever is renamed; a removed object is
//! recognised by its link count, which every user checks. But it keeps the space of a file that
//! somebody else removes. So an unused one is closed within two ticks, and one that is removed
//! through us at once.
//!
//! The number is bounded. The sweeper (`sweeper`), whose rounds are the ticks, closes those that
//! are idle.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use curt_sync::ClockCache;
use rustix::process::{Resource, getrlimit};

use super::hashing::HandleHashBuilder;
use crate::handle::NodeHandle;

/// No more than this, however many descriptors there may be.
const HELD_MAX: u64 = 4096;
/// The part of the process's descriptors that may be used here.
const DESCRIPTOR_SHARE: u64 = 4;

struct OPathEntry {
    handle: NodeHandle,
    fd: Arc<OwnedFd>,
}

pub(super) struct OPathCache {
    entries: ClockCache<OPathEntry, HandleHashBuilder>,
}

impl OPathCache {
    /// Room for `most` objects; 0 holds none.
    pub(super) fn new(most: usize) -> Self {
        Self {
            entries: ClockCache::new(most),
        }
    }

    /// What a process with this one's limit of descriptors should hold.
    pub(super) fn room() -> usize {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        usize::try_from((limit / DESCRIPTOR_SHARE).min(HELD_MAX)).unwrap_or(0)
    }

    /// Whether an object is held.
    pub(super) fn contains(&self, handle: &NodeHandle) -> bool {
        self.find(handle).is_some()
    }

    pub(super) fn find(&self, handle: &NodeHandle) -> Option<Arc<OwnedFd>> {
        let is = |entry: &OPathEntry| entry.handle == *handle;
        self.entries.read(handle, is, |entry| Arc::clone(&entry.fd))
    }

    /// Holds an object, in place of others if there is no room. Whether it is the first.
    pub(super) fn insert(&self, handle: &NodeHandle, fd: &Arc<OwnedFd>) -> bool {
        let is = |entry: &OPathEntry| entry.handle == *handle;
        let (handle, fd) = (*handle, Arc::clone(fd));
        let entry = OPathEntry { handle, fd };
        self.entries.put(handle, is, entry)
    }

    /// Lets go of an object.
    pub(super) fn release(&self, handle: &NodeHandle) {
        self.entries.remove(handle, |entry| entry.handle == *handle);
    }

    /// Lets go of everything.
    pub(super) fn release_all(&self) {
        self.entries.clear();
    }

    /// A tick has passed: lets go of what nobody used in it. Whether anything is still held.
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
        let held = OPathCache::new(1000);
        let (used, idle) = (descriptor(), descriptor());
        assert!(held.insert(&handle(1), &used));
        assert!(!held.insert(&handle(2), &idle));
        for _ in 0..5 {
            assert!(held.find(&handle(1)).is_some());
            assert!(held.sweep());
        }
        assert_eq!((Arc::strong_count(&used), Arc::strong_count(&idle)), (2, 1));
        assert!(!held.sweep());
        assert_eq!(Arc::strong_count(&used), 1);
        assert!(held.find(&handle(1)).is_none());
    }
}
