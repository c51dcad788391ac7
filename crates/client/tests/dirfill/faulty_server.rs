//! Servers without READDIRPLUS, and servers that omit, repeat or mix up names, or never end a
//! listing.

use curt_client::{Errno, InodeId, protocol::Pathconf};
use curt_observe::ClientCounter;
use curt_proto::nfs3::NfsStat3;

use crate::{
    server::{At, Lie},
    tree::{FSID, ROOT, Tree},
    world::{World, options},
};

/// The names of the directory that most tests use, and of another one.
const NAMES: [&str; 10] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
const MORE: [&str; 8] = ["c", "d", "e", "f", "g", "h", "i", "j"];
const MISSING: [&str; 4] = ["missing", "absent", "gone", "never"];

fn two_directories(tree: &mut Tree) {
    for name in ["one", "two"] {
        let directory = tree.directory(ROOT, name);
        for name in NAMES {
            tree.file(directory, name);
        }
    }
}

/// A world with two directories. Returns the first: the client's id and the server's fileid.
fn world(lie: Lie) -> (World, InodeId, u64) {
    let world = World::new(lie, two_directories);
    let (id, number) = directory(&world, "one");
    (world, id, number)
}

fn directory(world: &World, name: &str) -> (InodeId, u64) {
    let found = world.lookup(world.client.root(), name).unwrap();
    world.sent();
    (found.id, found.attributes.fileid)
}

#[test]
fn the_second_lookup_in_a_directory_makes_it_complete() {
    let (world, id, number) = world(Lie::None);
    assert_eq!(world.look(id, number, &["a"]), "LOOKUP 1");
    assert_eq!(world.look(id, number, &["b"]), "READDIRPLUS 1");
    assert_eq!(world.look(id, number, &MORE), "");
    assert_eq!(world.look(id, number, &MISSING), "");
    assert_eq!(world.counter(ClientCounter::DirFillComplete), 1);
    assert_eq!(world.counter(ClientCounter::DirFillMissing), 4);
}

#[test]
fn a_directory_that_was_listed_answers_for_names_that_it_does_not_have() {
    let (world, id, number) = world(Lie::None);
    assert_eq!(world.list(id).unwrap().len(), NAMES.len());
    assert_eq!(world.look(id, number, &MISSING), "");
    assert_eq!(world.counter(ClientCounter::DirFillComplete), 1);
    assert_eq!(world.counter(ClientCounter::DirFillMissing), 4);
    assert_eq!(world.counter(ClientCounter::DirFill), 0);
}

#[test]
fn a_server_without_readdirplus_gets_it_once() {
    for lie in [Lie::RefusesPlus(NfsStat3::Notsupp), Lie::NoPlus] {
        let (world, id, number) = world(lie.clone());
        assert_eq!(world.look(id, number, &["a"]), "LOOKUP 1");
        assert_eq!(world.look(id, number, &["b"]), "LOOKUP 1 READDIRPLUS 1", "{lie:?}");
        assert_eq!(world.look(id, number, &MORE), "LOOKUP 8");
        let (other, number) = directory(&world, "two");
        assert_eq!(world.look(other, number, &NAMES), "LOOKUP 10");
        world.sent();
        assert_eq!(world.list(other).unwrap().len(), NAMES.len());
        assert_eq!(world.sent(), "GETATTR 1 READDIR 1", "{lie:?}: the open and the names");
    }
}

#[test]
fn a_listing_detects_missing_readdirplus_as_well() {
    for lie in [Lie::RefusesPlus(NfsStat3::Notsupp), Lie::NoPlus] {
        let (world, id, number) = world(lie.clone());
        assert_eq!(world.list(id).unwrap().len(), NAMES.len(), "{lie:?}");
        assert_eq!(world.sent(), "GETATTR 1 READDIR 1 READDIRPLUS 1");
        assert_eq!(world.look(id, number, &NAMES), "LOOKUP 10");
    }
}

#[test]
fn a_name_that_comes_without_attributes_or_handle_is_looked_up() {
    for lie in [Lie::NoAttributes(Some("e")), Lie::NoHandles(Some("e"))] {
        let (world, id, number) = world(lie.clone());
        assert_eq!(world.look(id, number, &["a", "b"]), "LOOKUP 1 READDIRPLUS 1");
        assert_eq!(world.look(id, number, &["e"]), "LOOKUP 1", "{lie:?}");
        assert_eq!(world.look(id, number, &NAMES), "", "{lie:?}");
        assert_eq!(world.look(id, number, &MISSING), "", "its name alone is enough for that");
    }
}

