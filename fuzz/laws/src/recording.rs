//! Recordings: whatever a file contains, its records can be shown, written and read again.

use curt_observe::events::chrome::ChromeTraceWriter;
use curt_observe::events::formatter::EventFormatter;
use curt_observe::events::recording::{RecordingHead, RecordingItem};
use curt_observe::events::{EventRecord, RecordedProcess, RecordingReader, RecordingWriter};

#[path = "../../../crates/observe/src/events/chrome/check.rs"]
mod check;

/// The bytes are a recording, and records after the header of a valid one.
///
/// # Panics
/// If the records change by writing and reading them again, or the output violates its format.
pub fn recording(bytes: &[u8]) {
    check_recording(bytes);
    let head = RecordingHead::new(RecordedProcess::default());
    let mut whole = RecordingWriter::of(&head).expect("a description").take();
    whole.extend(bytes);
    check_recording(&whole);
}

pub(crate) fn check_recording(bytes: &[u8]) {
    let (head, records) = read(bytes);
    shown(&head, records.clone());
    let mut writer = RecordingWriter::of(&head).expect("it was read");
    for record in &records {
        writer.record(&record.words);
    }
    if head.ring.is_none() {
        assert_eq!(read(&writer.take()), (head, records));
    }
}

/// The records up to the first invalid one.
fn read(bytes: &[u8]) -> (RecordingHead, Vec<EventRecord>) {
    let mut records = Vec::new();
    let Ok(mut recording) = RecordingReader::open(bytes) else {
        return (RecordingHead::default(), records);
    };
    let head = recording.head().clone();
    while let Ok(Some(item)) = recording.next_item() {
        if let RecordingItem::Event(record) = item {
            records.push(record);
        }
    }
    // A record has at least three words.
    assert!(records.len() <= bytes.len() / 24);
    if head.ring.is_some() {
        assert!(records.is_sorted_by_key(|record| record.time));
    }
    for record in &records {
        assert_eq!(record.values.len(), head.events[record.event].fields.len());
    }
    (head, records)
}

/// As lines, as JSON and in Chrome's format.
fn shown(head: &RecordingHead, mut records: Vec<EventRecord>) {
    records.sort_by_key(|record| record.time);
    let mut report = EventFormatter::new(head);
    report.name_thread(1, "a\u{1b}thread".to_owned());
    let mut chrome = ChromeTraceWriter::new(Vec::new(), head).expect("memory");
    for record in &records {
        let shape = &head.events[record.event];
        let line = report.line(record, shape);
        assert!(!line.contains(char::is_control), "{line:?}");
        assert!(report.json(record, shape).is_object());
        chrome.add(record, shape, &report).expect("memory");
    }
    let trace = String::from_utf8(chrome.finish().expect("memory")).expect("JSON");
    check::check(&trace).unwrap_or_else(|broken| panic!("{broken}"));
}
