//! Read delegations over NFSv4.1: what they save, who ends them, and what is seen then.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use curt_client::{Background, BackgroundTask, InodeId, OpenFlags, RenameMode, ops, protocol::Protocol};
use curt_observe::ClientCounter;
use curt_policy::CacheOptions;
use curt_types::SetAttributes;
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::{
    nfs4_faults::{self, times},
    scripted_server::{ScriptedServer, bytes, op, refused, set_word, status},
    world::{BenchMount, REQUEST, V4Setup, World, root, user},
};

pub(crate) fn world() -> World {
    let world = World::new();
    world.serve_callbacks();
    world
}

fn mounted(world: &World, name: &str) -> BenchMount {
    let mounted = world.mount_called_back(CacheOptions::default(), name);
    mounted.sent();
    mounted
}

/// A file that another client has made, found and read by `mounted`.
fn delegated(world: &World, mounted: &BenchMount, name: &str) -> InodeId {
    delegated_with_mode(world, mounted, name, 0o644)
}

fn delegated_with_mode(world: &World, mounted: &BenchMount, name: &str, mode: u32) -> InodeId {
    let maker = world.mount_v4_over(CacheOptions::default(), "maker", world.way());
    maker.put(&root(), maker.client.root(), name, mode, b"one");
    // Its open ends, or the server would not delegate the file.
    let _ = maker.lookup(&root(), maker.client.root(), "none");
    let found = mounted.lookup(&root(), mounted.client.root(), name).unwrap();
    assert_eq!(mounted.cat(&root(), found.id), Ok(b"one".to_vec()));
    assert_eq!(mounted.counter(ClientCounter::DelegationGranted), 1, "{name} is delegated");
    mounted.sent();
    found.id
}

/// Ended delegations: recalled, returned, lost.
fn ended(mounted: &BenchMount) -> [u64; 3] {
    use ClientCounter::{DelegationLost, DelegationRecalled, DelegationReturned};
    [DelegationRecalled, DelegationReturned, DelegationLost].map(|counter| mounted.counter(counter))
}

/// Waits for a thread of the server.
fn wait_until(mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < end, "it does not happen");
        std::thread::yield_now();
    }
}

pub(crate) fn write(mounted: &BenchMount, name: &str, bytes: &[u8]) {
    let found = mounted.lookup(&root(), mounted.client.root(), name).unwrap();
    let flags = OpenFlags { truncate: true, ..OpenFlags::writing() };
    let op = || mounted.client.op(&root());
    let opened = ops::open(&op(), found.id, flags).unwrap();
    ops::write(&op(), &opened.file, 0, bytes).unwrap();
    ops::close(&op(), &opened.file).unwrap();
}

// SEMANTICS: sessions-11.
#[test]
fn a_delegated_file_is_opened_read_and_inquired_without_a_request() {
    let world = world();
    let mounted = mounted(&world, "one");
    let file = delegated(&world, &mounted, "file");
    for _ in 0..3 {
        world.seconds(20);
        // The lease.
        let _ = ops::statfs(&mounted.client.op(&root()), mounted.client.root());
        mounted.sent();
        assert_eq!(mounted.cat(&root(), file), Ok(b"one".to_vec()));
        assert_eq!(ops::getattr(&mounted.client.op(&root()), file).unwrap().attributes.size, 3);
        assert_eq!(mounted.sent(), "");
    }
    assert_eq!(mounted.counter(ClientCounter::OpenDelegated), 4);
    assert_eq!(ended(&mounted), [0, 0, 0]);
}

// SEMANTICS: sessions-11.
#[test]
fn a_file_that_stays_open_is_delegated_again_by_the_request_of_the_next_open() {
    let world = world();
    let mounted = mounted(&world, "one");
    let file = delegated(&world, &mounted, "file");
    let op = || mounted.client.op(&root());
    let opened = ops::open(&op(), file, OpenFlags::reading()).unwrap().file;
    ops::setattr(&op(), file, &SetAttributes::with_mode(0o600)).unwrap();
    assert_eq!(ended(&mounted), [0, 1, 0]);
    mounted.sent();
    for sent in ["NFSv4.OPEN 1", "", ""] {
        assert_eq!(mounted.cat(&root(), file), Ok(b"one".to_vec()));
        assert_eq!(mounted.sent(), sent);
        assert_eq!(mounted.counter(ClientCounter::DelegationGranted), 2);
    }
    ops::close(&op(), &opened).unwrap();
}

