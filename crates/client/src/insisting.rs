//! A kernel looks a name up before it makes it, and fails by itself (EEXIST) if the name is there.
//!
//! So its look-up of a name that is believed to be there may be all that is ever seen of mkdir(2), open(2) with O_EXCL, symlink(2),
//! link(2) or mknod(2), and nothing in it says so. What gives it away:
//! - The kernel asks for a name that it was promised, which it does only before it makes or replaces it, and after ESTALE. The
//!   server is asked then.
//! - Nothing but that one name is looked up in the directory, again and again, and nothing is done with what it leads to: somebody may be
//!   trying to make it. The server is asked after a second, and then whenever twice that time has passed.
//!
//! Owns how the two are known. Whoever uses the library without a kernel makes a name by asking for just that.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use curt_policy::{Moment, NameLabel, names::Entry as Known};

use crate::{
    api::{Found, Observer},
    client::{Asked, Client},
    environment::Clock,
    identity::InodeId,
    inode::Inode,
    names::{Kept, Promise},
};

/// For how long a name has to be tried before the server is asked for it.
const PATIENCE: Duration = Duration::from_secs(1);

/// What the kernel that asks was promised.
#[derive(Debug)]
pub(crate) struct Promises {
    clock: Arc<dyn Clock>,
    start: Instant,
    /// A kernel asks.
    to_kernel: AtomicBool,
    /// It keeps what it is promised.
    are_kept: AtomicBool,
    /// It is promised nothing at present, whatever is answered here.
    are_withheld: AtomicBool,
    /// A promise was given.
    were_made: AtomicBool,
    /// Those of this moment and before were taken back. All five order nothing: what they are late for costs a request, or is as if the
    /// look-up had come before.
    taken_back: AtomicU64,
}

impl Promises {
    /// `start` is where the scale of moments begins.
    pub(crate) fn new(clock: Arc<dyn Clock>, start: Instant) -> Arc<Self> {
        Arc::new(Self {
            clock,
            start,
            to_kernel: AtomicBool::new(false),
            are_kept: AtomicBool::new(false),
            are_withheld: AtomicBool::new(false),
            were_made: AtomicBool::new(false),
            taken_back: AtomicU64::new(0),
        })
    }

    fn take_back(&self) {
        let now = Moment::from_start(self.clock.now().saturating_duration_since(self.start));
        self.taken_back.fetch_max(now.nanoseconds(), Relaxed);
    }

    fn taken_back(&self) -> Moment {
        Moment::from_nanoseconds(self.taken_back.load(Relaxed))
    }
}

/// An observer that takes names back when it is told of changed ones, as it has to.
#[derive(Debug)]
pub(crate) struct TakesBack {
    pub(crate) promises: Arc<Promises>,
    pub(crate) observer: Arc<dyn Observer>,
}

impl Observer for TakesBack {
    fn contents_changed(&self, id: InodeId, size_before: Option<u64>) {
        self.observer.contents_changed(id, size_before);
    }

    fn names_changed(&self, id: InodeId) {
        // Before and after: a look-up between was promised nothing that lasts.
        self.promises.take_back();
        self.observer.names_changed(id);
        self.promises.take_back();
    }

    fn attributes_changed(&self, id: InodeId) {
        self.observer.attributes_changed(id);
    }
}

/// Which object of a directory is asked for again and again, and no other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Insistence {
    object: InodeId,
    since: Moment,
    /// When the server was last asked for it, or this began.
    asked: Moment,
}

impl Insistence {
    fn of(object: InodeId, now: Moment) -> Self {
        Self {
            object,
            since: now,
            asked: now,
        }
    }

    /// Whether the server is to be asked for `object`, which is looked up at `now`.
    fn is_due(&mut self, object: InodeId, now: Moment) -> bool {
        if self.object != object {
            *self = Self::of(object, now);
            return false;
        }
        let is_due = now.since(self.asked) >= self.asked.since(self.since).max(PATIENCE);
        if is_due {
            self.asked = now;
        }
        is_due
    }
}

impl Client {
    /// Whoever asks is a kernel: it looks a name up before it makes it. `keeps_names`: it does not ask for a name until the time has
    /// passed for which it was promised, unless it makes or replaces the name or has it taken back.
    pub fn serves_kernel(&self, keeps_names: bool) {
        let promises = &self.core.promises;
        promises.to_kernel.store(true, Relaxed);
        promises.are_kept.store(keeps_names, Relaxed);
    }

