//! A shard of the cache under one lock: its files, and their descriptors by access mode and caller.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use hashbrown::HashTable;

use super::DescriptorRequest;
use super::counters::FileCacheCounters;
use super::permission_stamp::{OpenLocalFile, SharedPermissionStamp};
use crate::caller::FsCred;
use crate::handle::NodeHandle;
use crate::local::data::OpenAccess;

/// An owned copy of the caller whose permissions a descriptor has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::local) struct OwnedFsCred {
    uid: u32,
    gid: u32,
    privileged: bool,
    groups: Box<[u32]>,
}

impl OwnedFsCred {
    pub(in crate::local) fn of(caller: &FsCred<'_>) -> Self {
        Self { uid: caller.uid, gid: caller.gid, privileged: caller.privileged, groups: caller.groups.into() }
    }

    pub(in crate::local) fn is(&self, caller: &FsCred<'_>) -> bool {
        self.uid == caller.uid
            && self.gid == caller.gid
            && self.privileged == caller.privileged
            && *self.groups == *caller.groups
    }
}

pub(super) struct CachedFile {
    pub(super) hash: u64,
    pub(super) handle: NodeHandle,
    pub(super) shared: Option<Arc<SharedPermissionStamp>>,
    pub(super) slots: Vec<DescriptorSlot>,
}

/// A descriptor, or the placeholder of one that is being opened.
pub(super) struct DescriptorSlot {
    pub(super) purpose: OpenAccess,
    pub(super) cred: OwnedFsCred,
    pub(super) state: DescriptorState,
}

pub(super) enum DescriptorState {
    /// The thread with this ticket opens it.
    Opening(u64),
    Open(CachedDescriptor),
}

pub(super) struct CachedDescriptor {
    pub(super) file: Arc<OpenLocalFile>,
    /// Whether it was used since the last sweep.
    pub(super) used: bool,
    /// Number of sweeps since the last use.
    pub(super) idle: u8,
    pub(super) since: Instant,
}

#[derive(Default)]
pub(super) struct FileCacheShard {
    pub(super) files: HashTable<CachedFile>,
    /// The events; the state of the shard is counted on request.
    pub(super) counters: FileCacheCounters,
    pub(super) tickets: u64,
}

/// Why a descriptor is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReleaseReason {
    /// The file changed its owner, was removed, or is no longer needed.
    Asked,
    /// The descriptor was idle, or space was needed.
    Evicted,
}

/// The result of a look-up in a shard.
pub(super) enum ShardLookup {
    Open(Arc<OpenLocalFile>),
    /// Another thread is opening it.
    Opening,
    Missing,
}

impl FileCacheShard {
    /// Looks up the descriptor with exactly this access mode and caller, and counts the result.
    pub(super) fn search(&mut self, hash: u64, request: DescriptorRequest<'_>) -> ShardLookup {
        let DescriptorRequest { caller, handle, purpose } = request;
        let tally = &mut self.counters;
        let file = self.files.find_mut(hash, |file| file.handle == *handle);
        let slot = file.and_then(|file| {
            file.slots.iter_mut().find(|slot| slot.purpose == purpose && slot.cred.is(caller))
        });
        match slot.map(|slot| &mut slot.state) {
            Some(DescriptorState::Open(cached)) => {
                cached.used = true;
                tally.hits += 1;
                ShardLookup::Open(Arc::clone(&cached.file))
            }
            Some(DescriptorState::Opening(_)) => ShardLookup::Opening,
            None => {
                tally.misses += 1;
                ShardLookup::Missing
            }
        }
    }

    pub(super) fn file(&mut self, hash: u64, handle: &NodeHandle) -> Option<&mut CachedFile> {
        self.files.find_mut(hash, |file| file.handle == *handle)
    }

    pub(super) fn file_or_new(&mut self, hash: u64, handle: &NodeHandle) -> &mut CachedFile {
        self.files
            .entry(hash, |file| file.handle == *handle, |file| file.hash)
            .or_insert_with(|| CachedFile { hash, handle: *handle, shared: None, slots: Vec::new() })
            .into_mut()
    }

    /// Removes a file and all its descriptors.
    pub(super) fn take(&mut self, hash: u64, handle: &NodeHandle) -> Option<CachedFile> {
        let found = self.files.find_entry(hash, |file| file.handle == *handle);
        let (file, _) = found.ok()?.remove();
        for slot in &file.slots {
            self.counters.released(slot, ReleaseReason::Asked);
        }
        Some(file)
    }

    /// Removes the slot of a descriptor, and the file if it has no other.
    pub(super) fn take_slot(
        &mut self,
        hash: u64,
        handle: &NodeHandle,
        descriptor: &Arc<OwnedFd>,
    ) -> Option<DescriptorSlot> {
        let file = self.file(hash, handle)?;
        let at = file.slots.iter().position(|slot| match &slot.state {
            DescriptorState::Open(cached) => Arc::ptr_eq(&cached.file.descriptor(), descriptor),
            DescriptorState::Opening(_) => false,
        })?;
        let slot = file.slots.swap_remove(at);
        let is_last = file.slots.is_empty();
        self.counters.released(&slot, ReleaseReason::Asked);
        if is_last {
            self.take(hash, handle);
        }
        Some(slot)
    }
}

impl FileCacheCounters {
    pub(super) fn released(&mut self, slot: &DescriptorSlot, reason: ReleaseReason) {
        let DescriptorState::Open(cached) = &slot.state else {
            return;
        };
        self.releases += 1;
        self.evictions += u64::from(reason == ReleaseReason::Evicted);
        self.age_ms += u64::try_from(cached.since.elapsed().as_millis()).unwrap_or(u64::MAX);
    }
}
