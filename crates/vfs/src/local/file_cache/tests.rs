//! The file cache, tested with descriptors of /dev/null.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Barrier;
use std::sync::atomic::AtomicUsize;

use curt_types::{Attributes, Device, FileKind, Timestamp};

use super::*;
use crate::handle::HandleScheme;

const USER: FsCred<'static> = FsCred::new(1000, 1000, &[5, 6]);

fn handle(number: u32) -> NodeHandle {
    NodeHandle::new(HandleScheme::Kernel, 1, &number.to_be_bytes()).unwrap()
}

fn attributes(mode: u32, ctime: i64, mtime: i64) -> Attributes {
    let at = |seconds| Timestamp::new(seconds, 0);
    Attributes {
        kind: FileKind::Regular,
        mode,
        nlink: 1,
        uid: 1000,
        gid: 1000,
        size: 0,
        used: 0,
        rdev: Device::default(),
        fsid: 1,
        fileid: 1,
        atime: at(0),
        mtime: at(mtime),
        ctime: at(ctime),
        change: None,
    }
}

fn stamp(ctime: i64) -> PermissionStamp {
    PermissionStamp::of(&attributes(0o644, ctime, 0))
}

fn descriptor() -> OwnedFd {
    std::fs::File::open("/dev/null").unwrap().into()
}

fn unbounded(caching: bool) -> FileCache {
    FileCache::with_budget(caching, DescriptorBudget::new(u64::MAX))
}

/// Opens the file if it is not cached, as its user would; returns whether it did.
fn open(
    cache: &FileCache,
    number: u32,
    purpose: OpenAccess,
    caller: &FsCred<'_>,
) -> (Arc<OpenLocalFile>, bool) {
    match cache.find(DescriptorRequest::new(caller, &handle(number), purpose)) {
        FileCacheLookup::Open(file) => (file, false),
        FileCacheLookup::Missing(ticket) => (ticket.opened(descriptor(), stamp(1)).0, true),
    }
}

#[test]
fn a_descriptor_serves_exactly_its_file_access_and_caller() {
    let cache = unbounded(true);
    let (first, new) = open(&cache, 1, OpenAccess::Read, &USER);
    assert!(new);
    let (again, new) = open(&cache, 1, OpenAccess::Read, &USER);
    assert!(!new && Arc::ptr_eq(&first, &again));
    let others = [
        (2, OpenAccess::Read, USER),
        (1, OpenAccess::Write, USER),
        (1, OpenAccess::Read, FsCred::new(1001, 1000, &[5, 6])),
        (1, OpenAccess::Read, FsCred::new(1000, 1001, &[5, 6])),
        (1, OpenAccess::Read, FsCred::new(1000, 1000, &[5])),
        (1, OpenAccess::Read, FsCred::new(1000, 1000, &[6, 5])),
        (1, OpenAccess::Read, FsCred { privileged: true, ..USER }),
    ];
    for (number, purpose, caller) in others {
        assert!(open(&cache, number, purpose, &caller).1, "{number} {purpose:?} {caller:?}");
        assert!(!open(&cache, number, purpose, &caller).1, "{number} {purpose:?} {caller:?}");
    }
    let counters = cache.counters();
    assert_eq!((counters.inodes, counters.entries, counters.allocations), (2, 8, 8));
    assert_eq!((counters.hits, counters.misses), (8, 8));
    assert!(cache.contains(&handle(1)) && !cache.contains(&handle(3)));
}

#[test]
fn many_who_want_a_file_at_once_open_it_once() {
    const THREADS: usize = 8;
    let cache = unbounded(true);
    let (opened, begin) = (AtomicUsize::new(0), Barrier::new(THREADS));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                begin.wait();
                if let FileCacheLookup::Missing(ticket) =
                    cache.find(DescriptorRequest::new(&USER, &handle(1), OpenAccess::Read))
                {
                    opened.fetch_add(1, Ordering::SeqCst);
                    // The others begin to wait meanwhile, or later.
                    std::thread::yield_now();
                    ticket.opened(descriptor(), stamp(1));
                }
            });
        }
    });
    assert_eq!(opened.into_inner(), 1);
    assert_eq!(cache.counters().hits, THREADS as u64 - 1);
}

