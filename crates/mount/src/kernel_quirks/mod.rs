//! Workarounds for the kernel: one file each, with the kernel versions, the test that shows the
//! behaviour, and the condition for its removal. Versions are those that were read or tested.

pub(crate) mod direct_write_pages;
pub(crate) mod ignored_sizes;
pub(crate) mod late_attributes;
pub(crate) mod names_in_use;
pub(crate) mod unawaited_release;
