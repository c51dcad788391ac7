//! Who waits, whose turn it is, and what callbacks and their answers do.

use super::super::queue::{REPEAT_MIN, VISITS};
use super::*;

const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

// SEMANTICS: lockd-10.
#[test]
fn one_waiter_of_a_client_gets_as_many_turns_as_two_hundred() {
    // The client of the single waiter sends the next request when it has the lock, or when it has
    // unlocked it, and the other client has its turn.
    for asks_early in [true, false] {
        let mut fixture = Fixture::new();
        let (many, single) = (1, 2);
        fixture.take(who(3, 0), WRITE, WHOLE);
        for process in 0..200 {
            fixture.queue(who(many, process), WRITE, WHOLE, Waits::Granted);
        }
        fixture.queue(who(single, 0), WRITE, WHOLE, Waits::Granted);
        let mut holder = who(3, 0);
        let mut grants = Vec::new();
        for _ in 0..100 {
            fixture.unlock(holder, WHOLE);
            let last = std::mem::replace(&mut holder, fixture.called_and_accepted()[0]);
            grants.push(holder);
            let asks = if asks_early { holder } else { last };
            if asks.client == single {
                fixture.queue(who(single, asks.process + 1), WRITE, WHOLE, Waits::Granted);
            }
        }
        let of = |client| grants.iter().filter(move |grant| grant.client == client);
        assert!(of(many).map(|grant| grant.process).eq(0..50), "in the order of their arrival");
        assert!(of(single).map(|grant| grant.process).eq(0..50), "{asks_early}");
    }
}

// SEMANTICS: lockd-10.
#[test]
fn readers_are_granted_together_up_to_the_next_writer() {
    let mut fixture = Fixture::new();
    fixture.take(who(1, 0), WRITE, WHOLE);
    for (process, lock_type) in [(1, READ), (2, READ), (3, WRITE), (4, READ)] {
        fixture.queue(who(1, process), lock_type, WHOLE, Waits::Granted);
    }
    fixture.unlock(who(1, 0), WHOLE);
    assert_eq!(fixture.called_and_accepted(), [who(1, 1), who(1, 2)]);
    assert!(fixture.holds_back(who(2, 1), READ, bytes(0, 0)), "a writer waits");
    fixture.queue(who(2, 1), READ, bytes(0, 0), Waits::Granted);
    fixture.unlock(who(1, 1), WHOLE);
    assert_eq!(fixture.called(), []);
    fixture.unlock(who(1, 2), WHOLE);
    assert_eq!(fixture.called_and_accepted(), [who(1, 3)]);
    fixture.unlock(who(1, 3), WHOLE);
    assert_eq!(fixture.called_and_accepted(), [who(2, 1), who(1, 4)]);
}

#[test]
fn a_downgrade_grants_to_waiting_readers() {
    let mut fixture = Fixture::new();
    fixture.take(who(1, 0), WRITE, WHOLE);
    fixture.queue(who(2, 0), READ, bytes(0, 0), Waits::Granted);
    fixture.queue(who(2, 1), READ, bytes(9, 9), Waits::Granted);
    fixture.take(who(1, 0), READ, bytes(0, 4));
    assert_eq!(fixture.called_and_accepted(), [who(2, 0)]);
    fixture.unlock(who(1, 0), bytes(5, 9));
    assert_eq!(fixture.called_and_accepted(), [who(2, 1)]);
}

#[test]
fn a_waiter_for_other_bytes_does_not_wait_for_its_turn() {
    let mut fixture = Fixture::new();
    fixture.take(who(1, 0), WRITE, bytes(0, 9));
    fixture.queue(who(2, 0), WRITE, bytes(0, 0), Waits::Granted);
    fixture.queue(who(3, 0), WRITE, bytes(5, 5), Waits::Granted);
    fixture.unlock(who(1, 0), bytes(5, 5));
    assert_eq!(fixture.called_and_accepted(), [who(3, 0)]);
    // One that wants what an earlier one waits for stays behind it, even if it is free.
    fixture.queue(who(2, 1), WRITE, bytes(0, 20), Waits::Granted);
    fixture.queue(who(3, 1), WRITE, bytes(20, 30), Waits::Granted);
    fixture.take(who(3, 1), WRITE, bytes(21, 30));
}

