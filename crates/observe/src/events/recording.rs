//! Events on a control socket or in a file: a recording, or a [ring](super::ring). It describes its
//! own events and fields, so that any version can read what another one wrote.
//!
//! It consists of 64-bit words, little-endian: [`MAGIC`]; the length in bytes of a description in
//! JSON ([`RecordingHead`]), which follows, padded with zeros to whole words; then contiguous
//! [records](super::record) and marks. A ring has the memory of a buffer instead, beginning at the
//! next page. The reader returns the same items of both. The contents are not trusted: lengths are
//! checked against limits before memory is allocated.

mod head;
mod ring_memory;
mod writer;

use std::io::{self, BufReader, Cursor, Read};

use thiserror::Error;

use super::fields::FieldKind;
use super::record::{
    self, CUT, HEADER_WORDS, MARK_COMPLETE_UNTIL, MARK_END, MARK_OBJECT, MARK_THREAD, MARKS,
    RECORD_WORDS_MAX, RecordHeader, TEXT_MAX,
};
pub use head::{RecordedEvent, RecordedField, RecordedProcess, RecordingHead, RingLayout};
pub use writer::{RecordSubject, RecordingWriter};

/// The first word of a recording and of a ring.
pub const MAGIC: u64 = u64::from_le_bytes(*b"CURTEVT2");
/// Maximum length of a record of any version, in words; that of this version is shorter.
const WORDS_MAX: usize = 4096;

const _: () = assert!(RECORD_WORDS_MAX <= WORDS_MAX);

/// Why a recording, or the rest of it, cannot be read.
#[derive(Debug, Error)]
pub enum RecordingError {
    /// The system's error.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The file does not begin like a recording.
    #[error("not a recording or ring of Curt")]
    NoRecording,
    /// Its description is invalid.
    #[error("malformed event descriptions: {0}")]
    Head(String),
    /// The recording ends in the middle of a record.
    #[error("truncated in the middle of an event")]
    CutOff,
    /// A record is invalid.
    #[error("event {0} is malformed")]
    Spoilt(u64),
}

/// A field's value in a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordedValue {
    /// A number.
    Number(u64),
    /// A number that may be negative.
    Signed(i64),
    /// A text, and whether it was truncated.
    Text(Vec<u8>, bool),
}

/// An event that happened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventRecord {
    /// Nanoseconds of the monotonic clock.
    pub time: u64,
    /// The thread.
    pub thread: u32,
    /// The object of the operation that the thread worked for; 0: none.
    pub object: u64,
    /// The event, by its index in the description.
    pub event: usize,
    /// Its fields.
    pub values: Vec<RecordedValue>,
    /// The whole record as read.
    pub words: Vec<u64>,
}

/// The next item of a recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordingItem {
    /// An event.
    Event(EventRecord),
    /// All events before this time have been read.
    CompleteUntil(u64),
    /// A thread's name.
    Thread(u32, String),
    /// An object's path.
    Object(u64, Vec<u8>),
    /// The end, with the numbers of recorded and lost events.
    End {
        /// Events in the recording.
        events: u64,
        /// Events that did not fit.
        lost: u64,
    },
}

/// Reads a recording or a ring.
pub struct RecordingReader<'a> {
    source: Box<dyn Read + 'a>,
    head: RecordingHead,
    items: u64,
}

impl<'a> RecordingReader<'a> {
    /// Begins to read. A ring's process may still run; events that it writes meanwhile may be
    /// missing.
    ///
    /// # Errors
    /// It is not a recording, or a damaged ring.
    pub fn open(source: impl Read + 'a) -> Result<Self, RecordingError> {
        let mut source: Box<dyn Read + 'a> = Box::new(BufReader::with_capacity(1 << 16, source));
        if read_word(&mut source)? != Some(MAGIC) {
            return Err(RecordingError::NoRecording);
        }
        let (head, words) = RecordingHead::read(&mut source)?;
        if let Some(layout) = head.ring {
            let filling = RecordingHead::memory_at(1 + words) - (1 + words);
            source = Box::new(Cursor::new(ring_memory::read(source, filling, layout, &head)?));
        }
        Ok(Self { source, head, items: 0 })
    }

