//! The file of a ring: whatever became of it, what is read are whole events in order.

use curt_trace::events::recording::{RecordingHead, RingLayout};
use curt_trace::events::{RecordedProcess, RecordingWriter};

/// Bytes of a page, at which the memory begins.
const PAGE: usize = 4096;

/// The bytes are a ring, and the shards of a good one: the first byte says how many there are, the
/// second how long each is.
///
/// # Panics
/// If an event is read that is none.
pub fn ring(bytes: &[u8]) {
    super::recording::check_recording(bytes);
    let [shards, length, rest @ ..] = bytes else {
        return;
    };
    let head = RecordingHead {
        ring: Some(RingLayout {
            shards: usize::from(shards % 5),
            shard_words: 1 << (length % 9),
        }),
        ..RecordingHead::new(RecordedProcess::default())
    };
    let mut whole = RecordingWriter::of(&head).expect("a description").take();
    whole.resize(whole.len().next_multiple_of(PAGE), 0);
    whole.extend(rest);
    super::recording::check_recording(&whole);
}