#[test]
fn who_waits_for_an_open_that_fails_opens_itself() {
    let cache = unbounded(true);
    let FileCacheLookup::Missing(first) =
        cache.find(DescriptorRequest::new(&USER, &handle(1), OpenAccess::Read))
    else {
        panic!("nothing is open yet");
    };
    std::thread::scope(|scope| {
        let second = scope.spawn(|| open(&cache, 1, OpenAccess::Read, &USER).1);
        std::thread::yield_now();
        drop(first);
        assert!(second.join().unwrap());
    });
    assert_eq!(cache.counters().entries, 1);
}

#[test]
fn writers_age_in_half_a_second_and_readers_in_two() {
    let cache = unbounded(true);
    let weak = |purpose| Arc::downgrade(&open(&cache, 1, purpose, &USER).0);
    let (reader, writer) = (weak(OpenAccess::Read), weak(OpenAccess::Write));
    // Four sweeps are a second. The first one after a use clears the mark.
    assert!(cache.sweep());
    assert!(writer.strong_count() == 1);
    assert!(cache.sweep());
    assert_eq!((reader.strong_count(), writer.strong_count()), (1, 0), "after half a second");
    for _ in 0..5 {
        assert!(cache.sweep());
    }
    assert_eq!(reader.strong_count(), 1);
    assert!(!cache.sweep());
    assert_eq!(reader.strong_count(), 0, "after two seconds");
    let counters = cache.counters();
    assert_eq!((counters.entries, counters.inodes, counters.evictions, counters.releases), (0, 0, 2, 2));
}

#[test]
fn what_is_used_does_not_age_and_what_is_in_use_is_not_closed() {
    let cache = unbounded(true);
    let (file, _) = open(&cache, 1, OpenAccess::Write, &USER);
    let descriptor = file.descriptor();
    drop(file);
    for _ in 0..10 {
        assert!(cache.sweep(), "a part of it is being sent");
    }
    drop(descriptor);
    for _ in 0..10 {
        assert!(!open(&cache, 1, OpenAccess::Write, &USER).1);
        assert!(cache.sweep());
    }
}

#[test]
fn the_descriptor_of_a_lease_leaves_the_cache_when_it_is_not_read() {
    let cache = unbounded(true);
    let (file, _) = open(&cache, 1, OpenAccess::Read, &USER);
    let (leased, sent) = (file.share_with_lease(), file.descriptor());
    drop(file);
    for _ in 0..10 {
        assert!(cache.sweep(), "a part of it is being sent");
    }
    drop(sent);
    assert!((0..10).any(|_| !cache.sweep()));
    assert_eq!(Arc::strong_count(&leased), 1);
}

#[test]
fn the_end_of_a_lease_closes_its_own_descriptor_alone() {
    let cache = unbounded(true);
    let other_caller = FsCred::new(1001, 1000, &[]);
    let (file, _) = open(&cache, 1, OpenAccess::Read, &USER);
    let leased = file.share_with_lease();
    drop(file);
    open(&cache, 1, OpenAccess::Read, &other_caller);
    open(&cache, 1, OpenAccess::Write, &USER);
    cache.release_descriptor(&handle(1), &leased);
    assert_eq!(Arc::strong_count(&leased), 1);
    assert!(!open(&cache, 1, OpenAccess::Read, &other_caller).1, "another reader keeps its descriptor");
    assert!(!open(&cache, 1, OpenAccess::Write, &USER).1, "so does a writer");
    let (file, is_new) = open(&cache, 1, OpenAccess::Read, &USER);
    assert!(is_new);
    // The slot has another descriptor now.
    cache.release_descriptor(&handle(1), &leased);
    assert!(!open(&cache, 1, OpenAccess::Read, &USER).1);
    let alone = open(&cache, 2, OpenAccess::Read, &USER).0.share_with_lease();
    cache.release_descriptor(&handle(2), &alone);
    assert!(!cache.contains(&handle(2)) && cache.contains(&handle(1)));
    let counters = cache.counters();
    assert_eq!((counters.inodes, counters.entries, counters.releases), (1, 3, 2));
    drop(file);
}