// SEMANTICS: lockd-10.
#[test]
fn a_request_that_may_not_wait_is_denied_by_held_locks_alone() {
    let mut fixture = Fixture::new();
    let (reader, writer) = (who(1, 0), who(2, 0));
    fixture.take(reader, READ, bytes(0, 9));
    fixture.queue(writer, WRITE, bytes(0, 19), Waits::Granted);
    // Nobody holds it: LOCK and TEST agree.
    let others = [(who(3, 0), READ, bytes(0, 0)), (who(3, 1), WRITE, bytes(15, 15))];
    for (other, lock_type, range) in others {
        assert_eq!(fixture.table.test(&file(FILE), &other.owner(), lock_type, range), None);
        assert!(fixture.holds_back(other, lock_type, range), "one that may wait has its turn later");
        fixture.take(other, lock_type, range);
    }
    assert!(fixture.denies(who(3, 0), WRITE, bytes(0, 0)));
    fixture.unlock(reader, WHOLE);
    fixture.unlock(who(3, 0), WHOLE);
    assert_eq!(fixture.called(), []);
    fixture.unlock(who(3, 1), WHOLE);
    assert_eq!(fixture.called_and_accepted(), [writer]);
    fixture.unlock(writer, WHOLE);
    fixture.assert_empty();
}

#[test]
fn a_waiter_that_gets_another_lock_meanwhile_passes_those_that_now_wait_for_it() {
    let mut fixture = Fixture::new();
    let (holder, first, second) = (who(1, 0), who(2, 0), who(3, 0));
    fixture.take(holder, WRITE, bytes(0, 0));
    fixture.queue(first, WRITE, bytes(0, 9), Waits::Granted);
    fixture.queue(second, WRITE, bytes(5, 5), Waits::Granted);
    assert_eq!(fixture.called(), []);
    fixture.take(second, WRITE, bytes(9, 9));
    // Otherwise each would wait for the other.
    assert_eq!(fixture.called_and_accepted(), [second]);
    fixture.unlock(second, WHOLE);
    fixture.unlock(holder, WHOLE);
    assert_eq!(fixture.called_and_accepted(), [first]);
}

/// The largest number of waiters that a request visits, if this number of owners each hold a byte
/// and wait for another one: all for the same, or each for one of its own behind a writer.
fn visits_of_a_request(owners: u32, behind_writer: bool) -> u64 {
    let mut fixture = Fixture::new();
    let mut visited = 0;
    let mut count = |fixture: &mut Fixture, request: &dyn Fn(&mut Fixture)| {
        let before = VISITS.get();
        request(fixture);
        visited = visited.max(VISITS.get() - before);
    };
    let (holder, writer, other) = (who(1, 0), who(2, 0), who(3, 0));
    let byte = |number: u32| bytes(number.into(), number.into());
    fixture.take(holder, WRITE, bytes(0, owners.into()));
    if behind_writer {
        fixture.queue(writer, WRITE, bytes(0, owners.into()), Waits::Granted);
    }
    for number in 0..owners {
        fixture.take(who(4, number), WRITE, byte(10_000 + number));
    }
    for number in 0..owners {
        let wanted = byte(if behind_writer { number } else { 0 });
        count(&mut fixture, &|fixture| fixture.queue(who(4, number), WRITE, wanted, Waits::Granted));
    }
    // Locks of one that does not wait, and of one that waits; a wait for that of another waiter.
    count(&mut fixture, &|fixture| fixture.take(other, WRITE, byte(20_000)));
    count(&mut fixture, &|fixture| fixture.take(who(4, 1), WRITE, byte(20_001)));
    count(&mut fixture, &|fixture| fixture.queue(other, WRITE, byte(10_000), Waits::Granted));
    // The writer still waits for the last byte.
    count(&mut fixture, &|fixture| fixture.unlock(holder, bytes(1, u64::from(owners) - 1)));
    assert_eq!(fixture.called(), []);
    count(&mut fixture, &|fixture| fixture.unlock(holder, WHOLE));
    let next = if behind_writer { writer } else { who(4, 0) };
    assert_eq!(fixture.called_and_accepted(), [next]);
    visited
}

#[test]
fn a_request_visits_each_waiter_a_few_times_also_if_all_of_them_hold_locks() {
    for behind_writer in [false, true] {
        for owners in [200, 2_000] {
            let visits = visits_of_a_request(owners, behind_writer);
            assert!(visits < 10 * u64::from(owners), "{visits} of {owners} owners, {behind_writer}");
        }
    }
}

