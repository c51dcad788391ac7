//! The bounds and the eviction order of the dentry cache.

use std::sync::Arc;

use curt_observe::{ClientCounter, ClientCounters};
use curt_policy::{
    AttributeReport, AttributeState, CacheOptions, CachingAttributes, MonotonicTime, NameLabel, names,
};
use curt_types::{ChangeStamp, FileKind, Timestamp};

use super::*;

fn label() -> NameLabel {
    let time = Timestamp::new(1, 0);
    let stamp = ChangeStamp::Times { mtime: time, ctime: time };
    let attributes = CachingAttributes { kind: FileKind::Directory, mode: 0, uid: 0, gid: 0, size: 0, stamp };
    let mut directory = AttributeState::unknown();
    let moment = MonotonicTime::default();
    let report = AttributeReport { attributes, sent_at: moment, received_at: moment };
    let absorbed = directory.absorb(report, &CacheOptions::default());
    let ticket = directory.ticket();
    match names::learn(names::LookupFinding::Nothing, ticket, &directory, absorbed.adopted, moment) {
        DentryUpdate::Negative(label) => label,
        other => panic!("{other:?}"),
    }
}

fn cache(missing_names: usize, missing_names_per_directory: usize) -> (DentryCache, Arc<ClientCounters>) {
    let counters = Arc::new(ClientCounters::default());
    let limits = Limits { missing_names, missing_names_per_directory, ..Limits::default() };
    (DentryCache::new(limits, Arc::clone(&counters)), counters)
}

fn missing() -> CachedDentry {
    CachedDentry { child: None, label: label() }
}

#[test]
fn an_entry_is_found_by_its_directory_and_its_name() {
    let (cache, _) = cache(10, 10);
    cache.keep(InodeId(1), b"a", missing(), &mut Vec::new());
    assert!(cache.find(InodeId(1), b"a").is_some());
    assert!(cache.find(InodeId(2), b"a").is_none());
    assert!(cache.find(InodeId(1), b"b").is_none());
    cache.keep(InodeId(1), b"a", missing(), &mut Vec::new());
    assert_eq!(cache.len(), (0, 1), "kept again, not twice");
    assert!(cache.forget(InodeId(1), b"a").is_some());
    assert!(cache.forget(InodeId(1), b"a").is_none());
    assert_eq!(cache.len(), (0, 0));
}

#[test]
fn the_least_recently_used_entry_is_dropped_at_the_bound() {
    let (cache, counters) = cache(3, 3);
    for name in [b"a", b"b", b"c"] {
        cache.keep(InodeId(1), name, missing(), &mut Vec::new());
    }
    assert_eq!(counters.events.value(ClientCounter::NegEvict), 0);
    assert!(cache.find(InodeId(1), b"a").is_some(), "used again");
    cache.keep(InodeId(1), b"d", missing(), &mut Vec::new());
    assert!(cache.find(InodeId(1), b"b").is_none());
    for name in [b"a", b"c", b"d"] {
        assert!(cache.find(InodeId(1), name).is_some());
    }
    assert_eq!(counters.events.value(ClientCounter::NegEvict), 1);
}

#[test]
fn negative_entries_of_one_directory_are_bounded() {
    let (cache, _) = cache(100, 2);
    cache.keep(InodeId(2), b"x", missing(), &mut Vec::new());
    for name in 0..50_u8 {
        cache.keep(InodeId(1), &[name + 1], missing(), &mut Vec::new());
    }
    assert_eq!(cache.len(), (0, 3));
    assert!(cache.find(InodeId(2), b"x").is_some());
    assert!(cache.find(InodeId(1), &[50]).is_some());
}

#[test]
fn slots_are_reused_across_slab_chunks() {
    let (cache, _) = cache(3 * SLAB_CHUNK, usize::MAX);
    for round in 0..3_u32 {
        for number in 0..u32::try_from(3 * SLAB_CHUNK).expect("a small number") {
            cache.keep(InodeId(u64::from(round)), &number.to_be_bytes(), missing(), &mut Vec::new());
        }
    }
    assert_eq!(cache.len(), (0, 3 * SLAB_CHUNK));
    let table = cache.table.lock();
    assert!(table.slab.pieces.len() <= 4, "nothing grows beyond the bound");
    assert_eq!(table.by_directory.len(), 1);
}

#[test]
fn names_of_every_length_are_stored_unchanged() {
    for length in [0, 1, SHORT_MAX - 1, SHORT_MAX, SHORT_MAX + 1, 255, 256, 300] {
        let name = vec![b'n'; length];
        assert_eq!(NameBytes::new(&name).as_bytes(), name, "{length}");
    }
    assert_eq!(size_of::<NameBytes>(), 24);
}

fn at(milliseconds: u64) -> MonotonicTime {
    MonotonicTime::from_start(Duration::from_millis(milliseconds))
}

#[test]
fn what_has_expired_goes_and_what_lasts_stays() {
    let mut kept = Generations::default();
    let dentry =
        |end| KernelDentry { begin: at(0), end: at(end), directory: Weak::new(), others: Box::default() };
    for object in 0..1000 {
        // Each lasts a second.
        let now = 1000 + object * 100;
        kept.keep(InodeId(object), dentry(now + 1000), at(now));
        let lasting = object.saturating_sub(9)..=object;
        assert!(lasting.clone().all(|object| kept.find(InodeId(object)).is_some()));
        let count = kept.newer.by_object.len() + kept.older.by_object.len();
        assert!(count as u64 <= 2 * 12, "{object}");
    }
    kept.keep(InodeId(999), dentry(200_000), at(101_000));
    assert_eq!(kept.find(InodeId(999)).map(|dentry| dentry.end), Some(at(200_000)));
}
