//! Freshness of names. A lookup returns what was true at most as long ago as the options permit,
//! and never a state before a change that the same client made or has seen.
//!
//! The client's kernel caches names for as long as it is granted and answers from its cache, which
//! makes no answer older than that.
//!
//! A directory with two names. Client 0 may have two threads, client 1 has one, and strangers
//! change names immediately.

mod state;
mod world;

use core::time::Duration;

use curt_policy::RacyGuard;

use self::world::{Bounds, Names, Planted};
use crate::{
    explore::{find_planted, hold},
    setting::Setting,
    time::{Grain, TICK},
};

const PAIR: Bounds =
    Bounds { threads: 1, operations: [3, 1], strangers: 0, losses: 0, ticks: 0, prompt: false };
const ALONE: Bounds =
    Bounds { threads: 1, operations: [3, 0], strangers: 2, losses: 0, ticks: 3, prompt: true };
const WIDE: Bounds =
    Bounds { threads: 2, operations: [3, 0], strangers: 1, losses: 0, ticks: 0, prompt: false };

const SHORT: Option<Duration> = Some(TICK);
const NOAC: Option<Duration> = None;

#[track_caller]
fn holds(grain: Grain, guard: RacyGuard, runs: &[(Option<Duration>, Bounds)]) {
    hold(runs.iter().map(|(lifetime, bounds)| Names {
        setting: Setting { grain, guard, lifetime: *lifetime },
        planted: Planted::Nothing,
        bounds: *bounds,
    }));
}

#[test]
fn a_name_is_as_fresh_as_its_directory_with_fine_stamps_and_no_guard() {
    holds(Grain::Fine, RacyGuard::Off, &[(NOAC, PAIR), (SHORT, Bounds { ticks: 2, ..ALONE }), (NOAC, WIDE)]);
}

// SEMANTICS: name-1.
#[test]
fn a_name_is_as_fresh_as_its_directory_or_the_guard_although_changes_share_a_stamp() {
    holds(Grain::Coarse, RacyGuard::On, &[(NOAC, PAIR), (SHORT, ALONE), (NOAC, WIDE)]);
}

// SEMANTICS: name-9.
#[test]
fn by_default_only_a_name_changed_in_the_same_tick_after_our_own_change_can_be_missed() {
    holds(Grain::Coarse, RacyGuard::Auto, &[(NOAC, PAIR), (SHORT, ALONE), (NOAC, WIDE)]);
}

/// Changes whose replies are lost, and which the server may execute late.
const LOSSY: Bounds = Bounds { strangers: 0, losses: 1, ..WIDE };

// SEMANTICS: rpc-10.
#[test]
fn a_change_without_a_reply_leaves_no_name_that_is_older_than_it_may_be() {
    holds(Grain::Fine, RacyGuard::Off, &[(NOAC, LOSSY), (SHORT, LOSSY)]);
    holds(Grain::Coarse, RacyGuard::On, &[(NOAC, LOSSY)]);
}

#[test]
fn without_the_guard_a_name_made_within_the_tick_is_missed() {
    let names = Names {
        setting: Setting { grain: Grain::Coarse, guard: RacyGuard::Off, lifetime: NOAC },
        planted: Planted::Nothing,
        bounds: ALONE,
    };
    find_planted(&names, 12);
}

#[test]
fn every_planted_mistake_about_names_is_found() {
    let slow = Bounds { prompt: false, ticks: 2, ..ALONE };
    let quick = Bounds { ticks: 0, strangers: 3, ..ALONE };
    for (planted, grain, guard, lifetime, bounds) in [
        (Planted::BeforeNotCompared, Grain::Fine, RacyGuard::Off, NOAC, Bounds { ticks: 0, ..ALONE }),
        (Planted::DatedByArrival, Grain::Fine, RacyGuard::Off, SHORT, slow),
        (Planted::TicketIgnored, Grain::Coarse, RacyGuard::Auto, NOAC, WIDE),
        (Planted::EpochIgnored, Grain::Fine, RacyGuard::Off, NOAC, PAIR),
        (Planted::ExistsIgnored, Grain::Coarse, RacyGuard::Auto, NOAC, quick),
        (Planted::KeptBeyondBelief, Grain::Fine, RacyGuard::Off, SHORT, ALONE),
    ] {
        let setting = Setting { grain, guard, lifetime };
        let names = Names { setting, planted, bounds };
        find_planted(&names, 12);
    }
}
