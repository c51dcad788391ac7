//! Freshness of the answers of a complete directory. A lookup of a name that was never requested
//! returns what was true at most as long ago as the options permit, and never a state before a
//! change that the same client made or has seen.
//!
//! A directory with two names, listed in one reply or in two. Two clients and strangers create,
//! remove, rename and replace before, between, during and after the replies of passes. Client 0 may
//! have two threads.

mod client;
mod complete;
mod state;
mod world;

use core::time::Duration;

use curt_policy::RacyGuard;

use self::world::{Bounds, Directories, Planted};
use crate::{
    explore::{find_planted, hold},
    setting::Setting,
    time::{Grain, TICK},
};

/// One client fills and looks up while strangers make any change.
const ALONE: Bounds = Bounds {
    threads: 1,
    operations: [2, 0],
    strangers: 2,
    evictions: 0,
    losses: 0,
    ticks: 3,
    replies: 1,
    prompt: true,
    halves: false,
    changes: false,
};
/// A pass of two replies, with changes of other clients around and between them.
const PASS: Bounds = Bounds { replies: 2, ..ALONE };
/// Two threads of one client: one lists, the other changes names.
const WIDE: Bounds = Bounds {
    threads: 2,
    operations: [3, 0],
    strangers: 0,
    evictions: 1,
    ticks: 0,
    replies: 2,
    changes: true,
    ..ALONE
};
/// [`WIDE`] in one reply, while a stranger changes names as well.
const CROWD: Bounds = Bounds { strangers: 1, replies: 1, ..WIDE };
/// Two clients that both list, look up and change.
const PAIR: Bounds = Bounds {
    operations: [2, 1],
    strangers: 0,
    evictions: 1,
    ticks: 0,
    prompt: false,
    changes: true,
    ..ALONE
};

const SHORT: Option<Duration> = Some(TICK);
const NOAC: Option<Duration> = None;

#[track_caller]
fn holds(grain: Grain, guard: RacyGuard, runs: &[(Option<Duration>, Bounds)]) {
    hold(runs.iter().map(|(lifetime, bounds)| Directories {
        setting: Setting { grain, guard, lifetime: *lifetime },
        planted: Planted::Nothing,
        bounds: *bounds,
    }));
}

#[test]
fn what_a_complete_directory_says_is_as_fresh_as_its_attributes_with_fine_stamps_and_no_guard() {
    holds(
        Grain::Fine,
        RacyGuard::Off,
        &[
            (NOAC, PAIR),
            (SHORT, Bounds { ticks: 2, ..ALONE }),
            (SHORT, Bounds { ticks: 2, ..PASS }),
            (NOAC, WIDE),
            (NOAC, CROWD),
        ],
    );
}

#[test]
fn what_a_complete_directory_says_is_as_fresh_as_its_attributes_or_the_guard_although_changes_share_a_stamp()
{
    holds(
        Grain::Coarse,
        RacyGuard::On,
        &[(NOAC, PAIR), (SHORT, ALONE), (SHORT, PASS), (NOAC, WIDE), (NOAC, CROWD)],
    );
}

// SEMANTICS: name-9.
#[test]
fn by_default_a_complete_directory_can_miss_only_what_is_changed_in_the_same_tick_after_our_own_change() {
    holds(
        Grain::Coarse,
        RacyGuard::Auto,
        &[(NOAC, PAIR), (SHORT, ALONE), (SHORT, PASS), (NOAC, WIDE), (NOAC, CROWD)],
    );
}

#[test]
fn the_guard_covers_a_server_that_reads_names_before_attributes() {
    for grain in [Grain::Fine, Grain::Coarse] {
        for bounds in [ALONE, PASS] {
            let halves = Bounds { halves: true, strangers: 1, ..bounds };
            holds(grain, RacyGuard::On, &[(SHORT, halves)]);
        }
    }
}

#[test]
fn a_change_without_a_reply_leaves_a_directory_incomplete() {
    let lossy = Bounds { strangers: 0, losses: 1, ..WIDE };
    holds(Grain::Fine, RacyGuard::Off, &[(NOAC, lossy), (SHORT, lossy)]);
    holds(Grain::Coarse, RacyGuard::On, &[(NOAC, lossy)]);
}

#[test]
fn every_planted_mistake_about_complete_directories_is_found() {
    let (fine, coarse) = ((Grain::Fine, RacyGuard::Off), (Grain::Coarse, RacyGuard::On));
    for (planted, (grain, guard), lifetime, bounds) in [
        (Planted::EpochIgnored, fine, NOAC, ALONE),
        (Planted::DatedByTheLastRequest, coarse, NOAC, PASS),
        (Planted::DatedByArrival, fine, SHORT, Bounds { ticks: 2, ..ALONE }),
        (Planted::GuardLeftOut, coarse, NOAC, ALONE),
        (Planted::OwnNamesNotEntered, fine, NOAC, Bounds { threads: 1, ..CROWD }),
        (Planted::OwnChangesIgnored, fine, NOAC, WIDE),
        (Planted::LetGoIsMissing, fine, NOAC, Bounds { evictions: 1, ..ALONE }),
        (Planted::ExistsIgnored, coarse, NOAC, Bounds { threads: 1, strangers: 2, evictions: 0, ..CROWD }),
        (Planted::TornCounts, fine, NOAC, PASS),
    ] {
        let setting = Setting { grain, guard, lifetime };
        let directories = Directories { setting, planted, bounds };
        find_planted(&directories, 12);
    }
}
