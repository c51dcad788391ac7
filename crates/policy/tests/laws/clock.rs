//! Laws of the server's clock, of pages and of listings.

use core::time::Duration;

use curt_policy::{
    AttributeReport, AttributeState, CacheOptions, CachingAttributes, Delegation, Freshness, ListingMode,
    LockingState, MonotonicTime, Mutation, RacyGuard, ReaddirplusMode, ServerClock,
    data::{PagesDecision, PagesLabel, decide_pages},
    names::{GUARD_MAX, GUARD_MIN},
    readdir::{
        ListingContinuation, ListingDecision, NAMES_WITHOUT_STAT_MAX, decide_continuation, decide_listing,
    },
};
use curt_types::Timestamp;

use crate::cases::{before, file, for_each_case};

const MILLISECOND: Duration = Duration::from_millis(1);

fn at(milliseconds: u32) -> MonotonicTime {
    MonotonicTime::from_start(MILLISECOND * milliseconds)
}

/// The server's clock shows `1_000_000 s + m` at our moment `m`, in ticks of `step`.
fn server_time(moment: MonotonicTime, step: Duration) -> Timestamp {
    let step = u64::try_from(step.as_nanos()).unwrap();
    let nanoseconds = moment.nanoseconds() / step * step;
    Timestamp::new(
        1_000_000 + i64::try_from(nanoseconds / 1_000_000_000).unwrap(),
        u32::try_from(nanoseconds % 1_000_000_000).unwrap(),
    )
}

#[test]
fn the_estimate_is_never_later_than_the_servers_current_time() {
    for_each_case(|case| {
        let step = case.pick(&[Duration::from_nanos(1), MILLISECOND * 10, MILLISECOND * 1000]);
        let mut clock = ServerClock::new(Duration::ZERO);
        for _ in 0..3 {
            let changed = case.pick(&[0, 3, 999, 2500]);
            let delay = case.pick(&[0, 7, 4000]);
            clock.learn(server_time(at(changed), step), at(changed + delay));
            for now in [3000, 10_000] {
                let present = server_time(at(now), Duration::from_nanos(1)).as_nanoseconds();
                assert!(clock.lower_bound(at(now)).unwrap() <= i128::from(present));
            }
        }
    });
}

// SEMANTICS: name-8.
#[test]
fn the_guard_is_twice_the_observed_resolution_of_the_clock_and_at_least_20_ms() {
    let one_second = Duration::from_secs(1);
    for (told, seen, guard) in [
        (Duration::ZERO, None, GUARD_MIN),
        (one_second, None, 2 * one_second),
        // knfsd reports 1 s and returns nanoseconds.
        (one_second, Some(Timestamp::new(7, 123_456_789)), GUARD_MIN),
        (one_second, Some(Timestamp::new(7, 120_000_000)), GUARD_MIN),
        (one_second, Some(Timestamp::new(7, 100_000_000)), 200 * MILLISECOND),
        // A file system that reports 1 ns and stores seconds, or multiples of two.
        (Duration::from_nanos(1), Some(Timestamp::new(7, 0)), 2 * one_second),
        (Duration::from_nanos(1), Some(Timestamp::new(8, 0)), 4 * one_second),
    ] {
        let mut clock = ServerClock::new(told);
        if let Some(seen) = seen {
            clock.learn(seen, at(1));
        }
        assert_eq!(clock.guard(), guard, "told {told:?}, seen {seen:?}");
    }
}

#[test]
fn one_fine_time_is_enough_to_lower_the_guard_and_none_raises_it() {
    let mut clock = ServerClock::new(Duration::ZERO);
    clock.learn(Timestamp::new(7, 0), at(1));
    assert_eq!(clock.guard(), Duration::from_secs(2));
    clock.learn(Timestamp::new(7, 5), at(2));
    assert_eq!(clock.guard(), GUARD_MIN);
    clock.learn(Timestamp::new(8, 0), at(3));
    assert_eq!(clock.guard(), GUARD_MIN);
}

#[test]
fn a_proven_mistake_doubles_the_guard_up_to_a_bound() {
    let mut clock = ServerClock::new(Duration::ZERO);
    let mut last = clock.guard();
    for _ in 0..20 {
        clock.proven_coarse();
        assert_eq!(clock.guard(), (last * 2).min(GUARD_MAX));
        last = clock.guard();
    }
    assert_eq!(last, GUARD_MAX);
}

