//! Parsing a filter: recursive descent, one method for each level of precedence.

use super::super::fields::{FieldKind, WORDS};
use super::super::names;
use super::{
    DEPTH_MAX, FilterError, FilterExpression, FilterOperator, FilterSubject, FilterTest, LENGTH_MAX,
};

/// Parses a whole filter.
pub(super) fn parse(text: &str) -> Result<FilterExpression, FilterError> {
    let mut parser = FilterParser {
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
    Ok(node)
}

struct FilterParser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

impl<'a> FilterParser<'a> {
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

    fn any(&mut self) -> Result<FilterExpression, FilterError> {
        let mut nodes = vec![self.all()?];
        while self.takes("||") {
            nodes.push(self.all()?);
        }
        Ok(single(nodes, FilterExpression::Any))
    }

    fn all(&mut self) -> Result<FilterExpression, FilterError> {
        let mut nodes = vec![self.one()?];
        while self.takes("&&") {
            nodes.push(self.one()?);
        }
        Ok(single(nodes, FilterExpression::All))
    }

    fn one(&mut self) -> Result<FilterExpression, FilterError> {
        self.skip_space();
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(self.wrong(format!("nested deeper than {DEPTH_MAX}")));
        }
        let node = if self.takes("!") {
            FilterExpression::Not(Box::new(self.one()?))
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

    fn comparison(&mut self) -> Result<FilterExpression, FilterError> {
        let start = self.at;
        let name = self.word();
        let (subject, kind) = match name {
            "" => return Err(self.wrong("expected the name of a field".to_owned())),
            "event" => (FilterSubject::Event, FieldKind::Text),
            "thread" => (FilterSubject::Thread, FieldKind::Number),
            _ => match WORDS.iter().find(|word| word.name == name) {
                Some(word) => (FilterSubject::Field(word.name), word.kind),
                None => {
                    self.at = start;
                    return Err(self.wrong(format!("no event has a field {name}")));
                }
            },
        };
        let operator = self.operator()?;
        self.skip_space();
        let test = if kind == FieldKind::Text {
            self.text_test(operator)?
        } else {
            self.number_test(operator, kind)?
        };
        Ok(FilterExpression::Compare(subject, test))
    }

    fn operator(&mut self) -> Result<FilterOperator, FilterError> {
        const OPERATORS: [(&str, FilterOperator); 8] = [
            ("==", FilterOperator::Equal),
            ("!=", FilterOperator::Unequal),
            ("=~", FilterOperator::Fits),
            ("!~", FilterOperator::FitsNot),
            ("<=", FilterOperator::AtMost),
            (">=", FilterOperator::AtLeast),
            ("<", FilterOperator::Less),
            (">", FilterOperator::Greater),
        ];
        let found = OPERATORS.iter().find(|(token, _)| self.takes(token));
        found
            .map(|(_, operator)| *operator)
            .ok_or_else(|| self.wrong("expected one of == != < <= > >= =~ !~".to_owned()))
    }

    fn text_test(&mut self, operator: FilterOperator) -> Result<FilterTest, FilterError> {
        let start = self.at;
        let text = self.literal()?.into_bytes();
        Ok(match operator {
            FilterOperator::Equal => FilterTest::Text(text, true),
            FilterOperator::Unequal => FilterTest::Text(text, false),
            FilterOperator::Fits => FilterTest::Pattern(text, true),
            FilterOperator::FitsNot => FilterTest::Pattern(text, false),
            FilterOperator::Less
            | FilterOperator::AtMost
            | FilterOperator::Greater
            | FilterOperator::AtLeast => {
                self.at = start;
                return Err(self.wrong("a text is compared by == != =~ or !~".to_owned()));
            }
        })
    }

    fn number_test(&mut self, operator: FilterOperator, kind: FieldKind) -> Result<FilterTest, FilterError> {
        let start = self.at;
        let negative = self.takes("-");
        let word = self.word();
        let number = match word.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok().map(i128::from),
            None => word.parse::<u64>().ok().map(i128::from),
        };
        let named = || match kind {
            FieldKind::Errno => names::errno_of(word).map(|number| -i128::from(number)),
            FieldKind::Status => names::status_of(word).map(i128::from),
            FieldKind::FileType => names::file_type_of(word).map(i128::from),
            _ => None,
        };
        let number = match number {
            Some(number) if negative => Some(-number),
            Some(number) => Some(number),
            // -ENOENT and ENOENT are the same.
            None => named(),
        };
        let number = number.filter(|_| !matches!(operator, FilterOperator::Fits | FilterOperator::FitsNot));
        number
            .map(|number| FilterTest::Number(operator, number))
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

    /// A text in quotes, in which \ escapes " and \, or everything up to a space, a quote, or one
    /// of ( ) & |.
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

fn single(
    mut nodes: Vec<FilterExpression>,
    many: impl FnOnce(Vec<FilterExpression>) -> FilterExpression,
) -> FilterExpression {
    match nodes.len() {
        1 => nodes.swap_remove(0),
        _ => many(nodes),
    }
}
