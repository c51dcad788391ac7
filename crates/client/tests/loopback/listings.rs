//! Listings: from the cache, with attributes, from any cookie, and with a server that refuses its
//! cookies.

use std::{
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use curt_client::{ClientOptions, DirEmit, InodeId, LookupResult, OpenDirectory, ops};
use curt_observe::ClientCounter;
use curt_policy::{CacheOptions, ReaddirplusMode};
use curt_proto::nfs3;
use curt_rpc::client::{CallError, CallReply, Interrupt, RpcRequest, Transport};
use curt_types::SetAttributes;
use rustix::io::Errno;

use crate::{
    failures::{Kind, Trouble},
    world::{BenchMount, World, root, user},
};

/// A directory of `count` files that was created an hour ago.
fn filled(world: &World, count: usize) {
    let maker = world.mount(CacheOptions::default());
    let directory = ops::mkdir(&maker.client.op(&root()), maker.client.root(), b"d", 0o777).unwrap();
    for number in 0..count {
        ops::make_file(&maker.client.op(&root()), directory.id, format!("file{number:05}").as_bytes(), 0o644)
            .unwrap();
    }
    world.seconds(3600);
}

fn directory(mounted: &BenchMount) -> InodeId {
    mounted.lookup(&root(), mounted.client.root(), "d").unwrap().id
}

/// Reads at most `room` names from `cookie`; returns them and the next cookie.
fn read(
    mounted: &BenchMount,
    open: &OpenDirectory,
    cookie: u64,
    room: usize,
    plus: bool,
) -> Result<(Vec<String>, u64, usize), Errno> {
    let (mut names, mut next, mut found) = (Vec::new(), cookie, 0);
    let mut listener = |entry: &curt_client::DirEntry<'_>| {
        if names.len() == room {
            return DirEmit::Full;
        }
        names.push(String::from_utf8_lossy(entry.name).into_owned());
        next = entry.cookie;
        found += usize::from(entry.found.is_some());
        DirEmit::Taken
    };
    ops::readdir(&mounted.client.op(&root()), open, cookie, plus, &mut listener)?;
    Ok((names, next, found))
}

fn read_all(mounted: &BenchMount, open: &OpenDirectory, room: usize) -> Result<Vec<String>, Errno> {
    let (mut all, mut cookie) = (Vec::new(), 0);
    loop {
        let (names, next, _) = read(mounted, open, cookie, room, false)?;
        if names.is_empty() {
            all.retain(|name| name != "." && name != "..");
            return Ok(all);
        }
        all.extend(names);
        cookie = next;
    }
}

fn expected(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("file{number:05}")).collect()
}

fn sorted(mut names: Vec<String>) -> Vec<String> {
    names.sort();
    names
}

// SEMANTICS: list-7.
#[test]
fn a_repeated_listing_sends_no_request_and_neither_do_stats_after_it() {
    let world = World::new();
    filled(&world, 50);
    let mounted = world.mount(CacheOptions::default());
    mounted.teach_time(&world);
    let id = directory(&mounted);
    mounted.sent();
    let open = ops::opendir(&mounted.client.op(&root()), id).unwrap();
    assert_eq!(mounted.sent(), "ACCESS 1");
    assert_eq!(sorted(read_all(&mounted, &open, 7).unwrap()), expected(50));
    assert_eq!(mounted.sent(), "READDIRPLUS 1");
    for name in expected(50) {
        let found = mounted.lookup(&root(), id, &name).unwrap();
        ops::getattr(&mounted.client.op(&root()), found.id).unwrap();
    }
    assert_eq!(mounted.sent(), "", "the listing taught names and attributes");
    for _ in 0..3 {
        assert_eq!(sorted(read_all(&mounted, &open, 100).unwrap()), expected(50));
    }
    assert_eq!(mounted.sent(), "");
    world.seconds(31);
    assert_eq!(sorted(read_all(&mounted, &open, 100).unwrap()), expected(50));
    assert_eq!(mounted.sent(), "GETATTR 1");
    assert!(mounted.counter(ClientCounter::ListingCached) >= 4);
}

