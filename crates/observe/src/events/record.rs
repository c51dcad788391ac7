//! The layout of an event in memory and in a recording: 64-bit words.
//!
//! Word 0: length in words (16 bits), event (16), thread (32). Word 1: time, in nanoseconds of the
//! monotonic clock. Word 2: the object of the operation that the thread works for, 0 if none. Then
//! the fields: a number takes one word; a text takes a word with its length in bytes (and [`CUT`]
//! if it was longer) and its bytes, padded with zeros.

use super::fields::FieldValue;

/// Maximum recorded length of a text in bytes: names of NFSv3 are no longer.
pub const TEXT_MAX: usize = 255;
/// Maximum number of fields of an event: USDT probes have no more arguments either.
pub const FIELDS_MAX: usize = 12;
/// Maximum number of texts among them.
pub const TEXTS_MAX: usize = 4;
/// Words before the fields.
pub const HEADER_WORDS: usize = 3;
/// Maximum length of a record of this version, in words.
pub const RECORD_WORDS_MAX: usize = HEADER_WORDS + FIELDS_MAX + TEXTS_MAX * TEXT_MAX.div_ceil(8);
/// Set in the length of a text that was truncated.
pub const CUT: u64 = 1 << 63;

/// Event numbers from here on denote marks in a stream, not events.
pub const MARKS: u16 = 0xff00;
/// All events before this time have been sent.
pub const MARK_COMPLETE_UNTIL: u16 = 0xff00;
/// A thread's name: one text.
pub const MARK_THREAD: u16 = 0xff01;
/// An object's path from the root of the mount: one text.
pub const MARK_OBJECT: u16 = 0xff03;
/// The end of a stream: how many events it has, and how many were lost.
pub const MARK_END: u16 = 0xff02;

/// A record's first words.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RecordHeader {
    /// The event, or a mark.
    pub event: u16,
    /// The thread.
    pub thread: u32,
    /// Nanoseconds of the monotonic clock.
    pub time: u64,
    /// The object, by its number in the process.
    pub object: u64,
}

impl RecordHeader {
    /// The first word of a record of `words` words.
    #[must_use]
    pub fn first_word(&self, words: usize) -> u64 {
        words as u64 & 0xffff | u64::from(self.event) << 16 | u64::from(self.thread) << 32
    }

    /// The header at the beginning of these words.
    #[must_use]
    pub fn of(words: &[u64]) -> Option<Self> {
        let [first, time, object, ..] = *words else {
            return None;
        };
        Some(Self {
            event: u16::try_from(first >> 16 & 0xffff).unwrap_or_default(),
            thread: u32::try_from(first >> 32).unwrap_or_default(),
            time,
            object,
        })
    }
}

/// The length of the record that begins with this word.
#[must_use]
pub fn length(first: u64) -> usize {
    usize::try_from(first & 0xffff).unwrap_or_default()
}

/// Number of words of a value.
fn words_of(value: &FieldValue<'_>) -> usize {
    match value {
        FieldValue::Number(_) | FieldValue::Signed(_) => 1,
        FieldValue::Text(text) => 1 + text.len().min(TEXT_MAX).div_ceil(8),
    }
}

/// Number of words of a record of these values.
#[must_use]
pub fn words(values: &[FieldValue<'_>]) -> usize {
    HEADER_WORDS + values.iter().map(words_of).sum::<usize>()
}

/// Passes a record's words to `put` in order.
pub fn encode(header: &RecordHeader, values: &[FieldValue<'_>], mut put: impl FnMut(u64)) {
    put(header.first_word(words(values)));
    put(header.time);
    put(header.object);
    for value in values {
        match *value {
            FieldValue::Number(number) => put(number),
            FieldValue::Signed(number) => put(number.cast_unsigned()),
            FieldValue::Text(text) => {
                let kept = &text[..text.len().min(TEXT_MAX)];
                let cut = if kept.len() < text.len() { CUT } else { 0 };
                put(kept.len() as u64 | cut);
                for bytes in kept.chunks(8) {
                    let mut word = [0; 8];
                    word[..bytes.len()].copy_from_slice(bytes);
                    put(u64::from_le_bytes(word));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_the_length_that_it_says_at_the_limits_of_texts_and_beyond() {
        for size in [0, 1, 8, 9, TEXT_MAX - 1, TEXT_MAX, TEXT_MAX + 1, 5000] {
            let text = vec![b'x'; size];
            let values = [FieldValue::Number(7), FieldValue::Text(&text), FieldValue::Signed(-2)];
            let header = RecordHeader { event: 3, thread: u32::MAX, time: 99, object: u64::MAX };
            let mut record = Vec::new();
            encode(&header, &values, |word| record.push(word));
            assert_eq!(record.len(), words(&values));
            assert_eq!(RecordHeader::of(&record), Some(header));
            assert_eq!(length(record[0]), record.len());
            assert_eq!(record[4] & CUT != 0, size > TEXT_MAX);
            assert_eq!(record.last(), Some(&(-2_i64).cast_unsigned()));
        }
    }

    #[test]
    fn the_longest_record_keeps_to_the_limit() {
        let text = [b'x'; 300];
        let mut values = vec![FieldValue::Text(&text); TEXTS_MAX];
        values.resize(FIELDS_MAX, FieldValue::Number(1));
        assert_eq!(words(&values), RECORD_WORDS_MAX);
        const { assert!(RECORD_WORDS_MAX < 0xffff) };
    }
}
