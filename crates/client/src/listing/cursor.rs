//! One pass through a directory: the reader's position, and the names that were returned to it.
//!
//! Owns positions of one open directory. Must not send anything.

use std::sync::Arc;

use curt_trace::probe;

use super::{
    chunk::{ListingChunk, ListingPosition, ReaddirCookie},
    cookie_loop::CookieLoopDetector,
    directory_listing::DirectoryListing,
    memory::ListingMemory,
    returned_names::{HASH_BYTES, ReturnedNames},
};

/// Parts of sequences that one pass can be made of: each eviction before the reader and each jump
/// begins another.
const PARTS_MAX: usize = 1024;

/// What an open directory has read.
#[derive(Debug)]
pub(super) struct ReaddirCursor {
    pub(super) reader: ListingReader,
    /// The cookie of the last name that was told, and where the next one is.
    cookie: u64,
    position: ListingPosition,
    /// What it is at, so that it is not let go meanwhile.
    _current_chunk: Option<Arc<ListingChunk>>,
    /// All that was told before, up to where the next part begins.
    read_before: Vec<(Arc<DirectoryListing>, ListingPosition)>,
    /// All that was told since the directory's beginning is in `past` and `sequence`.
    is_whole: bool,
    /// Whether names come again, of those that were told one after the other.
    loop_detector: CookieLoopDetector,
    /// What was told before the server refused a cookie and the pass had to start again.
    pub(super) skipped: Option<Arc<ReturnedNames>>,
}

/// A sequence while somebody reads it.
#[derive(Debug)]
pub(super) struct ListingReader {
    pub(super) listing: Arc<DirectoryListing>,
}

impl ListingReader {
    pub(super) fn new(sequence: Arc<DirectoryListing>) -> Self {
        sequence.add_reader();
        Self { listing: sequence }
    }
}

impl Drop for ListingReader {
    /// What was asked for ahead of the last reader, for nothing, is counted.
    fn drop(&mut self) {
        if self.listing.remove_reader() {
            self.listing.memory().wasted();
            probe!(NfsReaddirPrefetchWasted {
                dir: self.listing.dir(),
                cookie: self.listing.end().cookie
            });
        }
    }
}

impl ReaddirCursor {
    /// One at the beginning of `sequence`.
    pub(super) fn new(sequence: Arc<DirectoryListing>) -> Self {
        Self {
            is_whole: sequence.is_whole(),
            reader: ListingReader::new(sequence),
            cookie: 0,
            position: ListingPosition::default(),
            _current_chunk: None,
            read_before: Vec::new(),
            loop_detector: CookieLoopDetector::default(),
            skipped: None,
        }
    }

    /// Where the name behind `cookie` is, if it is known.
    pub(super) fn find(&self, cookie: u64) -> Option<ListingPosition> {
        if cookie == self.cookie {
            return Some(self.position);
        }
        self.reader.listing.find(cookie)
    }

    /// What is known of the names before the one behind `cookie`: nothing if they were not the last
    /// that were told.
    pub(super) fn loop_detector(&self, cookie: u64) -> CookieLoopDetector {
        if cookie == self.cookie {
            self.loop_detector
        } else {
            CookieLoopDetector::default()
        }
    }

    /// The reader was told up to `cookie` and goes on at `position` of `sequence`, with `chunk` at
    /// hand. Nothing happens if the pass has gone elsewhere meanwhile.
    pub(super) fn advance_to(
        &mut self,
        sequence: &Arc<DirectoryListing>,
        cookie: u64,
        loop_detector: CookieLoopDetector,
        position: ListingPosition,
        chunk: Option<Arc<ListingChunk>>,
    ) {
        if Arc::ptr_eq(&self.reader.listing, sequence) {
            (self.cookie, self.position, self._current_chunk) = (cookie, position, chunk);
            self.loop_detector = loop_detector;
        }
    }

    /// The reader goes on behind `cookie` by a sequence of its own, having been told what comes
    /// before `position`.
    pub(super) fn continue_uncached(
        &mut self,
        memory: &Arc<ListingMemory>,
        cookie: u64,
        position: ListingPosition,
    ) {
        let former = Arc::clone(&self.reader.listing);
        let (verifier, size) = former.verifier_and_size(position);
        self.read_before.push((former, position));
        self.is_whole &= self.read_before.len() <= PARTS_MAX;
        if !self.is_whole {
            self.read_before.clear();
        }
        self.restart_at(memory, ReaddirCookie { cookie, verifier }, size);
    }

    /// The reader went to `cookie`, of which nothing is known: what was told before does not count
    /// any more.
    pub(super) fn seek(&mut self, memory: &Arc<ListingMemory>, cookie: u64) {
        let verifier = self.reader.listing.end().verifier;
        self.read_before.clear();
        self.is_whole = false;
        self.restart_at(memory, ReaddirCookie { cookie, verifier }, 0);
    }

    fn restart_at(&mut self, memory: &Arc<ListingMemory>, start: ReaddirCookie, size: u32) {
        let sequence = DirectoryListing::new(memory, start);
        sequence.state.lock().size = size;
        self.reader = ListingReader::new(sequence);
        (self.cookie, self.position, self._current_chunk) = (start.cookie, ListingPosition::default(), None);
    }

    /// The server refused the cookie by which the reader would go on behind `position`: the pass
    /// starts again without the names that were told. False if it did so before, or not all that
    /// was told is remembered.
    pub(super) fn restart_skipping_returned(
        &mut self,
        memory: &Arc<ListingMemory>,
        cookie: u64,
        position: ListingPosition,
    ) -> bool {
        if !self.is_whole || self.skipped.is_some() {
            return false;
        }
        let parts = self.read_before.iter().map(|(sequence, end)| (sequence, *end));
        let parts: Vec<_> = parts.chain([(&self.reader.listing, position)]).collect();
        let count: usize = parts
            .iter()
            .map(|(sequence, end)| sequence.count_before(*end))
            .sum();
        let Some(charge) = memory.reserve(count as u64 * HASH_BYTES) else {
            return false;
        };
        // What was told is given up only when all of it is noted.
        let mut is_all = true;
        let told = ReturnedNames::collect(count, charge, |tell| {
            for (sequence, end) in &parts {
                is_all &= sequence.before(*end, tell);
            }
        });
        if !is_all {
            return false;
        }
        *self = Self {
            skipped: Some(Arc::new(told)),
            // The reader's cookie is of the former pass: it stands for the beginning of this one.
            cookie,
            ..Self::new(DirectoryListing::new(memory, ReaddirCookie::default()))
        };
        memory.shrink();
        true
    }
}
