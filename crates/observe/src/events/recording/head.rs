//! The description at the beginning of a recording: which process was recorded, and its events with
//! their fields.

use std::io::{self, Read};

use serde::{Deserialize, Serialize};

use super::{MAGIC, RecordingError, read_word};
use crate::events::{event::Event, fields::FieldKind};

/// The longest description, in bytes.
pub(super) const HEAD_MAX: u64 = 1 << 20;

/// The process that the events come from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedProcess {
    /// Version of Curt.
    pub curt: String,
    /// The process.
    pub pid: u32,
    /// What it is: `mount` or `serve`.
    pub program: String,
    /// What it does: `server:/path on /directory`, or what is exported.
    pub subject: String,
    /// Added to a time it gives the time of day: nanoseconds since 1970.
    pub time_of_day_offset: u64,
}

/// A field, in a description.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedField {
    /// Its name.
    pub name: String,
    /// The name of its kind. One that this version does not know is a number.
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
    /// The shards of its buffer.
    pub shards: usize,
    /// The words of each, without its header.
    pub shard_words: usize,
}

/// The description at the beginning of a recording.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordingHead {
    /// The process.
    pub origin: RecordedProcess,
    /// Of a ring: its memory follows, and no records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ring: Option<RingLayout>,
    /// The events by their numbers.
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
    /// What begins or ends, which two events have in common: the name without its last word.
    #[must_use]
    pub fn operation(&self) -> &str {
        let endings = ["_enter", "_exit", "_call", "_reply", "_done"];
        let name = endings.iter().find_map(|ending| self.name.strip_suffix(ending));
        name.unwrap_or(&self.name)
    }
}

impl RecordedField {
    /// Its kind; a number if it is not known.
    #[must_use]
    pub fn kind(&self) -> FieldKind {
        FieldKind::named(&self.kind).unwrap_or(FieldKind::Number)
    }
}

impl RecordingHead {
    /// The events of this version, of that process.
    #[must_use]
    pub fn new(origin: RecordedProcess) -> Self {
        Self {
            origin,
            ring: None,
            events: Event::ALL.iter().map(|event| RecordedEvent::of(*event)).collect(),
        }
    }

    /// The beginning of a recording: [`MAGIC`], and the description after its length.
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

    /// Where the memory of a ring begins, in words, behind such a beginning.
    pub(in crate::events) const fn memory_at(beginning: usize) -> usize {
        /// Words of a page.
        const PAGE_WORDS: usize = 512;
        beginning.next_multiple_of(PAGE_WORDS)
    }

    /// The description, and how many words it took with the length before it.
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
