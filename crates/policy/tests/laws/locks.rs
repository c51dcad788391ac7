//! The lock agent, event by event.

mod callbacks;
mod deadlocks;

use core::time::Duration;

use curt_policy::{
    MonotonicTime,
    locks::{
        LocalLockOwner, LocalLockRequest, LockAction, LockAgent, LockCallId, LockError, LockFileId,
        LockOpenId, LockOptions, LockOrder, LockProcedure, LockRanges, LockReply, LockRequestId,
        LockServerCall, LockTest, LockTimer, LockWait, WAITERS_MAX,
    },
};
use curt_types::{ByteRange, Fault, LockType};

const FILE: LockFileId = LockFileId(7);
const READ: LockType = LockType::Read;
const WRITE: LockType = LockType::Write;
const OK: Result<(), LockError> = Ok(());

fn bytes(first: u64, last: u64) -> ByteRange {
    ByteRange::new(first, last).unwrap()
}

fn process(number: u64) -> LocalLockOwner {
    LocalLockOwner::Posix(number)
}

/// A mount, and what its agent wants done: calls to send, answers to callers.
struct Mount {
    agent: LockAgent,
    now: MonotonicTime,
    calls: Vec<LockServerCall>,
    answers: Vec<(u64, Result<(), LockError>)>,
    timers: Vec<(LockTimer, Duration)>,
    lost: Vec<(LocalLockOwner, ByteRange)>,
    handed_off: Vec<u64>,
}

impl Mount {
    fn new(options: LockOptions) -> Self {
        Self {
            agent: LockAgent::new(options),
            now: MonotonicTime::default(),
            calls: Vec::new(),
            answers: Vec::new(),
            timers: Vec::new(),
            lost: Vec::new(),
            handed_off: Vec::new(),
        }
    }

    fn act(&mut self, actions: Vec<LockAction>) {
        for action in actions {
            match action {
                LockAction::Send(call) => self.calls.push(call),
                LockAction::Answer { request, result } => self.answers.push((request.0, result)),
                LockAction::SetTimer { timer, after } => self.timers.push((timer, after)),
                LockAction::HandedOff { request } => self.handed_off.push(request.0),
                LockAction::Lost { owner, range, .. } => self.lost.push((owner, range)),
            }
        }
    }

    fn request(id: u64, owner: LocalLockOwner, lock_type: LockType, range: ByteRange) -> LocalLockRequest {
        let open = LockOpenId(id / 100);
        LocalLockRequest { id: LockRequestId(id), file: FILE, owner, open, range, lock_type, wait: true }
    }

    fn lock(&mut self, id: u64, owner: LocalLockOwner, lock_type: LockType, range: ByteRange) {
        let actions = self.agent.lock(Self::request(id, owner, lock_type, range));
        self.act(actions);
    }

    fn try_lock(&mut self, id: u64, owner: LocalLockOwner, lock_type: LockType, range: ByteRange) {
        let request = LocalLockRequest { wait: false, ..Self::request(id, owner, lock_type, range) };
        let actions = self.agent.lock(request);
        self.act(actions);
    }

    fn unlock(&mut self, id: u64, owner: LocalLockOwner, range: ByteRange) {
        let actions = self.agent.unlock(LockRequestId(id), FILE, owner, range, self.now);
        self.act(actions);
    }

    fn interrupt(&mut self, id: u64) {
        let actions = self.agent.interrupt(FILE, LockRequestId(id));
        self.act(actions);
    }

    /// The server answers the only call.
    fn reply(&mut self, reply: LockReply) {
        let [call] = self.calls[..] else { panic!("one call was expected: {:?}", self.calls) };
        self.calls.clear();
        let actions = self.agent.replied(call.id, reply, self.now);
        self.act(actions);
    }

    /// The server does all that it is asked, until it is asked nothing more.
    fn serve(&mut self) {
        while !self.calls.is_empty() {
            let call = self.calls.remove(0);
            let actions = self.agent.replied(call.id, LockReply::Granted, self.now);
            self.act(actions);
        }
    }

    fn fire(&mut self) {
        let (timer, _) = self.timers.remove(0);
        let actions = self.agent.timer(timer);
        self.act(actions);
    }

    /// How often the server is asked because of the timers that are set. It gives this reply.
    fn asked_after_timers(&mut self, reply: LockReply) -> usize {
        let mut asked = 0;
        for (timer, _) in core::mem::take(&mut self.timers) {
            let actions = self.agent.timer(timer);
            self.act(actions);
            if !self.calls.is_empty() {
                asked += 1;
                self.reply(reply);
            }
        }
        asked
    }

    /// The answers since the last time.
    fn answers(&mut self) -> Vec<(u64, Result<(), LockError>)> {
        core::mem::take(&mut self.answers)
    }

    /// The requests to the server.
    fn asked(&self) -> Vec<(LocalLockOwner, ByteRange, LockProcedure)> {
        self.calls.iter().map(|call| (call.wire_owner, call.range, call.procedure)).collect()
    }

    /// A process holds a lock.
    fn holds(&mut self, id: u64, owner: LocalLockOwner, lock_type: LockType, range: ByteRange) {
        self.lock(id, owner, lock_type, range);
        self.serve();
        assert_eq!(self.answers(), [(id, OK)]);
    }

    fn held(&self, owner: LocalLockOwner) -> LockRanges {
        self.agent.held(FILE, owner)
    }
}

fn mount() -> Mount {
    Mount::new(LockOptions::default())
}

const fn lock(lock_type: LockType, block: bool) -> LockProcedure {
    LockProcedure::Lock { lock_type, wait: if block { LockWait::Block } else { LockWait::No } }
}

const fn repeated(lock_type: LockType) -> LockProcedure {
    LockProcedure::Lock { lock_type, wait: LockWait::Repeat }
}

