//! Buffers of records. A buffer is divided into shards; a thread writes to a shard that is free.
//!
//! No thread waits here: a shard to which another thread is writing is skipped, and if no shard has
//! room the event is lost and counted. All memory consists of atomic words, so that a buffer can be
//! in a file that outlives the process. No locks are taken.

use std::sync::atomic::{AtomicU64, Ordering};

use super::fields::FieldValue;
use super::record::{self, RECORD_WORDS_MAX, RecordHeader};

/// Shards of a buffer.
pub(super) const SHARDS: usize = 8;
/// Words of a shard's header, in two cache lines.
pub(super) const CONTROL_WORDS: usize = 16;

/// 1 while a thread writes.
const LOCK: usize = 0;
/// Words written since the beginning.
pub(super) const HEAD: usize = 1;
/// Records that were not written (in a [`OverflowPolicy::Keep`] buffer) or were overwritten.
pub(super) const LOST: usize = 2;
/// Words taken out or overwritten since the beginning.
pub(super) const TAIL: usize = 8;

/// How a record is handled if there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OverflowPolicy {
    /// The record is lost: older records stay for the reader.
    Keep,
    /// The record overwrites the oldest.
    Overwrite,
}

/// Why a shard did not take a record.
enum PushError {
    Busy,
    Full,
}

/// A buffer in the memory `M`.
#[derive(Debug)]
pub(super) struct EventBuffer<M> {
    memory: M,
    shard_words: usize,
    policy: OverflowPolicy,
}

/// Number of words of a buffer whose shards have `shard_words` each.
pub(super) const fn words_needed(shard_words: usize) -> usize {
    SHARDS * (CONTROL_WORDS + shard_words)
}

impl<M: AsRef<[AtomicU64]>> EventBuffer<M> {
    /// A buffer in this memory, which is all zero or already contains a buffer.
    pub(super) fn new(memory: M, shard_words: usize, policy: OverflowPolicy) -> Self {
        assert!(shard_words.is_power_of_two() && shard_words > 2 * RECORD_WORDS_MAX);
        assert_eq!(memory.as_ref().len(), words_needed(shard_words));
        Self { memory, shard_words, policy }
    }

    fn shard(&self, number: usize) -> BufferShard<'_> {
        let size = CONTROL_WORDS + self.shard_words;
        let start = (number % SHARDS) * size;
        let (control, words) = self.memory.as_ref()[start..start + size].split_at(CONTROL_WORDS);
        BufferShard { control, words }
    }

    /// Writes a record, if a shard is free and has room.
    pub(super) fn push(&self, header: &RecordHeader, values: &[FieldValue<'_>]) {
        let home = usize::try_from(header.thread).unwrap_or_default();
        for number in 0..SHARDS {
            match self.shard(home.wrapping_add(number)).push(self.policy, header, values) {
                Ok(()) => return,
                Err(PushError::Busy | PushError::Full) => {}
            }
        }
        self.shard(home).control[LOST].fetch_add(1, Ordering::Relaxed);
    }

    /// Removes and returns all records. For one reader at a time.
    pub(super) fn drain(&self, out: &mut Vec<u64>) {
        for number in 0..SHARDS {
            self.shard(number).drain(out);
        }
    }

    /// Number of lost or overwritten records.
    pub(super) fn lost(&self) -> u64 {
        let shards = (0..SHARDS).map(|number| self.shard(number));
        shards.map(|shard| shard.control[LOST].load(Ordering::Relaxed)).sum()
    }
}

struct BufferShard<'a> {
    control: &'a [AtomicU64],
    words: &'a [AtomicU64],
}

