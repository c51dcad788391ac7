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
        self.lock_bytes(file, id, owner, lock_type, bytes(0, 9));
    }

    fn lock_bytes(
        &mut self,
        file: LockFileId,
        id: u64,
        owner: LocalLockOwner,
        lock_type: LockType,
        range: ByteRange,
    ) {
        let request = Self::request(id, owner, lock_type, range);
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

#[test]
fn an_owner_passes_a_waiter_that_waits_for_one_behind_its_own_other_request() {
    let mut mount = mount();
    let (x, z, t, owner) = (process(1), process(2), process(3), process(4));
    mount.lock_bytes(FILE, 1, x, WRITE, bytes(0, 0));
    mount.lock_bytes(OTHER, 2, z, WRITE, bytes(0, 0));
    mount.serve();
    mount.lock_bytes(FILE, 3, t, WRITE, bytes(0, 19));
    mount.lock_bytes(OTHER, 4, owner, WRITE, bytes(0, 9));
    mount.lock_bytes(FILE, 5, owner, WRITE, bytes(10, 19));
    assert_eq!(mount.asked(), [], "it follows the third, which does not wait for it");
    // It follows the other request of the owner.
    mount.lock_bytes(OTHER, 6, x, WRITE, bytes(5, 5));
    assert_eq!(mount.asked(), [(owner, bytes(10, 19), lock(WRITE, true))]);
}

#[test]
fn a_lock_that_is_granted_past_a_waiter_lets_those_pass_that_its_owner_waits_for() {
    const THIRD: LockFileId = LockFileId(9);
    for waits_through_another in [false, true] {
        let mut mount = mount();
        let (x, u, v, owner, other) = (process(1), process(2), process(3), process(4), process(5));
        mount.lock_bytes(FILE, 1, x, WRITE, bytes(0, 0));
        mount.lock_bytes(OTHER, 2, u, WRITE, bytes(0, 0));
        mount.lock_bytes(THIRD, 3, other, WRITE, bytes(0, 0));
        mount.serve();
        mount.lock_bytes(FILE, 4, u, WRITE, bytes(0, 19));
        mount.lock_bytes(OTHER, 5, v, WRITE, bytes(0, 9));
        let passing = if waits_through_another { other } else { owner };
        mount.lock_bytes(OTHER, 6, passing, WRITE, bytes(5, 5));
        if waits_through_another {
            mount.lock_bytes(THIRD, 7, owner, WRITE, bytes(0, 0));
        }
        assert_eq!(mount.asked(), []);
        mount.try_lock(8, owner, WRITE, bytes(10, 19));
        assert_eq!(mount.asked(), [(owner, bytes(10, 19), lock(WRITE, false))]);
        mount.reply(LockReply::Granted);
        let passes = (passing, bytes(5, 5), lock(WRITE, true));
        assert_eq!(mount.asked(), [passes], "{waits_through_another}");
    }
}