#[test]
fn two_thousand_waiters_of_one_lock_cost_one_request_each_and_are_served_in_order() {
    let mut mount = mount();
    mount.holds(1, process(1), WRITE, ByteRange::WHOLE);
    for number in 2..=2000 {
        mount.lock(number, process(number), WRITE, ByteRange::WHOLE);
    }
    assert_eq!(mount.asked(), []);
    for number in 1..2000 {
        mount.unlock(10_000 + number, process(number), ByteRange::WHOLE);
        assert_eq!(mount.asked(), [(process(number), ByteRange::WHOLE, LockProcedure::Unlock)]);
        assert_eq!(mount.answers(), [], "nothing is free before the server says so");
        mount.reply(LockReply::Granted);
        assert_eq!(mount.answers(), [(10_000 + number, OK)]);
        let next = process(number + 1);
        assert_eq!(mount.asked(), [(next, ByteRange::WHOLE, lock(WRITE, true))]);
        mount.reply(LockReply::Granted);
        assert_eq!(mount.answers(), [(number + 1, OK)]);
    }
    mount.unlock(20_000, process(2000), ByteRange::WHOLE);
    mount.serve();
    assert!(mount.agent.is_idle());
}

#[test]
fn what_is_pending_is_not_held() {
    let mut mount = mount();
    mount.lock(1, process(1), WRITE, bytes(0, 9));
    let test = Mount::request(2, process(2), WRITE, bytes(0, 9));
    assert_eq!(mount.agent.test(test), LockTest::AskServer(process(2)));
    mount.try_lock(2, process(2), WRITE, bytes(0, 9));
    assert_eq!(mount.calls.len(), 2, "the server decides between the two");
    assert!(mount.held(process(1)).is_empty());
    mount.calls.truncate(1);
    mount.reply(LockReply::Granted);
    assert_eq!(mount.agent.test(test), LockTest::Held(process(1), bytes(0, 9), WRITE));
    mount.try_lock(3, process(3), READ, bytes(9, 9));
    assert_eq!(mount.answers(), [(1, OK), (3, Err(LockError::Held))]);
    assert_eq!(mount.asked(), []);
}

#[test]
fn a_locked_range_costs_no_second_request() {
    let mut mount = mount();
    mount.holds(1, process(1), WRITE, bytes(0, 99));
    mount.lock(2, process(1), WRITE, bytes(10, 20));
    assert_eq!((mount.asked(), mount.answers()), (vec![], vec![(2, OK)]));
    mount.unlock(3, process(2), ByteRange::WHOLE);
    assert_eq!((mount.asked(), mount.answers()), (vec![], vec![(3, OK)]));
}

#[test]
fn an_upgrade_and_a_downgrade_are_one_lock_each_and_never_an_unlock() {
    let mut mount = mount();
    mount.holds(1, process(1), READ, bytes(0, 9));
    mount.lock(2, process(1), WRITE, bytes(0, 99));
    // Does not block: what it holds there could be unlocked meanwhile.
    assert_eq!(mount.asked(), [(process(1), bytes(0, 99), repeated(WRITE))]);
    mount.reply(LockReply::Denied);
    assert_eq!(mount.held(process(1)), LockRanges::of(bytes(0, 9), READ));
    mount.fire();
    mount.serve();
    assert_eq!(mount.answers(), [(2, OK)]);
    mount.lock(3, process(1), READ, bytes(5, 200));
    assert_eq!(mount.asked(), [(process(1), bytes(100, 200), repeated(READ))], "what it lacks first");
    mount.reply(LockReply::Granted);
    assert_eq!(mount.asked(), [(process(1), bytes(5, 99), repeated(READ))]);
    assert_eq!(mount.held(process(1)), LockRanges::of(bytes(0, 99), WRITE));
    mount.reply(LockReply::Granted);
    let mut expected = LockRanges::of(bytes(0, 4), WRITE);
    expected.set(bytes(5, 200), Some(READ));
    assert_eq!((mount.held(process(1)), mount.answers()), (expected, vec![(3, OK)]));
}

#[test]
fn a_refused_part_gives_the_others_back() {
    let mut mount = mount();
    mount.holds(1, process(1), WRITE, bytes(10, 19));
    mount.try_lock(2, process(1), READ, bytes(0, 29));
    assert_eq!(mount.asked(), [(process(1), bytes(0, 9), lock(READ, false))]);
    mount.reply(LockReply::Granted);
    assert_eq!(mount.asked(), [(process(1), bytes(20, 29), lock(READ, false))]);
    mount.reply(LockReply::Denied);
    assert_eq!(mount.answers(), [(2, Err(LockError::Held))]);
    assert_eq!(mount.asked(), [(process(1), bytes(0, 9), LockProcedure::Unlock)]);
    mount.serve();
    assert_eq!(mount.held(process(1)), LockRanges::of(bytes(10, 19), WRITE));
}

#[test]
fn a_denied_waiter_polls_at_growing_intervals_and_those_behind_it_do_not() {
    let mut mount = mount();
    mount.lock(1, process(1), WRITE, bytes(0, 9));
    mount.lock(2, process(2), WRITE, bytes(5, 5));
    mount.lock(3, process(3), READ, bytes(8, 20));
    let mut intervals = Vec::new();
    for _ in 0..7 {
        assert_eq!(mount.asked(), [(process(1), bytes(0, 9), lock(WRITE, true))]);
        mount.reply(LockReply::Denied);
        intervals.push(mount.timers[0].1.as_millis());
        mount.fire();
    }
    assert_eq!(intervals, [50, 100, 200, 400, 800, 1000, 1000]);
}

#[test]
fn readers_that_the_server_refuses_for_one_range_send_one_probe() {
    let mut mount = mount();
    mount.lock(1, process(1), READ, bytes(0, 9));
    mount.reply(LockReply::Denied);
    mount.lock(2, process(2), READ, bytes(0, 9));
    mount.lock(3, process(3), READ, bytes(0, 20));
    assert_eq!(mount.asked(), []);
    mount.lock(4, process(4), READ, bytes(5, 5));
    assert_eq!(mount.asked(), [(process(4), bytes(5, 5), lock(READ, true))], "it may be free there");
    mount.serve();
    mount.fire();
    mount.reply(LockReply::Granted);
    assert_eq!(mount.calls.len(), 2, "the others follow at once");
    mount.serve();
    assert_eq!(mount.answers(), [(4, OK), (1, OK), (2, OK), (3, OK)]);
}

