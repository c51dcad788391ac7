//! Read delegations and kept opens: client 0 opens and reads a file, with two threads; client 1
//! writes it, or opens it so that others may not read. Recalls overtake replies; replies are lost.
//!
//! An open sees every write whose writer had closed before; nobody is denied an open because of one
//! that nobody has used for a second; and no recall is lost.

mod world;

use self::world::{Bounds, Delegations, Planted};
use crate::explore::{find_planted, hold};

const BOTH: Bounds = Bounds { opens: 3, stats: 1, writes: 2, denials: 0, losses: 0 };
const DENYING: Bounds = Bounds { opens: 3, stats: 0, writes: 1, denials: 1, losses: 0 };
const LOSING: Bounds = Bounds { opens: 3, stats: 0, writes: 1, denials: 0, losses: 1 };

// SEMANTICS: sessions-13.
#[test]
fn opens_under_delegations_see_what_was_closed_before_and_keep_nobody_from_opening() {
    hold([BOTH, DENYING, LOSING].map(|bounds| Delegations { planted: Planted::Nothing, bounds }));
}

#[test]
fn planted_mistakes_with_delegations_are_found() {
    for (planted, bounds) in [
        (Planted::ServedAfterRecall, BOTH),
        (Planted::KeptOpenStays, DENYING),
        (Planted::EarlyRecallForgotten, BOTH),
        (Planted::RememberedRecallDropped, LOSING),
        (Planted::RepeatedOpenForgotten, LOSING),
        (Planted::DatedByAnotherDelegation, BOTH),
    ] {
        find_planted(&Delegations { planted, bounds }, 16);
    }
}
