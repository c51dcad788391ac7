//! A server without a duplicate request cache that executes a change, loses its connection before
//! the reply, and receives the retransmission.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use curt_client::{Caller, ClientOptions, OpenFlags, RenameMode, ops};
use curt_proto::nfs3::NfsProcedure;
use curt_rpc::client::{CallError, CallReply, CallStatistics, Interrupt, RpcRequest, Transport};
use curt_types::{Device, FileKind};
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::world::{BenchMount, REQUEST, Scripted, World, root, user};

/// The action of another client while the connection is lost.
type Meanwhile = Box<dyn FnOnce() + Send>;

/// The fate of the next call of a procedure.
enum Plan {
    /// The call is executed, and so is its retransmission.
    Twice,
    /// The first transmission is lost before the server; meanwhile another client acts.
    LostOnTheWay(Meanwhile),
}

/// Retransmits the planned call after an outage.
struct Repeating {
    next: Arc<dyn Transport>,
    clock: Arc<Scripted>,
    plan: Mutex<Option<(u32, Plan)>>,
    /// Whether the outage is a restart of the server.
    restarts: AtomicBool,
}

impl Repeating {
    fn plan(&self, procedure: NfsProcedure, plan: Plan) {
        *self.plan.lock() = Some((procedure.number(), plan));
    }
}

impl Transport for Repeating {
    fn call(&self, request: &RpcRequest<'_>, interrupt: &Interrupt) -> Result<CallReply, CallError> {
        self.next.call(request, interrupt)
    }

    fn call_with_statistics(
        &self,
        request: &RpcRequest<'_>,
        interrupt: &Interrupt,
        statistics: &mut CallStatistics,
    ) -> Result<CallReply, CallError> {
        let planned = self.plan.lock().take_if(|(procedure, _)| *procedure == request.procedure);
        statistics.transmissions = 1;
        if let Some((_, plan)) = planned {
            statistics.transmissions = 2;
            statistics.lost = Some(REQUEST);
            statistics.restarted = self.restarts.load(Relaxed);
            match plan {
                Plan::Twice => drop(self.next.call(request, interrupt)?),
                Plan::LostOnTheWay(meanwhile) => {
                    self.clock.pass(Duration::from_millis(100));
                    meanwhile();
                }
            }
            self.clock.pass(Duration::from_secs(5));
        }
        self.next.call(request, interrupt)
    }
}

struct Bed {
    mounted: Arc<BenchMount>,
    repeating: Arc<Repeating>,
    other: Arc<BenchMount>,
    world: World,
}

impl Bed {
    fn new() -> Self {
        let world = World::new();
        let repeating = Arc::new(Repeating {
            next: world.way(),
            clock: Arc::clone(&world.clock),
            plan: Mutex::default(),
            restarts: AtomicBool::new(true),
        });
        let mounted = Arc::new(world.mount_over(ClientOptions::default(), repeating.clone()));
        let other = Arc::new(world.mount_with(ClientOptions::default()));
        mounted.teach_time(&world);
        Self { mounted, repeating, other, world }
    }

