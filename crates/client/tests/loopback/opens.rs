//! Close-to-open, `nocto`, `sloppycto`, `noac`, and attribute lifetimes.

use std::time::Duration;

use curt_client::{OpenFlags, PageCacheState, ops};
use curt_observe::ClientCounter;
use curt_policy::CacheOptions;
use curt_rpc::client::Interrupt;
use curt_types::SetAttributes;
use rustix::io::Errno;

use crate::world::{World, root, user};

fn sloppy(seconds: u64) -> CacheOptions {
    CacheOptions { sloppy_open: Duration::from_secs(seconds), ..CacheOptions::default() }
}

#[test]
fn a_cold_file_costs_lookup_access_and_read_and_a_warm_one_getattr() {
    let world = World::new();
    let writer = world.mount(CacheOptions::default());
    writer.put(&root(), writer.client.root(), "f", 0o644, b"text");
    world.seconds(10);
    let mounted = world.mount(CacheOptions::default());
    mounted.teach_time(&world);
    let me = user(1000);
    let file = mounted.lookup(&me, mounted.client.root(), "f").unwrap();
    assert_eq!(mounted.sent(), "LOOKUP 1");
    assert_eq!(mounted.cat(&me, file.id).unwrap(), b"text");
    assert_eq!(mounted.sent(), "ACCESS 1 READ 1", "the answer about access confirms the open");
    for _ in 0..5 {
        world.pass(Duration::from_millis(10));
        assert_eq!(mounted.cat(&me, file.id).unwrap(), b"text");
        assert_eq!(mounted.sent(), "GETATTR 1", "each open asks, no data move");
    }
}

// SEMANTICS: cto-14.
#[test]
fn sloppycto_spares_the_getattr_of_read_only_opens_within_its_window_alone() {
    let world = World::new();
    let mounted = world.mount(sloppy(3));
    let me = root();
    let file = mounted.put(&me, mounted.client.root(), "f", 0o644, b"text");
    world.seconds(4);
    mounted.cat(&me, file.id).unwrap();
    mounted.sent();
    for _ in 0..4 {
        world.pass(Duration::from_millis(700));
        mounted.cat(&me, file.id).unwrap();
        assert_eq!(mounted.sent(), "");
    }
    world.pass(Duration::from_millis(300));
    mounted.cat(&me, file.id).unwrap();
    assert_eq!(mounted.sent(), "GETATTR 1", "the window counts from when the request was sent");
    assert_eq!(mounted.counter(ClientCounter::OpenCtoSloppy), 4);
    let flags = OpenFlags::writing();
    let opened = ops::open(&mounted.client.op(&me), file.id, flags).unwrap();
    assert_eq!(mounted.sent(), "GETATTR 1", "an open for writing is not saved");
    mounted.cat(&me, file.id).unwrap();
    assert_eq!(mounted.sent(), "GETATTR 1", "nor one while the file is open for writing");
    ops::close(&mounted.client.op(&me), &opened.file).unwrap();
    mounted.cat(&me, file.id).unwrap();
    assert_eq!(mounted.sent(), "GETATTR 1", "nor the first one after closing it (A7)");
    mounted.cat(&me, file.id).unwrap();
    assert_eq!(mounted.sent(), "");
}

// SEMANTICS: cto-15.
#[test]
fn nocto_uses_attributes_for_their_lifetime_and_noac_none() {
    let world = World::new();
    let mounted = world.mount(CacheOptions { close_to_open: false, ..CacheOptions::default() });
    let me = root();
    let file = mounted.put(&me, mounted.client.root(), "f", 0o644, b"text");
    mounted.cat(&me, file.id).unwrap();
    mounted.sent();
    mounted.cat(&me, file.id).unwrap();
    assert_eq!(mounted.sent(), "");
    world.seconds(4);
    mounted.cat(&me, file.id).unwrap();
    assert_eq!(mounted.sent(), "GETATTR 1", "acregmin has passed");
    let noac = world.mount(CacheOptions { attribute_cache: false, ..sloppy(3) });
    let file = noac.lookup(&me, noac.client.root(), "f").unwrap();
    noac.cat(&me, file.id).unwrap();
    noac.sent();
    ops::getattr(&noac.client.op(&me), file.id).unwrap();
    ops::getattr(&noac.client.op(&me), file.id).unwrap();
    assert_eq!(noac.sent(), "GETATTR 2");
    noac.cat(&me, file.id).unwrap();
    assert!(noac.sent().starts_with("GETATTR"), "noac makes sloppycto nothing");
}