#[test]
fn names_in_a_directory_without_search_permission_have_a_number_that_readdir_3_does_not_skip() {
    let world = World::new();
    let maker = world.mount_v4_over(CacheOptions::default(), "maker", world.way());
    let made = ops::mkdir(&maker.client.op(&root()), maker.client.root(), b"d", 0o777).unwrap();
    maker.put(&root(), made.id, "file", 0o644, b"data");
    ops::setattr(&maker.client.op(&root()), made.id, &SetAttributes::with_mode(0o744)).unwrap();
    let mounted = world.mount_v4(CacheOptions::default());
    let (id, caller) = (directory(&mounted), user(1000));
    let op = mounted.client.op(&caller);
    let open = ops::opendir(&op, id).unwrap();
    let mut numbers = Vec::new();
    let mut listener = |entry: &curt_client::DirEntry<'_>| {
        numbers.extend((entry.name == b"file").then_some(entry.fileid));
        DirEmit::Taken
    };
    ops::readdir(&op, &open, 0, false, &mut listener).unwrap();
    assert_eq!(numbers, [1]);
}

#[test]
fn a_listing_after_a_change_sends_requests_again() {
    let world = World::new();
    filled(&world, 3);
    let mounted = world.mount(CacheOptions::default());
    let id = directory(&mounted);
    let open = ops::opendir(&mounted.client.op(&root()), id).unwrap();
    read_all(&mounted, &open, 100).unwrap();
    ops::unlink(&mounted.client.op(&root()), id, b"file00001").unwrap();
    assert_eq!(sorted(read_all(&mounted, &open, 100).unwrap()), ["file00000", "file00002"]);
    let other = world.mount(CacheOptions::default());
    other.put(&root(), directory(&other), "new", 0o644, b"");
    let open = ops::opendir(&mounted.client.op(&root()), id).unwrap();
    assert_eq!(sorted(read_all(&mounted, &open, 100).unwrap()), ["file00000", "file00002", "new"]);
}

fn told_once(told: &[String], files: usize) {
    for number in 0..files {
        let name = format!("file{number:05}");
        assert_eq!(told.iter().filter(|told| **told == name).count(), 1, "{name}");
    }
}

// SEMANTICS: list-7.
#[test]
fn own_changes_are_entered_into_a_cached_listing() {
    let world = World::new();
    filled(&world, 50);
    let mounted = world.mount(CacheOptions::default());
    mounted.teach_time(&world);
    let (client, id) = (&mounted.client, directory(&mounted));
    let open = ops::opendir(&client.op(&root()), id).unwrap();
    let mut names = expected(50);
    assert_eq!(sorted(read_all(&mounted, &open, 7).unwrap()), names);
    // A reader in the middle of the directory during all of this.
    let reader = ops::opendir(&client.op(&root()), id).unwrap();
    let (mut told, next, _) = read(&mounted, &reader, 0, 20, false).unwrap();
    mounted.sent();
    let lists = |names: &[String], sent: &str| {
        assert_eq!(mounted.sent(), sent);
        let open = ops::opendir(&client.op(&root()), id).unwrap();
        assert_eq!(sorted(read_all(&mounted, &open, 7).unwrap()), sorted(names.to_vec()));
        assert_eq!(mounted.sent(), "GETATTR 1", "the open alone asks, after {sent}");
    };
    ops::make_file(&client.op(&root()), id, b"new", 0o644).unwrap();
    names.push("new".into());
    lists(&names, "CREATE 1");
    ops::unlink(&client.op(&root()), id, b"file00049").unwrap();
    names.retain(|name| name != "file00049");
    lists(&names, "REMOVE 1");
    ops::mkdir(&client.op(&root()), id, b"below", 0o755).unwrap();
    names.push("below".into());
    lists(&names, "MKDIR 1");
    let replacing = curt_client::RenameMode::Replace;
    ops::rename(&client.op(&root()), id, b"file00048", id, b"new", replacing).unwrap();
    names.retain(|name| name != "file00048");
    lists(&names, "RENAME 1");
    ops::unlink(&client.op(&root()), id, b"new").unwrap();
    names.retain(|name| name != "new");
    lists(&names, "REMOVE 1");
    let missing = ops::unlink(&client.op(&root()), id, b"missing").unwrap_err();
    assert_eq!(missing, Errno::NOENT);
    lists(&names, "REMOVE 1");
    // Every name that existed throughout the pass was returned once.
    let (rest, ..) = read(&mounted, &reader, next, 1000, false).unwrap();
    told.extend(rest);
    told_once(&told, 48);
    // A change of another client ends it.
    let other = world.mount(CacheOptions::default());
    other.put(&root(), directory(&other), "others", 0o644, b"");
    names.push("others".into());
    ops::make_file(&client.op(&root()), id, b"mine", 0o644).unwrap();
    names.push("mine".into());
    mounted.sent();
    assert_eq!(sorted(read_all(&mounted, &open, 7).unwrap()), sorted(names.clone()));
    assert!(mounted.sent().contains("READDIRPLUS"));
}

