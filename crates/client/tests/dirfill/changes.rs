//! Other clients change a directory before, between, during and after the replies of a pass. The
//! tests check which requests the client then repeats.

use std::time::Duration;

use curt_client::{InodeId, OpenFlags, ops, protocol::Pathconf};
use curt_policy::{CacheOptions, FillMode, RacyGuard};

use crate::{
    server::Lie,
    tree::{ROOT, Tree},
    world::{World, me, options},
};

const NAMES: [&str; 10] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];

fn one_directory(tree: &mut Tree) {
    let directory = tree.directory(ROOT, "one");
    for name in NAMES {
        tree.file(directory, name);
    }
}

fn world() -> (World, InodeId, u64) {
    let world = World::new(Lie::None, one_directory);
    let found = world.lookup(world.client.root(), "one").unwrap();
    world.sent();
    let number = found.attributes.fileid;
    (world, found.id, number)
}

type Change = fn(&mut Tree, u64);

/// Every kind of change of names on both sides of the position of a pass.
const CHANGES: [(&str, Change); 8] = [
    ("create", |tree, directory| {
        tree.file(directory, "new");
    }),
    ("remove what was told", |tree, directory| tree.remove(directory, "a")),
    ("remove what is to come", |tree, directory| tree.remove(directory, "j")),
    ("rename what was told", |tree, directory| tree.rename(directory, "b", "new")),
    ("rename what is to come", |tree, directory| tree.rename(directory, "i", "new")),
    ("replace what was told", |tree, directory| {
        tree.file(directory, "c");
    }),
    ("replace what is to come", |tree, directory| {
        tree.file(directory, "h");
    }),
    ("rename over", |tree, directory| tree.rename(directory, "j", "a")),
];

const ALL: [&str; 13] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "new", "missing", "absent"];

