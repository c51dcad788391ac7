//! Files that have data which no commit has made durable: each is kept open (to read, in nobody's way), because the kernel
//! remembers that writing back failed only for as long as the inode is in use, and tells each descriptor that was open
//! before. The number is bounded; who makes room for another one must sync what falls out.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::handle::NodeHandle;

const SHARDS: usize = 16;
/// At least so many in each shard, and at most.
const PER_SHARD_MIN: usize = 4;
const PER_SHARD_MAX: usize = 64;

/// Oldest first.
struct Shard {
    files: VecDeque<(NodeHandle, Arc<OwnedFd>)>,
}

pub(super) struct Unstable {
    shards: [Mutex<Shard>; SHARDS],
    per_shard_max: usize,
    hasher: RandomState,
}

impl Unstable {
    /// Room for about `most` files.
    pub(super) fn new(most: usize) -> Self {
        let shards = std::array::from_fn(|_| {
            Mutex::new(Shard {
                files: VecDeque::new(),
            })
        });
        Self {
            shards,
            per_shard_max: (most / SHARDS).clamp(PER_SHARD_MIN, PER_SHARD_MAX),
            hasher: RandomState::new(),
        }
    }

    fn shard(&self, handle: &NodeHandle) -> &Mutex<Shard> {
        let at = self.hasher.hash_one(handle) % SHARDS as u64;
        &self.shards[usize::try_from(at).expect("it is below the number of shards")]
    }

    /// Whether a file is remembered.
    pub(super) fn knows(&self, handle: &NodeHandle) -> bool {
        let shard = self.shard(handle).lock();
        shard.files.iter().rev().any(|(known, _)| known == handle)
    }

    /// Remembers a file, and returns another one if there was no room.
    #[must_use]
    pub(super) fn note(&self, handle: &NodeHandle, fd: Arc<OwnedFd>) -> Option<Arc<OwnedFd>> {
        let mut shard = self.shard(handle).lock();
        if shard.files.iter().rev().any(|(known, _)| known == handle) {
            return None;
        }
        let full = shard.files.len() >= self.per_shard_max;
        let oldest = if full { shard.files.pop_front() } else { None };
        shard.files.push_back((*handle, fd));
        oldest.map(|(_, fd)| fd)
    }

    /// Forgets a file that is about to be synced or has no name left.
    pub(super) fn take(&self, handle: &NodeHandle) -> Option<Arc<OwnedFd>> {
        let mut shard = self.shard(handle).lock();
        let at = shard.files.iter().position(|(known, _)| known == handle)?;
        shard.files.remove(at).map(|(_, fd)| fd)
    }

    pub(super) fn forget_all(&self) {
        for shard in &self.shards {
            shard.lock().files.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::HandleScheme;

    fn descriptor() -> Arc<OwnedFd> {
        let file = std::fs::File::open("/").expect("the root can be opened");
        Arc::new(file.into())
    }

    #[test]
    fn a_bounded_number_of_files_is_kept_and_the_oldest_is_handed_back() {
        let unstable = Unstable::new(usize::MAX);
        let mut handed_back = 0;
        for number in 0..2000_u32 {
            let handle =
                NodeHandle::new(HandleScheme::Kernel, 1, &number.to_be_bytes()).expect("it is short");
            handed_back += usize::from(unstable.note(&handle, descriptor()).is_some());
            assert!(
                unstable.note(&handle, descriptor()).is_none(),
                "a file counts once"
            );
        }
        let kept: usize = unstable.shards.iter().map(|shard| shard.lock().files.len()).sum();
        assert!(kept <= SHARDS * PER_SHARD_MAX);
        assert_eq!(kept + handed_back, 2000);
    }
}