#[test]
fn an_interrupted_wait_ends_at_once_and_leaves_nothing() {
    // In the queue.
    let mut mount = mount();
    mount.holds(1, process(1), WRITE, ByteRange::WHOLE);
    mount.lock(2, process(2), WRITE, ByteRange::WHOLE);
    mount.interrupt(2);
    assert_eq!(mount.answers(), [(2, Err(LockError::Interrupted))]);
    mount.unlock(3, process(1), ByteRange::WHOLE);
    mount.serve();
    assert!(mount.agent.is_idle());
    assert_eq!(mount.answers(), [(3, OK)]);

    // While the LOCK is on its way.
    for (reply, undo) in [
        (LockReply::Granted, vec![LockProcedure::Unlock]),
        (LockReply::Denied, vec![]),
        (LockReply::Grace, vec![]),
        (LockReply::Refused(LockError::NoLocks), vec![]),
        (LockReply::Unknown(LockError::Failed(Fault::Io)), vec![LockProcedure::Unlock]),
        (LockReply::Blocked, vec![LockProcedure::Cancel { lock_type: WRITE }, LockProcedure::Unlock]),
    ] {
        mount.lock(2, process(2), WRITE, bytes(0, 9));
        mount.interrupt(2);
        mount.interrupt(2);
        assert_eq!(mount.answers(), [(2, Err(LockError::Interrupted))]);
        mount.reply(reply);
        for procedure in undo {
            assert_eq!(mount.asked(), [(process(2), bytes(0, 9), procedure)]);
            mount.reply(LockReply::Granted);
        }
        assert!(mount.agent.is_idle(), "{reply:?}");
    }

    // While the server is to call back, and while it is polled.
    mount.lock(2, process(2), WRITE, bytes(0, 9));
    mount.reply(LockReply::Blocked);
    mount.interrupt(2);
    assert_eq!(mount.asked(), [(process(2), bytes(0, 9), LockProcedure::Cancel { lock_type: WRITE })]);
    mount.serve();
    mount.lock(3, process(2), WRITE, bytes(0, 9));
    mount.reply(LockReply::Denied);
    mount.interrupt(3);
    assert!(mount.agent.is_idle());
}

#[test]
fn an_interrupted_upgrade_that_was_granted_is_taken_back_to_what_was_held() {
    let mut mount = mount();
    mount.holds(1, process(1), READ, bytes(10, 19));
    mount.lock(2, process(1), WRITE, bytes(0, 29));
    mount.interrupt(2);
    mount.reply(LockReply::Granted);
    assert_eq!(mount.held(process(1)), LockRanges::of(bytes(10, 19), READ));
    let mut asked = Vec::new();
    while let Some(call) = mount.calls.first() {
        asked.push((call.range, call.procedure));
        mount.reply(LockReply::Granted);
    }
    let expected = [
        (bytes(0, 9), LockProcedure::Unlock),
        (bytes(10, 19), lock(READ, false)),
        (bytes(20, 29), LockProcedure::Unlock),
    ];
    assert_eq!(asked, expected);
    assert_eq!(mount.held(process(1)), LockRanges::of(bytes(10, 19), READ));
}

#[test]
fn an_interrupted_unlock_is_done_all_the_same_and_the_range_is_not_free_before() {
    let mut mount = mount();
    mount.holds(1, process(1), WRITE, bytes(0, 9));
    mount.lock(2, process(2), WRITE, bytes(0, 9));
    mount.unlock(3, process(1), ByteRange::WHOLE);
    mount.interrupt(3);
    assert_eq!(mount.answers(), [(3, Err(LockError::Interrupted))]);
    mount.unlock(4, process(1), bytes(0, 3));
    mount.try_lock(5, process(3), READ, bytes(0, 9));
    assert_eq!(mount.answers(), [], "neither done nor refused yet");
    mount.reply(LockReply::Unknown(LockError::Failed(Fault::Io)));
    assert_eq!((mount.answers(), mount.asked()), (vec![], vec![]));
    mount.fire();
    assert_eq!(mount.asked(), [(process(1), bytes(0, 9), LockProcedure::Unlock)]);
    mount.serve();
    assert_eq!(mount.answers()[0], (4, OK));
}

// SEMANTICS: lock-8.
#[test]
fn an_unlock_without_an_answer_fails_and_is_sent_again() {
    let mut mount = mount();
    mount.holds(1, process(1), WRITE, bytes(0, 9));
    mount.lock(2, process(2), WRITE, bytes(0, 9));
    mount.unlock(3, process(1), ByteRange::WHOLE);
    mount.reply(LockReply::Unknown(LockError::Failed(Fault::Io)));
    assert_eq!(mount.answers(), [(3, Err(LockError::Failed(Fault::Io)))]);
    mount.fire();
    mount.reply(LockReply::Grace);
    mount.fire();
    mount.reply(LockReply::Granted);
    assert_eq!(mount.asked(), [(process(2), bytes(0, 9), lock(WRITE, true))]);
}

#[test]
fn a_deadlock_over_two_files_fails_for_the_last_to_wait() {
    let mut mount = mount();
    let in_file = |id, file, owner, range| LocalLockRequest {
        file: LockFileId(file),
        ..Mount::request(id, owner, WRITE, range)
    };
    for number in 1..=3 {
        let actions = mount.agent.lock(in_file(number, number, process(number), bytes(0, 9)));
        mount.act(actions);
        mount.serve();
    }
    mount.answers();
    for number in 1..=2 {
        let actions = mount.agent.lock(in_file(10 + number, number + 1, process(number), bytes(9, 9)));
        mount.act(actions);
    }
    assert_eq!((mount.answers(), mount.asked()), (vec![], vec![]));
    let actions = mount.agent.lock(in_file(13, 1, process(3), bytes(0, 0)));
    mount.act(actions);
    assert_eq!(mount.answers(), [(13, Err(LockError::Deadlock))]);
    assert_eq!(mount.asked(), []);
    let actions = mount.agent.interrupt(LockFileId(3), LockRequestId(12));
    mount.act(actions);
    let actions = mount.agent.lock(in_file(14, 1, process(3), bytes(0, 0)));
    mount.act(actions);
    assert_eq!(mount.answers(), [(12, Err(LockError::Interrupted))], "without a cycle it waits");
}

