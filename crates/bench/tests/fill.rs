//! The cost of `dirfill=auto` where few of many names are used, or each name once: exact counts of
//! requests with a scripted clock, and the bytes of their results, compared with `dirfill=off`.

#![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

mod in_process;

use std::fmt::Write as _;
use std::io::BufReader;
use std::ops::Range;
use std::time::Duration;

use curt_bench::library::{FollowLinks, SimulatedKernel};
use curt_bench::tree::WorkloadTree;
use curt_client::{
    Caller, ClientOptions, DirEmit, Errno, InodeId, LookupResult, OpenFlags, RenameMode, Superblock, ops,
};
use curt_observe::CallCounts;
use curt_policy::{AccessMode, CacheOptions, FillMode, MountUsers};
use curt_proto::nfs3::NfsProcedure;
use curt_server::{ExportRules, Squash};
use curt_types::{FileKind, SetAttributes, SetTime};
use curt_vfs::MemoryOptions;

use in_process::{InProcessMount, InProcessServer};

const REQUEST: Duration = Duration::from_micros(200);
const OPERATION: Duration = Duration::from_micros(20);

/// Requests by operation, and bytes of their results.
type Cost = (CallCounts, u64);

fn world(lines: &str) -> InProcessServer {
    let tree = WorkloadTree::parse(BufReader::new(lines.as_bytes())).unwrap();
    let options = MemoryOptions { root_mode: 0o777, ..MemoryOptions::default() };
    let rules = ExportRules { squash: Squash::None, ..ExportRules::default() };
    InProcessServer::with_rules(&tree, rules, options).unwrap()
}

fn options(access: AccessMode, fill: FillMode) -> CacheOptions {
    CacheOptions {
        access,
        fill,
        users: MountUsers::Many,
        sloppy_open: Duration::from_secs(3),
        ..CacheOptions::default()
    }
}

fn me() -> Caller {
    Caller::new(1000, 1000, &[])
}

/// The cost of `run` on a new mount that is idle.
fn cost(
    world: &InProcessServer,
    cache: CacheOptions,
    run: impl FnOnce(&InProcessServer, &InProcessMount),
) -> Cost {
    let behaviour = ClientOptions { cache, ..ClientOptions::default() };
    let mounted = world.mount(&behaviour, REQUEST, None).unwrap();
    world.clock().advance(Duration::from_secs(1));
    let (requests, received) = (mounted.requests(), mounted.received());
    run(world, &mounted);
    mounted.run_delayed();
    (mounted.requests().since(&requests), mounted.received() - received)
}

fn list(sent: &CallCounts) -> Vec<(&'static str, u64)> {
    let sent = sent.iter().filter(|(_, count)| *count > 0);
    sent.map(|(operation, count)| (operation.name(), count)).collect()
}

/// The costs without and with, once with ACCESS and once with mode bits; each must be within its
/// bound. Returns the latter.
#[track_caller]
fn compare(
    world: &InProcessServer,
    bound: impl Fn(&Cost, &Cost) -> bool,
    run: impl Fn(&InProcessServer, &InProcessMount),
) -> [Cost; 2] {
    let [_, by_bits] = [AccessMode::Server, AccessMode::ModeBits].map(|access| {
        let costs = [FillMode::Off, FillMode::Auto].map(|fill| cost(world, options(access, fill), &run));
        let [off, auto] = &costs;
        let text = format!(
            "{access:?}: off {:?} {} bytes, auto {:?} {} bytes",
            list(&off.0),
            off.1,
            list(&auto.0),
            auto.1
        );
        println!("{text}");
        assert!(bound(off, auto), "{text}");
        costs
    });
    by_bits
}

/// At most 2 % more requests and 10 % more bytes.
fn share(off: &Cost, auto: &Cost) -> bool {
    auto.0.total() * 100 <= off.0.total() * 102 && auto.1 * 100 <= off.1 * 110
}

