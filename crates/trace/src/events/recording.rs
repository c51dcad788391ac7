//! A stream of events, on a control socket or in a file. It says itself what its events and fields are, so that any version reads
//! what another one wrote.
//!
//! All is words of 64 bits, little-endian: [`MAGIC`]; the length in bytes of a description in JSON ([`Head`]), which follows,
//! filled up with zeros to whole words; then [records](super::record) and marks, without anything between them. Whoever
//! reads believes nothing: lengths are held against limits before memory is taken.

use std::io::{self, BufReader, Read};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::event::{Event, Span};
use super::fields::{Kind, Value};
use super::record::{
    self, CUT, HEADER_WORDS, Header, MARK_END, MARK_THREAD, MARK_TOLD, MARKS, RECORD_WORDS_MAX, TEXT_MAX,
};
use super::sinks;

/// The first word of a recording.
pub const MAGIC: u64 = u64::from_le_bytes(*b"CURTEVT1");
/// The longest description, in bytes.
const HEAD_MAX: u64 = 1 << 20;
/// The longest record of any version, in words; this one's is shorter.
const WORDS_MAX: usize = 4096;
/// How many threads' names are told; of more, only the numbers.
const THREADS_MAX: usize = 4096;

const _: () = assert!(RECORD_WORDS_MAX <= WORDS_MAX);

/// Of which process the events are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
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
pub struct FieldShape {
    /// Its name.
    pub name: String,
    /// The name of its kind. One that this version does not know is a number.
    pub kind: String,
}

/// An event, in a description.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Its name.
    pub name: String,
    /// What it is in time: `instant`, `enter`, `exit`, `begin` or `end`.
    pub span: String,
    /// Its fields.
    pub fields: Vec<FieldShape>,
}

/// What stands at the beginning of a recording.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// Of which process.
    pub origin: Origin,
    /// The events by their numbers.
    pub events: Vec<Shape>,
}

impl Shape {
    /// An event of this version.
    #[must_use]
    pub fn of(event: Event) -> Self {
        let row = event.description();
        let span = match row.span {
            Span::Instant => "instant",
            Span::Enter => "enter",
            Span::Exit => "exit",
            Span::Begin => "begin",
            Span::End => "end",
        };
        let fields = row.fields.iter().map(|field| FieldShape {
            name: field.name.to_owned(),
            kind: field.kind.name().to_owned(),
        });
        Self {
            name: row.name.to_owned(),
            span: span.to_owned(),
            fields: fields.collect(),
        }
    }
}

impl FieldShape {
    /// Its kind; a number if it is not known.
    #[must_use]
    pub fn kind(&self) -> Kind {
        let known = Kind::ALL.into_iter().find(|kind| kind.name() == self.kind);
        known.unwrap_or(Kind::Number)
    }
}

impl Head {
    /// The events of this version, of that process.
    #[must_use]
    pub fn new(origin: Origin) -> Self {
        Self {
            origin,
            events: Event::ALL.iter().map(|event| Shape::of(*event)).collect(),
        }
    }

    /// As JSON, filled up to whole words, behind its length.
    pub(super) fn words(&self) -> io::Result<Vec<u64>> {
        let text = serde_json::to_vec(self)?;
        let mut words = vec![text.len() as u64];
        words.extend(text.chunks(8).map(|bytes| {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(word)
        }));
        Ok(words)
    }

    pub(super) fn read(mut source: impl Read) -> Result<Self, RecordingError> {
        let length = read_word(&mut source)?.ok_or(RecordingError::CutOff)?;
        if length > HEAD_MAX {
            return Err(RecordingError::Head(format!(
                "of {length} bytes; {HEAD_MAX} are the limit"
            )));
        }
        let mut text = Vec::new();
        source.by_ref().take(length).read_to_end(&mut text)?;
        if (text.len() as u64) < length {
            return Err(RecordingError::CutOff);
        }
        let filling = length.next_multiple_of(8) - length;
        io::copy(&mut source.take(filling), &mut io::sink())?;
        serde_json::from_slice(&text).map_err(|error| RecordingError::Head(error.to_string()))
    }
}