#[test]
fn a_grant_that_completes_a_cycle_ends_the_waits_for_it_also_if_all_ask_the_server() {
    for order in [LockOrder::LocalFirst, LockOrder::ServerFirst] {
        let mut mount = Mount::new(LockOptions { order, ..LockOptions::default() });
        let other = |id, owner| LocalLockRequest {
            file: LockFileId(8),
            ..Mount::request(id, owner, WRITE, bytes(0, 9))
        };
        mount.holds(1, process(1), WRITE, bytes(0, 9));
        let actions = mount.agent.lock(other(2, process(2)));
        mount.act(actions);
        mount.serve();
        mount.lock(3, process(3), WRITE, bytes(0, 9));
        let actions = mount.agent.lock(other(4, process(3)));
        mount.act(actions);
        mount.lock(5, process(2), WRITE, bytes(0, 9));
        for call in core::mem::take(&mut mount.calls) {
            let actions = mount.agent.replied(call.id, LockReply::Denied, mount.now);
            mount.act(actions);
        }
        mount.answers();
        mount.unlock(6, process(1), bytes(0, 9));
        mount.serve();
        if order == LockOrder::ServerFirst {
            // The first one polls.
            mount.fire();
            mount.serve();
        }
        let answers = [(6, OK), (3, OK), (5, Err(LockError::Deadlock))];
        assert_eq!(mount.answers(), answers, "{order:?}");
    }
}

#[test]
fn two_upgrades_of_one_range_are_a_deadlock_and_the_first_is_granted_when_the_second_gives_up() {
    let mut mount = mount();
    mount.holds(1, process(1), READ, bytes(0, 9));
    mount.holds(2, process(2), READ, bytes(0, 9));
    mount.lock(3, process(1), WRITE, bytes(0, 9));
    mount.lock(4, process(2), WRITE, bytes(0, 9));
    assert_eq!(mount.answers(), [(4, Err(LockError::Deadlock))]);
    mount.unlock(5, process(2), ByteRange::WHOLE);
    mount.serve();
    assert_eq!(mount.answers(), [(5, OK), (3, OK)]);
}

#[test]
fn an_owner_passes_those_that_wait_for_itself() {
    let mut mount = mount();
    mount.holds(1, process(1), WRITE, bytes(0, 9));
    mount.lock(2, process(2), WRITE, bytes(0, 20));
    mount.lock(3, process(1), WRITE, bytes(15, 20));
    assert_eq!(mount.asked(), [(process(1), bytes(15, 20), lock(WRITE, true))]);
    mount.serve();
    mount.lock(4, process(3), WRITE, bytes(15, 20));
    assert_eq!((mount.answers(), mount.asked()), (vec![(3, OK)], vec![]));
}

#[test]
fn a_waiter_passes_others_as_soon_as_they_wait_for_it() {
    let mut mount = mount();
    mount.holds(1, process(1), WRITE, bytes(0, 0));
    mount.holds(2, process(2), WRITE, bytes(100, 100));
    mount.lock(3, process(3), WRITE, bytes(0, 20));
    mount.lock(4, process(2), WRITE, bytes(10, 10));
    assert_eq!(mount.asked(), [], "it comes after process 3");
    mount.lock(5, process(1), WRITE, bytes(100, 100));
    assert_eq!(mount.answers(), [], "no deadlock: process 2 waits for no lock");
    assert_eq!(mount.asked(), [(process(2), bytes(10, 10), lock(WRITE, true))]);
}

#[test]
fn locks_of_fcntl_and_flock_conflict() {
    let (posix, flock) = (LocalLockOwner::Posix(1), LocalLockOwner::Flock(1));
    for (first, second, is_refused) in [
        (posix, flock, true),
        (flock, posix, true),
        (posix, posix, false),
        (posix, LocalLockOwner::Posix(2), true),
        (flock, LocalLockOwner::Flock(2), true),
    ] {
        let mut mount = mount();
        mount.lock(1, first, WRITE, bytes(0, 9));
        mount.serve();
        mount.try_lock(2, second, WRITE, bytes(9, 10));
        mount.serve();
        let expected = if is_refused { Err(LockError::Held) } else { OK };
        assert_eq!(mount.answers(), [(1, OK), (2, expected)], "{first:?} {second:?}");
    }
}

#[test]
fn flock_locks_the_whole_file() {
    let mut mount = mount();
    mount.lock(1, LocalLockOwner::Flock(1), READ, bytes(3, 4));
    assert_eq!(mount.asked(), [(LocalLockOwner::Flock(1), ByteRange::WHOLE, lock(READ, true))]);
    mount.serve();
    mount.unlock(2, LocalLockOwner::Flock(1), bytes(3, 4));
    assert_eq!(mount.asked(), [(LocalLockOwner::Flock(1), ByteRange::WHOLE, LockProcedure::Unlock)]);
}

#[test]
fn a_close_ends_the_locks_of_its_owner_and_the_last_one_those_of_the_open_file() {
    let mut mount = mount();
    let (ofd, flock) = (process(3), LocalLockOwner::Flock(1));
    mount.holds(100, ofd, READ, bytes(0, 9));
    mount.holds(101, flock, READ, ByteRange::WHOLE);
    mount.holds(200, process(1), READ, bytes(0, 9));
    mount.unlock(300, process(1), ByteRange::WHOLE);
    mount.serve();
    assert_eq!(mount.answers(), [(300, OK)]);
    let actions = mount.agent.close_open(LockRequestId(301), FILE, LockOpenId(1), mount.now);
    mount.act(actions);
    let unlocked: Vec<_> = mount.asked().iter().map(|(owner, ..)| *owner).collect();
    assert_eq!(unlocked, [ofd, flock]);
    mount.serve();
    assert!(mount.agent.is_idle());
    assert_eq!(mount.answers(), []);
}

/// The kernel names open file descriptions by an address, which it uses again.
#[test]
fn an_owner_with_locks_of_another_open_file_is_recognized_until_that_is_closed() {
    let mut mount = mount();
    let (ofd, before) = (process(3), LockOpenId(1));
    let of = |open| LocalLockRequest { open, ..Mount::request(9, ofd, WRITE, bytes(20, 29)) };
    assert!(!mount.agent.holds_through_another(of(before)));
    mount.holds(101, ofd, WRITE, bytes(0, 9));
    assert!(!mount.agent.holds_through_another(of(before)));
    assert!(mount.agent.holds_through_another(of(LockOpenId(2))));
    let actions = mount.agent.close_open(LockRequestId(301), FILE, before, mount.now);
    mount.act(actions);
    assert!(!mount.agent.holds_through_another(of(LockOpenId(2))));
}

