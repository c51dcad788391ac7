//! What an open is known by.

use curt_types::FileHandle;

/// An open: a file and an owner.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct OpenKey {
    pub(super) file: FileHandle,
    pub(super) owner: u32,
}

/// The owner of opens that only create a file.
pub(super) const CREATOR: u32 = u32::MAX;

/// The owner of the open of an unknown delegation: no open has it.
pub(super) const UNKNOWN_OWNER: u32 = u32::MAX - 1;
