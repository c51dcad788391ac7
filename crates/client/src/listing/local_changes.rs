//! Entering this client's own changes into cached listings.
//!
//! Owns finding a listed name by name, and the cookies of names that no server has listed yet. A
//! change is entered only if the server's replies prove that nobody else changed the directory
//! meanwhile; otherwise the listing is dropped. Readers keep their places: a removed name is
//! marked, a new one comes last.

use std::{
    hash::{BuildHasher, Hasher as _},
    sync::Arc,
};

use curt_policy::{NameLabel, complete, names::DentryUpdate};
use curt_types::FileKind;

use super::{
    chunk::{ChunkBuilder, ListedEntry, ListingPosition, ReaddirCookie},
    directory_listing::DirectoryListing,
    fetch::ListingGap,
    state::DirectoryListingState,
};

/// Names of our own making in one listing at most.
const LOCAL_NAMES_MAX: usize = 1024;

/// Names of our own get the last cookies; where the server gives such itself, none is entered.
const LOCAL_COOKIE_FIRST: u64 = u64::MAX - LOCAL_NAMES_MAX as u64;

/// What a change of ours came to.
#[derive(Debug, Clone, Copy)]
pub(crate) enum LocalChange<'a> {
    /// It was made, and this is known of the name since; of what it leads to, number and kind.
    Made(&'a [u8], DentryUpdate, Option<(u64, FileKind)>),
    /// Nothing changed.
    Refused {
        name: &'a [u8],
        /// Since the name is there.
        exists: bool,
        /// Nor did anybody else change the directory ([`curt_policy::Absorbed::stands`]).
        stands: bool,
    },
}

/// What a listing says of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NamePresence {
    Present,
    /// It has one that differs in case alone, which some servers take for the same.
    CaseVariant,
    Absent,
}

impl DirectoryListing {
    /// Enters a change; false if it cannot be, and the listing is of no use any more.
    pub(crate) fn apply_change(&self, change: &LocalChange<'_>) -> bool {
        match *change {
            LocalChange::Refused { name, exists, stands } => {
                let is_listed = exists && self.presence_of(name) == NamePresence::Present;
                complete::stays_complete_after_refusal(exists, is_listed, stands)
            }
            LocalChange::Made(name, learned, leads_to) => {
                let survives = self
                    .label()
                    .is_some_and(|label| complete::stays_complete(label, learned));
                survives && self.enter_name(name, leads_to)
            }
        }
    }

    /// `name` leads to this from now on, or is missing.
    fn enter_name(&self, name: &[u8], leads_to: Option<(u64, FileKind)>) -> bool {
        let was_there = self.remove_name(name);
        match leads_to {
            // What was replaced is another object.
            Some((fileid, kind)) => self.add_name(name, fileid, kind),
            None => was_there,
        }
    }

    /// The how-many-th name this is of a whole listing, and where the server tells it.
    pub(super) fn cookie_before_name(&self, name: &[u8]) -> Option<(u32, ListingGap)> {
        let mut state = self.state.lock();
        self.index_names(&mut state);
        let position = self.find_name(&state, name)?;
        let ordinal = state.chunks[position.place].first + u32::try_from(position.name).ok()?;
        Some((ordinal, self.gap_before(&state, position)?))
    }

    /// Where the server tells the `ordinal`-th name of a whole listing.
    pub(super) fn cookie_before(&self, ordinal: u32) -> Option<ListingGap> {
        let state = self.state.lock();
        self.gap_before(&state, state.position(ordinal)?)
    }

    fn gap_before(&self, state: &DirectoryListingState, position: ListingPosition) -> Option<ListingGap> {
        let place = &state.chunks[position.place];
        let gap = |place| ListingGap {
            cookie: place,
            index: position.place,
            is_shared: self.is_whole(),
        };
        if position.name == 0 {
            return Some(gap(place.after()));
        }
        let cookie = place.chunk.as_ref()?.cookie(position.name - 1)?;
        // Names of our own making are known to no server.
        (cookie < LOCAL_COOKIE_FIRST).then_some(())?;
        let verifier = state.verifier_behind(position.place);
        Some(gap(ReaddirCookie { cookie, verifier }))
    }

