//! A directory's names in the server's order, as far as they were requested, and the replies that
//! they come from.
//!
//! Owns the chunks, and the table that finds a name by its cookie. A chunk has the names of one
//! reply: one allocation for all names, and 24 bytes for each; a name that this client removed is
//! marked. A name's ordinal never changes, so any number of readers go through a listing at their
//! own pace. An evicted chunk leaves its slot: its readers request the names again from their
//! cookie. Must not send anything.

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use curt_observe::{ClientCounter, events::Event, probe};
use curt_policy::{
    AttributeState, Epoch, MonotonicTime, MutationTicket, NameLabel,
    complete_directory::ListingScan,
    open_order::{ListingDirection, NAMES_SORTED_MAX, NameOrder},
    readdir::NAMES_WITHOUT_STAT_MAX,
};
use curt_rpc::client::{CallError, Interrupt};
use curt_types::{CookieVerifier, Fault, FileKind};
use hashbrown::HashTable;
use parking_lot::Mutex;
use rustix::io::Errno;

use super::memory::{ListingMemory, ListingMemoryCharge};
use crate::{
    errno,
    inode::{
        rights_reply::RightsReply,
        single_flight::{InFlightEnd, InodeFlight},
    },
    protocol::ReaddirPage,
};

/// Where the server continues a listing: cookie and verifier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ReaddirCookie {
    pub(super) cookie: u64,
    pub(super) verifier: CookieVerifier,
}

/// A missing part of a listing.
#[derive(Debug, Clone, Copy)]
pub(super) struct ListingGap {
    /// The cookie of the name before it.
    pub(super) cookie: ReaddirCookie,
    /// The number of replies before it.
    pub(super) index: usize,
    /// The ordinal of its first name.
    pub(super) first: u32,
    /// The names are also for other readers: the listing begins at the beginning of the directory.
    pub(super) is_shared: bool,
}

impl ListingGap {
    /// The first names of a directory.
    pub(super) fn at_start() -> Self {
        Self { cookie: ReaddirCookie::default(), index: 0, first: 0, is_shared: true }
    }
}

/// The label of the names in a reply, and what it depends on.
#[derive(Debug, Clone, Copy)]
pub(super) struct ListingOrigin {
    pub(super) label: Option<NameLabel>,
    /// The ticket taken before the names were requested.
    pub(super) ticket: MutationTicket,
    /// The epoch of the directory's contents when the request was sent.
    pub(super) epoch: Option<Epoch>,
}

/// A reply.
#[derive(Debug)]
pub(crate) struct ReaddirReply {
    pub(super) page: ReaddirPage,
    pub(super) plus: bool,
    /// Bytes that were requested.
    pub(super) size: u32,
    pub(super) origin: ListingOrigin,
    pub(super) sent_at: MonotonicTime,
    /// The ordinal of its first name in the listing.
    pub(super) first: u32,
}

/// Why there is no reply.
#[derive(Debug)]
pub(super) enum ReaddirError {
    /// The server returned an error.
    Refused(Fault, RightsReply),
    /// The server did not reply, or the reply could not be decoded.
    Failed(CallError),
    /// The server returned neither a name nor the end, twice.
    Stuck,
}

/// The result of a request for names.
pub(super) type ReaddirResult = Result<ReaddirReply, ReaddirError>;

impl ReaddirError {
    pub(super) fn errno(&self) -> Errno {
        match self {
            Self::Refused(status, _) => errno::of_fault(*status),
            Self::Failed(error) => errno::of_call(*error),
            Self::Stuck => Errno::IO,
        }
    }
}

impl ReaddirReply {
    /// Neither the last reply nor one with a name.
    pub(super) fn is_without_progress(&self) -> bool {
        self.page.names.is_empty() && !self.page.end
    }

    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.page.names.len()).unwrap_or(u32::MAX)
    }
}

/// Bytes per name in the index tables.
const INDEX_BYTES: usize = 10;

/// Maximum number of names that this client adds to one listing.
pub(super) const LOCAL_NAMES_MAX: usize = 1024;

/// The first of the cookies of these names. If the server itself uses such cookies, no name is
/// added.
pub(super) const LOCAL_COOKIE_FIRST: u64 = u64::MAX - LOCAL_NAMES_MAX as u64;

#[derive(Debug)]
struct ChunkEntry {
    cookie: u64,
    fileid: u64,
    /// The end of the name in the chunk's names.
    end: u32,
    kind: Option<FileKind>,
    is_gone: AtomicBool,
}

