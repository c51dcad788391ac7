//! Laws of access.

use core::time::Duration;

use curt_policy::{
    AccessDecision, AccessEntry, AccessMode, AccessReason, CachingAttributes, Freshness, MonotonicTime,
    UnixCredential,
    access::{
        DENIAL_LIFETIME, ModeBitsComparison, compare, decide_access, is_world_searchable, mode_bits_rights,
    },
};
use curt_types::{Access, FileKind};

use crate::cases::{directory, file, for_each_case};

const NEEDS: [Access; 5] = [Access::NONE, Access::READ, Access::MODIFY, Access::EXECUTE, Access::LOOKUP];

/// Every decision, with its inputs.
fn for_each_decision(
    mut check: impl FnMut(curt_policy::AccessView, Freshness, Access, &curt_policy::CacheOptions, AccessDecision),
) {
    let cases = for_each_case(|case| {
        let options = case.open_options();
        let view = case.access_view();
        let attributes = case.freshness();
        let needs = case.pick(&NEEDS);
        check(view, attributes, needs, &options, decide_access(&view, attributes, needs, &options));
    });
    assert_eq!(cases, 16 * 4 * (1 + 3 * 6) * 2 * 4 * 5);
}

/// An empty mask needs no request.
#[test]
fn an_empty_mask_sends_no_request() {
    for_each_decision(|_, _, needs, _, decision| {
        if needs.is_empty() {
            assert_eq!(decision, AccessDecision::Allow);
        }
    });
}

/// `local` is `None` for uid 0, so the mode must not matter.
#[test]
fn without_usable_mode_bits_only_the_server_decides() {
    for_each_decision(|view, _, needs, _, decision| {
        let served = view.entry.is_some_and(|entry| entry.asked.contains(needs));
        if view.local.is_none() && !served && !needs.is_empty() {
            assert_eq!(decision, AccessDecision::Ask(AccessReason::Unasked));
        }
    });
}

// SEMANTICS: perm-2.
#[test]
fn with_accesscheck_mode_bits_decide_nothing() {
    for_each_decision(|view, attributes, needs, options, decision| {
        if options.access == AccessMode::Server {
            let without = curt_policy::AccessView { local: None, ..view };
            assert_eq!(decision, decide_access(&without, attributes, needs, options));
        }
    });
}

/// EACCES is returned only for a denial that the server gave less than a second ago.
// SEMANTICS: perm-4.
#[test]
fn a_denial_always_comes_from_the_server() {
    for_each_decision(|view, _, needs, _, decision| {
        if decision == AccessDecision::Deny {
            let entry = view.entry.unwrap();
            assert!(entry.denial_is_young && entry.asked.contains(needs) && !entry.granted.contains(needs));
        }
    });
}

/// With `noaccesscheck`, ACCESS is sent for users other than uid 0 only to confirm a denial, or
/// before data of another credential are served.
// SEMANTICS: perm-5.
#[test]
fn mode_bits_save_every_access_but_two() {
    for_each_decision(|view, _, _, options, decision| {
        if options.access == AccessMode::ModeBits && view.local.is_some() {
            assert_ne!(decision, AccessDecision::Ask(AccessReason::Unasked));
        }
    });
}

/// Once the server has granted a right in the current epoch, foreign data need no further ACCESS.
// SEMANTICS: perm-5.
#[test]
fn foreign_data_are_served_only_after_the_server_granted_something() {
    for_each_decision(|view, attributes, needs, options, decision| {
        let asked = view.entry.is_some_and(|entry| entry.asked.contains(needs));
        if view.foreign_data && !asked && !needs.is_empty() {
            assert_ne!(decision, AccessDecision::Allow, "{view:?} {attributes:?} {options:?}");
        }
        if decision == AccessDecision::Ask(AccessReason::ForeignData) {
            assert!(view.foreign_data && !asked);
        }
    });
}

// SEMANTICS: cto-16.
#[test]
fn noac_and_old_attributes_grant_nothing_without_a_request() {
    for_each_decision(|_, attributes, needs, options, decision| {
        let believed = match attributes {
            Freshness::Confirmed => true,
            Freshness::Fresh => options.attribute_cache,
            Freshness::Expired | Freshness::Unknown => false,
        };
        if !believed && !needs.is_empty() {
            assert!(matches!(decision, AccessDecision::Revalidate | AccessDecision::Ask(_)));
        }
    });
}

/// Request, absorb, decide: this terminates, because neither request is sent twice for the same
/// reason.
#[test]
fn no_request_is_decided_twice_for_one_reason() {
    let now = MonotonicTime::from_nanoseconds(5);
    for_each_decision(|view, attributes, needs, options, decision| {
        let asked = Access::applicable_to(FileKind::Regular).with(needs);
        match decision {
            AccessDecision::Allow | AccessDecision::Deny => {}
            AccessDecision::Revalidate => {
                let again = decide_access(&view, Freshness::Confirmed, needs, options);
                assert_ne!(again, AccessDecision::Revalidate, "{view:?} {attributes:?}");
            }
            AccessDecision::Ask(_) => {
                for granted in [Access::NONE, asked] {
                    let entry = AccessEntry::absorb(None, asked, granted, now).view(now);
                    let view = curt_policy::AccessView { entry: Some(entry), ..view };
                    let again = decide_access(&view, Freshness::Confirmed, needs, options);
                    let wanted = if granted == asked { AccessDecision::Allow } else { AccessDecision::Deny };
                    assert_eq!(again, wanted);
                }
            }
        }
    });
}