#[test]
fn one_name_from_each_of_5000_directories_costs_hardly_more() {
    const DIRECTORIES: u32 = 5000;
    const NAMES: u32 = 200;
    let mut lines = String::new();
    for directory in 0..DIRECTORIES {
        for name in 0..NAMES {
            writeln!(lines, "f 0 d{directory:04}/f{name:03}").unwrap();
        }
    }
    let [off, auto] = compare(&world(&lines), share, |world, mounted| {
        let me = me();
        let mut kernel = SimulatedKernel::new(&mounted.client, &me, &**world.clock());
        for directory in 0..DIRECTORIES {
            world.clock().advance(OPERATION);
            let path = format!("d{directory:04}/f{:03}", NAMES / 2);
            kernel.stat(path.as_bytes(), FollowLinks::Follow).unwrap();
        }
    });
    assert_eq!(list(&off.0), [("LOOKUP", 10_000)]);
    assert_eq!(list(&auto.0), [("LOOKUP", 5157), ("READDIRPLUS", 4)]);
}

#[test]
fn one_name_from_a_directory_of_500000_costs_at_most_one_request_more() {
    let mut lines = String::new();
    for name in 0..500_000 {
        writeln!(lines, "f 0 d/f{name:06}").unwrap();
    }
    let one_more = |off: &Cost, auto: &Cost| auto.0.total() <= off.0.total() + 1;
    let [off, auto] = compare(&world(&lines), one_more, |world, mounted| {
        let me = me();
        let mut kernel = SimulatedKernel::new(&mounted.client, &me, &**world.clock());
        kernel.stat(b"d/f250000", FollowLinks::Follow).unwrap();
    });
    assert_eq!(list(&off.0), [("LOOKUP", 2)]);
    assert_eq!(list(&auto.0), [("LOOKUP", 2)]);
}

/// Lists a directory of 40,000 names, and looks `count` of them up in another order than the
/// listing's.
fn list_and_look(world: &InProcessServer, mounted: &InProcessMount, count: u32) {
    const NAMES: u32 = 40_000;
    let client = &mounted.client;
    let Ok(LookupResult::Positive(found)) = ops::lookup(&client.op(&me()), client.root(), b"d") else {
        panic!("it is there");
    };
    let open = ops::opendir(&client.op(&me()), found.id).unwrap();
    let (mut cookie, mut before, mut listed) = (0, u64::MAX, 0);
    while cookie != before {
        before = cookie;
        let outcome = ops::readdir(&client.op(&me()), &open, cookie, true, &mut |entry| {
            cookie = entry.cookie;
            listed += 1;
            DirEmit::Taken
        });
        assert_eq!(outcome, Ok(()));
    }
    assert!(listed >= NAMES);
    for name in 0..count {
        world.clock().advance(OPERATION);
        // Any other prime would do.
        let name = format!("f{:05}", name * 7919 % NAMES);
        assert!(!is_missing(client, found.id, &name), "{name}");
    }
}

#[test]
fn names_of_a_large_listing_that_are_looked_up_in_another_order_come_with_those_beside_them() {
    let lines: String = (0..40_000).map(|name| format!("f 0 d/f{name:05}\n")).collect();
    let world = world(&lines);
    // `find`, `rm -r`: all of them.
    let [off, auto] = compare(
        &world,
        |off, auto| auto.0.total() * 20 <= off.0.total(),
        |world, mounted| list_and_look(world, mounted, 40_000),
    );
    let listing = |lookups: u64, plus: u64| {
        let listing = [("READDIR", 2), ("READDIRPLUS", 6 + plus)];
        [&[("GETATTR", 1), ("LOOKUP", lookups)][..], &listing].concat()
    };
    assert_eq!(list(&off.0), listing(36_863, 0));
    assert_eq!(list(&auto.0), listing(1717, 36));
    // A program that uses few of them pays hardly more.
    for (count, lookups, fewer, plus) in [(50, 50, 50, 0), (100, 92, 89, 1), (300, 276, 262, 2)] {
        let [off, auto] = compare(
            &world,
            |off, auto| auto.0.total() * 100 <= off.0.total() * 102,
            |world, mounted| list_and_look(world, mounted, count),
        );
        assert_eq!(list(&off.0), listing(lookups, 0));
        assert_eq!(list(&auto.0), listing(fewer, plus));
    }
}

/// A change of the directory by another client before its names are used, and the names.
type Changing = (fn(&Superblock, InodeId, Range<u32>), fn(u32) -> String);

