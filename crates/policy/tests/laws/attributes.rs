//! Laws of the attribute timers, of the order of replies, and of the epochs.

use core::time::Duration;

use curt_policy::{
    Absorbed, AttributeReport, AttributeState, CacheOptions, CachingAttributes, Freshness, MonotonicTime,
    Mutation, TimeoutRange,
    attributes::{GetattrDecision, STEPS_MAX, across_restart, decide_getattr},
};
use curt_types::FileKind;

use crate::cases::{before, file, for_each_case, stamp};

const SECOND: Duration = Duration::from_secs(1);

fn at(milliseconds: u32) -> MonotonicTime {
    MonotonicTime::from_start(Duration::from_millis(u64::from(milliseconds)))
}

fn report(attributes: CachingAttributes, sent: u32, received: u32) -> AttributeReport {
    AttributeReport { attributes, sent_at: at(sent), received_at: at(received) }
}

fn mutation(before: &CachingAttributes, after: &CachingAttributes, sent: u32, received: u32) -> Mutation {
    Mutation {
        before: Some(before.as_before()),
        after: Some(*after),
        sent_at: at(sent),
        received_at: at(received),
    }
}

fn known(attributes: CachingAttributes, sent: u32, received: u32) -> AttributeState {
    let mut state = AttributeState::unknown();
    let absorbed = state.absorb(report(attributes, sent, received), &CacheOptions::default());
    assert!(absorbed.adopted);
    state
}

// SEMANTICS: attr-2.
#[test]
fn stat_is_served_from_fresh_attributes_and_never_under_noac_or_over_unsent_data() {
    for_each_case(|case| {
        let options = case.open_options();
        let (attributes, unsent) = (case.freshness(), case.bool());
        let believed =
            attributes == Freshness::Confirmed || (attributes == Freshness::Fresh && options.attribute_cache);
        let wanted = match (unsent, believed) {
            (true, _) => GetattrDecision::FlushFirst,
            (false, true) => GetattrDecision::Serve,
            (false, false) => GetattrDecision::Revalidate,
        };
        assert_eq!(decide_getattr(attributes, unsent, &options), wanted);
    });
}

#[test]
fn after_a_restart_of_the_server_only_attributes_requested_since_are_fresh() {
    for_each_case(|case| {
        let freshness = case.freshness();
        let sent_at = case.pick(&[None, Some(at(9)), Some(at(10)), Some(at(11))]);
        let across = across_restart(freshness, sent_at, at(10));
        let before = sent_at.is_none_or(|sent_at| sent_at < at(10));
        let wanted = if freshness == Freshness::Fresh && before { Freshness::Expired } else { freshness };
        assert_eq!(across, wanted);
    });
}

/// The age of attributes is counted from their request, not from the reply.
// SEMANTICS: attr-1.
#[test]
fn attributes_are_fresh_for_their_lifetime_from_their_request() {
    let options = CacheOptions::default();
    let state = known(file(1), 1000, 2500);
    let never = MonotonicTime::from_nanoseconds(u64::MAX);
    assert_eq!(state.freshness(never, at(3999), &options), Freshness::Fresh);
    assert_eq!(state.freshness(never, at(4000), &options), Freshness::Expired);
    assert_eq!(state.remaining(at(2500), &options), Duration::from_millis(1500));
    assert_eq!(AttributeState::unknown().freshness(at(0), at(0), &options), Freshness::Unknown);
}

#[test]
fn only_attributes_requested_since_the_operation_began_are_confirmed() {
    let noac = CacheOptions { attribute_cache: false, ..CacheOptions::default() };
    let state = known(file(1), 1000, 1001);
    assert_eq!(state.freshness(at(1000), at(90_000), &noac), Freshness::Confirmed);
    assert_eq!(state.freshness(at(1001), at(1001), &noac), Freshness::Expired);
    assert_eq!(state.remaining(at(1001), &noac), Duration::ZERO);
}

/// 3, 6, 12, 24, 48, 60, 60 s; doubled at most once per lifetime, however often attributes are
/// requested.
// SEMANTICS: attr-1.
#[test]
fn the_lifetime_doubles_while_nothing_changes_at_most_once_per_lifetime() {
    let options = CacheOptions::default();
    let mut state = known(file(1), 0, 0);
    let mut now = 0;
    for seconds in [3, 6, 12, 24, 48, 60, 60] {
        assert_eq!(state.remaining(at(now), &options), SECOND * seconds);
        for storm in 1..seconds {
            let _ = state.absorb(report(file(1), now + storm, now + storm), &options);
            assert_eq!(state.remaining(at(now + storm), &options), SECOND * seconds);
        }
        now += seconds * 1000;
        let _ = state.absorb(report(file(1), now, now), &options);
    }
}

