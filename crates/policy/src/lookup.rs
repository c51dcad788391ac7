//! Looking a name up: one decision over all that is known of name, directory and caller.
//!
//! Owns how the rules of names, of access and of the kernel's cache combine. A name is answered
//! from memory only to a caller who may search its directory.
//!
//! Must not know tables or handles.

use core::time::Duration;

use crate::{
    access::{AccessDecision, AccessReason, AccessView, AllowedBy, decide_access},
    attributes::{AttributeState, Freshness},
    kernel_cache,
    names::{
        DentryState, LookupReason, LookupTime, NameDecision, NameIntent, NameLabel, NameView, decide_lookup,
    },
    options::CacheOptions,
    server_clock::ServerClock,
};
use curt_types::Access;

/// What is known when a name is looked up.
#[derive(Clone, Copy, Debug)]
pub struct LookupView<'a> {
    /// What is kept of the name, and how it was learned.
    pub entry: Option<(DentryState, NameLabel)>,
    /// The directory.
    pub directory: &'a AttributeState,
    /// How good its attributes are for this operation.
    pub freshness: Freshness,
    /// The caller's rights on it.
    pub access: AccessView,
    /// The clock of its file system.
    pub clock: &'a ServerClock,
    /// When the name is wanted.
    pub wanted: LookupTime,
}

/// What a look-up does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum LookupDecision {
    /// Answer what is kept of the name.
    Serve {
        /// How long the asker may keep it without asking.
        entry_valid: Duration,
        /// Who allowed the caller to search the directory.
        allowed_by: AllowedBy,
    },
    /// The caller may not search the directory.
    Deny,
    /// Send GETATTR for the directory, absorb, decide again.
    Revalidate,
    /// Send ACCESS for the directory, absorb, decide again.
    AskAccess(AccessReason),
    /// Send LOOKUP.
    Lookup(LookupReason),
}

/// Decides one look-up of a name that is to be used.
pub fn decide_cached_lookup(view: &LookupView<'_>, options: &CacheOptions) -> LookupDecision {
    let Some((state, label)) = view.entry else {
        return LookupDecision::Lookup(LookupReason::Unknown);
    };
    let name = NameView {
        directory: view.freshness,
        ..NameView::of(state, label, view.directory, view.clock, view.wanted, options)
    };
    let may_search = || decide_access(&view.access, view.freshness, Access::LOOKUP, options);
    match decide_lookup(&name, NameIntent::Use, options) {
        NameDecision::Lookup(reason) => LookupDecision::Lookup(reason),
        NameDecision::LeaveToServer => LookupDecision::Lookup(LookupReason::Unknown),
        NameDecision::ServePositive | NameDecision::ServeNegative => match may_search() {
            AccessDecision::Allow => LookupDecision::Serve {
                entry_valid: kernel_cache::name_lifetime(
                    state,
                    label,
                    view.directory,
                    view.clock,
                    view.wanted.now,
                    options,
                ),
                allowed_by: view.access.allowed_by(Access::LOOKUP),
            },
            AccessDecision::Deny => LookupDecision::Deny,
            AccessDecision::Revalidate => LookupDecision::Revalidate,
            AccessDecision::Ask(reason) => LookupDecision::AskAccess(reason),
        },
        // An answer about access brings the directory's attributes as well.
        NameDecision::RevalidateDirectory => match may_search() {
            AccessDecision::Ask(reason) => LookupDecision::AskAccess(reason),
            AccessDecision::Deny => LookupDecision::Deny,
            AccessDecision::Allow | AccessDecision::Revalidate => LookupDecision::Revalidate,
        },
    }
}
