//! Callbacks of a server that has granted a blocked lock, and LOCKs that it executes late.

use curt_policy::locks::GrantedCallback;

use super::*;

fn callback(wire_owner: LocalLockOwner, range: ByteRange, lock_type: LockType) -> GrantedCallback {
    GrantedCallback { wire_owner, range, lock_type, is_repeated: false }
}

#[test]
fn a_callback_grants_what_is_waited_for_and_nothing_else() {
    let mut mount = mount();
    mount.lock(1, process(1), WRITE, bytes(0, 9));
    mount.reply(LockReply::Blocked);
    let granted = |mount: &mut Mount, owner, range, lock_type| {
        let id = LockRequestId(90);
        let (is_confirmed, actions) = mount.agent.granted(id, FILE, callback(owner, range, lock_type));
        mount.act(actions);
        is_confirmed
    };
    for (owner, range, lock_type) in
        [(process(2), bytes(0, 9), WRITE), (process(1), bytes(0, 8), WRITE), (process(1), bytes(0, 9), READ)]
    {
        assert_eq!(granted(&mut mount, owner, range, lock_type), owner == process(2));
        assert_eq!(mount.answers(), []);
    }
    assert_eq!(mount.asked(), [(process(2), bytes(0, 9), LockProcedure::Unlock)], "nobody wants it");
    mount.serve();
    assert!(granted(&mut mount, process(1), bytes(0, 9), WRITE));
    assert_eq!(mount.answers(), [(1, OK)]);
    assert!(granted(&mut mount, process(1), bytes(0, 9), WRITE), "a second time");
    assert_eq!(mount.asked(), []);
}

#[test]
fn a_callback_after_a_cancel_is_not_taken_for_one_of_the_next_lock() {
    let mut mount = mount();
    mount.lock(1, process(1), WRITE, bytes(0, 9));
    mount.reply(LockReply::Blocked);
    mount.interrupt(1);
    mount.serve();
    mount.answers();
    mount.lock(2, process(1), WRITE, bytes(0, 9));
    mount.reply(LockReply::Blocked);
    let (_, actions) = mount.agent.granted(LockRequestId(90), FILE, callback(process(1), bytes(0, 9), WRITE));
    mount.act(actions);
    assert_eq!(mount.asked(), [(process(1), bytes(0, 9), lock(WRITE, true))], "the server is asked");
    mount.reply(LockReply::Blocked);
    assert_eq!(mount.answers(), []);
}

#[test]
fn a_repeated_or_late_callback_is_not_taken_for_one_of_the_next_lock() {
    // It was believed once; it was overtaken by the reply to the LOCK that was sent again.
    for is_believed_first in [true, false] {
        let mut mount = mount();
        let mut grant = callback(process(1), bytes(0, 9), WRITE);
        mount.lock(1, process(1), WRITE, bytes(0, 9));
        mount.reply(LockReply::Blocked);
        if is_believed_first {
            let (_, actions) = mount.agent.granted(LockRequestId(90), FILE, grant);
            mount.act(actions);
            grant.is_repeated = true;
        } else {
            mount.fire();
            mount.reply(LockReply::Granted);
        }
        assert_eq!(mount.answers(), [(1, OK)]);
        mount.unlock(2, process(1), bytes(0, 9));
        mount.serve();
        mount.answers();
        mount.lock(3, process(1), WRITE, bytes(0, 9));
        mount.reply(LockReply::Blocked);
        let (_, actions) = mount.agent.granted(LockRequestId(90), FILE, grant);
        mount.act(actions);
        assert_eq!(mount.answers(), []);
        assert_eq!(mount.asked(), [(process(1), bytes(0, 9), lock(WRITE, true))], "the server is asked");
    }
}

#[test]
fn a_callback_that_overtakes_the_reply_to_its_lock_grants_with_that_reply() {
    for reply in [LockReply::Blocked, LockReply::Granted] {
        let mut mount = mount();
        let grant = callback(process(1), bytes(0, 9), WRITE);
        mount.lock(1, process(1), WRITE, bytes(0, 9));
        let (is_confirmed, actions) = mount.agent.granted(LockRequestId(90), FILE, grant);
        assert_eq!((is_confirmed, actions), (true, vec![]), "the LOCK may be executed after an UNLOCK");
        mount.reply(reply);
        assert_eq!((mount.answers(), mount.asked()), (vec![(1, OK)], vec![]), "{reply:?}");
    }
}

#[test]
fn a_callback_before_a_denial_does_not_grant_the_lock_that_is_sent_next() {
    let mut mount = mount();
    mount.lock(1, process(1), WRITE, bytes(0, 9));
    mount.agent.granted(LockRequestId(90), FILE, callback(process(1), bytes(0, 9), WRITE));
    mount.reply(LockReply::Denied);
    mount.fire();
    mount.reply(LockReply::Blocked);
    assert_eq!((mount.answers(), mount.asked()), (vec![], vec![]));
}

