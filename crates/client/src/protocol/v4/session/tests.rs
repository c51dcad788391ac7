//! The state of a session, without a server.

use curt_policy::MonotonicTime;
use curt_proto::nfs4::{ChannelAttributes, CreateSessionFlags, SessionId, SlotId};

use super::*;
use crate::protocol::HeldDelegation;

/// A session with four slots.
fn monitor(origin: Instant) -> Arc<SessionMonitor> {
    let monitor = Arc::<SessionMonitor>::default();
    let created = CreateSessionOk4 { flags: CreateSessionFlags::default(), ..session() };
    monitor.lock().created(&created, origin);
    monitor
}

fn slot(monitor: &Arc<SessionMonitor>) -> SlotGuard<'_> {
    match monitor.take_slot(CompoundPurpose::Recovery, None, &Interrupt::never()) {
        Ok(SlotOrRecovery::Slot(guard)) => guard,
        _ => panic!("there is a free slot"),
    }
}

fn reply(guard: &SlotGuard<'_>, flags: u32) -> SequenceOk4 {
    let SequenceArgs4 { session, sequence, slot, .. } = guard.arguments;
    let status_flags = SequenceStatusFlags(flags);
    let (highest_slot, target_highest_slot) = (SlotId(3), SlotId(3));
    SequenceOk4 { session, sequence, slot, highest_slot, target_highest_slot, status_flags }
}

fn session() -> CreateSessionOk4 {
    let channel = ChannelAttributes { requests_max: 4, ..ChannelAttributes::default() };
    CreateSessionOk4 {
        session: SessionId::default(),
        sequence: SequenceId(1),
        flags: CreateSessionFlags(CreateSessionFlags::CONN_BACK_CHAN),
        fore: channel.clone(),
        back: channel,
    }
}

// SEMANTICS: sessions-2.
#[test]
fn a_server_that_has_no_confirmed_record_of_a_client_has_lost_its_state() {
    let (monitor, now) = (monitor(Instant::now()), Instant::now());
    let exchanged = |client, is_confirmed| {
        let mut state = monitor.lock();
        let is_new = state.exchanged(Clientid(client), SequenceId(1), is_confirmed);
        state.created(&session(), now);
        let next = state.need();
        state.satisfied(RecoveryStep::Reclaim);
        (is_new, next)
    };
    assert_eq!(exchanged(1, false), (true, RecoveryStep::Reclaim));
    assert_eq!(exchanged(1, true), (false, RecoveryStep::None), "only the session was lost");
    assert_eq!(exchanged(1, false), (true, RecoveryStep::Reclaim), "the same number again");
    assert_eq!(exchanged(2, true), (true, RecoveryStep::Reclaim));
}

#[test]
fn a_request_names_the_highest_slot_in_use() {
    let monitor = monitor(Instant::now());
    let highest = |guard: &SlotGuard<'_>| guard.arguments.highest_slot.0;
    let (first, second, third) = (slot(&monitor), slot(&monitor), slot(&monitor));
    assert_eq!([&first, &second, &third].map(highest), [0, 1, 2]);
    first.refused();
    let first = slot(&monitor);
    assert_eq!(highest(&first), 2);
    first.refused();
    third.refused();
    assert_eq!(highest(&slot(&monitor)), 1, "the second is in use");
    let mut fewer = session();
    fewer.fore.requests_max = 1;
    monitor.lock().created(&fewer, Instant::now());
    assert_eq!(highest(&slot(&monitor)), 0, "of the new session");
    drop(second);
}

#[test]
fn slots_in_doubt_are_used_last_and_recalled_ones_not_at_all() {
    let monitor = monitor(Instant::now());
    let index = |guard: &SlotGuard<'_>| guard.arguments.slot.0;
    drop(slot(&monitor));
    let taken: Vec<_> = (0..4).map(|_| slot(&monitor)).collect();
    assert_eq!(taken.iter().map(index).collect::<Vec<_>>(), [1, 2, 3, 0]);
    assert!(taken[3].is_doubtful() && monitor.take_doubtful().is_none(), "it is in use");
    taken.into_iter().for_each(SlotGuard::refused);
    monitor.lock().slots.limit(SlotId(1));
    assert_eq!([slot(&monitor), slot(&monitor)].each_ref().map(index), [1, 0]);
}

