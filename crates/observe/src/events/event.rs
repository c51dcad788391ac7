//! The events as types, generated from the table.

use super::fields::{Field, FieldValue, of, word};
use super::table::with_events;
use super::{sinks, sys};
use crate::named_enum;

named_enum! {
    /// Whether an event's name and fields can change.
    EventStability {
        Stable "stable" "They stay; fields may be added at the end.";
        Draft "draft" "They may change in any version.";
    }
}

named_enum! {
    /// How often an event can happen.
    EventFrequency {
        Rare "rare" "Rarely: trouble, beginnings and ends.";
        Request "request" "Once or a few times for each message on the wire.";
        Operation "operation" "For each operation of a program, or each call that a server executes.";
    }
}

named_enum! {
    /// An event's relation to others in time.
    EventSpan {
        Instant "instant" "A moment.";
        Enter "enter" "A span begins on this thread, which ends on the same thread; spans are nested.";
        Exit "exit" "The span that this thread entered last ends.";
        Begin "begin" "A span begins that may end on another thread; its first field identifies it.";
        End "end" "The span with the same first field ends.";
    }
}

/// An event's row.
#[derive(Debug, Clone, Copy)]
pub struct EventDescription {
    /// Its name, as traced and as a probe.
    pub name: &'static str,
    /// The stability of its name and fields.
    pub stability: EventStability,
    /// Its frequency.
    pub frequency: EventFrequency,
    /// Its relation to others in time.
    pub span: EventSpan,
    /// Its fields, in the order of a probe's arguments.
    pub fields: &'static [Field],
    /// Its meaning, a sentence.
    pub meaning: &'static str,
}

macro_rules! define {
    ($($event:ident $name:literal $stability:ident $frequency:ident $span:ident { $($field:ident)* } $meaning:literal;)*) => {
        /// One row of the table of events.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum Event {
            $(#[doc = $meaning] $event,)*
        }

        impl Event {
            /// Every event, in the table's order.
            pub const ALL: &'static [Self] = &[$(Self::$event,)*];

            /// Its row.
            #[must_use]
            pub const fn description(self) -> &'static EventDescription {
                match self {
                    $(Self::$event => &EventDescription {
                        name: $name,
                        stability: EventStability::$stability,
                        frequency: EventFrequency::$frequency,
                        span: EventSpan::$span,
                        fields: &[$(word::$field),*],
                        meaning: $meaning,
                    },)*
                }
            }
        }

        /// Each event with its fields, as [`probe!`](crate::probe) takes it.
        pub mod rows {
            $(
                #[doc = $meaning]
                #[derive(Debug, Clone, Copy)]
                #[allow(missing_docs, reason = "the meaning of each stands in the table of words")]
                pub struct $event<'a> {
                    $(pub $field: super::of::$field<'a>,)*
                }

                impl $event<'_> {
                    /// Emits it.
                    #[cold]
                    #[inline(never)]
                    pub fn emit(&self) {
                        let values: &[super::FieldValue<'_>] = &[$(self.$field.value()),*];
                        super::sinks::emit(super::Event::$event, values);
                    }
                }
            )*
        }
    };
}

with_events!(define);

impl Event {
    /// Number of events.
    pub const COUNT: usize = Self::ALL.len();

    /// Whether the event is enabled, that is, has a destination: one relaxed load.
    #[inline]
    #[must_use]
    pub fn is_wanted(self) -> bool {
        sys::wanted(self) != 0
    }

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.description().name
    }

    /// Its number in the table.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::fields::{FieldKind, WORDS};
    use super::super::record::{FIELDS_MAX, TEXTS_MAX};
    use super::*;

    #[test]
    fn every_row_has_a_name_of_its_own_and_a_meaning_and_keeps_to_the_limits() {
        let mut names = BTreeSet::new();
        for (index, event) in Event::ALL.iter().enumerate() {
            let row = event.description();
            assert_eq!(event.index(), index);
            assert!(names.insert(row.name), "{} twice", row.name);
            let is_word = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
            assert!(row.name.bytes().all(is_word), "{}", row.name);
            assert!(row.meaning.ends_with('.'), "{}", row.name);
            assert!((1..=FIELDS_MAX).contains(&row.fields.len()), "{}", row.name);
            let texts = row.fields.iter().filter(|field| field.kind == FieldKind::Text);
            assert!(texts.count() <= TEXTS_MAX, "{}", row.name);
            let fields: BTreeSet<_> = row.fields.iter().map(|field| field.name).collect();
            assert_eq!(fields.len(), row.fields.len(), "{}", row.name);
        }
    }

    #[test]
    fn what_is_entered_has_an_exit_of_its_name_and_what_begins_an_end() {
        let names: BTreeSet<_> = Event::ALL.iter().map(|event| event.name()).collect();
        for event in Event::ALL {
            let row = event.description();
            let other = match row.span {
                EventSpan::Enter if row.name.ends_with("_enter") => row.name.replace("_enter", "_exit"),
                EventSpan::Enter if row.name.ends_with("_call") => row.name.replace("_call", "_reply"),
                EventSpan::Enter => format!("{}_done", row.name),
                EventSpan::Begin => row.name.replace("_call", "_reply"),
                EventSpan::Instant | EventSpan::Exit | EventSpan::End => continue,
            };
            assert!(names.contains(other.as_str()), "{} has no {other}", row.name);
        }
    }

    #[test]
    fn the_words_are_sorted_and_each_is_used() {
        assert!(WORDS.is_sorted_by_key(|word| word.name));
        for word in WORDS {
            let used = Event::ALL.iter().any(|event| event.description().fields.contains(word));
            assert!(used, "{}", word.name);
        }
    }
}
