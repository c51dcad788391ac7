//! Access: ACCESS results, mode bits, and what mode bits must not decide.

use std::{
    sync::{Arc, Barrier},
    thread,
    time::Duration,
};

use curt_client::{Caller, ClientOptions, InodeId, OpenFlags, ops};
use curt_observe::ClientCounter;
use curt_policy::{AccessMode, CacheOptions};
use curt_proto::nfs3::NfsProcedure;
use curt_types::SetAttributes;
use rustix::io::Errno;

use crate::{
    failures::{Kind, Trouble},
    world::{BenchMount, World, root, user},
};

fn by_bits() -> CacheOptions {
    CacheOptions { access: AccessMode::ModeBits, ..CacheOptions::default() }
}

fn mode(mode: u32) -> SetAttributes {
    SetAttributes { mode: Some(mode), ..SetAttributes::default() }
}

// SEMANTICS: perm-2.
#[test]
fn each_credential_takes_one_access_per_attribute_lifetime() {
    let world = World::new();
    let mounted = world.mount(CacheOptions::default());
    let file = mounted.put(&root(), mounted.client.root(), "f", 0o640, b"x");
    let set = SetAttributes { uid: Some(1), gid: Some(50), ..SetAttributes::default() };
    ops::setattr(&mounted.client.op(&root()), file.id, &set).unwrap();
    mounted.sent();
    let may_read = |caller: &Caller| ops::access(&mounted.client.op(caller), file.id, 4);
    assert_eq!(may_read(&user(1)), Ok(()));
    assert_eq!(mounted.sent(), "ACCESS 1");
    assert_eq!(may_read(&user(1)), Ok(()));
    assert_eq!(mounted.sent(), "", "one answer fills all masks");
    assert_eq!(ops::access(&mounted.client.op(&user(1)), file.id, 2), Ok(()));
    assert_eq!(ops::access(&mounted.client.op(&user(1)), file.id, 1), Err(Errno::ACCESS));
    assert_eq!(mounted.sent(), "", "nor is a young denial asked again");
    assert_eq!(may_read(&user(2)), Err(Errno::ACCESS));
    assert_eq!(may_read(&Caller::new(2, 2, &[50])), Ok(()), "groups are part of the credential");
    assert_eq!(mounted.sent(), "ACCESS 2");
    assert_eq!(ops::access(&mounted.client.op(&user(3)), file.id, 0), Ok(()));
    assert_eq!(mounted.sent(), "", "F_OK asks nothing");
}

#[test]
fn a_new_mode_invalidates_the_results_of_all_callers() {
    let world = World::new();
    let (one, two) = (world.mount(CacheOptions::default()), world.mount(CacheOptions::default()));
    let file = one.put(&root(), one.client.root(), "f", 0o644, b"x");
    let may_read = |uid| ops::access(&one.client.op(&user(uid)), file.id, 4);
    assert_eq!([1, 2].map(may_read), [Ok(()), Ok(())]);
    let found = two.lookup(&root(), two.client.root(), "f").unwrap();
    ops::setattr(&two.client.op(&root()), found.id, &mode(0o600)).unwrap();
    world.seconds(61);
    assert_eq!([1, 2].map(may_read), [Err(Errno::ACCESS), Err(Errno::ACCESS)]);
}

/// The reply to a request of one procedure by user 7 is overtaken by a new mode of the directory
/// "d": returns what user 7 can do with "d/f", whose name is cached, after both replies.
fn overtaken_by_new_mode(
    (before, after): (u32, u32),
    procedure: NfsProcedure,
    request: impl FnOnce(&BenchMount, InodeId) + Send,
) -> Result<(), Errno> {
    let world = World::new();
    let other = world.mount(CacheOptions::default());
    let directory = ops::mkdir(&other.client.op(&root()), other.client.root(), b"d", before).unwrap().id;
    other.put(&root(), directory, "f", 0o644, b"x");
    let trouble = Trouble::before(world.way());
    let mounted = world.mount_over(ClientOptions::default(), trouble.clone());
    let found = mounted.lookup(&root(), mounted.client.root(), "d").unwrap().id;
    mounted.lookup(&root(), found, "f").unwrap();
    let (executed, overtaken) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    trouble.plan(procedure, Kind::MeetAfter(Arc::clone(&executed), Arc::clone(&overtaken)));
    thread::scope(|scope| {
        scope.spawn(|| request(&mounted, found));
        executed.wait();
        world.seconds(1);
        ops::setattr(&other.client.op(&root()), directory, &mode(after)).unwrap();
        world.seconds(61);
        let seen = ops::getattr(&mounted.client.op(&root()), found).unwrap();
        assert_eq!(seen.attributes.mode & 0o777, after);
        overtaken.wait();
    });
    mounted.lookup(&user(7), found, "f").map(drop)
}

