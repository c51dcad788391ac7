//! One pass through a directory: the reader's position, and the names that were returned to it.
//!
//! Owns the positions of one open directory. Must not send anything.

use std::{
    hash::{BuildHasher, Hasher as _, RandomState},
    sync::Arc,
};

use siphasher::sip128::{Hasher128, SipHasher13};

use super::{
    cache::{DirectoryListing, ListingChunk, ReaddirCookie},
    memory::{ListingMemory, ListingMemoryCharge},
};

/// Maximum number of listings that one pass consists of: each eviction before the reader and each
/// seek begins another.
const PARTS_MAX: usize = 1024;

/// Bytes of a name's hash.
const HASH_BYTES: u64 = 16;

/// The position of a reader.
#[derive(Debug, Clone)]
pub(super) struct CursorPosition {
    pub(super) listing: Arc<DirectoryListing>,
    /// The cookie of the last returned name, and the ordinal of the next one.
    pub(super) cookie: u64,
    pub(super) ordinal: u32,
    pub(super) loops: CookieLoopDetector,
    /// The names that were returned before the server refused a cookie and the pass started again.
    pub(super) skipped: Option<Arc<ReturnedNames>>,
}

/// The state of an open directory.
#[derive(Debug)]
pub(super) struct ReaddirCursor {
    at: CursorPosition,
    _reader: ListingReader,
    /// The chunk at the position, held so that it is not evicted.
    _current_chunk: Option<Arc<ListingChunk>>,
    /// All names that were returned before the current listing: each listing up to the ordinal
    /// where the next begins. `is_whole`: together with the current listing these are all names
    /// from the beginning of the directory.
    read_before: Vec<(Arc<DirectoryListing>, u32)>,
    is_whole: bool,
}

/// A listing with a reader.
#[derive(Debug)]
pub(super) struct ListingReader(Arc<DirectoryListing>);

impl ListingReader {
    pub(super) fn new(listing: &Arc<DirectoryListing>) -> Self {
        listing.add_reader();
        Self(Arc::clone(listing))
    }
}

impl Drop for ListingReader {
    fn drop(&mut self) {
        self.0.remove_reader();
    }
}

impl ReaddirCursor {
    /// A cursor at the beginning of `listing`.
    pub(super) fn new(listing: Arc<DirectoryListing>) -> Self {
        let (is_whole, loops) = (listing.is_whole(), CookieLoopDetector::default());
        Self {
            _reader: ListingReader::new(&listing),
            at: CursorPosition { listing, cookie: 0, ordinal: 0, loops, skipped: None },
            _current_chunk: None,
            read_before: Vec::new(),
            is_whole,
        }
    }

    pub(super) fn listing(&self) -> &Arc<DirectoryListing> {
        &self.at.listing
    }

    /// Seeks to the name after `cookie`. If the cookie is unknown, the server is asked from there,
    /// and the names returned before are discarded.
    pub(super) fn seek(&mut self, memory: &Arc<ListingMemory>, cookie: u64) -> CursorPosition {
        if cookie == self.at.cookie {
            return self.at.clone();
        }
        let loops = CookieLoopDetector::default();
        if let Some(ordinal) = self.at.listing.find(cookie) {
            let at = self.at.clone();
            return CursorPosition { cookie, ordinal, loops, ..at };
        }
        let verifier = self.at.listing.end().verifier;
        (self.is_whole, self.read_before) = (false, Vec::new());
        self.begin_uncached(memory, ReaddirCookie { cookie, verifier }, 0, loops)
    }

    fn begin_uncached(
        &mut self,
        memory: &Arc<ListingMemory>,
        start: ReaddirCookie,
        size: u32,
        loops: CookieLoopDetector,
    ) -> CursorPosition {
        let listing = DirectoryListing::new(memory, start, size);
        (self._reader, self._current_chunk) = (ListingReader::new(&listing), None);
        (self.at.listing, self.at.cookie, self.at.ordinal, self.at.loops) = (listing, start.cookie, 0, loops);
        self.at.clone()
    }

    /// Moves the reader to `at`, in `chunk`. No effect if the pass has moved elsewhere.
    pub(super) fn advance(&mut self, at: &CursorPosition, chunk: Arc<ListingChunk>) {
        if Arc::ptr_eq(&self.at.listing, &at.listing) {
            (self.at, self._current_chunk) = (at.clone(), Some(chunk));
        }
    }

    /// The names at `at` were evicted: the reader continues with a listing of its own.
    pub(super) fn continue_uncached(
        &mut self,
        memory: &Arc<ListingMemory>,
        at: &CursorPosition,
    ) -> CursorPosition {
        let (verifier, size) = at.listing.verifier_and_size(at.ordinal);
        let cookie = at.cookie;
        self.read_before.push((Arc::clone(&at.listing), at.ordinal));
        self.is_whole &= self.read_before.len() <= PARTS_MAX;
        if !self.is_whole {
            self.read_before.clear();
        }
        self.begin_uncached(memory, ReaddirCookie { cookie, verifier }, size, at.loops)
    }

