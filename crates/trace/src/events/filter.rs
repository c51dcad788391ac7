//! The language of `--filter`: comparisons of fields, joined by `&&`, `||`, `!` and parentheses.
//!
//! `error != 0 && (name =~ "*.o" || rtt > 1000000)`. A comparison with a field that an event does not have is false. `event`
//! and `thread` can be compared, too. Numbers are decimal or 0x…; errors, statuses and types of files have names; a word or a text in double quotes
//! is compared with texts, and `=~` takes it for a pattern. A filter is read once, and looks at records without taking memory.

use thiserror::Error;

use super::fields::{Kind, WORDS};
use super::names;
use super::pattern::fits;
use super::recording::{Datum, Record, Shape};

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

/// A filter that was understood.
#[derive(Debug, Clone, PartialEq)]
pub struct Filter(Node);

#[derive(Debug, Clone, PartialEq)]
enum Node {
    Any(Vec<Self>),
    All(Vec<Self>),
    Not(Box<Self>),
    Compare(Subject, Test),
}

#[derive(Debug, Clone, PartialEq)]
enum Subject {
    Event,
    Thread,
    Field(&'static str),
}

#[derive(Debug, Clone, PartialEq)]
enum Test {
    Number(Operator, i128),
    Text(Vec<u8>, bool),
    Pattern(Vec<u8>, bool),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operator {
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
    /// Reads a filter.
    ///
    /// # Errors
    /// It is none; says where.
    pub fn parse(text: &str) -> Result<Self, FilterError> {
        let mut parser = Parser {
            text,
            at: 0,
            depth: 0,
        };
        if text.len() > LENGTH_MAX {
            return Err(parser.wrong(format!("a filter has at most {LENGTH_MAX} bytes")));
        }
        let node = parser.any()?;
        parser.skip_space();
        if parser.at < text.len() {
            return Err(parser.wrong("expected &&, || or the end".to_owned()));
        }
        Ok(Self(node))
    }

    /// Whether a record passes.
    #[must_use]
    pub fn passes(&self, record: &Record, shape: &Shape) -> bool {
        self.0.passes(record, shape)
    }
}

impl Node {
    fn passes(&self, record: &Record, shape: &Shape) -> bool {
        match self {
            Self::Any(nodes) => nodes.iter().any(|node| node.passes(record, shape)),
            Self::All(nodes) => nodes.iter().all(|node| node.passes(record, shape)),
            Self::Not(node) => !node.passes(record, shape),
            Self::Compare(Subject::Event, test) => test.passes_text(shape.name.as_bytes()),
            Self::Compare(Subject::Thread, test) => test.passes_number(i128::from(record.thread)),
            Self::Compare(Subject::Field(name), test) => {
                let mut fields = shape.fields.iter().zip(&record.values);
                let found = fields.find(|(field, _)| field.name == *name);
                found.is_some_and(|(_, value)| match value {
                    Datum::Number(number) => test.passes_number(i128::from(*number)),
                    Datum::Signed(number) => test.passes_number(i128::from(*number)),
                    Datum::Text(text, _) => test.passes_text(text),
                })
            }
        }
    }
}

impl Test {
    fn passes_number(&self, number: i128) -> bool {
        let Self::Number(operator, other) = self else {
            return false;
        };
        match operator {
            Operator::Equal => number == *other,
            Operator::Unequal => number != *other,
            Operator::Less => number < *other,
            Operator::AtMost => number <= *other,
            Operator::Greater => number > *other,
            Operator::AtLeast => number >= *other,
            Operator::Fits | Operator::FitsNot => false,
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

struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn wrong(&self, what: String) -> FilterError {
        // As many columns as there are characters before the place.
        FilterError {
            what,
            line: self.text.chars().take(LENGTH_MAX).collect(),
            at: self.text[..self.at].chars().count(),
        }
    }

    fn skip_space(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    fn takes(&mut self, token: &str) -> bool {
        self.skip_space();
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    fn any(&mut self) -> Result<Node, FilterError> {
        let mut nodes = vec![self.all()?];
        while self.takes("||") {
            nodes.push(self.all()?);
        }
        Ok(single(nodes, Node::Any))
    }

    fn all(&mut self) -> Result<Node, FilterError> {
        let mut nodes = vec![self.one()?];
        while self.takes("&&") {
            nodes.push(self.one()?);
        }
        Ok(single(nodes, Node::All))
    }

    fn one(&mut self) -> Result<Node, FilterError> {
        self.skip_space();
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(self.wrong(format!("nested deeper than {DEPTH_MAX}")));
        }
        let node = if self.takes("!") {
            Node::Not(Box::new(self.one()?))
        } else if self.takes("(") {
            let inner = self.any()?;
            if !self.takes(")") {
                return Err(self.wrong("expected )".to_owned()));
            }
            inner
        } else {
            self.comparison()?
        };
        self.depth -= 1;
        Ok(node)
    }

    fn comparison(&mut self) -> Result<Node, FilterError> {
        let start = self.at;
        let name = self.word();
        let (subject, kind) = match name {
            "" => return Err(self.wrong("expected the name of a field".to_owned())),
            "event" => (Subject::Event, Kind::Text),
            "thread" => (Subject::Thread, Kind::Number),
            _ => match WORDS.iter().find(|word| word.name == name) {
                Some(word) => (Subject::Field(word.name), word.kind),
                None => {
                    self.at = start;
                    return Err(self.wrong(format!("no event has a field {name}")));
                }
            },
        };
        let operator = self.operator()?;
        self.skip_space();
        let test = if kind == Kind::Text {
            self.text_test(operator)?
        } else {
            self.number_test(operator, kind)?
        };
        Ok(Node::Compare(subject, test))
    }

    fn operator(&mut self) -> Result<Operator, FilterError> {
        const OPERATORS: [(&str, Operator); 8] = [
            ("==", Operator::Equal),
            ("!=", Operator::Unequal),
            ("=~", Operator::Fits),
            ("!~", Operator::FitsNot),
            ("<=", Operator::AtMost),
            (">=", Operator::AtLeast),
            ("<", Operator::Less),
            (">", Operator::Greater),
        ];
        let found = OPERATORS.iter().find(|(token, _)| self.takes(token));
        found
            .map(|(_, operator)| *operator)
            .ok_or_else(|| self.wrong("expected one of == != < <= > >= =~ !~".to_owned()))
    }

    fn text_test(&mut self, operator: Operator) -> Result<Test, FilterError> {
        let start = self.at;
        let text = self.literal()?.into_bytes();
        Ok(match operator {
            Operator::Equal => Test::Text(text, true),
            Operator::Unequal => Test::Text(text, false),
            Operator::Fits => Test::Pattern(text, true),
            Operator::FitsNot => Test::Pattern(text, false),
            Operator::Less | Operator::AtMost | Operator::Greater | Operator::AtLeast => {
                self.at = start;
                return Err(self.wrong("a text is compared by == != =~ or !~".to_owned()));
            }
        })
    }

    fn number_test(&mut self, operator: Operator, kind: Kind) -> Result<Test, FilterError> {
        let start = self.at;
        let negative = self.takes("-");
        let word = self.word();
        let number = match word.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok().map(i128::from),
            None => word.parse::<u64>().ok().map(i128::from),
        };
        let named = || match kind {
            Kind::Errno => names::errno_of(word).map(|number| -i128::from(number)),
            Kind::Status => names::status_of(word).map(i128::from),
            Kind::FileType => names::file_type_of(word).map(i128::from),
            _ => None,
        };
        let number = match number {
            Some(number) if negative => Some(-number),
            Some(number) => Some(number),
            // -ENOENT and ENOENT are the same.
            None => named(),
        };
        let number = number.filter(|_| !matches!(operator, Operator::Fits | Operator::FitsNot));
        number
            .map(|number| Test::Number(operator, number))
            .ok_or_else(|| {
                self.at = start;
                self.wrong("expected a number, for == != < <= > or >=".to_owned())
            })
    }

    fn word(&mut self) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        let word = &rest[..end.unwrap_or(rest.len())];
        self.at += word.len();
        word
    }

    /// A text in quotes, in which \ goes before " and \, or what stands there until a space or a parenthesis.
    fn literal(&mut self) -> Result<String, FilterError> {
        let start = self.at;
        if !self.takes("\"") {
            let rest = self.rest();
            let end = rest.find(|letter: char| letter.is_whitespace() || "()&|\"".contains(letter));
            let word = &rest[..end.unwrap_or(rest.len())];
            if word.is_empty() {
                return Err(self.wrong("expected a text".to_owned()));
            }
            self.at += word.len();
            return Ok(word.to_owned());
        }
        let mut text = String::new();
        let mut letters = self.rest().char_indices();
        while let Some((place, letter)) = letters.next() {
            match letter {
                '"' => {
                    self.at += place + 1;
                    return Ok(text);
                }
                '\\' => text.extend(letters.next().map(|(_, letter)| letter)),
                other => text.push(other),
            }
        }
        self.at = start;
        Err(self.wrong("the text has no end".to_owned()))
    }
}

fn single(mut nodes: Vec<Node>, many: impl FnOnce(Vec<Node>) -> Node) -> Node {
    match nodes.len() {
        1 => nodes.swap_remove(0),
        _ => many(nodes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape() -> Shape {
        Shape::of(super::super::event::Event::NfsLookupExit)
    }

    fn record() -> Record {
        Record {
            time: 5,
            thread: 77,
            event: 0,
            values: vec![
                Datum::Number(2),
                Datum::Text(b"main.o".to_vec(), false),
                Datum::Number(u64::MAX),
                Datum::Signed(-2),
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
