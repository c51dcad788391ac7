//! Cached attributes of one object: their lifetime, and the effect of a reply on them.
//!
//! Owns the attribute timers (`acregmin` to `acdirmax`, `noac`), the ordering of replies that
//! arrive out of order, and the two epochs: `contents` (pages of a file, names of a directory) and
//! `rights` (results of ACCESS).
//!
//! Invariants:
//! - Attributes are dated by when their request was **sent**: they do not show any change that the
//!   server makes later.
//! - An older reply never replaces a newer one. If two replies cannot be ordered, the next use
//!   revalidates.
//! - An epoch ends whenever another client may have changed the object. A change of this client
//!   ends no epoch if the reply proves that no other change came between: its pre-operation
//!   attributes are those that were known (RFC 1813 §2.6, wcc_data).
//!
//! Must not know what is cached under an epoch, nor which callers wait.

mod own_mutations;
mod state;

pub use self::{own_mutations::STEPS_MAX, state::AttributeState};

use curt_types::PreOpState;

use crate::{facts::Facts, options::CacheOptions, time::Moment};

/// The validity of attributes for the current operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Freshness {
    /// Their request was sent after the operation began: a further request is not needed.
    Confirmed,
    /// Within their lifetime.
    Fresh,
    /// Past their lifetime, distrusted, or never valid without a request (`noac`).
    Expired,
    /// There are none.
    Unknown,
}

/// The freshness of a directory after the server has restarted. Names stay cached, but each
/// directory is revalidated once before any of its names is served. `sent_at` is when the request
/// for its attributes was sent, `server_since` when the restart was noticed.
#[must_use]
pub fn across_restart(freshness: Freshness, sent_at: Option<Moment>, server_since: Moment) -> Freshness {
    match freshness {
        Freshness::Fresh if sent_at.is_none_or(|sent_at| sent_at < server_since) => Freshness::Expired,
        Freshness::Confirmed | Freshness::Fresh | Freshness::Expired | Freshness::Unknown => freshness,
    }
}

/// The attributes in a reply to a request that changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttributeReport {
    /// The attributes.
    pub facts: Facts,
    /// When its request was first sent.
    pub sent_at: Moment,
    /// When it arrived.
    pub received_at: Moment,
}

/// The result of a request of this client that may have changed the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mutation {
    /// The object just before, if the reply contained it.
    pub before: Option<PreOpState>,
    /// The object just after, if the reply contained it. Both are `None` if there was no reply or
    /// it omitted them.
    pub after: Option<Facts>,
    /// When the request was first sent.
    pub sent_at: Moment,
    /// When its reply arrived or it was cancelled.
    pub received_at: Moment,
}

/// The effect of the attributes in a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct Absorbed {
    /// They are the newest known attributes and replace the earlier ones.
    pub adopted: bool,
    /// Another client may have changed the object since its contents were cached. Pages and names
    /// of the former epoch are invalid, and the kernel's caches must be invalidated.
    pub contents_changed: bool,
    /// ACCESS results of the former epoch are invalid.
    pub rights_changed: bool,
    /// For a change of this client: the known contents are those that it left, apart from later
    /// changes of this client. Its effect may then be cached under the current epoch. Always false
    /// for other replies.
    pub stands: bool,
}

/// Records which changes of this client had begun and ended when a request was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MutationTicket {
    own_changes: u64,
}

impl Absorbed {
    const NOTHING: Self =
        Self { adopted: false, contents_changed: false, rights_changed: false, stands: false };
}

/// The decision for stat(2) and related calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum GetattrDecision {
    /// Serve from the cache.
    Serve,
    /// Send GETATTR.
    Revalidate,
    /// Write back first: until then the server's times and size are not those of the file.
    FlushFirst,
}

/// Decides stat(2). `unsent_data`: this client has unsent writes of the file.
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
