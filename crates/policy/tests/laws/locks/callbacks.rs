//! Callbacks of a server that has granted a blocked lock: late, early and repeated ones.

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
