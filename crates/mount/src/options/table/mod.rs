//! All options of a mount, one row each; docs/options.md shows the same rows to users, and a test
//! checks that both are equal.

mod curt;
mod generic;
mod nfs;

use super::option_string::OptionWord;
use super::row::{Apply, OptionArity, OptionRow, OptionTreatment};

/// The rows, in the order of the documentation.
pub const TABLE: &[&[OptionRow]] = &[nfs::PROTOCOL, nfs::CACHING, nfs::OTHER, curt::ROWS, generic::ROWS];

/// The row that determines an option's treatment. Rows for certain values come before the row for
/// the others.
pub(super) fn find(word: &OptionWord) -> Option<&'static OptionRow> {
    let rows = TABLE.iter().flat_map(|group| group.iter());
    rows.clone()
        .find(|row| row.is_about(&word.name, word.value.as_deref()))
        // For a value without a row, the first row of that name reports the allowed values.
        .or_else(|| rows.clone().find(|row| row.name == word.name))
}

/// Whether an option is Curt's own, and not of nfs(5).
pub(super) fn is_own(name: &str) -> bool {
    let is_of_nfs = TABLE[..3].iter().flat_map(|group| group.iter()).any(|row| row.name == name);
    !is_of_nfs && curt::ROWS.iter().any(|row| row.name == name)
}

/// Curt's own honoured options, as written: `noaccesscheck`, `sloppycto=N`, `dirfill=auto|off`.
pub fn own() -> impl Iterator<Item = String> {
    let honoured =
        |row: &&OptionRow| is_own(row.name) && matches!(row.treatment, OptionTreatment::Honoured(_));
    curt::ROWS.iter().filter(honoured).map(|row| match row.takes {
        OptionArity::Nothing => row.name.to_owned(),
        OptionArity::Value | OptionArity::Either => format!("{}={}", row.name, row.written),
    })
}

const fn flag(name: &'static str, apply: Apply) -> OptionRow {
    OptionRow {
        name,
        values: &[],
        takes: OptionArity::Nothing,
        written: "",
        treatment: OptionTreatment::Honoured(apply),
    }
}

const fn valued(name: &'static str, apply: Apply) -> OptionRow {
    OptionRow {
        name,
        values: &[],
        takes: OptionArity::Value,
        written: "",
        treatment: OptionTreatment::Honoured(apply),
    }
}

/// One of Curt's own, with the syntax of its value.
const fn valued_own(name: &'static str, written: &'static str, apply: Apply) -> OptionRow {
    OptionRow { written, ..valued(name, apply) }
}

const fn valued_as(name: &'static str, values: &'static [&'static str], apply: Apply) -> OptionRow {
    OptionRow {
        name,
        values,
        takes: OptionArity::Value,
        written: "",
        treatment: OptionTreatment::Honoured(apply),
    }
}

const fn ignored(name: &'static str, why: &'static str) -> OptionRow {
    OptionRow {
        name,
        values: &[],
        takes: OptionArity::Either,
        written: "",
        treatment: OptionTreatment::Ignored(why),
    }
}

const fn passed(name: &'static str) -> OptionRow {
    OptionRow {
        name,
        values: &[],
        takes: OptionArity::Either,
        written: "",
        treatment: OptionTreatment::Passed,
    }
}

const fn refused(name: &'static str, instead: &'static str) -> OptionRow {
    OptionRow {
        name,
        values: &[],
        takes: OptionArity::Either,
        written: "",
        treatment: OptionTreatment::Refused(instead),
    }
}

const fn refused_as(name: &'static str, values: &'static [&'static str], instead: &'static str) -> OptionRow {
    OptionRow {
        name,
        values,
        takes: OptionArity::Value,
        written: "",
        treatment: OptionTreatment::Refused(instead),
    }
}