#[test]
fn rights_of_before_a_new_mode_do_not_replace_those_after_it() {
    let ask = |mounted: &BenchMount, directory| {
        let _ = ops::access(&mounted.client.op(&user(7)), directory, 1);
    };
    assert_eq!(overtaken_by_new_mode((0o755, 0o700), NfsProcedure::Access, ask), Err(Errno::ACCESS));
    assert_eq!(overtaken_by_new_mode((0o700, 0o701), NfsProcedure::Access, ask), Ok(()));
    // A LOOKUP of a missing name shows the right to search, or that there is none.
    let find = |mounted: &BenchMount, directory| {
        let _ = mounted.lookup(&user(7), directory, "missing");
    };
    assert_eq!(overtaken_by_new_mode((0o755, 0o700), NfsProcedure::Lookup, find), Err(Errno::ACCESS));
    assert_eq!(overtaken_by_new_mode((0o700, 0o701), NfsProcedure::Lookup, find), Ok(()));
}

// SEMANTICS: perm-4.
#[test]
fn a_cached_denial_is_confirmed_once_a_second_and_can_be_overturned() {
    let world = World::new();
    let (one, two) = (world.mount(CacheOptions::default()), world.mount(CacheOptions::default()));
    let me = user(7);
    let file = one.put(&root(), one.client.root(), "f", 0o600, b"x");
    assert_eq!(ops::access(&one.client.op(&me), file.id, 4), Err(Errno::ACCESS));
    one.sent();
    for _ in 0..5 {
        assert_eq!(ops::access(&one.client.op(&me), file.id, 4), Err(Errno::ACCESS));
    }
    assert_eq!(one.sent(), "");
    world.pass(Duration::from_millis(1100));
    assert_eq!(ops::access(&one.client.op(&me), file.id, 4), Err(Errno::ACCESS));
    assert_eq!(one.sent(), "ACCESS 1");
    assert_eq!(one.counter(ClientCounter::AccessDenyConfirmed), 1);
    let found = two.lookup(&root(), two.client.root(), "f").unwrap();
    ops::setattr(&two.client.op(&root()), found.id, &mode(0o644)).unwrap();
    world.pass(Duration::from_millis(1100));
    assert_eq!(ops::access(&one.client.op(&me), file.id, 4), Ok(()), "a denial is never the last word");
    assert_eq!(one.counter(ClientCounter::AccessDenyOverturned), 1);
}

// SEMANTICS: perm-5.
#[test]
fn noaccesscheck_sends_access_only_to_confirm_denials() {
    let world = World::new();
    let mounted = world.mount(by_bits());
    let me = user(1000);
    let top = mounted.client.root();
    let open = mounted.put(&me, top, "open", 0o644, b"x");
    let closed = mounted.put(&root(), top, "closed", 0o600, b"x");
    world.seconds(1);
    mounted.cat(&me, open.id).unwrap();
    let sent = mounted.sent();
    assert!(!sent.contains("ACCESS"), "{sent}");
    assert!(mounted.counter(ClientCounter::AccessLocalAllow) > 0);
    assert_eq!(mounted.cat(&me, closed.id), Err(Errno::ACCESS));
    assert_eq!(mounted.sent(), "ACCESS 1", "a denial by mode bits is confirmed");
    assert_eq!(mounted.counter(ClientCounter::AccessLocalDeny), 1);
    assert_eq!(mounted.counter(ClientCounter::AccessDenyConfirmed), 1);
    assert_eq!(mounted.cat(&me, closed.id), Err(Errno::ACCESS));
    assert!(!mounted.sent().contains("ACCESS"), "once a second is enough");
    assert_eq!(ops::access(&mounted.client.op(&root()), closed.id, 4), Ok(()));
    assert_eq!(mounted.sent(), "ACCESS 1", "uid 0 is never judged by mode bits");
}

