//! Byte-range locks: no two processes hold conflicting locks, whoever fails is told the truth, and
//! when nothing is on its way the server holds what the processes hold and nobody waits in vain.
//!
//! Client 0 has two processes, client 1 has one. Requests, replies and callbacks overtake one
//! another. Waits are interrupted at every point. The server says that it has cancelled a LOCK
//! although it has granted it, as knfsd does.

mod state;
mod world;

use curt_policy::locks::{LockOptions, LockOrder};
use curt_types::{ByteRange, LockType::*};

use self::world::{Bounds, Callbacks, Locks, Planted, Wanted};
use crate::explore::{find_planted, hold};

const fn bytes(first: u64, last: u64) -> ByteRange {
    match ByteRange::new(first, last) {
        Some(range) => range,
        None => ByteRange::WHOLE,
    }
}

const LEFT: ByteRange = bytes(0, 0);
const RIGHT: ByteRange = bytes(1, 1);
const BOTH: ByteRange = bytes(0, 1);

const fn waiting(lock_type: curt_types::LockType, range: ByteRange) -> Wanted {
    Wanted { lock_type, range, wait: true }
}

const fn trying(lock_type: curt_types::LockType, range: ByteRange) -> Wanted {
    Wanted { lock_type, range, wait: false }
}

/// Exclusive locks of one range.
const EXCLUSIVE: Bounds = Bounds {
    menu: &[waiting(Write, BOTH), trying(Write, BOTH)],
    operations: [2, 1, 1],
    interrupts: 1,
    timers: 1,
    restarts: 0,
    false_restarts: 0,
    refusals: 0,
    losses: 0,
    repeats: 0,
    resends: 0,
    callbacks: Callbacks::Grant,
    are_threads: false,
};
/// Upgrades, downgrades and parts.
const PARTS: Bounds = Bounds {
    menu: &[waiting(Write, BOTH), waiting(Read, BOTH), waiting(Read, LEFT)],
    operations: [2, 0, 1],
    ..EXCLUSIVE
};
/// Readers and a writer.
const SHARED: Bounds =
    Bounds { menu: &[waiting(Write, BOTH), waiting(Read, LEFT)], operations: [1, 1, 1], ..EXCLUSIVE };

/// Two threads of a process that lock bytes of the same range, and another client.
const THREADS: Bounds = Bounds {
    menu: &[waiting(Write, BOTH), trying(Write, LEFT)],
    operations: [1, 2, 1],
    timers: 2,
    are_threads: true,
    ..EXCLUSIVE
};

/// A process that polls while others of its mount lock and unlock bytes that it waits for, too.
const POLLING: Bounds = Bounds {
    menu: &[waiting(Write, BOTH), trying(Write, LEFT), trying(Write, RIGHT)],
    operations: [1, 2, 1],
    interrupts: 0,
    timers: 2,
    callbacks: Callbacks::None,
    ..EXCLUSIVE
};
/// A process that polls for a stronger lock meanwhile.
const UPGRADING: Bounds = Bounds {
    menu: &[waiting(Read, BOTH), waiting(Write, BOTH), trying(Read, RIGHT)],
    operations: [2, 1, 1],
    interrupts: 0,
    ..EXCLUSIVE
};

fn locks(options: LockOptions, bounds: Bounds) -> Locks {
    Locks { options, bounds, planted: Planted::Nothing }
}

const LOCAL_FIRST: LockOptions = LockOptions { order: LockOrder::LocalFirst, handoffs_max: 0 };

#[test]
fn exclusive_locks_exclude_and_nobody_waits_in_vain() {
    hold([
        locks(LOCAL_FIRST, EXCLUSIVE),
        locks(LOCAL_FIRST, Bounds { callbacks: Callbacks::None, ..EXCLUSIVE }),
    ]);
}

#[test]
fn upgrades_and_downgrades_leave_no_gap_and_no_rest() {
    hold([locks(LOCAL_FIRST, PARTS), locks(LOCAL_FIRST, Bounds { callbacks: Callbacks::None, ..PARTS })]);
}

#[test]
fn a_waiter_has_one_timer_and_one_request_whatever_others_of_its_mount_unlock() {
    hold([locks(LOCAL_FIRST, POLLING), locks(LOCAL_FIRST, UPGRADING)]);
}

#[test]
fn readers_and_a_writer_of_two_clients_exclude_each_other() {
    hold([locks(LOCAL_FIRST, SHARED)]);
}

#[test]
fn requests_of_two_threads_of_a_process_do_not_overtake_each_other() {
    hold([locks(LOCAL_FIRST, THREADS), locks(LOCAL_FIRST, Bounds { callbacks: Callbacks::None, ..THREADS })]);
}

#[test]
fn waiters_that_are_notified_ask_again_and_none_waits_in_vain() {
    let notify = |bounds| Bounds { callbacks: Callbacks::Notify, ..bounds };
    let options = LockOptions { handoffs_max: 2, ..LOCAL_FIRST };
    hold([EXCLUSIVE, PARTS, SHARED, THREADS].map(|bounds| locks(LOCAL_FIRST, notify(bounds))));
    hold([locks(options, notify(EXCLUSIVE))]);
    let lossy = Bounds { losses: 1, operations: [1, 1, 1], interrupts: 0, ..EXCLUSIVE };
    hold([locks(LOCAL_FIRST, notify(lossy)), locks(LOCAL_FIRST, notify(REPEATED))]);
}

