//! Enters this client's own changes into cached listings, and finds a listed name by name.
//!
//! A change is entered only if the server's replies prove that no other client changed the
//! directory meanwhile; otherwise the listing is dropped. Readers keep their positions: a removed
//! name is marked, and a new one is added at the end, with a cookie that the server has not used.

use std::{
    hash::{BuildHasher, Hasher as _},
    sync::Arc,
};

use curt_policy::{NameLabel, complete_directory, names::DentryUpdate};
use curt_types::FileKind;

use super::cache::{ChunkBuilder, DirectoryListing, LOCAL_COOKIE_FIRST, LOCAL_NAMES_MAX, ListingState};

/// The result of a change of this client.
#[derive(Debug, Clone, Copy)]
pub(crate) enum LocalChange<'a> {
    /// The change succeeded: the name, its cache update, and the fileid and type of its object.
    Made(&'a [u8], DentryUpdate, Option<(u64, FileKind)>),
    /// The change failed and changed nothing.
    Refused {
        name: &'a [u8],
        /// The server returned EEXIST.
        exists: bool,
        /// No other client changed the directory either ([`curt_policy::Absorbed::stands`]).
        stands: bool,
    },
}

/// The presence of a name in a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NamePresence {
    Present,
    /// The listing has a name that differs in case only, which some servers treat as equal.
    CaseVariant,
    Absent,
}

impl DirectoryListing {
    /// Enters a change; false if that is not possible and the listing must be dropped.
    pub(crate) fn apply_change(&self, change: &LocalChange<'_>) -> bool {
        match *change {
            LocalChange::Refused { name, exists, stands } => {
                let is_listed = exists && self.presence_of(name) == NamePresence::Present;
                complete_directory::stays_complete_after_refusal(exists, is_listed, stands)
            }
            LocalChange::Made(name, learned, leads_to) => {
                let label = self.label();
                if !label.is_some_and(|label| complete_directory::stays_complete(label, learned)) {
                    return false;
                }
                let was_there = self.remove_name(name);
                // A replaced name leads to another object.
                leads_to.map_or(was_there, |(fileid, kind)| self.add_name(name, fileid, kind))
            }
        }
    }

    /// Marks a name as removed; false if it is not listed.
    fn remove_name(&self, name: &[u8]) -> bool {
        let state = &mut *self.state.lock();
        self.find_name(state, name, |listed| listed == name).is_some_and(|ordinal| state.remove(ordinal))
    }

    /// Adds a name at the end.
    fn add_name(&self, name: &[u8], fileid: u64, kind: FileKind) -> bool {
        let state = &mut *self.state.lock();
        let is_full = state.local_names == LOCAL_NAMES_MAX;
        if is_full || state.cookie_max >= LOCAL_COOKIE_FIRST || !state.is_complete {
            return false;
        }
        if state.pin.is_none() {
            let chunks = state.slots.iter().filter_map(|slot| slot.chunk.as_ref());
            state.pin = self.memory.pin(chunks.map(|chunk| chunk.charge.bytes).sum());
        }
        let mut builder = ChunkBuilder::default();
        let cookie = LOCAL_COOKIE_FIRST + state.local_names as u64;
        builder.push(name, fileid, Some(kind), cookie);
        let charge = self.memory.charge(builder.bytes());
        let chunk = Arc::new(builder.build(self.memory.next_use(), charge));
        state.local_names += 1;
        state.pin.is_some() && self.push(state, chunk)
    }

    /// The presence of `name`, given that all names are known.
    pub(crate) fn presence_of(&self, name: &[u8]) -> NamePresence {
        self.presence_in(&mut self.state.lock(), name)
    }

    /// The label under which `name` is missing: all names are known, and it is not among them. Both
    /// are checked under one lock, since names may be evicted at any time.
    pub(super) fn missing_label(&self, name: &[u8]) -> Option<NameLabel> {
        let mut state = self.state.lock();
        let label = self.complete_label_in(&state)?;
        state.answered_at = self.memory.next_use();
        (self.presence_in(&mut state, name) == NamePresence::Absent).then_some(label)
    }

    /// Whether names are found without building the table of names first, which takes long in a
    /// large directory.
    pub(super) fn is_indexed(&self) -> bool {
        let state = self.state.lock();
        state.names.is_some() && state.names_indexed == state.count
    }