/// Why a recording cannot be read (on).
#[derive(Debug, Error)]
pub enum RecordingError {
    /// The system's error.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It begins otherwise.
    #[error("this is no recording and no ring of Curt's")]
    NoRecording,
    /// It says nothing sensible of its events.
    #[error("the description of the events is not understood: {0}")]
    Head(String),
    /// It ends in the middle of a record.
    #[error("it ends in the middle of an event")]
    CutOff,
    /// A record is none.
    #[error("event {0} of it makes no sense")]
    Spoilt(u64),
}

/// What stands in a field of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Datum {
    /// A number.
    Number(u64),
    /// A number that may be negative.
    Signed(i64),
    /// A text, and whether its end was cut off.
    Text(Vec<u8>, bool),
}

impl Datum {
    fn value(&self) -> Value<'_> {
        match self {
            Self::Number(number) => Value::Number(*number),
            Self::Signed(number) => Value::Signed(*number),
            Self::Text(text, _) => Value::Text(text),
        }
    }
}

/// An event that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Nanoseconds of the monotonic clock.
    pub time: u64,
    /// The thread.
    pub thread: u32,
    /// Which event, by its place in the description.
    pub event: usize,
    /// Its fields.
    pub values: Vec<Datum>,
}

/// What stands next in a recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// An event.
    Event(Record),
    /// All events until this time were before.
    Told(u64),
    /// A thread's name.
    Thread(u32, String),
    /// The end: how many events there were, and how many were lost.
    End {
        /// Events told.
        told: u64,
        /// Events that did not fit.
        lost: u64,
    },
}

/// Reads a recording.
#[derive(Debug)]
pub struct Recording<R> {
    source: R,
    head: Head,
    items: u64,
    words: Vec<u64>,
}

impl<R: Read> Recording<BufReader<R>> {
    /// Begins.
    ///
    /// # Errors
    /// It is no recording.
    pub fn open(source: R) -> Result<Self, RecordingError> {
        let mut source = BufReader::with_capacity(1 << 16, source);
        if read_word(&mut source)? != Some(MAGIC) {
            return Err(RecordingError::NoRecording);
        }
        let head = Head::read(&mut source)?;
        Ok(Self {
            source,
            head,
            items: 0,
            words: Vec::new(),
        })
    }
}

impl<R: Read> Recording<R> {
    /// What it says of its events.
    #[must_use]
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// What stands next; nothing at the end.
    ///
    /// # Errors
    /// [`RecordingError`]; nothing can be read afterwards.
    pub fn next_item(&mut self) -> Result<Option<Item>, RecordingError> {
        loop {
            let Some(first) = read_word(&mut self.source)? else {
                return Ok(None);
            };
            self.items += 1;
            let length = record::length(first);
            if !(HEADER_WORDS..=WORDS_MAX).contains(&length) {
                return Err(RecordingError::Spoilt(self.items));
            }
            self.words.clear();
            self.words.push(first);
            for _ in 1..length {
                let word = read_word(&mut self.source)?.ok_or(RecordingError::CutOff)?;
                self.words.push(word);
            }
            let item = decode(&self.words, &self.head).ok_or(RecordingError::Spoilt(self.items))?;
            // A mark of a later version says nothing to this one.
            if let Some(item) = item {
                return Ok(Some(item));
            }
        }
    }
}

/// Reads a word; nothing if there is no byte any more.
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

/// The item that these words are, if they are one; `Some(None)` is a mark that is not known.
pub(super) fn decode(words: &[u64], head: &Head) -> Option<Option<Item>> {
    let [first, time, fields @ ..] = words else {
        return None;
    };
    let (header, _) = Header::of(*first, *time);
    let mut fields = fields.iter().copied();
    let item = match header.event {
        MARK_TOLD => Item::Told(header.time),
        MARK_THREAD => match take_text(&mut fields)? {
            Datum::Text(name, _) => Item::Thread(header.thread, String::from_utf8_lossy(&name).into_owned()),
            Datum::Number(_) | Datum::Signed(_) => return None,
        },
        MARK_END => Item::End {
            told: fields.next()?,
            lost: fields.next()?,
        },
        mark if mark >= MARKS => return Some(None),
        event => {
            let event = usize::from(event);
            let shape = head.events.get(event)?;
            let values = shape.fields.iter().map(|field| match field.kind() {
                Kind::Text => take_text(&mut fields),
                Kind::Errno => fields.next().map(|word| Datum::Signed(word.cast_signed())),
                _ => fields.next().map(Datum::Number),
            });
            Item::Event(Record {
                time: header.time,
                thread: header.thread,
                event,
                values: values.collect::<Option<_>>()?,
            })
        }
    };
    Some(Some(item))
}

