//! Events in Chrome's trace format, which Perfetto (ui.perfetto.dev) and chrome://tracing show.
//!
//! A span of one thread is a slice of that thread (`B` and `E`); a span that may end on another
//! thread is an asynchronous slice (`b` and `e`); all other events are instants (`i`). Slices are
//! always balanced: an end whose beginning was not recorded is shown as an instant, and slices that
//! are open at the end of the recording are closed there.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use serde_json::{Value as Json, json};

use super::formatter::{EventFormatter, fields};
use super::recording::{EventRecord, RecordedEvent, RecordedValue, RecordingHead};

/// Maximum number of open slices on a thread, and of open asynchronous slices in all. Further ones
/// are shown as instants.
const OPEN_MAX: usize = 10_000;

/// Writes a trace.
#[derive(Debug)]
pub struct ChromeTraceWriter<W> {
    out: W,
    pid: u32,
    begun: bool,
    last: u64,
    slices: BTreeMap<u32, Vec<String>>,
    asynchronous: BTreeMap<u64, (String, u32)>,
    named: BTreeSet<u32>,
}

impl<W: Write> ChromeTraceWriter<W> {
    /// Begins a trace of that process.
    ///
    /// # Errors
    /// `out`'s.
    pub fn new(out: W, head: &RecordingHead) -> io::Result<Self> {
        let mut chrome = Self {
            out,
            pid: head.origin.pid,
            begun: false,
            last: 0,
            slices: BTreeMap::new(),
            asynchronous: BTreeMap::new(),
            named: BTreeSet::new(),
        };
        let name = format!("curt {} {}", head.origin.program, head.origin.subject);
        let pid = chrome.pid;
        chrome.put(&json!({"ph": "M", "ts": 0, "pid": pid, "tid": pid, "name": "process_name", "args": {"name": name}}))?;
        Ok(chrome)
    }

    /// Adds an event. To be called in order of time.
    ///
    /// # Errors
    /// `out`'s.
    pub fn add(
        &mut self,
        record: &EventRecord,
        shape: &RecordedEvent,
        report: &EventFormatter,
    ) -> io::Result<()> {
        self.last = self.last.max(record.time);
        if self.named.insert(record.thread) {
            let name = report.thread(record.thread);
            let tid = record.thread;
            self.put(&json!({"ph": "M", "ts": 0, "pid": self.pid, "tid": tid, "name": "thread_name", "args": {"name": name}}))?;
        }
        let name = slice_name(record, shape);
        let args = fields(record, shape);
        let id = match record.values.first() {
            Some(RecordedValue::Number(id)) => Some(*id),
            _ => None,
        };
        match (shape.span.as_str(), id) {
            ("enter", _) => {
                let open = self.slices.entry(record.thread).or_default();
                if open.len() < OPEN_MAX {
                    open.push(name.clone());
                    return self.slice("B", record, &name, args);
                }
            }
            ("exit", _) => {
                let open = self.slices.entry(record.thread).or_default();
                if let Some(place) = open.iter().rposition(|one| *one == name) {
                    // The end of a nested slice was lost.
                    let inner = open.split_off(place + 1);
                    open.pop();
                    for name in inner.iter().rev() {
                        self.slice("E", record, name, json!({"lost": true}))?;
                    }
                    return self.slice("E", record, &name, args);
                }
            }
            ("begin", Some(id)) if self.asynchronous.len() < OPEN_MAX => {
                if let Some((before, _)) = self.asynchronous.insert(id, (name.clone(), record.thread)) {
                    self.span("e", record.time, record.thread, id, &before, json!({"lost": true}))?;
                }
                return self.span("b", record.time, record.thread, id, &name, args);
            }
            ("end", Some(id)) => {
                if let Some((name, _)) = self.asynchronous.remove(&id) {
                    return self.span("e", record.time, record.thread, id, &name, args);
                }
            }
            _ => {}
        }
        self.put(&json!({
            "ph": "i", "s": "t", "ts": microseconds(record.time), "pid": self.pid, "tid": record.thread,
            "cat": category(&shape.name), "name": shape.name, "args": args,
        }))
    }

    /// Ends the trace and closes open slices.
    ///
    /// # Errors
    /// `out`'s.
    pub fn finish(mut self) -> io::Result<W> {
        for (thread, open) in std::mem::take(&mut self.slices) {
            for name in open.iter().rev() {
                let end = EventRecord { time: self.last, thread, ..EventRecord::default() };
                self.slice("E", &end, name, json!({"open": true}))?;
            }
        }
        for (id, (name, thread)) in std::mem::take(&mut self.asynchronous) {
            self.span("e", self.last, thread, id, &name, json!({"open": true}))?;
        }
        self.out.write_all(b"\n]\n")?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn slice(&mut self, phase: &str, record: &EventRecord, name: &str, args: Json) -> io::Result<()> {
        let (pid, tid, ts) = (self.pid, record.thread, microseconds(record.time));
        self.put(&json!({"ph": phase, "ts": ts, "pid": pid, "tid": tid, "cat": category(name), "name": name, "args": args}))
    }

    fn span(&mut self, phase: &str, time: u64, tid: u32, id: u64, name: &str, args: Json) -> io::Result<()> {
        let (pid, ts, id) = (self.pid, microseconds(time), format!("{id:#x}"));
        self.put(&json!({"ph": phase, "ts": ts, "pid": pid, "tid": tid, "cat": category(name), "id": id, "name": name, "args": args}))
    }

    fn put(&mut self, event: &Json) -> io::Result<()> {
        let before = if self.begun { ",\n" } else { "[\n" };
        self.begun = true;
        write!(self.out, "{before}{event}")
    }
}

/// The name of a slice: the event's name without its last word (the beginning or end), and the
/// procedure.
fn slice_name(record: &EventRecord, shape: &RecordedEvent) -> String {
    let name = shape.operation();
    let mut fields = shape.fields.iter().zip(&record.values);
    match fields.find(|(field, _)| field.name == "procedure") {
        Some((_, RecordedValue::Text(procedure, _))) => {
            format!("{name} {}", String::from_utf8_lossy(procedure))
        }
        _ => name.to_owned(),
    }
}

/// The first word of the name: `nfs`, `rpc`, `nfsd`, `svc`.
fn category(name: &str) -> &str {
    name.split(['_', ' ']).next().unwrap_or(name)
}

#[allow(
    clippy::cast_precision_loss,
    reason = "a hundred days of nanoseconds are told apart to the microsecond"
)]
fn microseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1000.0
}