    /// The server refused the cookie of `at`: the pass starts again and skips the names that were
    /// returned. `None` if it did so before, or not all returned names are known.
    pub(super) fn restart_skipping_returned(
        &mut self,
        memory: &Arc<ListingMemory>,
        at: &CursorPosition,
    ) -> Option<CursorPosition> {
        if !self.is_whole || self.at.skipped.is_some() {
            return None;
        }
        let mut parts = self.read_before.clone();
        parts.push((Arc::clone(&at.listing), at.ordinal));
        let count: u64 = parts.iter().map(|(_, end)| u64::from(*end)).sum();
        let charge = memory.reserve(count * HASH_BYTES)?;
        // The returned names are discarded only after all of them were collected.
        let skipped = ReturnedNames::collect(&parts, charge)?;
        *self = Self::new(DirectoryListing::from_start(memory));
        self.at.skipped = Some(Arc::new(skipped));
        // The cookie is of the former pass: it stands for the beginning of this one.
        self.at.cookie = at.cookie;
        memory.shrink();
        Some(self.at.clone())
    }
}

/// Detects a server that returns the same names repeatedly in a listing that exceeds the memory.
/// Each reader stores one cookie, and replaces it whenever twice as many names have been returned
/// (Brent's cycle detection). A cycle is detected before it is repeated four times.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct CookieLoopDetector {
    mark: Option<u64>,
    returned: u64,
    /// The number of names after which another cookie is stored.
    next: u64,
}

impl CookieLoopDetector {
    /// Whether the stored cookie shows that the name was returned before.
    pub(super) fn is_repeated(&self, cookie: u64) -> bool {
        self.mark == Some(cookie)
    }

    pub(super) fn note_returned(&mut self, cookie: u64) {
        self.returned += 1;
        if self.returned >= self.next {
            (self.mark, self.next) = (Some(cookie), self.returned.saturating_mul(2));
        }
    }
}

/// The returned names, as a sorted list of keyed 128-bit hashes. The probability that two names of
/// one directory collide is below 2^-80 for any directory that fits on a disk, and a client that
/// creates names does not know the key.
#[derive(Debug)]
pub(super) struct ReturnedNames {
    keys: (u64, u64),
    hashes: Vec<u128>,
    _charge: ListingMemoryCharge,
}

impl ReturnedNames {
    /// The names before the end of each part; `None` if some of them were evicted.
    fn collect(parts: &[(Arc<DirectoryListing>, u32)], charge: ListingMemoryCharge) -> Option<Self> {
        let random = RandomState::new();
        let mut names =
            Self { keys: (random.hash_one(0), random.hash_one(1)), hashes: Vec::new(), _charge: charge };
        for (listing, end) in parts {
            let mut hashes = Vec::with_capacity(*end as usize);
            if !listing.names_before(*end, &mut |name| hashes.push(names.hash(name))) {
                return None;
            }
            names.hashes.append(&mut hashes);
        }
        names.hashes.sort_unstable();
        Some(names)
    }

    fn hash(&self, name: &[u8]) -> u128 {
        let mut hasher = SipHasher13::new_with_keys(self.keys.0, self.keys.1);
        hasher.write(name);
        hasher.finish128().as_u128()
    }

    pub(super) fn contains(&self, name: &[u8]) -> bool {
        self.hashes.binary_search(&self.hash(name)).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of names returned until a cycle is detected that begins after `before` names.
    fn noticed(before: u64, length: u64) -> u64 {
        let mut loops = CookieLoopDetector::default();
        (0..)
            .find(|index| {
                let cookie = if *index < before { index + 1 } else { before + 1 + (index - before) % length };
                let is_closed = loops.is_repeated(cookie);
                loops.note_returned(cookie);
                is_closed
            })
            .expect("a number")
    }

    #[test]
    fn every_cycle_is_noticed_before_it_was_followed_four_times() {
        for before in [0, 1, 2, 3, 10, 63, 64, 65, 1000] {
            for length in [1, 2, 3, 7, 64, 999, 1024] {
                let returned = noticed(before, length);
                assert!(
                    returned > before && returned <= 2 * before + 4 * length,
                    "{before} {length}: {returned}"
                );
            }
        }
    }

    #[test]
    fn names_that_all_differ_are_no_cycle() {
        let mut loops = CookieLoopDetector::default();
        for cookie in (1..100_000).rev() {
            assert!(!loops.is_repeated(cookie));
            loops.note_returned(cookie);
        }
    }
}