/// The number of waiters that the unlock visits which ends `fixture`'s wait; all who get a lock.
fn visits_of_the_unlock(fixture: &mut Fixture, holder: Who) -> (u64, Vec<Who>) {
    let before = VISITS.get();
    fixture.unlock(holder, WHOLE);
    (VISITS.get() - before, fixture.called())
}

#[test]
fn an_unlock_that_lets_all_readers_upgrade_past_a_writer_visits_each_waiter_a_few_times() {
    for owners in [200, 2_000] {
        let mut fixture = Fixture::new();
        let (holder, writer) = (who(1, 0), who(2, 0));
        let byte = |number: u32| bytes(number.into(), number.into());
        for number in 0..owners {
            fixture.take(who(4, number), READ, byte(number));
        }
        fixture.take(holder, READ, WHOLE);
        fixture.queue(writer, WRITE, WHOLE, Waits::Granted);
        for number in 0..owners {
            fixture.queue(who(4, number), WRITE, byte(number), Waits::Granted);
        }
        let (visits, called) = visits_of_the_unlock(&mut fixture, holder);
        assert_eq!(called.len(), owners as usize, "the writer waits for all of them");
        assert!(visits < 10 * u64::from(owners), "{visits} of {owners} owners");
    }
}

#[test]
fn an_unlock_that_grants_many_locks_to_one_owner_visits_each_waiter_a_few_times() {
    for waiters in [200, 2_000] {
        let mut fixture = Fixture::new();
        fixture.take(who(1, 0), WRITE, WHOLE);
        for number in 0..waiters {
            fixture.queue(who(4, 0), WRITE, bytes(2 * number, 2 * number), Waits::Granted);
        }
        let (visits, called) = visits_of_the_unlock(&mut fixture, who(1, 0));
        assert_eq!(called.len() as u64, waiters);
        assert!(visits < 10 * waiters, "{visits} of {waiters} waiters");
    }
}

#[test]
fn an_unlock_visits_waiters_that_overlap_their_neighbours_a_few_times_each() {
    for owners in [200, 2_000] {
        let mut fixture = Fixture::new();
        fixture.take(who(1, 0), WRITE, WHOLE);
        for number in 0..owners {
            let first = 2 * u64::from(number);
            fixture.queue(who(4, number), WRITE, bytes(first, first + 2), Waits::Granted);
        }
        let (visits, called) = visits_of_the_unlock(&mut fixture, who(1, 0));
        assert_eq!(called, [who(4, 0)], "each other one waits for the one before");
        assert!(visits < 10 * u64::from(owners), "{visits} of {owners} owners");
    }
}

#[test]
fn requests_leave_the_queue_with_the_open_they_are_based_on() {
    let mut fixture = Fixture::new();
    fixture.take(who(1, 0), WRITE, WHOLE);
    // In tests the open has the number of the process.
    for process in [5, 6] {
        fixture.queue(who(2, process), WRITE, WHOLE, Waits::Notified);
        fixture.queue(who(3, process), WRITE, WHOLE, Waits::Notified);
    }
    let Fixture { table, callbacks, now, .. } = &mut fixture;
    table.cancel_based_on(&file(FILE), client(2), 5, *now, callbacks);
    table.cancel_based_on(&file(FILE), client(2), 7, *now, callbacks);
    assert_eq!(fixture.table.counts().waiters, 3);
    fixture.unlock(who(1, 0), WHOLE);
    assert_eq!(fixture.called(), [who(2, 6)]);
}

// SEMANTICS: lockd-10.
#[test]
fn an_owner_passes_waiters_that_wait_for_itself() {
    let mut fixture = Fixture::new();
    let (a, b, c) = (who(1, 0), who(2, 0), who(3, 0));
    fixture.take(a, READ, bytes(0, 9));
    fixture.queue(b, WRITE, bytes(5, 15), Waits::Granted);
    fixture.queue(c, WRITE, bytes(12, 30), Waits::Granted);
    // Otherwise b would wait for a, and a for b, or for c behind b.
    fixture.take(a, READ, bytes(0, 9));
    fixture.take(a, WRITE, bytes(0, 12));
    fixture.take(a, READ, bytes(25, 25));
    // An owner without a lock does not pass.
    assert!(fixture.holds_back(who(4, 0), READ, bytes(30, 30)));
    // The same among waiters: d waits for e alone, not for b.
    fixture.take(who(5, 0), WRITE, bytes(40, 40));
    fixture.queue(a, READ, bytes(14, 40), Waits::Granted);
    fixture.unlock(who(5, 0), WHOLE);
    assert_eq!(fixture.called_and_accepted(), [a]);
}

