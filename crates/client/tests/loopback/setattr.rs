//! Attributes that are set while data are unwritten: the requests, their order, and what fails.

use std::{sync::Arc, thread};

use curt_client::{Caller, OpenFile, OpenFlags, ops};
use curt_policy::CacheOptions;
use curt_rpc::client::Interrupt;
use curt_types::{SetAttributes, SetTime, Timestamp};
use curt_vfs::{Error, FaultPoint};
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::{
    nfs4_faults,
    scripted_server::{HEAD, ScriptedServer, op, refused, set_word, status},
    unwritten::Later,
    world::{BenchMount, V4Setup, World, root, user},
};

const THEN: Timestamp = Timestamp::new(1_000_000_000, 5);

const BYTES: &[u8] = b"all that is written";

/// Times as utimensat(2) sets them.
fn times() -> SetAttributes {
    SetAttributes { atime: SetTime::Time(THEN), mtime: SetTime::Time(THEN), ..SetAttributes::default() }
}

/// Creates a file as tar does, and writes to it.
fn written(mounted: &BenchMount, caller: &Caller, name: &str, bytes: &[u8]) -> Arc<OpenFile> {
    let flags = OpenFlags { exclusive: true, ..OpenFlags::writing() };
    let op = || mounted.client.op(caller);
    let (_, opened) = ops::create(&op(), mounted.client.root(), name.as_bytes(), 0o666, flags).unwrap();
    ops::write(&op(), &opened.file, 0, bytes).unwrap();
    opened.file
}

/// The contents and the mtime of a file, as another client finds them.
fn found(world: &World, name: &str) -> (Vec<u8>, Timestamp) {
    let other = world.mount(CacheOptions::default());
    let file = other.lookup(&root(), other.client.root(), name).unwrap();
    (other.cat(&root(), file.id).unwrap(), file.attributes.mtime)
}

// SEMANTICS: write-1, sessions-21.
#[test]
fn a_new_file_is_written_and_dated_by_one_request_over_4_1_and_by_two_over_3() {
    let world = World::new();
    let mounts = [
        (world.mount_v4(CacheOptions::default()), "four", "NFSv4.WRITE 1", "NFSv4.SETATTR 2"),
        (world.mount(CacheOptions::default()), "three", "SETATTR 1 WRITE 1", "SETATTR 2"),
    ];
    for (mounted, name, dated, changed) in mounts {
        let file = written(&mounted, &root(), name, BYTES);
        mounted.sent();
        let set = |set: &SetAttributes| ops::setattr_open(&mounted.client.op(&root()), &file, set).unwrap();
        assert_eq!(set(&times()).attributes.mtime, THEN);
        assert_eq!(mounted.sent(), dated);
        assert!(mounted.client.unwritten().is_empty(), "it is on stable storage");
        // The owner and the mode, as tar sets them for root.
        set(&SetAttributes { uid: Some(5), gid: Some(6), ..SetAttributes::default() });
        let stat = set(&SetAttributes::with_mode(0o640)).attributes;
        assert_eq!((stat.uid, stat.gid, stat.mode, stat.mtime), (5, 6, 0o640, THEN));
        assert_eq!(mounted.sent(), changed);
        ops::close(&mounted.client.op(&root()), &file).unwrap();
        assert_eq!(mounted.sent(), "", "no COMMIT, and CLOSE rides");
        world.vfs.lose_unstable_data();
        assert_eq!(found(&world, name), (BYTES.to_vec(), THEN));
    }
}

#[test]
fn a_file_that_has_data_is_not_made_durable_for_its_times() {
    let world = World::new();
    for (mounted, prefix) in
        [(world.mount_v4(CacheOptions::default()), "NFSv4."), (world.mount(CacheOptions::default()), "")]
    {
        let name = format!("{prefix}file");
        let file = written(&mounted, &root(), &name, BYTES);
        ops::fsync(&mounted.client.op(&root()), &file, false).unwrap();
        ops::write(&mounted.client.op(&root()), &file, 0, b"ALL").unwrap();
        mounted.sent();
        ops::setattr_open(&mounted.client.op(&root()), &file, &times()).unwrap();
        let sent = mounted.sent();
        assert!(sent.contains(&format!("{prefix}SETATTR 1")) && sent.contains("WRITE 1"), "{sent}");
        ops::close(&mounted.client.op(&root()), &file).unwrap();
        assert_eq!(mounted.sent(), format!("{prefix}COMMIT 1"));
        assert_eq!(found(&world, &name), ([b"ALL", &BYTES[3..]].concat(), THEN));
    }
}