/// The rights by mode bits compared with a table written by hand, for every mode, class and type.
// SEMANTICS: perm-5.
#[test]
fn mode_bits_grant_what_a_local_file_system_would() {
    let people =
        [(1000, 5, &[][..], 6), (1001, 100, &[][..], 3), (1001, 5, &[7, 100][..], 3), (1001, 5, &[7][..], 0)];
    for kind in [FileKind::Regular, FileKind::Directory] {
        for mode in 0..0o1000 {
            let attributes = CachingAttributes { kind, mode, ..file(0) };
            for (uid, gid, groups, shift) in people {
                let granted = mode_bits_rights(&attributes, UnixCredential { uid, gid, groups }).unwrap();
                let bits = (mode >> shift) & 7;
                assert_eq!(granted.contains(Access::READ), bits & 4 != 0);
                assert_eq!(granted.contains(Access::MODIFY), bits & 2 != 0);
                assert_eq!(granted.contains(Access::EXTEND), bits & 2 != 0);
                let walk = if kind == FileKind::Directory { Access::LOOKUP } else { Access::EXECUTE };
                assert_eq!(granted.contains(walk), bits & 1 != 0);
                let delete = kind == FileKind::Directory && bits & 3 == 3;
                assert_eq!(granted.contains(Access::DELETE), delete);
            }
            assert_eq!(mode_bits_rights(&attributes, UnixCredential { uid: 0, gid: 0, groups: &[] }), None);
        }
    }
}

#[test]
fn every_user_may_search_if_all_three_classes_may() {
    for mode in 0..0o1000 {
        let open = mode & 0o100 != 0 && mode & 0o010 != 0 && mode & 0o001 != 0;
        assert_eq!(is_world_searchable(&CachingAttributes { mode, ..directory(0) }), open);
        assert!(!is_world_searchable(&CachingAttributes { mode, ..file(0) }));
    }
}

#[test]
fn a_later_result_replaces_only_the_rights_that_were_requested() {
    let now = MonotonicTime::from_nanoseconds(1);
    let entry = AccessEntry::absorb(None, Access::READ.with(Access::MODIFY), Access::READ, now);
    let entry = AccessEntry::prove(Some(entry), Access::EXECUTE, now);
    let view = AccessEntry::absorb(Some(entry), Access::READ, Access::NONE, now).view(now);
    assert_eq!(view.granted, Access::EXECUTE);
    assert_eq!(view.asked, Access::READ.with(Access::MODIFY).with(Access::EXECUTE));
}

#[test]
fn a_denial_is_valid_for_a_second() {
    let sent_at = MonotonicTime::from_nanoseconds(1);
    let entry = AccessEntry::absorb(None, Access::READ, Access::NONE, sent_at);
    let young = |after: Duration| entry.view(sent_at.plus(after)).denial_is_young;
    assert!(young(Duration::ZERO));
    assert!(young(DENIAL_LIFETIME - Duration::from_nanos(1)));
    assert!(!young(DENIAL_LIFETIME));
}

/// The comparison of mode bits with the server. A read-only export that denies writes is no
/// mismatch.
// SEMANTICS: perm-6.
#[test]
fn mode_bits_are_compared_with_the_server_only_for_read_and_search() {
    let all = Access::applicable_to(FileKind::Regular);
    let write = Access::MODIFY.with(Access::EXTEND);
    assert_eq!(compare(Access::READ, all, Access::READ), ModeBitsComparison::Agree);
    assert_eq!(compare(Access::READ.with(write), all, Access::READ), ModeBitsComparison::Agree);
    assert_eq!(compare(Access::NONE, all, Access::READ), ModeBitsComparison::ServerGrantsMore);
    assert_eq!(compare(Access::READ, all, Access::NONE), ModeBitsComparison::ServerGrantsLess);
    assert_eq!(compare(Access::READ, all, Access::EXECUTE), ModeBitsComparison::ServerGrantsLess);
    // Nothing is learned about a right that was not requested.
    assert_eq!(compare(Access::READ, write, Access::NONE), ModeBitsComparison::Agree);
}

#[test]
fn one_access_requests_all_relevant_rights() {
    let directory = Access::applicable_to(FileKind::Directory);
    let regular = Access::applicable_to(FileKind::Regular);
    for mask in 0..8 {
        assert!(directory.contains(Access::from_access_mask(mask, FileKind::Directory)));
        assert!(regular.contains(Access::from_access_mask(mask, FileKind::Regular)));
        assert_eq!(Access::from_access_mask(mask, FileKind::Regular).is_empty(), mask == 0);
    }
}
