//! The lifetimes granted to whoever caches in front of the client and answers without asking it: a
//! kernel or a program.
//!
//! Owns the lifetimes of names and attributes. Invariants: a promise ends no later than our own
//! cache entry; no name is promised in a directory that some user of this mount may not search,
//! because nobody checks search permission for names that are cached there.

use core::time::Duration;

use crate::{
    access::is_world_searchable,
    attributes::AttributeState,
    facts::Facts,
    names::{self, DentryState, NameLabel},
    options::{AccessMode, CacheOptions, MountUsers},
    server_clock::ServerClock,
    time::Moment,
};

/// For how long a name, present or missing, of `directory` may be kept.
#[must_use]
pub fn name_lifetime(
    entry: DentryState,
    label: NameLabel,
    directory: &AttributeState,
    clock: &ServerClock,
    now: Moment,
    options: &CacheOptions,
) -> Duration {
    if names_may_be_kept(directory, options) {
        names::remaining(entry, label, directory, clock, now, options)
    } else {
        Duration::ZERO
    }
}

/// For how long an object's attributes may be kept.
#[must_use]
pub fn attribute_lifetime(object: &AttributeState, now: Moment, options: &CacheOptions) -> Duration {
    if object.is_changing() { Duration::ZERO } else { object.remaining(now, options) }
}

/// Whether names that were promised while the directory was as in `before` are to be taken back,
/// because somebody may not search the directory any more.
#[must_use]
pub const fn revokes_names(before: &Facts, after: &Facts) -> bool {
    is_world_searchable(before) && !is_world_searchable(after)
}

/// Whether who may search the directory is beyond question for everybody whose requests arrive.
fn names_may_be_kept(directory: &AttributeState, options: &CacheOptions) -> bool {
    let open_to_all = directory.facts().is_some_and(|facts| is_world_searchable(&facts));
    match (options.users, options.access) {
        (MountUsers::Many, AccessMode::Server) => false,
        (MountUsers::Many, AccessMode::ModeBits)
        | (MountUsers::One, AccessMode::Server | AccessMode::ModeBits) => open_to_all,
    }
}