/// A change of this client shows the server's current time. An estimate beyond it is of before the
/// clock was set back.
#[test]
fn a_clock_set_back_is_noticed_at_the_next_change_of_ours() {
    let mut clock = ServerClock::new(Duration::ZERO);
    clock.learn(Timestamp::new(2_000_000, 1), at(1000));
    clock.learn_from_change(Timestamp::new(1_000_000, 1), at(5000), at(5001));
    let present = i128::from(Timestamp::new(1_000_000, 1).as_nanoseconds());
    assert_eq!(clock.lower_bound(at(5001)).unwrap(), present);
}

#[test]
fn a_name_learned_under_an_old_stamp_is_not_racy() {
    for_each_case(|case| {
        let guard = case.pick(&[RacyGuard::Auto, RacyGuard::On, RacyGuard::Off]);
        let quiet = case.pick(&[0, 19, 20, 21, 500]);
        let mut clock = ServerClock::new(Duration::ZERO);
        let changed = server_time(at(1000), Duration::from_nanos(1));
        clock.learn(Timestamp::new(1_000_000, 400_000_001), at(500));
        clock.learn(changed, at(1000));
        let racy = clock.is_racy(Some(changed), at(1000 + quiet), guard);
        assert_eq!(racy, guard != RacyGuard::Off && quiet <= 20, "{guard:?} {quiet}");
        assert!(!clock.is_racy(None, at(1000 + quiet), guard));
    });
}

fn report(attributes: CachingAttributes, sent_at: MonotonicTime) -> AttributeReport {
    AttributeReport { attributes, sent_at, received_at: sent_at.plus(MILLISECOND) }
}

/// The label of pages that a READ sent at `sent_at` returned.
fn label_of_read(file: &AttributeState, sent_at: MonotonicTime) -> PagesLabel {
    PagesLabel { epoch: file.contents().unwrap(), sent_at }
}

/// Pages are kept at an open only if size, mtime and ctime are unchanged.
// SEMANTICS: cto-9.
#[test]
fn pages_are_kept_at_open_only_if_nothing_of_the_file_changed() {
    let options = CacheOptions::default();
    for_each_case(|case| {
        let mut clock = ServerClock::new(Duration::ZERO);
        let mut state = AttributeState::unknown();
        clock.learn(Timestamp::new(1_000_001, 2_000_001), at(0));
        let _ = state.absorb(report(file(1), at(1000)), &options);
        let label = label_of_read(&state, at(1000));
        let old = file(1);
        let now = CachingAttributes {
            size: case.pick(&[10, 11]),
            stamp: crate::cases::stamp(case.pick(&[1, 5]), case.pick(&[1, 5])),
            ..old
        };
        let _ = state.absorb(report(now, at(2000)), &options);
        let pages = decide_pages(Some(label), &state, LockingState::default(), &clock, &options);
        assert_eq!(pages == PagesDecision::Keep, now == old, "{now:?}");
    });
}

// SEMANTICS: cto-10.
#[test]
fn pages_read_while_the_stamp_was_young_are_read_again_at_the_next_open() {
    for_each_case(|case| {
        let options = CacheOptions {
            racy_guard: case.pick(&[RacyGuard::Auto, RacyGuard::On, RacyGuard::Off]),
            ..CacheOptions::default()
        };
        let mut clock = ServerClock::new(Duration::ZERO);
        let mut state = AttributeState::unknown();
        clock.learn(Timestamp::new(1_000_001, 1_000_000), at(1000));
        let _ = state.absorb(report(file(1), at(1000)), &options);
        let label = label_of_read(&state, at(1000));
        let pages = decide_pages(Some(label), &state, LockingState::default(), &clock, &options);
        assert_eq!(pages == PagesDecision::Keep, options.racy_guard == RacyGuard::Off);
    });
}

// SEMANTICS: cto-12.
#[test]
fn our_own_writing_keeps_pages_if_the_reply_proves_that_no_other_change_came_between() {
    let options = CacheOptions::default();
    for_each_case(|case| {
        let mut clock = ServerClock::new(Duration::ZERO);
        clock.learn(Timestamp::new(1_000_001, 2_000_001), at(0));
        let mut state = AttributeState::unknown();
        let (old, between, new) = (file(1), file(3), file(5));
        let _ = state.absorb(report(old, at(1000)), &options);
        let held = Some(label_of_read(&state, at(1000)));
        state.begin_mutation();
        let foreign = case.bool();
        let said = case.bool();
        let found = if foreign { before(&between) } else { before(&old) };
        let mutation = Mutation {
            before: found.filter(|_| said),
            after: Some(new),
            sent_at: at(2000),
            received_at: at(2001),
        };
        let absorbed = state.absorb_mutation(mutation, &options);
        let proven = said && !foreign;
        assert_eq!(absorbed.contents_changed, !proven);
        let pages = decide_pages(held, &state, LockingState::default(), &clock, &options);
        assert_eq!(pages == PagesDecision::Keep, proven);
    });
}

