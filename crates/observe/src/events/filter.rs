//! The filter of `curt trace`: which events of a recording its flags select.
//!
//! Most events do not have all the fields that the flags refer to. So the filter tracks the spans
//! that are open on each thread, and those that end by number: an event within a span has the
//! span's user and path.

use std::collections::BTreeMap;

use super::pattern::fits;
use super::recording::{EventRecord, RecordedEvent, RecordedValue};

/// Maximum number of threads with open spans, of open spans that end by number, and of nested
/// spans. Further ones are not tracked.
const OPEN_MAX: usize = 10_000;
const DEPTH_MAX: usize = 64;
/// Maximum number of known paths.
const PATHS_MAX: usize = 1 << 20;

/// The flags: an event is shown if it matches all of them.
#[derive(Debug, Clone, Default)]
pub struct EventFilter {
    /// Its name matches one of these patterns; without patterns every name matches.
    pub events: Vec<String>,
    /// Its object is at this path or below it. The root of the mount is `/`.
    pub path: Option<Vec<u8>>,
    /// A process of this user caused it.
    pub uid: Option<u64>,
    /// The event ends a span of at least this many nanoseconds.
    pub slower: Option<u64>,
    /// The open spans by thread, the outermost first, each with its name.
    entered: BTreeMap<u32, Vec<(String, OpenSpan)>>,
    /// The open spans that end by number.
    begun: BTreeMap<u64, OpenSpan>,
    paths: BTreeMap<u64, Vec<u8>>,
}

/// An open span.
#[derive(Debug, Clone, Copy, Default)]
struct OpenSpan {
    began: u64,
    uid: Option<u64>,
    is_below: bool,
}

impl EventFilter {
    /// A filter with these flags; see the fields.
    #[must_use]
    pub fn new(events: Vec<String>, path: Option<Vec<u8>>, uid: Option<u64>, slower: Option<u64>) -> Self {
        Self { events, path, uid, slower, ..Self::default() }
    }

    /// Whether events that are not shown affect others: then all have to be passed to the filter.
    #[must_use]
    pub const fn needs_all_events(&self) -> bool {
        self.path.is_some() || self.uid.is_some() || self.slower.is_some()
    }

    /// Records an object's path.
    pub fn name_object(&mut self, object: u64, path: Vec<u8>) {
        if self.path.is_some() && (self.paths.len() < PATHS_MAX || self.paths.contains_key(&object)) {
            self.paths.insert(object, path);
        }
    }

    /// Whether an event is shown. To be called for all events, in order of time.
    pub fn passes(&mut self, record: &EventRecord, shape: &RecordedEvent) -> bool {
        let name = shape.name.as_bytes();
        let is_wanted = self.events.iter().any(|pattern| fits(pattern.as_bytes(), name));
        let span = self.span(record, shape);
        (is_wanted || self.events.is_empty())
            && self.path.as_ref().is_none_or(|_| span.is_below)
            && self.uid.is_none_or(|uid| span.uid == Some(uid))
            && self
                .slower
                .is_none_or(|slower| has_ended(shape) && record.time.saturating_sub(span.began) >= slower)
    }

    /// The innermost span that an event begins, ends or is within.
    fn span(&mut self, record: &EventRecord, shape: &RecordedEvent) -> OpenSpan {
        if !self.needs_all_events() {
            return OpenSpan::default();
        }
        let number = match record.values.first() {
            Some(RecordedValue::Number(number)) => *number,
            _ => 0,
        };
        let entered = self.entered.get_mut(&record.thread);
        let outer = match (shape.span.as_str(), entered) {
            ("end", _) => self.begun.remove(&number),
            ("exit", Some(open)) => {
                // The ends of nested spans were lost.
                let at = open.iter().rposition(|(name, _)| *name == shape.operation());
                at.and_then(|at| open.drain(at..).next()).map(|(_, span)| span)
            }
            (_, open) => open.and_then(|open| open.last()).map(|(_, span)| *span),
        };
        let mut span = outer.unwrap_or_default();
        if outer.is_none() {
            span.began = record.time;
        }
        span.uid = number_of(record, shape, "uid").or(span.uid);
        // A reply is read by any thread that reads at that time, which may work for another
        // operation.
        let is_elsewhere = shape.span == "end" && outer.is_some();
        match text(record, shape, "export").zip(self.path.as_ref()) {
            Some((export, prefix)) => span.is_below = is_below(export, prefix),
            None => span.is_below |= !is_elsewhere && self.names_path(record, shape),
        }
        if matches!(shape.span.as_str(), "enter" | "begin") {
            span.began = record.time;
        }
        self.keep(record.thread, number, shape, span);
        span
    }

