//! Requesting names together: when it is done, and when it is disabled.

use core::time::Duration;

use curt_policy::{
    CacheOptions, FillMode, ListingMode, LookupCache, ReaddirplusMode, TimeoutRange,
    prefetch::{
        ListedExtent, LookupOrder, MISSES_MAX, MISSES_MIN, MISSES_WINDOW, MOUNT_MISSES, PrefetchBenefit,
        PrefetchReason, PrefetchRecord, PrefetchView, RETRIES, decide,
    },
    readdir::{PLUS_SIZE_MAX, SIZE_FIRST_MAX, SIZE_MIN},
};

use crate::cases::for_each_case;

const LOOPBACK: Duration = Duration::from_micros(50);
const LAN: Duration = Duration::from_micros(200);
const WAN: Duration = Duration::from_millis(10);

/// A directory in which `misses` names had to be requested.
fn missed(misses: u32) -> PrefetchRecord {
    let mut record = PrefetchRecord::default();
    (0..misses).for_each(|_| record.own.missed());
    record
}

/// A fill returned names.
fn filled(record: &mut PrefetchRecord, names: u32, bytes: u32, is_next: bool, at_end: bool, holds_it: bool) {
    record.read(bytes, is_next, at_end);
    record.own.filled(names, holds_it);
}

fn view(record: PrefetchRecord, size: u64) -> PrefetchView {
    PrefetchView {
        record,
        siblings: PrefetchBenefit::default(),
        mount: PrefetchBenefit::default(),
        size: Some(size),
        round_trip: LAN,
    }
}

fn fills_now(view: &PrefetchView) -> bool {
    decide(PrefetchReason::Name(view), &CacheOptions::default()).is_some()
}

/// The number of misses until a fill; `None` if 1000 times the first number is not enough.
fn misses_until(view: &PrefetchView) -> Option<u32> {
    let mut view = *view;
    for misses in 0..MISSES_MIN * 1000 {
        if fills_now(&view) {
            return Some(misses);
        }
        view.record.own.missed();
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
            plus: cases.pick(&[ReaddirplusMode::Auto, ReaddirplusMode::Never, ReaddirplusMode::Always]),
            names: cases.pick(&[LookupCache::All, LookupCache::Positive, LookupCache::None]),
            name_lifetime: cases.pick(&[Duration::ZERO, default.name_lifetime]),
            attribute_cache: cases.bool(),
            directories: cases
                .pick(&[default.directories, TimeoutRange { min: Duration::ZERO, max: Duration::ZERO }]),
            ..default
        };
        let expected = options.fill == FillMode::Auto
            && options.plus != ReaddirplusMode::Never
            && options.names != LookupCache::None
            && !options.name_lifetime.is_zero()
            && options.attribute_cache
            && !options.directories.max.is_zero();
        assert_eq!(options.fills(), expected, "{options:?}");
        on += usize::from(expected);
        let mut many = missed(1000);
        assert_eq!(decide(PrefetchReason::Name(&view(many, 1000)), &options).is_some(), expected);
        filled(&mut many, 10, 2000, false, true, true);
        (0..10).for_each(|_| many.used());
        let refreshes = decide(PrefetchReason::Attributes(&view(many, 1000)), &options).is_some();
        assert_eq!(refreshes, expected);
    });
    assert_eq!((cases, on), (144, 4));
}

#[test]
fn the_first_name_of_an_unknown_directory_is_looked_up_individually() {
    for size in [0, 60, 4096, 40_000, 10_000_000, u64::MAX] {
        for round_trip in [Duration::ZERO, LOOPBACK, LAN, WAN, Duration::MAX] {
            let view = PrefetchView { round_trip, ..view(missed(1), size) };
            assert!(!fills_now(&view), "{size} {round_trip:?}");
        }
    }
    let unknown = PrefetchView { size: None, ..view(missed(MISSES_MIN), 0) };
    assert!(fills_now(&unknown));
}

#[test]
fn the_larger_a_directory_and_the_quicker_a_request_the_more_misses_it_takes() {
    let sizes = [60, 4096, 16_384, 65_536, 262_144];
    for round_trip in [LOOPBACK, LAN, Duration::from_millis(1), WAN] {
        let needed = sizes.map(|size| {
            misses_until(&PrefetchView { round_trip, ..view(PrefetchRecord::default(), size) }).unwrap()
        });
        assert_eq!(needed[0], MISSES_MIN);
        assert!(needed.is_sorted(), "{round_trip:?}: {needed:?}");
    }
    let by_time = [LOOPBACK, Duration::from_millis(1), WAN].map(|round_trip| {
        misses_until(&PrefetchView { round_trip, ..view(PrefetchRecord::default(), 262_144) }).unwrap()
    });
    assert_eq!(by_time, [128, 26, 4]);
    // 500,000 names of 20 bytes: too many to request for a few lookups.
    assert_eq!(misses_until(&view(PrefetchRecord::default(), 10_000_000)), None);
}