// SEMANTICS: attr-1.
#[test]
fn attributes_are_valid_for_three_seconds_then_six_and_three_again_after_a_change() {
    let world = World::new();
    let mounted = world.mount(CacheOptions::default());
    let me = root();
    let file = mounted.put(&me, mounted.client.root(), "f", 0o644, b"");
    world.seconds(4);
    ops::getattr(&mounted.client.op(&me), file.id).unwrap();
    mounted.sent();
    let asked = |seconds: u64| {
        world.seconds(seconds);
        ops::getattr(&mounted.client.op(&me), file.id).unwrap();
        mounted.sent()
    };
    assert_eq!(asked(4), "", "doubled to 6 s by then");
    assert_eq!(asked(3), "GETATTR 1");
    assert_eq!(asked(11), "");
    let other = world.mount(CacheOptions::default());
    let found = other.lookup(&me, other.client.root(), "f").unwrap();
    let set = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
    ops::setattr(&other.client.op(&me), found.id, &set).unwrap();
    assert_eq!(asked(2), "GETATTR 1");
    assert_eq!(asked(2), "");
    assert_eq!(asked(2), "GETATTR 1", "a change throws the lifetime back to acregmin");
}

// SEMANTICS: cto-1.
#[test]
fn reopen_after_remote_change_drops_what_was_cached() {
    let world = World::new();
    let (one, two) = (world.mount(CacheOptions::default()), world.mount(CacheOptions::default()));
    let me = root();
    let file = one.put(&me, one.client.root(), "f", 0o644, b"before");
    one.cat(&me, file.id).unwrap();
    world.seconds(1);
    let same = two.lookup(&me, two.client.root(), "f").unwrap();
    two.put(&me, two.client.root(), "f", 0o644, b"longer than before");
    let _ = same;
    world.seconds(1);
    let opened = ops::open(&one.client.op(&me), file.id, OpenFlags::reading()).unwrap();
    assert_eq!(opened.data, PageCacheState::Changed);
    let again = ops::open(&one.client.op(&me), file.id, OpenFlags::reading()).unwrap();
    assert_eq!(again.data, PageCacheState::Changed, "until somebody says that the copies are dropped");
    ops::copies_dropped(&opened.file);
    let third = ops::open(&one.client.op(&me), file.id, OpenFlags::reading()).unwrap();
    assert_eq!(third.data, PageCacheState::Same);
    let bytes = ops::read(&one.client.op(&me), &opened.file, 0, 100).unwrap().to_vec();
    assert_eq!(bytes, b"longer than before");
    // Shrinking.
    two.put(&me, two.client.root(), "f", 0o644, b"x");
    let opened = ops::open(&one.client.op(&me), file.id, OpenFlags::reading()).unwrap();
    assert_eq!(opened.data, PageCacheState::Changed);
    assert_eq!(ops::read(&one.client.op(&me), &opened.file, 0, 100).unwrap().to_vec(), b"x");
    assert_eq!(ops::getattr(&one.client.op(&me), file.id).unwrap().attributes.size, 1);
}

// SEMANTICS: cto-12.
#[test]
fn own_writes_invalidate_nothing() {
    let world = World::new();
    let mounted = world.mount(CacheOptions::default());
    let me = root();
    let file = mounted.put(&me, mounted.client.root(), "f", 0o644, b"one");
    world.seconds(1);
    mounted.cat(&me, file.id).unwrap();
    let opened = ops::open(&mounted.client.op(&me), file.id, OpenFlags::writing()).unwrap();
    ops::write(&mounted.client.op(&me), &opened.file, 3, b" two").unwrap();
    assert_eq!(ops::getattr(&mounted.client.op(&me), file.id).unwrap().attributes.size, 7);
    ops::close(&mounted.client.op(&me), &opened.file).unwrap();
    let opened = ops::open(&mounted.client.op(&me), file.id, OpenFlags::reading()).unwrap();
    assert_eq!(opened.data, PageCacheState::Same);
    assert_eq!(ops::read(&mounted.client.op(&me), &opened.file, 0, 100).unwrap().to_vec(), b"one two");
    assert_eq!(mounted.counter(ClientCounter::DataInvalidated), 0);
    assert!(mounted.told.contents.lock().iter().all(|id| *id != file.id));
}