/// Processes 1 to 80 take turns, each of which holds the lock for `hold`. Which of them tell the
/// server, and after which ones others may come first.
fn turns_told_to_server(handoffs_max: u32, hold: Duration) -> (Vec<u64>, Vec<u64>) {
    let mut mount = Mount::new(LockOptions { handoffs_max, ..LockOptions::default() });
    mount.holds(1, process(1), WRITE, bytes(0, 9));
    (2..=80).for_each(|number| mount.lock(number, process(number), WRITE, bytes(0, 9)));
    let (mut told, mut paused) = (Vec::new(), Vec::new());
    for number in 1..=80 {
        mount.now = mount.now.plus(hold);
        mount.unlock(100 + number, process(number), bytes(0, 9));
        if !mount.asked().is_empty() {
            mount.reply(LockReply::Granted);
            told.push(number);
        }
        if !mount.timers.is_empty() {
            paused.push(number);
            assert_eq!((mount.asked(), mount.answers()), (vec![], vec![(100 + number, OK)]));
            mount.fire();
            mount.serve();
            assert_eq!(mount.answers(), [(number + 1, OK)]);
            continue;
        }
        mount.serve();
        let next = [(100 + number, OK), (number + 1, OK)];
        assert_eq!(mount.answers(), next[..if number < 80 { 2 } else { 1 }]);
    }
    assert!(mount.agent.is_idle());
    (told, paused)
}

// SEMANTICS: lock-12.
#[test]
fn a_lock_is_handed_off_so_often_and_so_long_and_then_given_back() {
    assert_eq!(turns_told_to_server(0, Duration::ZERO), ((1..=80).collect(), vec![]));
    // One in 17: the first holder and 16 more. The last one has no next.
    assert_eq!(turns_told_to_server(16, Duration::ZERO), (vec![17, 34, 51, 68, 80], vec![17]));
    // The first hand-off, and those in 250 ms after it.
    let all_four = (4..=80).step_by(4).collect();
    let paused = (4..80).step_by(16).collect();
    assert_eq!(turns_told_to_server(16, Duration::from_millis(100)), (all_four, paused));
}

// SEMANTICS: lock-12.
#[test]
fn another_client_may_come_first_after_each_run_of_hand_offs_while_there_is_one() {
    let mut mount = Mount::new(LockOptions { handoffs_max: 1, ..LockOptions::default() });
    let mut number = 1;
    mount.lock(number, process(number), WRITE, bytes(0, 9));
    mount.serve();
    let mut run = |mount: &mut Mount, unlock_takes: u64, is_denied: bool| {
        mount.timers.clear();
        for _ in 0..2 {
            number += 1;
            mount.lock(number, process(number), WRITE, bytes(0, 9));
            mount.unlock(100 + number, process(number - 1), bytes(0, 9));
        }
        mount.now = mount.now.plus(Duration::from_micros(unlock_takes));
        mount.reply(LockReply::Granted);
        let pause = mount.timers.first().map(|(_, after)| after.as_micros());
        if pause.is_some() {
            assert_eq!(mount.asked(), []);
            mount.try_lock(900, process(900), WRITE, bytes(3, 4));
            // Who has just unlocked does so again, or wants the lock again.
            mount.unlock(901, process(number - 1), bytes(0, 9));
            mount.lock(902, process(number - 1), WRITE, bytes(0, 9));
            assert_eq!(mount.asked(), [], "nobody may come first");
            mount.interrupt(900);
            mount.interrupt(902);
            mount.fire();
        }
        if is_denied {
            mount.reply(LockReply::Blocked);
            let (_, actions) = mount.agent.available(FILE, process(number));
            mount.act(actions);
            mount.serve();
            // What was denied is not handed off.
            number += 1;
            mount.lock(number, process(number), WRITE, bytes(0, 9));
            mount.unlock(100 + number, process(number - 1), bytes(0, 9));
        }
        mount.serve();
        assert!(mount.agent.holds(FILE, process(number)));
        pause
    };
    let denied: Vec<_> = [10, 2000, 10_000_000].map(|took| run(&mut mount, took, true)).into();
    assert_eq!(denied, [Some(1000), Some(2000), Some(250_000)], "as long as the UNLOCK took");
    let alone: Vec<_> = (0..9).map(|_| run(&mut mount, 10, false).is_some()).collect();
    assert_eq!(alone, [0, 1, 2, 3, 4, 5, 6, 7, 8].map(|run| run % 4 == 0));
    assert_eq!(run(&mut mount, 10, true), None);
    assert_eq!(run(&mut mount, 10, false), Some(1000));
}

// SEMANTICS: lock-12.
#[test]
fn a_lock_that_another_client_was_waited_for_is_not_handed_off() {
    let mut mount = Mount::new(LockOptions { handoffs_max: 16, ..LockOptions::default() });
    mount.lock(1, process(1), WRITE, bytes(0, 9));
    mount.lock(2, process(2), WRITE, bytes(0, 9));
    mount.reply(LockReply::Blocked);
    assert_eq!(mount.asked(), [], "the second one waits here");
    let (is_awaited, actions) = mount.agent.available(FILE, process(1));
    mount.act(actions);
    assert!(is_awaited);
    mount.serve();
    assert_eq!(mount.answers(), [(1, OK)]);
    mount.unlock(3, process(1), bytes(0, 9));
    assert_eq!(mount.asked().last().map(|(.., procedure)| *procedure), Some(LockProcedure::Unlock));
    mount.serve();
    assert_eq!(mount.answers(), [(3, OK), (2, OK)]);
    // Nobody else wanted it since.
    mount.lock(4, process(3), WRITE, bytes(0, 9));
    mount.unlock(5, process(2), bytes(0, 9));
    assert_eq!((mount.asked(), mount.answers()), (vec![], vec![(5, OK), (4, OK)]));
}

