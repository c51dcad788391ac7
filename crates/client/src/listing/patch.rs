//! Entering this client's own changes into cached listings.
//!
//! Owns finding a listed name by name, and the cookies of names that no server has listed yet. A change is entered only if the
//! server's replies prove that nobody else changed the directory meanwhile; otherwise the listing is dropped. Readers keep
//! their places: a removed name is marked, a new one comes last.

use std::{
    hash::{BuildHasher, Hasher as _},
    sync::Arc,
};

use curt_policy::{NameLabel, complete, names::Learned};

use super::{
    chunk::{ChunkBuilder, ListedEntry},
    growing::Gap,
    places::State,
    sequence::{Position, Sequence, ServerPlace},
};
use crate::plan::Kind;

/// Names of our own making in one listing at most.
const OWN_MAX: usize = 1024;

/// Names of our own get the last cookies; where the server gives such itself, none is entered.
const OWN_COOKIE: u64 = u64::MAX - OWN_MAX as u64;

/// What a change of ours came to.
#[derive(Debug, Clone, Copy)]
pub(crate) enum OwnChange<'a> {
    /// It was made, and this is known of the name since; of what it leads to, number and kind.
    Made(&'a [u8], Learned, Option<(u64, Kind)>),
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
pub(crate) enum Says {
    Has,
    /// It has one that differs in case alone, which some servers take for the same.
    Resembles,
    Lacks,
}

impl Sequence {
    /// Enters a change; false if it cannot be, and the listing is of no use any more.
    pub(crate) fn take_change(&self, change: &OwnChange<'_>) -> bool {
        match *change {
            OwnChange::Refused { name, exists, stands } => {
                let is_listed = exists && self.says(name) == Says::Has;
                complete::survives_refusal(exists, is_listed, stands)
            }
            OwnChange::Made(name, learned, leads_to) => {
                let survives = self
                    .label()
                    .is_some_and(|label| complete::survives(label, learned));
                survives && self.enter_name(name, leads_to)
            }
        }
    }

    /// `name` leads to this from now on, or is missing.
    fn enter_name(&self, name: &[u8], leads_to: Option<(u64, Kind)>) -> bool {
        let was_there = self.remove_name(name);
        match leads_to {
            // What was replaced is another object.
            Some((fileid, kind)) => self.add_name(name, fileid, kind),
            None => was_there,
        }
    }

    /// The how-many-th name this is of a whole listing, and where the server tells it.
    pub(super) fn place_of(&self, name: &[u8]) -> Option<(u32, Gap)> {
        let mut state = self.state.lock();
        self.index_names(&mut state);
        let position = self.find_name(&state, name)?;
        let ordinal = state.places[position.place].first + u32::try_from(position.name).ok()?;
        Some((ordinal, self.gap_before(&state, position)?))
    }

    /// Where the server tells the `ordinal`-th name of a whole listing.
    pub(super) fn place_at(&self, ordinal: u32) -> Option<Gap> {
        let state = self.state.lock();
        self.gap_before(&state, state.position(ordinal)?)
    }

    fn gap_before(&self, state: &State, position: Position) -> Option<Gap> {
        let place = &state.places[position.place];
        let gap = |place| Gap {
            place,
            index: position.place,
            is_shared: self.is_whole(),
        };
        if position.name == 0 {
            return Some(gap(place.after()));
        }
        let cookie = place.chunk.as_ref()?.cookie(position.name - 1)?;
        // Names of our own making are known to no server.
        (cookie < OWN_COOKIE).then_some(())?;
        let verifier = state.verifier_behind(position.place);
        Some(gap(ServerPlace { cookie, verifier }))
    }

    /// Marks a name as removed; false if it is not listed.
    fn remove_name(&self, name: &[u8]) -> bool {
        let mut state = self.state.lock();
        self.index_names(&mut state);
        let Some(position) = self.find_name(&state, name) else {
            return false;
        };
        let chunk = state.places[position.place].chunk.as_ref();
        chunk.is_some_and(|chunk| chunk.remove(position.name))
    }

    /// Adds a name at the end.
    fn add_name(&self, name: &[u8], fileid: u64, kind: Kind) -> bool {
        let mut state = self.state.lock();
        if state.own == OWN_MAX || state.cookie_max >= OWN_COOKIE || !state.is_complete {
            return false;
        }
        if state.pin.is_none() {
            let bytes = state.places.iter().filter_map(|place| place.chunk.as_ref());
            state.pin = self.memory().pin(bytes.map(|chunk| chunk.bytes()).sum());
            if state.pin.is_none() {
                return false;
            }
        }
        let mut builder = ChunkBuilder::with_capacity(1);
        builder.push(name, fileid, Some(kind), OWN_COOKIE + state.own as u64);
        let charge = self.memory().charge(builder.bytes());
        let chunk = Arc::new(builder.build(self.memory().next_use(), charge));
        if !self.push(&mut state, chunk) {
            return false;
        }
        state.own += 1;
        true
    }

    /// What it says of `name`, all of its names being known.
    pub(crate) fn says(&self, name: &[u8]) -> Says {
        self.says_in(&mut self.state.lock(), name)
    }

    /// By what `name` is missing: all names are known, and it is not among them. Both are seen at once, for names may be let go at
    /// any time.
    pub(super) fn lacks(&self, name: &[u8]) -> Option<NameLabel> {
        let mut state = self.state.lock();
        let label = self.complete_label_in(&state)?;
        state.answered_at = self.memory().next_use();
        (self.says_in(&mut state, name) == Says::Lacks).then_some(label)
    }

    fn says_in(&self, state: &mut State, name: &[u8]) -> Says {
        self.index_names(state);
        if self.find_name(state, name).is_some() {
            return Says::Has;
        }
        let resembles = |ordinal: &u32| {
            with_entry(state, *ordinal, |entry| {
                !entry.is_gone && entry.name.eq_ignore_ascii_case(name)
            })
            .unwrap_or(false)
        };
        let table = state.names.as_ref();
        match table.and_then(|table| table.find(self.hash_name(name), resembles)) {
            Some(_) => Says::Resembles,
            None => Says::Lacks,
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

    fn hash_of(&self, state: &State, ordinal: u32) -> u64 {
        with_entry(state, ordinal, |entry| self.hash_name(entry.name)).unwrap_or(0)
    }

    /// Has the table that finds names hold all of them.
    fn index_names(&self, state: &mut State) {
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
    fn find_name(&self, state: &State, name: &[u8]) -> Option<Position> {
        let table = state.names.as_ref()?;
        let is_it = |ordinal: &u32| {
            let position = state.position(*ordinal);
            let entry = position.and_then(|at| state.places[at.place].chunk.as_ref()?.entry(at.name));
            entry.is_some_and(|entry| entry.name == name && !entry.is_gone)
        };
        let ordinal = table.find(self.hash_name(name), is_it)?;
        state.position(*ordinal)
    }
}

/// What `of` says of the name that is `ordinal`-th in a listing, unless it was let go.
fn with_entry<T>(state: &State, ordinal: u32, of: impl FnOnce(ListedEntry<'_>) -> T) -> Option<T> {
    let at = state.position(ordinal)?;
    let entry = state.places.get(at.place)?.chunk.as_ref()?.entry(at.name)?;
    Some(of(entry))
}

#[cfg(test)]
mod tests {
    use curt_policy::{AttributeState, Epoch, Moment};
    use curt_proto::nfs3::CookieVerifier;

    use super::{
        super::{ListingMemory, growing::Learned, sequence::Appended},
        *,
    };

    /// A listing of `names` in two replies, under one state of the directory.
    fn listing(names: &[&str]) -> Arc<Sequence> {
        let memory = ListingMemory::new(1 << 20, Arc::default());
        let sequence = Sequence::new(&memory, ServerPlace::default());
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
            let appended = sequence.append(builder, (CookieVerifier::default(), is_last), 4096);
            assert_eq!(appended, Appended::Here);
            let learned = Learned {
                label: Some(label),
                ticket,
                last_ticket: ticket,
                epoch: Some(label.epoch),
            };
            assert!(!sequence.learn(learned));
        }
        sequence
    }

    #[test]
    fn a_listing_that_answers_for_a_missing_name_is_in_use_as_a_whole() {
        let sequence = listing(&["a", "b", "c", "d"]);
        let memory = Arc::clone(sequence.memory());
        let before = memory.next_use();
        assert!(sequence.lacks(b"e").is_some());
        for place in 0..2 {
            let used_since = matches!(sequence.evict(place, before), Err(since) if since > before);
            assert!(used_since, "{place}");
        }
        assert!(sequence.lacks(b"e").is_some());
        let later = memory.next_use();
        assert!(matches!(sequence.evict(0, later), Ok(Some(_))), "not used since");
        assert_eq!(sequence.lacks(b"e"), None);
    }

    #[test]
    fn a_listing_of_which_names_were_let_go_says_of_none_that_it_is_missing() {
        let sequence = listing(&["a", "b", "c", "d"]);
        assert!(sequence.lacks(b"e").is_some());
        assert_eq!(sequence.lacks(b"a"), None, "it is there");
        assert_eq!(sequence.lacks(b"A"), None, "who knows");
        assert!(matches!(sequence.evict(0, u64::MAX), Ok(Some(_))));
        assert_eq!(sequence.says(b"a"), Says::Lacks, "it is not found any more");
        assert_eq!(sequence.lacks(b"a"), None);
        assert_eq!(sequence.lacks(b"e"), None);
        assert_eq!(sequence.says(b"c"), Says::Has);
    }
}
