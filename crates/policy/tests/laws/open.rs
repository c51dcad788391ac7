//! Laws of open(2).

use core::time::Duration;

use curt_policy::{
    AccessDecision, AccessView, CacheOptions, Delegation, Freshness, LockingState, MonotonicTime,
    OpenDecision, OpenIntent, OpenView,
    access::decide_access,
    open::{OpenServed, decide_open},
};
use curt_types::{Access, FileKind};

use crate::cases::{Cases, SLOPPY, for_each_case};

const ALLOWED: AccessView = AccessView { local: Some(Access::ALL), entry: None, foreign_data: false };

fn intent(case: &mut Cases) -> OpenIntent {
    OpenIntent {
        read: case.bool(),
        write: case.bool(),
        truncate: case.bool(),
        create: case.bool(),
        direct: case.bool(),
        sync: case.bool(),
        execute: case.bool(),
    }
}

/// No state, a lock, and a delegation of either kind.
fn locking(case: &mut Cases) -> LockingState {
    let since = MonotonicTime::default();
    let delegation = |write| {
        let delegation = Some(Delegation { write, since });
        LockingState { delegation, ..LockingState::default() }
    };
    let locked = LockingState { locked_at: Some(since), delegation: None };
    case.pick(&[LockingState::default(), locked, delegation(false), delegation(true)])
}

fn view(case: &mut Cases, access: AccessView) -> OpenView {
    OpenView {
        kind: case.pick(&[None, Some(FileKind::Regular), Some(FileKind::Directory), Some(FileKind::Fifo)]),
        attributes: case.freshness(),
        age: case.pick(&[Duration::ZERO, SLOPPY, SLOPPY + Duration::from_nanos(1)]),
        written_here: case.bool(),
        closed_after_writing: case.bool(),
        locking: locking(case),
        access,
    }
}

/// Every open for which access is granted.
fn for_each_allowed_open(mut check: impl FnMut(OpenView, OpenIntent, &CacheOptions, OpenDecision)) {
    let cases = for_each_case(|case| {
        let mut options = case.open_options();
        options.access = curt_policy::AccessMode::ModeBits;
        let view = view(case, ALLOWED);
        let intent = intent(case);
        check(view, intent, &options, decide_open(&view, intent, &options));
    });
    assert_eq!(cases, 4 * 4 * 3 * 4 * 4 * 128 * 16);
}

/// Whether the delegation allows the open: a read delegation allows no change.
fn is_covered(view: &OpenView, intent: OpenIntent) -> bool {
    let delegation = view.locking.delegation;
    delegation.is_some_and(|held| held.write || !(intent.write || intent.truncate))
}

// SEMANTICS: cto-1.
#[test]
fn by_default_an_open_is_served_only_from_attributes_requested_since_it_began() {
    for_each_allowed_open(|view, intent, options, decision| {
        if options.close_to_open
            && options.sloppy_open.is_zero()
            && let OpenDecision::Serve(served) = decision
        {
            assert_eq!(view.attributes, Freshness::Confirmed, "{view:?} {intent:?}");
            assert!(matches!(served, OpenServed::Confirmed | OpenServed::Delegated));
        }
    });
}

// SEMANTICS: cto-13.
#[test]
fn attributes_requested_since_it_began_serve_every_open() {
    for_each_allowed_open(|view, intent, options, decision| {
        if view.attributes == Freshness::Confirmed {
            let served =
                if is_covered(&view, intent) { OpenServed::Delegated } else { OpenServed::Confirmed };
            assert_eq!(decision, OpenDecision::Serve(served), "{view:?} {intent:?} {options:?}");
        }
    });
}

// SEMANTICS: cto-16.
#[test]
fn noac_never_serves_attributes_that_were_not_requested() {
    for_each_allowed_open(|view, intent, options, decision| {
        if !options.attribute_cache && matches!(decision, OpenDecision::Serve(_)) {
            assert_eq!(view.attributes, Freshness::Confirmed, "{view:?} {intent:?}");
        }
    });
}

