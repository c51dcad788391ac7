//! Events: tracepoints in client and server.
//!
//! One table (`table.rs`) has a row for each event. [`probe!`](crate::probe) emits one. It has
//! three destinations: a probe in the program's file to which bpftrace, perf or SystemTap attach;
//! an [`EventWatch`], which `curt trace` reads through a control socket; and a [ring] in a
//! file that outlives the process. A disabled event costs one relaxed load. An enabled one costs a
//! copy of its fields: emitting never waits, makes no system call and allocates no memory. An event
//! that does not fit in a buffer is lost and counted.
//!
//! This module does not depend on requests: events contain numbers and names.

mod buffer;
mod document;
mod event;
mod fields;
mod names;
mod short_text;
mod sinks;
mod sys;
mod table;

pub mod chrome;
pub mod filter;
pub mod formatter;
pub mod pattern;
pub mod record;
pub mod recording;
pub mod ring;

pub use document::list;
pub use event::{Event, EventDescription, EventFrequency, EventSpan, EventStability, rows};
pub use fields::{Field, FieldKind, FieldValue, NumberValue, SignedValue, TextValue, WORDS, of};
pub use filter::EventFilter;
pub use pattern::select;
pub use recording::{
    EventRecord, RecordSubject, RecordedEvent, RecordedProcess, RecordingItem, RecordingReader,
    RecordingWriter,
};
pub use ring::{EventRing, RingLevel};
pub use short_text::{ShortText, handle_hash, procedure_name};
#[cfg(test)]
pub(crate) use sinks::WATCHING_TEST;
pub use sinks::{EventWatch, TooManyWatches, WATCHERS_MAX, keep_in_ring, now, time_of_day_offset};

/// Emits an event if it is enabled: `probe!(NfsGetattrExit { fileid: 5_u64, size: 0_u64, error: 0
/// })`. Otherwise the values are not evaluated. A `let` evaluates a common source of several
/// values, also only if the event is enabled: `probe!(let known = file.known(); NfsSizeGrow {
/// fileid: known.fileid, … })`.
#[macro_export]
macro_rules! probe {
    (@value $field:ident) => { $field };
    (@value $field:ident $value:expr) => { $value };
    (let $known:pat = $how:expr; $event:ident { $($fields:tt)* }) => {
        if $crate::events::Event::$event.is_wanted() {
            let $known = $how;
            $crate::probe!($event { $($fields)* });
        }
    };
    ($event:ident { $($field:ident $(: $value:expr)?),* $(,)? }) => {
        if $crate::events::Event::$event.is_wanted() {
            $crate::events::rows::$event {
                $($field: ::core::convert::Into::into($crate::probe!(@value $field $($value)?))),*
            }
            .emit();
        }
    };
}