fn root() -> Caller {
    Caller::new(0, 0, &[])
}

fn rename(client: &Superblock, directory: InodeId, from: &str, to: &str) {
    let (from, to) = (from.as_bytes(), to.as_bytes());
    ops::rename(&client.op(&root()), directory, from, directory, to, RenameMode::Replace).unwrap();
}

fn make(client: &Superblock, directory: InodeId, name: &str) {
    let flags = OpenFlags { write: true, ..OpenFlags::default() };
    let (_, opened) = ops::create(&client.op(&root()), directory, name.as_bytes(), 0o644, flags).unwrap();
    ops::close(&client.op(&root()), &opened.file).unwrap();
}

/// A change of another name.
const OTHER_NAME: Changing = (
    |client, directory, _| {
        rename(client, directory, "other", "moved");
        rename(client, directory, "moved", "other");
    },
    |access| format!("f{:03}", access % 200),
);

/// As [`OTHER_NAME`], and the used names are missing.
const MISSING: Changing = (OTHER_NAME.0, |access| format!("missing{access}"));

/// The used names are new, as in a spool.
const NEW: Changing = (
    |client, directory, wanted| {
        for number in wanted {
            make(client, directory, &format!("f{:03}", 200 + number));
            let old = format!("f{number:03}");
            ops::unlink(&client.op(&root()), directory, old.as_bytes()).unwrap();
        }
    },
    |access| format!("f{:03}", 200 + access),
);

