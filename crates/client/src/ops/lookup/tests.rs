//! The cost of a lookup that is answered from the cache, and names that a reply may not enter.
#![allow(clippy::unwrap_used, dead_code, reason = "a test may end in a panic; others use the rest")]

#[path = "../../../../rpc/tests/warm/sys.rs"]
mod sys;
#[path = "../../../tests/loopback/world.rs"]
mod world;

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use curt_client::ops;
use curt_policy::{CacheOptions, NameLabel, TimeoutRange, names::DentryUpdate};
use curt_types::SetAttributes;
use rustix::io::Errno;

use self::world::{BenchMount, World, user};
use crate::{
    DirEmit, DirEntry, InodeId, LookupResult,
    dentry_cache::CACHED_PATH_MAX,
    inode::{ALL_INODE_LOCKS, INODE_LOCKS},
};

/// Look-ups of each name that are measured, all of which must cost the same.
const ROUNDS: usize = 200;

#[test]
fn a_lookup_from_memory_locks_its_directory_once_and_allocates_nothing() {
    for kernel_names in [Duration::ZERO, KEPT] {
        cost_of_lookups(kernel_names);
    }
}

/// How long a kernel keeps names, if it does; each is looked up again when that has ended.
const KEPT: Duration = Duration::from_millis(1);

fn cost_of_lookups(kernel_names: Duration) {
    let world = World::new();
    let mounted = world.mount(CacheOptions { kernel_names, ..CacheOptions::default() });
    mounted.client.set_used_by_kernel();
    mounted.client.set_kernel_keeps_targets();
    mounted.teach_time(&world);
    let (me, top) = (user(1000), mounted.client.root());
    let directory = ops::mkdir(&mounted.client.op(&me), top, b"directory", 0o755).unwrap().id;
    mounted.put(&me, directory, "file", 0o644, b"bytes");
    let link = ops::symlink(&mounted.client.op(&me), directory, b"link", b"file").unwrap().id;
    ops::readlink(&mounted.client.op(&me), link).unwrap();
    world.pass(Duration::from_secs(1));
    let lookup = |name: &[u8]| {
        world.pass(KEPT);
        ops::lookup(&mounted.client.op(&me), directory, name).unwrap()
    };
    let forget = |result: LookupResult| match result {
        LookupResult::Positive(found) => mounted.client.forget(found.id, 1),
        LookupResult::Negative { .. } => {}
    };
    for name in [&b"file"[..], b"link", b"missing", b".."] {
        // The kernel holds the lookups that it received.
        let held = lookup(name);
        for _ in 0..100 {
            forget(lookup(name));
        }
        mounted.sent();
        let cost = |id: InodeId| {
            INODE_LOCKS.set((id, 0));
            let read = world.clock.read.load(Relaxed);
            let allocated = sys::allocations_here();
            let found = lookup(name);
            let allocated = sys::allocations_here() - allocated;
            let read = world.clock.read.load(Relaxed) - read;
            forget(found);
            (INODE_LOCKS.get().1, read, allocated)
        };
        for round in 0..ROUNDS {
            let name = || name.escape_ascii().to_string();
            assert_eq!(cost(directory), (1, 1, 0), "locks, clock readings, allocations: {}, {round}", name());
        }
        assert_eq!(mounted.sent(), "");
        forget(held);
    }
}

/// Nothing expires but what the kernel has cached.
fn lasting() -> CacheOptions {
    let long = TimeoutRange { min: Duration::from_secs(100_000), max: Duration::from_secs(100_000) };
    CacheOptions {
        files: long,
        directories: long,
        name_lifetime: long.max,
        missing_name_lifetime: long.max,
        ..CacheOptions::default()
    }
}

/// The locks of other inodes by which the directories of the path are checked.
const PATH_LOCKS: u32 = 2;