    /// Records the user and path for the events within the span.
    fn keep(&mut self, thread: u32, number: u64, shape: &RecordedEvent, span: OpenSpan) {
        let has_room = self.entered.len() < OPEN_MAX || self.entered.contains_key(&thread);
        match shape.span.as_str() {
            "begin" if self.begun.len() < OPEN_MAX => drop(self.begun.insert(number, span)),
            "enter" if has_room => {
                let open = self.entered.entry(thread).or_default();
                if open.len() < DEPTH_MAX {
                    open.push((shape.operation().to_owned(), span));
                }
            }
            "instant" if shape.fields.iter().any(|field| field.name == "export") => {
                let open = self.entered.get_mut(&thread).and_then(|open| open.last_mut());
                if let Some((_, innermost)) = open {
                    *innermost = span;
                }
            }
            _ => {}
        }
    }

    /// Whether an event's own object, or a name in it, is below the path of the flag.
    fn names_path(&self, record: &EventRecord, shape: &RecordedEvent) -> bool {
        let Some((path, prefix)) = self.paths.get(&record.object).zip(self.path.as_ref()) else {
            return false;
        };
        let is_named = text(record, shape, "name").is_some_and(|name| {
            let directory = path.strip_suffix(b"/").unwrap_or(path);
            is_below(&[directory, b"/", name].concat(), prefix)
        });
        is_named || is_below(path, prefix)
    }
}

fn has_ended(shape: &RecordedEvent) -> bool {
    matches!(shape.span.as_str(), "exit" | "end")
}

/// Whether `path` is `prefix` or below it.
fn is_below(path: &[u8], prefix: &[u8]) -> bool {
    let prefix = prefix.strip_suffix(b"/").unwrap_or(prefix);
    path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

fn field<'a>(record: &'a EventRecord, shape: &RecordedEvent, name: &str) -> Option<&'a RecordedValue> {
    let at = shape.fields.iter().position(|field| field.name == name)?;
    record.values.get(at)
}

fn number_of(record: &EventRecord, shape: &RecordedEvent, name: &str) -> Option<u64> {
    match field(record, shape, name)? {
        RecordedValue::Number(number) => Some(*number),
        RecordedValue::Signed(_) | RecordedValue::Text(..) => None,
    }
}

