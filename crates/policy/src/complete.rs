//! Complete directories: all names are known, so any other name is missing.
//!
//! Owns what makes a listing complete, what ends that, and which names it says nothing about. A
//! name that a complete directory does not contain is a missing name like one that was looked up:
//! [`crate::names::decide_lookup`] judges it by the label given here, with the same lifetime, racy
//! guard, invalidation when the directory's stamp changes, and `lookupcache=pos`.
//!
//! Invariant: a pass yields a label only if every reply from the first name to the last showed the
//! same state of the directory, and no change of ours was in progress meanwhile. The label has the
//! date of the first request, because the pass may have missed names created after that.
//!
//! Must not know cookies, replies or how names are kept.

use crate::{
    attributes::{AttributeState, MutationTicket},
    names::{self, DentryUpdate, LookupFinding, NameLabel},
    time::Moment,
};

/// A pass through a directory's names, from the first one on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListingScan {
    ticket: MutationTicket,
    progress: ListingScanProgress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ListingScanProgress {
    /// No reply came yet.
    Begun,
    /// All replies showed one state; the label is the first one's. More names follow.
    Partial(NameLabel),
    /// The same, and these were all names.
    Complete(NameLabel),
    /// Not so: it can make nothing complete.
    Inconsistent,
}

/// By what the names in a reply are known, to be judged when it comes, its directory's attributes
/// having been absorbed into `directory`: `ticket` was taken before it was asked for, `adopted` as
/// for [`names::learn`], `sent_at` when it was asked for. `None`: what the reply says of names
/// stands for nobody but its asker.
#[must_use]
pub fn reply_label(
    ticket: MutationTicket,
    directory: &AttributeState,
    adopted: bool,
    sent_at: Moment,
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

    /// Adds the reply that follows, whose names are known by `label` ([`reply_label`]); `at_end`:
    /// it holds the last name. False if the replies are not of one state, so that what they say of
    /// single names stands, each by its own label, and nothing else.
    pub fn add(&mut self, label: Option<NameLabel>, at_end: bool) -> bool {
        let first = match (self.progress, label) {
            (ListingScanProgress::Begun, Some(label)) => Some(label),
            (ListingScanProgress::Partial(first), Some(label)) if first.epoch == label.epoch => Some(first),
            // Nothing follows the end.
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

    /// To be called before its names are kept for others, `directory` being what is known by then;
    /// false if they must not be, for a change of ours met the pass (which may have passed its name
    /// by) or the directory is in another state by now.
    pub fn keep(&mut self, directory: &AttributeState) -> bool {
        let label = self.label();
        let is_so = label.is_some_and(|label| directory.contents() == Some(label.epoch));
        let may_be_kept = is_so && directory.is_undisturbed(self.ticket);
        if !may_be_kept {
            self.mark_inconsistent();
        }
        may_be_kept
    }

    /// It can make nothing complete: a change of ours came between, or names of it were let go.
    pub const fn mark_inconsistent(&mut self) {
        self.progress = ListingScanProgress::Inconsistent;
    }

    /// By what the names read so far may be believed; `None` if they are not of one state.
    #[must_use]
    pub const fn label(&self) -> Option<NameLabel> {
        match self.progress {
            ListingScanProgress::Partial(label) | ListingScanProgress::Complete(label) => Some(label),
            ListingScanProgress::Begun | ListingScanProgress::Inconsistent => None,
        }
    }

    /// By what names are missing that are not among those read; `None` if these are not all, or not
    /// of one state.
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

/// Whether a directory that is complete under `label` is still so when a change of ours has come to
/// `learned` ([`names::learn_own`]) and that is entered. Nobody else changed it if the change is
/// known under the same epoch.
#[must_use]
pub fn stays_complete(label: NameLabel, learned: DentryUpdate) -> bool {
    match learned {
        DentryUpdate::Positive(own) | DentryUpdate::Negative(own) => own.epoch == label.epoch,
        DentryUpdate::Forget | DentryUpdate::Unchanged => false,
    }
}

/// The same of a change of ours that was refused: `stands` as in [`crate::Absorbed`], `exists`
/// whether the server said that the name is there, `is_listed` whether the directory was believed
/// to have it. EEXIST proves a name: a directory that was believed not to have it is none whose
/// names are all known.
#[must_use]
pub const fn stays_complete_after_refusal(exists: bool, is_listed: bool, stands: bool) -> bool {
    stands && (is_listed || !exists)
}

/// Names that servers let you enter and do not list: the snapshots of NetApp, ZFS, Ceph, GPFS,
/// Isilon and NAS boxes.
const UNLISTED: [&[u8]; 8] =
    [b".snapshot", b".snapshots", b"~snapshot", b".zfs", b".snap", b".ckpt", b".checkpoint", b".glusterfs"];

/// Whether a directory that does not list `name` may have it nevertheless: a name that servers
/// hide, or one that can be spelled in several ways (beyond ASCII a server may take composed and
/// decomposed letters for the same). LOOKUP decides.
#[must_use]
pub fn may_be_hidden(name: &[u8]) -> bool {
    let is_hidden = || UNLISTED.iter().any(|hidden| name.eq_ignore_ascii_case(hidden));
    matches!(name, b"." | b"..") || !name.is_ascii() || is_hidden()
}
