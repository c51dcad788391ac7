//! The file of a ring: whatever it contains, the result are complete events in order.

use curt_observe::events::recording::{RecordingHead, RingLayout};
use curt_observe::events::{RecordedProcess, RecordingWriter};

/// Page size, at which the memory begins.
const PAGE: usize = 4096;

/// The bytes are a ring, and the shards of a valid one: the first byte is their number, the second
/// the size of each.
///
/// # Panics
/// If an invalid event is returned.
pub fn ring(bytes: &[u8]) {
    super::recording::check_recording(bytes);
    let [shards, length, rest @ ..] = bytes else {
        return;
    };
    let head = RecordingHead {
        ring: Some(RingLayout { shards: usize::from(shards % 5), shard_words: 1 << (length % 9) }),
        ..RecordingHead::new(RecordedProcess::default())
    };
    let mut whole = RecordingWriter::of(&head).expect("a description").take();
    whole.resize(whole.len().next_multiple_of(PAGE), 0);
    whole.extend(rest);
    super::recording::check_recording(&whole);
}