// SEMANTICS: sessions-11.
#[test]
fn a_look_up_opens_and_reads_a_file_in_one_request() {
    let world = world();
    let maker = world.mount_v4_over(CacheOptions::default(), "maker", world.way());
    maker.put(&root(), maker.client.root(), "file", 0o644, b"one");
    ops::mkdir(&maker.client.op(&root()), maker.client.root(), b"directory", 0o755).unwrap();
    let _ = maker.lookup(&root(), maker.client.root(), "none");
    let mounted = mounted(&world, "one");
    let found = mounted.lookup(&root(), mounted.client.root(), "file").unwrap();
    assert_eq!(mounted.cat(&root(), found.id), Ok(b"one".to_vec()));
    assert_eq!(mounted.sent(), "NFSv4.LOOKUP 1");
    let found = mounted.lookup(&root(), mounted.client.root(), "directory").unwrap();
    assert_eq!(mounted.sent(), "NFSv4.LOOKUP 1");
    assert!(ops::opendir(&mounted.client.op(&root()), found.id).is_ok());
}

// SEMANTICS: sessions-13.
#[test]
fn attributes_of_before_a_delegation_are_requested_again() {
    let world = world();
    let maker = world.mount_v4_over(CacheOptions::default(), "maker", world.way());
    maker.put(&root(), maker.client.root(), "file", 0o644, b"one");
    let _ = maker.lookup(&root(), maker.client.root(), "none");
    let server = ScriptedServer::calling_back(&world);
    let mounted = nfs4_faults::mounted(&world, &server);
    let is_first = times(1);
    server.script(move |asked| {
        (asked.does(op::LOOKUP) && is_first()).then(|| {
            asked.spoil(|reply| {
                let word = |at: usize| reply[4 * at..4 * at + 4].try_into().map(u32::from_be_bytes).unwrap();
                let size = |at: usize| usize::try_from(word(at)).unwrap();
                let open = 2 + (14..).find(|at| (word(*at), word(at + 1)) == (op::OPEN, 0)).unwrap();
                // The stateid, the change of the directory and flags; the attributes set; the kind
                // of delegation, for reading; its stateid, `recall` and an entry of an ACL.
                let kind = open + 11 + size(open + 10);
                assert_eq!(word(kind), 1);
                let end = kind + 10 + size(kind + 9).div_ceil(4);
                reply.truncate(4 * end);
                reply.extend(bytes(&[op::ACCESS, status::DELAY]));
                set_word(reply, 0, status::DELAY);
                set_word(reply, 2, 9);
            })
        })
    });
    mounted.sent();
    let found = mounted.lookup(&root(), mounted.client.root(), "file").unwrap();
    assert_eq!(mounted.counter(ClientCounter::DelegationGranted), 1);
    assert_eq!(mounted.sent(), "NFSv4.GETATTR 1 NFSv4.LOOKUP 1", "the file may have changed between");
    assert_eq!(mounted.cat(&root(), found.id), Ok(b"one".to_vec()));
}

