//! After removals that overlap opens: last closes and their waiters, and opens that are retried.

use std::{sync::mpsc, thread, time::Duration};

use curt_client::{Caller, RenameMode, ops};
use curt_policy::CacheOptions;
use curt_proto::nfs3::NfsProcedure;
use curt_rpc::client::Interrupt;
use rustix::io::Errno;

use crate::{
    mutations::list,
    open_unlink::{HeldRequests, reading},
    world::{World, root},
};

// SEMANTICS: name-15.
#[test]
fn an_open_retried_by_a_kernel_after_a_replacement_is_not_refused_again() {
    let world = World::new();
    let held_requests = HeldRequests::of(&world, CacheOptions::default());
    let (mounted, top) = (&held_requests.mounted, held_requests.top());
    let client = &mounted.client;
    client.set_used_by_kernel();
    let me = Caller { pid: 7, ..root() };
    let file = mounted.put(&me, top, "f", 0o644, b"first");
    for (name, text) in [("second", &b"second"[..]), ("third", b"third"), ("fourth", b"fourth")] {
        mounted.put(&root(), top, name, 0o644, text);
    }
    mounted.cat(&me, file.id).unwrap();
    held_requests.hold(NfsProcedure::Rename);
    thread::scope(|scope| {
        let replacing = scope.spawn(|| held_requests.replace("second", "f"));
        held_requests.here.wait();
        let opening = scope.spawn(|| ops::open(&client.op(&me), file.id, reading()).map(drop));
        held_requests.go_on();
        assert_eq!(replacing.join().unwrap(), Ok(()));
        assert_eq!(opening.join().unwrap(), Err(Errno::STALE));
    });
    let found = mounted.lookup(&me, top, "f").unwrap();
    held_requests.replace("third", "f").unwrap();
    assert_eq!(mounted.cat(&me, found.id).as_deref(), Ok(&b"second"[..]));
    assert_eq!(list(mounted, top), ["f", "fourth"], "the last close removes it");
    let found = mounted.lookup(&me, top, "f").unwrap();
    held_requests.replace("fourth", "f").unwrap();
    let late = ops::open(&client.op(&me), found.id, reading()).map(drop);
    assert_eq!(late, Err(Errno::STALE), "nobody had turned it away before");
    mounted.lookup(&me, top, "f").unwrap();
    ops::unlink(&client.op(&root()), top, b"f").unwrap();
    assert_eq!(list(mounted, top).len(), 1, "it is held for who comes back");
    world.seconds(60);
    mounted.put(&root(), top, "other", 0o644, b"");
    mounted.lookup(&root(), top, "other").unwrap();
    assert_eq!(list(mounted, top), ["other"], "who does not come back is not waited for");
}

// SEMANTICS: posix-10.
#[test]
fn the_last_close_of_a_removed_file_invalidates_the_kernels_attributes() {
    let world = World::new();
    let mounted = world.mount(CacheOptions::default());
    let (client, me) = (&mounted.client, root());
    let directory = ops::mkdir(&client.op(&me), client.root(), b"d", 0o777).unwrap();
    let file = mounted.put(&me, directory.id, "f", 0o644, b"here");
    ops::link(&client.op(&me), file.id, client.root(), b"other").unwrap();
    let opened = ops::open(&client.op(&me), file.id, reading()).unwrap();
    ops::unlink(&client.op(&me), directory.id, b"f").unwrap();
    assert!(mounted.told.attributes.lock().is_empty(), "the kernel knows");
    ops::close(&client.op(&me), &opened.file).unwrap();
    assert_eq!(*mounted.told.attributes.lock(), [directory.id, file.id]);
    let opened = ops::open(&client.op(&me), file.id, reading()).unwrap();
    ops::close(&client.op(&me), &opened.file).unwrap();
    assert_eq!(mounted.told.attributes.lock().len(), 2, "nothing was changed");
}

/// A way to remove a directory.
type Way<'a> = &'a (dyn Fn(&Caller) -> Result<(), Errno> + Sync);

// SEMANTICS: name-13.
#[test]
fn removing_or_replacing_a_directory_waits_only_for_the_last_closes_in_it() {
    let world = World::new();
    let held_requests = HeldRequests::of(&world, CacheOptions::default());
    let (mounted, top) = (&held_requests.mounted, held_requests.top());
    let client = &mounted.client;
    let remove = |me: &Caller| ops::rmdir(&client.op(me), top, b"d");
    let replace = |me: &Caller| ops::rename(&client.op(me), top, b"empty", top, b"d", RenameMode::Replace);
    let ways: [Way<'_>; 2] = [&remove, &replace];
    for way in ways {
        let directory = ops::mkdir(&client.op(&root()), top, b"d", 0o755).unwrap();
        ops::mkdir(&client.op(&root()), top, b"other", 0o755).unwrap();
        let _ = ops::mkdir(&client.op(&root()), top, b"empty", 0o755);
        let file = mounted.put(&root(), directory.id, "f", 0o644, b"here");
        let opened = ops::open(&client.op(&root()), file.id, reading()).unwrap();
        ops::unlink(&client.op(&root()), directory.id, b"f").unwrap();
        assert_eq!(way(&root()), Err(Errno::NOTEMPTY), "it is open still");
        held_requests.hold(NfsProcedure::Remove);
        thread::scope(|scope| {
            scope.spawn(|| ops::release(client, &opened.file));
            held_requests.here.wait();
            let (tell, told) = mpsc::channel();
            scope.spawn(move || tell.send(way(&root())));
            let called_off = Caller { interrupt: Interrupt::new(), ..root() };
            called_off.interrupt.raise();
            let hurried = way(&called_off);
            let other = ops::rmdir(&client.op(&root()), top, b"other");
            let early = told.recv_timeout(Duration::from_millis(100));
            held_requests.go_on();
            assert!(early.is_err(), "it waits for the close's end: {early:?}");
            assert_eq!((hurried, other), (Err(Errno::INTR), Ok(())));
            assert_eq!(told.recv().unwrap(), Ok(()));
        });
    }
    assert_eq!(list(mounted, top), ["d"]);
}