#[test]
fn a_callback_grants_nothing_while_a_lock_is_on_its_way() {
    let mut mount = mount();
    mount.lock(1, process(1), WRITE, bytes(0, 9));
    mount.reply(LockReply::Blocked);
    mount.fire();
    let (is_confirmed, actions) =
        mount.agent.granted(LockRequestId(90), FILE, callback(process(1), bytes(0, 9), WRITE));
    assert_eq!((is_confirmed, actions), (true, vec![]));
    mount.reply(LockReply::Blocked);
    assert_eq!(mount.asked(), [(process(1), bytes(0, 9), lock(WRITE, true))], "the reply came first");
    mount.reply(LockReply::Granted);
    assert_eq!(mount.answers(), [(1, OK)]);
}

#[test]
fn a_lock_that_was_sent_twice_is_unlocked_once_more_when_no_copy_is_on_its_way() {
    let sent_twice = || {
        let mut mount = mount();
        mount.lock(1, process(1), WRITE, bytes(0, 9));
        let id = LockCallId { file: FILE, request: LockRequestId(70), owner: process(1) };
        let actions = mount.agent.sent_again(id, bytes(0, 9), WRITE);
        mount.act(actions);
        mount.reply(LockReply::Granted);
        assert_eq!(mount.timers.last().map(|(_, after)| *after), Some(Duration::from_secs(60)));
        mount
    };
    let unlock = (process(1), bytes(0, 9), LockProcedure::Unlock);
    let mut thrice = sent_twice();
    let id = LockCallId { file: FILE, request: LockRequestId(71), owner: process(1) };
    let actions = thrice.agent.sent_again(id, bytes(0, 9), WRITE);
    thrice.act(actions);
    thrice.unlock(2, process(1), bytes(0, 9));
    thrice.serve();
    thrice.fire();
    assert_eq!(thrice.asked(), [], "a copy may be on its way since then");
    thrice.fire();
    assert_eq!(thrice.asked(), [unlock]);
    let mut held = sent_twice();
    held.fire();
    assert_eq!(held.asked(), [], "it is held");
    held.unlock(2, process(1), bytes(0, 9));
    held.serve();
    assert!(held.agent.is_idle());
    let mut unlocked = sent_twice();
    unlocked.unlock(2, process(1), bytes(0, 9));
    unlocked.serve();
    assert!(!unlocked.agent.is_idle());
    unlocked.fire();
    assert_eq!(unlocked.asked(), [unlock]);
    assert!(unlocked.calls[0].is_undo);
    unlocked.serve();
    assert!(unlocked.agent.is_idle());
    let mut waits = sent_twice();
    waits.unlock(2, process(1), bytes(0, 9));
    waits.serve();
    waits.lock(3, process(1), WRITE, bytes(0, 9));
    waits.reply(LockReply::Blocked);
    waits.fire();
    assert_eq!(waits.asked(), [], "its place at the server is not given up");
    let (is_awaited, actions) = waits.agent.available(FILE, process(1));
    waits.act(actions);
    waits.serve();
    assert!(is_awaited && waits.agent.holds(FILE, process(1)));
    waits.unlock(4, process(1), bytes(0, 9));
    waits.serve();
    assert_eq!(waits.asked_after_timers(LockReply::Granted), 1);
    assert!(waits.agent.is_idle());
}

#[test]
fn a_lock_that_was_sent_twice_is_not_undone_while_its_owner_has_locked_the_bytes_otherwise() {
    // The type that was sent twice, and the one that the owner has.
    for (sent, held) in [(WRITE, READ), (READ, WRITE)] {
        let mut mount = mount();
        let id = LockCallId { file: FILE, request: LockRequestId(70), owner: process(1) };
        mount.lock(1, process(1), sent, bytes(0, 9));
        let actions = mount.agent.sent_again(id, bytes(0, 9), sent);
        mount.act(actions);
        mount.serve();
        mount.lock(2, process(1), held, bytes(0, 4));
        mount.serve();
        assert_eq!(mount.answers(), [(1, OK), (2, OK)]);
        mount.fire();
        assert_eq!(mount.asked(), [], "neither unlocked nor locked again");
        assert_eq!(mount.timers.last().map(|(_, after)| *after), Some(Duration::from_secs(60)));
        mount.unlock(3, process(1), bytes(0, 9));
        mount.serve();
        mount.fire();
        assert_eq!(mount.asked(), [(process(1), bytes(0, 9), LockProcedure::Unlock)]);
        mount.serve();
        assert!(mount.agent.is_idle());
    }
}