// SEMANTICS: sessions-13.
#[test]
fn a_reply_of_before_a_delegation_does_not_count_as_delegated_if_another_request_brings_it() {
    for kind in [op::OPEN, op::LOOKUP] {
        let world = world();
        let maker = world.mount_v4_over(CacheOptions::default(), "maker", world.way());
        maker.put(&root(), maker.client.root(), "file", 0o644, b"one");
        let found = maker.lookup(&root(), maker.client.root(), "file").unwrap();
        let written = ops::open(&maker.client.op(&root()), found.id, OpenFlags::writing()).unwrap();
        let server = ScriptedServer::calling_back(&world);
        let mounted = Arc::new(nfs4_faults::mounted(&world, &server));
        if kind == op::OPEN {
            let file = mounted.lookup(&root(), mounted.client.root(), "file").unwrap().id;
            assert_eq!(mounted.cat(&root(), file), Ok(b"one".to_vec()));
            world.seconds(100);
        }
        let (is_first, other) = (times(1), Arc::clone(&mounted));
        let maker = Mutex::new(Some((maker, written)));
        server.script(move |asked| {
            (asked.does(kind) && is_first()).then(|| {
                let reply = asked.execute();
                // The file is written and closed, then delegated, before that reply is dealt with.
                let (maker, written) = maker.lock().take().unwrap();
                ops::write(&maker.client.op(&root()), &written.file, 0, b"three").unwrap();
                ops::close(&maker.client.op(&root()), &written.file).unwrap();
                let _ = maker.lookup(&root(), maker.client.root(), "none");
                let open = || {
                    let found = other.lookup(&root(), other.client.root(), "file").unwrap();
                    assert_eq!(other.cat(&root(), found.id), Ok(b"three".to_vec()));
                };
                std::thread::scope(|scope| scope.spawn(open).join()).unwrap();
                assert_eq!(other.counter(ClientCounter::DelegationGranted), 1);
                reply
            })
        });
        let file = mounted.lookup(&root(), mounted.client.root(), "file").unwrap().id;
        let opened = ops::open(&mounted.client.op(&root()), file, OpenFlags::reading()).unwrap();
        ops::close(&mounted.client.op(&root()), &opened.file).unwrap();
        for _ in 0..3 {
            world.seconds(20);
            let _ = ops::statfs(&mounted.client.op(&root()), mounted.client.root());
            let stat = ops::getattr(&mounted.client.op(&root()), file).unwrap();
            assert_eq!(stat.attributes.size, 5, "operation {kind}");
            assert_eq!(mounted.cat(&root(), file), Ok(b"three".to_vec()), "operation {kind}");
        }
    }
}

// SEMANTICS: sessions-12.
#[test]
fn another_user_of_a_delegated_file_asks_for_his_own_rights() {
    let world = world();
    let mounted = mounted(&world, "one");
    let file = delegated_with_mode(&world, &mounted, "file", 0o600);
    assert_eq!(mounted.cat(&user(7), file).unwrap_err(), Errno::ACCESS, "whatever root may");
    assert_eq!(mounted.sent(), "NFSv4.OPEN 1", "his own");
    assert_eq!(mounted.cat(&root(), file), Ok(b"one".to_vec()));
    assert_eq!(mounted.sent(), "", "the delegation is held");
    assert_eq!(ended(&mounted), [0; 3]);
}

// SEMANTICS: sessions-13.
#[test]
fn what_another_client_writes_is_seen_by_the_next_open() {
    let world = world();
    let reader = mounted(&world, "reader");
    let writer = mounted(&world, "writer");
    let file = delegated(&world, &reader, "file");
    for round in 0..10_u8 {
        let bytes = [round; 5];
        write(&writer, "file", &bytes);
        assert_eq!(reader.cat(&root(), file), Ok(bytes.to_vec()));
        let stat = ops::getattr(&reader.client.op(&root()), file).unwrap();
        assert_eq!(stat.attributes.size, 5);
    }
    assert_eq!(ended(&reader)[0], 1, "a file that was recalled gets no delegation for a while");
    let told = reader.told.attributes.lock().clone();
    assert!(told.contains(&file), "the kernel drops its attributes: {told:?}");
}

// SEMANTICS: sessions-13.
#[test]
fn a_recall_is_followed_by_delegreturn_and_close_in_one_compound() {
    let world = world();
    let reader = mounted(&world, "reader");
    let file = delegated(&world, &reader, "file");
    let writer = world.mount_v4_over(CacheOptions::default(), "writer", world.way());
    write(&writer, "file", b"two");
    wait_until(|| ended(&reader) == [1, 0, 0]);
    // A request is counted when its reply has arrived, which may be after the writer went on.
    let mut sent = String::new();
    wait_until(|| {
        sent += &reader.sent();
        !sent.is_empty()
    });
    assert_eq!(sent, "NFSv4.SEQUENCE 1");
    assert_eq!(reader.cat(&root(), file), Ok(b"two".to_vec()));
}