    /// Marks a name as removed; false if it is not listed.
    fn remove_name(&self, name: &[u8]) -> bool {
        let mut state = self.state.lock();
        self.index_names(&mut state);
        let Some(position) = self.find_name(&state, name) else {
            return false;
        };
        let chunk = state.chunks[position.place].chunk.as_ref();
        chunk.is_some_and(|chunk| chunk.remove(position.name))
    }

    /// Adds a name at the end.
    fn add_name(&self, name: &[u8], fileid: u64, kind: FileKind) -> bool {
        let mut state = self.state.lock();
        if state.local_names == LOCAL_NAMES_MAX
            || state.cookie_max >= LOCAL_COOKIE_FIRST
            || !state.is_complete
        {
            return false;
        }
        if state.pin.is_none() {
            let bytes = state.chunks.iter().filter_map(|place| place.chunk.as_ref());
            state.pin = self.memory().pin(bytes.map(|chunk| chunk.bytes()).sum());
            if state.pin.is_none() {
                return false;
            }
        }
        let mut builder = ChunkBuilder::with_capacity(1);
        builder.push(
            name,
            fileid,
            Some(kind),
            LOCAL_COOKIE_FIRST + state.local_names as u64,
        );
        let charge = self.memory().charge(builder.bytes());
        let chunk = Arc::new(builder.build(self.memory().next_use(), charge));
        if !self.push(&mut state, chunk) {
            return false;
        }
        state.local_names += 1;
        true
    }

    /// What it says of `name`, all of its names being known.
    pub(crate) fn presence_of(&self, name: &[u8]) -> NamePresence {
        self.presence_in(&mut self.state.lock(), name)
    }

    /// By what `name` is missing: all names are known, and it is not among them. Both are seen at
    /// once, for names may be let go at any time.
    pub(super) fn missing_label(&self, name: &[u8]) -> Option<NameLabel> {
        let mut state = self.state.lock();
        let label = self.complete_label_in(&state)?;
        state.answered_at = self.memory().next_use();
        (self.presence_in(&mut state, name) == NamePresence::Absent).then_some(label)
    }

    fn presence_in(&self, state: &mut DirectoryListingState, name: &[u8]) -> NamePresence {
        self.index_names(state);
        if self.find_name(state, name).is_some() {
            return NamePresence::Present;
        }
        let resembles = |ordinal: &u32| {
            with_entry(state, *ordinal, |entry| {
                !entry.is_gone && entry.name.eq_ignore_ascii_case(name)
            })
            .unwrap_or(false)
        };
        let table = state.names.as_ref();
        match table.and_then(|table| table.find(self.hash_name(name), resembles)) {
            Some(_) => NamePresence::CaseVariant,
            None => NamePresence::Absent,
        }
    }

    /// Names that differ in case alone are found together.
    fn hash_name(&self, name: &[u8]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        for piece in name.chunks(32) {
            let mut folded = [0; 32];
            let folded = &mut folded[..piece.len()];
            folded.copy_from_slice(piece);
            folded.make_ascii_lowercase();
            hasher.write(folded);
        }
        hasher.finish()
    }

    fn hash_of(&self, state: &DirectoryListingState, ordinal: u32) -> u64 {
        with_entry(state, ordinal, |entry| self.hash_name(entry.name)).unwrap_or(0)
    }

    /// Has the table that finds names hold all of them.
    fn index_names(&self, state: &mut DirectoryListingState) {
        let known = state.names.take();
        let first = if known.is_some() { state.names_indexed } else { 0 };
        let mut table = known.unwrap_or_default();
        table.reserve((state.count - first) as usize, |known| {
            self.hash_of(state, *known)
        });
        for ordinal in first..state.count {
            // What was let go cannot be found, and many alike would make the table slow.
            let Some(hash) = with_entry(state, ordinal, |entry| self.hash_name(entry.name)) else {
                continue;
            };
            table.insert_unique(hash, ordinal, |known| self.hash_of(state, *known));
        }
        state.names = Some(table);
        state.names_indexed = state.count;
    }