// SEMANTICS: attr-1.
#[test]
fn a_change_resets_the_lifetime() {
    let options = CacheOptions::default();
    for own in [false, true] {
        let mut state = known(file(1), 0, 0);
        let _ = state.absorb(report(file(1), 3000, 3000), &options);
        assert_eq!(state.remaining(at(3000), &options), SECOND * 6);
        if own {
            state.begin_mutation();
            let _ = state.absorb_mutation(mutation(&file(1), &file(5), 4000, 4000), &options);
        } else {
            let _ = state.absorb(report(file(5), 4000, 4000), &options);
        }
        assert_eq!(state.remaining(at(4000), &options), SECOND * 3);
    }
}

/// `remount` may change the bounds; the current lifetime stays within them.
#[test]
fn the_lifetime_stays_within_the_current_bounds() {
    let state = known(file(1), 0, 0);
    for (min, max, wanted) in [(1, 2, 2), (5, 60, 5), (3, 60, 3), (0, 0, 0), (7, 5, 7)] {
        let files = TimeoutRange { min: SECOND * min, max: SECOND * max };
        let options = CacheOptions { files, ..CacheOptions::default() };
        assert_eq!(state.remaining(at(0), &options), SECOND * wanted, "{min} to {max}");
    }
}

// SEMANTICS: attr-1.
#[test]
fn directories_have_their_own_interval() {
    let state = known(CachingAttributes { kind: FileKind::Directory, ..file(1) }, 0, 0);
    assert_eq!(state.remaining(at(0), &CacheOptions::default()), SECOND * 30);
}

/// Every order in which two replies can be sent, executed and received: the later state wins, or
/// both are distrusted.
// SEMANTICS: attr-3.
#[test]
fn an_older_reply_never_replaces_a_newer_one() {
    let options = CacheOptions::default();
    for_each_case(|case| {
        // The first known reply was sent at 10 and received at 30.
        let first = file(5);
        let second =
            CachingAttributes { stamp: stamp(5, case.pick(&[4, 5, 6])), size: case.pick(&[10, 11]), ..first };
        let sent = case.pick(&[5, 15, 30, 35]);
        let mut state = known(first, 10, 30);
        let absorbed = state.absorb(report(second, sent, 40), &options);
        let ordered = second.stamp.later_than(first.stamp);
        if second == first {
            assert!(absorbed.adopted && !absorbed.contents_changed);
            assert_eq!(state.sent_at(), Some(at(sent.max(10))));
        } else if sent >= 30 || ordered == Some(true) {
            // Requested after the first was known, or later according to the server's stamps.
            assert!(absorbed.adopted && absorbed.contents_changed);
            assert_eq!(state.newest(), Some(second));
        } else if ordered == Some(false) {
            assert_eq!((state.newest(), state.sent_at()), (Some(first), Some(at(10))));
            assert!(!absorbed.adopted && !absorbed.contents_changed);
        } else {
            // The order is unknown: nothing is valid until one more reply.
            assert!(absorbed.contents_changed);
            assert_eq!(state.freshness(at(0), at(40), &options), Freshness::Expired);
            let _ = state.absorb(report(second, 40, 41), &options);
            assert_eq!(state.freshness(at(40), at(41), &options), Freshness::Confirmed);
        }
    });
}

/// All combinations of author, change and reply: an epoch ends unless it is proven that only this
/// client changed the object.
#[test]
fn the_contents_epoch_ends_exactly_when_others_may_have_changed_it() {
    let options = CacheOptions::default();
    for_each_case(|case| {
        let old = file(1);
        let mut state = known(old, 10, 20);
        let epoch = state.contents();
        let changed = case.bool();
        let after = if changed { file(5) } else { old };
        let absorbed = if case.bool() {
            let matches = case.bool();
            let said_before = case.bool();
            let said_after = case.bool();
            state.begin_mutation();
            let found = if matches { before(&old) } else { before(&file(3)) };
            let absorbed = state.absorb_mutation(
                Mutation {
                    before: found.filter(|_| said_before),
                    after: Some(after).filter(|_| said_after),
                    sent_at: at(30),
                    received_at: at(40),
                },
                &options,
            );
            let proven = said_after && (!changed || (matches && said_before));
            assert_eq!(
                absorbed.contents_changed, !proven,
                "matches {matches} before {said_before} after {said_after}"
            );
            absorbed
        } else {
            let absorbed = state.absorb(report(after, 30, 40), &options);
            assert_eq!(absorbed.contents_changed, changed);
            absorbed
        };
        assert_eq!(state.contents() != epoch, absorbed.contents_changed);
        assert!(!state.is_changing());
    });
}