// SEMANTICS: sessions-6.
#[test]
fn a_doubt_about_a_slot_that_was_recalled_ends_when_the_server_knows_that_it_is_unused() {
    let (monitor, origin) = (monitor(Instant::now()), Instant::now());
    monitor.lock().satisfied(RecoveryStep::Reclaim);
    let executed = |guard: SlotGuard<'_>| {
        let only = SlotId(0);
        let reply = SequenceOk4 { highest_slot: only, target_highest_slot: only, ..reply(&guard, 0) };
        guard.executed(&reply, origin);
    };
    let (early, interrupted, late) = (slot(&monitor), slot(&monitor), slot(&monitor));
    drop(interrupted);
    executed(early);
    assert!(monitor.lock().slots.has_doubtful(), "that was sent before");
    assert!(monitor.take_doubtful().is_none(), "a SEQUENCE in it would be refused");
    assert!(monitor.lock().must_tell_of_slots());
    let next = slot(&monitor);
    assert_eq!((next.arguments.slot, next.arguments.highest_slot), (SlotId(0), SlotId(2)));
    executed(next);
    assert!(monitor.lock().slots.has_doubtful(), "a higher slot is in use");
    executed(late);
    executed(slot(&monitor));
    assert!(!monitor.lock().slots.has_doubtful() && !monitor.lock().must_tell_of_slots());
    // If the server wants it to be used again, it is used last, and settled first.
    monitor.lock().slots.limit(SlotId(1));
    let taken = [slot(&monitor), slot(&monitor)];
    assert_eq!(taken.each_ref().map(SlotGuard::is_doubtful), [false, true]);
}

// SEMANTICS: sessions-6.
#[test]
fn a_slot_that_the_server_still_accepts_is_settled_by_a_request_in_it() {
    let (monitor, origin) = (monitor(Instant::now()), Instant::now());
    monitor.lock().satisfied(RecoveryStep::Reclaim);
    let executed = |guard: SlotGuard<'_>, highest| {
        let (highest_slot, target_highest_slot) = (SlotId(highest), SlotId(0));
        let reply = SequenceOk4 { highest_slot, target_highest_slot, ..reply(&guard, 0) };
        guard.executed(&reply, origin);
    };
    let taken: Vec<_> = (0..4).map(|_| slot(&monitor)).collect();
    drop(taken);
    executed(slot(&monitor), 2);
    executed(slot(&monitor), 2);
    // The server prefers the first slot, and refuses the last.
    let settled: Vec<u32> = std::iter::from_fn(|| {
        let doubtful = monitor.take_doubtful()?;
        let index = doubtful.arguments.slot.0;
        assert!(monitor.lock().slots.has_doubtful());
        assert!(doubtful.settled(NfsStat4::Ok));
        Some(index)
    })
    .collect();
    assert_eq!(settled, [1, 2]);
    assert!(!monitor.lock().slots.has_doubtful() && !monitor.lock().must_tell_of_slots());
    // It accepts fewer than it did.
    monitor.lock().slots.limit(SlotId(3));
    let taken: Vec<_> = (0..4).map(|_| slot(&monitor)).collect();
    drop(taken);
    executed(slot(&monitor), 0);
    assert!(monitor.take_doubtful().is_none(), "a SEQUENCE in it would be refused");
    assert!(!monitor.lock().slots.has_doubtful());
    assert_eq!(slot(&monitor).arguments.slot, SlotId(0), "the only one");
}

// SEMANTICS: sessions-6.
#[test]
fn no_slot_is_used_that_the_server_does_not_accept_yet() {
    let (monitor, origin) = (monitor(Instant::now()), Instant::now());
    let used = |highest, target| {
        let guard = slot(&monitor);
        let (highest_slot, target_highest_slot) = (SlotId(highest), SlotId(target));
        let reply = SequenceOk4 { highest_slot, target_highest_slot, ..reply(&guard, 0) };
        guard.executed(&reply, origin);
        let taken: Vec<_> = std::iter::from_fn(|| monitor.free_slot(&mut monitor.lock(), None)).collect();
        let count = taken.len();
        taken.into_iter().for_each(SlotGuard::refused);
        count
    };
    assert_eq!([used(1, 3), used(3, 1), used(3, 3)], [2, 2, 4]);
}

// SEMANTICS: sessions-2.
#[test]
fn a_recovery_that_fails_for_all_fails_all_who_wait_for_it() {
    let monitor = Arc::<SessionMonitor>::default();
    let take = || monitor.take_slot(CompoundPurpose::Ordinary, None, &Interrupt::never()).map(drop);
    for (failure, expected) in [(Some(CallError::SystemError), Err(CallError::SystemError)), (None, Ok(()))] {
        assert_eq!(take(), Ok(()), "it is the one that recovers");
        let taken = std::thread::scope(|scope| {
            let waiting = scope.spawn(take);
            while monitor.changed.notify_all() == 0 {
                std::thread::yield_now();
            }
            monitor.recovered(failure);
            waiting.join().expect("it does not panic")
        });
        assert_eq!(taken, expected);
        monitor.recovered(None);
    }
}