#[test]
fn every_request_is_within_the_bounds_of_a_reply() {
    let mut fills = 0;
    for size in [0, 60, 4096, 40_000, 4_000_000, u64::MAX] {
        for extent in [None, Some((10, 2000)), Some((u32::MAX, u32::MAX))] {
            for at_end in [false, true] {
                let mut record = PrefetchRecord::default();
                if let Some((names, bytes)) = extent {
                    filled(&mut record, names, bytes, false, at_end, true);
                    (0..1000).for_each(|_| record.own.saved());
                }
                (0..4000).for_each(|_| record.own.missed());
                if let Some(bytes) =
                    decide(PrefetchReason::Name(&view(record, size)), &CacheOptions::default())
                {
                    assert!((SIZE_MIN..=PLUS_SIZE_MAX).contains(&bytes), "{bytes}");
                    fills += 1;
                }
            }
        }
    }
    assert!(fills > 10, "{fills}");
}

#[test]
fn a_directory_whose_first_names_were_not_used_is_not_filled_further() {
    let mut record = missed(2);
    filled(&mut record, 180, 32_000, false, false, false);
    assert_eq!(misses_until(&view(record, 60)), None);
    // If they had a benefit, the next ones are requested.
    (0..40).for_each(|_| record.own.saved());
    let again = misses_until(&view(record, 60)).unwrap();
    assert!(again <= 8, "{again}");
}

#[test]
fn each_fill_without_benefit_doubles_the_misses_before_the_next() {
    let mut record = missed(MISSES_MIN);
    let mut needed = Vec::new();
    for _ in 0..5 {
        // Changed by other clients, so that all its names are invalid again.
        filled(&mut record, 10, 2000, false, true, true);
        let misses = misses_until(&view(record, 240)).unwrap();
        needed.push(misses);
        (0..misses).for_each(|_| record.own.missed());
    }
    assert_eq!(needed, [12, 24, 48, 96, 192], "2,000 bytes are a fiftieth of 12 requests of 8 KiB");
    record.own.saved();
    filled(&mut record, 10, 2000, false, true, true);
    assert_eq!(misses_until(&view(record, 240)), Some(12), "one was of use");
    record.own.saved();
    assert_eq!(misses_until(&view(record, 240)), Some(1), "so is the last one");
    for _ in 0..100 {
        record.own.filled(0, false);
    }
    assert_eq!(misses_until(&view(record, 240)), None, "and it never overflows");
}

/// Each fill contains the name for which it was sent, and has no benefit beyond that.
#[test]
fn the_name_that_a_fill_was_sent_for_counts_as_no_benefit() {
    let mut record = PrefetchRecord::default();
    let mut fills = 0;
    for _ in 0..1000 {
        record.own.missed();
        if fills_now(&view(record, 240)) {
            filled(&mut record, 10, 2000, false, true, true);
            fills += 1;
        }
    }
    assert_eq!(fills, 7, "after 2, 12, 24, 48, … 384 misses");
}

#[test]
fn the_benefit_of_fills_in_siblings_decides_at_the_first_miss() {
    let parent = |fills: u32, names: u32, saved: u32| {
        let mut siblings = PrefetchBenefit::default();
        (0..fills).for_each(|_| siblings.filled(names, true));
        (0..saved).for_each(|_| siblings.saved());
        siblings
    };
    let needed =
        |siblings| misses_until(&PrefetchView { siblings, ..view(PrefetchRecord::default(), 240) }).unwrap();
    assert_eq!(needed(parent(1, 10, 9)), 2, "one says nothing");
    assert_eq!(needed(parent(4, 10, 32)), 1);
    assert_eq!(needed(parent(4, 40, 26)), 2, "few names were wanted");
    assert_eq!(needed(parent(4, 200, 0)), 8, "none was");
}

/// Looks up names in unknown directories, `misses` in each, on a mount where fills have no benefit.
/// Returns the number of fills. `holds_it`: each fill contains the name for which it was sent.
fn fills_for_nothing(mount: &mut PrefetchBenefit, directories: u32, misses: u32, holds_it: bool) -> u32 {
    let mut fills = 0;
    for _ in 0..directories {
        let mut record = PrefetchRecord::default();
        for _ in 0..misses {
            record.own.missed();
            mount.missed();
            let view = PrefetchView { mount: *mount, ..view(record, 240) };
            if fills_now(&view) {
                filled(&mut record, 10, 2000, false, true, holds_it);
                mount.filled_on_mount(10, holds_it);
                fills += 1;
            }
        }
    }
    fills
}