    fn presence_in(&self, state: &mut ListingState, name: &[u8]) -> NamePresence {
        if self.find_name(state, name, |listed| listed == name).is_some() {
            return NamePresence::Present;
        }
        match self.find_name(state, name, |listed| listed.eq_ignore_ascii_case(name)) {
            Some(_) => NamePresence::CaseVariant,
            None => NamePresence::Absent,
        }
    }

    /// The ordinal of a name.
    pub(super) fn ordinal_of(&self, name: &[u8]) -> Option<u32> {
        self.find_name(&mut self.state.lock(), name, |listed| listed == name)
    }

    /// Finds a name that is not removed. Builds or completes the table first.
    fn find_name(&self, state: &mut ListingState, name: &[u8], is_it: impl Fn(&[u8]) -> bool) -> Option<u32> {
        let first = state.names.as_ref().map_or(0, |_| state.names_indexed);
        let mut table = state.names.take().unwrap_or_default();
        let hash_of = |ordinal: &u32| state.entry(*ordinal).map_or(0, |entry| self.hash_name(entry.name));
        table.reserve((state.count - first) as usize, hash_of);
        for ordinal in first..state.count {
            // Evicted names cannot be found, and many equal hashes would make the table slow.
            if let Some(entry) = state.entry(ordinal) {
                table.insert_unique(self.hash_name(entry.name), ordinal, hash_of);
            }
        }
        let is_it = |ordinal: &u32| {
            let entry = state.entry(*ordinal);
            entry.is_some_and(|entry| !entry.is_gone && is_it(entry.name))
        };
        let found = table.find(self.hash_name(name), is_it).copied();
        (state.names, state.names_indexed) = (Some(table), state.count);
        found
    }

    /// Names that differ only in case have the same hash.
    fn hash_name(&self, name: &[u8]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        name.iter().for_each(|byte| hasher.write_u8(byte.to_ascii_lowercase()));
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use curt_policy::{AttributeState, Epoch, MonotonicTime};
    use curt_types::CookieVerifier;

    use super::{
        super::{cache::ListingOrigin, memory::ListingMemory},
        *,
    };

    /// A listing of `names` in two replies, in one state of the directory.
    fn listing(names: &[&str]) -> Arc<DirectoryListing> {
        let memory = ListingMemory::new(1 << 20, Arc::default());
        let listing = DirectoryListing::from_start(&memory);
        let label = NameLabel { epoch: Epoch::default(), sent_at: MonotonicTime::from_nanoseconds(1) };
        let (first, second) = names.split_at(names.len() / 2);
        let mut cookie = 0;
        for (reply, is_last) in [(first, false), (second, true)] {
            let mut builder = ChunkBuilder::default();
            for name in reply {
                cookie += 1;
                builder.push(name.as_bytes(), cookie, None, cookie);
            }
            assert!(listing.append(builder, CookieVerifier::default(), is_last, 4096));
            assert!(!listing.note_origin(ListingOrigin {
                label: Some(label),
                ticket: AttributeState::unknown().ticket(),
                epoch: Some(label.epoch),
            }));
        }
        listing
    }

    #[test]
    fn a_listing_that_answers_for_a_missing_name_is_in_use_as_a_whole() {
        let listing = listing(&["a", "b", "c", "d"]);
        let memory = Arc::clone(&listing.memory);
        let before = memory.next_use();
        assert!(listing.missing_label(b"e").is_some());
        for slot in 0..2 {
            let used_since = matches!(listing.evict(slot, before), Err(since) if since > before);
            assert!(used_since, "{slot}");
        }
        assert!(listing.missing_label(b"e").is_some());
        let later = memory.next_use();
        assert!(matches!(listing.evict(0, later), Ok(Some(_))), "not used since");
        assert_eq!(listing.missing_label(b"e"), None);
    }

    #[test]
    fn a_listing_with_evicted_names_does_not_answer_for_missing_names() {
        let listing = listing(&["a", "b", "c", "d"]);
        assert!(listing.missing_label(b"e").is_some());
        assert_eq!(listing.missing_label(b"a"), None, "it is there");
        assert_eq!(listing.missing_label(b"A"), None, "who knows");
        assert!(matches!(listing.evict(0, u64::MAX), Ok(Some(_))));
        assert_eq!(listing.presence_of(b"a"), NamePresence::Absent, "it is not found any more");
        assert_eq!(listing.missing_label(b"a"), None);
        assert_eq!(listing.missing_label(b"e"), None);
        assert_eq!(listing.presence_of(b"c"), NamePresence::Present);
    }
}
