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

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit};

use super::hashing::HandleHashBuilder;
use crate::handle::NodeHandle;

const SHARDS: usize = 32;
/// No more than this, however many descriptors there may be.
const HELD_MAX: u64 = 4096;
/// The part of the process's descriptors that may be used here.
const DESCRIPTOR_SHARE: u64 = 4;
struct OPathEntry {
    fd: Arc<OwnedFd>,
    /// The tick of its last use.
    used: u32,
}

pub(super) struct OPathCache {
    shards: Box<[Mutex<HashMap<NodeHandle, OPathEntry, HandleHashBuilder>>]>,
    per_shard_max: usize,
    hasher: HandleHashBuilder,
    count: AtomicUsize,
    tick: AtomicU32,
}

impl OPathCache {
    /// Room for `most` objects; 0 holds none.
    pub(super) fn new(most: usize) -> Self {
        Self {
            shards: std::iter::repeat_with(Mutex::default).take(SHARDS).collect(),
            per_shard_max: most / SHARDS,
            hasher: HandleHashBuilder::new(),
            count: AtomicUsize::new(0),
            tick: AtomicU32::new(0),
        }
    }

    /// What a process with this one's limit of descriptors should hold.
    pub(super) fn room() -> usize {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        usize::try_from((limit / DESCRIPTOR_SHARE).min(HELD_MAX)).unwrap_or(0)
    }

    fn shard(&self, handle: &NodeHandle) -> &Mutex<HashMap<NodeHandle, OPathEntry, HandleHashBuilder>> {
        let at = self.hasher.hash_one(handle) % SHARDS as u64;
        &self.shards[usize::try_from(at).expect("it is below the number of shards")]
    }

    /// Whether an object is held.
    pub(super) fn contains(&self, handle: &NodeHandle) -> bool {
        self.shard(handle).lock().contains_key(handle)
    }

    pub(super) fn find(&self, handle: &NodeHandle) -> Option<Arc<OwnedFd>> {
        // Relaxed: a tick more or less only moves the end by as much.
        let tick = self.tick.load(Ordering::Relaxed);
        let mut shard = self.shard(handle).lock();
        let held = shard.get_mut(handle)?;
        held.used = tick;
        Some(Arc::clone(&held.fd))
    }

    /// Holds an object, in place of another one if there is no room. Whether it is the first.
    pub(super) fn insert(&self, handle: &NodeHandle, fd: &Arc<OwnedFd>) -> bool {
        if self.per_shard_max == 0 {
            return false;
        }
        let used = self.tick.load(Ordering::Relaxed);
        let mut shard = self.shard(handle).lock();
        let full = shard.len() >= self.per_shard_max && !shard.contains_key(handle);
        let dropped = if full { take_oldest(&mut shard) } else { None };
        let before = shard.insert(
            *handle,
            OPathEntry {
                fd: Arc::clone(fd),
                used,
            },
        );
        drop(shard);
        let grown = before.is_none() && dropped.is_none();
        // Relaxed: read only to decide whether the sweeper sleeps, and it looks again after each
        // tick.
        grown && self.count.fetch_add(1, Ordering::Relaxed) == 0
    }

    /// Lets go of an object.
    pub(super) fn release(&self, handle: &NodeHandle) {
        let released = self.shard(handle).lock().remove(handle);
        if released.is_some() {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Lets go of everything.
    pub(super) fn release_all(&self) {
        for shard in &self.shards {
            let all = std::mem::take(&mut *shard.lock());
            self.count.fetch_sub(all.len(), Ordering::Relaxed);
        }
    }

    /// A tick has passed: lets go of what nobody used in the one before it. Whether anything is
    /// still held.
    pub(super) fn sweep(&self) -> bool {
        let now = self.tick.fetch_add(1, Ordering::Relaxed);
        for shard in &self.shards {
            let idle: Vec<OPathEntry> = shard
                .lock()
                .extract_if(|_, held| now.wrapping_sub(held.used) >= 1)
                .map(|(_, held)| held)
                .collect();
            self.count.fetch_sub(idle.len(), Ordering::Relaxed);
            // Closed here, outside of the lock: the last one of a removed file frees its blocks.
            drop(idle);
        }
        self.count.load(Ordering::Relaxed) > 0
    }
}

fn take_oldest(shard: &mut HashMap<NodeHandle, OPathEntry, HandleHashBuilder>) -> Option<OPathEntry> {
    let oldest = shard
        .iter()
        .min_by_key(|(_, held)| held.used)
        .map(|(handle, _)| *handle)?;
    shard.remove(&oldest)
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
        assert!(!held.sweep() || !held.sweep());
        assert_eq!(Arc::strong_count(&used), 1);
        assert!(held.find(&handle(1)).is_none());
    }

    #[test]
    fn the_number_is_bounded_and_no_room_means_none() {
        let held = OPathCache::new(SHARDS * 4);
        let fd = descriptor();
        for number in 0..10_000 {
            held.insert(&handle(number), &fd);
        }
        let kept: usize = held.shards.iter().map(|shard| shard.lock().len()).sum();
        assert_eq!(
            (kept, held.count.load(Ordering::Relaxed)),
            (SHARDS * 4, SHARDS * 4)
        );
        for number in 0..10_000 {
            held.release(&handle(number));
        }
        assert_eq!(
            (Arc::strong_count(&fd), held.count.load(Ordering::Relaxed)),
            (1, 0)
        );
        let none = OPathCache::new(0);
        none.insert(&handle(1), &fd);
        assert!(none.find(&handle(1)).is_none());
    }
}