#[test]
fn a_request_that_is_repeated_keeps_its_place() {
    let mut fixture = Fixture::new();
    fixture.take(who(1, 0), WRITE, WHOLE);
    fixture.queue(who(2, 0), WRITE, WHOLE, Waits::Granted);
    fixture.queue(who(2, 1), WRITE, WHOLE, Waits::Granted);
    fixture.queue(who(2, 0), WRITE, WHOLE, Waits::Granted);
    assert_eq!(fixture.table.counts().waiters, 2);
    fixture.unlock(who(1, 0), WHOLE);
    assert_eq!(fixture.called(), [who(2, 0)]);
    // The request that crosses its grant is granted, and the refusal of the late callback by a
    // client that waits no more changes nothing.
    fixture.take(who(2, 0), WRITE, WHOLE);
    fixture.table.answered(client(2), CallbackId(1), CallbackAnswer::Refused, fixture.now, &mut Vec::new());
    assert_eq!(fixture.held(who(2, 0)), [(WRITE, WHOLE)]);
}

#[test]
fn cancel_takes_exactly_one_request_out_and_can_be_repeated() {
    let mut fixture = Fixture::new();
    fixture.take(who(1, 0), READ, WHOLE);
    fixture.queue(who(2, 0), WRITE, bytes(0, 9), Waits::Granted);
    fixture.queue(who(3, 0), READ, bytes(5, 5), Waits::Granted);
    assert_eq!(fixture.cancel(who(2, 0), WRITE, bytes(0, 8)), CancelOutcome::NotWaiting);
    assert_eq!(fixture.cancel(who(2, 0), READ, bytes(0, 9)), CancelOutcome::NotWaiting);
    assert_eq!(fixture.cancel(who(2, 1), WRITE, bytes(0, 9)), CancelOutcome::NotWaiting);
    assert_eq!(fixture.called(), []);
    assert_eq!(fixture.cancel(who(2, 0), WRITE, bytes(0, 9)), CancelOutcome::Cancelled);
    assert_eq!(fixture.called_and_accepted(), [who(3, 0)], "it has waited for the writer alone");
    assert_eq!(fixture.cancel(who(2, 0), WRITE, bytes(0, 9)), CancelOutcome::NotWaiting);
}

// SEMANTICS: lockd-11.
#[test]
fn a_refused_grant_is_taken_back_and_what_was_held_before_is_restored() {
    let mut fixture = Fixture::new();
    fixture.take(who(1, 0), READ, bytes(0, 20));
    fixture.take(who(2, 0), READ, bytes(0, 9));
    fixture.queue(who(2, 0), WRITE, bytes(5, 15), Waits::Granted);
    fixture.queue(who(3, 0), WRITE, bytes(12, 12), Waits::Granted);
    fixture.unlock(who(1, 0), WHOLE);
    let callbacks = fixture.callbacks();
    assert_eq!(fixture.held(who(2, 0)), [(READ, bytes(0, 4)), (WRITE, bytes(5, 15))]);
    fixture.table.answered(client(3), callbacks[0].id, CallbackAnswer::Refused, fixture.now, &mut Vec::new());
    assert_eq!(fixture.held(who(2, 0)).len(), 2, "only its own client answers a callback");
    fixture.answer(&callbacks[0], CallbackAnswer::Refused);
    assert_eq!(fixture.held(who(2, 0)), [(READ, bytes(0, 9))]);
    assert_eq!(fixture.called(), [who(3, 0)]);
    assert_eq!(fixture.table.counts().taken_back, 1);
}

