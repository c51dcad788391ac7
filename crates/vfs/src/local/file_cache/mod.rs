//! The file cache: files kept open for I/O, so that a READ or WRITE of a recently used file opens
//! nothing.
//!
//! The key of a descriptor is the object, the exact access mode and the caller. If there is none,
//! one thread opens the file while others that need the same descriptor wait. Invariants:
//!
//! - the cache grants no right: each user compares the file's current permissions with those of the
//!   last access check ([`OpenLocalFile::is_checked`]), and checks again if they differ;
//! - a descriptor for writing is closed within half a second of its last use, because the file
//!   cannot be executed meanwhile; one for reading within two seconds (`eviction`);
//! - a file that is removed, replaced or changes owner through the server is closed before the
//!   reply, except for requests in progress;
//! - the cache leaves descriptors for other uses ([`DescriptorBudget`]).
//!
//! Locks: one per shard, never two at once, under which nothing is opened or closed; and one per
//! shard for closing.

mod counters;
mod descriptor_budget;
mod eviction;
mod open_reservation;
mod permission_stamp;
mod shard;
#[cfg(test)]
mod tests;

use std::hash::BuildHasher;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use curt_observe::events::handle_hash;
use curt_observe::probe;
use parking_lot::{Condvar, Mutex};

pub use self::counters::FileCacheCounters;
use self::descriptor_budget::DescriptorBudget;
pub(super) use self::open_reservation::OpenReservation;
pub(super) use self::permission_stamp::{OpenLocalFile, PermissionStamp};
pub(super) use self::shard::OwnedFsCred;
use self::shard::{DescriptorSlot, DescriptorState, FileCacheShard, ShardLookup};
use super::data::OpenAccess;
use super::hashing::HandleHashBuilder;
use crate::caller::FsCred;
use crate::handle::NodeHandle;

const SHARDS: usize = 32;

/// Maximum number of cached descriptors of one file; further concurrent callers open it each time.
const SLOTS_MAX: usize = 64;

pub(super) struct FileCache {
    shards: Box<[LockedShard]>,
    hasher: HandleHashBuilder,
    budget: DescriptorBudget,
    caching: bool,
    /// The shard where the next search for idle descriptors begins.
    next_shard: AtomicUsize,
    /// Number of cached descriptors. Relaxed: it only decides whether the sweeper sleeps, and
    /// the sweeper checks again after each interval.
    count: AtomicUsize,
    /// Descriptors are scarce: the next sweep closes all that were not used since the last one.
    scarce: AtomicBool,
}

struct LockedShard {
    shard: Mutex<FileCacheShard>,
    /// Locked, before `shard`, while descriptors are removed and closed: a thread that releases a
    /// file waits for those that were just removed.
    closing: Mutex<()>,
    /// Notified when a file was opened, or could not be.
    opened: Condvar,
}

/// The result of a look-up.
pub(super) enum FileCacheLookup<'a> {
    /// The file is open; the access check may have to be repeated.
    Open(Arc<OpenLocalFile>),
    /// The calling thread has to open it.
    Missing(OpenReservation<'a>),
}

/// The file to open, the user, and the access mode.
#[derive(Clone, Copy)]
pub(super) struct DescriptorRequest<'a> {
    pub(super) caller: &'a FsCred<'a>,
    pub(super) handle: &'a NodeHandle,
    pub(super) purpose: OpenAccess,
}

impl<'a> DescriptorRequest<'a> {
    pub(super) const fn new(caller: &'a FsCred<'a>, handle: &'a NodeHandle, purpose: OpenAccess) -> Self {
        Self { caller, handle, purpose }
    }
}

impl FileCache {
    /// A cache if `caching`; otherwise each use opens its file.
    pub(super) fn new(caching: bool) -> Self {
        Self::with_budget(caching, DescriptorBudget::of_process())
    }

    fn with_budget(caching: bool, budget: DescriptorBudget) -> Self {
        let part =
            || LockedShard { shard: Mutex::default(), closing: Mutex::default(), opened: Condvar::new() };
        Self {
            shards: std::iter::repeat_with(part).take(SHARDS).collect(),
            hasher: HandleHashBuilder::new(),
            budget,
            caching,
            next_shard: AtomicUsize::new(0),
            count: AtomicUsize::new(0),
            scarce: AtomicBool::new(false),
        }
    }

    fn part(&self, hash: u64) -> &LockedShard {
        // The hash table uses the lowest and the highest bits.
        &self.shards[usize::try_from(hash >> 20).unwrap_or(0) % SHARDS]
    }