/// One listed name.
#[derive(Debug, Clone, Copy)]
pub(super) struct ListedEntry<'a> {
    pub(super) name: &'a [u8],
    /// Unique within the mount.
    pub(super) fileid: u64,
    pub(super) kind: Option<FileKind>,
    pub(super) cookie: u64,
    /// This client has removed it since it was listed.
    pub(super) is_gone: bool,
}

/// Builder of a chunk.
#[derive(Debug, Default)]
pub(super) struct ChunkBuilder {
    names: Vec<u8>,
    entries: Vec<ChunkEntry>,
}

/// The names of one reply.
#[derive(Debug)]
pub(crate) struct ListingChunk {
    names: Box<[u8]>,
    entries: Box<[ChunkEntry]>,
    /// See [`ListingMemory::next_use`](super::memory::ListingMemory::next_use).
    pub(super) used_at: AtomicU64,
    pub(super) charge: ListingMemoryCharge,
}

impl ChunkBuilder {
    pub(super) fn push(&mut self, name: &[u8], fileid: u64, kind: Option<FileKind>, cookie: u64) {
        self.names.extend_from_slice(name);
        self.entries.push(ChunkEntry {
            cookie,
            fileid,
            end: u32::try_from(self.names.len()).expect("a reply is shorter than 4 GiB"),
            kind,
            is_gone: AtomicBool::new(false),
        });
    }

    /// The memory that the chunk will take, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        let entries = self.entries.len() * (size_of::<ChunkEntry>() + INDEX_BYTES);
        (size_of::<ListingChunk>() + self.names.len() + entries) as u64
    }

    pub(super) fn build(self, used_at: u64, charge: ListingMemoryCharge) -> ListingChunk {
        let (names, entries) = (self.names.into(), self.entries.into());
        ListingChunk { names, entries, used_at: AtomicU64::new(used_at), charge }
    }
}

impl ListingChunk {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn entry(&self, index: usize) -> Option<ListedEntry<'_>> {
        let entry = self.entries.get(index)?;
        let start = index.checked_sub(1).map_or(0, |before| self.entries[before].end);
        Some(ListedEntry {
            name: &self.names[start as usize..entry.end as usize],
            fileid: entry.fileid,
            kind: entry.kind,
            cookie: entry.cookie,
            // Relaxed: a reader of the old value lists a name whose removal is in progress.
            is_gone: entry.is_gone.load(Relaxed),
        })
    }

    pub(super) fn cookies(&self) -> impl DoubleEndedIterator<Item = u64> + ExactSizeIterator {
        self.entries.iter().map(|entry| entry.cookie)
    }

    /// Marks the name as removed; false if it is removed already.
    pub(super) fn remove(&self, index: usize) -> bool {
        !self.entries[index].is_gone.swap(true, Relaxed)
    }
}

/// The next step of a reader at its position.
#[derive(Debug)]
pub(super) enum ListingStep {
    /// A chunk, and the index of the next name in it. `is_last`: the next chunk is not cached yet,
    /// so read-ahead may start.
    Names {
        chunk: Arc<ListingChunk>,
        index: usize,
        is_last: bool,
    },
    Evicted,
    /// Not requested yet; with `has_arrived`, the reply of a read-ahead can be taken.
    Unread {
        has_arrived: bool,
    },
    /// The end of the directory.
    End,
}

/// A directory's names in order.
pub(crate) struct DirectoryListing {
    pub(super) memory: Arc<ListingMemory>,
    pub(super) hasher: RandomState,
    start: ReaddirCookie,
    pub(super) state: Mutex<ListingState>,
}

/// The place of a chunk, which remains when the chunk is evicted.
#[derive(Debug)]
pub(super) struct ChunkSlot {
    /// The number of names before it and in it.
    first: u32,
    count: u32,
    /// The cookie of the request for it.
    after: ReaddirCookie,
    pub(super) chunk: Option<Arc<ListingChunk>>,
}

