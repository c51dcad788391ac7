//! Laws of names.

use core::time::Duration;

use curt_policy::{
    AttributeReport, AttributeState, CacheOptions, Freshness, LookupCache, MonotonicTime, NameDecision,
    NameLabel, NameView, ServerClock,
    names::{
        DentryState, DentryUpdate, LookupFinding, LookupReason, LookupTime, RacyState, decide_lookup, learn,
        learn_own, remaining,
    },
};

use crate::cases::{directory, for_each_case};

fn for_each_decision(mut check: impl FnMut(NameView, &CacheOptions, NameDecision)) {
    let cases = for_each_case(|case| {
        let options = case.name_options();
        let view = NameView {
            entry: case.pick(&[DentryState::Absent, DentryState::Positive, DentryState::Negative]),
            same_contents: case.bool(),
            within_lifetime: case.bool(),
            racy_state: case.pick(&[RacyState::NotRacy, RacyState::WithinGuard, RacyState::GuardExpired]),
            just_learned: case.bool(),
            directory: case.freshness(),
        };
        check(view, &options, decide_lookup(&view, &options));
    });
    assert_eq!(cases, 2 * 3 * 4 * 3 * 3 * 2 * 2 * 3 * 2 * 4);
}

#[test]
fn the_served_entry_is_the_cached_one() {
    for_each_decision(|view, _, decision| match decision {
        NameDecision::ServePositive => assert_eq!(view.entry, DentryState::Positive),
        NameDecision::ServeNegative => assert_eq!(view.entry, DentryState::Negative),
        NameDecision::RevalidateDirectory | NameDecision::Lookup(_) => {}
    });
}

/// Each condition is necessary.
// SEMANTICS: name-1.
#[test]
fn a_name_is_served_only_if_all_conditions_hold() {
    for_each_decision(|view, options, decision| {
        let served = matches!(decision, NameDecision::ServePositive | NameDecision::ServeNegative);
        if !served || view.just_learned {
            return;
        }
        assert!(view.same_contents && view.within_lifetime && view.racy_state != RacyState::GuardExpired);
        let believed = match view.directory {
            Freshness::Confirmed => true,
            Freshness::Fresh => options.attribute_cache,
            Freshness::Expired | Freshness::Unknown => false,
        };
        assert!(believed, "{view:?} {options:?}");
        let (names, lifetime) = (
            options.names,
            match view.entry {
                DentryState::Positive => options.name_lifetime,
                DentryState::Absent | DentryState::Negative => options.missing_name_lifetime,
            },
        );
        assert!(!lifetime.is_zero() && names != LookupCache::None);
        assert!(view.entry == DentryState::Positive || names == LookupCache::All);
    });
}

/// ... and together they are sufficient: a name that meets all of them costs no LOOKUP.
#[test]
fn a_name_is_looked_up_only_for_a_reason() {
    for_each_decision(|view, options, decision| {
        let NameDecision::Lookup(why) = decision else {
            return;
        };
        assert!(!view.just_learned || view.entry == DentryState::Absent);
        match why {
            LookupReason::Unknown => assert!(
                view.entry == DentryState::Absent
                    || curt_policy::names::lifetime(view.entry, options).is_zero()
            ),
            LookupReason::TooOld => assert!(!view.within_lifetime),
            LookupReason::DirectoryChanged => assert!(!view.same_contents),
            LookupReason::Racy => assert_eq!(view.racy_state, RacyState::GuardExpired),
        }
    });
}

#[test]
fn the_directory_is_revalidated_only_where_that_can_save_the_lookup() {
    for_each_decision(|view, options, decision| {
        if decision == NameDecision::RevalidateDirectory {
            let answered = NameView { directory: Freshness::Confirmed, ..view };
            let again = decide_lookup(&answered, options);
            assert!(matches!(again, NameDecision::ServePositive | NameDecision::ServeNegative));
        }
    });
}

const SECOND: Duration = Duration::from_secs(1);

fn at(seconds: u32) -> MonotonicTime {
    MonotonicTime::from_start(SECOND * seconds)
}

/// A directory with an old last change, first seen at 10 s.
fn quiet() -> (AttributeState, ServerClock) {
    let (mut state, mut clock) = (AttributeState::unknown(), ServerClock::new(Duration::ZERO));
    let attributes = directory(1);
    let _ = state.absorb(
        AttributeReport { attributes, sent_at: at(10), received_at: at(10) },
        &CacheOptions::default(),
    );
    clock.learn(attributes.stamp.changed_at().unwrap(), at(1));
    (state, clock)
}

