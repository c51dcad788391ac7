//! Files that were written and are watched until their data are durable. Each is kept open from
//! before the first write (for reading, so that the file can be executed), because the kernel
//! remembers a write-back error only while the inode is in use, and reports it to each descriptor
//! that was open before. A watched file whose data are durable stays open for some time, so that
//! the next write need not open it again.
//!
//! The number is bounded; a thread that adds a file must sync the evicted one, if that has unstable
//! data.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;

use super::hashing::HandleHashBuilder;
use crate::handle::NodeHandle;

const SHARDS: usize = 16;
/// Minimum size of a shard.
const PER_SHARD_MIN: usize = 4;
const PER_SHARD_MAX: usize = 64;

struct UnstableFile {
    fd: Arc<OwnedFd>,
    /// Whether there may be data that no commit has made durable.
    dirty: bool,
    /// Whether it was written since the last sweep.
    used: bool,
    /// Its sequence number in the shard.
    number: u64,
}

#[derive(Default)]
struct UnstableShard {
    files: HashMap<NodeHandle, UnstableFile, HandleHashBuilder>,
    next: u64,
}

pub(super) struct UnstableFiles {
    shards: [Mutex<UnstableShard>; SHARDS],
    per_shard_max: usize,
    hasher: HandleHashBuilder,
}

impl UnstableFiles {
    /// For about `most` files.
    pub(super) fn new(most: usize) -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            per_shard_max: (most / SHARDS).clamp(PER_SHARD_MIN, PER_SHARD_MAX),
            hasher: HandleHashBuilder::new(),
        }
    }

    fn shard(&self, handle: &NodeHandle) -> &Mutex<UnstableShard> {
        let at = self.hasher.hash_one(handle) % SHARDS as u64;
        &self.shards[usize::try_from(at).expect("it is below the number of shards")]
    }

    /// Called before a file is written; returns whether it is watched already. From now on it has
    /// unstable data.
    pub(super) fn is_watched(&self, handle: &NodeHandle) -> bool {
        let mut shard = self.shard(handle).lock();
        let Some(watched) = shard.files.get_mut(handle) else {
            return false;
        };
        watched.dirty = true;
        watched.used = true;
        true
    }

    /// Whether a file is watched, or can be without syncing another one.
    pub(super) fn has_room(&self, handle: &NodeHandle) -> bool {
        let shard = self.shard(handle).lock();
        shard.files.len() < self.per_shard_max
            || shard.files.contains_key(handle)
            || shard.files.values().any(|watched| !watched.dirty)
    }

    /// Watches a file that is about to be written, and returns another one that has to be synced if
    /// there was no room.
    #[must_use]
    pub(super) fn watch(&self, handle: &NodeHandle, fd: Arc<OwnedFd>) -> Option<(NodeHandle, Arc<OwnedFd>)> {
        let mut shard = self.shard(handle).lock();
        let shard = &mut *shard;
        let full = shard.files.len() >= self.per_shard_max && !shard.files.contains_key(handle);
        let fallen = if full { take_one(&mut shard.files) } else { None };
        shard.next += 1;
        let watched = UnstableFile { fd, dirty: true, used: true, number: shard.next };
        // Two writers may have found it unwatched: both descriptors are from before the write-back.
        shard.files.insert(*handle, watched);
        fallen.filter(|(_, watched)| watched.dirty).map(|(handle, watched)| (handle, watched.fd))
    }

    /// The descriptor of a watched file that is about to be synced. Later writes make it dirty
    /// again.
    pub(super) fn begin_sync(&self, handle: &NodeHandle) -> Option<Arc<OwnedFd>> {
        let mut shard = self.shard(handle).lock();
        let watched = shard.files.get_mut(handle)?;
        watched.dirty = false;
        Some(Arc::clone(&watched.fd))
    }

    /// The descriptor of a file, if it is watched.
    pub(super) fn watched(&self, handle: &NodeHandle) -> Option<Arc<OwnedFd>> {
        let shard = self.shard(handle).lock();
        shard.files.get(handle).map(|watched| Arc::clone(&watched.fd))
    }

    /// Removes a file that has no name left.
    pub(super) fn forget(&self, handle: &NodeHandle) {
        let forgotten = self.shard(handle).lock().files.remove(handle);
        drop(forgotten);
    }

    /// All data are durable.
    pub(super) fn forget_all(&self) {
        for shard in &self.shards {
            let all = std::mem::take(&mut shard.lock().files);
            drop(all);
        }
    }

    /// Closes files whose data are durable and that were not written since the last sweep. Returns
    /// whether any is left.
    pub(super) fn sweep(&self) -> bool {
        let mut more = false;
        for shard in &self.shards {
            let mut shard = shard.lock();
            let idle: Vec<UnstableFile> = shard
                .files
                .extract_if(|_, watched| !std::mem::take(&mut watched.used) && !watched.dirty)
                .map(|(_, watched)| watched)
                .collect();
            // Dirty files remain, and need no frequent sweeps.
            more |= shard.files.values().any(|watched| !watched.dirty);
            drop(shard);
            drop(idle);
        }
        more
    }

    /// Closes files with unstable data that have no name any more: another process removed them, no
    /// client will read the data, and their space should be freed. Returns whether any file is left
    /// for later checks.
    pub(super) fn sweep_removed(&self, is_gone: impl Fn(&NodeHandle, &OwnedFd) -> bool) -> bool {
        let mut more = false;
        for shard in &self.shards {
            let unstable_files: Vec<_> = shard
                .lock()
                .files
                .iter()
                .map(|(handle, watched)| (*handle, Arc::clone(&watched.fd)))
                .collect();
            more |= !unstable_files.is_empty();
            // Checked without the lock: a file system may be slow.
            for (handle, fd) in unstable_files {
                if is_gone(&handle, &fd) {
                    self.forget(&handle);
                }
            }
        }
        more
    }
}

