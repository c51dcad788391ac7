//! The words of an option string: `a,b=1,c=x\,y`.
//!
//! Handles separators only. A comma inside a value is written `\,`, a backslash `\\`, as mount(8)
//! passes such values on; quotes as in `context="a,b"` of mount(8) preserve commas too.

/// An option as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OptionWord {
    /// The part before the first `=`.
    pub name: String,
    /// The part after it; `None` without an `=`.
    pub value: Option<String>,
}

impl OptionWord {
    /// The option as a user would write it.
    #[must_use]
    pub fn text(&self) -> String {
        match &self.value {
            Some(value) => format!("{}={}", self.name, escape(value)),
            None => self.name.clone(),
        }
    }
}

/// Splits an option string; empty words (`a,,b`) are dropped, as mount(8) does.
#[must_use]
pub fn split(options: &str) -> Vec<OptionWord> {
    let mut words = Vec::new();
    let mut text = String::new();
    let mut quoted = false;
    let mut characters = options.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => text.extend(characters.next().or(Some('\\'))),
            '"' => quoted = !quoted,
            ',' if !quoted => push(&mut words, std::mem::take(&mut text)),
            _ => text.push(character),
        }
    }
    push(&mut words, text);
    words
}

fn push(words: &mut Vec<OptionWord>, text: String) {
    if text.is_empty() {
        return;
    }
    words.push(match text.split_once('=') {
        Some((name, value)) => OptionWord { name: name.to_owned(), value: Some(value.to_owned()) },
        None => OptionWord { name: text, value: None },
    });
}

fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace(',', "\\,")
}

#[cfg(test)]
mod tests {
    use super::{OptionWord, split};

    fn word(name: &str, value: Option<&str>) -> OptionWord {
        OptionWord { name: name.to_owned(), value: value.map(str::to_owned) }
    }

    #[test]
    fn words_are_split_at_commas_and_the_first_equals_sign() {
        assert_eq!(
            split("rw,,timeo=600,comment=a=b"),
            [word("rw", None), word("timeo", Some("600")), word("comment", Some("a=b"))]
        );
        assert_eq!(split(""), []);
        assert_eq!(split("port="), [word("port", Some(""))]);
    }

    #[test]
    fn escaped_and_quoted_commas_stay_in_the_value() {
        assert_eq!(split(r"comment=a\,b,ro"), [word("comment", Some("a,b")), word("ro", None)]);
        assert_eq!(split(r#"context="a,b",ro"#), [word("context", Some("a,b")), word("ro", None)]);
        assert_eq!(split(r"comment=a\\"), [word("comment", Some(r"a\"))]);
    }

    #[test]
    fn a_word_written_out_reads_back_the_same() {
        let value = word("comment", Some(r"a,b\c"));
        assert_eq!(split(&value.text()), [value]);
    }
}
