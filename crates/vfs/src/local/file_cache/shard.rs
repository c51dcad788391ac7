//! A part of the cache under one lock: the files it knows, and for each the descriptors by access
//! and caller.

use std::sync::Arc;
use std::time::Instant;

use hashbrown::HashTable;

use super::counters::FileCacheShardCounters;
use super::permission_stamp::{OpenLocalFile, SharedPermissionStamp};
use crate::caller::FsCred;
use crate::handle::NodeHandle;
use crate::local::data::OpenAccess;

/// A caller, kept: whose rights a descriptor was opened with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::local) struct OwnedFsCred {
    uid: u32,
    gid: u32,
    privileged: bool,
    groups: Box<[u32]>,
}

impl OwnedFsCred {
    pub(in crate::local) fn of(caller: &FsCred<'_>) -> Self {
        Self {
            uid: caller.uid,
            gid: caller.gid,
            privileged: caller.privileged,
            groups: caller.groups.into(),
        }
    }

    pub(in crate::local) fn is(&self, caller: &FsCred<'_>) -> bool {
        self.uid == caller.uid
            && self.gid == caller.gid
            && self.privileged == caller.privileged
            && *self.groups == *caller.groups
    }
}

/// The descriptors of one file.
pub(super) struct CachedFile {
    pub(super) hash: u64,
    pub(super) handle: NodeHandle,
    pub(super) shared: Option<Arc<SharedPermissionStamp>>,
    pub(super) slots: Vec<DescriptorSlot>,
}

/// A descriptor, or the place of one that somebody is opening.
pub(super) struct DescriptorSlot {
    pub(super) purpose: OpenAccess,
    pub(super) cred: OwnedFsCred,
    pub(super) state: DescriptorState,
}

pub(super) enum DescriptorState {
    /// Whoever has this ticket opens it.
    Opening(u64),
    Open(CachedDescriptor),
}

pub(super) struct CachedDescriptor {
    pub(super) file: Arc<OpenLocalFile>,
    /// Whether it was used since the last look.
    pub(super) used: bool,
    /// Looks since then.
    pub(super) idle: u8,
    pub(super) since: Instant,
}

#[derive(Default)]
pub(super) struct FileCacheShard {
    pub(super) files: HashTable<CachedFile>,
    pub(super) counters: FileCacheShardCounters,
    pub(super) tickets: u64,
}

/// Why a descriptor is let go of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReleaseReason {
    /// The file changed hands, went away, or is wanted by nobody here.
    Asked,
    /// It was idle, or in the way.
    Evicted,
}

/// What a search finds in a shard.
pub(super) enum ShardLookup {
    Open(Arc<OpenLocalFile>),
    /// Another thread opens it at this moment.
    Opening,
    Missing,
}

impl FileCacheShard {
    /// Finds a descriptor for exactly this purpose and caller, and counts what it found.
    pub(super) fn search(
        &mut self,
        hash: u64,
        handle: &NodeHandle,
        purpose: OpenAccess,
        caller: &FsCred<'_>,
    ) -> ShardLookup {
        let tally = &mut self.counters;
        let file = self.files.find_mut(hash, |file| file.handle == *handle);
        let slot = file.and_then(|file| {
            file.slots
                .iter_mut()
                .find(|slot| slot.purpose == purpose && slot.cred.is(caller))
        });
        match slot.map(|slot| &mut slot.state) {
            Some(DescriptorState::Open(kept)) => {
                kept.used = true;
                tally.hits += 1;
                ShardLookup::Open(Arc::clone(&kept.file))
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
            .or_insert_with(|| CachedFile {
                hash,
                handle: *handle,
                shared: None,
                slots: Vec::new(),
            })
            .into_mut()
    }

    /// Takes a file and all its descriptors out.
    pub(super) fn take(&mut self, hash: u64, handle: &NodeHandle) -> Option<CachedFile> {
        let found = self.files.find_entry(hash, |file| file.handle == *handle);
        let (file, _) = found.ok()?.remove();
        for slot in &file.slots {
            self.counters.released(slot, ReleaseReason::Asked);
        }
        Some(file)
    }

    /// Moves the slots that `goes` picks to `gone`, and forgets files without any. Goes on until
    /// `gone` has `most`.
    pub(super) fn evict(
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

impl FileCacheShardCounters {
    pub(super) fn released(&mut self, slot: &DescriptorSlot, reason: ReleaseReason) {
        let DescriptorState::Open(kept) = &slot.state else {
            return;
        };
        self.releases += 1;
        self.evictions += u64::from(reason == ReleaseReason::Evicted);
        self.age_ms += u64::try_from(kept.since.elapsed().as_millis()).unwrap_or(u64::MAX);
    }
}
