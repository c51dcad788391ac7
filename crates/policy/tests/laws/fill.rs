//! Asking for names together: when it is done, when it is given up, and what makes a directory complete.

use core::time::Duration;

use curt_policy::{
    AttributeState, CacheOptions, FillMode, Interval, LookupCache, Moment, Mutation, PlusMode, Report,
    complete::{Pass, PassState, may_be_hidden, survives, survives_refusal},
    fill::{
        Extent, FillDecision, FillView, MISSES_MIN, Record, Revalidation, RevalidationView, Worth, decide,
        decide_revalidation,
    },
    listing::{PLUS_SIZE_MAX, SIZE_MIN},
    names::Learned,
};

use crate::cases::{directory, for_each_case};

fn at(milliseconds: u64) -> Moment {
    Moment::from_nanoseconds(milliseconds * 1_000_000)
}

const LOOPBACK: Duration = Duration::from_micros(50);
const LAN: Duration = Duration::from_micros(200);
const WAN: Duration = Duration::from_millis(10);

/// A directory of which `misses` names were asked for.
fn missed(misses: u32) -> Record {
    let mut record = Record::default();
    (0..misses).for_each(|_| record.missed());
    record
}

fn view(record: Record, size: u64) -> FillView {
    FillView {
        record,
        parent: None,
        mount: Worth::default(),
        size: Some(size),
        round_trip: LAN,
    }
}

fn fills(view: &FillView) -> bool {
    decide(view, &CacheOptions::default()) != FillDecision::Lookup
}

/// How many misses it takes; `None` if a thousand times as many as the first are not enough.
fn misses_until(view: &FillView) -> Option<u32> {
    let mut view = *view;
    for misses in 0..MISSES_MIN * 1000 {
        if fills(&view) {
            return Some(misses);
        }
        view.record.missed();
    }
    None
}

#[test]
fn every_option_that_makes_replies_with_names_useless_turns_them_off() {
    let mut on = 0;
    let cases = for_each_case(|cases| {
        let default = CacheOptions::default();
        let options = CacheOptions {
            fill: cases.pick(&[FillMode::Auto, FillMode::Off]),
            plus: cases.pick(&[PlusMode::Auto, PlusMode::Never, PlusMode::Always]),
            names: cases.pick(&[LookupCache::All, LookupCache::Positive, LookupCache::None]),
            name_lifetime: cases.pick(&[Duration::ZERO, default.name_lifetime]),
            attribute_cache: cases.bool(),
            directories: cases.pick(&[
                default.directories,
                Interval {
                    min: Duration::ZERO,
                    max: Duration::ZERO,
                },
            ]),
            ..default
        };
        let expected = options.fill == FillMode::Auto
            && options.plus != PlusMode::Never
            && options.names != LookupCache::None
            && !options.name_lifetime.is_zero()
            && options.attribute_cache
            && !options.directories.max.is_zero();
        assert_eq!(options.fills(), expected, "{options:?}");
        on += usize::from(expected);
        let mut many = missed(1000);
        assert_eq!(
            decide(&view(many, 1000), &options) != FillDecision::Lookup,
            expected
        );
        many.filled((10, 2000), false, true, true);
        (0..10).for_each(|_| many.used());
        let asked = decide_revalidation(
            &RevalidationView {
                record: many,
                round_trip: LAN,
            },
            &options,
        );
        assert_eq!(asked != Revalidation::Object, expected);
    });
    assert_eq!((cases, on), (144, 4));
}

#[test]
fn one_name_of_a_directory_is_always_asked_for_by_itself_where_nothing_is_known() {
    for size in [0, 60, 4096, 40_000, 10_000_000, u64::MAX] {
        for round_trip in [Duration::ZERO, LOOPBACK, LAN, WAN, Duration::MAX] {
            let view = FillView {
                round_trip,
                ..view(missed(1), size)
            };
            assert!(!fills(&view), "{size} {round_trip:?}");
        }
    }
    let unknown = FillView {
        size: None,
        ..view(missed(MISSES_MIN), 0)
    };
    assert!(fills(&unknown));
}

#[test]
fn the_larger_a_directory_and_the_quicker_a_request_the_more_misses_it_takes() {
    let sizes = [60, 4096, 16_384, 65_536, 262_144];
    for round_trip in [LOOPBACK, LAN, Duration::from_millis(1), WAN] {
        let needed = sizes.map(|size| {
            misses_until(&FillView {
                round_trip,
                ..view(Record::default(), size)
            })
            .unwrap()
        });
        assert_eq!(needed[0], MISSES_MIN);
        assert!(needed.is_sorted(), "{round_trip:?}: {needed:?}");
    }
    let by_time = [LOOPBACK, Duration::from_millis(1), WAN].map(|round_trip| {
        misses_until(&FillView {
            round_trip,
            ..view(Record::default(), 262_144)
        })
        .unwrap()
    });
    assert_eq!(by_time, [128, 26, 4]);
    // 500,000 names of 20 bytes: nobody who wants a few pays for them.
    assert_eq!(misses_until(&view(Record::default(), 10_000_000)), None);
}

