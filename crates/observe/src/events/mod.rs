//! Events: tracepoints in client and server.
//!
//! One table (`table.rs`) has a row for each event. [`probe!`](crate::probe) emits one. It is seen
//! in three ways: by a probe in the program's file to which bpftrace, perf or SystemTap attach; by
//! a [`EventWatch`], which `curt trace` reads through a control socket; and in a [ring](ring) in a
//! file that outlives the process. An event that nobody wants costs one relaxed load. One that is
//! wanted costs a copy of its fields: emitting never waits, makes no system call and allocates no
//! memory. What does not fit in a buffer is lost and counted.
//!
//! Must not know what a request is: events are given numbers and names.

mod buffer;
mod document;
mod event;
mod fields;
mod names;
mod short;
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
pub use short::{ShortText, handle_hash, procedure_name};
pub use sinks::{EventWatch, TooManyWatches, WATCHERS_MAX, keep_in_ring, now, time_of_day_offset};

/// Emits an event, if anybody wants it: `probe!(NfsGetattrExit { fileid: 5_u64, size: 0_u64, error:
/// 0 })`. Otherwise the values are not even evaluated. A `let` evaluates what several of them are
/// taken from, also only if the event is wanted: `probe!(let known = file.known(); NfsSizeGrow {
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
