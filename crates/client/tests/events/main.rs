//! The events of a client: each at the point of its cause, with its fields, and once.

#![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

mod files;
mod listings;
#[allow(dead_code, unreachable_pub, reason = "other tests use the rest")]
#[path = "../loopback/locks/lock_manager.rs"]
mod lock_manager;
mod locks;
mod names;
#[allow(dead_code, unreachable_pub, reason = "other tests use the rest")]
#[path = "../listing/server.rs"]
mod server;
#[allow(dead_code, unreachable_pub, reason = "other tests use the rest")]
#[path = "../loopback/world.rs"]
mod world;

use std::sync::{Mutex, MutexGuard, PoisonError};

use curt_observe::events::formatter::EventFormatter;
use curt_observe::events::{
    self, EventWatch, RecordedProcess, RecordingItem, RecordingReader, RecordingWriter,
};

/// Events are global to the process: one test runs at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Events of some kinds, from their start.
pub(crate) struct Seen {
    watch: EventWatch,
}

/// Held by a test from its start.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Seen {
    /// Starts recording the events that match one of these patterns.
    pub(crate) fn begin(patterns: &str) -> Self {
        let watch = EventWatch::begin(&events::select(patterns).unwrap()).unwrap();
        Self { watch }
    }

    /// The events since the last use of this function, each as `name: field=value …`.
    pub(crate) fn told(&self) -> Vec<String> {
        let mut records = Vec::new();
        self.watch.drain(&mut records);
        let mut writer = RecordingWriter::new(RecordedProcess::default()).unwrap();
        writer.records(&records, |_| None);
        let bytes = writer.take();
        let mut recording = RecordingReader::open(&bytes[..]).unwrap();
        let (report, head) = (EventFormatter::default(), recording.head().clone());
        let mut lines = Vec::new();
        while let Some(item) = recording.next_item().unwrap() {
            if let RecordingItem::Event(record) = item {
                let line = report.line(&record, &head.events[record.event]);
                lines.push((record.time, line.split_once(": ").unwrap().1.to_owned()));
            }
        }
        // Events of several threads, ordered by time.
        lines.sort();
        lines.into_iter().map(|(_, line)| line).collect()
    }

    /// The names of the events since the last use of this function.
    pub(crate) fn names(&self) -> Vec<String> {
        let told = self.told();
        told.iter().map(|line| line.split(':').next().unwrap().to_owned()).collect()
    }
}

/// The value of a field of a line, in decimal or hexadecimal.
pub(crate) fn field(line: &str, name: &str) -> u64 {
    let marked = format!(" {name}=");
    let value = line.split_once(&marked).unwrap_or_else(|| panic!("{name}: {line}")).1;
    let value = value.split(' ').next().unwrap();
    match value.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).unwrap(),
        None => value.parse().unwrap(),
    }
}