#[test]
fn what_is_asked_for_is_within_what_a_reply_may_be() {
    let mut fills = 0;
    for size in [0, 60, 4096, 40_000, 4_000_000, u64::MAX] {
        for extent in [None, Some((10, 2000)), Some((u32::MAX, u32::MAX))] {
            for at_end in [false, true] {
                let mut record = Record::default();
                if let Some(read) = extent {
                    record.filled(read, false, at_end, true);
                    (0..1000).for_each(|_| record.spared());
                }
                (0..4000).for_each(|_| record.missed());
                if let FillDecision::Fill { bytes } = decide(&view(record, size), &CacheOptions::default()) {
                    assert!((SIZE_MIN..=PLUS_SIZE_MAX).contains(&bytes), "{bytes}");
                    fills += 1;
                }
            }
        }
    }
    assert!(fills > 10, "{fills}");
}

#[test]
fn a_directory_whose_first_names_were_of_no_use_is_given_up() {
    let mut record = missed(2);
    record.filled((180, 32_000), false, false, false);
    assert_eq!(misses_until(&view(record, 60)), None);
    // Had they been of use, the next ones are asked for.
    (0..40).for_each(|_| record.spared());
    let again = misses_until(&view(record, 60)).unwrap();
    assert!(again <= 8, "{again}");
}

#[test]
fn fills_for_nothing_wait_twice_as_long_each_time() {
    let mut record = missed(MISSES_MIN);
    let mut needed = Vec::new();
    for _ in 0..5 {
        // Changed by others, so that all its names are void again.
        record.filled((10, 2000), false, true, true);
        let misses = misses_until(&view(record, 240)).unwrap();
        needed.push(misses);
        (0..misses).for_each(|_| record.missed());
    }
    assert_eq!(needed, [2, 4, 8, 16, 32]);
    record.spared();
    record.filled((10, 2000), false, true, true);
    assert_eq!(misses_until(&view(record, 240)), Some(2), "one was of use");
    for _ in 0..100 {
        record.failed();
    }
    assert_eq!(misses_until(&view(record, 240)), None, "and it never overflows");
}

#[test]
fn what_fills_were_worth_beside_a_directory_decides_over_its_first_miss() {
    let parent = |fills: u32, names: u32, spared: u32| {
        let mut parent = Record::default();
        (0..fills).for_each(|_| parent.filled_below(names));
        (0..spared).for_each(|_| parent.spared_below());
        Some(parent)
    };
    let needed = |parent| {
        misses_until(&FillView {
            parent,
            ..view(Record::default(), 240)
        })
        .unwrap()
    };
    assert_eq!(needed(parent(1, 10, 9)), 2, "one says nothing");
    assert_eq!(needed(parent(4, 10, 36)), 1);
    assert_eq!(needed(parent(4, 40, 30)), 2, "few names were wanted");
    assert_eq!(needed(parent(4, 200, 0)), 8, "none was");
    // The parent's own names being wanted says nothing of those of its directories.
    let mut own = Record::default();
    own.filled((5000, 900_000), false, true, true);
    (0..5000).for_each(|_| own.spared());
    assert_eq!(needed(Some(own)), 2);
}

#[test]
fn a_mount_on_which_fills_are_for_nothing_gives_them_up_and_learns_anew() {
    let mut mount = Worth::default();
    let needed = |mount| {
        misses_until(&FillView {
            mount,
            ..view(Record::default(), 240)
        })
        .unwrap()
    };
    for _ in 0..7 {
        mount.filled(200);
        assert_eq!(needed(mount), 2);
    }
    mount.filled(200);
    assert_eq!(needed(mount), 8);
    for _ in 0..20 {
        mount.filled(10);
        (0..9).for_each(|_| mount.spared());
    }
    assert_eq!(needed(mount), 2);
}