    /// Where a name is that was not removed.
    fn find_name(&self, state: &DirectoryListingState, name: &[u8]) -> Option<ListingPosition> {
        let table = state.names.as_ref()?;
        let is_it = |ordinal: &u32| {
            let position = state.position(*ordinal);
            let entry = position.and_then(|at| state.chunks[at.place].chunk.as_ref()?.entry(at.name));
            entry.is_some_and(|entry| entry.name == name && !entry.is_gone)
        };
        let ordinal = table.find(self.hash_name(name), is_it)?;
        state.position(*ordinal)
    }
}

/// What `of` says of the name that is `ordinal`-th in a listing, unless it was let go.
fn with_entry<T>(
    state: &DirectoryListingState,
    ordinal: u32,
    of: impl FnOnce(ListedEntry<'_>) -> T,
) -> Option<T> {
    let at = state.position(ordinal)?;
    let entry = state.chunks.get(at.place)?.chunk.as_ref()?.entry(at.name)?;
    Some(of(entry))
}

#[cfg(test)]
mod tests {
    use curt_policy::{AttributeState, Epoch, Moment};
    use curt_proto::nfs3::CookieVerifier;

    use super::{
        super::{ListingMemory, directory_listing::AppendOutcome, fetch::ListingOrigin},
        *,
    };

    /// A listing of `names` in two replies, under one state of the directory.
    fn listing(names: &[&str]) -> Arc<DirectoryListing> {
        let memory = ListingMemory::new(1 << 20, Arc::default());
        let sequence = DirectoryListing::new(&memory, ReaddirCookie::default());
        let ticket = AttributeState::unknown().ticket();
        let label = NameLabel {
            epoch: Epoch::default(),
            sent_at: Moment::from_nanoseconds(1),
        };
        let (first, second) = names.split_at(names.len() / 2);
        let mut cookie = 0;
        for (reply, is_last) in [(first, false), (second, true)] {
            let mut builder = ChunkBuilder::with_capacity(reply.len());
            for name in reply {
                cookie += 1;
                builder.push(name.as_bytes(), cookie, None, cookie);
            }
            let appended = sequence.append(builder, CookieVerifier::default(), is_last, 4096);
            assert_eq!(appended, AppendOutcome::Added);
            let learned = ListingOrigin {
                label: Some(label),
                ticket,
                last_ticket: ticket,
                epoch: Some(label.epoch),
            };
            assert!(!sequence.note_origin(learned));
        }
        sequence
    }

    #[test]
    fn a_listing_that_answers_for_a_missing_name_is_in_use_as_a_whole() {
        let sequence = listing(&["a", "b", "c", "d"]);
        let memory = Arc::clone(sequence.memory());
        let before = memory.next_use();
        assert!(sequence.missing_label(b"e").is_some());
        for place in 0..2 {
            let used_since = matches!(sequence.evict(place, before), Err(since) if since > before);
            assert!(used_since, "{place}");
        }
        assert!(sequence.missing_label(b"e").is_some());
        let later = memory.next_use();
        assert!(matches!(sequence.evict(0, later), Ok(Some(_))), "not used since");
        assert_eq!(sequence.missing_label(b"e"), None);
    }

    #[test]
    fn a_listing_of_which_names_were_let_go_says_of_none_that_it_is_missing() {
        let sequence = listing(&["a", "b", "c", "d"]);
        assert!(sequence.missing_label(b"e").is_some());
        assert_eq!(sequence.missing_label(b"a"), None, "it is there");
        assert_eq!(sequence.missing_label(b"A"), None, "who knows");
        assert!(matches!(sequence.evict(0, u64::MAX), Ok(Some(_))));
        assert_eq!(
            sequence.presence_of(b"a"),
            NamePresence::Absent,
            "it is not found any more"
        );
        assert_eq!(sequence.missing_label(b"a"), None);
        assert_eq!(sequence.missing_label(b"e"), None);
        assert_eq!(sequence.presence_of(b"c"), NamePresence::Present);
    }
}