    /// Whether `change` succeeds although its retransmission returns an error.
    fn twice<T>(
        &self,
        procedure: NfsProcedure,
        change: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<(), Errno> {
        // Earlier changes are in the past.
        self.world.pass(Duration::from_millis(100));
        self.repeating.plan(procedure, Plan::Twice);
        let result = change().map(drop);
        assert!(self.repeating.plan.lock().is_none(), "it was sent");
        result
    }

    /// The result of a `change` whose first transmission is never executed, while the other client
    /// acts.
    fn beaten<T>(
        &self,
        procedure: NfsProcedure,
        meanwhile: impl FnOnce(&BenchMount) + Send + 'static,
        change: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<(), Errno> {
        self.world.pass(Duration::from_millis(100));
        let other = Arc::clone(&self.other);
        let meanwhile = Box::new(move || meanwhile(&other));
        self.repeating.plan(procedure, Plan::LostOnTheWay(meanwhile));
        change().map(drop)
    }
}

fn me() -> Caller {
    user(500)
}

/// Looks up by name, as a kernel does before a change.
fn id(mounted: &BenchMount, name: &str) -> curt_client::InodeId {
    mounted.lookup(&me(), mounted.client.root(), name).unwrap().id
}

// SEMANTICS: rpc-12.
#[test]
fn an_object_created_by_the_first_transmission_is_no_error_of_the_second() {
    let bed = Bed::new();
    let (client, top) = (&bed.mounted.client, bed.mounted.client.root());
    let none = Device::default();
    assert_eq!(bed.twice(NfsProcedure::Mkdir, || ops::mkdir(&client.op(&me()), top, b"d", 0o750)), Ok(()));
    assert_eq!(
        bed.twice(NfsProcedure::Symlink, || ops::symlink(&client.op(&me()), top, b"s", b"to")),
        Ok(())
    );
    assert_eq!(
        bed.twice(NfsProcedure::Mknod, || ops::mknod(
            &client.op(&me()),
            top,
            b"p",
            FileKind::Fifo,
            none,
            0o640
        )),
        Ok(())
    );
    assert_eq!(
        bed.twice(NfsProcedure::Create, || ops::make_file(&client.op(&me()), top, b"f", 0o640)),
        Ok(())
    );
    // The creator of a file may write to it, whatever its mode is.
    let create = || ops::create(&client.op(&me()), top, b"readonly", 0o400, OpenFlags::writing());
    assert_eq!(bed.twice(NfsProcedure::Create, create), Ok(()));
    let exclusive = OpenFlags { exclusive: true, ..OpenFlags::writing() };
    let create = || ops::create(&client.op(&me()), top, b"new", 0o600, exclusive);
    assert_eq!(bed.twice(NfsProcedure::Create, create), Ok(()));
    assert_eq!(
        bed.twice(NfsProcedure::Link, || ops::link(&client.op(&me()), id(&bed.mounted, "f"), top, b"l")),
        Ok(())
    );
    assert_eq!(id(&bed.mounted, "l"), id(&bed.mounted, "f"));
    assert!(id(&bed.mounted, "d") != id(&bed.mounted, "s"));
}

// SEMANTICS: rpc-12.
#[test]
fn a_name_removed_or_renamed_by_the_first_transmission_is_no_error_of_the_second() {
    let bed = Bed::new();
    let (client, top) = (&bed.mounted.client, bed.mounted.client.root());
    for name in ["a", "b", "c", "open"] {
        bed.mounted.put(&me(), top, name, 0o644, b"x");
    }
    ops::link(&client.op(&me()), id(&bed.mounted, "b"), top, b"second").unwrap();
    ops::mkdir(&client.op(&me()), top, b"d", 0o755).unwrap();
    ops::mkdir(&client.op(&me()), top, b"e", 0o755).unwrap();
    let replace = RenameMode::Replace;
    assert_eq!(bed.twice(NfsProcedure::Remove, || ops::unlink(&client.op(&me()), top, b"a")), Ok(()));
    assert_eq!(bed.twice(NfsProcedure::Remove, || ops::unlink(&client.op(&me()), top, b"b")), Ok(()));
    assert_eq!(bed.twice(NfsProcedure::Rmdir, || ops::rmdir(&client.op(&me()), top, b"d")), Ok(()));
    let moved = id(&bed.mounted, "e");
    let rename = || ops::rename(&client.op(&me()), top, b"e", top, b"moved", replace);
    assert_eq!(bed.twice(NfsProcedure::Rename, rename), Ok(()));
    assert_eq!(id(&bed.mounted, "moved"), moved);
    // Over another file.
    let moved = id(&bed.mounted, "second");
    let rename = || ops::rename(&client.op(&me()), top, b"second", top, b"c", replace);
    assert_eq!(bed.twice(NfsProcedure::Rename, rename), Ok(()));
    assert_eq!(id(&bed.mounted, "c"), moved);
    // An open file is renamed instead, and removed at its last close.
    let (_, opened) = ops::create(&client.op(&me()), top, b"open", 0o644, OpenFlags::writing()).unwrap();
    assert_eq!(bed.twice(NfsProcedure::Rename, || ops::unlink(&client.op(&me()), top, b"open")), Ok(()));
    assert_eq!(ops::write(&client.op(&me()), &opened.file, 0, b"still there"), Ok(11));
    ops::close(&client.op(&me()), &opened.file).unwrap();
    for gone in ["a", "b", "d", "e", "second", "open"] {
        assert!(bed.mounted.lookup(&me(), top, gone).is_err(), "{gone}");
        assert!(bed.other.lookup(&me(), bed.other.client.root(), gone).is_err(), "{gone}");
    }
}

// SEMANTICS: rpc-12.
#[test]
fn an_object_created_by_another_client_is_reported_with_the_servers_error() {
    let bed = Bed::new();
    let (client, top) = (&bed.mounted.client, bed.mounted.client.root());
    let there = bed.other.client.root();
    for name in ["a", "b"] {
        bed.mounted.put(&me(), top, name, 0o644, b"x");
    }
    let mkdir = move |name: &'static [u8], caller: Caller, mode| {
        move |other: &BenchMount| {
            ops::mkdir(&other.client.op(&caller), there, name, mode).unwrap();
        }
    };
    let make = |name| ops::mkdir(&client.op(&me()), top, name, 0o755);
    // Created after the connection was lost, or by another user.
    let late = mkdir(b"late", me(), 0o755);
    assert_eq!(bed.beaten(NfsProcedure::Mkdir, late, || make(b"late")), Err(Errno::EXIST));
    let foreign = mkdir(b"foreign", root(), 0o755);
    assert_eq!(bed.beaten(NfsProcedure::Mkdir, foreign, || make(b"foreign")), Err(Errno::EXIST));
    // An equal file, but O_EXCL decides between the two.
    let exclusive = OpenFlags { exclusive: true, ..OpenFlags::writing() };
    let theirs = move |other: &BenchMount| {
        ops::create(&other.client.op(&me()), there, b"claimed", 0o600, exclusive).map(drop).unwrap();
    };
    let ours = || ops::create(&client.op(&me()), top, b"claimed", 0o600, exclusive);
    assert_eq!(bed.beaten(NfsProcedure::Create, theirs, ours), Err(Errno::EXIST));
    // It existed before, and is requested only now.
    ops::mkdir(&bed.other.client.op(&me()), there, b"old", 0o755).unwrap();
    assert_eq!(bed.twice(NfsProcedure::Mkdir, || make(b"old")), Err(Errno::EXIST));
    let symlink = |other: &BenchMount| {
        let there = other.client.root();
        ops::symlink(&other.client.op(&me()), there, b"s", b"elsewhere").unwrap();
    };
    assert_eq!(
        bed.beaten(NfsProcedure::Symlink, symlink, || ops::symlink(&client.op(&me()), top, b"s", b"to")),
        Err(Errno::EXIST)
    );
    let link = |other: &BenchMount| {
        let file = id(other, "b");
        ops::link(&other.client.op(&me()), file, other.client.root(), b"l").unwrap();
    };
    assert_eq!(
        bed.beaten(NfsProcedure::Link, link, || ops::link(
            &client.op(&me()),
            id(&bed.mounted, "a"),
            top,
            b"l"
        )),
        Err(Errno::EXIST)
    );
}

// SEMANTICS: rpc-12.
#[test]
fn a_rename_by_another_client_is_reported_with_the_servers_error() {
    let bed = Bed::new();
    let (client, top) = (&bed.mounted.client, bed.mounted.client.root());
    for name in ["a", "c"] {
        bed.mounted.put(&me(), top, name, 0o644, b"x");
    }
    // Another client has moved it, but to another name.
    let rename = |other: &BenchMount| {
        let there = other.client.root();
        ops::rename(&other.client.op(&me()), there, b"a", there, b"theirs", RenameMode::Replace).unwrap();
    };
    id(&bed.mounted, "a");
    let own = || ops::rename(&client.op(&me()), top, b"a", top, b"ours", RenameMode::Replace);
    assert_eq!(bed.beaten(NfsProcedure::Rename, rename, own), Err(Errno::NOENT));
    // So it was not removed either.
    let rename = |other: &BenchMount| {
        let there = other.client.root();
        ops::rename(&other.client.op(&me()), there, b"c", there, b"kept", RenameMode::Replace).unwrap();
    };
    id(&bed.mounted, "c");
    let own = || ops::unlink(&client.op(&me()), top, b"c");
    assert_eq!(bed.beaten(NfsProcedure::Remove, rename, own), Err(Errno::NOENT));
}

// SEMANTICS: rpc-12.
#[test]
fn an_error_of_a_call_that_was_sent_once_causes_no_further_request() {
    let bed = Bed::new();
    let (client, top) = (&bed.mounted.client, bed.mounted.client.root());
    ops::mkdir(&bed.other.client.op(&me()), bed.other.client.root(), b"d", 0o755).unwrap();
    bed.mounted.sent();
    assert_eq!(ops::mkdir(&client.op(&me()), top, b"d", 0o755).map(drop), Err(Errno::EXIST));
    assert_eq!(bed.mounted.sent(), "MKDIR 1");
}

// SEMANTICS: rpc-12.
#[test]
fn without_a_change_of_its_own_a_client_cannot_tell_when_its_call_was_executed() {
    let bed = Bed::new();
    let fresh = bed.world.mount_over(ClientOptions::default(), bed.repeating.clone());
    let top = fresh.client.root();
    let make = || ops::mkdir(&fresh.client.op(&me()), top, b"d", 0o755);
    assert_eq!(bed.twice(NfsProcedure::Mkdir, make), Err(Errno::EXIST));
    let (kind, device) = (FileKind::CharacterDevice, Device::default());
    // A failed create leaves no name.
    let make = || ops::mknod(&fresh.client.op(&me()), top, b"x", kind, device, 0o600);
    assert!(bed.twice(NfsProcedure::Mknod, make).is_err());
}

// SEMANTICS: rpc-12.
#[test]
fn a_refusal_by_a_server_that_was_not_restarted_stands() {
    let bed = Bed::new();
    let (client, top) = (&bed.mounted.client, bed.mounted.client.root());
    bed.repeating.restarts.store(false, Relaxed);
    let make = || ops::mkdir(&client.op(&me()), top, b"d", 0o755);
    assert_eq!(bed.twice(NfsProcedure::Mkdir, make), Err(Errno::EXIST));
    bed.mounted.put(&me(), top, "f", 0o644, b"x");
    let remove = || ops::unlink(&client.op(&me()), top, b"f");
    assert_eq!(bed.twice(NfsProcedure::Remove, remove), Err(Errno::NOENT));
}

// SEMANTICS: rpc-12.
#[test]
fn an_earlier_rename_to_the_same_name_by_another_client_is_not_ours() {
    let bed = Bed::new();
    let (client, top) = (&bed.mounted.client, bed.mounted.client.root());
    bed.mounted.put(&me(), top, "a", 0o644, b"x");
    let inode = id(&bed.mounted, "a");
    let there = bed.other.client.root();
    let rename = ops::rename(&bed.other.client.op(&me()), there, b"a", there, b"b", RenameMode::Replace);
    assert_eq!(rename, Ok(()));
    // The directory changes at that time, by another operation.
    let meanwhile = |other: &BenchMount| {
        let there = other.client.root();
        ops::mkdir(&other.client.op(&me()), there, b"another", 0o755).map(drop).unwrap();
    };
    let own = || ops::rename(&client.op(&me()), top, b"a", top, b"b", RenameMode::Replace);
    assert_eq!(bed.beaten(NfsProcedure::Rename, meanwhile, own), Err(Errno::NOENT));
    assert_eq!(id(&bed.mounted, "b"), inode);
}
