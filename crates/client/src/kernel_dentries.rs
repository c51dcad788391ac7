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

use curt_policy::{
    Moment,
    kernel_cache::{end_of_checks, expiry},
};
use parking_lot::Mutex;

use crate::{identity::InodeId, inode::Inode};

/// Room that an empty table keeps for what comes, in entries.
const CAPACITY_KEPT: usize = 16_384;

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
    end: Moment,
    directory: Weak<Inode>,
    /// Other directories in which LOOKUP found the object meanwhile: callers may have come by any.
    others: Box<[Weak<Inode>]>,
}

/// A directory through which a caller may have come to an object.
#[derive(Debug)]
pub(crate) struct NamePlace {
    pub(crate) directory: Arc<Inode>,
    /// The kernel may still keep the name.
    pub(crate) is_kept: bool,
}

impl KernelDentry {
    fn is_in(&self, directory: &Arc<Inode>) -> bool {
        std::ptr::eq(self.directory.as_ptr(), Arc::as_ptr(directory))
    }

    fn may_be_kept(&self, now: Moment) -> bool {
        expiry(Some(self.end)) > Some(now)
    }

    fn is_checked(&self, now: Moment) -> bool {
        end_of_checks(self.end) > now
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
        if self.older.end.is_none_or(|end| end_of_checks(end) <= now) {
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
        let former = kept.find(object).filter(|former| former.is_checked(now)).cloned();
        let dentry = match former {
            Some(former) if former.is_in(directory) => KernelDentry { end: end.max(former.end), ..former },
            Some(former) if former.may_be_kept(now) => {
                kept.keep(object, former.with(Arc::downgrade(directory)), now);
                return false;
            }
            former => {
                let dentry =
                    KernelDentry { end, directory: Arc::downgrade(directory), others: Box::default() };
                match former {
                    Some(former) => dentry.with(former.directory),
                    None => dentry,
                }
            }
        };
        kept.keep(object, dentry, now);
        true
    }

    /// LOOKUP has found `object` in `directory`.
    pub(crate) fn note_found(&self, object: InodeId, directory: &Arc<Inode>, now: Moment) {
        let mut kept = self.0.lock();
        if let Some(dentry) = kept.find(object).filter(|dentry| dentry.is_checked(now)).cloned() {
            kept.keep(object, dentry.with(Arc::downgrade(directory)), now);
        }
    }

    /// Where the kernel may have found `object` without asking; `None` if its callers need not be
    /// checked.
    pub(crate) fn place_of(&self, object: InodeId, now: Moment) -> Option<NamePlace> {
        let kept = self.0.lock();
        let dentry = kept.find(object).filter(|dentry| dentry.is_checked(now))?;
        Some(NamePlace { directory: dentry.directory.upgrade()?, is_kept: dentry.may_be_kept(now) })
    }

    /// The other directories by which a caller may have come to `object`.
    pub(crate) fn other_places_of(&self, object: InodeId, now: Moment) -> Vec<NamePlace> {
        let kept = self.0.lock();
        let others = kept.find(object).into_iter().flat_map(|dentry| {
            let is_kept = dentry.may_be_kept(now);
            let place = move |directory| NamePlace { directory, is_kept };
            dentry.others.iter().filter_map(Weak::upgrade).map(place)
        });
        others.collect()
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
        let Some(dentry) = kept.find(object).filter(|dentry| dentry.is_checked(now)).cloned() else {
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
    use std::time::Duration;

    use curt_policy::kernel_cache::CHECKED_AFTER_EXPIRY;

    use super::*;

    fn at(milliseconds: u64) -> Moment {
        Moment::from_start(Duration::from_millis(milliseconds))
    }

    #[test]
    fn what_has_expired_goes_and_what_lasts_stays() {
        let mut kept = Generations::default();
        let dentry = |end| KernelDentry { end: at(end), directory: Weak::new(), others: Box::default() };
        let checked = u64::try_from(CHECKED_AFTER_EXPIRY.as_millis()).expect("a number") / 100;
        for object in 0..1000 {
            // Each lasts a second, and is checked for a while afterwards.
            let now = 1000 + object * 100;
            kept.keep(InodeId(object), dentry(now + 1000), at(now));
            let lasting = object.saturating_sub(checked + 9)..=object;
            assert!(lasting.clone().all(|object| kept.find(InodeId(object)).is_some()));
            let count = kept.newer.by_object.len() + kept.older.by_object.len();
            assert!(count as u64 <= 2 * (checked + 12), "{object}");
        }
        kept.keep(InodeId(999), dentry(200_000), at(101_000));
        assert_eq!(kept.find(InodeId(999)).map(|dentry| dentry.end), Some(at(200_000)));
    }
}
