//! A directory's names in the server's order, as far as they were asked for.
//!
//! Owns the chunks, and tables that find a chunk and a place in it by cookie (and by name) at once.
//! A sequence grows at its end alone and its places never move, so any number of readers go through
//! it at their own pace; one that belongs to a former state of the directory lives on as long as
//! somebody reads it. Chunks may be evicted: their readers ask the server again from where they
//! are. Must not send anything. Its lock is a leaf, taken under an inode's facts or by itself.

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
    chunk::{ChunkBuilder, ListingChunk, ListingPosition, ReaddirCookie},
    memory::{EvictNames, ListingMemory},
    state::{ChunkSlot, DirectoryListingState, cookie_at},
};

/// What became of a reply's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AppendOutcome {
    Added,
    /// The server goes round in circles.
    Loop,
}

/// What a reader finds at a place.
#[derive(Debug)]
pub(super) enum ListingStep {
    Names(Arc<ListingChunk>),
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
pub(crate) struct DirectoryListing {
    memory: Arc<ListingMemory>,
    pub(super) hasher: RandomState,
    start: ReaddirCookie,
    pub(super) state: Mutex<DirectoryListingState>,
    readers: AtomicUsize,
    /// The number of the directory, for events; 0 until the first reply.
    directory_fileid: AtomicU64,
    /// Events were told that whoever begins to read is not told these names any more.
    is_invalidation_traced: AtomicBool,
}

impl DirectoryListing {
    /// One that begins behind `start`; the directory's beginning is the default.
    pub(super) fn new(memory: &Arc<ListingMemory>, start: ReaddirCookie) -> Arc<Self> {
        Arc::new(Self {
            memory: Arc::clone(memory),
            hasher: RandomState::new(),
            start,
            state: Mutex::new(DirectoryListingState {
                end: start,
                ..DirectoryListingState::default()
            }),
            readers: AtomicUsize::new(0),
            directory_fileid: AtomicU64::new(0),
            is_invalidation_traced: AtomicBool::new(false),
        })
    }

    pub(super) fn hash_cookie(&self, cookie: u64) -> u64 {
        self.hasher.hash_one(cookie)
    }

    /// It is of the directory of this number. Orders nothing, as little as what reads it.
    pub(super) fn set_directory(&self, dir: u64) {
        self.directory_fileid.store(dir, Relaxed);
    }

    /// The number of its directory.
    pub(super) fn dir(&self) -> u64 {
        self.directory_fileid.load(Relaxed)
    }

    /// Tells, once, that it does not say any more what is in the directory.
    pub(crate) fn trace_invalidated(&self, reason: &str) {
        if Event::NfsReaddirInvalidateCacheRange.is_wanted()
            && !self.is_invalidation_traced.swap(true, Relaxed)
        {
            self.trace_dropped(0..self.count(), reason);
        }
    }

    /// Tells that the names of a place were let go.
    pub(super) fn trace_evicted(&self, place: usize) {
        // What is one reader's alone is told to nobody else anyway.
        if self.is_whole() && Event::NfsReaddirInvalidateCacheRange.is_wanted() {
            let range = self
                .state
                .lock()
                .chunks
                .get(place)
                .map(|place| place.first..place.first + place.count);
            self.trace_dropped(range.unwrap_or_default(), "there is no room");
        }
    }

