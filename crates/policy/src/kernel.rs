//! The lifetimes granted to the kernel, which answers from its own caches without asking us.
//!
//! Owns the lifetimes in FUSE replies. Invariants: a promise ends no later than our own cache entry; no name is promised in a
//! directory that some user of this mount may not search, because nobody checks search permission for names that the kernel
//! has cached.

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

/// For how long the kernel may keep a name, present or missing, of `directory`.
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

/// For how long the kernel may keep an object's attributes.
#[must_use]
pub fn attribute_lifetime(object: &AttributeState, now: Moment, options: &CacheOptions) -> Duration {
    if object.is_changing() {
        Duration::ZERO
    } else {
        object.remaining(now, options)
    }
}

/// Whether names that the kernel was given while the directory was as in `before` are to be taken back from it, because somebody
/// may not search the directory any more.
#[must_use]
pub const fn takes_names_back(before: &Facts, after: &Facts) -> bool {
    everybody_may_search(before) && !everybody_may_search(after)
}

/// Whether names that the kernel was given are to be taken back from it because it moved one from a directory where it may keep names (for
/// all that is known) to one where it may not.
#[must_use]
pub fn rename_takes_names_back(from: &AttributeState, to: &AttributeState, options: &CacheOptions) -> bool {
    let could_be_kept = from.facts().is_none() || names_may_be_kept(from, options);
    could_be_kept && !names_may_be_kept(to, options)
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