impl BufferShard<'_> {
    fn word(&self, position: u64) -> &AtomicU64 {
        // A power of two, so that the remainder stays correct after an overflow.
        let index = usize::try_from(position).unwrap_or_default() & (self.words.len() - 1);
        &self.words[index]
    }

    fn push(
        &self,
        policy: OverflowPolicy,
        header: &RecordHeader,
        values: &[FieldValue<'_>],
    ) -> Result<(), PushError> {
        let lock = &self.control[LOCK];
        // Acquire and, below, Release: the next thread in this shard sees all that was written.
        if lock.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return Err(PushError::Busy);
        }
        let pushed = self.push_locked(policy, header, values);
        lock.store(0, Ordering::Release);
        pushed
    }

    fn push_locked(
        &self,
        policy: OverflowPolicy,
        header: &RecordHeader,
        values: &[FieldValue<'_>],
    ) -> Result<(), PushError> {
        let needed = record::words(values) as u64;
        let head = self.control[HEAD].load(Ordering::Relaxed);
        // Pairs with the reader's store: records that it has removed may be overwritten.
        let mut tail = self.control[TAIL].load(Ordering::Acquire);
        while head.wrapping_sub(tail).saturating_add(needed) > self.words.len() as u64 {
            if policy == OverflowPolicy::Keep {
                return Err(PushError::Full);
            }
            tail = self.forget_oldest(head, tail);
        }
        let mut position = head;
        record::encode(header, values, |word| {
            self.word(position).store(word, Ordering::Relaxed);
            position = position.wrapping_add(1);
        });
        // Stored last, so that a reader, also after a crash, sees only whole records.
        self.control[HEAD].store(position, Ordering::Release);
        Ok(())
    }

    /// Drops the oldest record; returns the new tail.
    fn forget_oldest(&self, head: u64, tail: u64) -> u64 {
        let length = record::length(self.word(tail).load(Ordering::Relaxed)) as u64;
        // Another program has changed the file: its contents are invalid.
        let is_sound = (1..=RECORD_WORDS_MAX as u64).contains(&length) && length <= head.wrapping_sub(tail);
        let next = if is_sound { tail.wrapping_add(length) } else { head };
        self.control[TAIL].store(next, Ordering::Release);
        self.control[LOST].fetch_add(1, Ordering::Relaxed);
        next
    }

    fn drain(&self, out: &mut Vec<u64>) {
        let head = self.control[HEAD].load(Ordering::Acquire);
        let tail = self.control[TAIL].load(Ordering::Relaxed);
        let count = head.wrapping_sub(tail).min(self.words.len() as u64);
        out.extend((0..count).map(|at| self.word(tail.wrapping_add(at)).load(Ordering::Relaxed)));
        self.control[TAIL].store(head, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARD_SIZE: usize = 512;

    fn buffer(policy: OverflowPolicy) -> EventBuffer<Box<[AtomicU64]>> {
        let memory = (0..words_needed(SHARD_SIZE)).map(|_| AtomicU64::new(0)).collect();
        EventBuffer::new(memory, SHARD_SIZE, policy)
    }

    fn push(buffer: &EventBuffer<Box<[AtomicU64]>>, thread: u32, number: u64) {
        let header = RecordHeader { event: 1, thread, time: number, object: 0 };
        buffer.push(&header, &[FieldValue::Number(number), FieldValue::Text(b"a name")]);
    }

    /// The numbers of the records that are there.
    fn drained(buffer: &EventBuffer<Box<[AtomicU64]>>) -> Vec<u64> {
        let mut words = Vec::new();
        buffer.drain(&mut words);
        let mut numbers = Vec::new();
        let mut rest = &words[..];
        while let [first, _, _, number, ..] = rest {
            numbers.push(*number);
            rest = &rest[record::length(*first)..];
        }
        assert!(rest.is_empty());
        numbers
    }

    /// Words of a record of [`push`].
    const RECORD: usize = record::HEADER_WORDS + 3;

    #[test]
    fn a_full_buffer_keeps_what_it_has_and_counts_what_it_loses() {
        let buffer = buffer(OverflowPolicy::Keep);
        let room = SHARD_SIZE / RECORD * SHARDS;
        (0..room as u64).for_each(|number| push(&buffer, 3, number));
        assert_eq!(buffer.lost(), 0);
        (0..7).for_each(|number| push(&buffer, 3, number));
        assert_eq!(buffer.lost(), 7);
        let mut all = drained(&buffer);
        all.sort_unstable();
        assert!(all.into_iter().eq(0..room as u64));
        push(&buffer, 3, 5);
        assert_eq!((drained(&buffer), buffer.lost()), (vec![5], 7));
    }

    #[test]
    fn an_overwriting_buffer_has_the_last_ones() {
        let buffer = buffer(OverflowPolicy::Overwrite);
        (0..10_000).for_each(|number| push(&buffer, 3, number));
        let kept = drained(&buffer);
        assert!(kept.len() >= SHARD_SIZE / RECORD - 1);
        assert!(kept.iter().copied().eq(10_000 - kept.len() as u64..10_000));
        assert_eq!(buffer.lost(), 10_000 - kept.len() as u64);
    }

    #[test]
    fn many_threads_and_a_reader_lose_nothing_that_is_not_counted() {
        let buffer = buffer(OverflowPolicy::Keep);
        let total: usize = std::thread::scope(|scope| {
            let buffer = &buffer;
            let writers: Vec<_> = (0..4)
                .map(|thread| {
                    scope.spawn(move || (0..20_000).for_each(|number| push(buffer, thread, number)))
                })
                .collect();
            let mut seen = 0;
            while writers.iter().any(|writer| !writer.is_finished()) {
                seen += drained(buffer).len();
            }
            seen + drained(buffer).len()
        });
        assert_eq!(total as u64 + buffer.lost(), 80_000);
    }

    #[test]
    fn a_buffer_that_was_spoilt_goes_on() {
        let buffer = buffer(OverflowPolicy::Overwrite);
        (0..1000).for_each(|number| push(&buffer, 3, number));
        buffer.memory.iter().skip(CONTROL_WORDS).step_by(3).for_each(|word| word.store(0, Ordering::Relaxed));
        (0..1000).for_each(|number| push(&buffer, 11, number));
    }
}
