//! A part of the cache under one lock: the files it knows, and for each the descriptors by access and caller.

use std::sync::Arc;
use std::time::Instant;

use hashbrown::HashTable;

use super::counters::Tally;
use super::stamp::{OpenFile, Shared};
use crate::caller::Caller;
use crate::handle::NodeHandle;
use crate::local::data::Purpose;

/// A caller, kept: whose rights a descriptor was opened with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::local) struct Who {
    uid: u32,
    gid: u32,
    privileged: bool,
    groups: Box<[u32]>,
}

impl Who {
    pub(in crate::local) fn of(caller: &Caller<'_>) -> Self {
        Self {
            uid: caller.uid,
            gid: caller.gid,
            privileged: caller.privileged,
            groups: caller.groups.into(),
        }
    }

    pub(in crate::local) fn is(&self, caller: &Caller<'_>) -> bool {
        self.uid == caller.uid
            && self.gid == caller.gid
            && self.privileged == caller.privileged
            && *self.groups == *caller.groups
    }
}

/// The descriptors of one file.
pub(super) struct File {
    pub(super) hash: u64,
    pub(super) handle: NodeHandle,
    pub(super) shared: Option<Arc<Shared>>,
    pub(super) slots: Vec<Slot>,
}

/// A descriptor, or the place of one that somebody is opening.
pub(super) struct Slot {
    pub(super) purpose: Purpose,
    pub(super) who: Who,
    pub(super) state: State,
}

pub(super) enum State {
    /// Whoever has this ticket opens it.
    Opening(u64),
    Open(Kept),
}

pub(super) struct Kept {
    pub(super) file: Arc<OpenFile>,
    /// Whether it was used since the last look.
    pub(super) used: bool,
    /// Looks since then.
    pub(super) idle: u8,
    pub(super) since: Instant,
}

#[derive(Default)]
pub(super) struct Shard {
    pub(super) files: HashTable<File>,
    pub(super) tally: Tally,
    pub(super) tickets: u64,
}

/// Why a descriptor is let go of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// The file changed hands, went away, or is wanted by nobody here.
    Asked,
    /// It was idle, or in the way.
    Evicted,
}

/// What a search finds in a shard.
pub(super) enum Search {
    Open(Arc<OpenFile>),
    /// Another thread opens it at this moment.
    Opening,
    Nobody,
}

impl Shard {
    /// Finds a descriptor for exactly this purpose and caller, and counts what it found.
    pub(super) fn search(
        &mut self,
        hash: u64,
        handle: &NodeHandle,
        (purpose, caller): (Purpose, &Caller<'_>),
    ) -> Search {
        let tally = &mut self.tally;
        let file = self.files.find_mut(hash, |file| file.handle == *handle);
        let slot = file.and_then(|file| {
            file.slots
                .iter_mut()
                .find(|slot| slot.purpose == purpose && slot.who.is(caller))
        });
        match slot.map(|slot| &mut slot.state) {
            Some(State::Open(kept)) => {
                kept.used = true;
                tally.hits += 1;
                Search::Open(Arc::clone(&kept.file))
            }
            Some(State::Opening(_)) => Search::Opening,
            None => {
                tally.misses += 1;
                Search::Nobody
            }
        }
    }

    pub(super) fn file(&mut self, hash: u64, handle: &NodeHandle) -> Option<&mut File> {
        self.files.find_mut(hash, |file| file.handle == *handle)
    }

    pub(super) fn file_or_new(&mut self, hash: u64, handle: &NodeHandle) -> &mut File {
        self.files
            .entry(hash, |file| file.handle == *handle, |file| file.hash)
            .or_insert_with(|| File {
                hash,
                handle: *handle,
                shared: None,
                slots: Vec::new(),
            })
            .into_mut()
    }

    /// Takes a file and all its descriptors out.
    pub(super) fn take(&mut self, hash: u64, handle: &NodeHandle) -> Option<File> {
        let found = self.files.find_entry(hash, |file| file.handle == *handle);
        let (file, _) = found.ok()?.remove();
        for slot in &file.slots {
            self.tally.released(slot, Reason::Asked);
        }
        Some(file)
    }

    /// Moves the slots that `goes` picks to `gone`, and forgets files without any. Goes on until `gone` has `most`.
    pub(super) fn evict(
        &mut self,
        gone: &mut Vec<Slot>,
        most: usize,
        mut goes: impl FnMut(&mut Slot) -> bool,
    ) {
        let tally = &mut self.tally;
        self.files.retain(|file| {
            let mut at = 0;
            while at < file.slots.len() && gone.len() < most {
                if goes(&mut file.slots[at]) {
                    let slot = file.slots.swap_remove(at);
                    tally.released(&slot, Reason::Evicted);
                    gone.push(slot);
                } else {
                    at += 1;
                }
            }
            !file.slots.is_empty()
        });
    }
}

impl Tally {
    pub(super) fn released(&mut self, slot: &Slot, reason: Reason) {
        let State::Open(kept) = &slot.state else {
            return;
        };
        self.releases += 1;
        self.evictions += u64::from(reason == Reason::Evicted);
        self.age_ms += u64::try_from(kept.since.elapsed().as_millis()).unwrap_or(u64::MAX);
    }
}
