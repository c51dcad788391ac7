//! The memory of a ring, as records in order of time. The contents are not trusted: the process may
//! have been killed at any moment, and the file may have been changed since.

use std::io::Read;

use super::{RecordingError, RecordingHead, RecordingItem, RecordingWriter, RingLayout, decode};
use crate::events::buffer::{CONTROL_WORDS, HEAD, LOST, TAIL};
use crate::events::record::{self, HEADER_WORDS, RECORD_WORDS_MAX};

/// Maximum size of a ring in bytes.
const READ_MAX: u64 = 64 << 20;
/// Maximum number of shards of a ring.
const READ_SHARDS_MAX: usize = 1024;

/// The records, as a recording contains them after its description. The memory begins after
/// `filling` words.
pub(super) fn read(
    source: impl Read,
    filling: usize,
    layout: RingLayout,
    head: &RecordingHead,
) -> Result<Vec<u8>, RecordingError> {
    if layout.shards > READ_SHARDS_MAX || !layout.shard_words.is_power_of_two() {
        return Err(RecordingError::Head(format!("{layout:?}")));
    }
    let mut bytes = Vec::new();
    source.take(READ_MAX).read_to_end(&mut bytes)?;
    let (words, _) = bytes.as_chunks::<8>();
    let words: Vec<u64> = words.iter().skip(filling).map(|word| u64::from_le_bytes(*word)).collect();
    let mut records = Vec::new();
    let mut lost: u64 = 0;
    let shards = words.chunks_exact(CONTROL_WORDS.saturating_add(layout.shard_words));
    for shard in shards.take(layout.shards) {
        let (control, words) = shard.split_at(CONTROL_WORDS);
        lost = lost.saturating_add(control[LOST]);
        read_shard(control, words, head, &mut records);
    }
    records.sort_by_key(|record| record.1);
    let mut writer = RecordingWriter::default();
    for (words, _) in records {
        writer.record(&words);
    }
    writer.end(lost);
    Ok(writer.take())
}

/// Appends the valid records of a shard with their times.
fn read_shard(control: &[u64], words: &[u64], head: &RecordingHead, records: &mut Vec<(Vec<u64>, u64)>) {
    let (end, mut at) = (control[HEAD], control[TAIL]);
    let mut unread = end.wrapping_sub(at).min(words.len() as u64);
    let word = |at: u64| words[usize::try_from(at).unwrap_or_default() & (words.len() - 1)];
    while unread > 0 {
        let length = record::length(word(at));
        if !(HEADER_WORDS..=RECORD_WORDS_MAX).contains(&length) || length as u64 > unread {
            return;
        }
        let one = (0..length as u64).map(|offset| word(at.wrapping_add(offset)));
        if let Some(Some(RecordingItem::Event(record))) = decode(one.collect(), head) {
            records.push((record.words, record.time));
        }
        at = at.wrapping_add(length as u64);
        unread -= length as u64;
    }
}