/// The mutable part of a listing.
#[derive(Debug, Default)]
pub(super) struct ListingState {
    pub(super) slots: Vec<ChunkSlot>,
    pub(super) count: u32,
    /// Names' ordinals by cookie.
    cookies: HashTable<u32>,
    /// The names' positions by name, built on first use, for the first `names_indexed` names.
    pub(super) names: Option<HashTable<u32>>,
    pub(super) names_indexed: u32,
    /// The ordinals in the order of the names, built on first use.
    sorted: Box<[u32]>,
    /// The cookie for the names after the last one, and the size of the last request in bytes.
    pub(super) end: ReaddirCookie,
    pub(super) size: u32,
    pub(super) is_complete: bool,
    /// The server lists names in a loop.
    pub(super) is_looping: bool,
    is_evicted: bool,
    /// The state that the replies prove for all names together.
    scan: Option<ListingScan>,
    /// The contents epoch of the directory at the first request, if known.
    pub(super) began_in: Option<Epoch>,
    /// The ticket taken before the last names were requested.
    pub(super) last_ticket: Option<MutationTicket>,
    /// When it last answered that a name is missing, which needs all of its names.
    pub(super) answered_at: u64,
    /// The request for the next names. `ahead` interrupts it if it is a read-ahead, and `arrived`
    /// is its result, which the first reader takes.
    pub(super) request: Option<Arc<InodeFlight>>,
    pub(super) ahead: Option<Interrupt>,
    pub(super) arrived: Option<Box<ReaddirResult>>,
    /// The read-ahead failed: the names are requested again when a reader needs them.
    pub(super) has_readahead_failed: bool,
    /// The largest cookie from the server.
    pub(super) cookie_max: u64,
    /// Names created by this client at the end, which the server cannot list at that position:
    /// nothing is evicted.
    pub(super) local_names: usize,
    pub(super) pin: Option<ListingMemoryCharge>,
    readers: usize,
    /// For events: the fileid of the directory, and whether the end of the listing was traced.
    pub(super) directory: u64,
    is_end_traced: bool,
}

impl ListingState {
    pub(super) fn entry(&self, ordinal: u32) -> Option<ListedEntry<'_>> {
        let (chunk, index) = chunk_of(&self.slots, ordinal)?;
        chunk.entry(index)
    }

    /// Brings the names into the order of their bytes. `false`: they are too many, or not all
    /// known.
    fn sort_names(&mut self) -> bool {
        if !self.is_complete || self.is_evicted || self.count > NAMES_SORTED_MAX {
            return false;
        }
        if self.sorted.len() != self.count as usize {
            let mut sorted: Vec<u32> = (0..self.count).collect();
            sorted.sort_by_cached_key(|ordinal| {
                self.entry(*ordinal).map(|entry| Box::<[u8]>::from(entry.name))
            });
            self.sorted = sorted.into();
        }
        true
    }

    /// The ordinal of the name at a place of an order.
    fn ordinal_at(&self, order: NameOrder, place: u32) -> Option<u32> {
        match order {
            NameOrder::Listed => Some(place),
            NameOrder::Sorted => self.sorted.get(place as usize).copied(),
        }
    }

    /// Marks a name as removed; false if it is removed already or evicted.
    pub(super) fn remove(&self, ordinal: u32) -> bool {
        chunk_of(&self.slots, ordinal).is_some_and(|(chunk, index)| chunk.remove(index))
    }

    /// The server's verifier for the cookie of the name before `ordinal`.
    fn verifier_before(&self, ordinal: u32) -> CookieVerifier {
        let slot = match ordinal.checked_sub(1) {
            Some(before) => locate(&self.slots, before).map_or(usize::MAX, |(slot, _)| slot + 1),
            None => 0,
        };
        self.slots.get(slot).map_or(self.end, |slot| slot.after).verifier
    }

    fn is_intact(&self) -> bool {
        !self.is_evicted && !self.is_looping
    }
}

impl DirectoryListing {
    /// A listing that begins after `start`; the last request was of `size` bytes.
    pub(super) fn new(memory: &Arc<ListingMemory>, start: ReaddirCookie, size: u32) -> Arc<Self> {
        Arc::new(Self {
            memory: Arc::clone(memory),
            hasher: RandomState::new(),
            start,
            state: Mutex::new(ListingState { end: start, size, ..ListingState::default() }),
        })
    }

    /// A listing from the beginning of the directory.
    pub(super) fn from_start(memory: &Arc<ListingMemory>) -> Arc<Self> {
        Self::new(memory, ReaddirCookie::default(), 0)
    }