/// How the reply to an OPEN that was executed is lost.
#[derive(Clone, Copy, Debug)]
enum LostReply {
    /// The server has not kept it (NFS4ERR_RETRY_UNCACHED_REP).
    Uncached,
    /// Also piggybacked operations precede.
    UncachedWithClose,
    /// The session is lost.
    SessionLost,
}

// SEMANTICS: sessions-13.
#[test]
fn a_delegation_of_an_open_that_was_executed_twice_is_returned_when_it_is_recalled() {
    for lost in [LostReply::Uncached, LostReply::UncachedWithClose, LostReply::SessionLost] {
        let world = world();
        let maker = world.mount_v4_over(CacheOptions::default(), "maker", world.way());
        maker.put(&root(), maker.client.root(), "file", 0o644, b"one");
        let _ = maker.lookup(&root(), maker.client.root(), "none");
        let server = ScriptedServer::calling_back(&world);
        let mounted = nfs4_faults::mounted(&world, &server);
        if let LostReply::UncachedWithClose = lost {
            mounted.put(&root(), mounted.client.root(), "other", 0o644, b"x");
        }
        let is_first = times(1);
        server.script(move |asked| {
            (asked.does(op::LOOKUP) && is_first()).then(|| {
                let mut reply = asked.execute()?;
                if let LostReply::SessionLost = lost {
                    asked.lost.set(Some((REQUEST, false)));
                    return Ok(refused(op::SEQUENCE, status::BADSESSION));
                }
                // SEQUENCE alone is in the reply, and the refusal of what follows.
                reply.truncate(4 * 14);
                reply.extend(bytes(&[op::PUTFH, status::RETRY_UNCACHED_REP]));
                set_word(&mut reply, 0, status::RETRY_UNCACHED_REP);
                set_word(&mut reply, 2, 2);
                Ok(reply)
            })
        });
        let found = mounted.lookup(&root(), mounted.client.root(), "file").unwrap();
        assert_eq!(mounted.cat(&root(), found.id), Ok(b"one".to_vec()));
        assert_eq!(mounted.counter(ClientCounter::DelegationGranted), 0, "{lost:?}: it has one already");
        server.obey();
        assert_eq!(server.executed(op::DELEGRETURN), 0, "{lost:?}");
        let writer = world.mount_v4_over(CacheOptions::default(), "writer", world.way());
        write(&writer, "file", b"two");
        assert_eq!(server.executed(op::DELEGRETURN), 1, "{lost:?}");
        assert_eq!(mounted.cat(&root(), found.id), Ok(b"two".to_vec()));
    }
}

// SEMANTICS: sessions-13.
#[test]
fn an_open_that_the_server_delays_keeps_no_delegation_of_a_lost_reply_from_being_returned() {
    let world = world();
    let maker = world.mount_v4_over(CacheOptions::default(), "maker", world.way());
    for name in ["file", "other"] {
        maker.put(&root(), maker.client.root(), name, 0o644, b"one");
    }
    let _ = maker.lookup(&root(), maker.client.root(), "none");
    let server = ScriptedServer::calling_back(&world);
    let mounted = nfs4_faults::mounted(&world, &server);
    let is_first = times(1);
    server.script(move |asked| {
        (asked.does(op::LOOKUP) && is_first()).then(|| {
            asked.execute()?;
            asked.lost.set(Some((REQUEST, false)));
            Ok(refused(op::SEQUENCE, status::BADSESSION))
        })
    });
    let _ = mounted.lookup(&root(), mounted.client.root(), "file").unwrap();
    let (weak, end) = (Arc::downgrade(&server), Instant::now() + Duration::from_secs(60));
    server.script(move |asked| {
        let is_returned = weak.upgrade().unwrap().executed(op::DELEGRETURN) > 0;
        let is_delayed = asked.does(op::LOOKUP) && !asked.does(op::DELEGRETURN) && !is_returned;
        let is_delayed = is_delayed && Instant::now() < end;
        is_delayed.then(|| {
            std::thread::yield_now();
            asked.answer(1, status::DELAY, &[op::PUTFH, status::DELAY])
        })
    });
    let writer = world.mount_v4_over(CacheOptions::default(), "writer", world.way());
    std::thread::scope(|scope| {
        scope.spawn(|| write(&writer, "file", b"two"));
        assert!(mounted.lookup(&root(), mounted.client.root(), "other").is_ok());
    });
    assert!(Instant::now() < end, "the return has waited for the look-up");
}

