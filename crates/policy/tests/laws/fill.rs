//! Asking for names together: when it is done, and when it is given up.

use core::time::Duration;

use curt_policy::{
    CacheOptions, FillMode, LookupCache, PlusMode, TimeoutRange,
    fill::{
        FillDecision, FillRecord, FillView, ListedExtent, MISSES_MIN, MOUNT_MISSES, MountFillRecord, RETRIES,
        RevalidationDecision, RevalidationView, decide, decide_part, decide_revalidation,
    },
    listing::{PLUS_SIZE_MAX, SIZE_MIN},
};

use crate::cases::for_each_case;

const LOOPBACK: Duration = Duration::from_micros(50);
const LAN: Duration = Duration::from_micros(200);
const WAN: Duration = Duration::from_millis(10);

/// A directory of which `misses` names were asked for.
fn missed(misses: u32) -> FillRecord {
    let mut record = FillRecord::default();
    (0..misses).for_each(|_| record.missed());
    record
}

fn view(record: FillRecord, size: u64) -> FillView {
    FillView {
        record,
        parent: None,
        mount: MountFillRecord::default(),
        size: Some(size),
        round_trip: LAN,
    }
}

fn fills_now(view: &FillView) -> bool {
    decide(view, &CacheOptions::default()) != FillDecision::Lookup
}

/// How many misses it takes; `None` if a thousand times as many as the first are not enough.
fn misses_until(view: &FillView) -> Option<u32> {
    let mut view = *view;
    for misses in 0..MISSES_MIN * 1000 {
        if fills_now(&view) {
            return Some(misses);
        }
        view.record.missed();
    }
    None
}

// SEMANTICS: name-3.
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
                TimeoutRange {
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
        many.filled(10, 2000, false, true, true);
        (0..10).for_each(|_| many.used());
        let asked = decide_revalidation(
            &RevalidationView {
                record: many,
                round_trip: LAN,
            },
            &options,
        );
        assert_eq!(asked != RevalidationDecision::Object, expected);
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
            assert!(!fills_now(&view), "{size} {round_trip:?}");
        }
    }
    let unknown = FillView {
        size: None,
        ..view(missed(MISSES_MIN), 0)
    };
    assert!(fills_now(&unknown));
}

#[test]
fn the_larger_a_directory_and_the_quicker_a_request_the_more_misses_it_takes() {
    let sizes = [60, 4096, 16_384, 65_536, 262_144];
    for round_trip in [LOOPBACK, LAN, Duration::from_millis(1), WAN] {
        let needed = sizes.map(|size| {
            misses_until(&FillView {
                round_trip,
                ..view(FillRecord::default(), size)
            })
            .unwrap()
        });
        assert_eq!(needed[0], MISSES_MIN);
        assert!(needed.is_sorted(), "{round_trip:?}: {needed:?}");
    }
    let by_time = [LOOPBACK, Duration::from_millis(1), WAN].map(|round_trip| {
        misses_until(&FillView {
            round_trip,
            ..view(FillRecord::default(), 262_144)
        })
        .unwrap()
    });
    assert_eq!(by_time, [128, 26, 4]);
    // 500,000 names of 20 bytes: nobody who wants a few pays for them.
    assert_eq!(misses_until(&view(FillRecord::default(), 10_000_000)), None);
}