// SEMANTICS: lockd-11.
#[test]
fn a_grant_that_may_be_known_is_kept_and_retransmitted_less_and_less_often() {
    let mut fixture = Fixture::new();
    fixture.take(who(1, 0), WRITE, WHOLE);
    fixture.queue(who(2, 0), WRITE, WHOLE, Waits::Granted);
    fixture.queue(who(2, 1), WRITE, WHOLE, Waits::Granted);
    fixture.queue(who(3, 0), WRITE, WHOLE, Waits::Granted);
    fixture.unlock(who(1, 0), WHOLE);
    let (start, mut sent) = (fixture.now, Vec::new());
    for attempt in 0..12 {
        let callback = fixture.callbacks().remove(0);
        assert_eq!((callback.id, callback.attempt), (CallbackId(1), attempt));
        assert!(fixture.table.begin_grant(client(2), callback.id));
        sent.push((fixture.now - start).as_secs());
        // Those after the first cannot reach it any more.
        let lost = if attempt == 0 { CallbackAnswer::Unanswered } else { CallbackAnswer::Undelivered };
        fixture.answer(&callback, lost);
        fixture.now = fixture.table.next_tick().unwrap();
        fixture.advance(Duration::ZERO);
    }
    assert_eq!(sent, [0, 1, 3, 7, 15, 31, 63, 123, 183, 243, 303, 363]);
    assert_eq!(fixture.held(who(2, 0)), [(WRITE, WHOLE)]);
    assert!(fixture.denies(who(3, 0), WRITE, WHOLE));
    fixture.callbacks();
    // It has restarted.
    fixture.table.release_client(client(2), fixture.now, &mut fixture.callbacks);
    assert_eq!(fixture.called_and_accepted(), [who(3, 0)]);
    fixture.unlock(who(3, 0), WHOLE);
    fixture.assert_empty();
}

// SEMANTICS: lockd-11.
#[test]
fn a_cancelled_grant_is_taken_back_until_it_is_confirmed() {
    for answers in 0..3 {
        let mut fixture = Fixture::new();
        fixture.take(who(1, 0), READ, bytes(0, 20));
        fixture.take(who(2, 0), READ, bytes(0, 9));
        fixture.queue(who(2, 0), WRITE, bytes(5, 15), Waits::Granted);
        fixture.queue(who(3, 0), WRITE, bytes(12, 12), Waits::Granted);
        fixture.unlock(who(1, 0), WHOLE);
        let callback = fixture.callbacks().remove(0);
        // A copy may have been received, and another one was refused.
        for answer in [CallbackAnswer::Unanswered, CallbackAnswer::Refused].into_iter().take(answers) {
            fixture.answer(&callback, answer);
        }
        assert_eq!(fixture.cancel(who(2, 0), WRITE, bytes(5, 14)), CancelOutcome::NotWaiting);
        assert_eq!(fixture.cancel(who(2, 0), WRITE, bytes(5, 15)), CancelOutcome::Cancelled);
        assert_eq!(fixture.held(who(2, 0)), [(READ, bytes(0, 9))]);
        assert!(!fixture.table.begin_grant(client(2), callback.id), "it is not sent any more");
        assert_eq!(fixture.called_and_accepted(), [who(3, 0)]);
        fixture.answer(&callback, ACCEPTED);
        assert_eq!(fixture.held(who(2, 0)), [(READ, bytes(0, 9))], "a late answer");
        assert_eq!(fixture.cancel(who(3, 0), WRITE, bytes(12, 12)), CancelOutcome::NotWaiting);
        assert_eq!(fixture.held(who(3, 0)), [(WRITE, bytes(12, 12))], "confirmed");
        fixture.unlock(who(2, 0), WHOLE);
        fixture.unlock(who(3, 0), WHOLE);
        fixture.assert_empty();
    }
}

#[test]
fn a_grant_that_is_not_sent_yet_is_handed_to_the_protocol_again_and_is_not_known() {
    let mut fixture = Fixture::new();
    fixture.take(who(1, 0), WRITE, WHOLE);
    fixture.queue(who(2, 0), WRITE, WHOLE, Waits::Granted);
    fixture.unlock(who(1, 0), WHOLE);
    let first = fixture.callbacks().remove(0);
    assert!(!fixture.table.begin_grant(client(3), first.id), "that of another client");
    fixture.advance(30 * SECOND);
    let again = fixture.callbacks().remove(0);
    assert_eq!((again.id, again.attempt), (first.id, 0));
    assert!(fixture.table.begin_grant(client(2), again.id));
    assert!(!fixture.table.begin_grant(client(2), again.id), "it was queued twice");
    fixture.answer(&again, CallbackAnswer::Refused);
    fixture.take(who(1, 0), WRITE, WHOLE);
    assert!(!fixture.table.begin_grant(client(2), again.id));
}

