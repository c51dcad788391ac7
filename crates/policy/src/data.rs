//! When are a file's cached data valid?
//!
//! Owns the decisions of the read half of close-to-open. Pages are labelled with the contents epoch
//! in which they were fetched or written; an epoch ends when attributes show that somebody else
//! changed size, mtime or ctime (see [`crate::attributes`]).
//!
//! Must not know bytes, ranges or where pages are stored.

use crate::{
    attributes::{Absorbed, AttributeState, MutationTicket},
    facts::{Epoch, LockingState},
    options::{CacheOptions, RacyGuard},
    server_clock::ServerClock,
    time::Moment,
};

/// By what cached pages of a file were learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PagesLabel {
    /// The file's contents epoch when the first of them was kept.
    pub epoch: Epoch,
    /// When the READ was sent that brought the first of them.
    pub sent_at: Moment,
}

/// What becomes of cached pages at open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum PagesDecision {
    /// They are the file's: the kernel may keep its own as well.
    Keep,
    /// They may not be: drop ours, have the kernel drop its own, and only then answer the open.
    /// Pages with data of ours that were not sent stay.
    Drop,
}

/// Decides at open, its attributes having been found good enough. Under a delegation no change can
/// hide in the server's last tick. After a lock was granted, the file has to be asked about before
/// what was read earlier is used (RFC 8881 §10.3.2).
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

/// Decides at open about pages that were all written here, none read, while the contents' epoch
/// lasts.
pub const fn decide_written_pages(options: &CacheOptions) -> PagesDecision {
    match options.racy_guard {
        RacyGuard::Auto | RacyGuard::Off => PagesDecision::Keep,
        // Somebody's change may have followed ours within one step of the server's clock.
        RacyGuard::On => PagesDecision::Drop,
    }
}

/// Under what label the pages of a READ's reply may be kept, its attributes having been absorbed:
/// `ticket` was taken from `file` before it was sent, `adopted` tells whether it brought attributes
/// and they are the newest known. `None`: the reply answers its asker alone. `held` is the label of
/// pages that are kept already.
#[must_use]
pub fn learn_pages(
    held: Option<PagesLabel>,
    ticket: MutationTicket,
    file: &AttributeState,
    adopted: bool,
    sent_at: Moment,
) -> Option<PagesLabel> {
    let epoch = file.contents().filter(|_| adopted && file.is_undisturbed(ticket))?;
    match held {
        Some(held) if held.epoch == epoch => Some(held),
        // Pages of a former epoch are void; the caller drops them.
        Some(_) | None => Some(PagesLabel { epoch, sent_at }),
    }
}

/// Under what label pages that we wrote may be kept as clean once the server has taken them:
/// `absorbed` is what [`AttributeState::absorb_mutation`] said of the WRITE's reply. `None`: drop
/// them with all others of the file.
#[must_use]
pub fn learn_written(
    held: Option<PagesLabel>,
    file: &AttributeState,
    absorbed: Absorbed,
    sent_at: Moment,
) -> Option<PagesLabel> {
    let epoch = file.contents().filter(|_| absorbed.stands)?;
    match held {
        Some(held) => (held.epoch == epoch).then_some(held),
        None => Some(PagesLabel { epoch, sent_at }),
    }
}