#[test]
fn fills_are_disabled_on_a_mount_without_benefit() {
    for holds_it in [false, true] {
        let mut mount = PrefetchBenefit::default();
        assert_eq!(fills_for_nothing(&mut mount, 100, 3, holds_it), 8);
        // From then on at most about one of a thousand requests may be lost.
        let misses = 100 * MOUNT_MISSES;
        let fills = fills_for_nothing(&mut mount, misses / 4, 4, holds_it);
        assert!((50 * RETRIES..=100 * RETRIES).contains(&fills), "{fills} in {misses}");
        assert!(fills * 250 <= misses, "{fills} in {misses}");
    }
}

#[test]
fn fills_are_enabled_again_on_a_mount_with_benefit() {
    let mut mount = PrefetchBenefit::default();
    assert_eq!(fills_for_nothing(&mut mount, 100, 2, true), 8);
    let needed = |mount| {
        let record = PrefetchRecord::default();
        misses_until(&PrefetchView { mount, ..view(record, 240) })
    };
    assert_eq!(needed(mount), None);
    // The earlier names are used after all.
    let mut used = mount;
    (0..8).for_each(|_| used.saved());
    assert_eq!(needed(used), Some(2));
    // Or those of a new try.
    (0..MOUNT_MISSES).for_each(|_| mount.missed());
    assert_eq!(needed(mount), Some(2));
    for _ in 0..4 {
        mount.filled_on_mount(10, true);
        (0..9).for_each(|_| mount.saved());
    }
    for _ in 0..100 {
        mount.filled_on_mount(10, true);
        (0..9).for_each(|_| mount.saved());
        assert_eq!(needed(mount), Some(2));
    }
}

#[test]
fn a_directory_with_benefit_is_filled_although_fills_are_disabled_on_its_mount() {
    let mut mount = PrefetchBenefit::default();
    fills_for_nothing(&mut mount, 100, 2, false);
    let mut record = PrefetchRecord::default();
    filled(&mut record, 10, 2000, false, true, true);
    (0..9).for_each(|_| record.own.saved());
    let own = PrefetchView { mount, ..view(record, 240) };
    assert_eq!(misses_until(&own), Some(1));
    let mut parent = PrefetchBenefit::default();
    for _ in 0..4 {
        parent.filled(10, true);
        (0..9).for_each(|_| parent.saved());
    }
    let siblings = PrefetchView { mount, siblings: parent, ..view(PrefetchRecord::default(), 240) };
    assert_eq!(misses_until(&siblings), Some(1));
}

/// The number of misses until names of a large listing are requested together with others.
fn misses_until_part(record: PrefetchRecord, mount: PrefetchBenefit, round_trip: Duration) -> Option<u32> {
    let mut view = PrefetchView { mount, round_trip, ..view(record, 10_000_000) };
    for misses in 0..100_000 {
        if decide(PrefetchReason::ListedName(&view), &CacheOptions::default()).is_some() {
            return Some(misses);
        }
        view.record.own.missed();
    }
    None
}

#[test]
fn parts_of_a_large_listing_are_requested_while_their_names_are_used() {
    let off = CacheOptions { fill: FillMode::Off, ..CacheOptions::default() };
    assert_eq!(decide(PrefetchReason::ListedName(&view(missed(100_000), 0)), &off), None);
    let mut record = PrefetchRecord::default();
    record.listed(500_000);
    let nowhere = PrefetchBenefit::default();
    assert_eq!(misses_until_part(record, nowhere, LAN), Some(50), "one request in fifty");
    record.own.filled(1024, true);
    let whole = ListedExtent::Whole(500_000 * 176);
    assert_eq!(record.extent(), whole, "no more is known of the whole by that");
    let needed = |record, round_trip| misses_until_part(record, nowhere, round_trip).unwrap();
    assert_eq!(needed(record, LAN), 1600, "256 KiB are a fiftieth of them");
    assert_eq!(needed(record, WAN), 50);
    record.own.saved();
    assert_eq!(needed(record, LAN), 128, "of some use");
    (0..22).for_each(|_| record.own.saved());
    assert_eq!(needed(record, LAN), 16, "it pays");
    assert_eq!(needed(record, WAN), 2);
    // Then the names of several fills are not used.
    for _ in 0..3 {
        record.own.filled(1024, true);
    }
    assert!(needed(record, LAN) >= 4 * 1600);
    // Nor on the whole mount.
    let mut mount = PrefetchBenefit::default();
    fills_for_nothing(&mut mount, 100, 2, true);
    assert_eq!(misses_until_part(record, mount, LAN), None);
}

