//! The language of `--filter`: comparisons of fields, joined by `&&`, `||`, `!` and parentheses.
//!
//! `error != 0 && (name =~ "*.o" || rtt > 1000000)`. A comparison with a field that an event does
//! not have is false. `event` and `thread` can be compared, too. Numbers are decimal or 0x…;
//! errors, statuses and file types can be given by name; texts are compared with a word or a text
//! in double quotes, which `=~` takes for a pattern. A filter is parsed once, and is evaluated
//! without allocating memory.

mod parser;

use thiserror::Error;

use super::pattern::fits;
use super::recording::{EventRecord, RecordedEvent, RecordedValue};

/// The longest filter, in bytes.
pub const LENGTH_MAX: usize = 1000;
/// How deep parentheses and negations may be nested.
pub const DEPTH_MAX: usize = 32;

/// Where a filter is wrong, and why.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{what}\n  {line}\n  {:at$}^", "")]
pub struct FilterError {
    what: String,
    line: String,
    at: usize,
}

/// A parsed filter.
#[derive(Debug, Clone, PartialEq)]
pub struct Filter(FilterExpression);

#[derive(Debug, Clone, PartialEq)]
enum FilterExpression {
    Any(Vec<Self>),
    All(Vec<Self>),
    Not(Box<Self>),
    Compare(FilterSubject, FilterTest),
}

#[derive(Debug, Clone, PartialEq)]
enum FilterSubject {
    Event,
    Thread,
    Field(&'static str),
}

#[derive(Debug, Clone, PartialEq)]
enum FilterTest {
    Number(FilterOperator, i128),
    Text(Vec<u8>, bool),
    Pattern(Vec<u8>, bool),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FilterOperator {
    Equal,
    Unequal,
    Less,
    AtMost,
    Greater,
    AtLeast,
    Fits,
    FitsNot,
}

impl Filter {
    /// Parses a filter.
    ///
    /// # Errors
    /// A syntax error, with its place.
    pub fn parse(text: &str) -> Result<Self, FilterError> {
        parser::parse(text).map(Self)
    }

    /// Whether a record passes.
    #[must_use]
    pub fn passes(&self, record: &EventRecord, shape: &RecordedEvent) -> bool {
        self.0.passes(record, shape)
    }
}

impl FilterExpression {
    fn passes(&self, record: &EventRecord, shape: &RecordedEvent) -> bool {
        match self {
            Self::Any(nodes) => nodes.iter().any(|node| node.passes(record, shape)),
            Self::All(nodes) => nodes.iter().all(|node| node.passes(record, shape)),
            Self::Not(node) => !node.passes(record, shape),
            Self::Compare(FilterSubject::Event, test) => test.passes_text(shape.name.as_bytes()),
            Self::Compare(FilterSubject::Thread, test) => test.passes_number(i128::from(record.thread)),
            Self::Compare(FilterSubject::Field(name), test) => {
                let mut fields = shape.fields.iter().zip(&record.values);
                let found = fields.find(|(field, _)| field.name == *name);
                found.is_some_and(|(_, value)| match value {
                    RecordedValue::Number(number) => test.passes_number(i128::from(*number)),
                    RecordedValue::Signed(number) => test.passes_number(i128::from(*number)),
                    RecordedValue::Text(text, _) => test.passes_text(text),
                })
            }
        }
    }
}

impl FilterTest {
    fn passes_number(&self, number: i128) -> bool {
        let Self::Number(operator, other) = self else {
            return false;
        };
        match operator {
            FilterOperator::Equal => number == *other,
            FilterOperator::Unequal => number != *other,
            FilterOperator::Less => number < *other,
            FilterOperator::AtMost => number <= *other,
            FilterOperator::Greater => number > *other,
            FilterOperator::AtLeast => number >= *other,
            FilterOperator::Fits | FilterOperator::FitsNot => false,
        }
    }

    fn passes_text(&self, text: &[u8]) -> bool {
        match self {
            Self::Number(..) => false,
            Self::Text(other, wanted) => (text == other) == *wanted,
            Self::Pattern(pattern, wanted) => fits(pattern, text) == *wanted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape() -> RecordedEvent {
        RecordedEvent::of(super::super::event::Event::NfsLookupExit)
    }

    fn record() -> EventRecord {
        EventRecord {
            time: 5,
            thread: 77,
            event: 0,
            values: vec![
                RecordedValue::Number(2),
                RecordedValue::Text(b"main.o".to_vec(), false),
                RecordedValue::Number(u64::MAX),
                RecordedValue::Signed(-2),
            ],
        }
    }

    #[test]
    fn what_passes_and_what_does_not() {
        for (filter, passes) in [
            ("error == -2", true),
            ("error == ENOENT", true),
            ("error==-ENOENT&&dir==2", true),
            ("error != 0", true),
            ("error < -1 && error >= -2", true),
            ("error > -2", false),
            ("name == main.o", true),
            ("name == \"main.o\"", true),
            ("name =~ *.o", true),
            ("name !~ \"*.o\"", false),
            ("name != \"x \\\" y\"", true),
            ("!(name =~ *.c) && (dir == 1 || dir == 0x2)", true),
            ("dir == 1 || dir == 3 || fileid == 18446744073709551615", true),
            ("dir == 2 && !dir == 2 || dir == 9", false),
            ("event =~ nfs_lookup_*", true),
            ("thread == 77", true),
            ("uid == 0", false),
            ("uid != 0", false),
            ("!uid == 0", true),
        ] {
            let parsed = Filter::parse(filter).unwrap_or_else(|error| panic!("{filter}: {error}"));
            assert_eq!(parsed.passes(&record(), &shape()), passes, "{filter}");
        }
    }

    #[test]
    fn errors_point_to_the_place() {
        for (filter, place) in [
            ("", 0),
            ("error = -2", 6),
            ("error == ", 9),
            ("erorr == 1", 0),
            ("name < x", 7),
            ("name == \"x", 8),
            ("error == 1 &", 11),
            ("(error == 1", 11),
            ("error == 1)", 10),
            ("error =~ 1", 9),
            ("dir == 99999999999999999999999", 7),
            ("ö == 1", 0),
            ("name == ö && dir = 1", 17),
        ] {
            let error = Filter::parse(filter).expect_err(filter);
            assert_eq!(error.at, place, "{filter}: {error}");
            assert!(
                error
                    .to_string()
                    .ends_with(&format!("\n  {}^", " ".repeat(place)))
            );
        }
    }

    #[test]
    fn depth_and_length_are_bounded() {
        let nested = |depth: usize| format!("{}dir == 1{}", "(".repeat(depth), ")".repeat(depth));
        assert!(Filter::parse(&nested(DEPTH_MAX - 1)).is_ok());
        assert!(Filter::parse(&nested(DEPTH_MAX)).is_err());
        assert!(Filter::parse(&format!("{}dir == 1", "!".repeat(DEPTH_MAX))).is_err());
        let long = |length: usize| format!("name == {}", "x".repeat(length - 8));
        assert!(Filter::parse(&long(LENGTH_MAX)).is_ok());
        assert!(Filter::parse(&long(LENGTH_MAX + 1)).is_err());
    }
}
