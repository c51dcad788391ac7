//! One pass through a directory: the reader's position, and the names that were returned to it.
//!
//! Owns positions of one open directory. Must not send anything.

use std::sync::Arc;

use curt_trace::probe;

use super::{
    chunk::Chunk,
    circle::Circle,
    memory::ListingMemory,
    sequence::{Position, Sequence, ServerPlace},
    told::{TOLD_BYTES, Told},
};

/// Parts of sequences that one pass can be made of: each eviction before the reader and each jump begins another.
const PARTS_MAX: usize = 1024;

/// What an open directory has read.
#[derive(Debug)]
pub(super) struct Pass {
    pub(super) sequence: Reading,
    /// The cookie of the last name that was told, and where the next one is.
    cookie: u64,
    position: Position,
    /// What it is at, so that it is not let go meanwhile.
    _at_hand: Option<Arc<Chunk>>,
    /// All that was told before, up to where the next part begins.
    past: Vec<(Arc<Sequence>, Position)>,
    /// All that was told since the directory's beginning is in `past` and `sequence`.
    is_whole: bool,
    /// Whether names come again, of those that were told one after the other.
    circle: Circle,
    /// What was told before the server refused a cookie and the pass had to start again.
    pub(super) told: Option<Arc<Told>>,
}

/// A sequence while somebody reads it.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) sequence: Arc<Sequence>,
}

impl Reading {
    pub(super) fn new(sequence: Arc<Sequence>) -> Self {
        sequence.enter();
        Self { sequence }
    }
}

impl Drop for Reading {
    /// What was asked for ahead of the last reader, for nothing, is counted.
    fn drop(&mut self) {
        if self.sequence.leave() {
            self.sequence.memory().wasted();
            probe!(NfsReaddirPrefetchWasted {
                dir: self.sequence.dir(),
                cookie: self.sequence.end().cookie
            });
        }
    }
}

impl Pass {
    /// One at the beginning of `sequence`.
    pub(super) fn new(sequence: Arc<Sequence>) -> Self {
        Self {
            is_whole: sequence.is_whole(),
            sequence: Reading::new(sequence),
            cookie: 0,
            position: Position::default(),
            _at_hand: None,
            past: Vec::new(),
            circle: Circle::default(),
            told: None,
        }
    }

    /// Where the name behind `cookie` is, if it is known.
    pub(super) fn find(&self, cookie: u64) -> Option<Position> {
        if cookie == self.cookie {
            return Some(self.position);
        }
        self.sequence.sequence.find(cookie)
    }

    /// What is known of the names before the one behind `cookie`: nothing if they were not the last that were told.
    pub(super) fn circle(&self, cookie: u64) -> Circle {
        if cookie == self.cookie {
            self.circle
        } else {
            Circle::default()
        }
    }

    /// The reader was told up to `cookie` and goes on at `position` of `sequence`, with `chunk` at hand. Nothing happens if the
    /// pass has gone elsewhere meanwhile.
    pub(super) fn is_at(
        &mut self,
        sequence: &Arc<Sequence>,
        (cookie, circle): (u64, Circle),
        position: Position,
        chunk: Option<Arc<Chunk>>,
    ) {
        if Arc::ptr_eq(&self.sequence.sequence, sequence) {
            (self.cookie, self.position, self._at_hand) = (cookie, position, chunk);
            self.circle = circle;
        }
    }

    /// The reader goes on behind `cookie` by a sequence of its own, having been told what comes before `position`.
    pub(super) fn go_on_alone(&mut self, memory: &Arc<ListingMemory>, cookie: u64, position: Position) {
        let former = Arc::clone(&self.sequence.sequence);
        let (verifier, size) = former.verifier_and_size(position);
        self.past.push((former, position));
        self.is_whole &= self.past.len() <= PARTS_MAX;
        if !self.is_whole {
            self.past.clear();
        }
        self.take_up(memory, ServerPlace { cookie, verifier }, size);
    }

    /// The reader went to `cookie`, of which nothing is known: what was told before does not count any more.
    pub(super) fn jump(&mut self, memory: &Arc<ListingMemory>, cookie: u64) {
        let verifier = self.sequence.sequence.end().verifier;
        self.past.clear();
        self.is_whole = false;
        self.take_up(memory, ServerPlace { cookie, verifier }, 0);
    }

    fn take_up(&mut self, memory: &Arc<ListingMemory>, start: ServerPlace, size: u32) {
        let sequence = Sequence::new(memory, start);
        sequence.state.lock().size = size;
        self.sequence = Reading::new(sequence);
        (self.cookie, self.position, self._at_hand) = (start.cookie, Position::default(), None);
    }

    /// The server refused the cookie by which the reader would go on behind `position`: the pass starts again without the
    /// names that were told. False if it did so before, or not all that was told is remembered.
    pub(super) fn start_again(
        &mut self,
        memory: &Arc<ListingMemory>,
        cookie: u64,
        position: Position,
    ) -> bool {
        if !self.is_whole || self.told.is_some() {
            return false;
        }
        let parts = self.past.iter().map(|(sequence, end)| (sequence, *end));
        let parts: Vec<_> = parts.chain([(&self.sequence.sequence, position)]).collect();
        let count: usize = parts
            .iter()
            .map(|(sequence, end)| sequence.count_before(*end))
            .sum();
        let Some(charge) = memory.reserve(count as u64 * TOLD_BYTES) else {
            return false;
        };
        // What was told is given up only when all of it is noted.
        let mut is_all = true;
        let told = Told::collect(count, charge, |tell| {
            for (sequence, end) in &parts {
                is_all &= sequence.before(*end, tell);
            }
        });
        if !is_all {
            return false;
        }
        *self = Self {
            told: Some(Arc::new(told)),
            // The reader's cookie is of the former pass: it stands for the beginning of this one.
            cookie,
            ..Self::new(Sequence::new(memory, ServerPlace::default()))
        };
        memory.shrink();
        true
    }
}