    /// Returns the open file with exactly this access mode and caller, or has the calling thread
    /// open it. Waits while another thread opens it.
    pub(super) fn find(&self, request: DescriptorRequest<'_>) -> FileCacheLookup<'_> {
        let hash = self.hasher.hash_one(request.handle);
        let part = self.part(hash);
        let mut shard = part.shard.lock();
        loop {
            match self.search(&mut shard, hash, request) {
                Some(found) => return found,
                None => part.opened.wait(&mut shard),
            }
        }
    }

    /// As [`FileCache::find`]; `None` if another thread is opening it.
    pub(super) fn find_nowait(&self, request: DescriptorRequest<'_>) -> Option<FileCacheLookup<'_>> {
        let hash = self.hasher.hash_one(request.handle);
        let mut shard = self.part(hash).shard.lock();
        self.search(&mut shard, hash, request)
    }

    fn search(
        &self,
        shard: &mut FileCacheShard,
        hash: u64,
        request: DescriptorRequest<'_>,
    ) -> Option<FileCacheLookup<'_>> {
        if !self.caching {
            shard.counters.misses += 1;
            acquired(request.handle, false);
            return Some(FileCacheLookup::Missing(OpenReservation::uncached(self, hash, *request.handle)));
        }
        match shard.search(hash, request) {
            ShardLookup::Open(file) => {
                acquired(request.handle, true);
                Some(FileCacheLookup::Open(file))
            }
            ShardLookup::Opening => None,
            ShardLookup::Missing => {
                acquired(request.handle, false);
                Some(FileCacheLookup::Missing(self.begin(shard, hash, request)))
            }
        }
    }

    fn begin(
        &self,
        shard: &mut FileCacheShard,
        hash: u64,
        request: DescriptorRequest<'_>,
    ) -> OpenReservation<'_> {
        shard.tickets += 1;
        let number = shard.tickets;
        let file = shard.file_or_new(hash, request.handle);
        if file.slots.len() >= SLOTS_MAX {
            return OpenReservation::uncached(self, hash, *request.handle);
        }
        file.slots.push(DescriptorSlot {
            purpose: request.purpose,
            cred: OwnedFsCred::of(request.caller),
            state: DescriptorState::Opening(number),
        });
        OpenReservation::new(self, hash, *request.handle, number)
    }

    /// Whether a descriptor of the file is cached.
    pub(super) fn contains(&self, handle: &NodeHandle) -> bool {
        let hash = self.hasher.hash_one(handle);
        let mut shard = self.part(hash).shard.lock();
        shard.file(hash, handle).is_some_and(|file| file.shared.is_some())
    }

    /// Closes all descriptors of a file; those in use are closed after their last use.
    pub(super) fn release(&self, handle: &NodeHandle) {
        let hash = self.hasher.hash_one(handle);
        let part = self.part(hash);
        let _closing = part.closing.lock();
        let file = part.shard.lock().take(hash, handle);
        let Some(file) = file else { return };
        self.trace_release(&file.slots, "the file is removed or changed");
        drop(file);
        part.opened.notify_all();
    }

    /// Removes a descriptor of a file that the caller uses, too: it is closed after its last use.
    pub(super) fn release_descriptor(&self, handle: &NodeHandle, descriptor: &Arc<OwnedFd>) {
        let hash = self.hasher.hash_one(handle);
        let slot = self.part(hash).shard.lock().take_slot(hash, handle, descriptor);
        if let Some(slot) = slot {
            self.trace_release(&[slot], "its lease has ended");
        }
    }

    /// Closes all descriptors, as [`FileCache::release`] does.
    pub(super) fn release_all(&self) {
        for part in &self.shards {
            let _closing = part.closing.lock();
            let mut shard = part.shard.lock();
            let handles: Vec<_> = shard.files.iter().map(|file| (file.hash, file.handle)).collect();
            let files: Vec<_> =
                handles.into_iter().filter_map(|(hash, handle)| shard.take(hash, &handle)).collect();
            drop(shard);
            for file in &files {
                self.trace_release(&file.slots, "all are closed");
            }
            part.opened.notify_all();
        }
    }

    fn trace_release(&self, slots: &[DescriptorSlot], reason: &str) {
        let open = slots.iter().filter(|slot| matches!(slot.state, DescriptorState::Open(_)));
        let open = open.count();
        self.count.fetch_sub(open, Ordering::Relaxed);
        if open > 0 {
            probe!(NfsdFileClose { entries: open, reason });
        }
    }

    /// The current counters.
    pub(super) fn counters(&self) -> FileCacheCounters {
        let mut all = FileCacheCounters::default();
        for part in &self.shards {
            let shard = part.shard.lock();
            let open = |slot: &&DescriptorSlot| matches!(slot.state, DescriptorState::Open(_));
            all.inodes +=
                shard.files.iter().filter(|file| file.slots.iter().any(|slot| open(&slot))).count() as u64;
            all.entries +=
                shard.files.iter().map(|file| file.slots.iter().filter(open).count() as u64).sum::<u64>();
            all.buckets += shard.files.capacity() as u64;
            all = all.and(&shard.counters);
        }
        all
    }
}

/// Emits the event of an acquisition.
fn acquired(handle: &NodeHandle, hit: bool) {
    probe!(NfsdFileAcquire { node: handle_hash(handle.bytes()), hit });
}