// SEMANTICS: lockd-11.
#[test]
fn a_client_that_cannot_have_heard_of_its_grant_leaves_at_once() {
    let mut fixture = Fixture::new();
    fixture.take(who(1, 0), WRITE, WHOLE);
    fixture.queue(who(2, 0), WRITE, WHOLE, Waits::Granted);
    fixture.queue(who(2, 1), WRITE, WHOLE, Waits::Granted);
    fixture.queue(who(3, 0), WRITE, WHOLE, Waits::Granted);
    fixture.unlock(who(1, 0), WHOLE);
    let callback = fixture.callbacks().remove(0);
    fixture.answer(&callback, CallbackAnswer::Undelivered);
    assert_eq!(fixture.called(), [who(3, 0)]);
    assert_eq!(fixture.table.counts().waiters, 0);
}

#[test]
fn a_refusal_does_not_take_back_what_an_earlier_transmission_granted() {
    let mut fixture = Fixture::new();
    fixture.take(who(1, 0), WRITE, WHOLE);
    fixture.queue(who(2, 0), WRITE, WHOLE, Waits::Granted);
    fixture.unlock(who(1, 0), WHOLE);
    let callback = fixture.callbacks().remove(0);
    // The client has accepted it; its answer is lost.
    fixture.answer(&callback, CallbackAnswer::Unanswered);
    fixture.advance(SECOND);
    let again = fixture.callbacks().remove(0);
    fixture.answer(&again, CallbackAnswer::Refused);
    assert_eq!(fixture.held(who(2, 0)), [(WRITE, WHOLE)]);
    fixture.unlock(who(2, 0), WHOLE);
    fixture.assert_empty();
}

#[test]
fn a_protocol_that_reports_no_answer_is_handed_the_grant_again() {
    let mut fixture = Fixture::new();
    fixture.take(who(1, 0), WRITE, WHOLE);
    fixture.queue(who(2, 0), WRITE, WHOLE, Waits::Granted);
    fixture.unlock(who(1, 0), WHOLE);
    let callback = fixture.callbacks().remove(0);
    assert!(fixture.table.begin_grant(client(2), callback.id));
    fixture.advance(30 * SECOND);
    fixture.advance(SECOND);
    let again = fixture.callbacks().remove(0);
    assert_eq!((again.id, again.attempt), (callback.id, 1));
    // The client may have accepted the first one.
    fixture.answer(&again, CallbackAnswer::Refused);
    assert_eq!(fixture.held(who(2, 0)), [(WRITE, WHOLE)]);
    assert_eq!(fixture.table.next_tick(), None);
}

#[test]
fn a_range_is_reserved_once_the_notified_client_has_answered() {
    for (round_trip, reserved) in [(1, 50), (30, 120), (900, 2_000)] {
        let mut fixture = Fixture::new();
        fixture.take(who(1, 0), WRITE, WHOLE);
        fixture.queue(who(2, 0), WRITE, WHOLE, Waits::Notified);
        fixture.queue(who(3, 0), WRITE, WHOLE, Waits::Notified);
        fixture.unlock(who(1, 0), WHOLE);
        let callback = fixture.callbacks().remove(0);
        assert_eq!((callback.style, Who::of(&callback.lock)), (CallbackStyle::Notified, who(2, 0)));
        fixture.answer(&callback, CallbackAnswer::Accepted { round_trip: MILLISECOND * round_trip });
        let tested = fixture.table.test(&file(FILE), &who(1, 0).owner(), READ, WHOLE);
        assert_eq!(tested.map(|holder| Who::of(&holder)), Some(who(2, 0)));
        fixture.advance(MILLISECOND * (reserved - 1));
        assert!(fixture.denies(who(1, 0), WRITE, WHOLE));
        assert_eq!(fixture.called(), []);
        if round_trip == 30 {
            assert_eq!(fixture.lock(who(2, 0), WRITE, WHOLE, Waits::Notified), LockOutcome::Granted);
            fixture.unlock(who(2, 0), WHOLE);
            assert_eq!(fixture.called(), [who(3, 0)]);
        } else {
            fixture.advance(MILLISECOND);
            assert_eq!(fixture.called(), [who(3, 0)], "one that does not come leaves the queue");
            assert_eq!(fixture.table.counts().waiters, 1);
        }
    }
}

