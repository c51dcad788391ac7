//! Opens that overlap removals of this client: in either order, an open file can be read.

use std::{
    sync::{
        Arc, Barrier,
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::Duration,
};

use curt_client::{Caller, ClientOptions, InodeId, OpenFlags, RenameMode, ops};
use curt_observe::ClientCounter;
use curt_policy::{CacheOptions, FillMode};
use curt_proto::nfs3::NfsProcedure;
use curt_rpc::client::{CallError, CallReply, Interrupt, RpcRequest, Transport};
use rustix::io::Errno;

use crate::{
    failures::{Kind, Trouble},
    mutations::list,
    world::{BenchMount, World, root, user},
};

/// Nothing of the file is cached: a read sends a request.
pub(crate) fn reading() -> OpenFlags {
    OpenFlags { direct: true, ..OpenFlags::reading() }
}

/// A mount on which the next request of one procedure can be delayed.
pub(crate) struct HeldRequests {
    pub(crate) mounted: BenchMount,
    trouble: Arc<Trouble>,
    pub(crate) here: Arc<Barrier>,
    there: Arc<Barrier>,
}

impl HeldRequests {
    pub(crate) fn of(world: &World, cache: CacheOptions) -> Self {
        let trouble = Trouble::before(world.way());
        let behaviour = ClientOptions { cache, ..ClientOptions::default() };
        Self {
            mounted: world.mount_over(behaviour, trouble.clone()),
            trouble,
            here: Arc::new(Barrier::new(2)),
            there: Arc::new(Barrier::new(2)),
        }
    }

    /// The next such request is not sent until [`Self::go_on`].
    pub(crate) fn hold(&self, procedure: NfsProcedure) {
        let kind = Kind::Meet(self.here.clone(), self.there.clone());
        self.trouble.plan(procedure, kind);
    }

    /// The reply to the next such request is delayed until [`Self::go_on`].
    fn hold_reply(&self, procedure: NfsProcedure) {
        let kind = Kind::MeetAfter(self.here.clone(), self.there.clone());
        self.trouble.plan(procedure, kind);
    }

    pub(crate) fn go_on(&self) {
        self.there.wait();
    }

    pub(crate) fn top(&self) -> InodeId {
        self.mounted.client.root()
    }

    pub(crate) fn replace(&self, from: &str, to: &str) -> Result<(), Errno> {
        let top = self.top();
        ops::rename(
            &self.mounted.client.op(&root()),
            top,
            from.as_bytes(),
            top,
            to.as_bytes(),
            RenameMode::Replace,
        )
    }
}

/// Opens a file, and delays the reply that grants the open until `remove` is done. Returns the
/// contents read then.
fn remove_while_opening(
    held_requests: &HeldRequests,
    file: InodeId,
    remove: impl FnOnce(),
) -> Result<Vec<u8>, Errno> {
    let client = &held_requests.mounted.client;
    // From now on the rights of the caller are cached.
    held_requests.mounted.cat(&root(), file).unwrap();
    held_requests.hold_reply(NfsProcedure::Getattr);
    thread::scope(|scope| {
        let opener = scope.spawn(|| {
            let opened = ops::open(&client.op(&root()), file, reading())?;
            let read = ops::read(&client.op(&root()), &opened.file, 0, 100).map(|read| read.to_vec());
            ops::release(client, &opened.file);
            read
        });
        held_requests.here.wait();
        remove();
        held_requests.go_on();
        opener.join().unwrap()
    })
}

/// A change of a name.
type Change<'a> = &'a (dyn Fn(&str) -> Result<(), Errno> + Sync);

// SEMANTICS: name-14.
#[test]
fn a_file_that_is_removed_while_it_is_being_opened_lives_until_its_last_close() {
    let world = World::new();
    let held_requests = HeldRequests::of(&world, CacheOptions::default());
    let (mounted, top) = (&held_requests.mounted, held_requests.top());
    let file = mounted.put(&root(), top, "f", 0o644, b"here");
    let read = remove_while_opening(&held_requests, file.id, || {
        ops::unlink(&mounted.client.op(&root()), top, b"f").unwrap();
    });
    assert_eq!(read.as_deref(), Ok(&b"here"[..]));
    assert_eq!(mounted.counter(ClientCounter::SillyRename), 1);
    assert!(list(mounted, top).is_empty(), "the last close removes it");
}

#[test]
fn a_file_that_is_replaced_while_it_is_being_opened_lives_until_its_last_close() {
    let world = World::new();
    let held_requests = HeldRequests::of(&world, CacheOptions::default());
    let (mounted, top) = (&held_requests.mounted, held_requests.top());
    let file = mounted.put(&root(), top, "f", 0o644, b"old");
    mounted.put(&root(), top, "g", 0o644, b"new");
    let read = remove_while_opening(&held_requests, file.id, || held_requests.replace("g", "f").unwrap());
    assert_eq!(read.as_deref(), Ok(&b"old"[..]));
    assert_eq!(list(mounted, top), ["f"]);
}

#[test]
fn a_file_whose_open_is_refused_after_it_was_removed_leaves_no_name() {
    let world = World::new();
    let held_requests = HeldRequests::of(&world, CacheOptions::default());
    let (mounted, top) = (&held_requests.mounted, held_requests.top());
    let file = mounted.put(&root(), top, "f", 0o600, b"secret");
    held_requests.hold_reply(NfsProcedure::Access);
    thread::scope(|scope| {
        let opener =
            scope.spawn(|| ops::open(&mounted.client.op(&user(1000)), file.id, reading()).map(|_| ()));
        held_requests.here.wait();
        let removed = ops::unlink(&mounted.client.op(&root()), top, b"f");
        held_requests.go_on();
        assert_eq!((removed, opener.join().unwrap()), (Ok(()), Err(Errno::ACCESS)));
    });
    assert_eq!(mounted.counter(ClientCounter::SillyRename), 1);
    assert!(list(mounted, top).is_empty());
    assert_eq!(mounted.counter(ClientCounter::SillyRemove), 1);
}

/// Delays the removal that `remove` requests, and opens the file meanwhile. The open waits, can be
/// interrupted, and then fails because the file is removed.
fn open_while_removing(
    held_requests: &HeldRequests,
    file: InodeId,
    procedure: NfsProcedure,
    remove: impl FnOnce() + Send,
) {
    let client = &held_requests.mounted.client;
    held_requests.mounted.cat(&root(), file).unwrap();
    held_requests.hold(procedure);
    thread::scope(|scope| {
        let remover = scope.spawn(remove);
        held_requests.here.wait();
        let (tell, told) = mpsc::channel();
        let called_off = Caller { interrupt: Interrupt::new(), ..root() };
        let impatient = called_off.clone();
        let hurried = scope.spawn(move || ops::open(&client.op(&impatient), file, reading()).map(|_| ()));
        scope.spawn(move || tell.send(ops::open(&client.op(&root()), file, reading()).map(|_| ())));
        let early = told.recv_timeout(Duration::from_millis(100));
        called_off.interrupt.raise();
        let hurried = hurried.join().unwrap();
        held_requests.go_on();
        remover.join().unwrap();
        assert!(early.is_err(), "it waits for the removal's end: {early:?}");
        assert_eq!(hurried, Err(Errno::INTR));
        assert_eq!(told.recv().unwrap(), Err(Errno::STALE));
    });
}

// SEMANTICS: name-14.
#[test]
fn an_open_during_a_removal_waits_for_its_end() {
    let world = World::new();
    for cache in [CacheOptions::default(), CacheOptions { close_to_open: false, ..CacheOptions::default() }] {
        let held_requests = HeldRequests::of(&world, cache);
        let (mounted, top) = (&held_requests.mounted, held_requests.top());
        let file = mounted.put(&root(), top, "f", 0o644, b"here");
        open_while_removing(&held_requests, file.id, NfsProcedure::Remove, || {
            ops::unlink(&mounted.client.op(&root()), top, b"f").unwrap();
        });
        assert_eq!(mounted.counter(ClientCounter::SillyRename), 0);
    }
}

// SEMANTICS: name-14.
#[test]
fn an_open_during_a_replacement_waits_for_its_end() {
    let world = World::new();
    let held_requests = HeldRequests::of(&world, CacheOptions::default());
    let (mounted, top) = (&held_requests.mounted, held_requests.top());
    let file = mounted.put(&root(), top, "f", 0o644, b"old");
    mounted.put(&root(), top, "g", 0o644, b"new");
    open_while_removing(&held_requests, file.id, NfsProcedure::Rename, || {
        held_requests.replace("g", "f").unwrap();
    });
    assert_eq!(list(mounted, top), ["f"]);
}

#[test]
fn an_open_during_the_removal_of_an_uncached_name_waits_for_its_end() {
    let world = World::new();
    let held_requests = HeldRequests::of(&world, CacheOptions::default());
    let other = world.mount(CacheOptions::default());
    let (mounted, top) = (&held_requests.mounted, held_requests.top());
    let file = mounted.put(&root(), top, "f", 0o644, b"here");
    let there = other.client.root();
    let moved = ops::rename(&other.client.op(&root()), there, b"f", there, b"g", RenameMode::Replace);
    moved.unwrap();
    open_while_removing(&held_requests, file.id, NfsProcedure::Remove, || {
        ops::unlink(&mounted.client.op(&root()), top, b"g").unwrap();
    });
}

// SEMANTICS: name-14.
#[test]
fn opens_of_other_files_do_not_wait_for_a_removal_that_the_server_holds_up() {
    let world = World::new();
    // A cached name may be opened without a request; another one is looked up individually.
    let held_requests = HeldRequests::of(
        &world,
        CacheOptions { close_to_open: false, fill: FillMode::Off, ..CacheOptions::default() },
    );
    let other = world.mount(CacheOptions::default());
    let (mounted, top) = (&held_requests.mounted, held_requests.top());
    let below = ops::mkdir(&mounted.client.op(&root()), top, b"d", 0o755).unwrap();
    let known = [
        mounted.put(&root(), top, "near", 0o644, b"near"),
        mounted.put(&root(), below.id, "far", 0o644, b"far"),
    ];
    for file in &known {
        mounted.cat(&root(), file.id).unwrap();
    }
    let open_all = || -> Result<(), Errno> {
        for file in &known {
            let opened = ops::open(&mounted.client.op(&root()), file.id, OpenFlags::reading())?;
            ops::release(&mounted.client, &opened.file);
        }
        Ok(())
    };
    let remove = |name: &str| ops::unlink(&mounted.client.op(&root()), top, name.as_bytes());
    let replace = |name: &str| held_requests.replace("new", name);
    let changes: [(Change<'_>, NfsProcedure); 2] =
        [(&remove, NfsProcedure::Remove), (&replace, NfsProcedure::Rename)];
    for (change, last) in changes {
        for held in [last, NfsProcedure::Lookup] {
            // This name is not cached.
            let name = format!("{last:?} {held:?}");
            other.put(&root(), other.client.root(), &name, 0o644, b"here");
            mounted.put(&root(), top, "new", 0o644, b"new");
            for file in &known {
                mounted.cat(&root(), file.id).unwrap();
            }
            held_requests.hold(held);
            thread::scope(|scope| {
                let changer = scope.spawn(|| change(&name));
                held_requests.here.wait();
                mounted.sent();
                let (tell, told) = mpsc::channel();
                scope.spawn(move || tell.send(open_all()));
                let opened = told.recv_timeout(Duration::from_secs(60));
                let sent = mounted.sent();
                held_requests.go_on();
                assert_eq!(changer.join().unwrap(), Ok(()));
                assert_eq!(opened, Ok(Ok(())), "opens wait while {held:?} does");
                assert_eq!(sent, "", "nothing has to be asked");
            });
        }
    }
}

#[test]
fn an_open_during_the_removal_at_the_last_close_waits_for_its_end() {
    let world = World::new();
    let held_requests = HeldRequests::of(&world, CacheOptions::default());
    let (mounted, top) = (&held_requests.mounted, held_requests.top());
    let file = mounted.put(&root(), top, "f", 0o644, b"here");
    let opened = ops::open(&mounted.client.op(&root()), file.id, reading()).unwrap();
    ops::unlink(&mounted.client.op(&root()), top, b"f").unwrap();
    open_while_removing(&held_requests, file.id, NfsProcedure::Remove, || {
        ops::release(&mounted.client, &opened.file);
    });
    assert!(list(mounted, top).is_empty());
}

#[test]
fn an_open_during_a_failed_removal_succeeds() {
    let world = World::new();
    let held_requests = HeldRequests::of(&world, CacheOptions::default());
    let (mounted, top) = (&held_requests.mounted, held_requests.top());
    let directory = ops::mkdir(&mounted.client.op(&root()), top, b"d", 0o755).unwrap();
    let file = mounted.put(&root(), directory.id, "f", 0o644, b"here");
    held_requests.hold(NfsProcedure::Remove);
    thread::scope(|scope| {
        let remover = scope.spawn(|| ops::unlink(&mounted.client.op(&user(1000)), directory.id, b"f"));
        held_requests.here.wait();
        let reader = scope.spawn(|| mounted.cat(&root(), file.id));
        held_requests.go_on();
        assert_eq!(remover.join().unwrap(), Err(Errno::ACCESS));
        assert_eq!(reader.join().unwrap().as_deref(), Ok(&b"here"[..]));
    });
}

/// Signals that a writer has ended, also after a panic, to threads that run as long as there are
/// writers.
struct Leaving<'a>(&'a AtomicUsize);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Yields to other threads before and after each request.
struct Yielding(Arc<dyn Transport>);

impl Transport for Yielding {
    fn call(&self, request: &RpcRequest<'_>, interrupt: &Interrupt) -> Result<CallReply, CallError> {
        thread::yield_now();
        let reply = self.0.call(request, interrupt);
        thread::yield_now();
        reply
    }
}

/// Looks the name up and reads its file. Returns whether there was one. Names and handles may be
/// stale by the time they are used, as long as an open was not granted.
fn read_once(mounted: &BenchMount, top: InodeId) -> bool {
    let me = root();
    let found = match mounted.lookup(&me, top, "n") {
        Ok(found) => found,
        Err(Errno::NOENT | Errno::STALE) => return false,
        Err(error) => panic!("a look-up failed: {error}"),
    };
    let opened = ops::open(&mounted.client.op(&me), found.id, reading());
    let is_there = match opened {
        Ok(opened) => {
            let read = ops::read(&mounted.client.op(&me), &opened.file, 0, 100);
            ops::release(&mounted.client, &opened.file);
            assert_eq!(read.map(|read| read.to_vec()).as_deref(), Ok(&b"text"[..]), "an open was granted");
            true
        }
        Err(Errno::STALE) => false,
        Err(error) => panic!("an open failed: {error}"),
    };
    mounted.client.forget(found.id, 1);
    is_there
}

// SEMANTICS: name-14.
#[test]
fn an_open_file_can_be_read_during_concurrent_replaces_and_removes() {
    const WRITERS: usize = 2;
    /// At least; more if no open has met a removal by then, as on a busy machine.
    const ROUNDS: usize = 1000;
    const ROUNDS_MAX: usize = 100 * ROUNDS;
    let world = World::new();
    let mounted = world.mount_over(ClientOptions::default(), Arc::new(Yielding(world.way())));
    let (me, top) = (root(), mounted.client.root());
    let (reads, writers) = (AtomicUsize::new(0), AtomicUsize::new(WRITERS));
    let goes_on = || writers.load(Relaxed) > 0;
    let has_met = || reads.load(Relaxed) > 0 && mounted.counter(ClientCounter::SillyRename) > 0;
    thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (mounted, me, writers, has_met) = (&mounted, &me, &writers, &has_met);
            scope.spawn(move || {
                let _leaving = Leaving(writers);
                let new = format!("new{writer}");
                for _ in (0..ROUNDS_MAX).take_while(|round| *round < ROUNDS || !has_met()) {
                    let made = mounted.put(me, top, &new, 0o644, b"text");
                    let me = &mounted.client.op(me);
                    ops::rename(me, top, new.as_bytes(), top, b"n", RenameMode::Replace).unwrap();
                    mounted.client.forget(made.id, 1);
                }
            });
        }
        scope.spawn(|| {
            while goes_on() {
                match ops::unlink(&mounted.client.op(&me), top, b"n") {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(error) => panic!("a removal failed: {error}"),
                }
            }
        });
        for _ in 0..3 {
            scope.spawn(|| {
                while goes_on() {
                    reads.fetch_add(usize::from(read_once(&mounted, top)), Relaxed);
                    thread::yield_now();
                }
            });
        }
    });
    assert!(reads.load(Relaxed) > 0, "none was read");
    assert!(mounted.counter(ClientCounter::SillyRename) > 0, "no open met a removal");
    let left = list(&mounted, top);
    assert!(left.iter().all(|name| name == "n"), "{left:?}");
}
