//! Changes of our own, entered into listings that are kept.
//!
//! Owns finding a listed name by name, and the cookies of names that no server has listed yet. A change is entered only if the
//! server's replies prove that nobody else changed the directory meanwhile; otherwise the listing is dropped. Readers keep
//! their places: a removed name is marked, a new one comes last.

use std::{hash::BuildHasher, sync::Arc};

use curt_policy::NameLabel;
use hashbrown::HashTable;

use super::{
    chunk::ChunkBuilder,
    sequence::{Position, Sequence, ServerPlace, State},
};
use crate::plan::Kind;

/// Names of our own making in one listing at most.
const OWN_MAX: usize = 1024;

/// Names of our own get the last cookies; where the server gives such itself, none is entered.
const OWN_COOKIE: u64 = u64::MAX - OWN_MAX as u64;

/// What a change of ours came to.
#[derive(Debug, Clone, Copy)]
pub(crate) enum OwnChange<'a> {
    /// Nothing changed.
    None,
    /// The name is missing.
    Gone(&'a [u8], NameLabel),
    /// It leads to this.
    There(&'a [u8], NameLabel, u64, Kind),
}

impl<'a> OwnChange<'a> {
    /// `name` was removed.
    pub(crate) fn gone(name: &'a [u8], label: NameLabel) -> Self {
        Self::Gone(name, label)
    }

    /// `name` leads to the object of this number and kind.
    pub(crate) fn there(name: &'a [u8], label: NameLabel, fileid: u64, kind: Kind) -> Self {
        Self::There(name, label, fileid, kind)
    }
}

impl Sequence {
    /// Enters a change; false if it cannot be, and the listing is of no use any more.
    pub(crate) fn take_change(&self, change: &OwnChange<'_>) -> bool {
        let own = self.label().map(|own| own.epoch);
        let is_same = |label: &NameLabel| own == Some(label.epoch);
        match change {
            OwnChange::None => true,
            OwnChange::Gone(name, label) => is_same(label) && self.remove_name(name),
            OwnChange::There(name, label, fileid, kind) => {
                // What was replaced is another object.
                is_same(label) && {
                    self.remove_name(name);
                    self.add_name(name, *fileid, *kind)
                }
            }
        }
    }

    /// The how-many-th name this is of a whole listing, and where the server tells it.
    pub(super) fn place_of(&self, name: &[u8]) -> Option<(u32, ServerPlace)> {
        let mut state = self.state.lock();
        self.index_names(&mut state);
        let position = self.find_name(&state, name)?;
        let place = &state.places[position.place];
        let ordinal = place.first + u32::try_from(position.name).ok()?;
        if position.name == 0 {
            return Some((ordinal, place.after()));
        }
        let cookie = place.chunk.as_ref()?.cookie(position.name - 1)?;
        // Names of our own making are known to no server.
        (cookie < OWN_COOKIE).then_some(())?;
        let verifier = state.verifier_behind(position.place);
        Some((ordinal, ServerPlace { cookie, verifier }))
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
        let ordinal = state.count;
        if !self.push(&mut state, chunk) {
            return false;
        }
        state.own += 1;
        let State { places: _, names, .. } = &mut *state;
        if let Some(mut table) = names.take() {
            let hash = self.hash_name(name);
            table.insert_unique(hash, ordinal, |known| self.hash_of(&state, *known));
            state.names = Some(table);
        }
        true
    }

    fn hash_name(&self, name: &[u8]) -> u64 {
        self.hasher.hash_one(name)
    }

    fn hash_of(&self, state: &State, ordinal: u32) -> u64 {
        with_name(state, ordinal, |name| self.hash_name(name)).unwrap_or(0)
    }

    /// Makes the table that finds names.
    fn index_names(&self, state: &mut State) {
        if state.names.is_some() {
            return;
        }
        let mut table = HashTable::with_capacity(state.count as usize);
        for ordinal in 0..state.count {
            let hash = self.hash_of(state, ordinal);
            table.insert_unique(hash, ordinal, |known| self.hash_of(state, *known));
        }
        state.names = Some(table);
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
fn with_name<T>(state: &State, ordinal: u32, of: impl FnOnce(&[u8]) -> T) -> Option<T> {
    let at = state.position(ordinal)?;
    let entry = state.places.get(at.place)?.chunk.as_ref()?.entry(at.name)?;
    Some(of(entry.name))
}