    /// Traces once that the listing is no longer valid.
    pub(crate) fn trace_invalidated(&self, reason: &str) {
        if Event::NfsReaddirInvalidateCacheRange.is_wanted() {
            let mut state = self.state.lock();
            let was_traced = std::mem::replace(&mut state.is_end_traced, true);
            let (directory, count) = (state.directory, state.count);
            drop(state);
            if !was_traced {
                trace_dropped(directory, 0..count, reason);
            }
        }
    }

    /// Whether it begins at the beginning of the directory.
    pub(super) fn is_whole(&self) -> bool {
        self.start.cookie == 0
    }

    /// The label under which it is valid, if it was read in one state of the directory and no part
    /// of it was evicted.
    pub(crate) fn label(&self) -> Option<NameLabel> {
        let state = self.state.lock();
        state.scan?.label().filter(|_| state.is_intact())
    }

    /// The label under which a name that it does not contain is missing, if it contains all names.
    pub(crate) fn complete_label(&self) -> Option<NameLabel> {
        self.complete_label_in(&self.state.lock())
    }

    pub(super) fn complete_label_in(&self, state: &ListingState) -> Option<NameLabel> {
        let is_all = state.is_complete && self.is_whole() && state.is_intact();
        state.scan?.complete().filter(|_| is_all)
    }

    /// Marks that it does not describe one state of the directory.
    pub(crate) fn mark_inconsistent(&self) {
        if let Some(scan) = &mut self.state.lock().scan {
            scan.mark_inconsistent();
        }
    }

    /// Whether it may be cached for other readers of a directory in the state `directory`. If it is
    /// not of that state, it is marked inconsistent.
    pub(super) fn is_cacheable(&self, directory: &AttributeState) -> bool {
        let state = &mut *self.state.lock();
        let is_intact = self.is_whole() && state.is_intact();
        is_intact && state.scan.as_mut().is_some_and(|scan| scan.keep(directory))
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.state.lock().is_complete
    }

    /// The number of names.
    pub(super) fn count(&self) -> u32 {
        self.state.lock().count
    }

    /// Whether it has more names than are listed with attributes while no attributes are used.
    pub(super) fn is_large(&self) -> bool {
        self.count() > NAMES_WITHOUT_STAT_MAX
    }

    /// The cookie for the names after the last one.
    pub(super) fn end(&self) -> ReaddirCookie {
        self.state.lock().end
    }

    pub(super) fn add_reader(&self) {
        self.state.lock().readers += 1;
    }

    /// Removes a reader. Without readers, a read-ahead is cancelled and counted.
    pub(super) fn remove_reader(&self) {
        let mut state = self.state.lock();
        state.readers -= 1;
        if state.readers > 0 {
            return;
        }
        let (ahead, request, arrived) = (state.ahead.take(), state.request.take(), state.arrived.take());
        let (directory, cookie) = (state.directory, state.end.cookie);
        drop((state, arrived));
        if let Some(request) = request {
            request.end(InFlightEnd::Done);
        }
        if let Some(ahead) = ahead {
            ahead.raise();
            self.memory.counters.count(ClientCounter::ListingAheadWasted);
            probe!(NfsReaddirPrefetchWasted { dir: directory, cookie });
        }
    }

    /// The name at an ordinal, if it is there.
    pub(super) fn name_at(&self, ordinal: u32) -> Option<Box<[u8]>> {
        self.state.lock().entry(ordinal).filter(|entry| !entry.is_gone).map(|entry| entry.name.into())
    }

    /// The place in an order of the name at an ordinal.
    pub(crate) fn place_in(&self, order: NameOrder, ordinal: u32) -> Option<u32> {
        let state = &mut *self.state.lock();
        match order {
            NameOrder::Listed => Some(ordinal),
            NameOrder::Sorted if !state.sort_names() => None,
            NameOrder::Sorted => {
                let place = state.sorted.iter().position(|at| *at == ordinal)?;
                u32::try_from(place).ok()
            }
        }
    }

    /// At most `most` of the names next to a place of an order, each with its place.
    pub(super) fn neighbouring_names(
        &self,
        order: NameOrder,
        place: u32,
        direction: ListingDirection,
        most: usize,
    ) -> Vec<(u32, Box<[u8]>)> {
        let state = self.state.lock();
        let step = |at: &u32| match direction {
            ListingDirection::Forward => at.checked_add(1),
            ListingDirection::Backward => at.checked_sub(1),
        };
        let places = std::iter::successors(step(&place), step).take(most);
        let entries = places.map_while(|at| Some((at, state.entry(state.ordinal_at(order, at)?)?)));
        entries.filter(|(_, entry)| !entry.is_gone).map(|(at, entry)| (at, entry.name.into())).collect()
    }

