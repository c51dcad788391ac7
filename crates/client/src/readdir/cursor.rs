//! One pass through a directory: the reader's position, and the names that were returned to it.
//!
//! Owns the positions of one open directory. Must not send anything.

use std::sync::Arc;

use super::{
    cache::{DirectoryListing, ListingChunk, ReaddirCookie},
    memory::ListingMemory,
    returned_names::ReturnedNames,
};

/// Maximum number of listings that one pass consists of: each eviction before the reader and each
/// seek begins another.
const PARTS_MAX: usize = 1024;

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
    pub(super) at: CursorPosition,
    _reader: ListingReader,
    /// The chunk at the position, held so that it is not evicted.
    _current_chunk: Option<Arc<ListingChunk>>,
    /// All names that were returned before the current listing: each listing up to the ordinal
    /// where the next begins. `is_whole`: together with the current listing these are all names
    /// from the beginning of the directory.
    pub(super) read_before: Vec<(Arc<DirectoryListing>, u32)>,
    pub(super) is_whole: bool,
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
