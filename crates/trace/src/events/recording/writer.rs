//! Writing a recording: the bytes of its description, of its events and of the marks between them.

use std::{collections::BTreeSet, io};

use super::{EventRecord, MAGIC, RecordedProcess, RecordedValue, RecordingHead};
use crate::events::{
    fields::FieldValue,
    record::{self, MARK_COMPLETE_UNTIL, MARK_END, MARK_THREAD, MARKS, RecordHeader, TEXT_MAX},
    sinks,
};

/// How many threads' names are written; of further threads only the numbers.
const THREADS_MAX: usize = 4096;

/// Writes a recording into memory.
#[derive(Debug, Default)]
pub struct RecordingWriter {
    bytes: Vec<u8>,
    threads: BTreeSet<u32>,
    events: u64,
}

impl RecordingWriter {
    /// Begins: the first bytes are there.
    ///
    /// # Errors
    /// None that we know.
    pub fn new(origin: RecordedProcess) -> io::Result<Self> {
        Self::of(&RecordingHead::new(origin))
    }

    /// Begins a recording of events as they are described there.
    ///
    /// # Errors
    /// None that we know.
    pub fn of(head: &RecordingHead) -> io::Result<Self> {
        let mut writer = Self::default();
        writer.put([MAGIC]);
        writer.put(head.words()?);
        Ok(writer)
    }

    /// Adds a thread's name.
    pub fn name_thread(&mut self, thread: u32, name: &str) {
        let mark = RecordHeader {
            event: MARK_THREAD,
            thread,
            time: 0,
        };
        self.mark(&mark, &[FieldValue::Text(name.as_bytes())]);
    }

    /// Adds an event that was read.
    pub fn record(&mut self, record: &EventRecord) {
        // One byte more than fits, so that what was cut off is marked as such again.
        let longer = |value: &RecordedValue| match value {
            RecordedValue::Text(text, true) if text.len() == TEXT_MAX => Some([&text[..], b"\0"].concat()),
            RecordedValue::Text(..) | RecordedValue::Number(_) | RecordedValue::Signed(_) => None,
        };
        let marked: Vec<_> = record.values.iter().map(longer).collect();
        let values = record.values.iter().zip(&marked);
        let values: Vec<_> = values
            .map(|(value, marked)| marked.as_deref().map_or_else(|| value.value(), FieldValue::Text))
            .collect();
        // It came out of a description that has no more.
        let event = u16::try_from(record.event).unwrap_or(MARKS);
        let header = RecordHeader {
            event,
            thread: record.thread,
            time: record.time,
        };
        self.mark(&header, &values);
        self.events += 1;
    }

    /// Adds records as they came out of a [`Watch`](crate::events::Watch). `name` returns the name
    /// of a thread that is new.
    pub fn records(&mut self, records: &[u64], name: impl Fn(u32) -> Option<String>) {
        let mut rest = records;
        while let [first, time, ..] = rest {
            let (header, length) = RecordHeader::of(*first, *time);
            let Some((record, after)) = rest.split_at_checked(length.max(1)) else {
                break;
            };
            let is_new = self.threads.len() < THREADS_MAX && self.threads.insert(header.thread);
            if is_new && let Some(name) = name(header.thread) {
                self.name_thread(header.thread, &name);
            }
            self.put(record.iter().copied());
            self.events += 1;
            rest = after;
        }
    }

    /// Adds the mark that all events before `time` have been written.
    pub fn complete_until(&mut self, time: u64) {
        self.mark(
            &RecordHeader {
                event: MARK_COMPLETE_UNTIL,
                thread: 0,
                time,
            },
            &[],
        );
    }

    /// Ends.
    pub fn end(&mut self, lost: u64) {
        let header = RecordHeader {
            event: MARK_END,
            thread: 0,
            time: sinks::now(),
        };
        self.mark(
            &header,
            &[FieldValue::Number(self.events), FieldValue::Number(lost)],
        );
    }

    /// Takes the bytes written since the last time.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    fn mark(&mut self, header: &RecordHeader, values: &[FieldValue<'_>]) {
        let bytes = &mut self.bytes;
        record::encode(header, values, |word| {
            bytes.extend_from_slice(&word.to_le_bytes())
        });
    }

    fn put(&mut self, words: impl IntoIterator<Item = u64>) {
        self.bytes.extend(words.into_iter().flat_map(u64::to_le_bytes));
    }
}
