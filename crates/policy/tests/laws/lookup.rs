//! Laws of the one decision of a look-up.

use core::time::Duration;

use curt_policy::{
    AccessDecision, AttributeReport, AttributeState, MonotonicTime, NameDecision, NameLabel, NameView,
    ServerClock,
    access::{AllowedBy, decide_access},
    kernel_cache::{DirectoryView, KernelNameView, NameLifetimes, name_lifetime},
    names::{
        CreateHints, CreateProbe, DentryState, LookupDecision, LookupHit, LookupTime, LookupView,
        decide_cached_lookup, decide_lookup,
    },
};
use curt_types::{Access, FileKind};

use crate::cases::{directory, for_each_case};

fn at(milliseconds: u64) -> MonotonicTime {
    MonotonicTime::from_start(Duration::from_millis(milliseconds))
}

#[test]
fn a_name_is_served_only_if_it_is_valid_and_the_caller_may_search_its_directory() {
    let (mut served, mut cached, mut confirmed) = (0, 0, 0);
    for_each_case(|case| {
        let options = case.options();
        let attributes = directory(1);
        let mut state = AttributeState::unknown();
        let report = AttributeReport { attributes, sent_at: at(5000), received_at: at(5001) };
        let _ = state.absorb(report, &options);
        let mut clock = ServerClock::new(Duration::ZERO);
        clock.learn(attributes.stamp.changed_at().unwrap(), at(0));
        let entry = case.pick(&[DentryState::Positive, DentryState::Negative]);
        let epoch = state.contents().unwrap();
        let label = NameLabel { epoch: if case.bool() { epoch } else { epoch.next() }, sent_at: at(5000) };
        let wanted = LookupTime { began: at(6000), now: at(case.pick(&[6000, 90_000])) };
        let kernel = KernelNameView {
            granted: NameLifetimes::default(),
            kind: Some(FileKind::Regular),
            longest: Duration::from_secs(1),
        };
        let repeated = CreateHints { repeated: Some(CreateProbe::begun(at(0))), kernel_has_name: false };
        let view = LookupView {
            entry: Some((entry, label)),
            directory: DirectoryView { attributes: &state, is_disputed: case.bool(), clock: &clock },
            freshness: case.freshness(),
            access: case.access_view(),
            wanted,
            kernel: Some(kernel).filter(|_| case.bool()),
            is_parent: false,
            create: case.pick(&[CreateHints::default(), repeated]),
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
        let is_served = matches!(decision, LookupDecision::Serve(_) | LookupDecision::Confirm(_));
        assert_eq!(is_served, may_serve && may_search == AccessDecision::Allow);
        if let LookupDecision::Serve(answer) | LookupDecision::Confirm(answer) = decision {
            let is_confirmed = matches!(decision, LookupDecision::Confirm(_));
            let is_positive = entry == DentryState::Positive;
            assert_eq!(is_confirmed, is_positive && view.create.must_send_lookup(wanted.began));
            assert_eq!(answer.hit, if is_positive { LookupHit::Positive } else { LookupHit::Negative });
            let parent = LookupView { is_parent: true, ..view };
            let (LookupDecision::Serve(parent) | LookupDecision::Confirm(parent)) =
                decide_cached_lookup(&parent, &options)
            else {
                panic!("the name does not decide whether it is served");
            };
            assert_eq!(parent.hit, LookupHit::Parent);
            served += 1;
            confirmed += usize::from(is_confirmed);
            cached += usize::from(!answer.lifetime.is_zero());
            let own = kernel.lifetime(entry, label, &view.directory, wanted.now, &options);
            let longest = view.kernel.map_or(Duration::ZERO, |_| own);
            assert_eq!(answer.lifetime, longest);
            let granted = view.access.entry.is_some_and(|entry| entry.granted.contains(Access::LOOKUP));
            assert_eq!(answer.allowed_by == AllowedBy::Server, granted);
        }
        let nothing = LookupView { entry: None, ..view };
        assert!(matches!(decide_cached_lookup(&nothing, &options), LookupDecision::Lookup(_)));
    });
    assert!(served > cached && cached > 0, "some are, and some of them for a kernel to keep");
    assert!(served > confirmed && confirmed > 0, "some are asked for first");
}

#[test]
fn a_kernel_keeps_no_name_of_a_device_and_none_where_names_are_withheld() {
    let mut kept = 0;
    for_each_case(|case| {
        let options = case.options();
        let mut state = AttributeState::unknown();
        let report = AttributeReport { attributes: directory(1), sent_at: at(5000), received_at: at(5001) };
        let _ = state.absorb(report, &options);
        let mut clock = ServerClock::new(Duration::ZERO);
        clock.learn(report.attributes.stamp.changed_at().unwrap(), at(0));
        let label = NameLabel { epoch: state.contents().unwrap(), sent_at: at(5000) };
        let directory = DirectoryView { attributes: &state, is_disputed: false, clock: &clock };
        let own = name_lifetime(DentryState::Positive, label, &directory, at(5000), &options);
        for (kind, withheld, longest) in [
            (FileKind::Regular, false, 1000),
            (FileKind::Regular, false, 1),
            (FileKind::Regular, true, 1000),
            (FileKind::Fifo, false, 1000),
        ] {
            let mut granted = NameLifetimes::default();
            if withheld {
                granted.withhold(at(0));
            }
            let longest = Duration::from_millis(longest);
            let kernel = KernelNameView { granted, kind: Some(kind), longest };
            let lifetime = kernel.lifetime(DentryState::Positive, label, &directory, at(5000), &options);
            let is_kept = kind == FileKind::Regular && !withheld;
            assert_eq!(lifetime, if is_kept { own.min(longest) } else { Duration::ZERO });
            kept += usize::from(!lifetime.is_zero());
        }
    });
    assert!(kept > 0, "some are");
}