#[test]
fn attributes_are_asked_for_together_only_if_others_are_expected_to_be_wanted() {
    let options = CacheOptions::default();
    let ask =
        |record: Record, round_trip| decide_revalidation(&RevalidationView { record, round_trip }, &options);
    let used = |names: u32, used: u32| {
        let mut record = Record::default();
        record.filled((names, names * 180), false, true, true);
        (0..used).for_each(|_| record.used());
        record
    };
    assert_eq!(ask(used(20, 1), LAN), Revalidation::Object, "nobody else");
    assert_ne!(ask(used(20, 2), LAN), Revalidation::Object);
    assert_eq!(
        ask(used(500, 2), LAN),
        Revalidation::Object,
        "too many names for one more"
    );
    assert_ne!(
        ask(used(500, 2), WAN),
        Revalidation::Object,
        "not over a long way"
    );
    assert_ne!(ask(used(500, 100), LAN), Revalidation::Object);
    let mut part = used(20, 10);
    part.filled((20, 3600), false, false, true);
    assert_eq!(
        ask(part, LAN),
        Revalidation::Object,
        "not all its names are known"
    );
    // A file that changes all the time expires alone.
    let mut alone = used(20, 10);
    alone.refreshed(Some(1));
    (0..10).for_each(|_| alone.used());
    assert_eq!(ask(alone, LAN), Revalidation::Object);
    alone.asked_alone();
    assert_ne!(ask(alone, LAN), Revalidation::Object, "a second one has expired");
    let mut together = used(20, 10);
    together.refreshed(Some(10));
    assert_eq!(ask(together, LAN), Revalidation::Object, "none was used since");
    (0..3).for_each(|_| together.used());
    assert_ne!(ask(together, LAN), Revalidation::Object);
}

#[test]
fn a_listing_says_how_much_a_directory_has() {
    let mut record = Record::default();
    record.listed(7);
    assert_eq!(
        record.extent(),
        Extent::Whole {
            names: 7,
            bytes: 7 * 176
        }
    );
    record.listed(u32::MAX);
    record.filled((u32::MAX, u32::MAX), true, false, true);
    record.filled((u32::MAX, u32::MAX), true, false, true);
    assert_eq!(
        record.extent(),
        Extent::Part {
            names: u32::MAX,
            bytes: u32::MAX
        }
    );
}

/// A directory that was asked about at `sent`, its contents having changed at `changed`.
fn report(changed: u32, sent: u64) -> Report {
    Report {
        facts: directory(changed),
        sent_at: at(sent),
        received_at: at(sent + 1),
    }
}

#[test]
fn a_pass_completes_a_directory_only_if_all_its_replies_show_one_state() {
    let options = CacheOptions::default();
    let (mut complete, mut torn) = (0, 0);
    let cases = for_each_case(|cases| {
        let mut directory = AttributeState::unknown();
        let mut pass = Pass::begin(directory.ticket());
        let mut label = None;
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
            if ours {
                directory.begin_mutation();
                is_one = false;
            }
            let adopted = tells
                && directory
                    .absorb(report(changed, 10 + 10 * reply), &options)
                    .adopted;
            is_one &= adopted;
            let state = pass.absorb(&directory, adopted, at(10 + 10 * reply), reply == 2);
            if ours {
                let _ = directory.absorb_mutation(
                    Mutation {
                        before: None,
                        after: None,
                        sent_at: at(11),
                        received_at: at(12),
                    },
                    &options,
                );
            }
            match state {
                PassState::Complete(found) => {
                    assert!(is_one && reply == 2);
                    assert_eq!(found.sent_at, at(10), "the first request's date");
                    assert_eq!(Some(found.epoch), directory.contents());
                    label = Some(found);
                    complete += 1;
                }
                PassState::Open => assert!(is_one && reply < 2),
                PassState::Torn => {
                    assert!(!is_one);
                    torn += u32::from(reply == 2);
                }
            }
        }
        assert_eq!(label.is_some(), is_one);
        pass.tear();
        assert_eq!(pass.label(), None);
    });
    assert_eq!((cases, complete, torn), (512, 2, 510));
}

#[test]
fn completeness_survives_changes_of_ours_that_are_proven_and_no_others() {
    let options = CacheOptions::default();
    let mut directory = AttributeState::unknown();
    let mut pass = Pass::begin(directory.ticket());
    let adopted = directory.absorb(report(100, 10), &options).adopted;
    let PassState::Complete(label) = pass.absorb(&directory, adopted, at(10), true) else {
        panic!("one reply, one state")
    };
    let later = curt_policy::NameLabel {
        sent_at: at(20),
        ..label
    };
    let other = curt_policy::NameLabel {
        epoch: label.epoch.next(),
        ..label
    };
    assert!(survives(label, Learned::Positive(later)));
    assert!(survives(label, Learned::Negative(later)));
    assert!(!survives(label, Learned::Positive(other)));
    assert!(!survives(label, Learned::Drop));
    assert!(!survives(label, Learned::Leave));
    assert!(survives_refusal(false, true));
    assert!(!survives_refusal(true, true), "EEXIST proves a name");
    assert!(!survives_refusal(false, false));
}

#[test]
fn names_that_servers_hide_or_spell_otherwise_are_never_missing_for_want_of_being_listed() {
    for name in [
        &b".snapshot"[..],
        b".ZFS",
        b"~snapshot",
        b".",
        b"..",
        "\u{e9}t\u{e9}".as_bytes(),
        b"\xff",
    ] {
        assert!(may_be_hidden(name), "{name:?}");
    }
    for name in [&b"snapshot"[..], b".git", b"a", b".snapshot2", b"..."] {
        assert!(!may_be_hidden(name), "{name:?}");
    }
}
