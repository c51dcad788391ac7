//! Pure functions: whether a request must be sent, and what a reply changes.
//!
//! `decide(view, intent, options) -> Decision` answers the first question, `absorb(state, reply)`
//! the second. Everything is a plain value: no clock, no I/O, no lock, no thread, no inode table.
//! Time comes in as a [`MonotonicTime`] (a number on the client's own scale) and is turned into a
//! [`Freshness`] before anything is decided.
//!
//! Invariant: what is served was true at the server no earlier than the options in effect permit;
//! each module says when that is. SEMANTICS.md states the same for users.
//!
//! Must not know: bytes, procedures, FUSE requests, errno values.
//!
//! Usage: build the view from the current state, and decide. While the decision is to send a
//! request, send it (holding no lock), absorb the reply, and decide again. This terminates, because
//! a reply to a request sent after the operation began makes the attributes
//! [`Freshness::Confirmed`].

#![forbid(unsafe_code)]

pub mod access;
pub mod attributes;
pub mod complete_directory;
pub mod data;
pub mod delegation;
pub mod kernel_cache;
pub mod locks;
pub mod names;
pub mod open;
pub mod open_order;
pub mod options;
pub mod prefetch;
pub mod readdir;
pub mod retransmitted;
pub mod setattr;
pub mod speculation;
pub mod time;

pub use access::{AccessDecision, AccessEntry, AccessReason, AccessView, UnixCredential};
pub use attributes::{
    Absorbed, AttributeReport, AttributeState, CachingAttributes, Delegation, Epoch, Freshness, LockingState,
    Mutation, MutationTicket,
};
pub use names::{NameDecision, NameLabel, NameView, ServerClock};
pub use open::{OpenDecision, OpenIntent, OpenView};
pub use options::{
    AccessMode, CacheOptions, FillMode, ListingMode, LookupCache, MountUsers, RacyGuard, ReaddirplusMode,
    TimeoutRange,
};
pub use time::MonotonicTime;