    /// The description of its events.
    #[must_use]
    pub fn head(&self) -> &RecordingHead {
        &self.head
    }

    /// The next item; none at the end.
    ///
    /// # Errors
    /// [`RecordingError`]; nothing can be read afterwards.
    pub fn next_item(&mut self) -> Result<Option<RecordingItem>, RecordingError> {
        loop {
            let Some(first) = read_word(&mut self.source)? else {
                return Ok(None);
            };
            self.items += 1;
            let length = record::length(first);
            if !(HEADER_WORDS..=WORDS_MAX).contains(&length) {
                return Err(RecordingError::Spoilt(self.items));
            }
            let mut words = vec![first];
            for _ in 1..length {
                words.push(read_word(&mut self.source)?.ok_or(RecordingError::CutOff)?);
            }
            let item = decode(words, &self.head).ok_or(RecordingError::Spoilt(self.items))?;
            // An unknown mark of a later version is skipped.
            if let Some(item) = item {
                return Ok(Some(item));
            }
        }
    }
}

/// Reads a word; none at the end.
fn read_word(mut source: impl Read) -> Result<Option<u64>, RecordingError> {
    let mut word = [0; 8];
    let mut filled = 0;
    while filled < word.len() {
        match source.read(&mut word[filled..]) {
            Ok(0) if filled == 0 => return Ok(None),
            Ok(0) => return Err(RecordingError::CutOff),
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Some(u64::from_le_bytes(word)))
}

/// The item that these words encode, if they are valid; `Some(None)` is an unknown mark.
fn decode(words: Vec<u64>, head: &RecordingHead) -> Option<Option<RecordingItem>> {
    let header = RecordHeader::of(&words)?;
    let mut fields = words[HEADER_WORDS..].iter().copied();
    let item = match header.event {
        MARK_COMPLETE_UNTIL => RecordingItem::CompleteUntil(header.time),
        MARK_THREAD => {
            let name = String::from_utf8_lossy(&take_text(&mut fields)?.0).into_owned();
            RecordingItem::Thread(header.thread, name)
        }
        MARK_OBJECT => RecordingItem::Object(header.object, take_text(&mut fields)?.0),
        MARK_END => RecordingItem::End { events: fields.next()?, lost: fields.next()? },
        mark if mark >= MARKS => return Some(None),
        event => {
            let event = usize::from(event);
            let shape = head.events.get(event)?;
            let values = shape.fields.iter().map(|field| match field.kind() {
                FieldKind::Text => take_text(&mut fields).map(|(text, cut)| RecordedValue::Text(text, cut)),
                FieldKind::Errno => fields.next().map(|word| RecordedValue::Signed(word.cast_signed())),
                _ => fields.next().map(RecordedValue::Number),
            });
            RecordingItem::Event(EventRecord {
                time: header.time,
                thread: header.thread,
                object: header.object,
                event,
                values: values.collect::<Option<_>>()?,
                words,
            })
        }
    };
    Some(Some(item))
}

/// A text, and whether it was truncated.
fn take_text(words: &mut impl Iterator<Item = u64>) -> Option<(Vec<u8>, bool)> {
    let length = words.next()?;
    let size = usize::try_from(length & !CUT).ok().filter(|size| *size <= WORDS_MAX * 8)?;
    let mut text = Vec::with_capacity(size.min(TEXT_MAX).next_multiple_of(8));
    for _ in 0..size.div_ceil(8) {
        text.extend_from_slice(&words.next()?.to_le_bytes());
    }
    text.truncate(size);
    Some((text, length & CUT != 0))
}

#[cfg(test)]
mod tests;
