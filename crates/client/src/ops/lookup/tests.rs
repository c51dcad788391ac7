//! The cost of a lookup that is answered from the cache, and names that a reply may not enter.
#![allow(clippy::unwrap_used, dead_code, reason = "a test may end in a panic; others use the rest")]

#[path = "../../../../rpc/tests/warm/sys.rs"]
mod sys;
#[path = "../../../tests/loopback/world.rs"]
mod world;

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use curt_client::ops;
use curt_policy::{CacheOptions, NameLabel, names::DentryUpdate};

use self::world::{BenchMount, World, user};
use crate::{DirEmit, DirEntry, InodeId, LookupResult, inode::INODE_LOCKS};

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