#[test]
fn a_notification_asks_again_for_who_waits_and_for_nothing_else() {
    let mut mount = mount();
    mount.lock(1, process(1), WRITE, bytes(0, 9));
    let notify = |mount: &mut Mount, owner| {
        let (is_awaited, actions) = mount.agent.available(FILE, owner);
        mount.act(actions);
        is_awaited
    };
    // Before the reply, which is that of before.
    assert!(notify(&mut mount, process(1)));
    assert_eq!(mount.asked().len(), 1);
    mount.reply(LockReply::Blocked);
    assert_eq!(mount.asked().len(), 1, "it is asked again at once");
    mount.reply(LockReply::Blocked);
    assert_eq!(mount.asked(), []);
    assert!(!notify(&mut mount, process(2)), "nobody waits so");
    assert_eq!(mount.asked(), []);
    assert!(notify(&mut mount, process(1)));
    mount.serve();
    assert_eq!(mount.answers(), [(1, OK)]);
    assert!(!notify(&mut mount, process(1)), "it has its lock");
    assert_eq!((mount.asked(), mount.answers()), (vec![], vec![]));
}

#[test]
fn a_lock_that_the_server_has_taken_away_is_free_for_others() {
    let mut mount = mount();
    mount.holds(1, process(1), WRITE, bytes(0, 9));
    mount.lock(2, process(2), WRITE, bytes(0, 9));
    let actions = mount.agent.lost(FILE, process(1), bytes(5, 99));
    let lost = |range| LockAction::Lost { file: FILE, owner: process(1), range, lock_type: WRITE };
    assert_eq!(actions, [lost(bytes(5, 9))]);
    assert_eq!(mount.held(process(1)), LockRanges::of(bytes(0, 4), WRITE));
    mount.unlock(3, process(1), bytes(0, 3));
    let actions = mount.agent.lost(FILE, process(1), ByteRange::WHOLE);
    mount.act(actions);
    assert_eq!(mount.answers(), [(3, Err(LockError::Failed(Fault::Io)))], "it is not unlocked by its owner");
    mount.serve();
    assert_eq!(mount.held(process(2)), LockRanges::of(bytes(0, 9), WRITE));
}

#[test]
fn a_lock_whose_data_are_still_being_written_can_be_lost() {
    let mut mount = mount();
    mount.holds(1, process(1), WRITE, bytes(20, 29));
    let release = mount.agent.unlock_after_data(LockRequestId(2), FILE, process(1), bytes(20, 25));
    assert!(release.is_some());
    let actions = mount.agent.lost(FILE, process(1), bytes(24, 29));
    let lost = |range| LockAction::Lost { file: FILE, owner: process(1), range, lock_type: WRITE };
    assert_eq!(actions, [lost(bytes(26, 29)), lost(bytes(24, 25))]);
}

#[test]
fn a_lock_that_was_handed_off_is_unlocked_by_the_owner_that_the_server_knows() {
    let mut mount = Mount::new(LockOptions { handoffs_max: 16, ..LockOptions::default() });
    mount.holds(1, process(1), WRITE, bytes(0, 9));
    mount.lock(2, process(2), WRITE, bytes(0, 9));
    mount.unlock(3, process(1), bytes(0, 9));
    assert_eq!((mount.asked(), mount.answers()), (vec![], vec![(3, OK), (2, OK)]));
    mount.lock(4, process(2), WRITE, bytes(20, 29));
    assert_eq!(mount.asked()[0].0, process(1));
    mount.serve();
    mount.lock(5, process(1), READ, bytes(40, 49));
    mount.serve();
    mount.unlock(6, process(2), ByteRange::WHOLE);
    mount.serve();
    assert_eq!(mount.held(process(1)), LockRanges::of(bytes(40, 49), READ));
    mount.lock(7, process(2), WRITE, bytes(0, 9));
    assert_eq!(mount.asked()[0].0, process(2), "it has its own name again");
}

#[test]
fn only_equal_locks_are_handed_off() {
    for (lock_type, range) in [(READ, bytes(0, 9)), (WRITE, bytes(0, 8)), (WRITE, bytes(0, 10))] {
        let mut mount = Mount::new(LockOptions { handoffs_max: 16, ..LockOptions::default() });
        mount.holds(1, process(1), WRITE, bytes(0, 9));
        mount.lock(2, process(2), lock_type, range);
        mount.unlock(3, process(1), bytes(0, 9));
        assert_eq!(mount.asked(), [(process(1), bytes(0, 9), LockProcedure::Unlock)]);
    }
}

#[test]
fn another_call_of_the_owner_ends_its_wait_at_the_server_but_not_for_the_caller() {
    let mut mount = mount();
    mount.lock(1, process(1), WRITE, bytes(0, 9));
    mount.reply(LockReply::Blocked);
    mount.try_lock(2, process(1), READ, bytes(5, 5));
    assert_eq!(mount.asked(), [(process(1), bytes(0, 9), LockProcedure::Cancel { lock_type: WRITE })]);
    mount.reply(LockReply::Granted);
    assert_eq!(mount.asked(), [(process(1), bytes(0, 9), LockProcedure::Unlock)]);
    mount.reply(LockReply::Granted);
    assert_eq!(mount.asked(), [(process(1), bytes(5, 5), lock(READ, false))]);
    mount.reply(LockReply::Denied);
    assert_eq!(mount.answers(), [(2, Err(LockError::Held))]);
    mount.timers.drain(..mount.timers.len() - 1);
    mount.fire();
    assert_eq!(mount.asked(), [(process(1), bytes(0, 9), repeated(WRITE))]);
}

#[test]
fn a_waiter_that_is_asked_for_again_early_has_one_timer() {
    let mut mount = mount();
    mount.lock(1, process(1), WRITE, ByteRange::WHOLE);
    mount.reply(LockReply::Denied);
    for number in 0..8 {
        mount.try_lock(10 + number, process(2), WRITE, bytes(50, 50));
        mount.serve();
        mount.unlock(20 + number, process(2), bytes(50, 50));
        mount.reply(LockReply::Granted);
        mount.reply(LockReply::Denied);
    }
    assert_eq!(mount.timers.len(), 9);
    assert_eq!(mount.asked_after_timers(LockReply::Denied), 1);
    mount.fire();
    mount.reply(LockReply::Blocked);
    for _ in 0..8 {
        let actions = mount.agent.callbacks_lost();
        mount.act(actions);
        mount.reply(LockReply::Blocked);
    }
    assert_eq!(mount.asked_after_timers(LockReply::Blocked), 1);
}

