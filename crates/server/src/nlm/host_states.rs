//! The state numbers of a host's NSM: which locks a notice of its restart frees.
//!
//! A notice (SM_NOTIFY) may arrive after the first LOCKs of the restarted host, and frees what was
//! locked before the restart, not what was locked since. A LOCK frees nothing: any user of the host
//! can send one with any number, and several lock managers at one address (a kernel and the mounts
//! of a program, or hosts behind NAT) have different numbers without any restart.
//!
//! So the number of most LOCKs is only compared with that of the first one. The owners of LOCKs
//! with other numbers are kept; a notice with such a number frees the locks of all other owners.

use std::collections::HashSet;

use parking_lot::Mutex;

/// Maximum number of numbers whose owners are kept; the oldest is dropped for another one.
const STATES_MAX: usize = 4;
/// Maximum number of owners that are kept for a number.
const OWNERS_MAX: usize = 4096;

/// The state numbers of a host.
#[derive(Debug, Default)]
pub(super) struct HostStates(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// That of the last notice; 0: none has come.
    noticed: i32,
    /// That of locks whose owners are not kept; 0: unknown.
    first: i32,
    /// Others in LOCKs since, in the order in which they came.
    others: Vec<LaterState>,
}

/// A number in LOCKs that differs from that of the locks before.
#[derive(Debug)]
struct LaterState {
    state: i32,
    owners: HashSet<LaterOwner>,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct LaterOwner {
    process: u32,
    name: Box<[u8]>,
}

impl HostStates {
    /// Notes a LOCK, before it is granted.
    pub(super) fn locks(&self, state: i32, process: u32, name: &[u8]) {
        let mut known = self.0.lock();
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
            known.others.push(LaterState { state, owners: HashSet::new() });
            known.others.len() - 1
        });
        let owners = &mut known.others[place].owners;
        // One more than the maximum: then nothing is freed.
        if owners.len() <= OWNERS_MAX {
            owners.insert(LaterOwner { process, name: name.into() });
        }
    }

    /// A notice of a restart has come. Returns whether locks have to be freed: those of the owners
    /// for whom [`Self::is_from_before`] holds, and then [`Self::end_restart`] is called. A notice
    /// is repeated until it is confirmed; only the first one counts.
    pub(super) fn begin_restart(&self, state: i32) -> bool {
        let mut known = self.0.lock();
        let is_new = known.noticed != state;
        known.noticed = state;
        is_new && known.first != state
    }

    /// Whether an owner has not locked anything since the restart with this number.
    pub(super) fn is_from_before(&self, state: i32, process: u32, name: &[u8]) -> bool {
        let known = self.0.lock();
        let Some(other) = known.others.iter().find(|other| other.state == state) else { return true };
        other.owners.len() <= OWNERS_MAX && !other.owners.contains(&LaterOwner { process, name: name.into() })
    }

    /// The locks from before the restart are free.
    pub(super) fn end_restart(&self, state: i32) {
        let mut known = self.0.lock();
        known.first = state;
        known.others.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_frees_what_was_locked_with_other_numbers_once() {
        let states = HostStates::default();
        states.locks(3, 1, b"old");
        states.locks(0, 2, b"unknown");
        assert!(!states.begin_restart(3), "it has locked since");
        states.locks(5, 3, b"new");
        states.locks(9, 4, b"other manager");
        assert!(states.begin_restart(5));
        assert!(!states.begin_restart(5), "repeated");
        states.locks(5, 5, b"while the others are freed");
        let is_freed = |process, name: &[u8]| states.is_from_before(5, process, name);
        assert!(is_freed(1, b"old") && is_freed(2, b"unknown") && is_freed(4, b"other manager"));
        assert!(!is_freed(3, b"new") && !is_freed(5, b"while the others are freed"));
        states.end_restart(5);
        assert!(!states.begin_restart(5));
        assert!(states.begin_restart(7));
    }

    #[test]
    fn a_first_notice_frees_locks_without_a_number() {
        let states = HostStates::default();
        states.locks(0, 1, b"unknown");
        assert!(states.begin_restart(1) && states.is_from_before(1, 1, b"unknown"));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let states = HostStates::default();
        let numbers = 1..=i32::try_from(STATES_MAX).unwrap_or(0) + 3;
        numbers.for_each(|state| states.locks(state, 1, b""));
        assert_eq!(states.0.lock().others.len(), STATES_MAX);
        let processes = 0..=u32::try_from(OWNERS_MAX).unwrap_or(0) + 3;
        processes.for_each(|process| states.locks(100, process, b""));
        assert_eq!(states.0.lock().others[STATES_MAX - 1].owners.len(), OWNERS_MAX + 1);
        assert!(states.begin_restart(100));
        assert!(!states.is_from_before(100, u32::MAX, b""), "too many to tell");
    }
}