/// An error says nothing about the name.
#[test]
fn only_a_definite_lookup_result_is_cached() {
    let (state, _) = quiet();
    for_each_case(|case| {
        let found = case.pick(&[LookupFinding::Object, LookupFinding::Nothing, LookupFinding::Unknown]);
        let adopted = case.bool();
        let learned = learn(found, state.ticket(), &state, adopted, at(11));
        let label = NameLabel { epoch: state.contents().unwrap(), sent_at: at(11) };
        let wanted = match (found, adopted) {
            (LookupFinding::Unknown, _) => DentryUpdate::Unchanged,
            // Without the directory's attributes in the reply, the stamp is unknown.
            (_, false) => DentryUpdate::Forget,
            (LookupFinding::Object, true) => DentryUpdate::Positive(label),
            (LookupFinding::Nothing, true) => DentryUpdate::Negative(label),
        };
        assert_eq!(learned, wanted);
    });
}

#[test]
fn a_lookup_that_overlaps_our_own_change_is_not_cached() {
    let options = CacheOptions::default();
    for when in 0..3 {
        let (mut state, _) = quiet();
        let attributes = directory(1);
        if when == 0 {
            state.begin_mutation();
        }
        let ticket = state.ticket();
        if when == 1 {
            state.begin_mutation();
        }
        if when < 2 {
            let mutation = curt_policy::Mutation {
                before: Some(attributes.as_before()),
                after: Some(attributes),
                sent_at: at(11),
                received_at: at(11),
            };
            let _ = state.absorb_mutation(mutation, &options);
        } else {
            state.begin_mutation();
        }
        assert_eq!(
            learn(LookupFinding::Nothing, ticket, &state, true, at(11)),
            DentryUpdate::Forget,
            "case {when}"
        );
    }
}

#[test]
fn our_own_change_is_cached_only_if_it_is_the_only_one_and_the_last() {
    let (state, _) = quiet();
    let label = NameLabel { epoch: state.contents().unwrap(), sent_at: at(11) };
    for_each_case(|case| {
        let (alone, stands) = (case.bool(), case.bool());
        let absorbed = curt_policy::Absorbed {
            adopted: case.bool(),
            contents_changed: false,
            rights_changed: false,
            stands,
        };
        let learned = learn_own(LookupFinding::Object, alone, &state, absorbed, at(11));
        let wanted = if alone && stands { DentryUpdate::Positive(label) } else { DentryUpdate::Forget };
        assert_eq!(learned, wanted);
    });
}

/// 6.3: a granted lifetime ends no later than our own: at the end of `remaining` the name takes a
/// request.
// SEMANTICS: attr-4.
#[test]
fn a_name_is_served_for_exactly_the_granted_lifetime() {
    for_each_case(|case| {
        let options = case.name_options();
        let entry = case.pick(&[DentryState::Positive, DentryState::Negative]);
        let (state, mut clock) = quiet();
        if case.bool() {
            // The last change of the directory was at the server's current time: a name learned now
            // is racy.
            clock = ServerClock::new(Duration::ZERO);
            clock.learn(directory(1).stamp.changed_at().unwrap(), at(10));
        }
        let label = NameLabel { epoch: state.contents().unwrap(), sent_at: at(10) };
        let now = at(10).plus(case.pick(&[Duration::ZERO, Duration::from_millis(15), SECOND, SECOND * 29]));
        let serves = |moment: MonotonicTime| {
            let wanted = LookupTime { began: moment, now: moment };
            let view = NameView::of(entry, label, &state, &clock, wanted, &options);
            matches!(
                decide_lookup(&view, &options),
                NameDecision::ServePositive | NameDecision::ServeNegative
            )
        };
        let promised = remaining(entry, label, &state, &clock, now, &options);
        if !promised.is_zero() {
            assert!(serves(now.plus(promised).minus_one()), "{options:?} {promised:?}");
            assert!(!serves(now.plus(promised).plus(Duration::from_nanos(1))), "{options:?} {promised:?}");
        } else if now > at(10) {
            assert!(!serves(now), "{options:?}");
        }
    });
}

trait MinusOne {
    fn minus_one(self) -> Self;
}

impl MinusOne for MonotonicTime {
    fn minus_one(self) -> Self {
        Self::from_nanoseconds(self.nanoseconds() - 1)
    }
}