#[test]
fn a_restarted_server_gets_all_locks_back_before_it_grants_others() {
    let interrupted = Bounds { restarts: 1, operations: [1, 0, 1], ..EXCLUSIVE };
    let three = Bounds { restarts: 1, operations: [1, 1, 1], interrupts: 0, ..EXCLUSIVE };
    let parts = Bounds { restarts: 1, interrupts: 0, callbacks: Callbacks::None, ..PARTS };
    hold([interrupted, three, parts].map(|bounds| locks(LOCAL_FIRST, bounds)));
}

#[test]
fn a_lost_reply_or_a_refused_unlock_leaves_no_lock_that_nobody_holds() {
    let small = Bounds { operations: [1, 1, 1], interrupts: 0, ..EXCLUSIVE };
    let again = Bounds { operations: [2, 0, 1], timers: 0, repeats: 0, ..REPEATED };
    hold([
        locks(LOCAL_FIRST, Bounds { losses: 1, ..small }),
        locks(LOCAL_FIRST, Bounds { losses: 1, ..again }),
        locks(LOCAL_FIRST, Bounds { refusals: 2, ..small }),
        locks(LOCAL_FIRST, Bounds { losses: 1, refusals: 1, interrupts: 1, operations: [1, 0, 1], ..small }),
    ]);
}

/// A process that locks twice while another client does, and whose callbacks come late and twice.
const REPEATED: Bounds =
    Bounds { menu: &[waiting(Write, BOTH)], operations: [2, 0, 2], interrupts: 0, repeats: 1, ..EXCLUSIVE };

#[test]
fn a_callback_that_comes_twice_or_late_grants_nothing_later() {
    hold([locks(LOCAL_FIRST, REPEATED), locks(LOCAL_FIRST, Bounds { interrupts: 1, ..REPEATED })]);
}

/// A process that locks twice while another client does, one of whose LOCKs is executed twice.
const RESENT: Bounds = Bounds { repeats: 0, resends: 1, ..REPEATED };

#[test]
fn a_late_callback_for_a_lock_that_was_executed_twice_grants_nothing_later() {
    hold([locks(LOCAL_FIRST, RESENT), locks(LOCAL_FIRST, Bounds { timers: 0, interrupts: 1, ..RESENT })]);
}

/// A process that locks once, and another client that waits for it.
const COPIED: Bounds = Bounds { operations: [1, 0, 1], ..RESENT };

#[test]
fn a_copy_of_a_lock_that_is_executed_after_the_unlock_is_undone() {
    let all = [Callbacks::Grant, Callbacks::Notify, Callbacks::None];
    hold(all.map(|callbacks| locks(LOCAL_FIRST, Bounds { callbacks, interrupts: 1, ..COPIED })));
}

#[test]
fn a_false_notice_of_a_restart_leaves_no_lock_that_nobody_holds() {
    let small = Bounds { false_restarts: 1, operations: [1, 1, 1], interrupts: 0, ..EXCLUSIVE };
    hold([locks(LOCAL_FIRST, small)]);
}

#[test]
fn locks_that_pass_from_owner_to_owner_stay_locked_at_the_server() {
    let options = LockOptions { handoffs_max: 2, ..LOCAL_FIRST };
    hold([locks(options, EXCLUSIVE), locks(options, SHARED)]);
    // The second pass is over the limit.
    let options = LockOptions { handoffs_max: 1, ..LOCAL_FIRST };
    let callbacks = [Callbacks::Notify, Callbacks::None];
    hold(callbacks.map(|callbacks| locks(options, Bounds { callbacks, ..EXCLUSIVE })));
}

#[test]
fn waiters_that_all_ask_the_server_exclude_each_other_too() {
    let options = LockOptions { order: LockOrder::ServerFirst, ..LOCAL_FIRST };
    hold([locks(options, EXCLUSIVE)]);
}

#[test]
fn every_planted_mistake_about_locks_is_found() {
    for planted in [Planted::UnlockAnsweredEarly, Planted::GrantAfterCancelKept] {
        find_planted(&Locks { planted, ..locks(LOCAL_FIRST, EXCLUSIVE) }, 14);
    }
    let refused = Bounds { refusals: 1, operations: [1, 0, 1], interrupts: 0, ..EXCLUSIVE };
    find_planted(&Locks { planted: Planted::RepeatedCallbackBelieved, ..locks(LOCAL_FIRST, REPEATED) }, 20);
    find_planted(&Locks { planted: Planted::ResentLockForgotten, ..locks(LOCAL_FIRST, RESENT) }, 20);
    find_planted(&Locks { planted: Planted::LateLockKept, ..locks(LOCAL_FIRST, COPIED) }, 14);
    let planted = Planted::EarlyNotificationForgotten;
    let notifies = Bounds { callbacks: Callbacks::Notify, interrupts: 0, timers: 0, ..EXCLUSIVE };
    find_planted(&Locks { planted, ..locks(LOCAL_FIRST, notifies) }, 14);
    let planted = Planted::RefusedUnlockDone;
    find_planted(&Locks { planted, ..locks(LOCAL_FIRST, refused) }, 14);
}
