//! The output of events: lines, JSON, a recording, or a trace in Chrome's format.

use std::fs::File;
use std::io::{self, BufWriter, Stdout, Write};
use std::path::PathBuf;

use anyhow::{Context, Result};
use curt_observe::events::chrome::ChromeTraceWriter;
use curt_observe::events::formatter::EventFormatter;
use curt_observe::events::recording::RecordingHead;
use curt_observe::events::{EventFilter, EventRecord, RecordSubject, RecordingWriter};

/// The format and destination of events.
#[derive(Debug, Clone)]
pub(super) enum OutputTarget {
    Text,
    Json,
    Record(PathBuf),
    Perfetto(PathBuf),
}

/// Which events are shown, and how many.
#[derive(Debug, Clone)]
pub(super) struct Limits {
    pub(super) filter: EventFilter,
    pub(super) count: u64,
}

/// Writes events.
pub(super) struct EventOutput {
    head: RecordingHead,
    limits: Limits,
    report: EventFormatter,
    sink: EventSink,
    shown: u64,
}

enum EventSink {
    Lines { out: BufWriter<Stdout>, json: bool },
    Record(BufWriter<File>, Box<RecordingWriter>),
    Chrome(Box<ChromeTraceWriter<BufWriter<File>>>),
}

impl EventOutput {
    /// Begins the output.
    pub(super) fn begin(head: &RecordingHead, target: &OutputTarget, limits: &Limits) -> Result<Self> {
        let create = |path: &PathBuf| {
            let file = File::create(path).with_context(|| path.display().to_string())?;
            Ok::<_, anyhow::Error>(BufWriter::new(file))
        };
        let lines = |json| EventSink::Lines { out: BufWriter::new(io::stdout()), json };
        let sink = match target {
            OutputTarget::Text => lines(false),
            OutputTarget::Json => lines(true),
            OutputTarget::Record(path) => {
                EventSink::Record(create(path)?, Box::new(RecordingWriter::of(head)?))
            }
            OutputTarget::Perfetto(path) => {
                EventSink::Chrome(Box::new(ChromeTraceWriter::new(create(path)?, head)?))
            }
        };
        Ok(Self {
            head: head.clone(),
            limits: limits.clone(),
            report: EventFormatter::new(head),
            sink,
            shown: 0,
        })
    }

    /// Records a thread's name.
    pub(super) fn name_thread(&mut self, thread: u32, name: String) {
        if let EventSink::Record(_, writer) = &mut self.sink {
            writer.name(RecordSubject::Thread(thread), name.as_bytes());
        }
        self.report.name_thread(thread, name);
    }

    /// Records an object's path.
    pub(super) fn name_object(&mut self, object: u64, path: Vec<u8>) {
        if let EventSink::Record(_, writer) = &mut self.sink {
            writer.name(RecordSubject::Object(object), &path);
        }
        self.limits.filter.name_object(object, path);
    }

    /// Writes an event if it is selected.
    pub(super) fn add(&mut self, record: &EventRecord) -> Result<()> {
        let Some(shape) = self.head.events.get(record.event) else {
            return Ok(());
        };
        if !self.limits.filter.passes(record, shape) || self.is_enough() {
            return Ok(());
        }
        self.shown += 1;
        match &mut self.sink {
            EventSink::Lines { out, json: false } => writeln!(out, "{}", self.report.line(record, shape))?,
            EventSink::Lines { out, json: true } => writeln!(out, "{}", self.report.json(record, shape))?,
            EventSink::Record(out, writer) => {
                writer.record(&record.words);
                out.write_all(&writer.take())?;
            }
            EventSink::Chrome(chrome) => chrome.add(record, shape, &self.report)?,
        }
        Ok(())
    }

    /// Whether the requested number of events was written.
    pub(super) fn is_enough(&self) -> bool {
        self.shown >= self.limits.count
    }

    /// Flushes the output.
    pub(super) fn flush(&mut self) -> Result<()> {
        if let EventSink::Lines { out, .. } = &mut self.sink {
            out.flush()?;
        }
        Ok(())
    }

    /// Ends the output, with the number of lost events; returns the number of written ones.
    pub(super) fn end(self, lost: u64) -> Result<u64> {
        match self.sink {
            EventSink::Lines { mut out, .. } => out.flush()?,
            EventSink::Record(mut out, mut writer) => {
                writer.end(lost);
                out.write_all(&writer.take())?;
                out.flush()?;
            }
            EventSink::Chrome(chrome) => drop(chrome.finish()?),
        }
        Ok(self.shown)
    }
}