// SEMANTICS: sessions-6.
#[test]
fn a_state_that_is_revoked_during_recovery_is_still_freed() {
    let monitor = monitor(Instant::now());
    let state = |number| Stateid { seqid: 0, other: [number; 12] };
    assert_eq!(monitor.lock().need(), RecoveryStep::Reclaim);
    monitor.free(FreeOrder::Others, state(1));
    monitor.lock().satisfied(RecoveryStep::Reclaim);
    assert_eq!(monitor.lock().need(), RecoveryStep::TestStates);
    assert_eq!(monitor.lock().revoked.to_free(), [state(1)]);
    assert_eq!(monitor.lock().revoked.to_free(), [state(1)], "until it is freed");
    monitor.free(FreeOrder::Others, state(2));
    monitor.free(FreeOrder::Locks, state(3));
    monitor.lock().revoked.freed(state(1));
    monitor.lock().satisfied(RecoveryStep::TestStates);
    assert_eq!(monitor.lock().need(), RecoveryStep::TestStates);
    assert_eq!(monitor.lock().revoked.to_free(), [state(3), state(2)]);
    monitor.lock().revoked.freed(state(3));
    monitor.lock().revoked.freed(state(2));
    monitor.lock().satisfied(RecoveryStep::TestStates);
    assert_eq!(monitor.lock().need(), RecoveryStep::None);
}

#[test]
fn a_reply_that_was_on_its_way_does_not_end_the_doubt_of_another() {
    let origin = Instant::now();
    let monitor = monitor(origin);
    let lease = Arc::clone(&monitor.lock().lease.end);
    lease.begin(origin);
    let held = HeldDelegation::new(&lease);
    let is_valid = || held.is_valid(MonotonicTime::default());
    let first = slot(&monitor);
    let clean = reply(&first, 0);
    first.executed(&clean, origin);
    assert!(is_valid());
    let (early, late) = (slot(&monitor), slot(&monitor));
    let (clean, revoked) = (reply(&early, 0), reply(&late, SequenceStatusFlags::RECALLABLE_STATE_REVOKED));
    late.executed(&revoked, origin);
    assert!(!is_valid());
    early.executed(&clean, origin);
    assert!(!is_valid(), "the server may have answered it before");
    let next = slot(&monitor);
    let clean = reply(&next, 0);
    next.executed(&clean, origin);
    assert!(is_valid());
}

// SEMANTICS: sessions-13.
#[test]
fn a_connection_is_bound_at_once_after_a_loss_and_otherwise_once_in_a_lease() {
    let (monitor, origin) = (Arc::<SessionMonitor>::default(), Instant::now());
    monitor.lock().created(&session(), origin);
    let down = SequenceStatusFlags::CB_PATH_DOWN;
    let answered = |flags, replaced| {
        let slot = slot(&monitor);
        let reply = reply(&slot, flags);
        slot.executed(&reply, origin);
        monitor.lock().must_bind(origin, replaced)
    };
    assert!(!answered(0, 0));
    assert!(answered(0, 1) && !answered(0, 1), "the server has not noticed the loss");
    monitor.lock().created(&session(), origin);
    let late = slot(&monitor);
    assert!(answered(down, 1), "within the first lease");
    assert!(!answered(down, 1), "by one thread");
    monitor.lock().backchannel.bound();
    assert!(monitor.lock().backchannel.is_usable());
    let of_before = reply(&late, down);
    late.executed(&of_before, origin);
    assert!(monitor.lock().backchannel.is_usable(), "that is known");
    assert!(!answered(down, 1), "the server does not accept it");
    assert!(!monitor.lock().backchannel.is_usable());
    assert!(monitor.lock().must_bind(origin + lease::LEASE_DEFAULT, 1));
    assert!(answered(down, 2), "another connection was made");
    assert!(!answered(0, 2));
    assert!(monitor.lock().backchannel.is_usable(), "the server says so");
}

// SEMANTICS: sessions-13.
#[test]
fn a_session_that_was_created_without_a_backchannel_gets_it_with_a_connection() {
    let (monitor, origin) = (Arc::<SessionMonitor>::default(), Instant::now());
    let created = CreateSessionOk4 { flags: CreateSessionFlags::default(), ..session() };
    monitor.lock().created(&created, origin);
    assert!(!monitor.lock().backchannel.is_usable());
    monitor.lock().backchannel.bound();
    assert!(monitor.lock().backchannel.is_usable());
    assert!(monitor.lock().must_bind(origin, 1), "the connection is replaced");
    monitor.lock().created(&created, origin);
    assert!(!monitor.lock().backchannel.is_usable(), "another session");
}
