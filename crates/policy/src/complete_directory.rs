//! Complete directories: all names are known, so any other name is missing.
//!
//! Owns what makes a listing complete, what ends that, and which names it does not cover. A name
//! that a complete directory does not contain is a negative entry like one that was looked up:
//! [`crate::names::decide_lookup`] decides by the label given here, with the same lifetime, racy
//! guard, invalidation when the directory's stamp changes, and `lookupcache=pos`. A name that has
//! vanished from the directory is looked up all the same ([`answers_for`]).
//!
//! Invariant: a pass yields a label only if all replies from the first name to the last showed the
//! same state of the directory, and no change of this client was in progress meanwhile. The label
//! has the date of the first request, because the pass may have missed names created after it.
//!
//! Must not know cookies, replies or how names are stored.

use crate::{
    attributes::{AttributeState, MutationTicket},
    names::{self, DentryState, DentryUpdate, LookupFinding, NameLabel},
    time::MonotonicTime,
};

/// A pass through a directory's names, from the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListingScan {
    ticket: MutationTicket,
    progress: ListingScanProgress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ListingScanProgress {
    /// No reply has arrived.
    Begun,
    /// All replies showed one state; the label is that of the first. More names follow.
    Partial(NameLabel),
    /// As [`Self::Partial`], and these were all names.
    Complete(NameLabel),
    /// The replies do not prove completeness.
    Inconsistent,
}

/// The label under which the names in a reply are valid. To be called when the reply arrives, after
/// its directory's attributes were absorbed into `directory`. `ticket` was taken before the request
/// was sent, `adopted` is as for [`names::learn`], `sent_at` is when the request was sent. `None`:
/// the names may be returned to the caller of this request only.
#[must_use]
pub fn reply_label(
    ticket: MutationTicket,
    directory: &AttributeState,
    adopted: bool,
    sent_at: MonotonicTime,
) -> Option<NameLabel> {
    match names::learn(LookupFinding::Object, ticket, directory, adopted, sent_at) {
        DentryUpdate::Positive(label) => Some(label),
        DentryUpdate::Negative(_) | DentryUpdate::Forget | DentryUpdate::Unchanged => None,
    }
}

impl ListingScan {
    /// `ticket` is taken before the first request is sent.
    #[must_use]
    pub const fn begin(ticket: MutationTicket) -> Self {
        Self { ticket, progress: ListingScanProgress::Begun }
    }

    /// Adds the next reply, whose names have `label` ([`reply_label`]). `at_end`: it contains the
    /// last name. Returns false if the replies are not of one state. Then each single name is still
    /// valid under its own label, but nothing more is proven.
    pub fn add(&mut self, label: Option<NameLabel>, at_end: bool) -> bool {
        let first = match (self.progress, label) {
            (ListingScanProgress::Begun, Some(label)) => Some(label),
            (ListingScanProgress::Partial(first), Some(label)) if first.epoch == label.epoch => Some(first),
            // No reply follows the end.
            (
                ListingScanProgress::Begun
                | ListingScanProgress::Partial(_)
                | ListingScanProgress::Complete(_)
                | ListingScanProgress::Inconsistent,
                _,
            ) => None,
        };
        self.progress = match first {
            Some(first) if at_end => ListingScanProgress::Complete(first),
            Some(first) => ListingScanProgress::Partial(first),
            None => ListingScanProgress::Inconsistent,
        };
        first.is_some()
    }

    /// To be called before its names are cached; `directory` is the known state by then. Returns
    /// false if they must not be cached: a change of this client overlapped the pass (which may
    /// have missed its name), or the directory is in another state by now.
    pub fn keep(&mut self, directory: &AttributeState) -> bool {
        let label = self.label();
        let is_so = label.is_some_and(|label| directory.contents() == Some(label.epoch));
        let may_be_kept = is_so && directory.is_undisturbed(self.ticket);
        if !may_be_kept {
            self.mark_inconsistent();
        }
        may_be_kept
    }

    /// The pass proves nothing: a change of this client came between, or names of it were evicted.
    pub const fn mark_inconsistent(&mut self) {
        self.progress = ListingScanProgress::Inconsistent;
    }

    /// The label under which the names read so far are valid. `None` if they are not of one state.
    #[must_use]
    pub const fn label(&self) -> Option<NameLabel> {
        match self.progress {
            ListingScanProgress::Partial(label) | ListingScanProgress::Complete(label) => Some(label),
            ListingScanProgress::Begun | ListingScanProgress::Inconsistent => None,
        }
    }

    /// The label under which names that were not read are missing. `None` if not all names were
    /// read, or they are not of one state.
    #[must_use]
    pub const fn complete(&self) -> Option<NameLabel> {
        match self.progress {
            ListingScanProgress::Complete(label) => Some(label),
            ListingScanProgress::Begun
            | ListingScanProgress::Partial(_)
            | ListingScanProgress::Inconsistent => None,
        }
    }
}

/// Whether a complete directory answers for a name that it does not contain. `former` is the
/// outdated entry of the name.
///
/// The server decides about a name that existed: another client may be replacing it by removing and
/// creating it, and a listing of the moment in between would hide it until the directory's
/// attributes expire.
#[must_use]
pub const fn answers_for(former: DentryState) -> bool {
    !matches!(former, DentryState::Positive)
}

/// Whether a directory that is complete under `label` is still complete after a change of this
/// client with the result `learned` ([`names::learn_own`]) was entered. No other client changed it
/// if the result has the same epoch.
#[must_use]
pub fn stays_complete(label: NameLabel, learned: DentryUpdate) -> bool {
    match learned {
        DentryUpdate::Positive(own) | DentryUpdate::Negative(own) => own.epoch == label.epoch,
        DentryUpdate::Forget | DentryUpdate::Unchanged => false,
    }
}

/// As [`stays_complete`], for a change of this client that failed. `stands` is as in
/// [`crate::Absorbed`], `exists` whether the server returned EEXIST, `is_listed` whether the cached
/// listing contains the name. EEXIST for a name that is not in the listing proves that the listing
/// is not complete.
#[must_use]
pub const fn stays_complete_after_refusal(exists: bool, is_listed: bool, stands: bool) -> bool {
    stands && (is_listed || !exists)
}

/// Names that servers allow to be looked up and do not list: the snapshots of NetApp, ZFS, Ceph,
/// GPFS, Isilon and NAS appliances.
const UNLISTED: [&[u8]; 8] =
    [b".snapshot", b".snapshots", b"~snapshot", b".zfs", b".snap", b".ckpt", b".checkpoint", b".glusterfs"];

/// Whether a directory that does not list `name` may have it nevertheless: a name that servers
/// hide, or one with several encodings (beyond ASCII a server may treat composed and decomposed
/// characters as equal). Such a name takes a LOOKUP.
#[must_use]
pub fn may_be_hidden(name: &[u8]) -> bool {
    let is_hidden = || UNLISTED.iter().any(|hidden| name.eq_ignore_ascii_case(hidden));
    matches!(name, b"." | b"..") || !name.is_ascii() || is_hidden()
}