#[test]
fn server_first_asks_for_every_waiter() {
    let mut mount = Mount::new(LockOptions { order: LockOrder::ServerFirst, ..LockOptions::default() });
    mount.holds(1, process(1), WRITE, bytes(0, 9));
    (2..=5).for_each(|number| mount.lock(number, process(number), WRITE, bytes(0, 9)));
    assert_eq!(mount.calls.len(), 4);
}

#[test]
fn a_grace_period_is_waited_for_even_by_those_that_do_not_wait() {
    let mut mount = mount();
    mount.try_lock(1, process(1), WRITE, bytes(0, 9));
    mount.reply(LockReply::Grace);
    assert_eq!(mount.answers(), []);
    mount.fire();
    mount.serve();
    assert_eq!(mount.answers(), [(1, OK)]);
}

#[test]
fn replies_and_timers_that_nobody_waits_for_change_nothing() {
    let mut mount = mount();
    mount.holds(1, process(1), WRITE, bytes(0, 9));
    let before = mount.agent.clone();
    mount.lock(2, process(2), WRITE, bytes(20, 29));
    mount.reply(LockReply::Denied);
    mount.interrupt(2);
    let call = LockCallId { file: FILE, request: LockRequestId(1), owner: process(1) };
    for reply in [LockReply::Granted, LockReply::Denied, LockReply::Blocked, LockReply::Grace] {
        assert_eq!(mount.agent.replied(call, reply, mount.now), []);
    }
    assert_eq!(mount.agent.timer(mount.timers[0].0), []);
    assert_eq!(mount.agent.interrupt(FILE, LockRequestId(1)), []);
    assert_eq!(mount.agent, before);
}

#[test]
fn the_waiters_of_a_file_are_bounded() {
    let mut mount = mount();
    mount.holds(1, process(1), WRITE, bytes(0, 0));
    let count = u64::try_from(WAITERS_MAX).unwrap();
    (0..=count).for_each(|number| mount.lock(10 + number, process(10 + number), READ, bytes(0, 0)));
    assert_eq!(mount.answers(), [(10 + count, Err(LockError::NoLocks))]);
}

#[test]
fn a_restarted_server_is_given_its_locks_back_before_anybody_waits_for_it() {
    let mut mount = mount();
    mount.holds(1, process(1), READ, bytes(0, 9));
    mount.holds(2, process(1), WRITE, bytes(20, 29));
    mount.holds(3, process(2), READ, bytes(0, 9));
    mount.lock(4, process(3), WRITE, bytes(50, 59));
    mount.reply(LockReply::Blocked);
    let actions = mount.agent.server_restarted(LockRequestId(500));
    mount.act(actions);
    mount.try_lock(5, process(4), WRITE, bytes(70, 70));
    let reclaim = |lock_type| LockProcedure::Reclaim { lock_type };
    assert_eq!(mount.asked(), [(process(1), bytes(0, 9), reclaim(READ))]);
    mount.reply(LockReply::Unknown(LockError::Failed(Fault::Io)));
    assert_eq!(mount.asked(), []);
    mount.timers.drain(..mount.timers.len() - 1);
    mount.fire();
    mount.reply(LockReply::Granted);
    assert_eq!(mount.asked(), [(process(1), bytes(20, 29), reclaim(WRITE))]);
    mount.reply(LockReply::Denied);
    assert_eq!(mount.lost, [(process(1), bytes(20, 29))]);
    assert_eq!(mount.held(process(1)), LockRanges::of(bytes(0, 9), READ));
    assert_eq!(mount.asked(), [(process(2), bytes(0, 9), reclaim(READ))]);
    assert_eq!(mount.answers(), []);
    mount.reply(LockReply::Granted);
    let expected = [
        (process(1), bytes(20, 29), LockProcedure::Unlock),
        (process(3), bytes(50, 59), lock(WRITE, true)),
        (process(4), bytes(70, 70), lock(WRITE, false)),
    ];
    assert_eq!(mount.asked(), expected);
}

#[test]
fn an_unlock_during_a_reclaim_is_sent_after_it() {
    let mut mount = mount();
    mount.holds(1, process(1), WRITE, bytes(0, 9));
    let actions = mount.agent.server_restarted(LockRequestId(500));
    mount.act(actions);
    mount.unlock(2, process(1), ByteRange::WHOLE);
    assert_eq!(mount.asked(), [(process(1), bytes(0, 9), LockProcedure::Reclaim { lock_type: WRITE })]);
    mount.reply(LockReply::Granted);
    assert_eq!(mount.asked(), [(process(1), bytes(0, 9), LockProcedure::Unlock)]);
    mount.serve();
    assert_eq!((mount.answers(), mount.agent.is_idle()), (vec![(2, OK)], true));
}

#[test]
fn a_lock_that_cannot_be_reclaimed_is_unlocked_at_the_server() {
    // The server may not have been restarted: then it still has the lock.
    let mut mount = mount();
    mount.holds(1, process(1), WRITE, bytes(0, 9));
    mount.holds(2, process(1), READ, bytes(20, 29));
    mount.lock(3, process(2), WRITE, bytes(0, 9));
    let actions = mount.agent.server_restarted(LockRequestId(500));
    mount.act(actions);
    mount.reply(LockReply::Refused(LockError::NoLocks));
    assert_eq!(mount.asked(), [(process(1), bytes(20, 29), LockProcedure::Reclaim { lock_type: READ })]);
    mount.reply(LockReply::Refused(LockError::NoLocks));
    assert_eq!(mount.lost, [(process(1), bytes(0, 9)), (process(1), bytes(20, 29))]);
    assert_eq!(mount.asked(), [(process(1), bytes(0, 9), LockProcedure::Unlock)]);
    mount.reply(LockReply::Granted);
    assert_eq!(mount.asked(), [(process(1), bytes(20, 29), LockProcedure::Unlock)]);
    mount.serve();
    assert_eq!(mount.answers(), [(3, OK)]);
}