// SEMANTICS: sessions-14.
#[test]
fn a_delegation_is_returned_with_the_change_of_this_client() {
    type Change = fn(&BenchMount, InodeId);
    let changes: [(&str, Change); 6] = [
        ("NFSv4.SETATTR 1", |mounted, file| {
            let set = SetAttributes::with_mode(0o600);
            ops::setattr(&mounted.client.op(&root()), file, &set).unwrap();
        }),
        ("NFSv4.REMOVE 1", |mounted, _| {
            ops::unlink(&mounted.client.op(&root()), mounted.client.root(), b"file").unwrap();
        }),
        ("NFSv4.RENAME 1", |mounted, _| {
            let top = mounted.client.root();
            let op = mounted.client.op(&root());
            ops::rename(&op, top, b"file", top, b"other", RenameMode::Replace).unwrap();
        }),
        ("NFSv4.RENAME 1", |mounted, _| {
            let top = mounted.client.root();
            let op = mounted.client.op(&root());
            ops::rename(&op, top, b"source", top, b"file", RenameMode::Replace).unwrap();
        }),
        ("NFSv4.LINK 1", |mounted, file| {
            let top = mounted.client.root();
            ops::link(&mounted.client.op(&root()), file, top, b"link").unwrap();
        }),
        ("NFSv4.OPEN 1", |mounted, file| {
            let opened = ops::open(&mounted.client.op(&root()), file, OpenFlags::writing()).unwrap();
            ops::close(&mounted.client.op(&root()), &opened.file).unwrap();
        }),
    ];
    for (expected, change) in changes {
        let world = world();
        let mounted = mounted(&world, "one");
        mounted.put(&root(), mounted.client.root(), "source", 0o644, b"two");
        let file = delegated(&world, &mounted, "file");
        // What the change needs to know is known.
        let _ = mounted.lookup(&root(), mounted.client.root(), "other");
        let _ = mounted.lookup(&root(), mounted.client.root(), "link");
        mounted.sent();
        change(&mounted, file);
        assert_eq!(mounted.sent(), expected, "without a request of its own");
        assert_eq!(ended(&mounted), [0, 1, 0], "{expected}");
    }
}

/// Files of these names, which another client has made, delegated to `mounted`.
pub(crate) fn delegated_many(world: &World, mounted: &BenchMount, names: &[impl AsRef<str>]) {
    let maker = world.mount_v4_over(CacheOptions::default(), "maker", world.way());
    for name in names {
        maker.put(&root(), maker.client.root(), name.as_ref(), 0o644, b"one");
    }
    let _ = maker.lookup(&root(), maker.client.root(), "none");
    for name in names {
        let found = mounted.lookup(&root(), mounted.client.root(), name.as_ref()).unwrap();
        assert_eq!(mounted.cat(&root(), found.id), Ok(b"one".to_vec()));
    }
    assert_eq!(mounted.counter(ClientCounter::DelegationGranted), names.len() as u64);
    mounted.sent();
}

