//! A row of the table of options, and what builds it.

use crate::options::settings::Settings;

/// An option and its treatment.
#[derive(Debug, Clone, Copy)]
pub struct OptionRow {
    /// The option's name; `x-*` stands for all names that begin with `x-`.
    pub name: &'static str,
    /// The values of this row, if the treatment depends on the value.
    pub values: &'static [&'static str],
    /// Whether it takes a value.
    pub takes: OptionArity,
    /// For Curt's own options, the syntax of the value: a placeholder, or the possible words
    /// separated by `|`.
    pub written: &'static str,
    /// The treatment.
    pub treatment: OptionTreatment,
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

/// Applies an option, or returns the allowed values.
type Apply = fn(&mut Settings, &str) -> Result<(), String>;

/// The treatment of an option.
#[derive(Debug, Clone, Copy)]
pub enum OptionTreatment {
    /// The option is honoured.
    Honoured(Apply),
    /// The option has no effect, because Curt always behaves as it requests; the text says why.
    Ignored(&'static str),
    /// The option is refused; the text names an alternative.
    Refused(&'static str),
    /// The option is for mount(8) or systemd, and ignored.
    Passed,
}

impl OptionArity {
    pub(in crate::options) fn check(self, value: Option<&str>) -> Result<(), &'static str> {
        match (self, value) {
            (Self::Nothing, Some(_)) => Err("takes no value"),
            (Self::Value, None | Some("")) => Err("needs a value, as in name=value"),
            (Self::Nothing | Self::Either, None) | (Self::Value | Self::Either, Some(_)) => Ok(()),
        }
    }
}

impl OptionRow {
    /// Whether this row applies to an option with this name and value.
    pub(in crate::options) fn is_about(&self, name: &str, value: Option<&str>) -> bool {
        let named = match self.name.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix),
            None => self.name == name,
        };
        named && (self.values.is_empty() || value.is_some_and(|value| self.covers(value)))
    }

    fn covers(&self, value: &str) -> bool {
        self.values.iter().any(|&pattern| match pattern.strip_suffix('*') {
            Some(prefix) => value.starts_with(prefix),
            None => pattern == value,
        })
    }
}

const fn row(name: &'static str, takes: OptionArity, treatment: OptionTreatment) -> OptionRow {
    OptionRow { name, values: &[], takes, written: "", treatment }
}

pub(super) const fn flag(name: &'static str, apply: Apply) -> OptionRow {
    row(name, OptionArity::Nothing, OptionTreatment::Honoured(apply))
}

pub(super) const fn valued(name: &'static str, apply: Apply) -> OptionRow {
    row(name, OptionArity::Value, OptionTreatment::Honoured(apply))
}

/// One of Curt's own, with the syntax of its value.
pub(super) const fn valued_own(name: &'static str, written: &'static str, apply: Apply) -> OptionRow {
    OptionRow { written, ..valued(name, apply) }
}

pub(super) const fn valued_as(
    name: &'static str,
    values: &'static [&'static str],
    apply: Apply,
) -> OptionRow {
    OptionRow { values, ..valued(name, apply) }
}

pub(super) const fn ignored(name: &'static str, why: &'static str) -> OptionRow {
    row(name, OptionArity::Either, OptionTreatment::Ignored(why))
}

pub(super) const fn passed(name: &'static str) -> OptionRow {
    row(name, OptionArity::Either, OptionTreatment::Passed)
}

pub(super) const fn refused(name: &'static str, instead: &'static str) -> OptionRow {
    row(name, OptionArity::Either, OptionTreatment::Refused(instead))
}

pub(super) const fn refused_as(
    name: &'static str,
    values: &'static [&'static str],
    instead: &'static str,
) -> OptionRow {
    OptionRow { values, takes: OptionArity::Value, ..refused(name, instead) }
}

#[expect(clippy::unnecessary_wraps, reason = "the rows' functions share one type with those that can fail")]
pub(super) fn set<T>(setting: &mut T, value: T) -> Result<(), String> {
    *setting = value;
    Ok(())
}