/// After a lost reply nothing is valid.
// SEMANTICS: rpc-10.
#[test]
fn after_a_change_without_a_reply_only_a_later_request_is_valid() {
    let options = CacheOptions::default();
    let mut state = known(file(1), 10, 20);
    state.begin_mutation();
    let lost = Mutation { before: None, after: None, sent_at: at(30), received_at: at(50) };
    let _ = state.absorb_mutation(lost, &options);
    let _ = state.absorb(report(file(1), 40, 60), &options);
    assert_eq!(state.freshness(at(0), at(60), &options), Freshness::Expired);
    let _ = state.absorb(report(file(1), 50, 61), &options);
    assert_eq!(state.freshness(at(50), at(61), &options), Freshness::Confirmed);
}

/// Three changes of this client with replies in any order, with or without a change of another
/// client in between.
// SEMANTICS: cto-12.
#[test]
fn our_own_changes_form_a_sequence_in_any_order_of_replies() {
    let options = CacheOptions::default();
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    for_each_case(|case| {
        let order = case.pick(&orders);
        let foreign = case.bool();
        // The server's states: 1 -> 2 -> 3 -> 4 by this client. With another client, 2 becomes 9 in
        // between.
        let found = [1, if foreign { 9 } else { 2 }, 3];
        let left = [2, 3, 4];
        let time = |state: u32| {
            if state == 9 { stamp(25, 25) } else { stamp(state * 10, state * 10) }
        };
        let attributes = |state: u32| CachingAttributes { stamp: time(state), ..file(0) };
        let mut state = known(attributes(1), 10, 20);
        let epoch = state.contents();
        for _ in 0..3 {
            state.begin_mutation();
        }
        let mut last = None;
        for (number, change) in (0..).zip(order) {
            let change = mutation(&attributes(found[change]), &attributes(left[change]), 30, 40 + number);
            last = Some(state.absorb_mutation(change, &options));
            if number < 2 {
                // In between nothing is cached or served, unless the replies so far fit together.
                assert!(state.contents().is_none_or(|now| Some(now) == epoch));
            }
        }
        assert_eq!(state.newest(), Some(attributes(4)));
        assert_eq!(last.unwrap().contents_changed, foreign, "{order:?}");
        assert_eq!(state.contents() == epoch, !foreign);
    });
}

#[test]
fn too_many_unexplained_changes_count_as_anothers() {
    let options = CacheOptions::default();
    let most = u32::try_from(STEPS_MAX).unwrap();
    for (changes, joined) in [(most, true), (most + 1, false)] {
        let attributes = |state: u32| CachingAttributes { stamp: stamp(state, state), ..file(0) };
        let mut state = known(attributes(0), 10, 20);
        let epoch = state.contents();
        for _ in 0..changes {
            state.begin_mutation();
        }
        // All but the first arrive, then the first: only then do they form a sequence.
        for change in (1..changes).chain([0]) {
            let _ = state
                .absorb_mutation(mutation(&attributes(change), &attributes(change + 1), 30, 40), &options);
        }
        assert_eq!(state.contents() == epoch, joined, "{changes} changes");
    }
}

#[test]
fn a_change_of_mode_owner_or_hidden_rights_invalidates_access_results_and_writing_does_not() {
    let options = CacheOptions::default();
    let old = file(1);
    // Only the attributes changed: it may be a change of an ACL.
    let [changed, written] = [stamp(1, 5), stamp(5, 5)].map(|stamp| CachingAttributes { stamp, ..old });
    let cases = [
        (CachingAttributes { mode: 0o600, ..changed }, true),
        (CachingAttributes { uid: 7, ..changed }, true),
        (CachingAttributes { gid: 7, ..changed }, true),
        (changed, true),
        (written, false),
        (CachingAttributes { size: 11, ..written }, false),
        (old, false),
    ];
    for (new, ends) in cases {
        let mut state = known(old, 10, 20);
        let Absorbed { rights_changed, .. } = state.absorb(report(new, 30, 40), &options);
        assert_eq!(rights_changed, ends, "{new:?}");
    }
}
