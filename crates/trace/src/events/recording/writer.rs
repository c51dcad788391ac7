//! Writing a recording: the bytes of its description, of its events and of the marks between them.

use std::{collections::BTreeSet, io};

use super::{Datum, Head, MAGIC, Origin, Record};
use crate::events::{
    fields::Value,
    record::{self, Header, MARK_END, MARK_THREAD, MARK_TOLD, MARKS, TEXT_MAX},
    sinks,
};

/// How many threads' names are written; of further threads only the numbers.
const THREADS_MAX: usize = 4096;

/// Writes a recording into memory.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
    threads: BTreeSet<u32>,
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

    /// Adds a thread's name.
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

    /// Adds records as they came out of a [`Watch`](crate::events::Watch). `name` returns the name of a thread that is new.
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

    /// Adds the mark that all events before `time` have been written.
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

    /// Takes the bytes written since the last time.
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