// SEMANTICS: stateful-10.
#[test]
fn nothing_is_reserved_before_the_notified_client_answers() {
    let mut fixture = Fixture::new();
    fixture.take(who(1, 0), WRITE, WHOLE);
    fixture.queue(who(2, 0), WRITE, WHOLE, Waits::Notified);
    fixture.unlock(who(1, 0), WHOLE);
    let callback = fixture.callbacks().remove(0);
    fixture.take(who(1, 0), WRITE, WHOLE);
    fixture.answer(&callback, ACCEPTED);
    fixture.queue(who(2, 0), WRITE, WHOLE, Waits::Notified);
    // It has kept its place.
    fixture.queue(who(3, 0), WRITE, WHOLE, Waits::Notified);
    fixture.unlock(who(1, 0), WHOLE);
    assert_eq!(fixture.called(), [who(2, 0)]);
    // Its client does not answer: after a second the next is notified as well.
    fixture.advance(SECOND - MILLISECOND);
    assert_eq!(fixture.called(), []);
    fixture.advance(MILLISECOND);
    assert_eq!(fixture.called(), [who(3, 0)]);
    // Whoever answers first has it.
    fixture.table.answered(client(3), CallbackId(2), ACCEPTED, fixture.now, &mut fixture.callbacks);
    assert!(fixture.denies(who(2, 0), WRITE, WHOLE));
    assert_eq!(fixture.lock(who(3, 0), WRITE, WHOLE, Waits::No), LockOutcome::Granted);
    fixture.unlock(who(3, 0), WHOLE);
    assert_eq!(fixture.called(), [who(2, 0)]);
    fixture.table.answered(
        client(2),
        CallbackId(1),
        CallbackAnswer::Unanswered,
        fixture.now,
        &mut Vec::new(),
    );
    fixture.assert_empty();
}

// SEMANTICS: stateful-10.
#[test]
fn a_client_that_locks_again_before_another_is_notified_waits_for_its_turn() {
    let mut fixture = Fixture::new();
    fixture.take(who(1, 0), WRITE, WHOLE);
    fixture.queue(who(2, 0), WRITE, WHOLE, Waits::Notified);
    for (one, other) in [(1, 2), (2, 1), (1, 2)] {
        fixture.unlock(who(one, 0), WHOLE);
        let callback = fixture.callbacks().remove(0);
        assert_eq!(Who::of(&callback.lock), who(other, 0));
        fixture.queue(who(one, 0), WRITE, WHOLE, Waits::Notified);
        fixture.answer(&callback, ACCEPTED);
        assert_eq!(fixture.lock(who(other, 0), WRITE, WHOLE, Waits::Notified), LockOutcome::Granted);
    }
    // One that does not answer within a second is passed, and keeps its place.
    fixture.unlock(who(2, 0), WHOLE);
    assert_eq!(fixture.called(), [who(1, 0)]);
    fixture.advance(SECOND - MILLISECOND);
    fixture.queue(who(2, 0), WRITE, WHOLE, Waits::Notified);
    fixture.advance(MILLISECOND);
    assert_eq!(fixture.called(), [who(2, 0)]);
    assert_eq!(fixture.lock(who(2, 0), WRITE, WHOLE, Waits::Notified), LockOutcome::Granted);
    fixture.queue(who(3, 0), WRITE, WHOLE, Waits::Notified);
    fixture.queue(who(1, 0), WRITE, WHOLE, Waits::Notified);
    fixture.unlock(who(2, 0), WHOLE);
    assert_eq!(fixture.called(), [who(1, 0)]);
}

#[test]
fn a_waiter_that_should_repeat_its_request_and_does_not_leaves_the_queue() {
    let mut fixture = Fixture::new();
    fixture.take(who(1, 0), READ, WHOLE);
    fixture.queue(who(2, 0), WRITE, WHOLE, Waits::Notified);
    fixture.advance(60 * SECOND);
    fixture.queue(who(2, 0), WRITE, WHOLE, Waits::Notified);
    fixture.advance(89 * SECOND);
    assert!(fixture.holds_back(who(3, 0), READ, WHOLE));
    fixture.advance(SECOND);
    assert_eq!(fixture.lock(who(3, 0), READ, WHOLE, Waits::Polled), LockOutcome::Granted);
    assert_eq!(fixture.table.counts().expired, 1);
}