#[test]
fn more_own_names_than_a_listing_takes_drop_it() {
    const OWN_MAX: usize = 1024;
    let world = World::new();
    filled(&world, 3);
    let mounted = world.mount(CacheOptions::default());
    mounted.teach_time(&world);
    let (client, id) = (&mounted.client, directory(&mounted));
    let open = ops::opendir(&client.op(&root()), id).unwrap();
    read_all(&mounted, &open, 100).unwrap();
    for number in 0..=OWN_MAX {
        if number == OWN_MAX {
            mounted.sent();
            assert_eq!(read_all(&mounted, &open, 100).unwrap().len(), 3 + OWN_MAX);
            assert_eq!(mounted.sent(), "");
        }
        let name = format!("own{number}");
        ops::make_file(&client.op(&root()), id, name.as_bytes(), 0o644).unwrap();
    }
    mounted.sent();
    assert_eq!(read_all(&mounted, &open, 100).unwrap().len(), 4 + OWN_MAX);
    assert!(mounted.sent().contains("READDIR"));
}

// SEMANTICS: list-1.
#[test]
fn everything_is_removed_while_it_is_listed() {
    let world = World::new();
    filled(&world, 5000);
    let mounted = world.mount(CacheOptions::default());
    let (client, id) = (&mounted.client, directory(&mounted));
    let open = ops::opendir(&client.op(&root()), id).unwrap();
    let (mut cookie, mut removed) = (0, 0);
    loop {
        let (names, next, _) = read(&mounted, &open, cookie, 100, false).unwrap();
        if names.is_empty() {
            break;
        }
        for name in names.iter().filter(|name| !name.starts_with('.')) {
            ops::unlink(&client.op(&root()), id, name.as_bytes()).unwrap();
            removed += 1;
        }
        cookie = next;
    }
    assert_eq!(removed, 5000, "each name was told once");
    assert_eq!(read_all(&mounted, &open, 100).unwrap(), [] as [String; 0]);
}

#[test]
fn a_listing_with_lookups_gives_what_lookups_would_and_holds_them() {
    let world = World::new();
    filled(&world, 20);
    let mounted = world.mount(CacheOptions::default());
    let id = directory(&mounted);
    let open = ops::opendir(&mounted.client.op(&root()), id).unwrap();
    let (names, _, found) = read(&mounted, &open, 0, 1000, true).unwrap();
    assert_eq!((names.len(), found), (22, 20), "neither . nor .. are looked up");
    mounted.sent();
    assert_eq!(read(&mounted, &open, 0, 5, true).unwrap().2, 3);
    assert_eq!(mounted.sent(), "");
}

#[test]
fn a_listing_continues_from_any_cookie_without_a_restart() {
    let world = World::new();
    filled(&world, 3000);
    let mounted = world.mount(CacheOptions::default());
    let id = directory(&mounted);
    let open = ops::opendir(&mounted.client.op(&root()), id).unwrap();
    assert_eq!(sorted(read_all(&mounted, &open, 100).unwrap()), expected(3000));
    let (_, middle, _) = read(&mounted, &open, 0, 1500, false).unwrap();
    let (tail, _, _) = read(&mounted, &open, middle, 3, false).unwrap();
    mounted.sent();
    // Another open directory, which never read the beginning.
    let other = ops::opendir(&mounted.client.op(&root()), id).unwrap();
    mounted.sent();
    assert_eq!(read(&mounted, &other, middle, 3, false).unwrap().0, tail);
    let sent = mounted.sent();
    assert!(sent.starts_with("READDIR"), "{sent}");
    assert_eq!(mounted.counter(ClientCounter::ListingRestart), 0);
}

