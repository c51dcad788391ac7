//! What is known of one object, for how long it is believed, and what a reply does to it.
//!
//! Owns the attribute timers (`acregmin` to `acdirmax`, `noac`), the order of replies that overtook
//! each other, and the two epochs: `contents` (pages of a file, names of a directory) and `rights`
//! (answers to ACCESS).
//!
//! Invariants:
//! - Attributes are dated by when their request was **sent**: whatever the server did later they do
//!   not show.
//! - An older reply never replaces a newer one; where two replies cannot be ordered the next use
//!   asks.
//! - An epoch ends whenever the object may have been changed by somebody else. A change of our own
//!   ends none if the server proves that nobody came between (its before-attributes are what we
//!   knew; RFC 1813 §2.6, wcc_data).
//!
//! Must not know what is kept under an epoch, nor who waits.

mod own_mutations;
mod state;

pub use self::{own_mutations::STEPS_MAX, state::AttributeState};

use curt_types::PreOpState;

use crate::{facts::Facts, options::CacheOptions, time::Moment};

/// How good attributes are for the operation at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Freshness {
    /// Their request was sent after the operation began: asking again could tell nothing that the
    /// operation must know.
    Confirmed,
    /// Within their lifetime.
    Fresh,
    /// Past their lifetime, doubted, or never good without asking (`noac`).
    Expired,
    /// There are none.
    Unknown,
}

/// What becomes of a directory's freshness when the server has begun a new life since: names are
/// kept, but each directory is asked about once before any is served. `sent_at` is when the request
/// for its attributes was sent, `server_since` when the new life was noticed.
#[must_use]
pub fn across_restart(freshness: Freshness, sent_at: Option<Moment>, server_since: Moment) -> Freshness {
    match freshness {
        Freshness::Fresh if sent_at.is_none_or(|sent_at| sent_at < server_since) => Freshness::Expired,
        Freshness::Confirmed | Freshness::Fresh | Freshness::Expired | Freshness::Unknown => freshness,
    }
}

/// Attributes in a reply to a request that changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttributeReport {
    /// What it says.
    pub facts: Facts,
    /// When its request was first sent.
    pub sent_at: Moment,
    /// When it arrived.
    pub received_at: Moment,
}

/// The end of a request of ours that may have changed the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mutation {
    /// The object just before, if the server said so.
    pub before: Option<PreOpState>,
    /// The object just after, if the server said so. Both are `None` when no reply came or it left
    /// them out.
    pub after: Option<Facts>,
    /// When the request was first sent.
    pub sent_at: Moment,
    /// When its reply arrived, or it was given up.
    pub received_at: Moment,
}

/// What became of attributes in a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct Absorbed {
    /// They are the newest that are known: keep them whole.
    pub adopted: bool,
    /// The object may have been changed by somebody else since its contents were learned: pages and
    /// names of the former epoch are void, and the kernel has to be told.
    pub contents_changed: bool,
    /// Answers about access of the former epoch are void.
    pub rights_changed: bool,
    /// Of a change of ours: the contents as they are known are those that it left, but for changes
    /// of ours that came later. Then what it did may be remembered under the present epoch. Always
    /// false for other replies.
    pub stands: bool,
}

/// Notes which changes of ours had begun and ended when a request was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MutationTicket {
    own_changes: u64,
}

impl Absorbed {
    const NOTHING: Self =
        Self { adopted: false, contents_changed: false, rights_changed: false, stands: false };
}

/// What stat(2) and its kin must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum GetattrDecision {
    /// Answer from memory.
    Serve,
    /// Send GETATTR.
    Revalidate,
    /// Send what was written first: until then the server's times and size are not those of the
    /// file.
    FlushFirst,
}

/// Decides stat(2): `unsent_data` tells whether writes of ours to this file have not been sent.
pub const fn decide_getattr(
    attributes: Freshness,
    unsent_data: bool,
    options: &CacheOptions,
) -> GetattrDecision {
    match (attributes, unsent_data) {
        (_, true) => GetattrDecision::FlushFirst,
        (Freshness::Confirmed, false) => GetattrDecision::Serve,
        (Freshness::Fresh, false) if options.attribute_cache => GetattrDecision::Serve,
        (Freshness::Fresh | Freshness::Expired | Freshness::Unknown, false) => GetattrDecision::Revalidate,
    }
}