#[test]
fn a_lookup_two_levels_down_locks_each_directory_of_its_path_once_and_allocates_nothing() {
    let options = lasting();
    assert!(!options.kernel_names.is_zero(), "names are cached by default");
    let world = World::new();
    let mounted = world.mount(options);
    mounted.client.set_used_by_kernel();
    mounted.teach_time(&world);
    let (me, top) = (user(1000), mounted.client.root());
    let above = ops::mkdir(&mounted.client.op(&me), top, b"above", 0o755).unwrap().id;
    let directory = ops::mkdir(&mounted.client.op(&me), above, b"directory", 0o755).unwrap().id;
    mounted.put(&me, directory, "file", 0o644, b"bytes");
    world.seconds(1);
    let lookup = |directory, name: &[u8]| ops::lookup(&mounted.client.op(&me), directory, name).unwrap();
    for (name, locks_of_object) in [(&b"file"[..], 1), (b"missing", 0)] {
        for round in 0..ROUNDS {
            // Names are looked up again when their lifetimes have ended, the path's own first.
            world.pass(options.kernel_names);
            for (parent, name) in [(top, &b"above"[..]), (above, b"directory")] {
                let LookupResult::Positive(found) = lookup(parent, name) else { panic!("it is there") };
                assert!(!found.entry_valid.is_zero(), "the kernel finds it without a look-up");
            }
            let read = world.clock.read.load(Relaxed);
            INODE_LOCKS.set((directory, 0));
            let locked = ALL_INODE_LOCKS.get();
            let allocated = sys::allocations_here();
            let found = lookup(directory, name);
            let allocated = sys::allocations_here() - allocated;
            let (own, others) = (INODE_LOCKS.get().1, ALL_INODE_LOCKS.get() - locked);
            let read = world.clock.read.load(Relaxed) - read;
            // A name that is looked up again before its object is used may be about to be created.
            if let LookupResult::Positive(found) = found {
                ops::getattr(&mounted.client.op(&me), found.id).unwrap();
            }
            if round == 0 {
                mounted.sent();
                continue;
            }
            let cost = (own, others - own, read, allocated);
            let expected = (1, PATH_LOCKS + locks_of_object, 1, 0);
            let name = name.escape_ascii();
            assert_eq!(cost, expected, "own and other locks, clock readings, allocations: {name}, {round}");
        }
        assert_eq!(mounted.sent(), "");
    }
}

#[test]
fn a_path_of_any_length_is_checked_up_to_a_closed_directory() {
    for depth in [1, 2, CACHED_PATH_MAX - 1, CACHED_PATH_MAX, CACHED_PATH_MAX + 1, 2 * CACHED_PATH_MAX] {
        let world = World::new();
        let mounted = world.mount(lasting());
        mounted.client.set_used_by_kernel();
        mounted.teach_time(&world);
        let (me, top) = (user(1000), mounted.client.root());
        let closed = ops::mkdir(&mounted.client.op(&me), top, b"closed", 0o755).unwrap().id;
        let mut directory = closed;
        for _ in 0..depth {
            directory = ops::mkdir(&mounted.client.op(&me), directory, b"d", 0o755).unwrap().id;
        }
        mounted.put(&me, directory, "file", 0o644, b"bytes");
        assert!(mounted.lookup(&user(7), directory, "file").is_ok(), "{depth}");
        let other = world.mount(CacheOptions::default());
        let found = other.lookup(&me, other.client.root(), "closed").unwrap();
        let set = SetAttributes::with_mode(0o700);
        ops::setattr(&other.client.op(&me), found.id, &set).unwrap();
        ops::lookup_id(&mounted.client.op(&me), closed).unwrap();
        assert!(mounted.lookup(&me, directory, "file").is_ok(), "{depth}");
        assert_eq!(mounted.lookup(&user(7), directory, "file").unwrap_err(), Errno::ACCESS, "{depth}");
    }
}

/// Reads the directory to its end.
fn list(mounted: &BenchMount, directory: InodeId) {
    let me = user(1000);
    let listed = ops::opendir(&mounted.client.op(&me), directory).unwrap();
    let (mut cookie, mut is_at_end) = (0, false);
    while !is_at_end {
        let from = cookie;
        is_at_end = true;
        let mut take = |entry: &DirEntry<'_>| {
            is_at_end = false;
            cookie = entry.cookie;
            DirEmit::Taken
        };
        ops::readdir(&mounted.client.op(&me), &listed, from, false, &mut take).unwrap();
    }
}

