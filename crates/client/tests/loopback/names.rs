//! The DentryCache with a server: positive and negative entries, changes of the directory, the racy
//! guard, `.` and `..`.

use std::time::Duration;

use curt_client::{InodeId, RenameMode, ops};
use curt_observe::ClientCounter;
use curt_policy::{CacheOptions, FillMode, LookupCache, TimeoutRange};
use rustix::io::Errno;

use crate::world::{BenchMount, World, root, user};

/// A directory with one file that was created an hour ago, and a new client.
fn old_directory(world: &World, cache: CacheOptions) -> (BenchMount, InodeId) {
    let maker = world.mount(CacheOptions::default());
    let directory = ops::mkdir(&maker.client.op(&root()), maker.client.root(), b"d", 0o777).unwrap();
    maker.put(&root(), directory.id, "there", 0o644, b"x");
    world.seconds(3600);
    let mounted = world.mount(cache);
    mounted.teach_time(world);
    let found = mounted.lookup(&root(), mounted.client.root(), "d").unwrap();
    mounted.sent();
    (mounted, found.id)
}

/// Each name is looked up individually, so that the requests of single names are counted.
fn one_by_one() -> CacheOptions {
    CacheOptions { fill: FillMode::Off, ..CacheOptions::default() }
}

// SEMANTICS: name-1.
#[test]
fn a_missing_name_costs_one_lookup_and_then_one_getattr_per_directory_interval() {
    let world = World::new();
    let (mounted, directory) = old_directory(&world, one_by_one());
    let me = root();
    for _ in 0..10 {
        assert_eq!(mounted.lookup(&me, directory, "missing").map(|_| ()), Err(Errno::NOENT));
    }
    assert_eq!(mounted.sent(), "LOOKUP 1");
    assert_eq!(mounted.counter(ClientCounter::NegHit), 9);
    world.seconds(31);
    for name in ["missing", "missing", "there", "there"] {
        let _ = mounted.lookup(&me, directory, name);
    }
    assert_eq!(mounted.sent(), "GETATTR 1 LOOKUP 1", "the directory once, and the new name once");
    world.seconds(50);
    let _ = mounted.lookup(&me, directory, "missing");
    assert_eq!(mounted.sent(), "LOOKUP 1", "negnametimeo has passed");
}

// SEMANTICS: name-1.
#[test]
fn anothers_create_is_seen_after_the_directorys_attributes_expire_or_are_requested() {
    let world = World::new();
    let (mounted, directory) = old_directory(&world, one_by_one());
    let me = root();
    let _ = mounted.lookup(&me, directory, "new");
    let _ = mounted.lookup(&me, directory, "other");
    let there = world.mount(CacheOptions::default());
    let found = there.lookup(&me, there.client.root(), "d").unwrap();
    there.put(&me, found.id, "new", 0o644, b"");
    mounted.sent();
    assert!(mounted.lookup(&me, directory, "new").is_err(), "within acdirmin the old answer stands");
    world.seconds(31);
    assert!(mounted.lookup(&me, directory, "new").is_ok());
    assert_eq!(mounted.sent(), "GETATTR 1 LOOKUP 1");
    let _ = mounted.lookup(&me, directory, "other");
    assert_eq!(mounted.sent(), "LOOKUP 1", "all names of the directory are void, in one step");
}

// SEMANTICS: name-7.
#[test]
fn own_creates_and_removes_are_known_without_a_request() {
    let world = World::new();
    let (mounted, directory) = old_directory(&world, CacheOptions::default());
    let me = root();
    let _ = mounted.lookup(&me, directory, "a");
    let _ = mounted.lookup(&me, directory, "b");
    mounted.put(&me, directory, "a", 0o644, b"");
    mounted.sent();
    assert!(mounted.lookup(&me, directory, "a").is_ok());
    assert!(mounted.lookup(&me, directory, "b").is_err());
    assert_eq!(mounted.sent(), "", "the server proved that nobody else came between");
    ops::unlink(&mounted.client.op(&me), directory, b"a").unwrap();
    assert_eq!(mounted.sent(), "REMOVE 1");
    assert!(mounted.lookup(&me, directory, "a").is_err());
    assert!(mounted.lookup(&me, directory, "b").is_err());
    ops::mkdir(&mounted.client.op(&me), directory, b"a", 0o755).unwrap();
    assert!(mounted.lookup(&me, directory, "a").is_ok());
    assert_eq!(mounted.sent(), "MKDIR 1");
}

