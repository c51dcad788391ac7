//! Laws of the one decision of a look-up.

use core::time::Duration;

use curt_policy::{
    AccessDecision, AttributeReport, AttributeState, Moment, NameDecision, NameLabel, NameView, ServerClock,
    access::{AllowedBy, decide_access},
    kernel_cache::DirectoryView,
    names::{DentryState, LookupDecision, LookupTime, LookupView, decide_cached_lookup, decide_lookup},
};
use curt_types::Access;

use crate::cases::{directory, for_each_case};

fn at(milliseconds: u64) -> Moment {
    Moment::from_start(Duration::from_millis(milliseconds))
}

#[test]
fn a_name_is_served_only_if_it_is_valid_and_the_caller_may_search_its_directory() {
    let mut served = 0;
    for_each_case(|case| {
        let options = case.options();
        let facts = directory(1);
        let mut state = AttributeState::unknown();
        let report = AttributeReport { facts, sent_at: at(5000), received_at: at(5001) };
        let _ = state.absorb(report, &options);
        let mut clock = ServerClock::new(Duration::ZERO);
        clock.learn(facts.stamp.changed_at().unwrap(), at(0));
        let entry = case.pick(&[DentryState::Positive, DentryState::Negative]);
        let epoch = state.contents().unwrap();
        let label = NameLabel { epoch: if case.bool() { epoch } else { epoch.next() }, sent_at: at(5000) };
        let wanted = LookupTime { began: at(6000), now: at(case.pick(&[6000, 90_000])) };
        let view = LookupView {
            entry: Some((entry, label)),
            directory: DirectoryView { attributes: &state, is_disputed: case.bool(), clock: &clock },
            freshness: case.freshness(),
            access: case.access_view(),
            wanted,
        };
        let name = NameView {
            directory: view.freshness,
            ..NameView::of(entry, label, &state, &clock, wanted, &options)
        };
        let may_serve = matches!(
            decide_lookup(&name, &options),
            NameDecision::ServePositive | NameDecision::ServeNegative
        );
        let may_search = decide_access(&view.access, view.freshness, Access::LOOKUP, &options);
        let decision = decide_cached_lookup(&view, &options);
        let is_served = matches!(decision, LookupDecision::Serve { .. });
        assert_eq!(is_served, may_serve && may_search == AccessDecision::Allow);
        if let LookupDecision::Serve { allowed_by } = decision {
            served += 1;
            let granted = view.access.entry.is_some_and(|entry| entry.granted.contains(Access::LOOKUP));
            assert_eq!(allowed_by == AllowedBy::Server, granted);
        }
        let nothing = LookupView { entry: None, ..view };
        assert!(matches!(decide_cached_lookup(&nothing, &options), LookupDecision::Lookup(_)));
    });
    assert!(served > 0, "some are");
}