// SEMANTICS: sessions-22.
#[test]
fn a_mount_that_ends_has_all_its_files_closed_and_returned_by_four_requests() {
    let world = world();
    let mounted = mounted(&world, "one");
    let names: Vec<String> = (0..100).map(|number| format!("f{number}")).collect();
    delegated_many(&world, &mounted, &names);
    let found = mounted.lookup(&root(), mounted.client.root(), "f0").unwrap();
    let opened = ops::open(&mounted.client.op(&root()), found.id, OpenFlags::reading()).unwrap();
    let writer = world.mount_v4_over(CacheOptions::default(), "writer", world.way());
    let theirs: Vec<_> =
        names.iter().map(|name| writer.lookup(&root(), writer.client.root(), name).unwrap().id).collect();
    mounted.sent();
    mounted.v4.as_ref().unwrap().end(Duration::from_secs(20));
    let expected =
        "NFSv4.EXCHANGE_ID 1 NFSv4.CREATE_SESSION 1 NFSv4.DESTROY_SESSION 1 NFSv4.DESTROY_CLIENTID 1";
    assert_eq!(mounted.sent(), expected);
    writer.sent();
    for id in theirs {
        let opened = ops::open(&writer.client.op(&root()), id, OpenFlags::writing()).unwrap();
        ops::close(&writer.client.op(&root()), &opened.file).unwrap();
    }
    assert_eq!(writer.sent(), "NFSv4.OPEN 100", "none waits for a recall");
    // A request that comes late makes no other client.
    assert_eq!(ops::statfs(&mounted.client.op(&root()), mounted.client.root()).map(drop), Err(Errno::INTR));
    assert_eq!(mounted.sent(), "");
    drop(opened);
}

// SEMANTICS: sessions-14.
#[test]
fn delegations_are_returned_with_the_removal_of_many_names() {
    let world = world();
    let mounted = mounted(&world, "one");
    let names: Vec<String> = (0..12).map(|number| format!("f{number}")).collect();
    delegated_many(&world, &mounted, &names);
    let names: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
    let removed = ops::remove_many(&mounted.client.op(&root()), mounted.client.root(), &names).unwrap();
    assert_eq!(removed, [Ok(()); 12]);
    // Six operations each of 64 at most. None waits for a recall, and none is returned alone.
    assert_eq!(mounted.sent(), "NFSv4.LOOKUP 1 NFSv4.REMOVE 2");
    assert_eq!(ended(&mounted), [0, 12, 0]);
}

#[test]
fn a_file_that_is_open_for_writing_is_not_delegated() {
    let world = world();
    let mounted = mounted(&world, "one");
    let made = mounted.put(&root(), mounted.client.root(), "file", 0o644, b"one");
    let op = || mounted.client.op(&root());
    let opened = ops::open(&op(), made.id, OpenFlags::writing()).unwrap();
    assert_eq!(mounted.cat(&root(), made.id), Ok(b"one".to_vec()));
    assert_eq!(mounted.counter(ClientCounter::DelegationGranted), 0);
    ops::write(&op(), &opened.file, 0, b"two").unwrap();
    ops::close(&op(), &opened.file).unwrap();
    assert_eq!(mounted.cat(&root(), made.id), Ok(b"two".to_vec()));
}

/// Runs delayed work when its time has come.
#[derive(Default)]
pub(crate) struct Timers(Mutex<Vec<(Duration, BackgroundTask)>>);

impl std::fmt::Debug for Timers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Timers").field(&self.0.lock().len()).finish()
    }
}

impl Background for Timers {
    fn spawn(&self, task: BackgroundTask) {
        task();
    }

    fn spawn_after(&self, delay: Duration, task: BackgroundTask) {
        self.0.lock().push((delay, task));
    }
}

impl Timers {
    /// After what times work is to be done.
    pub(crate) fn delays(&self) -> Vec<Duration> {
        self.0.lock().iter().map(|(delay, _)| *delay).collect()
    }

    /// Runs what was to be done within this time.
    pub(crate) fn pass(&self, time: Duration) {
        let (due, later) =
            std::mem::take(&mut *self.0.lock()).into_iter().partition(|(delay, _)| *delay <= time);
        *self.0.lock() = later;
        let due: Vec<(Duration, BackgroundTask)> = due;
        due.into_iter().for_each(|(_, task)| task());
    }
}