// SEMANTICS: lock-8.
#[test]
fn a_refused_unlock_is_sent_again_until_the_server_confirms_it() {
    for refusal in [LockReply::Denied, LockReply::Refused(LockError::NoLocks)] {
        let mut mount = mount();
        mount.holds(1, process(1), WRITE, bytes(0, 9));
        mount.lock(2, process(2), WRITE, bytes(0, 9));
        mount.unlock(3, process(1), bytes(0, 9));
        for _ in 0..3 {
            mount.reply(refusal);
            assert_eq!(mount.asked(), [], "{refusal:?}");
            mount.fire();
            assert_eq!(mount.asked(), [(process(1), bytes(0, 9), LockProcedure::Unlock)], "{refusal:?}");
        }
        assert_eq!(mount.answers(), [(3, Err(LockError::NoLocks))], "the caller is told once");
        mount.reply(LockReply::Granted);
        mount.serve();
        assert_eq!(mount.answers(), [(2, OK)], "{refusal:?}");
    }
    // A file that is gone has no locks.
    let mut mount = mount();
    mount.holds(1, process(1), WRITE, bytes(0, 9));
    mount.unlock(2, process(1), bytes(0, 9));
    mount.reply(LockReply::Refused(LockError::Failed(Fault::Stale)));
    assert_eq!((mount.answers(), mount.agent.is_idle()), (vec![(2, OK)], true));
}

// SEMANTICS: lock-8.
#[test]
fn what_a_copy_of_a_lock_may_have_locked_and_its_owner_has_not_is_unlocked_a_minute_later() {
    let id = LockCallId { file: FILE, request: LockRequestId(500), owner: process(1) };
    for (unlocked, expected) in [
        (None, vec![]),
        (Some(bytes(0, 4)), vec![(process(1), bytes(0, 4), LockProcedure::Unlock)]),
        (Some(ByteRange::WHOLE), vec![(process(1), bytes(0, 9), LockProcedure::Unlock)]),
    ] {
        let mut mount = mount();
        mount.lock(1, process(1), WRITE, bytes(0, 9));
        let actions = mount.agent.sent_again(id, bytes(0, 9), WRITE);
        mount.act(actions);
        mount.serve();
        if let Some(range) = unlocked {
            mount.unlock(2, process(1), range);
            mount.serve();
        }
        mount.answers();
        // Another process does not wait for that, and keeps what it gets.
        if unlocked.is_some() {
            mount.holds(3, process(2), READ, bytes(0, 4));
        }
        let held = [1, 2].map(|number| mount.held(process(number)));
        assert_eq!(mount.timers.iter().map(|(_, after)| after.as_secs()).collect::<Vec<_>>(), [60]);
        mount.fire();
        assert_eq!(mount.asked(), expected);
        mount.serve();
        assert_eq!([1, 2].map(|number| mount.held(process(number))), held);
        assert_eq!((mount.answers(), mount.timers.len()), (vec![], 0), "once");
    }
}

#[test]
fn a_grant_that_was_on_its_way_when_the_server_restarted_is_asked_for_again() {
    let mut mount = mount();
    mount.lock(1, process(1), WRITE, bytes(0, 9));
    let actions = mount.agent.server_restarted(LockRequestId(500));
    mount.act(actions);
    mount.reply(LockReply::Granted);
    assert_eq!(mount.answers(), [], "the server that granted it has forgotten it");
    assert_eq!(mount.asked(), [(process(1), bytes(0, 9), lock(WRITE, true))]);
    mount.reply(LockReply::Granted);
    assert_eq!(mount.answers(), [(1, OK)]);
    // So are the parts that were granted before.
    mount.lock(2, process(1), READ, bytes(5, 19));
    mount.reply(LockReply::Granted);
    assert_eq!(mount.asked(), [(process(1), bytes(5, 9), repeated(READ))]);
    let actions = mount.agent.server_restarted(LockRequestId(501));
    mount.act(actions);
    mount.reply(LockReply::Granted);
    // What became weaker at the server before is not reclaimed as it was.
    assert_eq!(mount.held(process(1)).parts(bytes(0, 9))[1], (bytes(5, 9), Some(READ)));
    assert_eq!(mount.asked(), [(process(1), bytes(5, 19), repeated(READ))]);
}

#[test]
fn a_lock_that_waits_for_its_data_is_not_free_and_is_not_a_later_one_of_its_owner() {
    let mut mount = mount();
    mount.holds(1, process(1), WRITE, bytes(0, 9));
    let release = mount.agent.unlock_after_data(LockRequestId(2), FILE, process(1), ByteRange::WHOLE);
    assert!(mount.held(process(1)).is_empty());
    mount.lock(3, process(2), WRITE, bytes(0, 0));
    mount.lock(4, process(1), WRITE, bytes(0, 9));
    assert_eq!((mount.asked(), mount.answers()), (vec![], vec![]));
    let actions = mount.agent.data_written(release.unwrap());
    mount.act(actions);
    assert_eq!(mount.asked(), [(process(1), bytes(0, 9), LockProcedure::Unlock)]);
    mount.reply(LockReply::Granted);
    assert_eq!(mount.asked(), [(process(2), bytes(0, 0), lock(WRITE, true))]);
    mount.serve();
    mount.unlock(5, process(2), ByteRange::WHOLE);
    mount.serve();
    assert_eq!(mount.answers(), [(3, OK), (5, OK), (4, OK)]);
    assert_eq!(mount.agent.unlock_after_data(LockRequestId(6), FILE, process(2), ByteRange::WHOLE), None);
}

#[test]
fn what_is_blocked_is_asked_for_again_when_callbacks_were_lost() {
    let mut mount = mount();
    mount.lock(1, process(1), WRITE, bytes(0, 9));
    mount.reply(LockReply::Blocked);
    assert_eq!(mount.asked(), []);
    let actions = mount.agent.callbacks_lost();
    mount.act(actions);
    assert_eq!(mount.asked(), [(process(1), bytes(0, 9), lock(WRITE, true))]);
    let actions = mount.agent.callbacks_lost();
    mount.act(actions);
    mount.reply(LockReply::Granted);
    assert_eq!(mount.answers(), [(1, OK)]);
}
