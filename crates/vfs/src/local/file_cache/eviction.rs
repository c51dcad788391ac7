//! Which descriptors the file cache closes by itself: those that are idle for too long, and idle
//! ones when descriptors are scarce.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use super::descriptor_budget::DescriptorPressure;
use super::shard::{CachedDescriptor, DescriptorSlot, DescriptorState, FileCacheShard, ReleaseReason};
use super::{FileCache, SHARDS};
use crate::local::data::OpenAccess;

/// Number of sweeps ([`FileCache::sweep`]) for which a descriptor may be idle. Together with the
/// sweep after its last use this is half a second and two seconds.
const IDLE_WRITERS: u8 = 1;
const IDLE_READERS: u8 = 7;

/// Maximum number of descriptors closed for a new one.
const BATCH: usize = 64;

impl FileCache {
    /// Closes at most `most` descriptors that are not in use, first those that were not used since
    /// the last sweep. Called when descriptors run out elsewhere.
    pub(in crate::local) fn make_room(&self, most: usize) {
        for only_unused in [true, false] {
            let mut room = most;
            for _ in 0..SHARDS {
                let turn = self.next_shard.fetch_add(1, Ordering::Relaxed) % SHARDS;
                let part = &self.shards[turn];
                let _closing = part.closing.lock();
                let mut gone = Vec::new();
                part.shard.lock().evict(&mut gone, room, |slot| {
                    slot.is_idle(|cached| !only_unused || !std::mem::take(&mut cached.used))
                });
                self.trace_release(&gone, "room is needed");
                room -= gone.len();
                drop(gone);
                if room == 0 {
                    return;
                }
            }
        }
    }

    /// Called after each interval: closes descriptors that were idle for too long, and requires new
    /// access checks for files whose stamp was updated by writes. Returns whether any is cached.
    pub(in crate::local) fn sweep(&self) -> bool {
        let scarce = self.scarce.swap(false, Ordering::Relaxed);
        for part in &self.shards {
            let _closing = part.closing.lock();
            let mut gone = Vec::new();
            let mut shard = part.shard.lock();
            for shared in shard.files.iter().filter_map(|file| file.shared.as_ref()) {
                shared.require_recheck();
            }
            shard.evict(&mut gone, usize::MAX, |slot| {
                let most = match slot.purpose {
                    _ if scarce => 1,
                    OpenAccess::Write => IDLE_WRITERS,
                    OpenAccess::Read => IDLE_READERS,
                };
                slot.is_idle(|cached| {
                    cached.idle =
                        if std::mem::take(&mut cached.used) { 0 } else { cached.idle.saturating_add(1) };
                    cached.idle >= most
                })
            });
            drop(shard);
            // Closed here, without the lock: closing the last descriptor of a removed file frees
            // its blocks.
            self.trace_release(&gone, "idle");
            drop(gone);
        }
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Whether a descriptor with this number may be cached, after closing others if necessary.
    pub(super) fn may_keep(&self, number: RawFd) -> bool {
        match self.budget.room(number) {
            DescriptorPressure::Plenty => true,
            DescriptorPressure::Scarce => {
                self.scarce.store(true, Ordering::Relaxed);
                true
            }
            DescriptorPressure::Short => {
                self.scarce.store(true, Ordering::Relaxed);
                self.make_room(BATCH);
                true
            }
            DescriptorPressure::None => {
                self.make_room(BATCH);
                false
            }
        }
    }
}

impl FileCacheShard {
    /// Moves the slots for which `goes` returns true to `gone`, until `gone` has `most`; removes
    /// files without slots.
    fn evict(
        &mut self,
        gone: &mut Vec<DescriptorSlot>,
        most: usize,
        mut goes: impl FnMut(&mut DescriptorSlot) -> bool,
    ) {
        let tally = &mut self.counters;
        self.files.retain(|file| {
            let mut at = 0;
            while at < file.slots.len() && gone.len() < most {
                if goes(&mut file.slots[at]) {
                    let slot = file.slots.swap_remove(at);
                    tally.released(&slot, ReleaseReason::Evicted);
                    gone.push(slot);
                } else {
                    at += 1;
                }
            }
            !file.slots.is_empty()
        });
    }
}

impl DescriptorSlot {
    /// Whether it is not in use and `goes` returns true; `goes` is called only if it is not in use.
    fn is_idle(&mut self, goes: impl FnOnce(&mut CachedDescriptor) -> bool) -> bool {
        match &mut self.state {
            DescriptorState::Open(cached) => cached.file.is_idle() && goes(cached),
            DescriptorState::Opening(_) => false,
        }
    }
}