/// A mount whose delayed work the test runs.
pub(crate) fn mounted_on_timers(world: &World, server: &Arc<ScriptedServer>) -> (BenchMount, Arc<Timers>) {
    let timers = Arc::new(Timers::default());
    let (way, background) = (Arc::<ScriptedServer>::clone(server), Arc::<Timers>::clone(&timers));
    let mounted = world.mount_v4_calling_on(CacheOptions::default(), way, &server.callbacks, background);
    mounted.sent();
    (mounted, timers)
}

/// A mount to which files are delegated, and whose delayed work the test runs.
pub(crate) struct DelegatedMount {
    pub(crate) world: World,
    pub(crate) server: Arc<ScriptedServer>,
    pub(crate) timers: Arc<Timers>,
    pub(crate) mounted: BenchMount,
}

impl DelegatedMount {
    pub(crate) fn new(names: &[&str]) -> Self {
        let world = world();
        let server = ScriptedServer::calling_back(&world);
        let (mounted, timers) = mounted_on_timers(&world, &server);
        delegated_many(&world, &mounted, names);
        timers.pass(Duration::from_secs(1));
        Self { world, server, timers, mounted }
    }
}

// SEMANTICS: sessions-1.
#[test]
fn a_written_file_is_closed_at_the_server_soon_after_its_last_close_and_can_be_delegated() {
    let soon = Duration::from_millis(20);
    let world = world();
    let timers = Arc::new(Timers::default());
    let background = Arc::<Timers>::clone(&timers);
    let maker = world.mount_v4_as(V4Setup { background, ..V4Setup::default() });
    let reader = mounted(&world, "reader");
    let top = maker.client.root();
    maker.put(&root(), top, "read", 0o644, b"one");
    let read = maker.lookup(&root(), top, "read").unwrap().id;
    assert_eq!(maker.cat(&root(), read), Ok(b"one".to_vec()));
    maker.put(&root(), top, "written", 0o644, b"one");
    maker.sent();
    timers.pass(soon);
    assert_eq!(maker.sent(), "NFSv4.SEQUENCE 1", "with the CLOSE");
    timers.pass(soon);
    assert_eq!(maker.sent(), "", "an open for reading is kept longer");
    let found = reader.lookup(&root(), reader.client.root(), "written").unwrap();
    assert_eq!(reader.cat(&root(), found.id), Ok(b"one".to_vec()));
    assert_eq!(reader.counter(ClientCounter::DelegationGranted), 1);
}

// SEMANTICS: sessions-15.
#[test]
fn without_delegations_each_open_asks() {
    let world = world();
    let defaults = CacheOptions::default();
    let no_delegations = CacheOptions { delegations: false, ..defaults };
    let no_attributes = CacheOptions { attribute_cache: false, ..defaults };
    for (name, options) in [("nodelegations", no_delegations), ("noac", no_attributes)] {
        let mounted = world.mount_called_back(options, name);
        let file = mounted.put(&root(), mounted.client.root(), name, 0o644, b"one").id;
        for _ in 0..3 {
            mounted.sent();
            assert_eq!(mounted.cat(&root(), file), Ok(b"one".to_vec()));
            assert_ne!(mounted.sent(), "", "{name}");
        }
        assert_eq!(mounted.counter(ClientCounter::DelegationGranted), 0, "{name}");
    }
    delegated(&world, &mounted(&world, "two"), "other");
}

