//! Pure functions: must a request be sent, and what does a reply teach?
//!
//! `decide(view, intent, options) -> Decision` answers the first question, `absorb(state, reply)` the second. Everything is
//! a plain value: no clock, no I/O, no lock, no thread, no inode table. Time comes in as a [`Moment`] (a number on the
//! client's own scale) and is turned into a [`Freshness`] before anything is decided.
//!
//! Invariant: what is served was true at the server at some moment after the last point at which the options in force
//! demand that it be true; each module says which point that is. SEMANTICS.md says the same in a user's words.
//!
//! Must not know: bytes, procedures, FUSE requests, errno values. [`linux`] is apart: the rules of another client, which ours are laid
//! beside; it has a table of its own and speaks of procedures.
//!
//! How a caller goes about it: build the view from the state it holds, decide, and while the decision is to ask, send that
//! request (holding no lock), absorb the reply, and decide again. A reply to a request sent after the operation began makes
//! its attributes [`Freshness::Confirmed`], so this ends.

#![forbid(unsafe_code)]

pub mod access;
pub mod attributes;
pub mod complete;
pub mod data;
pub mod facts;
pub mod fill;
pub mod kernel;
pub mod linux;
pub mod listing;
pub mod names;
pub mod open;
pub mod options;
pub mod server_clock;
pub mod time;

pub use access::{AccessDecision, AccessEntry, AccessView, AskWhy, Credential, Rights};
pub use attributes::{Absorbed, AttributeState, Freshness, Mutation, Report, Ticket};
pub use facts::{Before, Epoch, Facts, ObjectKind, ServerTime, Stamp};
pub use names::{NameDecision, NameIntent, NameLabel, NameView};
pub use open::{OpenDecision, OpenIntent, OpenView};
pub use options::{
    AccessMode, CacheOptions, FillMode, Interval, ListingMode, LookupCache, PlusMode, RacyGuard, Users,
};
pub use server_clock::ServerClock;
pub use time::Moment;
