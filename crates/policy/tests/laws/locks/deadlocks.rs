//! Cycles of waits, and requests that pass those who wait for their owner, among many owners.

use super::*;

/// As [`FILE`], another one.
const OTHER: LockFileId = LockFileId(8);
/// Readers of [`FILE`], more than the waiting owners that one search follows.
const READERS: u64 = 300;
/// The one that is found last among them.
const LAST: LocalLockOwner = LocalLockOwner::Posix(READERS);

fn with_readers() -> Mount {
    let mut mount = mount();
    for number in 1..=READERS {
        mount.holds(number, process(number), READ, bytes(0, 9));
    }
    mount
}

impl Mount {
    fn lock_in(&mut self, file: LockFileId, id: u64, owner: LocalLockOwner, lock_type: LockType) {
        let request = Self::request(id, owner, lock_type, bytes(0, 9));
        let actions = self.agent.lock(LocalLockRequest { file, ..request });
        self.act(actions);
    }

    fn holds_in(&mut self, file: LockFileId, id: u64, owner: LocalLockOwner) {
        self.lock_in(file, id, owner, WRITE);
        self.serve();
        assert_eq!(self.answers(), [(id, OK)]);
    }
}

#[test]
fn any_of_many_readers_passes_a_writer_that_waits_for_them() {
    let mut mount = with_readers();
    mount.lock(1_000, process(1_000), WRITE, bytes(0, 9));
    assert_eq!(mount.asked(), []);
    for number in [1, READERS] {
        mount.lock(1_000 + number, process(number), READ, bytes(0, 19));
        assert_eq!(mount.asked(), [(process(number), bytes(0, 19), repeated(READ))]);
        mount.serve();
        assert_eq!(mount.answers(), [(1_000 + number, OK)]);
    }
}

#[test]
fn an_owner_passes_a_writer_that_waits_for_many_if_one_of_them_waits_for_the_owner() {
    let mut mount = with_readers();
    let owner = process(2_000);
    mount.holds_in(OTHER, 1_000, owner);
    mount.lock(1_001, process(1_000), WRITE, bytes(0, 19));
    mount.lock_in(OTHER, 1_002, LAST, WRITE);
    assert_eq!(mount.asked(), []);
    mount.lock(1_003, owner, READ, bytes(10, 19));
    assert_eq!(mount.asked(), [(owner, bytes(10, 19), lock(READ, true))]);
}

// SEMANTICS: lock-11.
#[test]
fn a_deadlock_is_found_whichever_of_many_owners_it_leads_through() {
    let mut mount = with_readers();
    mount.holds_in(OTHER, 1_000, process(1_000));
    mount.lock_in(OTHER, 1_001, LAST, WRITE);
    mount.lock(1_002, process(1_000), WRITE, bytes(0, 9));
    assert_eq!((mount.answers(), mount.asked()), (vec![(1_002, Err(LockError::Deadlock))], vec![]));
    let actions = mount.agent.interrupt(OTHER, LockRequestId(1_001));
    mount.act(actions);
    mount.lock(1_003, process(1_000), WRITE, bytes(0, 9));
    assert_eq!(mount.answers(), [(1_001, Err(LockError::Interrupted))], "without a cycle it waits");
}

// SEMANTICS: lock-11.
#[test]
fn a_search_follows_256_owners_that_wait() {
    for followed in [256, 257] {
        let mut mount = mount();
        let last = followed + 1;
        for number in 1..=last {
            mount.holds_in(LockFileId(number), number, process(number));
        }
        for number in 1..last {
            mount.lock_in(LockFileId(number + 1), 1_000 + number, process(number), WRITE);
        }
        assert_eq!(mount.answers(), []);
        mount.lock_in(LockFileId(1), 2_000, process(last), WRITE);
        let deadlock = (2_000, Err(LockError::Deadlock));
        assert_eq!(mount.answers().contains(&deadlock), followed == 256, "{followed}");
    }
}