#[test]
fn the_first_lookup_of_a_name_that_a_complete_listing_lacks_locks_the_directory_once() {
    for kernel_names in [Duration::ZERO, KEPT] {
        let world = World::new();
        let mounted = world.mount(CacheOptions { kernel_names, ..CacheOptions::default() });
        mounted.client.set_used_by_kernel();
        mounted.teach_time(&world);
        let (me, top) = (user(1000), mounted.client.root());
        let directory = ops::mkdir(&mounted.client.op(&me), top, b"directory", 0o755).unwrap().id;
        for number in 0..100 {
            mounted.put(&me, directory, &format!("file-{number}"), 0o644, b"");
        }
        world.pass(Duration::from_secs(1));
        list(&mounted, directory);
        let lookup = |number: usize| {
            let name = format!("missing-{number}");
            let op = mounted.client.op(&me);
            assert!(matches!(
                ops::lookup(&op, directory, name.as_bytes()).unwrap(),
                LookupResult::Negative { .. }
            ));
        };
        // The table of the names is built by the first one.
        lookup(0);
        mounted.sent();
        for round in 1..ROUNDS {
            INODE_LOCKS.set((directory, 0));
            let read = world.clock.read.load(Relaxed);
            lookup(round);
            let read = world.clock.read.load(Relaxed) - read;
            assert_eq!((INODE_LOCKS.get().1, read), (1, 1), "locks, clock readings: {round}");
        }
        assert_eq!(mounted.sent(), "");
    }
}

/// Most allocations of two tables that grow to 100 entries.
const GROWTHS_MAX: usize = 16;

/// Two rounds, because a use is counted again after the attributes of all were fetched together.
/// The first use of an inode enters it into tables, which grow at times.
#[test]
fn the_first_lookup_of_a_name_that_was_listed_locks_the_directory_once() {
    for kernel_names in [Duration::ZERO, KEPT] {
        let world = World::new();
        let (me, writer) = (user(1000), world.mount(CacheOptions::default()));
        let top = writer.client.root();
        let directory = ops::mkdir(&writer.client.op(&me), top, b"directory", 0o755).unwrap().id;
        let name = |number: usize| format!("file-{number}");
        for number in 0..100 {
            writer.put(&me, directory, &name(number), 0o644, b"");
        }
        world.pass(Duration::from_secs(100));
        let mounted = world.mount(CacheOptions { kernel_names, ..CacheOptions::default() });
        mounted.client.set_used_by_kernel();
        mounted.teach_time(&world);
        let LookupResult::Positive(found) =
            ops::lookup(&mounted.client.op(&me), mounted.client.root(), b"directory").unwrap()
        else {
            panic!("the directory is there");
        };
        let directory = found.id;
        for round in 0..2 {
            world.pass(Duration::from_secs(100));
            list(&mounted, directory);
            mounted.sent();
            let mut allocated = 0;
            for number in 0..100 {
                let name = name(number);
                INODE_LOCKS.set((directory, 0));
                let read = world.clock.read.load(Relaxed);
                let before = sys::allocations_here();
                let found = ops::lookup(&mounted.client.op(&me), directory, name.as_bytes()).unwrap();
                allocated += sys::allocations_here() - before;
                let read = world.clock.read.load(Relaxed) - read;
                assert_eq!((INODE_LOCKS.get().1, read), (1, 1), "locks, clock readings: {name}, {round}");
                assert!(matches!(found, LookupResult::Positive(_)));
            }
            assert!(allocated <= GROWTHS_MAX, "{allocated} allocations, {round}");
            assert_eq!(mounted.sent(), "");
        }
    }
}

/// A removal that begins and ends between the arrival of a reply and the caching of its names does
/// not end the epoch of their label.
#[test]
fn a_reply_does_not_enter_a_name_that_was_removed_since_it_arrived() {
    let world = World::new();
    let mounted = world.mount(CacheOptions::default());
    let (me, top) = (user(1000), mounted.client.root());
    let directory = ops::mkdir(&mounted.client.op(&me), top, b"directory", 0o755).unwrap().id;
    mounted.put(&me, directory, "file", 0o644, b"bytes");
    let sb = &mounted.client;
    let inode = sb.find_inode(directory).unwrap();
    let child = sb.dentries.cached_dentry(&inode, b"file").and_then(|cached| cached.child).unwrap();
    let (ticket, epoch) = {
        let locked = inode.lock();
        (locked.attributes.ticket(), locked.contents().unwrap())
    };
    let arrived = DentryUpdate::Positive(NameLabel { epoch, sent_at: sb.core.now() });
    let enter = |ticket| sb.dentries.cache_learned(&inode, b"file", Some(&child), arrived, Some(ticket));
    assert!(enter(ticket).is_some());
    ops::unlink(&mounted.client.op(&me), directory, b"file").unwrap();
    assert_eq!(inode.lock().contents(), Some(epoch));
    assert_eq!(enter(ticket), None);
    let cached = sb.dentries.cached_dentry(&inode, b"file");
    assert!(cached.is_none_or(|cached| cached.child.is_none()));
}
