//! The cached state of one object and one name.

use curt_policy::{MonotonicTime, TimeoutRange};
use curt_types::FileKind;

use super::{CredentialId, ObjectId, ReportedObject, attributes::AttributeTimer, ranges::PageRanges};

/// Maximum number of cached access rights of one object; Linux has no limit.
const RIGHTS_MAX: usize = 64;

/// The cached state of one object.
#[derive(Debug)]
pub(super) struct LinuxInode {
    pub(super) kind: FileKind,
    pub(super) size: u64,
    timer: AttributeTimer,
    /// The state that the client has cached.
    cached_state: u64,
    /// The latest known state of the server.
    truth: u64,
    /// A change of our own is not in `cached_state` yet; the next reported state is taken as its
    /// result.
    own_change: bool,
    /// Attributes must be requested, whatever their age.
    pub(super) doubtful: bool,
    /// Counts states of a directory's contents other than those of own changes.
    pub(super) contents: u64,
    /// Credentials with cached access rights.
    rights: Vec<CredentialId>,
    /// Cached pages.
    pub(super) pages: PageRanges,
    /// Dirty pages.
    pub(super) dirty: PageRanges,
    /// The state of the contents for which the link's target, or the whole listing, is cached.
    pub(super) cached: Option<u64>,
    pub(super) opens: u32,
    /// The file was removed while it was open.
    pub(super) silly: bool,
    /// The directory in which its name was last found.
    pub(super) parent: Option<ObjectId>,
}

impl LinuxInode {
    pub(super) fn new(seen: &ReportedObject, timer: AttributeTimer) -> Self {
        Self {
            kind: seen.kind,
            size: seen.size,
            timer,
            cached_state: seen.stamp,
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

    /// The server's current state.
    pub(super) fn see(&mut self, seen: &ReportedObject) {
        self.kind = seen.kind;
        if self.dirty.is_empty() {
            self.size = seen.size;
        }
        self.truth = seen.stamp;
        if self.own_change {
            self.own_change = false;
            self.cached_state = seen.stamp;
        }
    }

    /// The object as the server would report it.
    pub(super) const fn seen(&self, id: ObjectId) -> ReportedObject {
        ReportedObject { id, kind: self.kind, size: self.size, stamp: self.truth }
    }

    /// A reply contained attributes.
    pub(super) fn refresh(&mut self, now: MonotonicTime, interval: TimeoutRange) {
        let changed = self.cached_state != self.truth;
        (self.cached_state, self.doubtful) = (self.truth, false);
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

    /// The reply to an own change contained attributes before and after it, which show no other
    /// changes.
    pub(super) fn refresh_own(&mut self, now: MonotonicTime, interval: TimeoutRange) {
        self.refresh(now, interval);
        self.own_change = true;
        if self.kind == FileKind::Directory {
            self.cached = None;
        }
    }

    /// Whether attributes must be requested before they are used.
    pub(super) fn must_revalidate(&self, now: MonotonicTime) -> bool {
        self.doubtful || self.timer.is_expired(now)
    }

    pub(super) fn may(&self, credential: CredentialId) -> bool {
        self.rights.contains(&credential)
    }

    pub(super) fn allow(&mut self, credential: CredentialId) {
        if self.rights.len() >= RIGHTS_MAX {
            self.rights.remove(0);
        }
        self.rights.push(credential);
    }

    pub(super) fn forget_rights(&mut self) {
        self.rights.clear();
    }
}

/// The cached state of one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LinuxDentry {
    /// The state of the directory's contents when it was cached.
    pub(super) contents: u64,
    pub(super) leads: LinuxDentryTarget,
}

/// The object of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinuxDentryTarget {
    Inode(ObjectId),
    /// An object from a listing, with its time; it was not looked up yet.
    Listed(MonotonicTime),
    Negative,
}