// SEMANTICS: name-5.
#[test]
fn eexist_proves_a_name_and_create_ignores_negative_entries() {
    let world = World::new();
    let (mounted, directory) = old_directory(&world, CacheOptions::default());
    let me = root();
    let _ = mounted.lookup(&me, directory, "x");
    let there = world.mount(CacheOptions::default());
    let found = there.lookup(&me, there.client.root(), "d").unwrap();
    ops::mkdir(&there.client.op(&me), found.id, b"x", 0o755).unwrap();
    assert_eq!(ops::mkdir(&mounted.client.op(&me), directory, b"x", 0o755).map(|_| ()), Err(Errno::EXIST));
    assert!(mounted.lookup(&me, directory, "x").is_ok());
}

// SEMANTICS: name-6.
#[test]
fn a_name_that_is_looked_up_repeatedly_is_requested_ever_more_rarely() {
    let world = World::new();
    let (mounted, directory) = old_directory(
        &world,
        CacheOptions {
            name_lifetime: Duration::from_secs(600),
            files: TimeoutRange { min: Duration::from_secs(600), max: Duration::from_secs(600) },
            directories: TimeoutRange { min: Duration::from_secs(600), max: Duration::from_secs(600) },
            ..one_by_one()
        },
    );
    let me = root();
    mounted.client.set_used_by_kernel();
    let seconds = |use_it: bool| {
        // The kernel does not keep the name from before.
        world.seconds(2);
        mounted.lookup(&me, directory, "there").unwrap();
        mounted.sent();
        for _ in 0..20 {
            world.seconds(1);
            let found = mounted.lookup(&me, directory, "there").unwrap();
            if use_it {
                ops::getattr(&mounted.client.op(&me), found.id).unwrap();
            }
        }
        mounted.sent()
    };
    assert_eq!(seconds(true), "", "somebody has other uses for it than to make it");
    // After 1, 2, 4, 8 and 16 seconds or slightly later, because requests take time.
    assert_eq!(seconds(false), "LOOKUP 5");
}

// SEMANTICS: name-2.
#[test]
fn lookupcache_and_the_name_options_turn_names_off() {
    let asked = |cache: CacheOptions| {
        let world = World::new();
        let (mounted, directory) = old_directory(&world, cache);
        for _ in 0..3 {
            let _ = mounted.lookup(&root(), directory, "missing");
            let _ = mounted.lookup(&root(), directory, "there");
        }
        mounted.sent()
    };
    let default = one_by_one();
    assert_eq!(asked(default), "LOOKUP 2");
    assert_eq!(asked(CacheOptions { names: LookupCache::Positive, ..default }), "LOOKUP 4");
    assert_eq!(asked(CacheOptions { names: LookupCache::None, ..default }), "LOOKUP 6");
    assert_eq!(asked(CacheOptions { missing_name_lifetime: Duration::ZERO, ..default }), "LOOKUP 4");
    assert_eq!(asked(CacheOptions { name_lifetime: Duration::ZERO, ..default }), "LOOKUP 4");
}

// SEMANTICS: name-8.
#[test]
fn a_name_missed_while_the_directory_was_changing_is_looked_up_once_more() {
    // The server's clock has a resolution of 10 ms: two changes within one tick have the same
    // stamp.
    let world = World::with_time_step(Duration::from_millis(10));
    let there = world.mount(CacheOptions::default());
    let me = root();
    let made = ops::mkdir(&there.client.op(&me), there.client.root(), b"d", 0o777).unwrap();
    let mounted = world.mount(one_by_one());
    let directory = mounted.lookup(&me, mounted.client.root(), "d").unwrap().id;
    there.put(&me, made.id, "one", 0o644, b"");
    assert!(mounted.lookup(&me, directory, "two").is_err());
    there.put(&me, made.id, "two", 0o644, b"");
    world.seconds(1);
    assert!(mounted.lookup(&me, directory, "two").is_ok(), "the stamp alone would have hidden it");
    assert!(mounted.counter(ClientCounter::NegRacyRequery) >= 1);
}

