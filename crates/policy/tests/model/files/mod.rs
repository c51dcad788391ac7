//! Close-to-open of one file of two blocks: an open sees every write whose writer had closed
//! before.
//!
//! Client 0 has two threads, so that its own requests overtake one another; client 1 has one. A
//! read is open, READ if the cached pages are not valid, close. A write is open, write of one
//! block, close (which waits for the WRITE).

mod state;
mod world;

use curt_policy::RacyGuard;

use self::world::{Bounds, Files, Planted};
use crate::{
    explore::{find_planted, hold},
    setting::Setting,
    time::Grain,
};

/// Two clients, one thread each.
const PAIR: Bounds =
    Bounds { threads: 1, operations: [3, 2], strangers: 0, ticks: 0, prompt: false, delegates: false };
/// [`PAIR`] with ticks, and with fewer operations.
const SLOW_PAIR: Bounds =
    Bounds { threads: 1, operations: [2, 1], strangers: 0, ticks: 2, prompt: true, delegates: false };
/// One client and strangers, with ticks.
const ALONE: Bounds =
    Bounds { threads: 1, operations: [3, 0], strangers: 2, ticks: 3, prompt: true, delegates: false };
/// One client with two threads whose requests overtake each other.
const WIDE: Bounds =
    Bounds { threads: 2, operations: [3, 0], strangers: 2, ticks: 1, prompt: true, delegates: false };

/// [`WIDE`] with one stranger.
const NARROW: Bounds = Bounds { strangers: 1, ..WIDE };

/// Close-to-open revalidates at each open, so the default lifetime is used.
const fn setting(grain: Grain, guard: RacyGuard) -> Setting {
    Setting { grain, guard, lifetime: None }
}

#[track_caller]
fn holds(grain: Grain, guard: RacyGuard, bounds: &[Bounds]) {
    hold(bounds.iter().map(|bounds| Files {
        setting: setting(grain, guard),
        planted: Planted::Nothing,
        bounds: *bounds,
    }));
}

// SEMANTICS: cto-1.
#[test]
fn an_open_sees_what_was_closed_before_with_fine_stamps_and_no_guard() {
    holds(Grain::Fine, RacyGuard::Off, &[PAIR, Bounds { ticks: 0, prompt: false, ..WIDE }]);
}

// SEMANTICS: cto-10.
#[test]
fn an_open_sees_what_was_closed_before_although_changes_share_a_stamp() {
    holds(Grain::Coarse, RacyGuard::On, &[SLOW_PAIR, ALONE, NARROW]);
}

// SEMANTICS: cto-11.
#[test]
fn by_default_only_a_change_in_the_same_tick_after_our_own_can_be_missed() {
    holds(Grain::Coarse, RacyGuard::Auto, &[SLOW_PAIR, ALONE, NARROW]);
}

#[test]
fn without_the_guard_a_second_change_within_a_tick_is_missed() {
    let files =
        Files { setting: setting(Grain::Coarse, RacyGuard::Off), planted: Planted::Nothing, bounds: ALONE };
    find_planted(&files, 14);
}

/// One client and no other: no change of others can be hidden in a tick, so no guard is needed.
const LONELY: Bounds =
    Bounds { threads: 2, operations: [4, 0], strangers: 0, ticks: 0, prompt: true, delegates: false };

#[test]
fn our_own_changes_within_a_tick_are_never_missed_even_without_the_guard() {
    holds(Grain::Coarse, RacyGuard::Off, &[LONELY]);
}

#[test]
fn an_open_sees_what_was_closed_before_by_the_change_attribute_alone() {
    holds(Grain::Change, RacyGuard::Off, &[PAIR, ALONE, NARROW]);
}

/// The server delegates the file.
const fn delegated(bounds: Bounds) -> Bounds {
    Bounds { delegates: true, ..bounds }
}

#[test]
fn an_open_under_a_delegation_sees_what_was_closed_before() {
    let all = [delegated(PAIR), delegated(ALONE), delegated(NARROW)];
    holds(Grain::Change, RacyGuard::Off, &all);
}

#[test]
fn every_planted_mistake_is_found() {
    for (planted, grain, bounds) in [
        (Planted::BeforeNotCompared, Grain::Fine, PAIR),
        (Planted::TicketIgnored, Grain::Coarse, LONELY),
        (Planted::PagesAlwaysKept, Grain::Fine, PAIR),
        (Planted::OpenBelievesFresh, Grain::Fine, PAIR),
        (Planted::DelegationKept, Grain::Change, delegated(PAIR)),
    ] {
        let files = Files { setting: setting(grain, RacyGuard::Off), planted, bounds };
        find_planted(&files, 14);
    }
}