/// Once a reply has shown the directory's new state, nothing of the old one is served.
#[test]
fn a_directory_that_changes_during_a_pass_is_known_as_it_is_afterwards() {
    for (what, change) in CHANGES {
        for number in 0..4 {
            for names_max in [3, 4, 100] {
                let (world, id, directory) = world();
                world.names_max(names_max);
                world.before_listing(number, move |tree| change(tree, directory));
                // One after another: each sends the requests that it needs.
                for name in ALL {
                    let told = world.id(id, name);
                    let is = world.happens(|tree| tree.find(directory, name.as_bytes()));
                    assert!(
                        told == is || !world.is_told(directory),
                        "{what} before reply {number}, {names_max} names each: {name} is {told:?}, not {is:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_change_after_the_pass_is_seen_when_the_directory_is_revalidated() {
    for (what, change) in CHANGES {
        let (world, id, number) = world();
        assert_eq!(world.look(id, number, &ALL), "LOOKUP 1 READDIRPLUS 1", "{what}");
        world.happens(|tree| change(tree, number));
        // Not known yet.
        assert_eq!(world.id(id, "missing"), None);
        assert_eq!(world.sent(), "");
        ops::getattr(&world.client.op(&me()), id).unwrap();
        world.seconds(61);
        for name in ALL {
            let wanted = world.happens(|tree| tree.find(number, name.as_bytes()));
            assert_eq!(world.id(id, name), wanted, "{what}: {name}");
        }
    }
}

/// The kernel's lifetimes begin when the request is sent, as the client's own do.
#[test]
fn a_slow_listing_leaves_the_kernel_no_longer_lifetimes_than_the_client_has() {
    const SLOW: Duration = Duration::from_secs(2);
    let (world, id, _) = world();
    let clock = std::sync::Arc::clone(&world.server.clock);
    world.before_listing(0, move |_| clock.pass(SLOW));
    let began = world.server.clock.passed();
    for name in NAMES {
        let found = world.lookup(id, name).unwrap();
        let rest = options().files.min + began - world.server.clock.passed();
        let margin = Duration::from_millis(10);
        assert!(
            found.attributes_valid <= rest + margin,
            "{name}: {:?}, not {rest:?}",
            found.attributes_valid
        );
    }
    assert!(world.server.clock.passed() - began > SLOW, "nothing was listed");
}

/// A directory whose names are all known does not answer for a name that was made just now and
/// whose object is unknown.
#[test]
fn a_name_is_not_missing_that_was_made_and_cannot_be_looked_up() {
    let (world, id, number) = world();
    world.look(id, number, &ALL);
    world.server.state.lock().lie = Lie::NoHandleOfNew("made");
    let made = ops::mkdir(&world.client.op(&me()), id, b"made", 0o755);
    assert_eq!(made.unwrap_err(), curt_client::Errno::IO);
    world.server.state.lock().lie = Lie::None;
    assert!(world.id(id, "made").is_some(), "{}", world.sent());
}

/// How the client comes to believe that a name is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    Asked,
    NotListed,
}

/// The number of seconds until the client finds a name that it considered missing. Another client
/// creates it after a change of this client, in the same clock tick.
fn seconds_until_found(missing: Missing, fill: FillMode, racy_guard: RacyGuard) -> u64 {
    const TICK: Duration = Duration::from_millis(10);
    let cache = CacheOptions { fill, racy_guard, ..options() };
    let world = World::with(Lie::None, cache, Pathconf::default(), one_directory);
    world.ticks(TICK);
    let found = world.lookup(world.client.root(), "one").unwrap();
    let (id, number) = (found.id, found.attributes.fileid);
    world.list(id).unwrap();
    if missing == Missing::Asked {
        assert_eq!(world.id(id, "new"), None);
    }
    world.seconds(1);
    world.ticks(TICK);
    ops::mkdir(&world.client.op(&me()), id, b"own", 0o755).unwrap();
    let ours = world.happens(|tree| tree.node(number).changed);
    world.happens(|tree| tree.file(number, "new"));
    let others = world.happens(|tree| tree.node(number).changed);
    let tick = |moment: Duration| moment.as_nanos() / TICK.as_nanos();
    assert!(others > ours && tick(others) == tick(ours), "{ours:?} {others:?}");
    (0..1000)
        .find(|_| {
            let is_found = world.id(id, "new").is_some();
            world.seconds(1);
            is_found
        })
        .unwrap()
}

// SEMANTICS: name-9.
#[test]
fn a_name_made_in_the_tick_of_our_own_change_is_missed_alike_by_a_missing_name_and_a_complete_directory() {
    // The lifetime of a negative entry minus one second.
    const REST: u64 = 59;
    for (missing, fill, guard, seconds) in [
        (Missing::Asked, FillMode::Off, RacyGuard::Auto, REST),
        (Missing::Asked, FillMode::Auto, RacyGuard::Auto, REST),
        (Missing::NotListed, FillMode::Auto, RacyGuard::Auto, REST),
        (Missing::Asked, FillMode::Off, RacyGuard::On, 0),
        (Missing::NotListed, FillMode::Auto, RacyGuard::On, 0),
        // No cached state.
        (Missing::NotListed, FillMode::Off, RacyGuard::Auto, 0),
    ] {
        let found = seconds_until_found(missing, fill, guard);
        assert_eq!(found, seconds, "{missing:?}, {fill:?}, {guard:?}");
    }
}

#[test]
fn an_open_revalidates_its_file_although_the_directory_was_just_listed() {
    let (world, id, number) = world();
    assert_eq!(world.look(id, number, &NAMES), "LOOKUP 1 READDIRPLUS 1");
    for name in NAMES {
        let found = world.lookup(id, name).unwrap();
        world.happens(|tree| tree.write(found.attributes.fileid, 4711));
        let opened = ops::open(&world.client.op(&me()), found.id, OpenFlags::reading()).unwrap();
        let size = world.client.last_attributes(found.id).unwrap().attributes.size;
        assert_eq!(size, 4711, "{name}");
        ops::close(&world.client.op(&me()), &opened.file).unwrap();
    }
    assert_eq!(world.sent(), "GETATTR 10");
}

// SEMANTICS: name-3.
#[test]
fn a_listing_between_the_removal_and_the_new_creation_of_a_known_name_does_not_hide_it() {
    for tick in [Duration::from_nanos(1), Duration::from_millis(10)] {
        let (world, id, number) = world();
        world.ticks(tick);
        world.look(id, number, &ALL);
        let former = world.id(id, "a").unwrap();
        world.seconds(61);
        world.happens(|tree| tree.remove(number, "a"));
        assert!(!world.list(id).unwrap().contains(&"a".to_owned()));
        world.happens(|tree| tree.file(number, "a"));
        let found = world.id(id, "a").unwrap_or_else(|| panic!("it exists, {}", world.sent()));
        assert_ne!(found, former);
    }
}

/// A directory that lists all its names is asked once about a name that has vanished, and never
/// about one that was not there.
#[test]
fn a_complete_directory_does_not_answer_for_a_name_that_has_vanished() {
    let (world, id, number) = world();
    world.look(id, number, &ALL);
    world.seconds(61);
    world.happens(|tree| tree.remove(number, "b"));
    // Makes the directory complete again.
    assert!(world.look(id, number, &["a", "unknown"]).contains("READDIRPLUS 1"));
    assert_eq!(world.look(id, number, &["unseen"]), "");
    assert_eq!(world.id(id, "b"), None);
    assert_eq!(world.sent(), "LOOKUP 1");
    assert_eq!(world.id(id, "b"), None);
    assert_eq!(world.sent(), "");
}
