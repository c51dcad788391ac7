//! The lifetimes granted to a cache in front of the client that answers without a request to it: a
//! kernel or an application.
//!
//! Owns the lifetimes of names and attributes. Invariants: a granted lifetime ends no later than
//! that of our own cache entry. No lifetime is granted for names in a directory that some user of
//! this mount may not search, because search permission is not checked for cached names.

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

/// How long a name of `directory`, present or missing, may be cached.
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

/// How long an object's attributes may be cached.
#[must_use]
pub fn attribute_lifetime(object: &AttributeState, now: Moment, options: &CacheOptions) -> Duration {
    if object.is_changing() { Duration::ZERO } else { object.remaining(now, options) }
}

/// Whether names that were granted a lifetime while the directory was as in `before` must be
/// invalidated, because some user may not search the directory any more.
#[must_use]
pub const fn revokes_names(before: &Facts, after: &Facts) -> bool {
    is_world_searchable(before) && !is_world_searchable(after)
}

/// Whether every user whose requests arrive may certainly search the directory.
fn names_may_be_kept(directory: &AttributeState, options: &CacheOptions) -> bool {
    let open_to_all = directory.facts().is_some_and(|facts| is_world_searchable(&facts));
    match (options.users, options.access) {
        (MountUsers::Many, AccessMode::Server) => false,
        (MountUsers::Many, AccessMode::ModeBits)
        | (MountUsers::One, AccessMode::Server | AccessMode::ModeBits) => open_to_all,
    }
}
