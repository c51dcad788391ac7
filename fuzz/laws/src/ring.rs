//! The file of a ring: whatever became of it, what is read are whole events in order.

use curt_trace::events::recording::RecordingHead;
use curt_trace::events::ring::{self, MAGIC};
use curt_trace::events::{RecordedProcess, RecordingWriter};

/// The first word of a recording and of a ring.
const WORD: usize = 8;

/// The bytes are a ring, and the lanes of a good one: the first byte says how many there are, the
/// second how long each is.
///
/// # Panics
/// If an event is read that is none.
pub fn ring(bytes: &[u8]) {
    check(bytes);
    let [lanes, length, rest @ ..] = bytes else { return };
    let head = RecordingWriter::of(&RecordingHead::new(RecordedProcess::default()))
        .expect("a description")
        .take();
    let described = &head[WORD..];
    let start = 5 + described.len() / WORD;
    let beginning = [
        MAGIC,
        1,
        u64::from(lanes % 5),
        1 << (length % 9),
        u64::try_from(start).expect("a short description"),
    ];
    let mut whole: Vec<u8> = beginning.iter().flat_map(|word| word.to_le_bytes()).collect();
    whole.extend(described);
    whole.extend(rest);
    check(&whole);
}

fn check(bytes: &[u8]) {
    let Ok(left) = ring::read(bytes) else { return };
    assert!(left.records.is_sorted_by_key(|record| record.time));
    // A record has two words at least.
    assert!(left.records.len() <= bytes.len() / 16);
    for record in &left.records {
        let shape = &left.head.events[record.event];
        assert_eq!(record.values.len(), shape.fields.len());
    }
    super::recording::shown(&left.head, left.records);
}