// SEMANTICS: write-7.
#[test]
fn truncating_and_appending_opens_see_the_servers_size() {
    let world = World::new();
    let (one, two) = (world.mount(CacheOptions::default()), world.mount(CacheOptions::default()));
    let me = root();
    let file = one.put(&me, one.client.root(), "log", 0o644, b"aaaa");
    let found = two.lookup(&me, two.client.root(), "log").unwrap();
    let append = OpenFlags { append: true, ..OpenFlags::writing() };
    let opened = ops::open(&two.client.op(&me), found.id, append).unwrap();
    let first = ops::open(&one.client.op(&me), file.id, append).unwrap();
    ops::write(&one.client.op(&me), &first.file, 0, b"bbbb").unwrap();
    ops::close(&one.client.op(&me), &first.file).unwrap();
    ops::write(&two.client.op(&me), &opened.file, 0, b"cccc").unwrap();
    ops::close(&two.client.op(&me), &opened.file).unwrap();
    assert_eq!(one.cat(&me, file.id).unwrap(), b"aaaabbbbcccc");
    let truncate = OpenFlags { truncate: true, ..OpenFlags::writing() };
    one.sent();
    let opened = ops::open(&one.client.op(&me), file.id, truncate).unwrap();
    assert_eq!(one.sent(), "GETATTR 1 SETATTR 1");
    ops::close(&one.client.op(&me), &opened.file).unwrap();
    assert_eq!(one.cat(&me, file.id).unwrap(), b"");
}

#[test]
fn only_files_are_opened_as_files() {
    let world = World::new();
    let mounted = world.mount(CacheOptions::default());
    let me = root();
    let top = mounted.client.root();
    let directory = ops::mkdir(&mounted.client.op(&me), top, b"d", 0o755).unwrap();
    let link = ops::symlink(&mounted.client.op(&me), top, b"l", b"d").unwrap();
    let open = |id| ops::open(&mounted.client.op(&me), id, OpenFlags::reading()).map(|_| ());
    assert_eq!(open(directory.id), Err(Errno::ISDIR));
    assert_eq!(open(link.id), Err(Errno::LOOP));
    let file = mounted.put(&me, top, "f", 0o644, b"");
    assert_eq!(ops::mkdir(&mounted.client.op(&me), file.id, b"x", 0o755).map(|_| ()), Err(Errno::NOTDIR));
    assert!(ops::opendir(&mounted.client.op(&me), file.id).is_err());
}

// SEMANTICS: attr-2.
#[test]
fn stat_of_a_file_with_unsent_writes_sends_them_and_returns_the_servers_size_and_times() {
    let world = World::new();
    let mounted = world.mount(CacheOptions::default());
    let (me, top) = (root(), mounted.client.root());
    let file = mounted.put(&me, top, "f", 0o644, b"x");
    let opened = ops::open(&mounted.client.op(&me), file.id, OpenFlags::writing()).unwrap();
    for length in 2..5 {
        world.seconds(1);
        ops::write(&mounted.client.op(&me), &opened.file, 0, &vec![b'y'; length]).unwrap();
        world.seconds(1);
        mounted.sent();
        let stat = ops::getattr(&mounted.client.op(&me), file.id).unwrap().attributes;
        assert!(mounted.sent().contains("WRITE 1"));
        let other = world.mount(CacheOptions::default());
        let found = other.lookup(&me, other.client.root(), "f").unwrap().attributes;
        assert_eq!((stat.size, stat.mtime, stat.ctime), (found.size, found.mtime, found.ctime));
        assert_eq!(stat.size, length as u64);
    }
    ops::close(&mounted.client.op(&me), &opened.file).unwrap();
}

