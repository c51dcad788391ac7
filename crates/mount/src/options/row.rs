//! A row of the option table.

use super::Settings;

/// An option and how it is treated.
#[derive(Debug, Clone, Copy)]
pub struct OptionRow {
    /// Its name; `x-*` stands for every name that begins with `x-`.
    pub name: &'static str,
    /// The values that this row is about, if a name is treated differently by value.
    pub values: &'static [&'static str],
    /// Whether it takes a value.
    pub takes: OptionArity,
    /// For Curt's own options, how the value is written: a placeholder, or the possible words
    /// separated by `|`.
    pub written: &'static str,
    /// How it is treated.
    pub verdict: OptionTreatment,
}

/// Whether an option takes a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptionArity {
    /// `nocto`.
    Nothing,
    /// `timeo=600`.
    Value,
    /// `rdirplus` or `rdirplus=force`.
    Either,
}

/// Applies an option, or returns which value it takes.
pub(super) type Apply = fn(&mut Settings, &str) -> Result<(), String>;

/// How an option is treated.
#[derive(Debug, Clone, Copy)]
pub enum OptionTreatment {
    /// It is honoured.
    Honoured(Apply),
    /// It asks for what is the case anyway; the text says why.
    Ignored(&'static str),
    /// It is refused; the text says what to do instead.
    Refused(&'static str),
    /// It is meant for mount(8) or systemd, and ignored.
    Passed,
}

impl OptionArity {
    pub(super) fn check(self, value: Option<&str>) -> Result<(), &'static str> {
        match (self, value) {
            (Self::Nothing, Some(_)) => Err("takes no value"),
            (Self::Value, None | Some("")) => Err("needs a value, as in name=value"),
            (Self::Nothing | Self::Either, None) | (Self::Value | Self::Either, Some(_)) => Ok(()),
        }
    }
}

impl OptionRow {
    /// Whether this row is about an option with this name and value.
    pub(super) fn is_about(&self, name: &str, value: Option<&str>) -> bool {
        let named = match self.name.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix),
            None => self.name == name,
        };
        named && (self.values.is_empty() || value.is_some_and(|value| self.covers(value)))
    }

    fn covers(&self, value: &str) -> bool {
        self.values
            .iter()
            .any(|&pattern| match pattern.strip_suffix('*') {
                Some(prefix) => value.starts_with(prefix),
                None => pattern == value,
            })
    }
}
