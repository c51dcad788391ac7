//! Objects that a kernel finds by a name without asking: in which directory, and until when.
//!
//! Owns storage only: [`curt_policy::kernel_cache`] says how long a lifetime is, and
//! [`crate::ops::kernel_names`] what is checked because of it. Invariant: an object has lifetimes
//! in one directory at a time, so that it is known whose permission a caller needs who came through
//! the kernel's cache. Only lifetimes that last, and those that ended a moment ago, take memory.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use curt_policy::{Moment, kernel_cache::expiry};
use parking_lot::Mutex;

use crate::{identity::InodeId, inode::Inode};

/// Room that an empty table keeps for what comes, in entries.
const CAPACITY_KEPT: usize = 16_384;

/// All of them of one mount.
#[derive(Debug, Default)]
pub(crate) struct KernelDentries(Mutex<Generations>);

/// Entries go to the newer table when they are granted; the older one is dropped as a whole when
/// all of its entries have expired.
#[derive(Debug, Default)]
struct Generations {
    newer: Generation,
    older: Generation,
}

#[derive(Debug, Default)]
struct Generation {
    by_object: HashMap<InodeId, KernelDentry>,
    /// When the last of its lifetimes ends.
    end: Option<Moment>,
}

#[derive(Clone, Debug)]
struct KernelDentry {
    end: Moment,
    directory: Weak<Inode>,
}

impl KernelDentry {
    fn is_in(&self, directory: &Arc<Inode>) -> bool {
        std::ptr::eq(self.directory.as_ptr(), Arc::as_ptr(directory))
    }

    fn may_be_kept(&self, now: Moment) -> bool {
        expiry(Some(self.end)) > Some(now)
    }
}

impl Generations {
    fn find(&self, object: InodeId) -> Option<&KernelDentry> {
        self.newer.by_object.get(&object).or_else(|| self.older.by_object.get(&object))
    }

    fn keep(&mut self, object: InodeId, dentry: KernelDentry, now: Moment) {
        if expiry(self.older.end) <= Some(now) {
            std::mem::swap(&mut self.newer, &mut self.older);
            self.newer.end = None;
            self.newer.by_object.clear();
            self.newer.by_object.shrink_to(CAPACITY_KEPT);
        }
        self.newer.end = self.newer.end.max(Some(dentry.end));
        self.newer.by_object.insert(object, dentry);
    }
}

impl KernelDentries {
    /// A name in `directory` that leads to `object` may be kept until `end`. Returns whether it may
    /// be: not while one in another directory is.
    pub(crate) fn grant(&self, object: InodeId, directory: &Arc<Inode>, now: Moment, end: Moment) -> bool {
        let mut kept = self.0.lock();
        let mut end = end;
        if let Some(former) = kept.find(object).filter(|former| former.may_be_kept(now)) {
            if !former.is_in(directory) {
                return false;
            }
            end = end.max(former.end);
        }
        kept.keep(object, KernelDentry { end, directory: Arc::downgrade(directory) }, now);
        true
    }

    /// The directory in which a kernel may find `object` without asking.
    pub(crate) fn directory_of(&self, object: InodeId, now: Moment) -> Option<Arc<Inode>> {
        let kept = self.0.lock();
        kept.find(object).filter(|dentry| dentry.may_be_kept(now))?.directory.upgrade()
    }

    /// Whether the lifetime of its name in `directory` lasted at `moment`: whoever asked for it
    /// then did so in spite of it.
    pub(crate) fn lasted(&self, object: InodeId, directory: &Arc<Inode>, moment: Moment) -> bool {
        let kept = self.0.lock();
        kept.find(object).is_some_and(|dentry| dentry.is_in(directory) && dentry.end > moment)
    }

    /// When the lifetime of the name that leads to `object` ends, or has ended.
    pub(crate) fn end_of(&self, object: InodeId) -> Option<Moment> {
        self.0.lock().find(object).map(|dentry| dentry.end)
    }

    /// The kernel has moved the name that leads to `object` to `directory`.
    pub(crate) fn rename(&self, object: InodeId, directory: &Arc<Inode>, now: Moment) {
        let mut kept = self.0.lock();
        if let Some(dentry) = kept.find(object).cloned() {
            kept.keep(object, KernelDentry { directory: Arc::downgrade(directory), ..dentry }, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(milliseconds: u64) -> Moment {
        Moment::from_start(Duration::from_millis(milliseconds))
    }

    #[test]
    fn what_has_expired_goes_and_what_lasts_stays() {
        let mut kept = Generations::default();
        let dentry = |end| KernelDentry { end: at(end), directory: Weak::new() };
        for object in 0..100 {
            // Each lasts a second.
            let now = 1000 + object * 100;
            kept.keep(InodeId(object), dentry(now + 1000), at(now));
            let lasting = object.saturating_sub(9)..=object;
            assert!(lasting.clone().all(|object| kept.find(InodeId(object)).is_some()));
            assert!(kept.newer.by_object.len() + kept.older.by_object.len() <= 24, "{object}");
        }
        kept.keep(InodeId(99), dentry(20_000), at(11_000));
        assert_eq!(kept.find(InodeId(99)).map(|dentry| dentry.end), Some(at(20_000)));
    }
}
