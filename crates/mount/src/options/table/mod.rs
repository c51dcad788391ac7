//! All options of a mount, one row each; docs/options.md shows the same rows to users, and a test
//! checks that both are equal.

mod curt;
mod generic;
mod nfs;
mod row;

pub(crate) use self::curt::HANDOFFS_MAX;
pub(super) use self::curt::{FILL_MODES, RACY_GUARDS};
pub(super) use self::nfs::{LOCAL_LOCKS, LOOKUP_CACHES};
pub use self::row::{OptionArity, OptionRow, OptionTreatment};

/// The rows, in the order of the documentation.
pub const TABLE: &[&[OptionRow]] = &[nfs::PROTOCOL, nfs::CACHING, nfs::OTHER, curt::ROWS, generic::ROWS];

/// The row that determines an option's treatment. Rows for certain values come before the row for
/// the others.
pub(super) fn find(name: &str, value: Option<&str>) -> Option<&'static OptionRow> {
    let rows = TABLE.iter().flat_map(|group| group.iter());
    rows.clone()
        .find(|row| row.is_about(name, value))
        // For a value without a row, the first row of that name reports the allowed values.
        .or_else(|| rows.clone().find(|row| row.name == name))
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
