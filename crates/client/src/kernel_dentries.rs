//! Objects that a kernel finds by a name without asking: in which directory, and until when.
//!
//! Owns storage only: [`curt_policy::kernel_cache`] says how long a lifetime is, and
//! [`crate::ops::kernel_names`] what is checked because of it. Invariant: an object has lifetimes
//! in one directory at a time, so that it is known whose permission a caller needs who came through
//! the kernel's cache. Only lifetimes that last take memory.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use curt_policy::{Moment, kernel_cache::with_expiry_delay};
use parking_lot::Mutex;

use crate::{api::InodeId, inode::Inode};

/// Room that an empty table keeps for what comes, in entries.
const CAPACITY_KEPT: usize = 16_384;

/// How long after a lifetime was granted a request can arrive that the kernel sent without knowing
/// of it: other threads were looking the name up at the same time.
const RECEIVED_AFTER: Duration = Duration::from_millis(10);

/// Maximum number of further directories that are remembered for an object with several names.
const OTHERS_MAX: usize = 4;

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
    /// When its lifetime was granted; a lifetime that follows another one immediately continues it.
    begin: Moment,
    end: Moment,
    directory: Weak<Inode>,
    /// Other directories in which LOOKUP found the object meanwhile: callers may have come by any.
    others: Box<[Weak<Inode>]>,
}

impl KernelDentry {
    fn is_in(&self, directory: &Arc<Inode>) -> bool {
        std::ptr::eq(self.directory.as_ptr(), Arc::as_ptr(directory))
    }

    fn may_be_kept(&self, now: Moment) -> bool {
        with_expiry_delay(Some(self.end)) > Some(now)
    }

    /// Adds a directory in which the object was found; replaces the oldest if there are too many.
    fn with(mut self, directory: Weak<Inode>) -> Self {
        let mut known = std::iter::once(&self.directory).chain(&self.others);
        if !known.any(|known| known.ptr_eq(&directory)) {
            let mut others = self.others.into_vec();
            if others.len() == OTHERS_MAX {
                others.remove(0);
            }
            others.push(directory);
            self.others = others.into_boxed_slice();
        }
        self
    }
}

impl Generations {
    fn find(&self, object: InodeId) -> Option<&KernelDentry> {
        self.newer.by_object.get(&object).or_else(|| self.older.by_object.get(&object))
    }

    fn keep(&mut self, object: InodeId, dentry: KernelDentry, now: Moment) {
        if self.older.end.is_none_or(|end| with_expiry_delay(Some(end)) <= Some(now)) {
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
        let former = kept.find(object).filter(|former| former.may_be_kept(now)).cloned();
        let dentry = match former {
            Some(former) if former.is_in(directory) => {
                let begin = if former.end > now { former.begin } else { now };
                KernelDentry { begin, end: end.max(former.end), ..former }
            }
            Some(former) => {
                kept.keep(object, former.with(Arc::downgrade(directory)), now);
                return false;
            }
            None => {
                let directory = Arc::downgrade(directory);
                KernelDentry { begin: now, end, directory, others: Box::default() }
            }
        };
        kept.keep(object, dentry, now);
        true
    }

    /// LOOKUP has found `object` in `directory`.
    pub(crate) fn note_found(&self, object: InodeId, directory: &Arc<Inode>, now: Moment) {
        let mut kept = self.0.lock();
        if let Some(dentry) = kept.find(object).filter(|dentry| dentry.may_be_kept(now)).cloned() {
            kept.keep(object, dentry.with(Arc::downgrade(directory)), now);
        }
    }

    /// The directories in which the kernel may have found `object` without asking, the likeliest
    /// last; none if its callers need not be checked.
    pub(crate) fn directories_of(&self, object: InodeId, now: Moment) -> Vec<Arc<Inode>> {
        let kept = self.0.lock();
        let dentry = kept.find(object).filter(|dentry| dentry.may_be_kept(now));
        let directories =
            dentry.into_iter().flat_map(|dentry| dentry.others.iter().chain([&dentry.directory]));
        directories.filter_map(Weak::upgrade).collect()
    }

    /// Whether the lifetime of its name in `directory` lasted at `moment`, and the kernel knew of
    /// it: whoever asked for it then did so in spite of it.
    pub(crate) fn lasted(&self, object: InodeId, directory: &Arc<Inode>, moment: Moment) -> bool {
        let kept = self.0.lock();
        kept.find(object).is_some_and(|dentry| {
            dentry.is_in(directory) && dentry.begin.plus(RECEIVED_AFTER) <= moment && moment < dentry.end
        })
    }

    /// When the lifetime of the name that leads to `object` ends, or has ended.
    pub(crate) fn end_of(&self, object: InodeId) -> Option<Moment> {
        self.0.lock().find(object).map(|dentry| dentry.end)
    }

    /// The kernel has moved a name that leads to `object` from one directory to another. If the
    /// object has several names, others may remain where it was.
    pub(crate) fn rename(
        &self,
        object: InodeId,
        from: &Arc<Inode>,
        to: &Arc<Inode>,
        has_links: bool,
        now: Moment,
    ) {
        let mut kept = self.0.lock();
        let Some(dentry) = kept.find(object).filter(|dentry| dentry.may_be_kept(now)).cloned() else {
            return;
        };
        let moved = if dentry.is_in(from) && !has_links {
            KernelDentry { directory: Arc::downgrade(to), ..dentry }
        } else {
            dentry.with(Arc::downgrade(to))
        };
        kept.keep(object, moved, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Moment {
        Moment::from_start(Duration::from_millis(milliseconds))
    }

    #[test]
    fn what_has_expired_goes_and_what_lasts_stays() {
        let mut kept = Generations::default();
        let dentry =
            |end| KernelDentry { begin: at(0), end: at(end), directory: Weak::new(), others: Box::default() };
        for object in 0..1000 {
            // Each lasts a second.
            let now = 1000 + object * 100;
            kept.keep(InodeId(object), dentry(now + 1000), at(now));
            let lasting = object.saturating_sub(9)..=object;
            assert!(lasting.clone().all(|object| kept.find(InodeId(object)).is_some()));
            let count = kept.newer.by_object.len() + kept.older.by_object.len();
            assert!(count as u64 <= 2 * 12, "{object}");
        }
        kept.keep(InodeId(999), dentry(200_000), at(101_000));
        assert_eq!(kept.find(InodeId(999)).map(|dentry| dentry.end), Some(at(200_000)));
    }
}
