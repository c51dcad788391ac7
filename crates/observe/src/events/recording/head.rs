//! The description at the beginning of a recording: the recorded process, and its events with their
//! fields.

use std::io::{self, Read};

use serde::{Deserialize, Serialize};

use super::{MAGIC, RecordingError, read_word};
use crate::events::{event::Event, fields::FieldKind};

/// Maximum length of a description in bytes.
pub(super) const HEAD_MAX: u64 = 1 << 20;

/// The recorded process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedProcess {
    /// Version of Curt.
    pub curt: String,
    /// Its process id.
    pub pid: u32,
    /// Its kind: `mount` or `serve`.
    pub program: String,
    /// Its task: `server:/path on /directory`, or the exported paths.
    pub subject: String,
    /// The offset from the time of an event to the time of day, in nanoseconds since 1970.
    pub time_of_day_offset: u64,
}

/// A field, in a description.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedField {
    /// Its name.
    pub name: String,
    /// The name of its kind. An unknown kind is read as a number.
    pub kind: String,
}

/// An event, in a description.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedEvent {
    /// Its name.
    pub name: String,
    /// Its relation to others in time: `instant`, `enter`, `exit`, `begin` or `end`.
    pub span: String,
    /// Its fields.
    pub fields: Vec<RecordedField>,
}

/// The memory of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingLayout {
    /// Number of shards of its buffer.
    pub shards: usize,
    /// Number of words of each, without its header.
    pub shard_words: usize,
}

/// The description at the beginning of a recording.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordingHead {
    /// The process.
    pub origin: RecordedProcess,
    /// Only in a ring: its memory follows instead of records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ring: Option<RingLayout>,
    /// The events, indexed by number.
    pub events: Vec<RecordedEvent>,
}

impl RecordedEvent {
    /// An event of this version.
    #[must_use]
    pub fn of(event: Event) -> Self {
        let row = event.description();
        let fields = row
            .fields
            .iter()
            .map(|field| RecordedField { name: field.name.to_owned(), kind: field.kind.name().to_owned() });
        Self { name: row.name.to_owned(), span: row.span.name().to_owned(), fields: fields.collect() }
    }
}

impl RecordedEvent {
    /// The common part of the names of the two events of a span: the name without its last word.
    #[must_use]
    pub fn operation(&self) -> &str {
        let endings = ["_enter", "_exit", "_call", "_reply", "_done"];
        let name = endings.iter().find_map(|ending| self.name.strip_suffix(ending));
        name.unwrap_or(&self.name)
    }
}

impl RecordedField {
    /// Its kind; a number if it is unknown.
    #[must_use]
    pub fn kind(&self) -> FieldKind {
        FieldKind::named(&self.kind).unwrap_or(FieldKind::Number)
    }
}

impl RecordingHead {
    /// The description of this version's events, for that process.
    #[must_use]
    pub fn new(origin: RecordedProcess) -> Self {
        Self {
            origin,
            ring: None,
            events: Event::ALL.iter().map(|event| RecordedEvent::of(*event)).collect(),
        }
    }

    /// The beginning of a recording: [`MAGIC`], the length of the description, and the description.
    pub(in crate::events) fn words(&self) -> io::Result<Vec<u64>> {
        let text = serde_json::to_vec(self)?;
        let mut words = vec![MAGIC, text.len() as u64];
        words.extend(text.chunks(8).map(|bytes| {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(word)
        }));
        Ok(words)
    }

    /// The offset of a ring's memory after such a beginning, in words.
    pub(in crate::events) const fn memory_at(beginning: usize) -> usize {
        /// Words of a page.
        const PAGE_WORDS: usize = 512;
        beginning.next_multiple_of(PAGE_WORDS)
    }

    /// The description, and its length in words with the length field before it.
    pub(in crate::events) fn read(mut source: impl Read) -> Result<(Self, usize), RecordingError> {
        let length = read_word(&mut source)?.ok_or(RecordingError::CutOff)?;
        if length > HEAD_MAX {
            return Err(RecordingError::Head(format!("of {length} bytes; {HEAD_MAX} are the limit")));
        }
        let mut text = Vec::new();
        source.by_ref().take(length).read_to_end(&mut text)?;
        if (text.len() as u64) < length {
            return Err(RecordingError::CutOff);
        }
        let filling = length.next_multiple_of(8) - length;
        io::copy(&mut source.take(filling), &mut io::sink())?;
        let head = serde_json::from_slice(&text).map_err(|error| RecordingError::Head(error.to_string()))?;
        Ok((head, 1 + text.len().div_ceil(8)))
    }
}
