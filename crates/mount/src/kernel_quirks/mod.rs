//! What the kernel does that a mount has to work around: a file for each, which says in which
//! versions, which test shows it, and when it can go. Versions are those that were read or tested.

pub(crate) mod direct_write_pages;
pub(crate) mod late_attributes;
pub(crate) mod name_lifetime;
pub(crate) mod names_in_use;
pub(crate) mod unawaited_release;
