//! `curt trace --path`, `--uid` and `--slower`: for any order of events, one flag shows a subset of
//! all events, and two flags show the intersection.

use curt_observe::events::recording::RecordedValue;
use curt_observe::events::{Event, EventFilter, EventRecord, FieldKind, RecordedEvent};

/// The bytes are flags, and events of few threads and objects: three bytes each.
///
/// # Panics
/// If a filter of two flags does not show the intersection of both.
pub fn filter(bytes: &[u8]) {
    let [uid, slower, events @ ..] = bytes else { return };
    let path = || Some(b"/1".to_vec());
    let (uid, slower) = (Some(u64::from(uid % 4)), Some(u64::from(*slower)));
    let mut filters = [
        EventFilter::new(Vec::new(), path(), None, None),
        EventFilter::new(Vec::new(), None, uid, None),
        EventFilter::new(Vec::new(), None, None, slower),
        EventFilter::new(vec!["*_exit".to_owned()], path(), uid, slower),
    ];
    for filter in &mut filters {
        (0..8).for_each(|object| filter.name_object(object, format!("/{object}").into()));
    }
    for (time, event) in (0..).zip(events.chunks_exact(3)) {
        let (record, shape) = record(time, event);
        let [path, uid, slower, all] = filters.each_mut().map(|filter| filter.passes(&record, &shape));
        let is_wanted = shape.name.ends_with("_exit");
        assert_eq!(all, path && uid && slower && is_wanted, "{record:?}");
    }
}

fn record(time: u64, bytes: &[u8]) -> (EventRecord, RecordedEvent) {
    let event = Event::ALL[usize::from(bytes[0]) % Event::COUNT];
    let shape = RecordedEvent::of(event);
    let values = event.description().fields.iter().map(|field| match field.kind {
        FieldKind::Text => RecordedValue::Text(b"/1".to_vec(), false),
        FieldKind::Errno => RecordedValue::Signed(0),
        _ => RecordedValue::Number(u64::from(bytes[2] % 4)),
    });
    let record = EventRecord {
        time,
        thread: u32::from(bytes[1] % 4),
        object: u64::from(bytes[1] / 4 % 8),
        event: event.index(),
        values: values.collect(),
        ..EventRecord::default()
    };
    (record, shape)
}