#[test]
fn both_styles_of_waiting_take_turns() {
    let mut fixture = Fixture::new();
    fixture.take(who(1, 0), WRITE, WHOLE);
    for process in 0..3 {
        fixture.queue(who(2, process), WRITE, WHOLE, Waits::Granted);
        fixture.queue(who(3, process), WRITE, WHOLE, Waits::Notified);
    }
    let mut holder = who(1, 0);
    let mut order = Vec::new();
    for _ in 0..6 {
        fixture.unlock(holder, WHOLE);
        let callback = fixture.callbacks().remove(0);
        holder = Who::of(&callback.lock);
        fixture.answer(&callback, ACCEPTED);
        if callback.style == CallbackStyle::Notified {
            assert_eq!(fixture.lock(holder, WRITE, WHOLE, Waits::Notified), LockOutcome::Granted);
        }
        order.push(holder);
    }
    let expected: Vec<Who> = (0..3).flat_map(|process| [who(2, process), who(3, process)]).collect();
    assert_eq!(order, expected);
    fixture.unlock(holder, WHOLE);
    fixture.assert_empty();
}

#[test]
fn a_client_that_repeats_its_request_takes_turns_with_one_that_is_called_back() {
    let mut fixture = Fixture::new();
    fixture.take(who(1, 0), WRITE, WHOLE);
    fixture.queue(who(2, 0), WRITE, WHOLE, Waits::Repeated);
    fixture.queue(who(3, 0), WRITE, WHOLE, Waits::Granted);
    for _ in 0..3 {
        // It keeps its place, and the range when it is free.
        fixture.advance(REPEAT_MIN - MILLISECOND);
        fixture.queue(who(2, 0), WRITE, WHOLE, Waits::Repeated);
        fixture.unlock(who(1, 0), WHOLE);
        fixture.unlock(who(3, 0), WHOLE);
        assert_eq!(fixture.called(), []);
        assert!(fixture.denies(who(4, 0), READ, WHOLE));
        fixture.queue(who(3, 0), WRITE, WHOLE, Waits::Granted);
        fixture.advance(20 * MILLISECOND);
        assert_eq!(fixture.lock(who(2, 0), WRITE, WHOLE, Waits::Repeated), LockOutcome::Granted);
        // The turn is the other's, however early it asks again.
        fixture.unlock(who(2, 0), WHOLE);
        assert_eq!(fixture.called_and_accepted(), [who(3, 0)]);
        fixture.queue(who(2, 0), WRITE, WHOLE, Waits::Repeated);
    }
    fixture.unlock(who(3, 0), WHOLE);
    assert_eq!(fixture.lock(who(2, 0), WRITE, WHOLE, Waits::Repeated), LockOutcome::Granted);
    fixture.unlock(who(2, 0), WHOLE);
    fixture.assert_empty();
}

#[test]
fn one_that_does_not_repeat_its_request_holds_others_up_for_a_few_of_its_intervals() {
    // The time between its requests, and how long it keeps its place after the last.
    for (interval, kept) in [(0, 250), (83, 250), (84, 252), (500, 1_500), (667, 2_000), (1_500, 2_000)] {
        for is_free in [false, true] {
            let mut fixture = Fixture::new();
            fixture.take(who(1, 0), WRITE, WHOLE);
            fixture.queue(who(2, 0), WRITE, WHOLE, Waits::Repeated);
            // The first interval may be no longer than that; each is twice the one before.
            for interval in [interval / 8, interval / 4, interval / 2, interval] {
                fixture.advance(MILLISECOND * interval);
                fixture.queue(who(2, 0), WRITE, WHOLE, Waits::Repeated);
            }
            assert_eq!(fixture.table.counts().expired, 0, "{interval}");
            fixture.queue(who(3, 0), WRITE, WHOLE, Waits::Granted);
            if is_free {
                fixture.unlock(who(1, 0), WHOLE);
            }
            fixture.advance(MILLISECOND * (kept - 1));
            assert_eq!((fixture.called(), fixture.table.counts().waiters), (vec![], 2), "{interval}");
            fixture.advance(MILLISECOND);
            assert_eq!(fixture.table.counts().expired, 1);
            let called = if is_free { vec![who(3, 0)] } else { vec![] };
            assert_eq!(fixture.called(), called);
        }
    }
}