#[test]
fn a_released_file_is_closed_at_once_even_while_it_is_being_opened() {
    let cache = unbounded(true);
    let reader = Arc::downgrade(&open(&cache, 1, OpenAccess::Read, &USER).0);
    let other = Arc::downgrade(&open(&cache, 2, OpenAccess::Read, &USER).0);
    let FileCacheLookup::Missing(ticket) =
        cache.find(DescriptorRequest::new(&USER, &handle(1), OpenAccess::Write))
    else {
        panic!("it is not open to write");
    };
    cache.release(&handle(1));
    assert_eq!((reader.strong_count(), other.strong_count()), (0, 1));
    let (late, first) = ticket.opened(descriptor(), stamp(1));
    assert!(!first && Arc::strong_count(&late) == 1, "it was opened before the change");
    assert!(open(&cache, 1, OpenAccess::Write, &USER).1);
    cache.release_all();
    assert_eq!(other.strong_count(), 0);
    let counters = cache.counters();
    assert_eq!((counters.entries, counters.releases, counters.evictions), (0, 3, 0));
    assert!(!cache.sweep());
}

#[test]
fn descriptors_are_cached_only_while_there_are_enough() {
    // Any descriptor is above nine tenths of this limit, whatever other tests open and close.
    let cache = FileCache::with_budget(true, DescriptorBudget::new(1));
    let (file, new) = open(&cache, 1, OpenAccess::Read, &USER);
    assert!(new && Arc::strong_count(&file) == 1, "it is used and not kept");
    let counters = cache.counters();
    assert_eq!((counters.entries, counters.uncached, counters.allocations), (0, 1, 0));
    // Another thread that needs it does not wait.
    assert!(open(&cache, 1, OpenAccess::Read, &USER).1);
}

#[test]
fn above_three_quarters_idle_descriptors_make_room_first() {
    let number = u64::try_from(descriptor().as_raw_fd()).unwrap();
    let mut cache = unbounded(true);
    let idle = Arc::downgrade(&open(&cache, 1, OpenAccess::Read, &USER).0);
    let (busy, _) = open(&cache, 2, OpenAccess::Read, &USER);
    // Wide enough that other tests' descriptors do not reach nine tenths, and all are above three
    // quarters.
    cache.budget = DescriptorBudget::new(number * 5 / 4 + 1);
    let (cached_file, new) = open(&cache, 3, OpenAccess::Read, &USER);
    if cache.counters().uncached == 0 {
        assert!(new && Arc::strong_count(&cached_file) == 2);
    }
    assert_eq!((idle.strong_count(), Arc::strong_count(&busy)), (0, 2));
    assert!(cache.counters().evictions >= 1);
}

#[test]
fn no_more_are_evicted_than_requested_and_unused_ones_first() {
    let cache = unbounded(true);
    for number in 0..100 {
        open(&cache, number, OpenAccess::Read, &USER);
    }
    cache.sweep();
    for number in 0..50 {
        open(&cache, number, OpenAccess::Read, &USER);
    }
    cache.make_room(40);
    assert_eq!(cache.counters().entries, 60);
    let left = (0..50).filter(|number| cache.contains(&handle(*number))).count();
    assert_eq!(left, 50, "those that were used since stay");
    cache.make_room(usize::MAX);
    assert_eq!(cache.counters().entries, 0);
}

#[test]
fn one_file_has_a_bounded_number_of_descriptors() {
    let cache = unbounded(true);
    for uid in 0..2 * u32::try_from(SLOTS_MAX).unwrap() {
        let caller = FsCred::new(uid, 1, &[]);
        assert!(open(&cache, 1, OpenAccess::Read, &caller).1);
    }
    let counters = cache.counters();
    assert_eq!((counters.entries, counters.uncached), (SLOTS_MAX as u64, SLOTS_MAX as u64));
}

