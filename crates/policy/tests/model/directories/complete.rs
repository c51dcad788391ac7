//! What is kept of a directory that a pass made complete.

use curt_policy::NameLabel;

use super::state::{NAMES, Object};

/// The names of a directory: all that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Complete {
    pub(super) label: NameLabel,
    pub(super) is_listed: [bool; NAMES],
}

impl Complete {
    /// The name leads to `object` now.
    pub(super) fn enter(&mut self, name: usize, object: Object) {
        self.is_listed[name] = object.is_some();
    }
}
