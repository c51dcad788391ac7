//! The cached state of a directory that a pass made complete.

use curt_policy::NameLabel;

use super::state::{NAMES, Object};

/// All names of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Complete {
    pub(super) label: NameLabel,
    pub(super) is_listed: [bool; NAMES],
}

impl Complete {
    /// The name now leads to `object`.
    pub(super) fn enter(&mut self, name: usize, object: Object) {
        self.is_listed[name] = object.is_some();
    }
}