#[test]
fn attributes_are_left_out_after_a_thousand_names_without_a_stat() {
    let world = World::new();
    filled(&world, 4000);
    let mounted = world.mount(CacheOptions::default());
    let open = ops::opendir(&mounted.client.op(&root()), directory(&mounted)).unwrap();
    read_all(&mounted, &open, 500).unwrap();
    let plus = mounted.counter(ClientCounter::ListingPlus);
    assert!(plus >= 1 && mounted.counter(ClientCounter::ListingPlain) >= 1, "{plus}");
    let never = world.mount(CacheOptions { plus: ReaddirplusMode::Never, ..CacheOptions::default() });
    let open = ops::opendir(&never.client.op(&root()), directory(&never)).unwrap();
    read_all(&never, &open, 500).unwrap();
    assert_eq!(never.counter(ClientCounter::ListingPlus), 0);
}

/// Refuses every cookie except zero while enabled.
struct Forgetful {
    next: Arc<dyn Transport>,
    forgets: AtomicBool,
    always: bool,
}

impl Transport for Forgetful {
    fn call(&self, request: &RpcRequest<'_>, interrupt: &Interrupt) -> Result<CallReply, CallError> {
        let listing = [nfs3::NfsProcedure::Readdir.number(), nfs3::NfsProcedure::ReaddirPlus.number()];
        if listing.contains(&request.procedure) {
            let mut arguments = Vec::new();
            request.copy_arguments(&mut arguments);
            let handle = u32::from_be_bytes(*arguments.first_chunk().unwrap()) as usize;
            let cookie = &arguments[4 + handle.next_multiple_of(4)..][..8];
            if cookie != [0; 8] && self.forgets.load(Relaxed) {
                self.forgets.store(self.always, Relaxed);
                let mut results = nfs3::NfsStat3::BadCookie.number().to_be_bytes().to_vec();
                results.extend([0; 4]);
                return Ok(CallReply::from_results(results));
            }
        }
        self.next.call(request, interrupt)
    }
}

// SEMANTICS: list-2.
#[test]
fn a_refused_cookie_restarts_once_and_no_name_is_returned_twice() {
    for always in [false, true] {
        let world = World::new();
        filled(&world, 2000);
        let forgetful = Arc::new(Forgetful { next: world.way(), forgets: true.into(), always });
        let mounted = world.mount_over(ClientOptions::default(), forgetful);
        let open = ops::opendir(&mounted.client.op(&root()), directory(&mounted)).unwrap();
        let read = read_all(&mounted, &open, 13);
        if always {
            assert_eq!(read, Err(Errno::IO), "a second refusal is an error, no loop");
        } else {
            assert_eq!(sorted(read.unwrap()), expected(2000), "each name once");
            assert!(mounted.counter(ClientCounter::ListingSuppressed) > 0);
        }
        assert_eq!(mounted.counter(ClientCounter::ListingRestart), 1);
    }
}

#[test]
fn a_reader_that_stops_makes_no_room_for_a_second_request_for_the_same_names() {
    let world = World::new();
    filled(&world, 300);
    let trouble = Trouble::before(world.way());
    let mounted = world.mount_over(ClientOptions::default(), trouble.clone());
    mounted.teach_time(&world);
    let id = directory(&mounted);
    let first = ops::opendir(&mounted.client.op(&root()), id).unwrap();
    read(&mounted, &first, 0, 10, false).unwrap();
    assert_eq!(mounted.counter(ClientCounter::ListingPlus), 1, "not all of them");
    let (here, there) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let held = Kind::Meet(here.clone(), there.clone());
    trouble.plan(nfs3::NfsProcedure::ReaddirPlus, held);
    let (client, is_told) = (&mounted.client, AtomicBool::new(false));
    thread::scope(|scope| {
        // One of these lookups requests the names that follow.
        scope.spawn(|| {
            for number in 0..100 {
                let missing = ops::lookup(&client.op(&root()), id, format!("missing{number}").as_bytes());
                assert!(matches!(missing, Ok(LookupResult::Negative { .. })));
            }
        });
        here.wait();
        drop(first);
        // Time for a second request, if one is sent.
        scope.spawn(|| {
            let until = Instant::now() + Duration::from_millis(200);
            while !is_told.load(Relaxed) && Instant::now() < until {
                thread::sleep(Duration::from_millis(5));
            }
            there.wait();
        });
        let second = ops::opendir(&client.op(&root()), id).unwrap();
        let told = read_all(&mounted, &second, 1000);
        is_told.store(true, Relaxed);
        assert_eq!(told.map(sorted), Ok(expected(300)));
    });
    assert_eq!(mounted.counter(ClientCounter::ListingPlus), 2);
    assert_eq!(mounted.counter(ClientCounter::DirFillComplete), 1);
}