// SEMANTICS: perm-5.
#[test]
fn data_fetched_with_another_credential_take_one_access() {
    let world = World::new();
    let mounted = world.mount(by_bits());
    let file = mounted.put(&root(), mounted.client.root(), "f", 0o644, b"x");
    world.seconds(4);
    mounted.teach_time(&world);
    mounted.cat(&user(1), file.id).unwrap();
    mounted.sent();
    mounted.cat(&user(1), file.id).unwrap();
    assert_eq!(mounted.sent(), "GETATTR 1");
    mounted.cat(&user(2), file.id).unwrap();
    assert_eq!(mounted.sent(), "ACCESS 1", "mode bits may not open what another one fetched");
    assert_eq!(mounted.counter(ClientCounter::AccessDataCheck), 2, "user 1 read what root had written");
    mounted.cat(&user(2), file.id).unwrap();
    assert_eq!(mounted.sent(), "GETATTR 1", "once");
}

// SEMANTICS: perm-9.
#[test]
fn execve_needs_to_execute_and_not_to_read() {
    let world = World::new();
    for cache in [CacheOptions::default(), by_bits()] {
        let mounted = world.mount(cache);
        let top = mounted.client.root();
        let name = format!("{:?}", cache.access);
        let tool = mounted.put(&root(), top, &format!("tool{name}"), 0o711, b"#!");
        let text = mounted.put(&root(), top, &format!("text{name}"), 0o644, b"hi");
        let run = |id| {
            let flags = OpenFlags { execute: true, ..OpenFlags::reading() };
            ops::open(&mounted.client.op(&user(5)), id, flags)
                .map(|opened| ops::release(&mounted.client, &opened.file))
        };
        assert_eq!(run(tool.id), Ok(()));
        assert_eq!(run(text.id), Err(Errno::ACCESS));
        assert_eq!(mounted.cat(&user(5), tool.id), Err(Errno::ACCESS));
        assert_eq!(mounted.cat(&user(5), text.id).unwrap(), b"hi");
    }
}

// SEMANTICS: perm-7.
#[test]
fn cached_names_are_not_served_without_search_permission() {
    let world = World::new();
    for cache in [CacheOptions::default(), by_bits()] {
        let mounted = world.mount(cache);
        let name = format!("private{:?}", cache.access);
        let private =
            ops::mkdir(&mounted.client.op(&user(1)), mounted.client.root(), name.as_bytes(), 0o700).unwrap();
        mounted.put(&user(1), private.id, "secret", 0o644, b"x");
        assert!(mounted.lookup(&user(1), private.id, "secret").is_ok());
        assert_eq!(mounted.lookup(&user(2), private.id, "secret").map(|_| ()), Err(Errno::ACCESS));
        assert_eq!(mounted.lookup(&user(2), private.id, "missing").map(|_| ()), Err(Errno::ACCESS));
        assert!(ops::opendir(&mounted.client.op(&user(2)), private.id).is_err());
    }
}

#[test]
fn a_grant_by_the_server_that_mode_bits_deny_ends_their_use() {
    // A server that squashes no user lets the owner read whatever the mode is; here the owner has
    // no permission bits.
    let world = World::new();
    let mounted = world.mount(by_bits());
    let me = user(9);
    let file = mounted.put(&me, mounted.client.root(), "f", 0o044, b"x");
    mounted.sent();
    let before = ops::access(&mounted.client.op(&me), file.id, 4);
    let asked = mounted.sent();
    assert!(asked.contains("ACCESS 1"), "{asked}");
    assert_eq!(before, Err(Errno::ACCESS), "the server judges as the bits do");
    ops::setattr(&mounted.client.op(&me), file.id, &mode(0o644)).unwrap();
    assert_eq!(ops::access(&mounted.client.op(&me), file.id, 4), Ok(()), "a new mode is judged anew");
}

#[test]
fn a_chmod_invalidates_names_exactly_when_a_user_loses_search_permission() {
    let world = World::new();
    let mounted = world.mount(by_bits());
    let other = world.mount(by_bits());
    let made = ops::mkdir(&mounted.client.op(&root()), mounted.client.root(), b"d", 0o777);
    let directory = made.unwrap().id;
    let seen = other.lookup(&root(), other.client.root(), "d").unwrap().id;
    for (bits, is_taken_back) in
        [(0o755, false), (0o711, false), (0o701, true), (0o700, false), (0o711, false)]
    {
        mounted.told.contents.lock().clear();
        other.told.contents.lock().clear();
        ops::setattr(&mounted.client.op(&root()), directory, &mode(bits)).unwrap();
        assert_eq!(mounted.told.contents.lock().contains(&directory), is_taken_back, "{bits:o}");
        // A client that finds a change by another client cannot tell what changed, so it always
        // invalidates the names.
        world.seconds(600);
        ops::getattr(&other.client.op(&root()), seen).unwrap();
        assert!(other.told.contents.lock().contains(&seen), "{bits:o}, found");
    }
}
