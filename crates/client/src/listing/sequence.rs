//! A directory's names in the server's order, as far as they were asked for.
//!
//! Owns the chunks, and tables that find a chunk and a place in it by cookie (and by name) at once. A sequence grows at its end
//! alone and its places never move, so any number of readers go through it at their own pace; one that belongs to a former
//! state of the directory lives on as long as somebody reads it. Chunks may be evicted: their readers ask the server again from
//! where they are. Must not send anything. Its lock is a leaf, taken under an inode's facts or by itself.

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use curt_policy::{NameLabel, listing::NAMES_WITHOUT_STAT_MAX};
use curt_proto::nfs3::CookieVerifier;
use curt_trace::{events::Event, probe};
use parking_lot::Mutex;

use super::{
    chunk::{Chunk, ChunkBuilder},
    memory::ListingMemory,
    places::{Place, State, cookie_at},
};

/// Where the next name is: in which chunk, and which of its names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) place: usize,
    pub(super) name: usize,
}

/// What the server said of where a listing goes on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ServerPlace {
    pub(super) cookie: u64,
    pub(super) verifier: CookieVerifier,
}

/// What became of a reply's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Appended {
    Here,
    /// The server goes round in circles.
    Loop,
}

/// What a reader finds at a place.
#[derive(Debug)]
pub(super) enum Step {
    Names(Arc<Chunk>),
    /// They were let go.
    Evicted,
    /// Nobody asked yet what follows; `is_near`: what follows is here and only to be taken.
    Unread {
        is_near: bool,
    },
    /// The directory ends.
    End,
}

/// A directory's names in order.
pub(crate) struct Sequence {
    memory: Arc<ListingMemory>,
    pub(super) hasher: RandomState,
    start: ServerPlace,
    pub(super) state: Mutex<State>,
    readers: AtomicUsize,
    /// The number of the directory, for events; 0 until the first reply.
    dir: AtomicU64,
    /// Events were told that whoever begins to read is not told these names any more.
    is_told_void: AtomicBool,
}

impl Sequence {
    /// One that begins behind `start`; the directory's beginning is the default.
    pub(super) fn new(memory: &Arc<ListingMemory>, start: ServerPlace) -> Arc<Self> {
        Arc::new(Self {
            memory: Arc::clone(memory),
            hasher: RandomState::new(),
            start,
            state: Mutex::new(State {
                end: start,
                ..State::default()
            }),
            readers: AtomicUsize::new(0),
            dir: AtomicU64::new(0),
            is_told_void: AtomicBool::new(false),
        })
    }

    pub(super) fn hash_cookie(&self, cookie: u64) -> u64 {
        self.hasher.hash_one(cookie)
    }

    /// It is of the directory of this number. Orders nothing, as little as what reads it.
    pub(super) fn is_of(&self, dir: u64) {
        self.dir.store(dir, Relaxed);
    }

    /// The number of its directory.
    pub(super) fn dir(&self) -> u64 {
        self.dir.load(Relaxed)
    }

    /// Tells, once, that it does not say any more what is in the directory.
    pub(crate) fn tell_void(&self, reason: &str) {
        if Event::NfsReaddirInvalidateCacheRange.is_wanted() && !self.is_told_void.swap(true, Relaxed) {
            self.tell_gone(0..self.count(), reason);
        }
    }

    /// Tells that the names of a place were let go.
    pub(super) fn tell_evicted(&self, place: usize) {
        // What is one reader's alone is told to nobody else anyway.
        if self.is_whole() && Event::NfsReaddirInvalidateCacheRange.is_wanted() {
            let range = self
                .state
                .lock()
                .places
                .get(place)
                .map(|place| place.first..place.first + place.count);
            self.tell_gone(range.unwrap_or_default(), "there is no room");
        }
    }

    fn tell_gone(&self, range: Range<u32>, reason: &str) {
        probe!(NfsReaddirInvalidateCacheRange {
            dir: self.dir(),
            range_start: range.start,
            range_end: range.end,
            reason
        });
    }

    /// Whether it begins where the directory does.
    pub(super) fn is_whole(&self) -> bool {
        self.start.cookie == 0
    }

