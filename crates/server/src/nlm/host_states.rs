//! The state numbers of a host's NSM: which locks a notice of its restart frees.
//!
//! A notice (SM_NOTIFY) may arrive after the first LOCKs of the restarted host, and frees what was
//! locked before the restart, not what was locked since. A LOCK frees nothing: any user of the host
//! can send one with any number, and several lock managers at one address (a kernel and the mounts
//! of a program, or hosts behind NAT) have different numbers without any restart.
//!
//! So the numbers of LOCKs are compared with the first one. For LOCKs with other numbers the file
//! and the owner are kept. A notice with such a number frees the locks of all other owners of each
//! file. The owner alone would not do: Linux names owners by a number that begins at 1 when the
//! host starts.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::state::locks::LockFile;

/// Maximum number of later state numbers; the oldest is dropped for another one.
const STATES_MAX: usize = 4;
/// Maximum number of files and owners that are kept for one of them: that of the owners that a
/// client can have.
const LOCKED_MAX: usize = 1 << 16;
/// Maximum number that is kept for all hosts: about 16 MiB. For one number no more are kept than
/// are left for others.
const LOCKED_ALL_MAX: usize = 1 << 20;

/// The number of files and owners that are kept for all hosts. Relaxed: the limit may be exceeded
/// by as many requests as run at once.
pub(super) type LockedCount = Arc<AtomicUsize>;

/// The state numbers of a host.
#[derive(Debug, Default)]
pub(super) struct HostStates {
    known: Mutex<KnownStateNumbers>,
    hashing: RandomState,
    all: LockedCount,
}

#[derive(Debug, Default)]
struct KnownStateNumbers {
    /// The number in the last notice; 0: none has come.
    noticed: i32,
    /// The number in the first LOCKs; 0: unknown.
    first: i32,
    /// Others in LOCKs since, in the order in which they came.
    others: Vec<NewerStateNumber>,
    /// The number in the last LOCK; 0: unknown.
    latest: i32,
}

/// A later NSM state number seen in LOCK requests.
#[derive(Debug)]
struct NewerStateNumber {
    state: i32,
    /// Hashes of the file and owner of these LOCKs. On a collision the locks of the second pair are
    /// kept.
    locked: HashSet<u64>,
    /// Whether these are all.
    is_complete: bool,
    all: LockedCount,
}

impl NewerStateNumber {
    fn new(state: i32, all: &LockedCount) -> Self {
        Self { state, locked: HashSet::new(), is_complete: true, all: Arc::clone(all) }
    }

    fn insert(&mut self, hash: u64) {
        if !self.is_complete || self.locked.contains(&hash) {
            return;
        }
        let left = LOCKED_ALL_MAX.saturating_sub(self.all.load(Ordering::Relaxed));
        self.is_complete = self.locked.len() < LOCKED_MAX.min(left);
        if self.is_complete {
            self.all.fetch_add(1, Ordering::Relaxed);
            self.locked.insert(hash);
        } else {
            // Without the others they tell nothing.
            self.forget();
        }
    }

    fn forget(&mut self) {
        self.all.fetch_sub(self.locked.len(), Ordering::Relaxed);
        self.locked = HashSet::new();
    }
}

impl Drop for NewerStateNumber {
    fn drop(&mut self) {
        self.forget();
    }
}

/// The locks of one process of a host on one file.
#[derive(Clone, Copy, Hash)]
pub(super) struct HostLockKey<'a> {
    pub(super) file: &'a LockFile,
    pub(super) process: u32,
    pub(super) name: &'a [u8],
}

impl HostStates {
    /// The numbers of a host that has not locked yet.
    pub(super) fn new(all: LockedCount) -> Self {
        Self { all, ..Self::default() }
    }

    /// Notes a LOCK, before it is granted.
    pub(super) fn locks(&self, state: i32, locked: HostLockKey<'_>) {
        let mut known = self.known.lock();
        if state != 0 {
            known.latest = state;
        }
        if known.first == 0 {
            known.first = state;
        }
        if state == 0 || state == known.first {
            return;
        }
        let place = known.others.iter().position(|other| other.state == state).unwrap_or_else(|| {
            if known.others.len() >= STATES_MAX {
                known.others.remove(0);
            }
            known.others.push(NewerStateNumber::new(state, &self.all));
            known.others.len() - 1
        });
        known.others[place].insert(self.hashing.hash_one(locked));
    }

    /// The number in the last LOCK; 0: unknown.
    pub(super) fn latest(&self) -> i32 {
        self.known.lock().latest
    }

