//! Events as lines: for people, in the format of `trace-cmd report`, and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Map, Value as Json};

use super::fields::FieldKind;
use super::names;
use super::recording::{EventRecord, RecordedEvent, RecordedValue, RecordingHead};

/// Formats records as lines.
#[derive(Debug, Clone, Default)]
pub struct EventFormatter {
    threads: BTreeMap<u32, String>,
    program: String,
}

impl EventFormatter {
    /// For records of that process.
    #[must_use]
    pub fn new(head: &RecordingHead) -> Self {
        Self { threads: BTreeMap::new(), program: format!("curt-{}", head.origin.program) }
    }

    /// Records a thread's name.
    pub fn name_thread(&mut self, thread: u32, name: String) {
        self.threads.insert(thread, name);
    }

    /// The name of a thread, or of its program.
    #[must_use]
    pub fn thread(&self, thread: u32) -> &str {
        self.threads.get(&thread).map_or(&self.program, String::as_str)
    }

    /// ` curt-fuse-1234 5678.123456: nfs_lookup_exit: dir=2 name=a fileid=0 error=-2 (ENOENT)`
    #[must_use]
    pub fn line(&self, record: &EventRecord, shape: &RecordedEvent) -> String {
        let (seconds, rest) = (record.time / 1_000_000_000, record.time % 1_000_000_000);
        let mut line = format!(
            "{:>16}-{:<7} {seconds:>6}.{:06}: {}:",
            printable(self.thread(record.thread).as_bytes(), false),
            record.thread,
            rest / 1000,
            // A recording contains the names of its events.
            printable(shape.name.as_bytes(), false)
        );
        for (field, value) in shape.fields.iter().zip(&record.values) {
            // Writing to a String cannot fail.
            let _ = write!(line, " {}=", printable(field.name.as_bytes(), false));
            match value {
                RecordedValue::Text(text, cut) => line.push_str(&printable(text, *cut)),
                RecordedValue::Number(number) => line.push_str(&number_text(*number, field.kind())),
                RecordedValue::Signed(number) => {
                    let _ = write!(line, "{number}");
                    if let Some(name) = names::errno(number.unsigned_abs()).filter(|_| *number < 0) {
                        let _ = write!(line, " ({name})");
                    }
                }
            }
        }
        line
    }

    /// The event as an object of JSON, in one line.
    #[must_use]
    pub fn json(&self, record: &EventRecord, shape: &RecordedEvent) -> Json {
        let mut object = Map::new();
        object.insert("time_ns".to_owned(), record.time.into());
        object.insert("thread".to_owned(), record.thread.into());
        object.insert("thread_name".to_owned(), self.thread(record.thread).into());
        object.insert("event".to_owned(), shape.name.clone().into());
        object.insert("fields".to_owned(), fields(record, shape));
        Json::Object(object)
    }
}

/// The fields as JSON: numbers, and texts in which invalid UTF-8 is replaced.
#[must_use]
pub fn fields(record: &EventRecord, shape: &RecordedEvent) -> Json {
    let pairs = shape.fields.iter().zip(&record.values).map(|(field, value)| {
        let value = match value {
            RecordedValue::Number(number) => Json::from(*number),
            RecordedValue::Signed(number) => Json::from(*number),
            RecordedValue::Text(text, _) => Json::from(String::from_utf8_lossy(text).into_owned()),
        };
        (field.name.clone(), value)
    });
    Json::Object(pairs.collect())
}

fn number_text(number: u64, kind: FieldKind) -> String {
    match kind {
        FieldKind::Hex => format!("{number:#x}"),
        FieldKind::Octal => format!("{number:#o}"),
        FieldKind::Status => match names::status(number) {
            Some(name) if number != 0 => format!("{number} ({name})"),
            _ => number.to_string(),
        },
        FieldKind::FileType => match names::file_type(number) {
            Some(name) => format!("{number} ({name})"),
            None => number.to_string(),
        },
        FieldKind::Number
        | FieldKind::Bytes
        | FieldKind::Nanoseconds
        | FieldKind::Errno
        | FieldKind::Text => number.to_string(),
    }
}

/// A text that stays on its line and in its field: in quotes if it contains a space, with
/// unprintable bytes as \x….
fn printable(text: &[u8], cut: bool) -> String {
    let mut shown = String::new();
    for chunk in text.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter {
                '"' | '\\' => shown.extend(['\\', letter]),
                letter if letter.is_control() => shown.extend(letter.escape_default()),
                letter => shown.push(letter),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(shown, "\\x{byte:02x}");
        }
    }
    if cut {
        shown.push('…');
    }
    if shown.is_empty() || shown.contains(char::is_whitespace) {
        shown = format!("\"{shown}\"");
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::super::{Event, RecordedEvent};
    use super::*;

    fn record(name: &[u8], error: i64) -> EventRecord {
        EventRecord {
            time: 5_678_123_456_789,
            thread: 1234,
            event: 0,
            values: vec![
                RecordedValue::Number(2),
                RecordedValue::Text(name.to_vec(), false),
                RecordedValue::Number(0),
                RecordedValue::Signed(error),
            ],
            ..EventRecord::default()
        }
    }

    #[test]
    fn a_line_is_as_trace_cmd_has_it() {
        let shape = RecordedEvent::of(Event::NfsLookupExit);
        let mut report = EventFormatter::default();
        report.name_thread(1234, "curt-fuse".to_owned());
        assert_eq!(
            report.line(&record(b"main.o", -2), &shape),
            "       curt-fuse-1234      5678.123456: nfs_lookup_exit: dir=2 name=main.o fileid=0 error=-2 (ENOENT)"
        );
        let json = report.json(&record(b"main.o", -2), &shape);
        assert_eq!(
            json.to_string(),
            concat!(
                r#"{"event":"nfs_lookup_exit","fields":{"dir":2,"error":-2,"fileid":0,"name":"main.o"},"#,
                r#""thread":1234,"thread_name":"curt-fuse","time_ns":5678123456789}"#
            )
        );
    }

    #[test]
    fn no_name_breaks_a_line_or_forges_a_field() {
        for (name, shown) in [
            (&b"a b"[..], "\"a b\""),
            (b"", "\"\""),
            (b"a\nb=1", "a\\nb=1"),
            (b"\x1b[31m", "\\u{1b}[31m"),
            (b"a\xff\xfe", "a\\xff\\xfe"),
            (b"q\" x", "\"q\\\" x\""),
            ("größe".as_bytes(), "größe"),
        ] {
            assert_eq!(printable(name, false), shown);
        }
        assert_eq!(printable(b"x", true), "x…");
        let mut shape = RecordedEvent::of(Event::NfsLookupExit);
        shape.name = "a\x1b[2J\nb".to_owned();
        shape.fields[0].name = "\x1b]0;".to_owned();
        let line = EventFormatter::default().line(&record(b"x", 0), &shape);
        assert!(!line.contains(char::is_control), "{line:?}");
    }
}