    /// Whether the kernel is promised nothing from now on, although this client answers as if it were.
    pub fn withhold_promises(&self, are_withheld: bool) {
        self.core.promises.are_withheld.store(are_withheld, Relaxed);
    }

    /// The kernel was told to ask for every name again, whatever it was promised. ([`Observer::names_changed`] has to tell it
    /// so, too.)
    pub fn names_taken_back(&self) {
        self.core.promises.take_back();
    }

    /// Whether whoever asks is a kernel.
    pub(crate) fn serves_a_kernel(&self) -> bool {
        self.core.promises.to_kernel.load(Relaxed)
    }

    /// Whether a kernel may have kept any name.
    pub(crate) fn has_promised(&self) -> bool {
        self.core.promises.were_made.load(Relaxed)
    }

    /// What is kept of `name`, if the kernel has it and asks all the same.
    pub(crate) fn asked_although_promised(
        &self,
        asked: &Asked,
        directory: &Inode,
        name: &[u8],
    ) -> Option<Kept> {
        let promises = &self.core.promises;
        if !promises.were_made.load(Relaxed) {
            return None;
        }
        let (kept, promise) = self.names.promised(directory.id(), name)?;
        if !promise.is_held(asked.began, promises.taken_back()) {
            return None;
        }
        // What the kernel let go it does not keep by any name.
        let is_known = |child: &Arc<Inode>| !child.is_stale() && self.held(child.id()).is_ok();
        kept.child.as_ref().is_some_and(is_known).then_some(kept)
    }

    /// Takes note of what is answered to a request of the kernel that began at `began`.
    pub(crate) fn note_promise(&self, directory: &Inode, name: &[u8], found: &Found, began: Moment) {
        let promises = &self.core.promises;
        // The kernel has nothing of an answer that was on its way when it was to forget all.
        let is_given = promises.are_kept.load(Relaxed) && !promises.are_withheld.load(Relaxed);
        if found.entry_valid.is_zero() || !is_given || promises.taken_back() >= began {
            return;
        }
        promises.were_made.store(true, Relaxed);
        let promise = Promise::new(self.core.now(), found.entry_valid);
        self.names.promise(directory.id(), name, found.id, promise);
    }

    /// Whether `inode`, which is about to be answered from memory, is to be asked for since it is all that is asked for in
    /// `directory`, and nothing is done with it.
    pub(crate) fn is_insisted_on(
        &self,
        asked: &Asked,
        directory: &Inode,
        inode: &Inode,
        label: NameLabel,
    ) -> bool {
        if !self.core.promises.to_kernel.load(Relaxed) || label.sent_at >= asked.began {
            return false;
        }
        Self::is_tried(asked, directory, inode) && !self.can_promise(directory, label)
    }

    fn is_tried(asked: &Asked, directory: &Inode, inode: &Inode) -> bool {
        let is_unused = inode.is_only_looked_up();
        let mut facts = directory.facts();
        let insistence = &mut facts.kept.directory().insistence;
        match insistence {
            Some(insistence) if is_unused => insistence.is_due(inode.id(), asked.began),
            Some(_) | None => {
                *insistence = Some(Insistence::of(inode.id(), asked.began));
                false
            }
        }
    }

    /// Whether the kernel will show by itself what it asks for.
    fn can_promise(&self, directory: &Inode, label: NameLabel) -> bool {
        let lifetime = self.name_lifetime(directory, Known::Positive, Some(label));
        self.core.promises.are_kept.load(Relaxed) && !lifetime.is_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Moment {
        Moment::from_start(Duration::from_millis(milliseconds))
    }

    #[test]
    fn who_insists_waits_no_longer_than_twice_and_is_given_an_answer_ever_more_rarely() {
        let mut insistence = Insistence::of(InodeId(7), at(0));
        let due: Vec<u64> = (0..=640)
            .map(|tenth| tenth * 100)
            .filter(|time| insistence.is_due(InodeId(7), at(*time)))
            .collect();
        assert_eq!(due, [1000, 2000, 4000, 8000, 16000, 32000, 64000]);
    }

    #[test]
    fn another_name_begins_anew() {
        let mut insistence = Insistence::of(InodeId(7), at(0));
        assert!(!insistence.is_due(InodeId(8), at(5000)));
        assert!(!insistence.is_due(InodeId(7), at(5500)));
        assert!(!insistence.is_due(InodeId(7), at(6499)));
        assert!(insistence.is_due(InodeId(7), at(6500)));
    }
}