/// A server that refuses delegations is not asked for any by opens of files whose data are known,
/// but it may grant them again: Linux does after its grace period, and 30 to 60 s after a recall.
// SEMANTICS: sessions-11.
#[test]
fn delegations_are_asked_for_again_half_a_minute_after_they_were_refused() {
    const READ: u32 = 1;
    const WANT_READ_DELEGATION: u32 = 0x100;
    const WANT_NO_DELEGATION: u32 = 0x400;
    let world = world();
    let maker = world.mount_v4_over(CacheOptions::default(), "maker", world.way());
    for number in 0..4 {
        maker.put(&root(), maker.client.root(), &number.to_string(), 0o644, b"one");
    }
    let _ = maker.lookup(&root(), maker.client.root(), "none");
    let server = ScriptedServer::calling_back(&world);
    let mounted = nfs4_faults::mounted(&world, &server);
    server.script(|asked| {
        let mut words = asked.words.clone();
        let wish = |at: &usize| words[at - 2..=*at] == [op::OPEN, 0, READ | WANT_READ_DELEGATION];
        let at = (14..words.len()).find(wish)?;
        words[at] = READ | WANT_NO_DELEGATION;
        Some(asked.execute_instead(&words))
    });
    let files: Vec<_> = (0..4)
        .map(|number| mounted.lookup(&root(), mounted.client.root(), &number.to_string()).unwrap().id)
        .collect();
    let read = || files.iter().for_each(|file| assert_eq!(mounted.cat(&root(), *file), Ok(b"one".to_vec())));
    let has_asked = || mounted.sent().contains("NFSv4.OPEN");
    read();
    server.obey();
    world.seconds(10);
    mounted.sent();
    read();
    assert!(!has_asked(), "none is expected");
    assert_eq!(mounted.counter(ClientCounter::DelegationGranted), 0);
    world.seconds(20);
    // The opens without a delegation end with this request.
    let _ = mounted.lookup(&root(), mounted.client.root(), "none");
    read();
    assert!(has_asked());
    assert_eq!(mounted.counter(ClientCounter::DelegationGranted), 4);
    mounted.sent();
    read();
    assert_eq!(mounted.sent(), "");
}

// SEMANTICS: sessions-15.
#[test]
fn a_remount_without_delegations_returns_them() {
    let world = world();
    let mounted = mounted(&world, "one");
    let file = delegated(&world, &mounted, "file");
    mounted.client.set_options(CacheOptions { delegations: false, ..CacheOptions::default() });
    assert_eq!(ended(&mounted), [0, 1, 0]);
    assert_eq!(mounted.sent(), "NFSv4.SEQUENCE 1");
    assert_eq!(mounted.cat(&root(), file), Ok(b"one".to_vec()));
    assert_eq!(mounted.sent(), "NFSv4.GETATTR 1");
}

// SEMANTICS: sessions-16.
#[test]
fn nothing_is_served_by_a_delegation_after_the_lease() {
    let world = world();
    let mounted = mounted(&world, "one");
    let file = delegated(&world, &mounted, "file");
    world.seconds(10_000);
    assert_eq!(mounted.cat(&root(), file), Ok(b"one".to_vec()));
    assert_eq!(mounted.sent(), "NFSv4.GETATTR 1", "which renews the lease");
    assert_eq!(mounted.cat(&root(), file), Ok(b"one".to_vec()));
    assert_eq!(mounted.sent(), "");
}

// SEMANTICS: sessions-16, sessions-17.
#[test]
fn a_file_that_others_change_while_the_machine_is_suspended_is_seen_afterwards() {
    let world = world();
    let mounted = mounted(&world, "one");
    let file = delegated(&world, &mounted, "file");
    // Nothing is sent by timers before the next open.
    world.suspend(Duration::from_secs(3600));
    let other = world.mount(CacheOptions::default());
    write(&other, "file", b"others'");
    assert_eq!(mounted.cat(&root(), file), Ok(b"others'".to_vec()));
}

// SEMANTICS: sessions-16.
#[test]
fn delegations_that_cannot_be_reclaimed_after_a_restart_are_lost_and_files_stay_open() {
    let world = world();
    let server = ScriptedServer::calling_back(&world);
    let mounted = nfs4_faults::mounted(&world, &server);
    let file = delegated(&world, &mounted, "file");
    let opened = ops::open(&mounted.client.op(&root()), file, OpenFlags::reading()).unwrap();
    server.replace(world.way_after_restart());
    world.seconds(100);
    assert_eq!(ops::getattr(&mounted.client.op(&root()), file).unwrap().attributes.size, 3);
    assert_eq!(ended(&mounted), [0, 0, 1]);
    let read = ops::read(&mounted.client.op(&root()), &opened.file, 0, 10).unwrap();
    assert_eq!(read.to_vec(), b"one");
    ops::close(&mounted.client.op(&root()), &opened.file).unwrap();
    assert_eq!(mounted.cat(&root(), file), Ok(b"one".to_vec()));
}
