//! Received bytes that were not decoded yet.
//!
//! One growing buffer and the record that is being assembled in it. Invariants: the buffer's `Vec`
//! is initialised to its full length, so that receiving needs neither `unsafe` nor zeroing after
//! the first use; memory grows with the received bytes, not with announced lengths.

use std::{mem, sync::Arc, time::Instant};

use super::{
    MARK_SIZE, RecordAssembler, RecordError, RecordProgress,
    buffer_pool::{BUFFER_MIN, BufferPool},
};

/// Maximum number of bytes received at once if records are short.
const WINDOW_MAX: usize = 256 << 10;

/// One direction of a connection, between the socket and complete records.
#[derive(Debug)]
pub(crate) struct ReceiveBuffer {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    assembly: RecordAssembler,
    /// The record at `start`, if complete.
    complete: Option<CompleteRecord>,
    /// Number of further bytes that the record at `start` needs.
    needs: usize,
    /// Allocate memory for a record when its length is known, not as its bytes arrive.
    at_once: bool,
    /// Size of the next receive in bytes, for a peer that sends more than fits.
    window: usize,
    /// Size of the last room.
    offered: usize,
    /// Whether the last receive filled its room: more bytes are likely.
    filled: bool,
    /// When the record at `start` was first found to be incomplete.
    incomplete_since: Option<Instant>,
    pool: Arc<BufferPool>,
}

/// A complete record at the front of a [`ReceiveBuffer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompleteRecord {
    body: usize,
    consumed: usize,
}

impl ReceiveBuffer {
    /// An empty buffer, which takes memory from the pool when needed.
    pub(crate) fn new(pool: Arc<BufferPool>) -> Self {
        Self {
            bytes: Vec::new(),
            start: 0,
            end: 0,
            assembly: RecordAssembler::default(),
            complete: None,
            needs: MARK_SIZE,
            at_once: false,
            window: BUFFER_MIN,
            offered: 0,
            filled: false,
            incomplete_since: None,
            pool,
        }
    }

    /// As [`ReceiveBuffer::new`], for a side that limits the length of the replies itself: a
    /// record's memory is allocated at once, which saves moving it.
    pub(crate) fn for_replies(pool: Arc<BufferPool>) -> Self {
        let mut receive_buffer = Self::new(pool);
        receive_buffer.at_once = true;
        receive_buffer
    }