#[test]
fn attributes_are_requested_together_only_if_others_are_expected_to_be_used() {
    let options = CacheOptions::default();
    let ask = |record: PrefetchRecord, round_trip| {
        let view = PrefetchView { round_trip, ..view(record, 0) };
        decide(PrefetchReason::Attributes(&view), &options).is_some()
    };
    let used = |names: u32, used: u32| {
        let mut record = PrefetchRecord::default();
        filled(&mut record, names, names * 180, false, true, true);
        (0..used).for_each(|_| record.used());
        record
    };
    assert!(!ask(used(20, 1), LAN), "nobody else");
    assert!(ask(used(20, 2), LAN));
    assert!(!ask(used(500, 2), LAN), "too many names for one more");
    assert!(ask(used(500, 2), WAN), "not over a long way");
    assert!(ask(used(500, 100), LAN));
    let mut part = used(20, 10);
    filled(&mut part, 20, 3600, false, false, true);
    assert!(!ask(part, LAN), "not all its names are known");
    // A file that changes all the time expires alone.
    let mut alone = used(20, 10);
    alone.refreshed(Some(1));
    (0..10).for_each(|_| alone.used());
    assert!(!ask(alone, LAN));
    alone.note_single_request();
    assert!(ask(alone, LAN), "a second one has expired");
    let mut together = used(20, 10);
    together.refreshed(Some(10));
    assert!(!ask(together, LAN), "none was used since");
    (0..3).for_each(|_| together.used());
    assert!(ask(together, LAN));
}

#[test]
fn a_listing_sets_the_known_size_of_a_directory() {
    let mut record = PrefetchRecord::default();
    record.listed(7);
    assert_eq!(record.extent(), ListedExtent::Whole(7 * 176));
    record.listed(u32::MAX);
    filled(&mut record, u32::MAX, u32::MAX, true, false, true);
    filled(&mut record, u32::MAX, u32::MAX, true, false, true);
    assert_eq!(record.extent(), ListedExtent::Part(u32::MAX));
}

#[test]
fn names_looked_up_in_order_are_distinguished_from_random_lookups() {
    let mut order = LookupOrder::default();
    let placed = (0..MISSES_MAX).filter(|_| order.missed()).count();
    assert_eq!(placed, 8);
    let is_due = |order: LookupOrder, place, more: u32| {
        let mut order = order;
        (0..more).for_each(|_| order.missed_at(place));
        decide(PrefetchReason::NameInOrder(&order), &CacheOptions::default()).is_some()
    };
    let needed = |order: LookupOrder, place| (0..=MISSES_MAX).find(|more| is_due(order, place, *more));
    for (place, rest, why) in [
        (100, 15, "the first"),
        (101, 14, "the next"),
        (101 + MISSES_WINDOW, 13, "near enough"),
        (102 + 2 * MISSES_WINDOW, 15, "too far"),
        (5, 15, "backwards"),
    ] {
        order.missed_at(place);
        assert_eq!(needed(order, place), Some(rest), "{why}");
    }
    order.requested(1000, 64 * 1024);
    order.missed_at(1001);
    assert_eq!(needed(order, 1001), Some(3), "it is noticed soon that those that follow are wanted");
    for plus in [ReaddirplusMode::Auto, ReaddirplusMode::Never, ReaddirplusMode::Always] {
        let options = CacheOptions { plus, ..CacheOptions::default() };
        let mut first = LookupOrder::default();
        (0..MISSES_MAX).for_each(|place| first.missed_at(place));
        let bytes = (plus != ReaddirplusMode::Never).then_some(SIZE_FIRST_MAX);
        assert_eq!(decide(PrefetchReason::NameInOrder(&first), &options), bytes, "{plus:?}");
        first.requested(MISSES_MAX, PLUS_SIZE_MAX);
        (0..MISSES_MAX).for_each(|place| first.missed_at(MISSES_MAX + place));
        let bytes = (plus != ReaddirplusMode::Never).then_some(PLUS_SIZE_MAX);
        assert_eq!(decide(PrefetchReason::NameInOrder(&first), &options), bytes, "{plus:?}");
    }
}

#[test]
fn the_next_names_are_requested_from_the_middle_of_those_at_hand() {
    let wanted = |had, is_undisturbed, listing| {
        let of = 100;
        let options = CacheOptions { listing, ..CacheOptions::default() };
        decide(PrefetchReason::NextNames { had, of, is_undisturbed }, &options).is_some()
    };
    assert!(!wanted(49, true, ListingMode::Continue));
    assert!(wanted(50, true, ListingMode::Continue));
    assert!(!wanted(100, false, ListingMode::Continue));
    assert!(!wanted(100, true, ListingMode::Restart));
}
