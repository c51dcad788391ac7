//! Writing a recording: the bytes of its description, of its events and of the marks between them.

use std::{collections::BTreeSet, io};

use super::{RecordedProcess, RecordingHead};
use crate::events::{
    fields::FieldValue,
    record::{self, MARK_COMPLETE_UNTIL, MARK_END, MARK_OBJECT, MARK_THREAD, RecordHeader},
    sinks,
};

/// Number of threads and objects recorded as named; above it they are named again.
const NAMED_MAX: usize = 1 << 16;

/// The source of an event, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecordSubject {
    /// A thread, which has a name.
    Thread(u32),
    /// An object, which has a path.
    Object(u64),
}

/// Writes a recording into memory.
#[derive(Debug, Default)]
pub struct RecordingWriter {
    bytes: Vec<u8>,
    named: BTreeSet<RecordSubject>,
    events: u64,
}

impl RecordingWriter {
    /// Begins a recording: its first bytes are available.
    ///
    /// # Errors
    /// None known.
    pub fn new(origin: RecordedProcess) -> io::Result<Self> {
        Self::of(&RecordingHead::new(origin))
    }

    /// Begins a recording of events with this description.
    ///
    /// # Errors
    /// None known.
    pub fn of(head: &RecordingHead) -> io::Result<Self> {
        let mut writer = Self::default();
        writer.put(head.words()?);
        Ok(writer)
    }

    /// Adds the name of a thread, or the path of an object.
    pub fn name(&mut self, subject: RecordSubject, name: &[u8]) {
        let mark = match subject {
            RecordSubject::Thread(thread) => {
                RecordHeader { event: MARK_THREAD, thread, ..RecordHeader::default() }
            }
            RecordSubject::Object(object) => {
                RecordHeader { event: MARK_OBJECT, object, ..RecordHeader::default() }
            }
        };
        self.mark(&mark, &[FieldValue::Text(name)]);
    }

    /// Adds an event that was read from another recording.
    pub fn record(&mut self, words: &[u64]) {
        self.put(words.iter().copied());
        self.events += 1;
    }

    /// Adds records of an [`EventWatch`](crate::events::EventWatch). `name` returns the name of a
    /// new thread and the path of a new object.
    pub fn records(&mut self, records: &[u64], name: impl Fn(RecordSubject) -> Option<Vec<u8>>) {
        let mut rest = records;
        while let Some(header) = RecordHeader::of(rest) {
            let Some((record, after)) = rest.split_at_checked(record::length(rest[0]).max(1)) else {
                break;
            };
            let object = (header.object != 0).then_some(RecordSubject::Object(header.object));
            for subject in object.into_iter().chain([RecordSubject::Thread(header.thread)]) {
                if self.named.len() >= NAMED_MAX {
                    self.named.clear();
                }
                if self.named.insert(subject)
                    && let Some(name) = name(subject)
                {
                    self.name(subject, &name);
                }
            }
            self.record(record);
            rest = after;
        }
    }

    /// Adds the mark that all events before `time` have been written.
    pub fn complete_until(&mut self, time: u64) {
        let header = RecordHeader { event: MARK_COMPLETE_UNTIL, time, ..RecordHeader::default() };
        self.mark(&header, &[]);
    }

    /// Ends.
    pub fn end(&mut self, lost: u64) {
        let header = RecordHeader { event: MARK_END, time: sinks::now(), ..RecordHeader::default() };
        self.mark(&header, &[FieldValue::Number(self.events), FieldValue::Number(lost)]);
    }

    /// Removes and returns the bytes written since the last call.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    fn mark(&mut self, header: &RecordHeader, values: &[FieldValue<'_>]) {
        let bytes = &mut self.bytes;
        record::encode(header, values, |word| bytes.extend_from_slice(&word.to_le_bytes()));
    }

    fn put(&mut self, words: impl IntoIterator<Item = u64>) {
        self.bytes.extend(words.into_iter().flat_map(u64::to_le_bytes));
    }
}
