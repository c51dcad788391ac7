//! `curt trace --filter`: whatever is taken for a filter means what its parts mean.

use curt_trace::events::filter::{DEPTH_MAX, LENGTH_MAX};
use curt_trace::events::recording::RecordedValue;
use curt_trace::events::{Event, EventRecord, FieldKind, Filter, RecordedEvent};

/// The bytes are a filter; it is held against an event of each kind.
///
/// # Panics
/// If a filter and its opposite say the same, or an error does not show its place.
pub fn filter(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let filter = match Filter::parse(text) {
        Ok(filter) => filter,
        Err(error) => {
            let shown = error.to_string();
            let mark = shown.rsplit('\n').next().unwrap_or_default();
            assert!(mark.ends_with('^'), "{shown}");
            assert!(mark.len() <= text.len() + 3, "{shown}");
            return;
        }
    };
    assert!(text.len() <= LENGTH_MAX);
    let nested = [format!("!({text})"), format!("({text}) && ({text})")];
    let [opposite, twice] = nested.map(|text| Filter::parse(&text));
    let may_fail = text.len() * 2 + 10 > LENGTH_MAX || text.matches(['(', '!']).count() + 2 >= DEPTH_MAX;
    assert!(may_fail || (opposite.is_ok() && twice.is_ok()), "{text}");
    for event in Event::ALL {
        let shape = RecordedEvent::of(*event);
        let record = record(*event, bytes);
        let passes = filter.passes(&record, &shape);
        assert!(
            opposite
                .as_ref()
                .is_ok_and(|other| other.passes(&record, &shape) != passes)
                || may_fail,
            "{text}: {record:?}"
        );
        assert!(
            twice
                .as_ref()
                .is_ok_and(|other| other.passes(&record, &shape) == passes)
                || may_fail,
            "{text}: {record:?}"
        );
    }
}

/// An event whose fields hold what the filter may ask for.
fn record(event: Event, bytes: &[u8]) -> EventRecord {
    let mut numbers = bytes.iter().rev().copied().cycle();
    let mut number = || numbers.next().map_or(0, u64::from);
    let fields = event.description().fields.iter();
    let values = fields.map(|field| match field.kind {
        FieldKind::Text => RecordedValue::Text(bytes.iter().copied().take(20).collect(), false),
        FieldKind::Errno => RecordedValue::Signed(-i64::from(u8::try_from(number()).unwrap_or(0))),
        _ => RecordedValue::Number(number()),
    });
    EventRecord {
        time: 0,
        thread: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
        event: event.index(),
        values: values.collect(),
    }
}