/// 1,000 look-ups in a directory of 200 names, which another client changes after each `accesses`
/// of them, so that cached names become invalid.
#[track_caller]
fn in_a_changing_directory((change, name): Changing, accesses: u32) -> [Vec<(&'static str, u64)>; 2] {
    let lines = (0..200).map(|name| format!("f 0 d/f{name:03}\n"));
    let lines: String = lines.chain([String::from("f 0 d/other\n")]).collect();
    let [off, auto] = [FillMode::Off, FillMode::Auto].map(|fill| {
        let options = options(AccessMode::ModeBits, fill);
        let (sent, _) = cost(&world(&lines), options, |world, mounted| {
            let other = world.mount(&ClientOptions::default(), REQUEST, None).unwrap();
            let below =
                |client: &Superblock| match ops::lookup(&client.op(&me()), client.root(), b"d").unwrap() {
                    LookupResult::Positive(found) => found.id,
                    LookupResult::Negative { .. } => panic!("it is there"),
                };
            let (own, others) = (below(&mounted.client), below(&other.client));
            for access in 0..1000 {
                if access % accesses == 0 {
                    change(&other.client, others, access..access + accesses);
                    world.clock().advance(Duration::from_secs(61));
                }
                world.clock().advance(OPERATION);
                let name = name(access);
                let is_missing = is_missing(&mounted.client, own, &name);
                assert_eq!(is_missing, name.starts_with('m'), "{name}");
            }
        });
        sent
    });
    let text = format!("off {:?}, auto {:?}", list(&off), list(&auto));
    assert!(auto.total() * 100 <= off.total() * 102, "{text}");
    [off, auto].map(|sent| list(&sent))
}

#[test]
fn a_directory_that_others_change_all_the_time_costs_hardly_more() {
    for changing in [OTHER_NAME, MISSING, NEW] {
        for (accesses, lookups, listings) in
            [(1, 1001, 0), (2, 998, 3), (3, 985, 8), (10, 101, 100), (100, 11, 10)]
        {
            let [off, auto] = in_a_changing_directory(changing, accesses);
            assert_eq!(off, [("LOOKUP", 1001)]);
            let mut expected = vec![("LOOKUP", lookups), ("READDIRPLUS", listings)];
            expected.retain(|(_, count)| *count > 0);
            assert_eq!(auto, expected, "{accesses} accesses");
        }
    }
}

const FILES: u32 = 5000;
const PER_DIRECTORY: u32 = 100;

fn directory(number: u32) -> String {
    format!("d{number:03}")
}

/// The operations of tar -x: creates a directory or file unless it exists, and sets its times
/// afterwards.
fn extract(world: &InProcessServer, mounted: &InProcessMount) {
    let (client, me) = (&mounted.client, me());
    let top = make_directory(client, client.root(), &top_name(mounted));
    let set = SetAttributes { mtime: SetTime::ServerTime, ..SetAttributes::default() };
    let mut below = top;
    for number in 0..FILES {
        if number % PER_DIRECTORY == 0 {
            below = make_directory(client, top, &directory(number / PER_DIRECTORY));
        }
        world.clock().advance(OPERATION);
        let name = format!("f{number:05}");
        let flags = OpenFlags { write: true, exclusive: true, ..OpenFlags::default() };
        // The kernel looks a name up before it creates it.
        assert!(is_missing(client, below, &name));
        let (found, opened) = ops::create(&client.op(&me), below, name.as_bytes(), 0o644, flags).unwrap();
        ops::write(&client.op(&me), &opened.file, 0, &[b'x'; 1024]).unwrap();
        ops::setattr(&client.op(&me), found.id, &set).unwrap();
        ops::close(&client.op(&me), &opened.file).unwrap();
    }
}

/// Each mount has its own directory.
fn top_name(mounted: &InProcessMount) -> String {
    let mut count = 0;
    while !is_missing(&mounted.client, mounted.client.root(), &format!("top{count}")) {
        count += 1;
    }
    format!("top{count}")
}

fn is_missing(client: &Superblock, directory: InodeId, name: &str) -> bool {
    match ops::lookup(&client.op(&me()), directory, name.as_bytes()).unwrap() {
        LookupResult::Positive(_) => false,
        LookupResult::Negative { .. } => true,
    }
}

fn make_directory(client: &Superblock, parent: InodeId, name: &str) -> InodeId {
    assert!(is_missing(client, parent, name));
    ops::mkdir(&client.op(&me()), parent, name.as_bytes(), 0o755).unwrap().id
}

#[test]
fn extracting_5000_files_costs_hardly_more() {
    let world = world("");
    let [off, auto] = compare(&world, share, extract);
    let lookups = [off, auto].map(|(sent, _)| sent.value(NfsProcedure::Lookup));
    assert_eq!(lookups, [5053, 3], "all names of a new directory are known to be missing");
}

/// The operations of rm -r: lists a directory, removes its contents, and then the directory.
fn remove(world: &InProcessServer, client: &Superblock, parent: InodeId, name: &[u8]) {
    let me = me();
    let Ok(LookupResult::Positive(found)) = ops::lookup(&client.op(&me), parent, name) else {
        panic!("{} is there", name.escape_ascii());
    };
    let open = ops::opendir(&client.op(&me), found.id).unwrap();
    let (mut names, mut cookie) = (Vec::new(), 0);
    loop {
        let before = cookie;
        let listed = ops::readdir(&client.op(&me), &open, cookie, true, &mut |entry| {
            cookie = entry.cookie;
            if !matches!(entry.name, b"." | b"..") {
                names.push((entry.name.to_vec(), entry.kind));
            }
            DirEmit::Taken
        });
        assert_eq!(listed, Ok(()));
        if cookie == before {
            break;
        }
    }
    for (below, kind) in names {
        world.clock().advance(OPERATION);
        // The kernel looks a name up before it removes it.
        match kind {
            Some(FileKind::Directory) => remove(world, client, found.id, &below),
            _ => {
                let Ok(LookupResult::Positive(_)) = ops::lookup(&client.op(&me), found.id, &below) else {
                    panic!("{} was listed", below.escape_ascii());
                };
                ops::unlink(&client.op(&me), found.id, &below).unwrap();
            }
        }
    }
    drop(open);
    assert_eq!(ops::rmdir(&client.op(&me), parent, name), Ok::<(), Errno>(()));
}

#[test]
fn removing_5000_files_costs_hardly_more() {
    let world = world("");
    // Each mount removes one.
    for _ in 0..4 {
        cost(&world, options(AccessMode::ModeBits, FillMode::Off), extract);
    }
    world.clock().advance(Duration::from_secs(3600));
    compare(&world, share, |world, mounted| {
        let there = (0..4).map(|count| format!("top{count}"));
        let mut there = there.filter(|name| !is_missing(&mounted.client, mounted.client.root(), name));
        let name = there.next().unwrap();
        remove(world, &mounted.client, mounted.client.root(), name.as_bytes());
    });
}