/// A lock, a delegation and the attributes are each from before or after the pages. The stamp is
/// recent.
#[test]
fn pages_are_kept_under_a_delegation_and_revalidated_under_a_lock() {
    for_each_case(|case| {
        let options = CacheOptions {
            racy_guard: case.pick(&[RacyGuard::Auto, RacyGuard::Off]),
            ..CacheOptions::default()
        };
        let mut clock = ServerClock::new(Duration::ZERO);
        let mut state = AttributeState::unknown();
        clock.learn(Timestamp::new(1_000_001, 1_000_000), at(1000));
        let _ = state.absorb(report(file(1), at(1000)), &options);
        let label = label_of_read(&state, at(1000));
        let locking = LockingState {
            locked_at: case.pick(&[None, Some(at(999)), Some(at(1500))]),
            delegation: case
                .pick(&[None, Some(at(999)), Some(at(1500))])
                .map(|since| Delegation { write: false, since }),
        };
        let asked_at = case.pick(&[at(1000), at(2000)]);
        let _ = state.absorb(report(file(1), asked_at), &options);
        let pages = decide_pages(Some(label), &state, locking, &clock, &options);
        let delegated = locking.delegation.is_some_and(|held| held.since == at(999));
        let is_doubted = locking.locked_at == Some(at(1500)) && asked_at == at(1000);
        let is_solid = options.racy_guard == RacyGuard::Off && !is_doubted;
        assert_eq!(pages == PagesDecision::Keep, delegated || is_solid, "{locking:?}");
        let (began, now) = (at(900_000), at(900_000));
        let freshness = |state: &AttributeState| {
            state.freshness_under(locking.delegation, began, now, &options) == Freshness::Confirmed
        };
        let covers = locking.delegation.is_some_and(|held| asked_at >= held.since);
        assert_eq!(freshness(&state), covers);
        state.distrust(at(3000));
        assert!(!freshness(&state), "a reply of ours was lost");
    });
}

#[test]
fn listings_request_attributes_as_long_as_these_are_used() {
    for_each_case(|case| {
        let options = CacheOptions {
            plus: case.pick(&[ReaddirplusMode::Auto, ReaddirplusMode::Never, ReaddirplusMode::Always]),
            ..CacheOptions::default()
        };
        let at_start = case.bool();
        let names = case.pick(&[0, NAMES_WITHOUT_STAT_MAX - 1, NAMES_WITHOUT_STAT_MAX, u32::MAX]);
        let decision = decide_listing(at_start, names, &options);
        let wanted = match options.plus {
            ReaddirplusMode::Always => true,
            ReaddirplusMode::Never => false,
            ReaddirplusMode::Auto => at_start || names < NAMES_WITHOUT_STAT_MAX,
        };
        assert_eq!(decision == ListingDecision::Plus, wanted);
    });
}

// SEMANTICS: list-4.
#[test]
fn a_reader_continues_at_its_cookie_except_with_readdir_restart() {
    let mut restarts = 0;
    let cases = for_each_case(|case| {
        let options = CacheOptions {
            listing: case.pick(&[ListingMode::Continue, ListingMode::Restart]),
            ..CacheOptions::default()
        };
        let (directory, is_same) = (case.freshness(), case.bool());
        let is_believed = matches!(directory, Freshness::Confirmed | Freshness::Fresh);
        let expected = match options.listing {
            ListingMode::Continue => ListingContinuation::FromCookie,
            ListingMode::Restart if !is_same => ListingContinuation::FromStart,
            ListingMode::Restart if is_believed => ListingContinuation::FromCookie,
            ListingMode::Restart => ListingContinuation::Revalidate,
        };
        let decision = decide_continuation(directory, is_same, &options);
        assert_eq!(decision, expected);
        restarts += usize::from(decision == ListingContinuation::FromStart);
    });
    assert_eq!((cases, restarts), (16, 4));
}