#[test]
fn names_that_all_come_without_attributes_or_handles_are_looked_up() {
    for lie in [Lie::NoAttributes(None), Lie::NoHandles(None)] {
        let (world, id, number) = world(lie.clone());
        assert_eq!(world.look(id, number, &["a", "b"]), "LOOKUP 2 READDIRPLUS 1", "{lie:?}");
        assert_eq!(world.look(id, number, &MISSING), "", "{lie:?}: all names are known");
        assert_eq!(world.look(id, number, &MORE), "LOOKUP 8 READDIRPLUS 1", "{lie:?}");
    }
}

#[test]
fn a_listing_without_the_directorys_attributes_proves_nothing() {
    let (world, id, number) = world(Lie::NoDirectoryAttributes);
    assert_eq!(world.look(id, number, &["a", "b"]), "LOOKUP 2 READDIRPLUS 1");
    assert_eq!(world.look(id, number, &MISSING), "LOOKUP 4");
    assert_eq!(world.look(id, number, &MORE), "LOOKUP 8");
    assert_eq!(world.counter(ClientCounter::DirFillComplete), 0);
    assert_eq!(world.counter(ClientCounter::DirFillWasted), 1);
}

#[test]
fn a_name_that_is_listed_twice_is_looked_up() {
    for at in [At::First, At::Last] {
        let (world, id, number) = world(Lie::Doubled("e", "f", at));
        assert_eq!(world.look(id, number, &["a", "b"]), "LOOKUP 1 READDIRPLUS 1", "{at:?}");
        assert_eq!(world.look(id, number, &["e"]), "LOOKUP 1", "{at:?}");
        assert_eq!(world.look(id, number, &NAMES), "", "{at:?}");
        assert_eq!(world.look(id, number, &MISSING), "", "{at:?}");
    }
}

#[test]
fn on_a_server_that_ignores_case_no_name_is_missing_because_it_is_not_listed() {
    let ignores = Pathconf { case_insensitive: true, ..Pathconf::default() };
    // Whether or not the server reports it: directories of one file system may differ.
    for (limits, missing) in [(ignores, "LOOKUP 4"), (Pathconf::default(), "")] {
        let world = World::with(Lie::IgnoresCase, options(), limits, two_directories);
        let (id, number) = directory(&world, "one");
        assert_eq!(world.look(id, number, &["a", "b"]), "LOOKUP 1 READDIRPLUS 1");
        assert_eq!(world.look(id, number, &MORE), "");
        for name in NAMES {
            let wanted = world.happens(|tree| tree.find(number, name.as_bytes()));
            assert_eq!(world.id(id, &name.to_uppercase()), wanted, "{name}");
        }
        assert_eq!(world.sent(), "LOOKUP 10");
        assert_eq!(world.look(id, number, &MISSING), missing);
    }
}

#[test]
fn the_objects_of_dot_and_dotdot_are_not_taken_from_a_listing() {
    let (world, id, number) = world(Lie::Dots("c"));
    assert_eq!(world.look(id, number, &["a", "b"]), "LOOKUP 1 READDIRPLUS 1");
    assert_eq!(world.id(id, "."), Some(number));
    assert_eq!(world.id(id, ".."), Some(ROOT));
    assert_eq!(world.look(id, number, &NAMES), "");
    assert_eq!(world.look(id, number, &MISSING), "");
}

#[test]
fn an_entry_with_another_fsid_is_never_cached_from_a_listing() {
    let (world, id, number) = world(Lie::None);
    let mounted = world.happens(|tree| {
        let mounted = tree.find(number, b"e").unwrap();
        tree.node(mounted).fsid = FSID + 1;
        mounted
    });
    assert_eq!(world.look(id, number, &["a", "b"]), "LOOKUP 1 READDIRPLUS 1");
    world.sent();
    assert!(world.lookup(id, "e").is_ok());
    assert_eq!(world.sent(), "LOOKUP 1", "{mounted}");
    assert_eq!(world.look(id, number, &MORE[..2]), "");
    assert_eq!(world.look(id, number, &MISSING), "", "its name is known");
}

#[test]
fn attributes_of_other_objects_are_not_used() {
    let (world, id, number) = world(Lie::OthersAttributes);
    assert_eq!(world.look(id, number, &["a", "b"]), "LOOKUP 2 READDIRPLUS 1");
    assert_eq!(world.look(id, number, &MISSING), "");
}

/// Looks up a hundred missing names.
fn look_for_missing(world: &World, id: InodeId, number: u64) -> String {
    let missing: Vec<String> = (0..100).map(|number| format!("missing{number}")).collect();
    let missing: Vec<&str> = missing.iter().map(String::as_str).collect();
    world.look(id, number, &missing)
}

#[test]
fn an_endless_listing_is_requested_less_and_less() {
    let (world, id, number) = world(Lie::Endless);
    assert_eq!(world.look(id, number, &["a", "b"]), "LOOKUP 1 READDIRPLUS 1");
    assert_eq!(world.look(id, number, &MORE), "");
    assert_eq!(look_for_missing(&world, id, number), "LOOKUP 100 READDIRPLUS 1");
    assert_eq!(world.counter(ClientCounter::DirFillComplete), 0);
}

