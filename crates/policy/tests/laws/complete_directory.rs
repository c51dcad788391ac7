//! What makes a directory complete, what ends that, and which names it does not cover.

use curt_policy::{
    AttributeReport, AttributeState, CacheOptions, MonotonicTime, Mutation,
    complete_directory::{
        ListingScan, may_be_hidden, reply_label, stays_complete, stays_complete_after_refusal,
    },
    names::DentryUpdate,
};

use crate::cases::{directory, for_each_case};

fn at(milliseconds: u64) -> MonotonicTime {
    MonotonicTime::from_nanoseconds(milliseconds * 1_000_000)
}

/// Attributes of a directory requested at `sent`, with the last change at `changed`.
fn report(changed: u32, sent: u64) -> AttributeReport {
    AttributeReport { attributes: directory(changed), sent_at: at(sent), received_at: at(sent + 1) }
}

// SEMANTICS: name-3.
#[test]
fn a_pass_makes_a_directory_complete_only_if_all_its_replies_show_one_state() {
    let options = CacheOptions::default();
    let (mut complete, mut torn) = (0, 0);
    let cases = for_each_case(|cases| {
        let mut directory = AttributeState::unknown();
        let mut pass = ListingScan::begin(directory.ticket());
        let mut is_one = true;
        let mut changed = 100;
        for reply in 0..3_u64 {
            let changes = cases.bool();
            let ours = cases.bool();
            let tells = cases.bool();
            if changes && reply > 0 {
                changed += 1;
                is_one &= !tells;
            }
            let ticket = directory.ticket();
            if ours {
                directory.begin_mutation();
            }
            let sent_at = 10 + 10 * reply;
            let adopted = tells && directory.absorb(report(changed, sent_at), &options).adopted;
            let label = reply_label(ticket, &directory, adopted, at(sent_at));
            assert_eq!(label.is_some(), adopted && !ours);
            is_one &= adopted && !ours;
            assert_eq!(pass.add(label, reply == 2), is_one);
            assert_eq!(pass.label().is_some(), is_one);
            assert_eq!(pass.complete().is_some(), is_one && reply == 2);
            if ours {
                let _ = directory.absorb_mutation(
                    Mutation { before: None, after: None, sent_at: at(11), received_at: at(12) },
                    &options,
                );
            }
        }
        if let Some(label) = pass.complete() {
            assert_eq!(label.sent_at, at(10), "the first request's date");
            assert_eq!(Some(label.epoch), directory.contents());
            assert!(pass.keep(&directory));
            complete += 1;
        } else {
            assert!(!pass.keep(&directory));
            torn += 1;
        }
        assert!(!pass.add(pass.label(), true), "nothing follows the end");
        pass.mark_inconsistent();
        assert_eq!((pass.label(), pass.complete()), (None, None));
    });
    assert_eq!((cases, complete, torn), (512, 2, 510));
}

#[test]
fn a_pass_that_overlaps_our_own_change_or_is_of_a_former_state_is_not_cached() {
    let options = CacheOptions::default();
    let one_reply = |directory: &mut AttributeState| {
        let ticket = directory.ticket();
        let adopted = directory.absorb(report(100, 10), &options).adopted;
        let mut pass = ListingScan::begin(ticket);
        assert!(pass.add(reply_label(ticket, directory, adopted, at(10)), true));
        pass
    };
    let mut directory = AttributeState::unknown();
    let mut pass = one_reply(&mut directory);
    assert!(pass.keep(&directory));
    directory.begin_mutation();
    assert!(!pass.keep(&directory), "one is on its way");
    assert_eq!(pass.complete(), None, "and it stays so");

    let mut directory = AttributeState::unknown();
    let mut pass = one_reply(&mut directory);
    let _ = directory.absorb(report(101, 20), &options);
    assert!(!pass.keep(&directory), "it has changed since");
    assert_eq!(pass.complete(), None);
}

// SEMANTICS: name-3.
#[test]
fn completeness_survives_changes_of_ours_that_are_proven_and_no_others() {
    let options = CacheOptions::default();
    let mut directory = AttributeState::unknown();
    let ticket = directory.ticket();
    let adopted = directory.absorb(report(100, 10), &options).adopted;
    let mut pass = ListingScan::begin(ticket);
    assert!(pass.add(reply_label(ticket, &directory, adopted, at(10)), true));
    let label = pass.complete().expect("one reply, one state");
    let later = curt_policy::NameLabel { sent_at: at(20), ..label };
    let other = curt_policy::NameLabel { epoch: label.epoch.next(), ..label };
    assert!(stays_complete(label, DentryUpdate::Positive(later)));
    assert!(stays_complete(label, DentryUpdate::Negative(later)));
    assert!(!stays_complete(label, DentryUpdate::Positive(other)));
    assert!(!stays_complete(label, DentryUpdate::Forget));
    assert!(!stays_complete(label, DentryUpdate::Unchanged));
    for is_listed in [false, true] {
        assert!(stays_complete_after_refusal(false, is_listed, true));
        assert!(!stays_complete_after_refusal(false, is_listed, false));
        assert!(!stays_complete_after_refusal(true, is_listed, false));
    }
    assert!(!stays_complete_after_refusal(true, false, true), "EEXIST proves a name");
    assert!(stays_complete_after_refusal(true, true, true), "that was known");
}

// SEMANTICS: name-4.
#[test]
fn names_that_servers_hide_or_encode_differently_are_looked_up_although_they_are_not_listed() {
    for name in [&b".snapshot"[..], b".ZFS", b"~snapshot", b".", b"..", "\u{e9}t\u{e9}".as_bytes(), b"\xff"] {
        assert!(may_be_hidden(name), "{name:?}");
    }
    for name in [&b"snapshot"[..], b".git", b"a", b".snapshot2", b"..."] {
        assert!(!may_be_hidden(name), "{name:?}");
    }
}