    /// Room to receive into: at least one byte. For a long record it is little more than the record
    /// needs, so that following bytes need not be moved; for short ones it grows while they fill
    /// it.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        if self.bytes.is_empty() {
            self.bytes = self.pool.take();
        }
        let wanted = self.needs.max(BUFFER_MIN / 2);
        let window = if wanted > BUFFER_MIN { wanted } else { self.window };
        if self.bytes.len() - self.end < wanted.max(window / 2) && self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let left = self.bytes.len() - self.end;
        if left == 0 || left < window / 2 && self.window > BUFFER_MIN {
            let needed = self.end + window.max(BUFFER_MIN);
            let doubled = (self.bytes.len() * 2).max(BUFFER_MIN);
            self.bytes.resize(if self.at_once { needed } else { needed.min(doubled) }, 0);
        }
        let end = self.bytes.len().min(self.end + window.max(BUFFER_MIN));
        self.offered = end - self.end;
        &mut self.bytes[self.end..end]
    }

    /// Records that the first `count` bytes of [`ReceiveBuffer::room`] were filled.
    pub(crate) fn received(&mut self, count: usize) {
        assert!(self.end + count <= self.bytes.len(), "more was received than there was room for");
        self.end += count;
        let filled = count == self.offered;
        // The buffer of a reply leaves with the reply, so it does not grow.
        if filled && !self.at_once {
            self.window = (self.window * 2).min(WINDOW_MAX);
        }
        self.filled = filled;
    }

    /// Whether the last receive filled its room.
    pub(crate) const fn was_filled(&self) -> bool {
        self.filled
    }

    /// Allocated memory.
    pub(crate) const fn held(&self) -> usize {
        self.bytes.len()
    }

    /// Whether it holds no bytes, not even of an incomplete record.
    pub(crate) const fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// The time since when the record at the front has been incomplete: `now` at the first call.
    /// `None` if there is none.
    pub(crate) fn incomplete_since(&mut self, now: impl FnOnce() -> Instant) -> Option<Instant> {
        if self.is_empty() {
            return None;
        }
        Some(*self.incomplete_since.get_or_insert_with(now))
    }

    /// Lets the record at the front be incomplete from the next [`Self::incomplete_since`] on.
    pub(crate) const fn restart_timeout(&mut self) {
        self.incomplete_since = None;
    }

    /// Returns the complete record at the front, if there is one. `limit` returns the maximum
    /// length of the record, given its first bytes.
    ///
    /// # Errors
    /// As [`RecordAssembler::advance`].
    pub(crate) fn complete_record(
        &mut self,
        limit: impl FnMut(&[u8]) -> usize,
    ) -> Result<Option<CompleteRecord>, RecordError> {
        if self.complete.is_some() {
            return Ok(self.complete);
        }
        match self.assembly.advance(&mut self.bytes[self.start..self.end], limit)? {
            RecordProgress::Needs(needs) => {
                self.needs = needs;
                Ok(None)
            }
            RecordProgress::Complete { body, consumed } => {
                self.complete = Some(CompleteRecord { body, consumed });
                Ok(self.complete)
            }
        }
    }

    /// The body of the record at the front.
    pub(crate) fn body(&self, record: CompleteRecord) -> &[u8] {
        let start = self.start + MARK_SIZE;
        &self.bytes[start..start + record.body]
    }

    /// The received bytes of the record at the front, if [`ReceiveBuffer::complete_record`] failed
    /// or found none.
    pub(crate) fn beginning(&self) -> &[u8] {
        self.bytes.get(self.start + MARK_SIZE..self.end).unwrap_or_default()
    }

    /// Drops the record at the front.
    pub(crate) fn skip(&mut self, record: CompleteRecord) {
        self.start += record.consumed;
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
        self.assembly = RecordAssembler::default();
        self.complete = None;
        self.needs = MARK_SIZE;
        self.incomplete_since = None;
    }

    /// Removes the record at the front: the bytes, and the range of the body in them. A record that
    /// fills its buffer takes the buffer; a smaller one is copied, so that it does not occupy a
    /// large buffer.
    pub(crate) fn take(&mut self, record: CompleteRecord) -> (Vec<u8>, usize, usize) {
        if record.consumed < self.bytes.len() / 2 {
            let body = self.body(record).to_vec();
            self.skip(record);
            return (body, 0, record.body);
        }
        let next = self.start + record.consumed;
        let following = self.end - next;
        let mut other = self.pool.take();
        grow(&mut other, following);
        other[..following].copy_from_slice(&self.bytes[next..self.end]);
        let body = self.start + MARK_SIZE;
        mem::swap(&mut self.bytes, &mut other);
        self.skip(record);
        self.start = 0;
        self.end = following;
        (other, body, body + record.body)
    }

    /// Moves the bytes after the record at the front to another buffer, for a thread that continues
    /// to read while this one processes the record.
    pub(crate) fn after(&self, record: CompleteRecord) -> Self {
        let next = self.start + record.consumed;
        let mut rest = Self::new(Arc::clone(&self.pool));
        let following = self.end - next;
        if following > 0 {
            rest.bytes = rest.pool.take();
            grow(&mut rest.bytes, following);
            rest.bytes[..following].copy_from_slice(&self.bytes[next..self.end]);
            rest.end = following;
        }
        rest
    }

    /// Frees the memory of an empty buffer, and excess memory of a partly filled one.
    pub(crate) fn shrink(&mut self) {
        self.window = BUFFER_MIN;
        self.filled = false;
        if self.is_empty() {
            self.pool.put(mem::take(&mut self.bytes));
            self.start = 0;
            self.end = 0;
        } else {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
            self.bytes.truncate(self.end);
            self.bytes.shrink_to_fit();
        }
    }
}