    /// By what it may be believed, if it was learned under one state of the directory and nothing of it was let go.
    pub(crate) fn label(&self) -> Option<NameLabel> {
        let state = self.state.lock();
        let is_intact = !state.is_evicted && !state.is_broken;
        state.pass?.label().filter(|_| is_intact)
    }

    /// It does not hold the directory's names under one state any more, or never did.
    pub(crate) fn tear(&self) {
        if let Some(pass) = &mut self.state.lock().pass {
            pass.tear();
        }
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.state.lock().is_complete
    }

    /// How many names it has.
    pub(super) fn count(&self) -> u32 {
        self.state.lock().count
    }

    /// Whether it has more names than are listed with attributes for nobody.
    pub(super) fn is_large(&self) -> bool {
        self.count() > NAMES_WITHOUT_STAT_MAX
    }

    /// Where the server goes on behind the last name.
    pub(super) fn end(&self) -> ServerPlace {
        self.state.lock().end
    }

    /// One more reads it.
    pub(super) fn enter(&self) {
        self.readers.fetch_add(1, Relaxed);
    }

    /// One less reads it; what was asked for ahead of the last one is called off. True if there was such.
    pub(super) fn leave(&self) -> bool {
        if self.readers.fetch_sub(1, Relaxed) > 1 {
            return false;
        }
        let ahead = self.state.lock().ahead.take();
        ahead.is_some_and(|ahead| ahead.call_off())
    }

    /// Where the name after `cookie` is.
    pub(super) fn find(&self, cookie: u64) -> Option<Position> {
        if cookie == self.start.cookie {
            return Some(Position::default());
        }
        let state = self.state.lock();
        if let Some(position) = self.indexed(&state, cookie) {
            return Some(Position {
                name: position.name + 1,
                ..position
            });
        }
        // The last name before what was let go.
        let place = state
            .places
            .iter()
            .position(|place| place.after.cookie == cookie)?;
        Some(Position { place, name: 0 })
    }

    fn indexed(&self, state: &State, cookie: u64) -> Option<Position> {
        let same = |ordinal: &u32| state.cookie(*ordinal) == Some(cookie);
        let ordinal = state.cookies.find(self.hash_cookie(cookie), same)?;
        state.position(*ordinal)
    }

    /// What is at a position; what is used up or empty is passed over.
    pub(super) fn step(&self, position: &mut Position) -> Step {
        let state = self.state.lock();
        loop {
            let Some(place) = state.places.get(position.place) else {
                if state.is_complete {
                    return Step::End;
                }
                let is_near = state.ahead.as_ref().is_some_and(|ahead| ahead.is_near());
                return Step::Unread { is_near };
            };
            if position.name < place.count as usize {
                return match &place.chunk {
                    Some(chunk) => {
                        chunk.is_used(self.memory.next_use());
                        Step::Names(Arc::clone(chunk))
                    }
                    None => Step::Evicted,
                };
            }
            *position = Position {
                place: position.place + 1,
                name: 0,
            };
        }
    }

    /// The server's verifier for the cookie of the name before `position`, and how many bytes were asked for last.
    pub(super) fn verifier_and_size(&self, position: Position) -> (CookieVerifier, u32) {
        let state = self.state.lock();
        // A place names what the reply before it said.
        let place = position.place + usize::from(position.name > 0);
        let next = state.places.get(place).map(|next| next.after.verifier);
        (next.unwrap_or(state.end.verifier), state.size)
    }

    /// Adds a reply's names at the end.
    pub(super) fn append(
        self: &Arc<Self>,
        builder: ChunkBuilder,
        (verifier, is_last): (CookieVerifier, bool),
        size: u32,
    ) -> Appended {
        let used_at = self.memory.next_use();
        let charge = self.memory.charge(builder.bytes());
        let chunk = Arc::new(builder.build(used_at, charge));
        let place = {
            let mut state = self.state.lock();
            if state.is_broken || !self.push(&mut state, Arc::clone(&chunk)) {
                state.is_broken = true;
                return Appended::Loop;
            }
            let cookie = chunk.last_cookie().unwrap_or(state.end.cookie);
            let largest = (0..chunk.len()).filter_map(|index| chunk.cookie(index)).max();
            state.cookie_max = state.cookie_max.max(largest.unwrap_or(0));
            state.end = ServerPlace { cookie, verifier };
            state.is_complete = is_last;
            state.is_ahead_futile = false;
            state.size = size;
            state.places.len() - 1
        };
        self.memory.added(self, place, used_at);
        Appended::Here
    }

