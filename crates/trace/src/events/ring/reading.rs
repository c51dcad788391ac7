//! Reading a ring that was left behind. Nothing in it is trusted: its process may have been killed
//! at any moment, and the file may have been changed since.

use std::io::{self, Read, Seek, SeekFrom};

use super::super::buffer::{CONTROL_WORDS, HEAD, LOST, TAIL};
use super::super::record::{self, HEADER_WORDS, RECORD_WORDS_MAX};
use super::super::recording::{EventRecord, RecordingError, RecordingHead, RecordingItem, decode};
use super::{FORMAT, HEAD_AT, MAGIC};

/// The largest ring that is read, in bytes.
const READ_MAX: u64 = 64 << 20;
/// The most lanes of a ring that is read.
const READ_SHARDS_MAX: u64 = 1024;

/// Whether a file begins as a ring does; the file is then at its beginning again.
///
/// # Errors
/// It cannot be read.
pub fn is_ring(file: &mut (impl Read + Seek)) -> io::Result<bool> {
    let mut first = Vec::new();
    file.by_ref().take(8).read_to_end(&mut first)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(first == MAGIC.to_le_bytes())
}

/// The contents of a ring.
#[derive(Debug)]
pub struct RingContents {
    /// Its process, and its events.
    pub head: RecordingHead,
    /// The last events, in order.
    pub records: Vec<EventRecord>,
    /// How many events came before them.
    pub overwritten: u64,
}

/// Reads a ring. Its process may still live; what it writes meanwhile may be missing.
///
/// # Errors
/// It is not a ring, or is damaged.
pub fn read(file: impl Read) -> Result<RingContents, RecordingError> {
    let mut bytes = Vec::new();
    file.take(READ_MAX).read_to_end(&mut bytes)?;
    let words: Vec<u64> = bytes
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().expect("a chunk has its size")))
        .collect();
    let [magic, format, lanes, lane_words, start, ..] = words[..] else {
        return Err(RecordingError::NoRecording);
    };
    if magic != MAGIC {
        return Err(RecordingError::NoRecording);
    }
    let head = RecordingHead::read(&bytes[HEAD_AT * 8..])?;
    let size = usize::try_from(lane_words)
        .ok()
        .filter(|size| size.is_power_of_two());
    let (Some(size), FORMAT, ..=READ_SHARDS_MAX) = (size, format, lanes) else {
        return Err(RecordingError::Head(format!(
            "format {format}, {lanes} lanes of {lane_words} words"
        )));
    };
    let rest = usize::try_from(start).ok().and_then(|start| words.get(start..));
    let mut left = RingContents {
        head,
        records: Vec::new(),
        overwritten: 0,
    };
    let lanes = usize::try_from(lanes).unwrap_or_default();
    for lane in rest
        .unwrap_or_default()
        .chunks_exact(CONTROL_WORDS.saturating_add(size))
        .take(lanes)
    {
        let (control, words) = lane.split_at(CONTROL_WORDS);
        left.overwritten = left.overwritten.saturating_add(control[LOST]);
        read_shard(control, words, &left.head, &mut left.records);
    }
    left.records.sort_by_key(|record| record.time);
    Ok(left)
}

/// Takes the records of a lane, as far as they make sense.
fn read_shard(control: &[u64], words: &[u64], head: &RecordingHead, records: &mut Vec<EventRecord>) {
    let (end, mut at) = (control[HEAD], control[TAIL]);
    let mut unread = end.wrapping_sub(at).min(words.len() as u64);
    let word = |at: u64| words[usize::try_from(at).unwrap_or_default() & (words.len() - 1)];
    while unread > 0 {
        let length = record::length(word(at));
        if !(HEADER_WORDS..=RECORD_WORDS_MAX).contains(&length) || length as u64 > unread {
            return;
        }
        let one: Vec<u64> = (0..length as u64)
            .map(|offset| word(at.wrapping_add(offset)))
            .collect();
        if let Some(Some(RecordingItem::Event(record))) = decode(&one, head) {
            records.push(record);
        }
        at = at.wrapping_add(length as u64);
        unread -= length as u64;
    }
}