#[test]
fn dot_and_dotdot_cost_nothing_and_dotdot_follows_a_rename() {
    let world = World::new();
    let (mounted, directory) = old_directory(&world, CacheOptions::default());
    let me = root();
    let top = mounted.client.root();
    let inner = ops::mkdir(&mounted.client.op(&me), directory, b"inner", 0o755).unwrap();
    mounted.sent();
    assert_eq!(mounted.lookup(&me, top, "..").unwrap().id, top);
    assert_eq!(mounted.lookup(&me, inner.id, ".").unwrap().id, inner.id);
    assert_eq!(mounted.lookup(&me, inner.id, "..").unwrap().id, directory);
    assert_eq!(mounted.lookup(&me, directory, "..").unwrap().id, top);
    let sent = mounted.sent();
    assert!(!sent.contains("LOOKUP"), "{sent}");
    ops::rename(&mounted.client.op(&me), directory, b"inner", top, b"moved", RenameMode::Replace).unwrap();
    assert_eq!(mounted.lookup(&me, inner.id, "..").unwrap().id, top);
}

#[test]
fn lookups_of_random_names_evict_no_positive_entry() {
    let world = World::new();
    let limits =
        curt_client::Limits { missing_names: 100, missing_names_per_directory: 50, ..Default::default() };
    let maker = world.mount(CacheOptions::default());
    let me = root();
    for number in 0..20 {
        maker.put(&me, maker.client.root(), &format!("file{number}"), 0o644, b"");
    }
    world.seconds(3600);
    let mounted = world.mount_with(curt_client::ClientOptions { limits, ..Default::default() });
    mounted.teach_time(&world);
    let top = mounted.client.root();
    for number in 0..20 {
        mounted.lookup(&me, top, &format!("file{number}")).unwrap();
    }
    for number in 0..500 {
        assert!(mounted.lookup(&me, top, &format!("no{number}")).is_err());
    }
    mounted.sent();
    for number in 0..20 {
        mounted.lookup(&me, top, &format!("file{number}")).unwrap();
    }
    assert_eq!(mounted.sent(), "");
    let (_, _, missing) = mounted.client.cached_counts();
    assert_eq!(missing, 50, "the bound of one directory");
    assert_eq!(mounted.counter(ClientCounter::NegEvict), 451, "one more name was missing before");
}

#[test]
fn invalid_names_are_refused_without_a_request() {
    let world = World::new();
    let mounted = world.mount(CacheOptions::default());
    mounted.sent();
    let lookup = |name: &[u8]| ops::lookup(&mounted.client.op(&user(1)), mounted.client.root(), name).err();
    assert_eq!(lookup(b""), Some(Errno::NOENT));
    assert_eq!(lookup(b"a/b"), Some(Errno::INVAL));
    assert_eq!(lookup(b"a\0b"), Some(Errno::INVAL));
    assert_eq!(lookup(&[b'x'; 256]), Some(Errno::NAMETOOLONG));
    assert_eq!(mounted.sent(), "");
    assert_eq!(lookup(&[b'x'; 255]), None);
}

#[test]
fn a_name_created_by_this_client_does_not_count_as_prefetched() {
    let world = World::new();
    let mounted = world.mount(CacheOptions::default());
    let (client, me) = (&mounted.client, root());
    let made = ops::mkdir(&client.op(&me), client.root(), b"d", 0o755).unwrap();
    for name in ["a", "b", "c"] {
        assert!(mounted.lookup(&me, made.id, name).is_err());
    }
    assert!(mounted.counter(ClientCounter::DirFill) > 0);
    ops::make_file(&client.op(&me), made.id, b"f", 0o644).unwrap();
    assert!(mounted.lookup(&me, made.id, "f").is_ok());
    assert_eq!(mounted.counter(ClientCounter::DirFillUsed), 0);
}

// SEMANTICS: attr-6.
#[test]
fn a_kernel_can_have_cached_only_names_returned_since_its_last_forget() {
    let world = World::new();
    let (mounted, directory) = old_directory(&world, one_by_one());
    let (client, me) = (&mounted.client, root());
    let may_be_cached = |name: &str| client.may_be_cached(directory, name.as_bytes());
    assert!(!may_be_cached("there"), "no name of the directory was told");
    let found = mounted.lookup(&me, directory, "there").unwrap();
    assert!(mounted.lookup(&me, directory, "missing").is_err());
    assert!(may_be_cached("there") && !may_be_cached("missing"));
    assert!(may_be_cached("other"), "nothing is known of it that speaks against it");
    client.forget(found.id, 1);
    assert!(!may_be_cached("there"));
    client.forget(directory, 1);
    assert!(!may_be_cached("other"));
    let again = mounted.lookup(&me, client.root(), "d").unwrap();
    assert_eq!(again.id, directory);
    assert!(!may_be_cached("other"), "whoever holds it now was told nothing");
}