impl Drop for ReceiveBuffer {
    fn drop(&mut self) {
        self.pool.put(mem::take(&mut self.bytes));
    }
}

fn grow(bytes: &mut Vec<u8>, length: usize) {
    if bytes.len() < length {
        bytes.resize(length, 0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record;

    const LIMIT: usize = 100_000;

    /// Feeds `stream` in pieces of at most `step` bytes; returns the bodies found, or the error.
    fn read_all(stream: &[u8], step: usize, copy: bool) -> Result<Vec<Vec<u8>>, RecordError> {
        let mut receive_buffer = ReceiveBuffer::new(Arc::new(BufferPool::new(1 << 20)));
        let mut found = Vec::new();
        let mut rest = stream;
        while !rest.is_empty() {
            let room = receive_buffer.room();
            let count = room.len().min(step).min(rest.len());
            room[..count].copy_from_slice(&rest[..count]);
            receive_buffer.received(count);
            rest = &rest[count..];
            while let Some(record) = receive_buffer.complete_record(|_| LIMIT)? {
                if copy {
                    let (bytes, start, end) = receive_buffer.take(record);
                    found.push(bytes[start..end].to_vec());
                } else {
                    found.push(receive_buffer.body(record).to_vec());
                    receive_buffer.skip(record);
                }
            }
        }
        Ok(found)
    }

    fn stream_of(records: &[Vec<Vec<u8>>]) -> Vec<u8> {
        let mut stream = Vec::new();
        for fragments in records {
            for (index, fragment) in fragments.iter().enumerate() {
                let mut mark = record::record_mark(fragment.len());
                if index + 1 < fragments.len() {
                    mark[0] &= 0x7f;
                }
                stream.extend_from_slice(&mark);
                stream.extend_from_slice(fragment);
            }
        }
        stream
    }

    proptest! {
        #[test]
        fn records_survive_any_cutting(
            records in prop::collection::vec(
                prop::collection::vec(prop::collection::vec(any::<u8>(), 0..3000), 1..5), 0..8),
            step in 1usize..5000, copy: bool,
        ) {
            let expected: Vec<Vec<u8>> = records.iter().map(|fragments| fragments.concat()).collect();
            prop_assert_eq!(read_all(&stream_of(&records), step, copy).expect("records are in order"), expected);
        }

        #[test]
        fn garbage_never_panics(stream in prop::collection::vec(any::<u8>(), 0..4000), step in 1usize..5000) {
            let _ = read_all(&stream, step, true);
        }
    }

    #[test]
    fn a_record_at_the_limit_passes_and_one_above_it_does_not() {
        let at = stream_of(&[vec![vec![1; LIMIT - 10], vec![2; 10]]]);
        assert_eq!(read_all(&at, 4096, true).map(|found| found[0].len()), Ok(LIMIT));
        let above = stream_of(&[vec![vec![1; LIMIT - 10], vec![2; 11]]]);
        assert_eq!(
            read_all(&above, 4096, true),
            Err(RecordError::TooLong { length: LIMIT + 1, limit: LIMIT })
        );
    }

    #[test]
    fn memory_follows_what_was_received_not_what_was_announced() {
        let mut receive_buffer = ReceiveBuffer::new(Arc::new(BufferPool::new(1 << 20)));
        let room = receive_buffer.room();
        room[..4].copy_from_slice(&record::record_mark(LIMIT));
        receive_buffer.received(4);
        assert!(receive_buffer.complete_record(|_| LIMIT).expect("the limit allows it").is_none());
        assert!(receive_buffer.room().len() <= BUFFER_MIN);
        assert_eq!(receive_buffer.bytes.len(), BUFFER_MIN);
    }

    /// Fills the offered room with records of `length` bytes each, which are skipped; returns the
    /// size of the room.
    fn fill(receive_buffer: &mut ReceiveBuffer, length: usize, stream: &mut Vec<u8>) -> usize {
        let room = receive_buffer.room();
        let count = room.len();
        while stream.len() < count {
            stream.extend_from_slice(&record::record_mark(length));
            stream.resize(stream.len() + length, 7);
        }
        room.copy_from_slice(&stream[..count]);
        stream.drain(..count);
        receive_buffer.received(count);
        while let Some(record) = receive_buffer.complete_record(|_| 1 << 20).expect("in order") {
            receive_buffer.skip(record);
        }
        count
    }

    #[test]
    fn the_room_grows_while_short_records_fill_it_up_to_a_bound() {
        let mut receive_buffer = ReceiveBuffer::new(Arc::new(BufferPool::new(1 << 20)));
        let mut stream = Vec::new();
        let rooms: Vec<usize> = (0..10).map(|_| fill(&mut receive_buffer, 4200, &mut stream)).collect();
        assert_eq!(rooms[0], BUFFER_MIN);
        assert!(rooms.iter().any(|room| *room > WINDOW_MAX / 2), "{rooms:?}");
        assert!(rooms.iter().all(|room| *room <= WINDOW_MAX), "{rooms:?}");
        assert!(receive_buffer.was_filled() && receive_buffer.bytes.len() <= 2 * WINDOW_MAX);
        receive_buffer.shrink();
        assert!(!receive_buffer.was_filled() && receive_buffer.room().len() <= BUFFER_MIN);
    }

    #[test]
    fn a_small_record_holds_no_large_buffer() {
        let stream = stream_of(&[vec![vec![7; 100]], vec![vec![8; 60_000]]]);
        let pool = Arc::new(BufferPool::new(1 << 20));
        pool.put(vec![0; 100_000]);
        let mut receive_buffer = ReceiveBuffer::for_replies(pool);
        let mut rest = stream.as_slice();
        let mut records = Vec::new();
        while !rest.is_empty() {
            let room = receive_buffer.room();
            let count = room.len().min(rest.len());
            room[..count].copy_from_slice(&rest[..count]);
            receive_buffer.received(count);
            rest = &rest[count..];
            while let Some(record) = receive_buffer.complete_record(|_| LIMIT).expect("in order") {
                records.push(receive_buffer.take(record));
            }
        }
        let sizes: Vec<_> =
            records.iter().map(|(bytes, start, end)| (bytes.capacity() < 120_000, end - start)).collect();
        assert_eq!(sizes, [(true, 100), (true, 60_000)]);
        assert!(records[0].0.capacity() < 1000);
    }

    #[test]
    fn fragments_are_counted() {
        let mut stream = Vec::new();
        for _ in 0..=record::FRAGMENTS_MAX {
            stream.extend_from_slice(&[0; 4]);
        }
        assert_eq!(read_all(&stream, 4096, true), Err(RecordError::TooManyFragments));
        // A repeated call changes nothing.
        let mut receive_buffer = ReceiveBuffer::new(Arc::new(BufferPool::new(1 << 20)));
        for _ in 0..record::FRAGMENTS_MAX {
            receive_buffer.room()[..4].fill(0);
            receive_buffer.received(4);
        }
        for _ in 0..2 {
            assert!(matches!(receive_buffer.complete_record(|_| LIMIT), Err(RecordError::TooManyFragments)));
        }
    }

    #[test]
    fn what_follows_a_record_goes_on_elsewhere() {
        let stream = stream_of(&[vec![vec![7; 100]], vec![vec![8; 50]]]);
        let mut receive_buffer = ReceiveBuffer::new(Arc::new(BufferPool::new(1 << 20)));
        receive_buffer.room()[..stream.len()].copy_from_slice(&stream);
        receive_buffer.received(stream.len());
        let first = receive_buffer.complete_record(|_| LIMIT).expect("in order").expect("complete");
        let mut rest = receive_buffer.after(first);
        assert_eq!(receive_buffer.body(first), [7; 100]);
        let second = rest.complete_record(|_| LIMIT).expect("in order").expect("complete");
        assert_eq!(rest.body(second), [8; 50]);
        // A repeated call changes nothing.
        let second = rest.complete_record(|_| LIMIT).expect("in order").expect("complete");
        rest.skip(second);
        assert!(rest.is_empty());
    }
}