#[test]
fn a_listing_without_an_end_is_requested_less_and_less() {
    let (world, id, number) = world(Lie::Mute);
    assert_eq!(world.look(id, number, &["a", "b"]), "LOOKUP 1 READDIRPLUS 1");
    assert_eq!(world.look(id, number, &MORE), "");
    // Twice each time, the second time in more bytes.
    assert_eq!(look_for_missing(&world, id, number), "LOOKUP 100 READDIRPLUS 6");
    assert_eq!(world.counter(ClientCounter::DirFillComplete), 0);
}

#[test]
fn a_reply_with_an_invalid_name_is_discarded() {
    for name in [&b"a/b"[..], b"/", b"", b"a\0b"] {
        let (world, id, number) = world(Lie::Name(name));
        assert_eq!(world.look(id, number, &["a", "b"]), "LOOKUP 2 READDIRPLUS 1", "{name:?}");
        assert_eq!(world.look(id, number, &MISSING), "LOOKUP 4 READDIRPLUS 1", "{name:?}");
        assert_eq!(world.counter(ClientCounter::DirFillComplete), 0);
    }
}

#[test]
fn a_pass_whose_cookie_is_refused_makes_nothing_complete() {
    let (world, id, number) = world(Lie::NewVerifiers);
    world.names_max(4);
    assert_eq!(world.look(id, number, &["a", "b"]), "LOOKUP 1 READDIRPLUS 1");
    assert_eq!(world.look(id, number, &["c", "d"]), "");
    assert_eq!(world.look(id, number, &["e", "f", "g", "h"]), "LOOKUP 4 READDIRPLUS 1");
    assert_eq!(world.look(id, number, &MISSING), "LOOKUP 4 READDIRPLUS 1");
    assert_eq!(world.counter(ClientCounter::DirFillComplete), 0);
}

#[test]
fn names_of_a_directory_without_read_permission_are_looked_up() {
    for status in [NfsStat3::Acces, NfsStat3::Perm, NfsStat3::Io] {
        let (world, id, number) = world(Lie::RefusesPlus(status));
        assert_eq!(world.look(id, number, &["a", "b"]), "LOOKUP 2 READDIRPLUS 1", "{status:?}");
        let sent = world.look(id, number, &MORE);
        assert!(sent.starts_with("LOOKUP 8"), "{status:?}: {sent}");
    }
}

#[test]
fn a_directory_that_is_removed_meanwhile_is_stale() {
    let (world, id, number) = world(Lie::None);
    assert_eq!(world.look(id, number, &["a"]), "LOOKUP 1");
    world.before_listing(0, move |tree| {
        tree.nodes.remove(&number);
    });
    assert_eq!(world.lookup(id, "b").map(|found| found.id), Err(Errno::STALE));
    assert_eq!(world.sent(), "LOOKUP 1 READDIRPLUS 1");
}

#[test]
fn names_that_servers_do_not_list_are_looked_up() {
    for hidden in [".snapshot", ".zfs", "~snapshot"] {
        let (world, id, number) = world(Lie::Unlisted(hidden));
        world.happens(|tree| {
            tree.file(number, hidden);
            let now = tree.now - std::time::Duration::from_secs(100);
            tree.node(number).changed = now;
        });
        assert_eq!(world.look(id, number, &["a", "b"]), "LOOKUP 1 READDIRPLUS 1");
        assert_eq!(world.look(id, number, &MISSING), "");
        assert_eq!(world.look(id, number, &[hidden]), "LOOKUP 1");
    }
}

#[test]
fn without_fills_each_name_is_looked_up() {
    use curt_policy::{CacheOptions, FillMode, LookupCache, ReaddirplusMode};
    let off = CacheOptions { fill: FillMode::Off, ..options() };
    let nordirplus = CacheOptions { plus: ReaddirplusMode::Never, ..options() };
    let none = CacheOptions { names: LookupCache::None, ..options() };
    for cache in [off, nordirplus, none] {
        let world = World::with(Lie::None, cache, Pathconf::default(), two_directories);
        let (id, number) = directory(&world, "one");
        assert_eq!(world.look(id, number, &NAMES), "LOOKUP 10");
        assert_eq!(world.look(id, number, &MISSING), "LOOKUP 4");
    }
    let positive = CacheOptions { names: LookupCache::Positive, ..options() };
    let world = World::with(Lie::None, positive, Pathconf::default(), two_directories);
    let (id, number) = directory(&world, "one");
    assert_eq!(world.look(id, number, &["a", "b"]), "LOOKUP 1 READDIRPLUS 1");
    assert_eq!(world.look(id, number, &MORE), "");
    assert!(world.look(id, number, &MISSING).starts_with("LOOKUP 4"), "missing names are not believed");
}