    /// The ordinal of the name after `cookie`.
    pub(super) fn find(&self, cookie: u64) -> Option<u32> {
        if cookie == self.start.cookie {
            return Some(0);
        }
        let state = self.state.lock();
        let is_it = |ordinal: &u32| cookie_at(&state.slots, *ordinal) == Some(cookie);
        if let Some(ordinal) = state.cookies.find(self.hasher.hash_one(cookie), is_it) {
            return Some(ordinal + 1);
        }
        // The last name before an evicted chunk.
        let next = state.slots.iter().find(|slot| slot.after.cookie == cookie);
        next.map(|slot| slot.first)
    }

    /// The next step of a reader at a position.
    pub(super) fn step(&self, ordinal: u32) -> ListingStep {
        let state = self.state.lock();
        let Some((slot, index)) = locate(&state.slots, ordinal) else {
            let has_arrived = state.arrived.is_some();
            return if state.is_complete { ListingStep::End } else { ListingStep::Unread { has_arrived } };
        };
        let is_end = state.is_complete || state.has_readahead_failed;
        match &state.slots[slot].chunk {
            Some(chunk) => {
                chunk.used_at.store(self.memory.next_use(), Relaxed);
                let is_last = slot + 1 == state.slots.len() && !is_end;
                ListingStep::Names { chunk: Arc::clone(chunk), index, is_last }
            }
            None => ListingStep::Evicted,
        }
    }

    /// The verifier of the cookie of the name before `ordinal`, and the size of the last request in
    /// bytes.
    pub(super) fn verifier_and_size(&self, ordinal: u32) -> (CookieVerifier, u32) {
        let state = self.state.lock();
        (state.verifier_before(ordinal), state.size)
    }

    /// The request for the evicted name of this ordinal.
    pub(super) fn gap_before(&self, ordinal: u32) -> Option<ListingGap> {
        let state = self.state.lock();
        let (slot, index) = locate(&state.slots, ordinal)?;
        let cookie = if index == 0 {
            state.slots[slot].after
        } else {
            let cookie = state.entry(ordinal - 1)?.cookie;
            // The server does not know the cookies of names that this client added.
            (cookie < LOCAL_COOKIE_FIRST).then_some(())?;
            let verifier = state.verifier_before(ordinal);
            ReaddirCookie { cookie, verifier }
        };
        Some(ListingGap { cookie, index: slot, first: ordinal, is_shared: self.is_whole() })
    }

    /// Adds a reply's names at the end; false if the server lists in a loop. `size` bytes were
    /// requested.
    pub(super) fn append(
        self: &Arc<Self>,
        builder: ChunkBuilder,
        verifier: CookieVerifier,
        is_last: bool,
        size: u32,
    ) -> bool {
        let used_at = self.memory.next_use();
        let charge = self.memory.charge(builder.bytes());
        let chunk = Arc::new(builder.build(used_at, charge));
        let mut state = self.state.lock();
        if state.is_looping || !self.push(&mut state, Arc::clone(&chunk)) {
            state.is_looping = true;
            return false;
        }
        let cookie = chunk.cookies().next_back().unwrap_or(state.end.cookie);
        state.cookie_max = chunk.cookies().fold(state.cookie_max, u64::max);
        state.end = ReaddirCookie { cookie, verifier };
        (state.is_complete, state.has_readahead_failed, state.size) = (is_last, false, size);
        let slot = state.slots.len() - 1;
        drop(state);
        self.memory.added(Arc::downgrade(self), slot, used_at);
        true
    }

    /// Adds a chunk and its cookies; false if a cookie is repeated in it, or if it ends at a cookie
    /// that the listing contains already.
    pub(super) fn push(&self, state: &mut ListingState, chunk: Arc<ListingChunk>) -> bool {
        let first = state.count;
        let added = u32::try_from(chunk.len()).ok();
        let Some(count) = added.and_then(|added| first.checked_add(added)) else {
            return false;
        };
        let (after, slot_chunk) = (state.end, Some(Arc::clone(&chunk)));
        state.slots.push(ChunkSlot { first, count: count - first, after, chunk: slot_chunk });
        state.count = count;
        let ListingState { slots, cookies, .. } = state;
        let rehash = |ordinal: &u32| self.hasher.hash_one(cookie_at(slots, *ordinal).unwrap_or(0));
        cookies.reserve(chunk.len(), rehash);
        for (cookie, ordinal) in chunk.cookies().zip(first..) {
            // A reader that continues after such a name starts again.
            if cookie == 0 || cookie == self.start.cookie {
                return false;
            }
            let hash = self.hasher.hash_one(cookie);
            match cookies.find(hash, |known| cookie_at(slots, *known) == Some(cookie)) {
                Some(known) if *known >= first || ordinal + 1 == count => return false,
                Some(_) => {}
                None => drop(cookies.insert_unique(hash, ordinal, rehash)),
            }
        }
        true
    }