    /// Adds a chunk and enters its cookies; false if one comes twice in it, or if it ends where the listing was before.
    pub(super) fn push(&self, state: &mut State, chunk: Arc<Chunk>) -> bool {
        let (first, length) = (state.count, chunk.len());
        let Some(count) = u32::try_from(length)
            .ok()
            .filter(|count| first.checked_add(*count).is_some())
        else {
            return false;
        };
        state.places.push(Place {
            first,
            count,
            after: state.end,
            chunk: Some(Arc::clone(&chunk)),
        });
        state.count += count;
        let State { places, cookies, .. } = &mut *state;
        let cookie_of = |ordinal: u32| cookie_at(places, ordinal);
        let again = |ordinal: &u32| self.hash_cookie(cookie_of(*ordinal).unwrap_or(0));
        cookies.reserve(length, again);
        for (index, ordinal) in (0..length).zip(first..) {
            let Some(cookie) = chunk.cookie(index) else { break };
            // Whoever goes on behind such a name begins again.
            if cookie == 0 || cookie == self.start.cookie {
                return false;
            }
            let hash = self.hash_cookie(cookie);
            match cookies.find(hash, |known| cookie_of(*known) == Some(cookie)) {
                Some(known) if *known >= first || index + 1 == length => return false,
                Some(_) => {}
                None => {
                    cookies.insert_unique(hash, ordinal, again);
                }
            }
        }
        true
    }

    /// Lets a chunk go unless it was used since. Gives it, to be dropped without a lock; or when it was used last.
    pub(super) fn evict(&self, place: usize, used_at: u64) -> Result<Option<Arc<Chunk>>, u64> {
        let mut state = self.state.lock();
        let is_pinned = state.pin.is_some();
        let Some(chunk) = state.places.get(place).and_then(|place| place.chunk.clone()) else {
            return Ok(None);
        };
        let last_used_at = chunk.used_at().max(state.answered_at);
        if last_used_at > used_at || is_pinned {
            return Err(last_used_at);
        }
        self.forget_cookies(&mut state, place, &chunk);
        state.names = None;
        state.is_evicted = true;
        state.places[place].chunk = None;
        Ok(Some(chunk))
    }

    fn forget_cookies(&self, state: &mut State, place: usize, chunk: &Chunk) {
        let first = state.places[place].first;
        for (index, ordinal) in (0..chunk.len()).zip(first..) {
            let Some(cookie) = chunk.cookie(index) else { break };
            let hash = self.hash_cookie(cookie);
            if let Ok(entry) = state.cookies.find_entry(hash, |known| *known == ordinal) {
                entry.remove();
            }
        }
    }

    /// Tells `listener` every name before `end`; false if some were let go.
    pub(super) fn before(&self, end: Position, listener: &mut dyn FnMut(&[u8])) -> bool {
        let chunks: Vec<(Option<Arc<Chunk>>, usize)> = {
            let state = self.state.lock();
            let places = state.places.iter().take(end.place + 1).enumerate();
            let upto = |index, place: &Place| {
                if index == end.place {
                    end.name
                } else {
                    place.count as usize
                }
            };
            places
                .map(|(index, place)| (place.chunk.clone(), upto(index, place)))
                .collect()
        };
        for (chunk, count) in chunks.into_iter().filter(|(_, count)| *count > 0) {
            let Some(chunk) = chunk else { return false };
            (0..count)
                .filter_map(|index| chunk.entry(index))
                .for_each(|entry| listener(entry.name));
        }
        true
    }

    /// How many names come before `position`.
    pub(super) fn count_before(&self, position: Position) -> usize {
        let state = self.state.lock();
        let first = state
            .places
            .get(position.place)
            .map_or(state.count, |place| place.first);
        first as usize + position.name
    }

    pub(super) fn memory(&self) -> &Arc<ListingMemory> {
        &self.memory
    }
}

impl fmt::Debug for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        f.debug_struct("Sequence")
            .field("names", &state.count)
            .field("is_complete", &state.is_complete)
            .finish_non_exhaustive()
    }
}
