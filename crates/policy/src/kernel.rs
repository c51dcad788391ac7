//! The lifetimes granted to whoever caches in front of the client and answers without asking it: a kernel or a program.
//!
//! Owns the lifetimes of names and attributes. Invariants: a promise ends no later than our own cache entry; no name is promised in a
//! directory that some user of this mount may not search, because nobody checks search permission for names that are cached there.

use core::time::Duration;

use crate::{
    access::everybody_may_search,
    attributes::AttributeState,
    facts::Facts,
    names::{self, Entry, NameLabel},
    options::{AccessMode, CacheOptions, Users},
    server_clock::ServerClock,
    time::Moment,
};

/// For how long a name, present or missing, of `directory` may be kept.
#[must_use]
pub fn name_lifetime(
    kept: (Entry, NameLabel),
    directory: &AttributeState,
    clock: &ServerClock,
    now: Moment,
    options: &CacheOptions,
) -> Duration {
    if names_may_be_kept(directory, options) {
        names::remaining(kept, directory, clock, now, options)
    } else {
        Duration::ZERO
    }
}

/// For how long an object's attributes may be kept.
#[must_use]
pub fn attribute_lifetime(object: &AttributeState, now: Moment, options: &CacheOptions) -> Duration {
    if object.is_changing() {
        Duration::ZERO
    } else {
        object.remaining(now, options)
    }
}

/// Whether names that were promised while the directory was as in `before` are to be taken back, because somebody may not search the
/// directory any more.
#[must_use]
pub const fn takes_names_back(before: &Facts, after: &Facts) -> bool {
    everybody_may_search(before) && !everybody_may_search(after)
}

/// Whether who may search the directory is beyond question for everybody whose requests arrive.
fn names_may_be_kept(directory: &AttributeState, options: &CacheOptions) -> bool {
    let open_to_all = directory
        .facts()
        .is_some_and(|facts| everybody_may_search(&facts));
    match (options.users, options.access) {
        (Users::Many, AccessMode::Server) => false,
        (Users::Many, AccessMode::ModeBits) | (Users::One, AccessMode::Server | AccessMode::ModeBits) => {
            open_to_all
        }
    }
}
