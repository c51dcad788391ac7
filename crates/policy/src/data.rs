//! The validity of cached file data.
//!
//! Owns the decisions of the read half of close-to-open. Pages are labelled with the contents epoch
//! in which they were fetched or written. An epoch ends when attributes show that another client
//! changed size, mtime or ctime (see [`crate::attributes`]).
//!
//! Must not know bytes, ranges or where pages are stored.

use crate::{
    attributes::AttributeState,
    attributes::{Epoch, LockingState},
    names::ServerClock,
    options::{CacheOptions, RacyGuard},
    time::MonotonicTime,
};

/// The label of the cached pages of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PagesLabel {
    /// The file's contents epoch when the first of them was cached.
    pub epoch: Epoch,
    /// When the READ of the first of them was sent.
    pub sent_at: MonotonicTime,
}

/// The decision on cached pages at open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum PagesDecision {
    /// The data are valid: the kernel may keep its own pages as well.
    Keep,
    /// The data may be invalid: drop them, invalidate the kernel's pages, then complete the open.
    /// Pages with unsent data of this client stay.
    Drop,
}

/// Decides at open, after the attributes were found valid. Under a delegation no change can be
/// hidden in the server's last clock tick. After a lock was granted, the file must be revalidated
/// before cached data are used (RFC 8881 §10.3.2).
pub fn decide_pages(
    label: Option<PagesLabel>,
    file: &AttributeState,
    locking: LockingState,
    clock: &ServerClock,
    options: &CacheOptions,
) -> PagesDecision {
    let Some(label) = label else {
        return PagesDecision::Keep;
    };
    let delegated = locking.delegation.is_some_and(|delegation| label.sent_at >= delegation.since);
    let asked_under_lock = delegated || file.sent_at() >= locking.locked_at;
    let same = file.contents() == Some(label.epoch) && asked_under_lock;
    let racy = !delegated
        && clock.is_racy(file.changed_at(label.sent_at, options), label.sent_at, options.racy_guard);
    if same && !racy { PagesDecision::Keep } else { PagesDecision::Drop }
}

/// Decides at open for pages that were all written here and not read, while the contents epoch
/// lasts.
pub const fn decide_written_pages(options: &CacheOptions) -> PagesDecision {
    match options.racy_guard {
        RacyGuard::Auto | RacyGuard::Off => PagesDecision::Keep,
        // Another client's change may have followed this client's within one clock tick of the
        // server.
        RacyGuard::On => PagesDecision::Drop,
    }
}