/// A6 as an equivalence.
// SEMANTICS: cto-14.
#[test]
fn sloppycto_serves_exactly_read_only_opens_of_quiet_regular_files_within_n() {
    for_each_allowed_open(|view, intent, options, decision| {
        let read_only = !(intent.write || intent.truncate || intent.create || intent.direct || intent.sync);
        let quiet = !(view.written_here || view.locking.locked_at.is_some() || view.closed_after_writing);
        let wanted = options.attribute_cache
            && options.close_to_open
            && options.sloppy_open == SLOPPY
            && read_only
            && quiet
            && view.kind == Some(FileKind::Regular)
            && view.attributes == Freshness::Fresh
            && view.age <= SLOPPY;
        assert_eq!(
            decision == OpenDecision::Serve(OpenServed::Sloppy),
            wanted,
            "{view:?} {intent:?} {options:?}"
        );
    });
}

// SEMANTICS: cto-15.
#[test]
fn nocto_uses_fresh_attributes_but_not_after_our_own_writing() {
    for_each_allowed_open(|view, intent, options, decision| {
        let wanted = options.attribute_cache
            && !options.close_to_open
            && view.attributes == Freshness::Fresh
            && !view.closed_after_writing;
        let is = decision == OpenDecision::Serve(OpenServed::WithoutCloseToOpen);
        assert_eq!(is, wanted, "{view:?} {intent:?} {options:?}");
    });
}

/// An open never checks fewer rights than access alone, and sends at most one kind of request at a
/// time.
#[test]
fn an_open_decides_access_first_and_as_access_does() {
    for_each_case(|case| {
        let options = case.open_options();
        let access = case.access_view();
        let view = OpenView {
            kind: Some(FileKind::Regular),
            attributes: case.freshness(),
            age: case.pick(&[Duration::ZERO, SLOPPY * 2]),
            written_here: false,
            closed_after_writing: false,
            locking: LockingState::default(),
            access,
        };
        let intent = case.pick(&[
            OpenIntent { read: true, ..OpenIntent::default() },
            OpenIntent { write: true, ..OpenIntent::default() },
            OpenIntent { read: true, execute: true, ..OpenIntent::default() },
            OpenIntent { read: true, truncate: true, ..OpenIntent::default() },
            OpenIntent::default(),
        ]);
        let decision = decide_open(&view, intent, &options);
        match decide_access(&access, view.attributes, intent.needs(), &options) {
            AccessDecision::Allow => {
                assert!(matches!(decision, OpenDecision::Serve(_) | OpenDecision::Revalidate));
            }
            AccessDecision::Deny => assert_eq!(decision, OpenDecision::Deny),
            AccessDecision::Revalidate => assert_eq!(decision, OpenDecision::Revalidate),
            AccessDecision::Ask(why) => assert_eq!(decision, OpenDecision::Ask(why)),
        }
    });
}

#[test]
fn an_open_is_served_by_a_delegation_only_if_it_covers_the_opens_rights() {
    for_each_allowed_open(|view, intent, options, decision| {
        let is = decision == OpenDecision::Serve(OpenServed::Delegated);
        let wanted = view.attributes == Freshness::Confirmed && is_covered(&view, intent);
        assert_eq!(is, wanted, "{view:?} {intent:?} {options:?}");
    });
}

#[test]
fn executing_takes_the_right_to_execute_and_not_to_read() {
    let intent = OpenIntent { read: true, execute: true, ..OpenIntent::default() };
    assert_eq!(intent.needs(), Access::EXECUTE);
}

#[test]
fn truncating_takes_the_right_to_modify_even_of_a_reader() {
    let intent = OpenIntent { read: true, truncate: true, ..OpenIntent::default() };
    assert_eq!(intent.needs(), Access::READ.with(Access::MODIFY));
}