#[test]
fn stat_of_a_file_that_is_written_all_the_time_ends() {
    let world = World::new();
    let mounted = world.mount(CacheOptions::default());
    let me = root();
    let file = mounted.put(&me, mounted.client.root(), "f", 0o644, b"x");
    let opened = ops::open(&mounted.client.op(&me), file.id, OpenFlags::writing()).unwrap();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                ops::write(&mounted.client.op(&me), &opened.file, 0, b"y").unwrap();
            }
        });
        for _ in 0..200 {
            assert!(ops::getattr(&mounted.client.op(&me), file.id).is_ok());
        }
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    ops::close(&mounted.client.op(&me), &opened.file).unwrap();
}

// SEMANTICS: cto-5.
#[test]
fn a_file_that_stays_open_is_revalidated_when_its_attributes_have_expired() {
    let world = World::new();
    let (one, two) = (world.mount(CacheOptions::default()), world.mount(CacheOptions::default()));
    let me = root();
    let file = one.put(&me, one.client.root(), "f", 0o755, b"old");
    let found = two.lookup(&me, two.client.root(), "f").unwrap();
    let never = Interrupt::never();
    let unread = ops::open(&two.client.op(&me), found.id, OpenFlags::reading()).unwrap();
    world.seconds(100);
    two.sent();
    assert_eq!(ops::revalidate_open_file(&two.client, &unread.file, &never), Ok(false));
    assert_eq!(two.sent(), "", "nobody can have a copy");
    let _ = ops::read(&two.client.op(&me), &unread.file, 0, 10).unwrap();
    two.sent();
    assert_eq!(ops::revalidate_open_file(&two.client, &unread.file, &never), Ok(false));
    assert_eq!(two.sent(), "", "it is fresh");
    let opened = ops::open(&one.client.op(&me), file.id, OpenFlags::writing()).unwrap();
    ops::write(&one.client.op(&me), &opened.file, 0, b"new").unwrap();
    ops::close(&one.client.op(&me), &opened.file).unwrap();
    two.told.contents.lock().clear();
    world.seconds(61);
    assert_eq!(ops::revalidate_open_file(&two.client, &unread.file, &never), Ok(true));
    assert_eq!(two.sent(), "GETATTR 1");
    assert_eq!(*two.told.contents.lock(), [found.id], "whoever has copies is told");
    assert_eq!(ops::revalidate_open_file(&two.client, &unread.file, &never), Ok(false), "once each time");
    ops::release(&two.client, &unread.file);
    let run = OpenFlags { execute: true, ..OpenFlags::reading() };
    let running = ops::open(&two.client.op(&me), found.id, run).unwrap().file;
    let _ = ops::read(&two.client.op(&me), &running, 0, 10).unwrap();
    world.seconds(100);
    two.sent();
    assert_eq!(ops::revalidate_open_file(&two.client, &running, &never), Ok(false));
    assert_eq!(two.sent(), "", "what is executed is left alone");
}

// SEMANTICS: write-7.
#[test]
fn a_run_of_appends_requests_the_size_once() {
    let world = World::new();
    let mounted = world.mount(CacheOptions::default());
    let me = root();
    let file = mounted.put(&me, mounted.client.root(), "log", 0o644, b"");
    let flags = OpenFlags { append: true, ..OpenFlags::writing() };
    let log = ops::open(&mounted.client.op(&me), file.id, flags).unwrap().file;
    mounted.sent();
    for _ in 0..100 {
        assert_eq!(ops::write(&mounted.client.op(&me), &log, 0, b"line\n"), Ok(5));
    }
    assert_eq!(mounted.sent(), "GETATTR 1");
    ops::fsync(&mounted.client.op(&me), &log, false).unwrap();
    assert_eq!(mounted.sent(), "WRITE 1");
    ops::write(&mounted.client.op(&me), &log, 0, b"more\n").unwrap();
    assert_eq!(mounted.sent(), "GETATTR 1", "nothing of ours ends it any more");
    ops::close(&mounted.client.op(&me), &log).unwrap();
    assert_eq!(mounted.cat(&me, file.id).unwrap().len(), 505);
}