fn take_text(words: &mut impl Iterator<Item = u64>) -> Option<Datum> {
    let length = words.next()?;
    let size = usize::try_from(length & !CUT)
        .ok()
        .filter(|size| *size <= WORDS_MAX * 8)?;
    let mut text = Vec::with_capacity(size.min(TEXT_MAX).next_multiple_of(8));
    for _ in 0..size.div_ceil(8) {
        text.extend_from_slice(&words.next()?.to_le_bytes());
    }
    text.truncate(size);
    Some(Datum::Text(text, length & CUT != 0))
}

/// Makes a recording's bytes.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
    threads: std::collections::BTreeSet<u32>,
    told: u64,
}

impl Writer {
    /// Begins: the first bytes are there.
    ///
    /// # Errors
    /// None that we know.
    pub fn new(origin: Origin) -> io::Result<Self> {
        Self::of(&Head::new(origin))
    }

    /// Begins a recording of events as they are described there.
    ///
    /// # Errors
    /// None that we know.
    pub fn of(head: &Head) -> io::Result<Self> {
        let mut writer = Self::default();
        writer.put([MAGIC]);
        writer.put(head.words()?);
        Ok(writer)
    }

    /// Tells a thread's name.
    pub fn name_thread(&mut self, thread: u32, name: &str) {
        let mark = Header {
            event: MARK_THREAD,
            thread,
            time: 0,
        };
        self.mark(&mark, &[Value::Text(name.as_bytes())]);
    }

    /// Adds an event that was read.
    pub fn record(&mut self, record: &Record) {
        // One byte more than fits, so that what was cut off is marked as such again.
        let longer = |value: &Datum| match value {
            Datum::Text(text, true) if text.len() == TEXT_MAX => Some([&text[..], b"\0"].concat()),
            Datum::Text(..) | Datum::Number(_) | Datum::Signed(_) => None,
        };
        let marked: Vec<_> = record.values.iter().map(longer).collect();
        let values = record.values.iter().zip(&marked);
        let values: Vec<_> = values
            .map(|(value, marked)| marked.as_deref().map_or_else(|| value.value(), Value::Text))
            .collect();
        // It came out of a description that has no more.
        let event = u16::try_from(record.event).unwrap_or(MARKS);
        let header = Header {
            event,
            thread: record.thread,
            time: record.time,
        };
        self.mark(&header, &values);
        self.told += 1;
    }

    /// Adds records as they came out of a [`Watch`](super::Watch). `name` gives the name of a thread that was not met before.
    pub fn records(&mut self, records: &[u64], name: impl Fn(u32) -> Option<String>) {
        let mut rest = records;
        while let [first, time, ..] = rest {
            let (header, length) = Header::of(*first, *time);
            let Some((record, after)) = rest.split_at_checked(length.max(1)) else {
                break;
            };
            let is_new = self.threads.len() < THREADS_MAX && self.threads.insert(header.thread);
            if is_new && let Some(name) = name(header.thread) {
                self.name_thread(header.thread, &name);
            }
            self.put(record.iter().copied());
            self.told += 1;
            rest = after;
        }
    }

    /// Says that nothing from before `time` comes any more.
    pub fn told_until(&mut self, time: u64) {
        self.mark(
            &Header {
                event: MARK_TOLD,
                thread: 0,
                time,
            },
            &[],
        );
    }

    /// Ends.
    pub fn end(&mut self, lost: u64) {
        let header = Header {
            event: MARK_END,
            thread: 0,
            time: sinks::now(),
        };
        self.mark(&header, &[Value::Number(self.told), Value::Number(lost)]);
    }

    /// The bytes that were made since the last time.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    fn mark(&mut self, header: &Header, values: &[Value<'_>]) {
        let bytes = &mut self.bytes;
        record::encode(header, values, |word| {
            bytes.extend_from_slice(&word.to_le_bytes())
        });
    }

    fn put(&mut self, words: impl IntoIterator<Item = u64>) {
        self.bytes.extend(words.into_iter().flat_map(u64::to_le_bytes));
    }
}

#[cfg(test)]
mod tests;