// SEMANTICS: write-6, sessions-21.
#[test]
fn a_failed_write_is_reported_at_close_and_the_times_are_set() {
    let world = World::new();
    for (mounted, name) in
        [(world.mount_v4(CacheOptions::default()), "four"), (world.mount(CacheOptions::default()), "three")]
    {
        let file = written(&mounted, &root(), name, BYTES);
        world.vfs.fail_next(FaultPoint::Write, Error::Os(Errno::NOSPC), 1);
        let stat = ops::setattr_open(&mounted.client.op(&root()), &file, &times()).unwrap();
        assert_eq!((stat.attributes.mtime, stat.attributes.size), (THEN, 0));
        let op = || mounted.client.op(&root());
        assert_eq!(ops::flush(&op(), &file), Err(Errno::NOSPC));
        assert_eq!(ops::flush(&op(), &file), Ok(()), "once");
        ops::close(&op(), &file).unwrap();
        assert_eq!(found(&world, name), (Vec::new(), THEN));
    }
}

// SEMANTICS: sessions-21.
#[test]
fn data_are_written_although_the_times_are_refused() {
    let world = World::new();
    let (mounted, other) = (world.mount_v4(CacheOptions::default()), world.mount(CacheOptions::default()));
    let file = other.put(&root(), other.client.root(), "file", 0o666, b"");
    let found_file = mounted.lookup(&user(5), mounted.client.root(), "file").unwrap();
    let op = || mounted.client.op(&user(5));
    let opened = ops::open(&op(), found_file.id, OpenFlags::writing()).unwrap().file;
    ops::write(&op(), &opened, 0, BYTES).unwrap();
    mounted.sent();
    assert_eq!(ops::setattr_open(&op(), &opened, &times()).unwrap_err(), Errno::PERM);
    assert_eq!(mounted.sent(), "NFSv4.WRITE 1");
    assert!(mounted.client.unwritten().is_empty());
    assert_eq!(ops::close(&op(), &opened), Ok(()));
    assert_eq!(mounted.sent(), "");
    assert_eq!(mounted.cat(&user(5), found_file.id), Ok(BYTES.to_vec()));
    world.seconds(100);
    assert_eq!(other.cat(&root(), file.id), Ok(BYTES.to_vec()));
}

/// A mount of NFSv4.1 of a scripted server, with a file that is written and not sent.
fn written_over(world: &World) -> (Arc<ScriptedServer>, BenchMount, Arc<OpenFile>) {
    let server = ScriptedServer::new(world);
    let mounted = nfs4_faults::mounted(world, &server);
    let file = written(&mounted, &root(), "file", BYTES);
    mounted.sent();
    (server, mounted, file)
}

/// Where the successful result of an operation begins in a reply, in words.
fn result_of(reply: &[u8], operation: u32) -> Option<usize> {
    let header = [operation.to_be_bytes(), [0; 4]].concat();
    (HEAD..(reply.len() / 4).saturating_sub(1)).find(|at| reply[4 * at..].starts_with(&header))
}

// SEMANTICS: sessions-21.
#[test]
fn times_are_set_again_after_the_rest_of_a_short_write() {
    let world = World::new();
    let (server, mounted, file) = written_over(&world);
    let is_first = nfs4_faults::times(1);
    server.spoil(move |reply| {
        if let Some(at) = result_of(reply, op::WRITE).filter(|_| is_first()) {
            set_word(reply, at + 2, 3);
        }
    });
    let stat = ops::setattr_open(&mounted.client.op(&root()), &file, &times()).unwrap();
    assert_eq!((stat.attributes.mtime, mounted.sent().as_str()), (THEN, "NFSv4.WRITE 2"));
    assert!(mounted.client.unwritten().is_empty());
    ops::close(&mounted.client.op(&root()), &file).unwrap();
    assert_eq!(mounted.sent(), "");
    assert_eq!(found(&world, "file"), (BYTES.to_vec(), THEN));
}

// SEMANTICS: sessions-6, write-6.
#[test]
fn a_write_that_is_said_to_be_longer_or_less_durable_than_asked_for_is_an_error() {
    for (word, value) in [(2, 1000), (2, 0), (3, 0)] {
        let world = World::new();
        let (server, mounted, file) = written_over(&world);
        server.spoil(move |reply| {
            if let Some(at) = result_of(reply, op::WRITE) {
                set_word(reply, at + word, value);
            }
        });
        ops::setattr_open(&mounted.client.op(&root()), &file, &times()).unwrap();
        assert_eq!(mounted.sent(), "NFSv4.SETATTR 1 NFSv4.WRITE 1");
        assert_eq!(ops::flush(&mounted.client.op(&root()), &file), Err(Errno::IO));
        assert_eq!(ops::flush(&mounted.client.op(&root()), &file), Ok(()), "once");
    }
}

