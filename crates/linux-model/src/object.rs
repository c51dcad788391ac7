//! What Linux keeps of one object and one name.

use curt_policy::{Moment, TimeoutRange};
use curt_types::FileKind;

use super::{ObjectId, Seen, Who, attributes::AttributeTimer, ranges::PageRanges};

/// Whose rights are kept of one object at most; Linux keeps as many as there is memory for.
const RIGHTS_MAX: usize = 64;

/// What is kept of one object.
#[derive(Debug)]
pub(super) struct LinuxInode {
    pub(super) kind: FileKind,
    pub(super) size: u64,
    timer: AttributeTimer,
    /// The state that the client knows.
    known: u64,
    /// The state that the server has, as far as anybody told.
    truth: u64,
    /// A change of our own is not in `known` yet; the next state that is told is taken for its
    /// outcome.
    own_change: bool,
    /// Attributes are to be asked for whatever their age.
    pub(super) doubtful: bool,
    /// Counts the states of a directory's contents that are not our own doing.
    pub(super) contents: u64,
    /// Who is known to have rights.
    rights: Vec<Who>,
    /// Pages that are kept.
    pub(super) pages: PageRanges,
    /// Pages that were written and not sent.
    pub(super) dirty: PageRanges,
    /// The link's text, or the whole listing, is known in this state of the contents.
    pub(super) cached: Option<u64>,
    pub(super) opens: u32,
    /// It was removed while it was open.
    pub(super) silly: bool,
    /// The directory in which its name was last found.
    pub(super) parent: Option<ObjectId>,
}

impl LinuxInode {
    pub(super) fn new(seen: &Seen, timer: AttributeTimer) -> Self {
        Self {
            kind: seen.kind,
            size: seen.size,
            timer,
            known: seen.stamp,
            truth: seen.stamp,
            own_change: false,
            doubtful: false,
            contents: 0,
            rights: Vec::new(),
            pages: PageRanges::default(),
            dirty: PageRanges::default(),
            cached: None,
            opens: 0,
            silly: false,
            parent: None,
        }
    }

    /// How the server has it now.
    pub(super) fn see(&mut self, seen: &Seen) {
        self.kind = seen.kind;
        if self.dirty.is_empty() {
            self.size = seen.size;
        }
        self.truth = seen.stamp;
        if self.own_change {
            self.own_change = false;
            self.known = seen.stamp;
        }
    }

    /// The object as the server would tell of it.
    pub(super) const fn seen(&self, id: ObjectId) -> Seen {
        Seen {
            id,
            kind: self.kind,
            size: self.size,
            stamp: self.truth,
        }
    }

    /// A reply brought attributes.
    pub(super) fn refresh(&mut self, now: Moment, interval: TimeoutRange) {
        let changed = self.known != self.truth;
        (self.known, self.doubtful) = (self.truth, false);
        if changed {
            self.timer.restart(now, interval);
            self.contents += 1;
            self.rights.clear();
            self.pages.clear();
            self.cached = None;
        } else {
            self.timer.confirm(now, interval);
        }
    }

    /// A reply to a change of our own brought attributes of before and after it, which show that
    /// nobody else has changed anything.
    pub(super) fn refresh_own(&mut self, now: Moment, interval: TimeoutRange) {
        self.refresh(now, interval);
        self.own_change = true;
        if self.kind == FileKind::Directory {
            self.cached = None;
        }
    }

    /// Whether attributes have to be asked for before they are believed.
    pub(super) fn must_be_asked(&self, now: Moment) -> bool {
        self.doubtful || self.timer.is_expired(now)
    }

    pub(super) fn may(&self, who: Who) -> bool {
        self.rights.contains(&who)
    }

    pub(super) fn allow(&mut self, who: Who) {
        if self.rights.len() >= RIGHTS_MAX {
            self.rights.remove(0);
        }
        self.rights.push(who);
    }

    pub(super) fn forget_rights(&mut self) {
        self.rights.clear();
    }
}

/// What is kept of one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LinuxDentry {
    /// The directory's contents under which it was learned.
    pub(super) contents: u64,
    pub(super) leads: LinuxDentryTarget,
}

/// Where a name leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinuxDentryTarget {
    Inode(ObjectId),
    /// To an object that a listing told of, when it did; nobody has asked for it yet.
    Listed(Moment),
    Negative,
}