    fn trace_dropped(&self, range: Range<u32>, reason: &str) {
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

    /// By what it may be believed, if it was learned under one state of the directory and nothing
    /// of it was let go.
    pub(crate) fn label(&self) -> Option<NameLabel> {
        let state = self.state.lock();
        let is_intact = !state.is_evicted && !state.is_broken;
        state.scan?.label().filter(|_| is_intact)
    }

    /// It does not hold the directory's names under one state any more, or never did.
    pub(crate) fn mark_inconsistent(&self) {
        if let Some(pass) = &mut self.state.lock().scan {
            pass.mark_inconsistent();
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
    pub(super) fn end(&self) -> ReaddirCookie {
        self.state.lock().end
    }

    /// One more reads it.
    pub(super) fn add_reader(&self) {
        self.readers.fetch_add(1, Relaxed);
    }

    /// One less reads it; what was asked for ahead of the last one is called off. True if there was
    /// such.
    pub(super) fn remove_reader(&self) -> bool {
        if self.readers.fetch_sub(1, Relaxed) > 1 {
            return false;
        }
        let ahead = self.state.lock().request.take();
        ahead.is_some_and(|ahead| ahead.cancel())
    }

    /// Where the name after `cookie` is.
    pub(super) fn find(&self, cookie: u64) -> Option<ListingPosition> {
        if cookie == self.start.cookie {
            return Some(ListingPosition::default());
        }
        let state = self.state.lock();
        if let Some(position) = self.indexed(&state, cookie) {
            return Some(ListingPosition {
                name: position.name + 1,
                ..position
            });
        }
        // The last name before what was let go.
        let place = state
            .chunks
            .iter()
            .position(|place| place.after.cookie == cookie)?;
        Some(ListingPosition { place, name: 0 })
    }

    fn indexed(&self, state: &DirectoryListingState, cookie: u64) -> Option<ListingPosition> {
        let same = |ordinal: &u32| state.cookie(*ordinal) == Some(cookie);
        let ordinal = state.cookies.find(self.hash_cookie(cookie), same)?;
        state.position(*ordinal)
    }

    /// What is at a position; what is used up or empty is passed over.
    pub(super) fn step(&self, position: &mut ListingPosition) -> ListingStep {
        let state = self.state.lock();
        loop {
            let Some(place) = state.chunks.get(position.place) else {
                if state.is_complete {
                    return ListingStep::End;
                }
                let is_near = state.request.as_ref().is_some_and(|ahead| ahead.is_ready());
                return ListingStep::Unread { is_near };
            };
            if position.name < place.count as usize {
                return match &place.chunk {
                    Some(chunk) => {
                        chunk.mark_used(self.memory.next_use());
                        ListingStep::Names(Arc::clone(chunk))
                    }
                    None => ListingStep::Evicted,
                };
            }
            *position = ListingPosition {
                place: position.place + 1,
                name: 0,
            };
        }
    }

    /// The server's verifier for the cookie of the name before `position`, and how many bytes were
    /// asked for last.
    pub(super) fn verifier_and_size(&self, position: ListingPosition) -> (CookieVerifier, u32) {
        let state = self.state.lock();
        // A place names what the reply before it said.
        let place = position.place + usize::from(position.name > 0);
        let next = state.chunks.get(place).map(|next| next.after.verifier);
        (next.unwrap_or(state.end.verifier), state.size)
    }

    /// Adds a reply's names at the end.
    pub(super) fn append(
        self: &Arc<Self>,
        builder: ChunkBuilder,
        verifier: CookieVerifier,
        is_last: bool,
        size: u32,
    ) -> AppendOutcome {
        let used_at = self.memory.next_use();
        let charge = self.memory.charge(builder.bytes());
        let chunk = Arc::new(builder.build(used_at, charge));
        let place = {
            let mut state = self.state.lock();
            if state.is_broken || !self.push(&mut state, Arc::clone(&chunk)) {
                state.is_broken = true;
                return AppendOutcome::Loop;
            }
            let cookie = chunk.last_cookie().unwrap_or(state.end.cookie);
            let largest = (0..chunk.len()).filter_map(|index| chunk.cookie(index)).max();
            state.cookie_max = state.cookie_max.max(largest.unwrap_or(0));
            state.end = ReaddirCookie { cookie, verifier };
            state.is_complete = is_last;
            state.has_readahead_failed = false;
            state.size = size;
            state.chunks.len() - 1
        };
        self.memory.added(Arc::<Self>::downgrade(self), place, used_at);
        AppendOutcome::Added
    }

    /// Adds a chunk and enters its cookies; false if one comes twice in it, or if it ends where the
    /// listing was before.
    pub(super) fn push(&self, state: &mut DirectoryListingState, chunk: Arc<ListingChunk>) -> bool {
        let (first, length) = (state.count, chunk.len());
        let Some(count) = u32::try_from(length)
            .ok()
            .filter(|count| first.checked_add(*count).is_some())
        else {
            return false;
        };
        state.chunks.push(ChunkSlot {
            first,
            count,
            after: state.end,
            chunk: Some(Arc::clone(&chunk)),
        });
        state.count += count;
        let DirectoryListingState {
            chunks: places,
            cookies,
            ..
        } = &mut *state;
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

    /// Lets a chunk go unless it was used since. Gives it, to be dropped without a lock; or when it
    /// was used last.
    pub(super) fn evict(&self, place: usize, used_at: u64) -> Result<Option<Arc<ListingChunk>>, u64> {
        let mut state = self.state.lock();
        let is_pinned = state.pin.is_some();
        let Some(chunk) = state.chunks.get(place).and_then(|place| place.chunk.clone()) else {
            return Ok(None);
        };
        let last_used_at = chunk.used_at().max(state.answered_at);
        if last_used_at > used_at || is_pinned {
            return Err(last_used_at);
        }
        self.forget_cookies(&mut state, place, &chunk);
        state.names = None;
        state.is_evicted = true;
        state.chunks[place].chunk = None;
        Ok(Some(chunk))
    }

    fn forget_cookies(&self, state: &mut DirectoryListingState, place: usize, chunk: &ListingChunk) {
        let first = state.chunks[place].first;
        for (index, ordinal) in (0..chunk.len()).zip(first..) {
            let Some(cookie) = chunk.cookie(index) else { break };
            let hash = self.hash_cookie(cookie);
            if let Ok(entry) = state.cookies.find_entry(hash, |known| *known == ordinal) {
                entry.remove();
            }
        }
    }

    /// Tells `listener` every name before `end`; false if some were let go.
    pub(super) fn before(&self, end: ListingPosition, listener: &mut dyn FnMut(&[u8])) -> bool {
        let chunks: Vec<(Option<Arc<ListingChunk>>, usize)> = {
            let state = self.state.lock();
            let places = state.chunks.iter().take(end.place + 1).enumerate();
            let upto = |index, place: &ChunkSlot| {
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
    pub(super) fn count_before(&self, position: ListingPosition) -> usize {
        let state = self.state.lock();
        let first = state
            .chunks
            .get(position.place)
            .map_or(state.count, |place| place.first);
        first as usize + position.name
    }

    pub(super) fn memory(&self) -> &Arc<ListingMemory> {
        &self.memory
    }
}

impl fmt::Debug for DirectoryListing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        f.debug_struct("Sequence")
            .field("names", &state.count)
            .field("is_complete", &state.is_complete)
            .finish_non_exhaustive()
    }
}

impl EvictNames for DirectoryListing {
    fn evict_names(&self, place: usize, used_at: u64) -> Result<bool, u64> {
        let gone = self.evict(place, used_at)?;
        if gone.is_some() {
            self.trace_evicted(place);
        }
        Ok(gone.is_some())
    }
}