#[test]
fn a_set_of_times_that_the_server_delays_is_repeated_with_its_data() {
    let world = World::new();
    let (server, mounted, file) = written_over(&world);
    let is_delayed = nfs4_faults::times(3);
    server.spoil(move |reply| {
        if let Some(at) = result_of(reply, op::SETATTR)
            && is_delayed()
        {
            // The results end with it.
            reply.truncate(4 * at + 8);
            reply.extend(0_u32.to_be_bytes());
            set_word(reply, at + 1, status::DELAY);
            set_word(reply, 0, status::DELAY);
            set_word(reply, 2, 5);
        }
    });
    ops::setattr_open(&mounted.client.op(&root()), &file, &times()).unwrap();
    assert_eq!(mounted.sent(), "NFSv4.WRITE 4");
    ops::close(&mounted.client.op(&root()), &file).unwrap();
    assert_eq!(found(&world, "file"), (BYTES.to_vec(), THEN));
}

// SEMANTICS: sessions-2, write-3.
#[test]
fn a_server_that_restarts_before_it_answers_gets_data_and_times_again() {
    for executes in [false, true] {
        let world = World::new();
        let (server, mounted, file) = written_over(&world);
        if executes {
            // The next server knows nothing of what this one has executed.
            let (dying, after) = (Arc::downgrade(&server), Mutex::new(Some(world.way_after_restart())));
            server.spoil(move |reply| {
                let is_write = result_of(reply, op::WRITE).is_some();
                let next = after.lock().take_if(|_| is_write);
                if let (Some(next), Some(server)) = (next, dying.upgrade()) {
                    server.replace(next);
                    *reply = refused(op::SEQUENCE, status::BADSESSION);
                }
            });
        } else {
            server.replace(world.way_after_restart());
        }
        let stat = ops::setattr_open(&mounted.client.op(&root()), &file, &times()).unwrap();
        server.obey();
        assert_eq!(stat.attributes.mtime, THEN);
        assert!(mounted.sent().contains("NFSv4.EXCHANGE_ID 1"));
        assert_eq!(ops::close(&mounted.client.op(&root()), &file), Ok(()));
        world.vfs.lose_unstable_data();
        assert_eq!(found(&world, "file"), (BYTES.to_vec(), THEN), "executes {executes}");
    }
}

/// A thread that sets times while the test holds the write-back.
fn while_held(
    mounted: &BenchMount,
    later: &Later,
    caller: &Caller,
    file: &Arc<OpenFile>,
    act: impl FnOnce(),
) {
    thread::scope(|scope| {
        let setting = scope.spawn(|| ops::setattr_open(&mounted.client.op(caller), file, &times()));
        while !later.has_work() {
            thread::yield_now();
        }
        act();
        while !setting.is_finished() {
            later.run_all();
            thread::yield_now();
        }
        assert_eq!(setting.join().unwrap().map(|stat| stat.attributes.mtime), Err(Errno::PERM));
    });
}

// SEMANTICS: write-4.
#[test]
fn times_are_never_set_with_the_credential_of_another_writer() {
    let world = World::new();
    let later = Arc::new(Later::default());
    let background = Arc::<Later>::clone(&later);
    let mounted = world.mount_v4_as(V4Setup { background, ..V4Setup::default() });
    let file = mounted.put(&root(), mounted.client.root(), "file", 0o666, b"");
    later.run_all();
    let open = |caller: &Caller| {
        let opened = ops::open(&mounted.client.op(caller), file.id, OpenFlags::writing());
        opened.unwrap().file
    };
    let (mine, roots) = (open(&user(5)), open(&root()));
    ops::write(&mounted.client.op(&user(5)), &mine, 0, BYTES).unwrap();
    // The owner overwrites all of it before it is sent.
    while_held(&mounted, &later, &user(5), &mine, || {
        ops::write(&mounted.client.op(&root()), &roots, 0, BYTES).unwrap();
    });
    // Data of the owner, and times of another user.
    ops::write(&mounted.client.op(&root()), &roots, 0, BYTES).unwrap();
    while_held(&mounted, &later, &user(5), &mine, || {});
    assert_eq!(found(&world, "file").0, BYTES);
    assert_ne!(found(&world, "file").1, THEN);
}

#[test]
fn an_interrupted_set_of_times_loses_no_data() {
    let world = World::new();
    let later = Arc::new(Later::default());
    let background = Arc::<Later>::clone(&later);
    let mounted = world.mount_v4_as(V4Setup { background, ..V4Setup::default() });
    let file = written(&mounted, &root(), "file", BYTES);
    let interrupt = Interrupt::new();
    interrupt.raise();
    let killed = Caller { interrupt, ..root() };
    let refused = ops::setattr_open(&mounted.client.op(&killed), &file, &times());
    assert_eq!(refused.map(|_| ()), Err(Errno::INTR));
    mounted.sent();
    later.run_all();
    assert_eq!(mounted.sent(), "NFSv4.WRITE 1");
    assert!(mounted.client.unwritten().is_empty());
    let (bytes, mtime) = found(&world, "file");
    assert_eq!(bytes, BYTES);
    assert_ne!(mtime, THEN, "the call has failed");
}
