//! Concurrent opens and removals of one file by this mount.
//!
//! An NFSv3 server deletes a file with its last name. So an open is counted before the client sends
//! its access check, and a removal then treats the file as open (silly rename). A removal of a file
//! that is not open here is registered until it ends; an open during the removal waits for its end
//! and then determines whether the file still exists. The lock of the inode's state decides the
//! order of the two. Changes of one name are serialised, because a removal identifies its file only
//! by the name.
//!
//! Invariants: no open begins while a removal of its file is in flight, and no removal begins while
//! the file is open or being opened; an open waits only for removals of its own file, without a
//! limit if the server does not respond; all guards release their counts when dropped; no thread
//! waits for an open, and a thread that waits for a removal or for a name lock holds no removal.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use curt_rpc::client::Interrupt;
use curt_types::FileKind;
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::{
    dentry_cache::NameKey,
    inode::{
        Inode, InodeState, TypeState,
        single_flight::{InFlightEnd, InodeFlight},
    },
};

/// The removal of a name of a file that is not open here. Dropping it ends the removal.
#[must_use]
#[derive(Debug)]
pub(crate) struct RemovalGuard {
    inode: Arc<Inode>,
    is_counted: bool,
}

impl RemovalGuard {
    /// Begins the removal of a name of `inode`, unless it is open here or being opened.
    pub(crate) fn begin(inode: &Arc<Inode>) -> Option<Self> {
        let mut locked = inode.lock();
        let is_counted = may_be_regular(&locked);
        if is_counted {
            let file = locked.by_type.file();
            if file.is_used() {
                return None;
            }
            file.removals.begin();
        }
        drop(locked);
        Some(Self { inode: Arc::clone(inode), is_counted })
    }

    /// A removal, already counted, of a name of an unused file.
    pub(crate) fn begun(inode: &Arc<Inode>) -> Self {
        Self { inode: Arc::clone(inode), is_counted: true }
    }

    /// The object that the name refers to.
    pub(crate) fn of(&self) -> &Arc<Inode> {
        &self.inode
    }
}

impl Drop for RemovalGuard {
    fn drop(&mut self) {
        let ended = match &mut self.inode.lock().by_type {
            TypeState::File(file) if self.is_counted => file.removals.end(),
            TypeState::File(_) | TypeState::Nothing | TypeState::Directory(_) | TypeState::Link(_) => None,
        };
        end(ended);
    }
}

fn end(removals: Option<Arc<InodeFlight>>) {
    if let Some(removals) = removals {
        removals.end(InFlightEnd::Done);
    }
}

/// Whether the object may be a regular file, so that its opens and removals are counted. An object
/// that is known to be of another type is not opened here and has no open state.
fn may_be_regular(locked: &InodeState) -> bool {
    let kind = locked.attributes.newest().map(|known| known.kind);
    match &locked.by_type {
        TypeState::Directory(_) | TypeState::Link(_) => false,
        // A server may omit attributes, so the type may be unknown (RFC 1813, section 2.6,
        // post_op_attr).
        TypeState::Nothing | TypeState::File(_) => kind.is_none_or(|kind| kind == FileKind::Regular),
    }
}

/// Counts an open as soon as no removal of the file is in flight. Returns false if the object is
/// not a file, which is not counted.
pub(crate) fn begin_open(inode: &Inode, interrupt: &Interrupt) -> Result<bool, Errno> {
    loop {
        let removals = {
            let mut locked = inode.lock();
            if !may_be_regular(&locked) {
                // The open is refused later because of the object's type.
                return Ok(false);
            }
            let file = locked.by_type.file();
            let Some(removals) = file.removals.in_progress() else {
                file.opening += 1;
                return Ok(true);
            };
            removals
        };
        wait(&removals, interrupt)?;
    }
}

fn wait(flight: &Arc<InodeFlight>, interrupt: &Interrupt) -> Result<(), Errno> {
    flight.wait(interrupt).map(|_| ()).ok_or(Errno::INTR)
}

/// Names that this mount is changing. Few at a time.
#[derive(Debug, Default)]
pub(crate) struct NameLocks(Mutex<HashMap<NameKey, Arc<InodeFlight>>>);

/// The right to change one name. Dropping it passes the right to the next waiter.
#[must_use]
#[derive(Debug)]
pub(crate) struct NameLockGuard<'a> {
    locks: &'a NameLocks,
    key: NameKey,
}

impl NameLocks {
    /// Waits for the right to change a name. A thread that takes two locks takes them in the order
    /// of their keys.
    ///
    /// # Errors
    /// EINTR.
    pub(crate) fn lock(&self, key: NameKey, interrupt: &Interrupt) -> Result<NameLockGuard<'_>, Errno> {
        loop {
            let other = match self.0.lock().entry(key.clone()) {
                Entry::Vacant(vacant) => {
                    vacant.insert(Arc::default());
                    break;
                }
                Entry::Occupied(other) => Arc::clone(other.get()),
            };
            wait(&other, interrupt)?;
        }
        Ok(NameLockGuard { locks: self, key })
    }

    /// Locks two names, which may be the same.
    ///
    /// # Errors
    /// EINTR.
    pub(crate) fn lock_both(
        &self,
        one: NameKey,
        other: NameKey,
        interrupt: &Interrupt,
    ) -> Result<(NameLockGuard<'_>, Option<NameLockGuard<'_>>), Errno> {
        let (first, second) = if one <= other { (one, other) } else { (other, one) };
        let is_same = first == second;
        let first = self.lock(first, interrupt)?;
        let second = if is_same { None } else { Some(self.lock(second, interrupt)?) };
        Ok((first, second))
    }
}

impl Drop for NameLockGuard<'_> {
    fn drop(&mut self) {
        let ended = self.locks.0.lock().remove(&self.key);
        end(ended);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::InodeId;

    #[test]
    fn an_object_of_unknown_type_counts_as_a_file_for_opens_and_removals() {
        let mut locked = InodeState::default();
        assert!(locked.attributes.newest().is_none(), "its kind is not known");
        assert!(may_be_regular(&locked));
        locked.by_type.file().opening += 1;
        assert!(may_be_regular(&locked));
        locked.by_type.directory();
        assert!(!may_be_regular(&locked));
    }

    #[test]
    fn a_name_lock_is_awaited_until_it_is_released_or_the_waiter_is_interrupted() {
        let (locks, never) = (NameLocks::default(), Interrupt::never());
        let (top, other) = (InodeId(1), InodeId(2));
        let both = locks.lock_both(NameKey::new(other, b"a"), NameKey::new(top, b"b"), &never);
        let impatient = Interrupt::new();
        impatient.raise();
        for (directory, name) in [(other, b"a"), (top, b"b")] {
            let refused = locks.lock(NameKey::new(directory, name), &impatient).map(drop);
            assert_eq!(refused, Err(Errno::INTR));
        }
        let unrelated = locks.lock(NameKey::new(top, b"a"), &impatient).map(drop);
        assert_eq!(unrelated, Ok(()), "nobody else has it");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| locks.lock(NameKey::new(top, b"b"), &never).map(drop));
            drop(both);
            assert_eq!(waiting.join().expect("it does not panic"), Ok(()));
        });
        let same = locks.lock_both(NameKey::new(top, b"a"), NameKey::new(top, b"a"), &never);
        assert!(same.is_ok_and(|(_, second)| second.is_none()));
        assert!(locks.0.lock().is_empty(), "no lock is left");
    }
}