    /// A notice of a restart has come. Returns whether locks have to be freed: those for which
    /// [`Self::precedes_restart`] holds, and then [`Self::end_restart`] is called. A notice is
    /// repeated until it is confirmed; only the first one counts.
    pub(super) fn begin_restart(&self, state: i32) -> bool {
        let mut known = self.known.lock();
        let is_new = known.noticed != state;
        known.noticed = state;
        is_new && known.first != state
    }

    /// Whether nothing of a file has been locked by an owner since the restart with this number.
    pub(super) fn precedes_restart(&self, state: i32, locked: HostLockKey<'_>) -> bool {
        let known = self.known.lock();
        let Some(other) = known.others.iter().find(|other| other.state == state) else { return true };
        other.is_complete && !other.locked.contains(&self.hashing.hash_one(locked))
    }

    /// The locks from before the restart are free. Returns `false` if they are not, because it was
    /// not known which ones these are.
    pub(super) fn end_restart(&self, state: i32) -> bool {
        let mut known = self.known.lock();
        known.first = state;
        let others = std::mem::take(&mut known.others);
        others.iter().all(|other| other.state != state || other.is_complete)
    }
}

#[cfg(test)]
mod tests {
    use curt_vfs::{HandleScheme, NodeHandle};

    use super::*;

    fn file(number: u32) -> LockFile {
        let node = NodeHandle::new(HandleScheme::Memory, 0, &number.to_be_bytes()).expect("a handle");
        LockFile::new(1, node)
    }

    #[test]
    fn a_notice_frees_what_was_locked_with_other_numbers_once() {
        let states = HostStates::default();
        let (one, two) = (&file(1), &file(2));
        let locked = |file, process| HostLockKey { file, process, name: b"owner" };
        states.locks(3, locked(one, 1));
        states.locks(3, locked(two, 1));
        states.locks(0, locked(one, 2));
        assert!(!states.begin_restart(3), "it has locked since");
        // Owners have the same names as before the restart.
        states.locks(5, locked(two, 1));
        states.locks(9, locked(one, 4));
        assert!(states.begin_restart(5));
        assert!(!states.begin_restart(5), "repeated");
        states.locks(5, locked(one, 5));
        let is_freed = |file, process| states.precedes_restart(5, locked(file, process));
        assert!(is_freed(one, 1) && is_freed(one, 2) && is_freed(one, 4), "from before, or of others");
        assert!(!is_freed(two, 1) && !is_freed(one, 5), "also while the others are freed");
        assert!(states.end_restart(5));
        assert!(!states.begin_restart(5));
        assert!(states.begin_restart(7));
    }

    #[test]
    fn a_first_notice_frees_locks_without_a_number() {
        let (states, file) = (HostStates::default(), file(1));
        let locked = HostLockKey { file: &file, process: 1, name: b"" };
        states.locks(0, locked);
        assert!(states.begin_restart(1) && states.precedes_restart(1, locked));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let (states, file) = (HostStates::default(), file(1));
        let locked = |process| HostLockKey { file: &file, process, name: b"" };
        for state in 1..20 {
            states.locks(state, locked(1));
        }
        assert_eq!(states.known.lock().others.len(), STATES_MAX);
        let is_freed = |process| states.precedes_restart(100, locked(process));
        let limit = u32::try_from(LOCKED_MAX).expect("a small number");
        (0..limit).for_each(|process| states.locks(100, locked(process)));
        assert!(states.begin_restart(100));
        assert!(is_freed(u32::MAX) && !is_freed(0) && !is_freed(limit - 1));
        states.locks(100, locked(limit));
        assert!(!is_freed(u32::MAX), "too many to tell");
        assert!(!states.end_restart(100));
        assert_eq!(states.all.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_is_kept_for_all_hosts_is_bounded() {
        let (all, file) = (LockedCount::default(), file(1));
        let locked = |process| HostLockKey { file: &file, process, name: b"" };
        let hosts: Vec<_> = (0..32).map(|_| HostStates::new(Arc::clone(&all))).collect();
        let lock = |states: &HostStates| {
            states.locks(1, locked(0));
            (0..1 << 16).for_each(|process| states.locks(3, locked(process)));
        };
        hosts.iter().for_each(lock);
        assert!(all.load(Ordering::Relaxed) <= LOCKED_ALL_MAX);
        let is_complete = |states: &HostStates| states.precedes_restart(3, locked(u32::MAX));
        let complete = hosts.iter().filter(|states| is_complete(states)).count();
        assert!((15..hosts.len()).contains(&complete), "{complete}");
        // A host that has locked less is told apart, and those that have ended leave room.
        let other = HostStates::new(Arc::clone(&all));
        other.locks(1, locked(0));
        (0..1000).for_each(|process| other.locks(3, locked(process)));
        assert!(is_complete(&other));
        drop(hosts);
        assert_eq!(all.load(Ordering::Relaxed), 1000);
    }
}