/// Removes the oldest file whose data are durable, otherwise the oldest.
fn take_one(
    files: &mut HashMap<NodeHandle, UnstableFile, HandleHashBuilder>,
) -> Option<(NodeHandle, UnstableFile)> {
    let oldest =
        files.iter().min_by_key(|(_, watched)| (watched.dirty, watched.number)).map(|(handle, _)| *handle)?;
    files.remove_entry(&oldest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::HandleScheme;

    fn descriptor() -> Arc<OwnedFd> {
        let file = std::fs::File::open("/").expect("the root can be opened");
        Arc::new(file.into())
    }

    fn handle(number: u32) -> NodeHandle {
        NodeHandle::new(HandleScheme::Kernel, 1, &number.to_be_bytes()).expect("it is short")
    }

    #[test]
    fn a_bounded_number_of_files_is_watched_and_the_oldest_dirty_one_is_handed_back() {
        let unstable = UnstableFiles::new(usize::MAX);
        let mut handed_back = 0;
        for number in 0..2000 {
            assert!(!unstable.is_watched(&handle(number)));
            handed_back += usize::from(unstable.watch(&handle(number), descriptor()).is_some());
            assert!(unstable.is_watched(&handle(number)));
        }
        let left: usize = unstable.shards.iter().map(|shard| shard.lock().files.len()).sum();
        assert!(left <= SHARDS * PER_SHARD_MAX);
        assert_eq!(left + handed_back, 2000);
    }

    #[test]
    fn durable_files_fall_out_first_and_need_no_sync() {
        let unstable = UnstableFiles::new(0);
        let mut dirty = Vec::new();
        for number in 0..1000 {
            let fallen = unstable.watch(&handle(number), descriptor());
            if number % 2 == 0 {
                drop(unstable.begin_sync(&handle(number)));
            } else {
                dirty.push(number);
            }
            // A shard has room for four: the durable one is evicted first.
            if number < 8 {
                assert!(fallen.is_none());
            }
        }
        let left = dirty.iter().filter(|number| unstable.is_watched(&handle(**number))).count();
        assert!(left >= SHARDS * (PER_SHARD_MIN - 1), "{left} of those with data are left");
    }

    #[test]
    fn what_is_written_after_a_sync_began_is_dirty_again_and_only_what_is_not_goes() {
        let unstable = UnstableFiles::new(usize::MAX);
        let fd = descriptor();
        assert!(unstable.watch(&handle(1), Arc::clone(&fd)).is_none());
        assert!(!unstable.sweep(), "nothing of it will be let go");
        assert_eq!(Arc::strong_count(&fd), 2);
        drop(unstable.begin_sync(&handle(1)));
        assert!(unstable.is_watched(&handle(1)));
        assert!(!unstable.sweep());
        assert_eq!(Arc::strong_count(&fd), 2, "it was written to again");
        drop(unstable.begin_sync(&handle(1)));
        assert!(!unstable.sweep());
        assert_eq!(Arc::strong_count(&fd), 1);
        assert!(!unstable.is_watched(&handle(1)));
        assert!(unstable.begin_sync(&handle(1)).is_none());
    }
}
