//! Complete directories: all names are known, so what is not among them is missing.
//!
//! Owns what makes a listing complete, what ends that, and which names it says nothing about. A name that is not in a complete
//! directory is a missing name like one that was looked up: it is judged by [`crate::names::decide_lookup`] under the label
//! given here, so its lifetime, the racy guard, the purge when the directory's stamp moves and `lookupcache=pos` are the rules
//! that hold for those.
//!
//! Invariant: a label comes out of a pass only if every reply from the first name to the last one showed the directory in one
//! state, and nothing of ours was on its way meanwhile. It bears the date of the first request: what was made after that may
//! have been passed by.
//!
//! Must not know cookies, replies or how names are kept.

use crate::{
    attributes::{AttributeState, Ticket},
    names::{self, Found, Learned, NameLabel},
    time::Moment,
};

/// A pass through a directory's names, from the first one on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pass {
    ticket: Ticket,
    label: Progress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Progress {
    /// No reply came yet.
    Begun,
    /// All replies showed one state; the label is the first one's.
    Whole(NameLabel),
    /// Not so: it can make nothing complete.
    Torn,
}

/// Where a pass stands after a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum PassState {
    /// More names follow.
    Open,
    /// The directory changed meanwhile, or may have: what the replies say of single names stands, each by its own label.
    Torn,
    /// These were all names; what is not among them is missing, by this label.
    Complete(NameLabel),
}

impl Pass {
    /// `ticket` is taken before the first request is sent.
    #[must_use]
    pub const fn begin(ticket: Ticket) -> Self {
        Self {
            ticket,
            label: Progress::Begun,
        }
    }

    /// Takes in a reply, its directory's attributes having been absorbed into `directory` before: `adopted` as for
    /// [`names::learn`], `sent_at` when its request was sent, `at_end` whether it holds the last name.
    pub fn absorb(
        &mut self,
        directory: &AttributeState,
        adopted: bool,
        sent_at: Moment,
        at_end: bool,
    ) -> PassState {
        let label = match names::learn(Found::Object, self.ticket, directory, adopted, sent_at) {
            Learned::Positive(label) => Some(label),
            Learned::Negative(_) | Learned::Drop | Learned::Leave => None,
        };
        self.add(label, at_end)
    }

    /// The same of a reply that was judged when it came: `label` is what its names are known by.
    pub fn add(&mut self, label: Option<NameLabel>, at_end: bool) -> PassState {
        self.label = match (self.label, label) {
            (Progress::Begun, Some(label)) => Progress::Whole(label),
            (Progress::Whole(first), Some(label)) if first.epoch == label.epoch => Progress::Whole(first),
            (Progress::Begun | Progress::Whole(_) | Progress::Torn, _) => Progress::Torn,
        };
        match self.label {
            Progress::Whole(label) if at_end => PassState::Complete(label),
            Progress::Begun | Progress::Whole(_) => PassState::Open,
            Progress::Torn => PassState::Torn,
        }
    }

    /// It can make nothing complete: a change of ours came between, or names of it were let go.
    pub const fn tear(&mut self) {
        self.label = Progress::Torn;
    }

    /// The ticket that it began with.
    #[must_use]
    pub const fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// By what the names read so far may be believed; `None` if they are not of one state.
    #[must_use]
    pub const fn label(&self) -> Option<NameLabel> {
        match self.label {
            Progress::Whole(label) => Some(label),
            Progress::Begun | Progress::Torn => None,
        }
    }
}

/// Whether a directory that is complete under `label` is still so when a change of ours has come to `learned`
/// ([`names::learn_own`]) and that is entered. Nobody else changed it if the change is known under the same epoch.
#[must_use]
pub fn survives(label: NameLabel, learned: Learned) -> bool {
    match learned {
        Learned::Positive(own) | Learned::Negative(own) => own.epoch == label.epoch,
        Learned::Drop | Learned::Leave => false,
    }
}

/// The same of a change of ours that was refused: `stands` as in [`crate::Absorbed`], `exists` whether the server said that the
/// name is there. That proves a name which the directory was believed not to have.
#[must_use]
pub const fn survives_refusal(exists: bool, stands: bool) -> bool {
    stands && !exists
}

/// Names that servers let you enter and do not list: the snapshots of NetApp, ZFS, Ceph, GPFS, Isilon and NAS boxes.
const UNLISTED: [&[u8]; 8] = [
    b".snapshot",
    b".snapshots",
    b"~snapshot",
    b".zfs",
    b".snap",
    b".ckpt",
    b".checkpoint",
    b".glusterfs",
];

/// Whether a directory that does not list `name` may have it nevertheless: a name that servers hide, or one that can be spelled
/// in several ways (beyond ASCII a server may take composed and decomposed letters for the same). LOOKUP decides.
#[must_use]
pub fn may_be_hidden(name: &[u8]) -> bool {
    let is_hidden = || UNLISTED.iter().any(|hidden| name.eq_ignore_ascii_case(hidden));
    matches!(name, b"." | b"..") || !name.is_ascii() || is_hidden()
}