fn text<'a>(record: &'a EventRecord, shape: &RecordedEvent, name: &str) -> Option<&'a [u8]> {
    match field(record, shape, name)? {
        RecordedValue::Text(text, _) => Some(text),
        RecordedValue::Signed(_) | RecordedValue::Number(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Event;
    use super::*;

    /// Events in order of time, one each millisecond: thread, object, event, and its numbers and
    /// names in the order of its fields.
    fn shown(filter: &mut EventFilter, events: &[(u32, u64, Event, &str)]) -> Vec<&'static str> {
        let mut names = Vec::new();
        for (number, (thread, object, event, values)) in events.iter().enumerate() {
            let shape = RecordedEvent::of(*event);
            let mut words = values.split_whitespace();
            let values = shape.fields.iter().map(|field| match (field.kind.as_str(), words.next()) {
                ("text", word) => RecordedValue::Text(word.unwrap_or_default().into(), false),
                ("errno", _) => RecordedValue::Signed(0),
                (_, word) => RecordedValue::Number(word.map_or(0, |word| word.parse().expect("a number"))),
            });
            let record = EventRecord {
                time: 1_000_000 * number as u64,
                thread: *thread,
                object: *object,
                event: event.index(),
                values: values.collect(),
                ..EventRecord::default()
            };
            if filter.passes(&record, &shape) {
                names.push(event.name());
            }
        }
        names
    }

    /// Two users, each with an operation and its request, and a request without a user.
    const OPERATIONS: [(u32, u64, Event, &str); 9] = [
        (1, 7, Event::NfsLookupEnter, "11 1000 70 c.h"),
        (1, 7, Event::RpcCall, "501 LOOKUP"),
        (2, 9, Event::NfsGetattrEnter, "12 0 90"),
        (2, 9, Event::RpcCall, "502 GETATTR"),
        (3, 9, Event::RpcReply, "501 LOOKUP"),
        (1, 7, Event::NfsLookupExit, "70 c.h 71"),
        (3, 9, Event::RpcReply, "502 GETATTR"),
        (2, 9, Event::NfsGetattrExit, "90"),
        (4, 0, Event::RpcReply, "503 READ"),
    ];

    #[test]
    fn names_are_chosen_by_patterns() {
        let mut filter = EventFilter {
            events: vec!["rpc_r*".to_owned(), "nfs_lookup_exit".to_owned()],
            ..EventFilter::default()
        };
        let names = shown(&mut filter, &OPERATIONS);
        assert_eq!(names, ["rpc_reply", "nfs_lookup_exit", "rpc_reply", "rpc_reply"]);
        assert_eq!(shown(&mut EventFilter::default(), &OPERATIONS).len(), OPERATIONS.len());
    }

    #[test]
    fn a_user_has_all_events_of_an_operation_and_its_requests() {
        let mut filter = EventFilter { uid: Some(1000), ..EventFilter::default() };
        let names = shown(&mut filter, &OPERATIONS);
        assert_eq!(names, ["nfs_lookup_enter", "rpc_call", "rpc_reply", "nfs_lookup_exit"]);
    }

    #[test]
    fn what_takes_long_is_shown_at_its_end() {
        let mut filter = EventFilter { slower: Some(5_000_000), ..EventFilter::default() };
        assert_eq!(shown(&mut filter, &OPERATIONS), ["nfs_lookup_exit", "nfs_getattr_exit"]);
    }

    #[test]
    fn a_path_has_what_is_at_it_and_below_and_no_neighbour() {
        for (prefix, expected) in [
            ("/src", 4),
            ("/src/", 4),
            ("/src/c.h", 4),
            ("/src/c.h/x", 0),
            ("/src/c", 0),
            ("/sr", 0),
            ("/other", 4),
            ("/", 8),
        ] {
            let mut filter = EventFilter { path: Some(prefix.into()), ..EventFilter::default() };
            filter.name_object(7, b"/src".to_vec());
            filter.name_object(9, b"/other/x".to_vec());
            assert_eq!(shown(&mut filter, &OPERATIONS).len(), expected, "{prefix}");
        }
    }

    #[test]
    fn a_call_is_below_its_export_once_that_is_known() {
        let call = [
            (1, 0, Event::NfsdCall, "1 READ 0 nas"),
            (1, 0, Event::NfsdExport, "/srv/a nas 1 0"),
            (1, 0, Event::NfsdRead, "1 2 3 4"),
            (1, 0, Event::NfsdReply, "1 READ 0 9"),
            (1, 0, Event::NfsdCall, "1 READ 0 nas"),
        ];
        let mut filter = EventFilter { path: Some(b"/srv/a".to_vec()), ..EventFilter::default() };
        let names = shown(&mut filter, &call);
        assert_eq!(names, ["nfsd_export", "nfsd_read", "nfsd_reply"]);
    }
}