    /// Evicts a chunk unless it was used since `used_at`. Returns the chunk, to be dropped without
    /// a lock, or the time of its last use.
    pub(super) fn evict(&self, slot: usize, used_at: u64) -> Result<Option<Arc<ListingChunk>>, u64> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let Some(chunk) = state.slots.get(slot).and_then(|slot| slot.chunk.clone()) else {
            return Ok(None);
        };
        let last_used_at = chunk.used_at.load(Relaxed).max(state.answered_at);
        if last_used_at > used_at || state.pin.is_some() {
            return Err(last_used_at);
        }
        let first = state.slots[slot].first;
        for (cookie, ordinal) in chunk.cookies().zip(first..) {
            let hash = self.hasher.hash_one(cookie);
            if let Ok(known) = state.cookies.find_entry(hash, |known| *known == ordinal) {
                known.remove();
            }
        }
        (state.names, state.is_evicted, state.slots[slot].chunk) = (None, true, None);
        let range = first..first + state.slots[slot].count;
        let directory = state.directory;
        drop(guard);
        // A listing of a single reader has no other users.
        if self.is_whole() {
            trace_dropped(directory, range, "there is no room");
        }
        Ok(Some(chunk))
    }

    /// Passes every name before `end` to `each`; false if some were evicted.
    pub(super) fn names_before(&self, end: u32, each: &mut dyn FnMut(&[u8])) -> bool {
        let slots = |slot: &ChunkSlot| (slot.chunk.clone(), end.saturating_sub(slot.first).min(slot.count));
        let chunks: Vec<_> = self.state.lock().slots.iter().map(slots).collect();
        for (chunk, count) in chunks.into_iter().filter(|(_, count)| *count > 0) {
            let Some(chunk) = chunk else { return false };
            let entries = (0..count as usize).filter_map(|index| chunk.entry(index));
            entries.for_each(|entry| each(entry.name));
        }
        true
    }

    /// Records what the last added reply proves. Returns true if it is of another state of the
    /// directory than the earlier replies.
    pub(super) fn note_origin(&self, origin: ListingOrigin) -> bool {
        let state = &mut *self.state.lock();
        state.last_ticket = Some(origin.ticket);
        let was_consistent = state.scan.is_some_and(|scan| scan.label().is_some());
        if state.scan.is_none() {
            state.began_in = origin.epoch;
        }
        let scan = state.scan.get_or_insert_with(|| ListingScan::begin(origin.ticket));
        !scan.add(origin.label, state.is_complete) && was_consistent
    }
}

/// The slot of a name and its index there.
fn locate(slots: &[ChunkSlot], ordinal: u32) -> Option<(usize, usize)> {
    let slot = slots.partition_point(|slot| slot.first + slot.count <= ordinal);
    Some((slot, (ordinal - slots.get(slot)?.first) as usize))
}

/// The chunk of a name that is not evicted, and its index there.
fn chunk_of(slots: &[ChunkSlot], ordinal: u32) -> Option<(&ListingChunk, usize)> {
    let (slot, index) = locate(slots, ordinal)?;
    Some((slots[slot].chunk.as_ref()?, index))
}

fn cookie_at(slots: &[ChunkSlot], ordinal: u32) -> Option<u64> {
    let (chunk, index) = chunk_of(slots, ordinal)?;
    chunk.entries.get(index).map(|entry| entry.cookie)
}

fn trace_dropped(directory: u64, range: Range<u32>, reason: &str) {
    probe!(NfsReaddirInvalidateCacheRange {
        dir: directory,
        range_start: range.start,
        range_end: range.end,
        reason
    });
}

impl fmt::Debug for DirectoryListing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DirectoryListing({} names)", self.count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_takes_24_bytes_beside_itself() {
        assert_eq!(size_of::<ChunkEntry>(), 24);
    }
}