#[cfg(test)]
mod check;

#[cfg(test)]
mod tests {
    use super::super::{Event, RecordedProcess};
    use super::check::check;
    use super::*;

    fn add(chrome: &mut ChromeTraceWriter<Vec<u8>>, event: Event, time: u64, thread: u32, id: u64) {
        let shape = RecordedEvent::of(event);
        let values = shape.fields.iter().map(|field| match field.kind.as_str() {
            "text" => RecordedValue::Text(b"GETATTR".to_vec(), false),
            "errno" => RecordedValue::Signed(0),
            _ => RecordedValue::Number(id),
        });
        let record = EventRecord {
            time,
            thread,
            event: event.index(),
            values: values.collect(),
            ..EventRecord::default()
        };
        chrome.add(&record, &shape, &EventFormatter::default()).expect("a Vec takes all");
    }

    fn trace(events: &[(Event, u32, u64)]) -> Vec<Json> {
        let mut chrome = ChromeTraceWriter::new(Vec::new(), &RecordingHead::new(RecordedProcess::default()))
            .expect("a Vec takes all");
        for (time, (event, thread, id)) in events.iter().enumerate() {
            add(&mut chrome, *event, time as u64 * 1000, *thread, *id);
        }
        let text = String::from_utf8(chrome.finish().expect("a Vec takes all")).expect("UTF-8");
        check(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let events: Vec<Json> = serde_json::from_str(&text).expect("JSON");
        events.into_iter().filter(|event| event["ph"] != "M").collect()
    }

    fn phases(events: &[(Event, u32, u64)]) -> Vec<String> {
        let shown = trace(events).into_iter().map(|event| {
            format!(
                "{} {}",
                event["ph"].as_str().unwrap_or_default(),
                event["name"].as_str().unwrap_or_default()
            )
        });
        shown.collect()
    }

    #[test]
    fn operations_nest_and_calls_span_threads() {
        let shown = phases(&[
            (Event::NfsGetattrEnter, 1, 9),
            (Event::RpcCall, 1, 77),
            (Event::NfsMkdirEnter, 2, 9),
            (Event::RpcReply, 2, 77),
            (Event::NfsGetattrExit, 1, 9),
            (Event::NfsMkdirExit, 2, 9),
        ]);
        assert_eq!(
            shown,
            [
                "B nfs_getattr",
                "b rpc GETATTR",
                "B nfs_mkdir",
                "e rpc GETATTR",
                "E nfs_getattr",
                "E nfs_mkdir"
            ]
        );
    }

    #[test]
    fn whatever_is_missing_it_is_balanced() {
        let shown = phases(&[
            (Event::NfsMkdirExit, 1, 9),
            (Event::RpcReply, 1, 5),
            (Event::NfsGetattrEnter, 1, 9),
            (Event::NfsRevalidateInodeEnter, 1, 9),
            (Event::NfsGetattrExit, 1, 9),
            (Event::RpcCall, 1, 6),
            (Event::RpcCall, 1, 6),
            (Event::NfsLookupEnter, 3, 6),
        ]);
        let expected = [
            "i nfs_mkdir_exit",
            "i rpc_reply",
            "B nfs_getattr",
            "B nfs_revalidate_inode",
            "E nfs_revalidate_inode",
            "E nfs_getattr",
            "b rpc GETATTR",
            "e rpc GETATTR",
            "b rpc GETATTR",
            "B nfs_lookup",
            "E nfs_lookup",
            "e rpc GETATTR",
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn what_is_against_the_rules_is_found() {
        let event = |phase: &str, rest: &str| {
            format!(r#"{{"ph":"{phase}","ts":1,"pid":1,"tid":1,"name":"x","cat":"c","args":{{}}{rest}}}"#)
        };
        for wrong in [
            event("B", ""),
            event("E", ""),
            event("b", ""),
            event("b", r#","id":"1""#),
            event("i", ""),
            event("Q", ""),
            event("i", r#","s":"t""#).replace("\"ts\":1,", ""),
            event("i", r#","s":"t""#).replace("\"args\":{}", "\"args\":1"),
        ] {
            assert!(check(&format!("[{wrong}]")).is_err(), "{wrong}");
        }
        let right = event("i", r#","s":"t""#);
        assert_eq!(check(&format!("[{right},{right}]")), Ok(2));
        let earlier = right.replace("\"ts\":1", "\"ts\":0");
        assert!(check(&format!("[{right},{earlier}]")).is_err());
    }
}