#[test]
fn what_is_asked_for_is_within_what_a_reply_may_be() {
    let mut fills = 0;
    for size in [0, 60, 4096, 40_000, 4_000_000, u64::MAX] {
        for extent in [None, Some((10, 2000)), Some((u32::MAX, u32::MAX))] {
            for at_end in [false, true] {
                let mut record = FillRecord::default();
                if let Some((names, bytes)) = extent {
                    record.filled(names, bytes, false, at_end, true);
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
    record.filled(180, 32_000, false, false, false);
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
        record.filled(10, 2000, false, true, true);
        let misses = misses_until(&view(record, 240)).unwrap();
        needed.push(misses);
        (0..misses).for_each(|_| record.missed());
    }
    assert_eq!(
        needed,
        [12, 24, 48, 96, 192],
        "2,000 bytes are a fiftieth of 12 requests of 8 KiB"
    );
    record.spared();
    record.filled(10, 2000, false, true, true);
    assert_eq!(misses_until(&view(record, 240)), Some(12), "one was of use");
    record.spared();
    assert_eq!(misses_until(&view(record, 240)), Some(1), "so is the last one");
    for _ in 0..100 {
        record.failed();
    }
    assert_eq!(misses_until(&view(record, 240)), None, "and it never overflows");
}

/// Each fill brings the name that it was sent for, and is of no use beyond that.
#[test]
fn the_name_that_a_fill_was_sent_for_speaks_for_no_other_fill() {
    let mut record = FillRecord::default();
    let mut fills = 0;
    for _ in 0..1000 {
        record.missed();
        if decide(&view(record, 240), &CacheOptions::default()) != FillDecision::Lookup {
            record.filled(10, 2000, false, true, true);
            fills += 1;
        }
    }
    assert_eq!(fills, 7, "after 2, 12, 24, 48, … 384 misses");
}

#[test]
fn what_fills_were_worth_beside_a_directory_decides_over_its_first_miss() {
    let parent = |fills: u32, names: u32, spared: u32| {
        let mut parent = FillRecord::default();
        (0..fills).for_each(|_| parent.filled_below(names, true));
        (0..spared).for_each(|_| parent.spared_below());
        Some(parent)
    };
    let needed = |parent| {
        misses_until(&FillView {
            parent,
            ..view(FillRecord::default(), 240)
        })
        .unwrap()
    };
    assert_eq!(needed(parent(1, 10, 9)), 2, "one says nothing");
    assert_eq!(needed(parent(4, 10, 32)), 1);
    assert_eq!(needed(parent(4, 40, 26)), 2, "few names were wanted");
    assert_eq!(needed(parent(4, 200, 0)), 8, "none was");
    // The parent's own names being wanted says nothing of those of its directories.
    let mut own = FillRecord::default();
    own.filled(5000, 900_000, false, true, true);
    (0..5000).for_each(|_| own.spared());
    assert_eq!(needed(Some(own)), 2);
}

/// Names are asked for in directories that nobody knows, each of which `misses` times, on a mount
/// where fills are worth nothing; how many are sent. `holds_it`: whether each brings at least the
/// name that it was sent for.
fn fills_for_nothing(mount: &mut MountFillRecord, directories: u32, misses: u32, holds_it: bool) -> u32 {
    let mut fills = 0;
    for _ in 0..directories {
        let mut record = FillRecord::default();
        for _ in 0..misses {
            record.missed();
            mount.missed();
            let view = FillView {
                mount: *mount,
                ..view(record, 240)
            };
            if fills_now(&view) {
                record.filled(10, 2000, false, true, holds_it);
                mount.filled(10, holds_it);
                fills += 1;
            }
        }
    }
    fills
}

#[test]
fn a_mount_where_fills_are_for_nothing_gives_them_up() {
    for holds_it in [false, true] {
        let mut mount = MountFillRecord::default();
        assert_eq!(fills_for_nothing(&mut mount, 100, 3, holds_it), 8);
        // From then on hardly one of a thousand requests may be lost.
        let misses = 100 * MOUNT_MISSES;
        let fills = fills_for_nothing(&mut mount, misses / 4, 4, holds_it);
        assert!(
            (50 * RETRIES..=100 * RETRIES).contains(&fills),
            "{fills} in {misses}"
        );
        assert!(fills * 250 <= misses, "{fills} in {misses}");
    }
}

#[test]
fn a_mount_that_gave_fills_up_learns_anew() {
    let mut mount = MountFillRecord::default();
    assert_eq!(fills_for_nothing(&mut mount, 100, 2, true), 8);
    let needed = |mount| {
        let record = FillRecord::default();
        misses_until(&FillView {
            mount,
            ..view(record, 240)
        })
    };
    assert_eq!(needed(mount), None);
    // What came before is used after all.
    let mut used = mount;
    (0..8).for_each(|_| used.spared());
    assert_eq!(needed(used), Some(2));
    // Or one that was tried again.
    (0..MOUNT_MISSES).for_each(|_| mount.missed());
    assert_eq!(needed(mount), Some(2));
    for _ in 0..4 {
        mount.filled(10, true);
        (0..9).for_each(|_| mount.spared());
    }
    for _ in 0..100 {
        mount.filled(10, true);
        (0..9).for_each(|_| mount.spared());
        assert_eq!(needed(mount), Some(2));
    }
}

#[test]
fn a_directory_where_fills_pay_is_filled_although_its_mount_gave_them_up() {
    let mut mount = MountFillRecord::default();
    fills_for_nothing(&mut mount, 100, 2, false);
    let mut record = FillRecord::default();
    record.filled(10, 2000, false, true, true);
    (0..9).for_each(|_| record.spared());
    let own = FillView {
        mount,
        ..view(record, 240)
    };
    assert_eq!(misses_until(&own), Some(1));
    let mut parent = FillRecord::default();
    for _ in 0..4 {
        parent.filled_below(10, true);
        (0..9).for_each(|_| parent.spared_below());
    }
    let beside = FillView {
        mount,
        parent: Some(parent),
        ..view(FillRecord::default(), 240)
    };
    assert_eq!(misses_until(&beside), Some(1));
}

/// How many misses it takes until names of a large listing are asked for with those beside them.
fn misses_until_part(record: FillRecord, mount: MountFillRecord, round_trip: Duration) -> Option<u32> {
    let mut view = FillView {
        mount,
        round_trip,
        ..view(record, 10_000_000)
    };
    for misses in 0..100_000 {
        if decide_part(&view, &CacheOptions::default()) != FillDecision::Lookup {
            return Some(misses);
        }
        view.record.missed();
    }
    None
}

#[test]
fn parts_of_a_large_listing_are_asked_for_while_their_names_are_used() {
    let off = CacheOptions {
        fill: FillMode::Off,
        ..CacheOptions::default()
    };
    assert_eq!(decide_part(&view(missed(100_000), 0), &off), FillDecision::Lookup);
    let mut record = FillRecord::default();
    record.listed(500_000);
    let nowhere = MountFillRecord::default();
    assert_eq!(
        misses_until_part(record, nowhere, LAN),
        Some(50),
        "one request in fifty"
    );
    record.filled_part(1024, true);
    let whole = ListedExtent::Whole {
        names: 500_000,
        bytes: 500_000 * 176,
    };
    assert_eq!(record.extent(), whole, "no more is known of the whole by that");
    let needed = |record, round_trip| misses_until_part(record, nowhere, round_trip).unwrap();
    assert_eq!(needed(record, LAN), 1600, "256 KiB are a fiftieth of them");
    assert_eq!(needed(record, WAN), 50);
    record.spared();
    assert_eq!(needed(record, LAN), 128, "of some use");
    (0..22).for_each(|_| record.spared());
    assert_eq!(needed(record, LAN), 16, "it pays");
    assert_eq!(needed(record, WAN), 2);
    // Then nobody wants what came, again and again.
    for _ in 0..3 {
        record.filled_part(1024, true);
    }
    assert!(needed(record, LAN) >= 4 * 1600);
    // Nor on the whole mount.
    let mut mount = MountFillRecord::default();
    fills_for_nothing(&mut mount, 100, 2, true);
    assert_eq!(misses_until_part(record, mount, LAN), None);
}

#[test]
fn attributes_are_asked_for_together_only_if_others_are_expected_to_be_wanted() {
    let options = CacheOptions::default();
    let ask = |record: FillRecord, round_trip| {
        decide_revalidation(&RevalidationView { record, round_trip }, &options)
    };
    let used = |names: u32, used: u32| {
        let mut record = FillRecord::default();
        record.filled(names, names * 180, false, true, true);
        (0..used).for_each(|_| record.used());
        record
    };
    assert_eq!(ask(used(20, 1), LAN), RevalidationDecision::Object, "nobody else");
    assert_ne!(ask(used(20, 2), LAN), RevalidationDecision::Object);
    assert_eq!(
        ask(used(500, 2), LAN),
        RevalidationDecision::Object,
        "too many names for one more"
    );
    assert_ne!(
        ask(used(500, 2), WAN),
        RevalidationDecision::Object,
        "not over a long way"
    );
    assert_ne!(ask(used(500, 100), LAN), RevalidationDecision::Object);
    let mut part = used(20, 10);
    part.filled(20, 3600, false, false, true);
    assert_eq!(
        ask(part, LAN),
        RevalidationDecision::Object,
        "not all its names are known"
    );
    // A file that changes all the time expires alone.
    let mut alone = used(20, 10);
    alone.refreshed(Some(1));
    (0..10).for_each(|_| alone.used());
    assert_eq!(ask(alone, LAN), RevalidationDecision::Object);
    alone.asked_alone();
    assert_ne!(
        ask(alone, LAN),
        RevalidationDecision::Object,
        "a second one has expired"
    );
    let mut together = used(20, 10);
    together.refreshed(Some(10));
    assert_eq!(
        ask(together, LAN),
        RevalidationDecision::Object,
        "none was used since"
    );
    (0..3).for_each(|_| together.used());
    assert_ne!(ask(together, LAN), RevalidationDecision::Object);
}

#[test]
fn a_listing_says_how_much_a_directory_has() {
    let mut record = FillRecord::default();
    record.listed(7);
    assert_eq!(
        record.extent(),
        ListedExtent::Whole {
            names: 7,
            bytes: 7 * 176
        }
    );
    record.listed(u32::MAX);
    record.filled(u32::MAX, u32::MAX, true, false, true);
    record.filled(u32::MAX, u32::MAX, true, false, true);
    assert_eq!(
        record.extent(),
        ListedExtent::Part {
            names: u32::MAX,
            bytes: u32::MAX
        }
    );
}
