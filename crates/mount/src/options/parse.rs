//! Parsing of an option string: `a,b=1,c=x\,y`.
//!
//! A comma inside a value is written `\,`, a backslash `\\`, as mount(8) passes such values on;
//! quotes as in `context="a,b"` of mount(8) preserve commas too. The table has each option's
//! treatment.

use thiserror::Error;

use super::settings::Settings;
use super::table::{self, OptionTreatment};

/// Why an option string is refused; mount.nfs's phrase first, then the option and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum OptionError {
    /// Unknown option.
    #[error(
        "an incorrect mount option was specified: {option}: unknown; see 'curt mount --help', or pass -s to ignore it"
    )]
    Unknown {
        /// The option as written.
        option: String,
    },
    /// The value is missing, not allowed, or out of range.
    #[error("an incorrect mount option was specified: {option}: {wanted}")]
    Value {
        /// The option as written.
        option: String,
        /// The allowed values.
        wanted: String,
    },
    /// The option requests something that Curt does not support.
    #[error("{option} is not supported: {instead}")]
    Refused {
        /// The option as written.
        option: String,
        /// An alternative to the option.
        instead: &'static str,
    },
}

/// A remark for the user about an accepted option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OptionDiagnostic {
    /// Ignored because Curt always behaves as it requests; reported at verbose level.
    Ignored {
        /// The option as written.
        option: String,
        /// Why it has no effect.
        why: &'static str,
    },
    /// Accepted, but with a different meaning than elsewhere.
    Warning {
        /// The option as written.
        option: String,
        /// The difference.
        differs: String,
    },
}

/// The result of parsing an option string.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ParsedOptions {
    /// The settings.
    pub settings: Settings,
    /// Remarks for the user.
    pub remarks: Vec<OptionDiagnostic>,
    /// The honoured options, in order, as `curt stat` and utab show them.
    pub honoured: Vec<OptionWord>,
}

/// Parses an option string onto the defaults. The last of contradicting options applies, as in
/// nfs(5).
pub fn parse(options: &str) -> Result<ParsedOptions, OptionError> {
    parse_onto(Settings::default(), options)
}

/// Parses an option string onto settings in force: `remount`.
pub fn parse_onto(settings: Settings, options: &str) -> Result<ParsedOptions, OptionError> {
    let words = split(options);
    let mut parsed = ParsedOptions { settings, ..ParsedOptions::default() };
    // `sloppy` applies to the whole string, wherever it is.
    parsed.settings.generic.sloppy |= words.iter().any(|word| word.name == "sloppy");
    for word in &words {
        absorb(&mut parsed, word)?;
    }
    Ok(parsed)
}

fn absorb(parsed: &mut ParsedOptions, word: &OptionWord) -> Result<(), OptionError> {
    let option = word.text();
    let Some(row) = table::find(&word.name, word.value.as_deref()) else {
        if !parsed.settings.generic.sloppy {
            return Err(OptionError::Unknown { option });
        }
        let differs = "unknown, ignored because of 'sloppy'".to_owned();
        parsed.remarks.push(OptionDiagnostic::Warning { option, differs });
        return Ok(());
    };
    row.takes
        .check(word.value.as_deref())
        .map_err(|wanted| OptionError::Value { option: option.clone(), wanted: wanted.to_owned() })?;
    match row.treatment {
        OptionTreatment::Honoured(apply) => {
            let value = word.value.as_deref().unwrap_or_default();
            apply(&mut parsed.settings, value).map_err(|wanted| OptionError::Value { option, wanted })?;
            parsed.honoured.retain(|earlier| earlier.name != word.name);
            parsed.honoured.push(word.clone());
        }
        OptionTreatment::Passed => keep(&mut parsed.settings.passed_through, word, option),
        OptionTreatment::Ignored(why) => parsed.remarks.push(OptionDiagnostic::Ignored { option, why }),
        OptionTreatment::Refused(instead) => return Err(OptionError::Refused { option, instead }),
    }
    Ok(())
}

/// Keeps an option that libmount, systemd or a desktop reads from utab (mount(8), `_netdev` and
/// `x-*`).
fn keep(words_kept: &mut Vec<String>, word: &OptionWord, text: String) {
    if word.name == "_netdev" || word.name.starts_with("x-") {
        words_kept.retain(|earlier| split(earlier).first().is_none_or(|earlier| earlier.name != word.name));
        words_kept.push(text);
    }
}

/// The settings of a Linux mount with these options.
///
/// # Errors
/// Unknown options, and Curt's own, which Linux does not have.
pub fn of_linux(options: &str) -> Result<Settings, OptionError> {
    for word in split(options) {
        if table::is_own(&word.name) {
            return Err(OptionError::Refused {
                option: word.text(),
                instead: "Linux's client does not have it; it is an option of Curt's own mounts",
            });
        }
    }
    Ok(parse(options)?.settings)
}

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
    #![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

    use std::time::Duration;

    use super::*;

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

    #[test]
    fn options_of_linux_are_those_of_nfs_5() {
        let settings = of_linux("nocto,ro,actimeo=600,rsize=65536").unwrap();
        assert!(!settings.cache.close_to_open);
        assert_eq!(settings.cache.directories.min, Duration::from_secs(600));
        assert_eq!(settings.transport.rsize, Some(65536));
        assert_eq!(of_linux("").unwrap(), Settings::default());
        for own in ["noaccesscheck", "sloppycto=3", "nonegnamecache", "nonsense"] {
            assert!(of_linux(own).is_err(), "{own}");
        }
    }
}