#[test]
fn a_cache_that_is_off_keeps_nothing() {
    let cache = unbounded(false);
    for _ in 0..3 {
        let (file, new) = open(&cache, 1, OpenAccess::Read, &USER);
        assert!(new && Arc::strong_count(&file) == 1);
        assert!(file.as_fd().as_raw_fd() >= 0);
    }
    let counters = cache.counters();
    assert_eq!((counters.misses, counters.uncached, counters.entries, counters.hits), (3, 3, 0, 0));
}

#[test]
fn a_right_is_checked_again_when_the_files_attributes_change() {
    let cache = unbounded(true);
    let (file, _) = open(&cache, 1, OpenAccess::Read, &USER);
    assert!(file.is_checked(stamp(1)) && !file.is_checked(stamp(2)));
    for other in [
        attributes(0o600, 1, 0),
        Attributes { uid: 7, ..attributes(0o644, 1, 0) },
        Attributes { gid: 7, ..attributes(0o644, 1, 0) },
    ] {
        assert!(!file.is_checked(PermissionStamp::of(&other)), "{other:?}");
    }
    file.check_passed(stamp(2));
    assert!(file.is_checked(stamp(2)) && !file.is_checked(stamp(1)));
}

#[test]
fn a_check_of_one_caller_is_none_of_another() {
    let cache = unbounded(true);
    let (one, _) = open(&cache, 1, OpenAccess::Read, &USER);
    let (other, _) = open(&cache, 1, OpenAccess::Read, &FsCred::new(2, 2, &[]));
    assert!(one.is_checked(stamp(1)) && other.is_checked(stamp(1)));
    one.check_passed(stamp(2));
    assert!(one.is_checked(stamp(2)) && !other.is_checked(stamp(2)));
}

#[test]
fn a_write_of_ours_carries_the_check_on_and_nothing_else_does() {
    let cache = unbounded(true);
    let (writer, _) = open(&cache, 1, OpenAccess::Write, &USER);
    let (reader, _) = open(&cache, 1, OpenAccess::Read, &USER);
    let after = attributes(0o644, 2, 2);
    writer.update_after_own_write(stamp(1), &after);
    assert!(writer.is_checked(PermissionStamp::of(&after)) && reader.is_checked(PermissionStamp::of(&after)));
    // Another process changed the file's permissions before the write, with it, or after it.
    for (before, after) in [
        (stamp(1), attributes(0o644, 3, 3)),
        (PermissionStamp::of(&after), attributes(0o600, 3, 3)),
        (PermissionStamp::of(&after), attributes(0o644, 4, 3)),
    ] {
        writer.update_after_own_write(before, &after);
        assert!(!writer.is_checked(PermissionStamp::of(&after)), "{before:?} {after:?}");
    }
}

#[test]
fn a_caller_that_must_not_wait_learns_that_another_thread_opens_the_file() {
    let cache = unbounded(true);
    let find = |number| cache.find_nowait(DescriptorRequest::new(&USER, &handle(number), OpenAccess::Read));
    let Some(FileCacheLookup::Missing(ticket)) = find(1) else {
        panic!("nobody has opened it");
    };
    assert!(find(1).is_none());
    assert!(matches!(find(2), Some(FileCacheLookup::Missing(_))));
    let (opened, _) = ticket.opened(descriptor(), stamp(1));
    let Some(FileCacheLookup::Open(found)) = find(1) else {
        panic!("it is open");
    };
    assert!(Arc::ptr_eq(&opened, &found));
}

/// A write can hide a change of an access control list.
#[test]
fn a_right_that_writes_carried_on_is_checked_again_after_each_look() {
    let cache = unbounded(true);
    let (file, _) = open(&cache, 1, OpenAccess::Write, &USER);
    cache.sweep();
    assert!(file.is_checked(stamp(1)), "nobody has written");
    for time in 2..4 {
        let after = attributes(0o644, time, time);
        file.update_after_own_write(stamp(time - 1), &after);
        assert!(file.is_checked(PermissionStamp::of(&after)));
        cache.sweep();
        assert!(!file.is_checked(PermissionStamp::of(&after)));
        file.check_passed(PermissionStamp::of(&after));
        cache.sweep();
        assert!(file.is_checked(PermissionStamp::of(&after)), "once is enough");
    }
}
