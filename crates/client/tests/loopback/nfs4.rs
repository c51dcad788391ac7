//! NFSv4.1: the requests of each operation, and what they come to.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use curt_client::{DirEmit, OpenFlags, data::ReadTarget, ops};
use curt_policy::{CacheOptions, FillMode};
use curt_rpc::client::CallError;
use curt_types::{FileKind, SetAttributes};
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::{
    nfs4_faults::{self, times},
    scripted_server::{HEAD, ScriptedServer, bytes, op, refused, set_word, status},
    world::{BenchMount, World, root, user},
};

fn mounted(world: &World) -> BenchMount {
    let mounted = world.mount_v4(CacheOptions::default());
    mounted.sent();
    mounted
}

/// The sum of what [`BenchMount::sent`] says.
fn number_of_requests(sent: &str) -> u32 {
    sent.split_whitespace().filter_map(|word| word.parse::<u32>().ok()).sum()
}

fn names(mounted: &BenchMount) -> Vec<String> {
    let op = mounted.client.op(&root());
    let directory = ops::opendir(&op, mounted.client.root()).unwrap();
    let mut names = Vec::new();
    let mut emit = |entry: &curt_client::DirEntry<'_>| {
        names.push(String::from_utf8(entry.name.to_vec()).unwrap());
        DirEmit::Taken
    };
    ops::readdir(&op, &directory, 0, false, &mut emit).unwrap();
    names.sort();
    names
}

#[test]
fn a_file_is_created_written_closed_and_read_in_one_compound_each() {
    let world = World::new();
    let mounted = mounted(&world);
    let top = mounted.client.root();
    let made = mounted.put(&root(), top, "file", 0o644, b"some bytes");
    assert_eq!(mounted.sent(), "NFSv4.OPEN 1 NFSv4.WRITE 1", "CLOSE is piggybacked");
    assert_eq!(mounted.cat(&root(), made.id), Ok(b"some bytes".to_vec()));
    mounted.sent();
    assert_eq!(names(&mounted), [".", "..", "file"]);
    let other = world.mount_v4_over(CacheOptions::default(), "two", world.way());
    let found = other.lookup(&root(), other.client.root(), "file").unwrap();
    other.sent();
    assert_eq!(other.cat(&root(), found.id), Ok(b"some bytes".to_vec()));
    assert_eq!(other.sent(), "NFSv4.OPEN 1", "OPEN brings attributes, rights and data");
}

#[test]
fn names_are_made_moved_linked_and_removed() {
    let world = World::new();
    let mounted = mounted(&world);
    let top = mounted.client.root();
    let op = || mounted.client.op(&root());
    let directory = ops::mkdir(&op(), top, b"d", 0o755).unwrap().id;
    ops::symlink(&op(), directory, b"link", b"target").unwrap();
    let link = mounted.lookup(&root(), directory, "link").unwrap();
    assert_eq!(&*ops::readlink(&op(), link.id).unwrap(), b"target");
    let file = mounted.put(&root(), directory, "a", 0o600, b"x");
    ops::rename(&op(), directory, b"a", top, b"b", curt_client::RenameMode::Replace).unwrap();
    assert_eq!(mounted.lookup(&root(), directory, "a").unwrap_err(), Errno::NOENT);
    ops::link(&op(), file.id, top, b"c").unwrap();
    assert_eq!(ops::getattr(&op(), file.id).unwrap().attributes.nlink, 2);
    assert_eq!(ops::rmdir(&op(), top, b"b"), Err(Errno::NOTDIR));
    assert_eq!(ops::unlink(&op(), top, b"d").unwrap_err(), Errno::ISDIR);
    assert_eq!(ops::rmdir(&op(), top, b"d"), Err(Errno::NOTEMPTY));
    ops::unlink(&op(), directory, b"link").unwrap();
    ops::rmdir(&op(), top, b"d").unwrap();
    assert_eq!(names(&mounted), [".", "..", "b", "c"]);
    let set = SetAttributes { uid: Some(7), gid: Some(8), ..SetAttributes::with_mode(0o640) };
    let stat = ops::setattr(&op(), file.id, &set).unwrap().attributes;
    assert_eq!((stat.uid, stat.gid, stat.mode), (7, 8, 0o640));
    assert_eq!(mounted.cat(&user(9), file.id).unwrap_err(), Errno::ACCESS);
    assert!(ops::statfs(&op(), top).unwrap().blocks > 0);
}

#[test]
fn an_exclusive_creation_takes_one_request_and_finds_an_existing_file() {
    let world = World::new();
    let mounted = mounted(&world);
    let top = mounted.client.root();
    let flags = OpenFlags { exclusive: true, ..OpenFlags::writing() };
    let op = || mounted.client.op(&root());
    let (_, opened) = ops::create(&op(), top, b"new", 0o640, flags).unwrap();
    assert_eq!(mounted.sent(), "NFSv4.OPEN 1");
    assert_eq!(ops::getattr(&op(), opened.file.id()).unwrap().attributes.mode, 0o640);
    assert_eq!(ops::create(&op(), top, b"new", 0o640, flags).unwrap_err(), Errno::EXIST);
}

/// Changes the results of a reply.
type SpoilResults = Box<dyn Fn(&mut Vec<u8>) + Send + Sync>;

// SEMANTICS: sessions-2.
#[test]
fn after_a_restart_of_the_server_files_stay_open() {
    let world = World::new();
    let server = ScriptedServer::new(&world);
    let mounted = nfs4_faults::mounted(&world, &server);
    let top = mounted.client.root();
    let op = || mounted.client.op(&root());
    let flags = OpenFlags { read: true, ..OpenFlags::writing() };
    let (_, opened) = ops::create(&op(), top, b"file", 0o644, flags).unwrap();
    ops::write(&op(), &opened.file, 0, b"before").unwrap();
    ops::fsync(&op(), &opened.file, false).unwrap();
    mounted.sent();
    server.replace(world.way_after_restart());
    ops::write(&op(), &opened.file, 6, b" after").unwrap();
    ops::fsync(&op(), &opened.file, false).unwrap();
    // WRITE finds the session lost; the reclaim is refused, because this server knows no client.
    let sent = mounted.sent();
    for part in ["NFSv4.EXCHANGE_ID 1", "NFSv4.RECLAIM_COMPLETE 1", "NFSv4.OPEN 2"] {
        assert!(sent.contains(part), "{sent}");
    }
    ops::close(&op(), &opened.file).unwrap();
    assert_eq!(mounted.cat(&root(), opened.file.id()), Ok(b"before after".to_vec()));
}

/// The status of an OPEN behind SEQUENCE and PUTFH in a reply.
fn open_status(reply: &[u8]) -> Option<u32> {
    let word = |at: usize| Some(u32::from_be_bytes(*reply.get(4 * at..)?.first_chunk()?));
    (word(HEAD + 2) == Some(op::OPEN)).then(|| word(HEAD + 3))?
}

// SEMANTICS: sessions-2.
#[test]
fn a_file_that_is_read_and_written_stays_open_for_both_if_its_restoring_is_interrupted() {
    let world = World::new();
    let server = ScriptedServer::new(&world);
    let mounted = nfs4_faults::mounted(&world, &server);
    let op = || mounted.client.op(&root());
    let file = mounted.put(&root(), mounted.client.root(), "file", 0o644, b"before");
    let open = |flags| ops::open(&op(), file.id, flags).unwrap().file;
    let (writer, reader) = (open(OpenFlags::writing()), open(OpenFlags::reading()));
    assert_eq!(ops::read(&op(), &reader, 0, 9).unwrap().to_vec(), b"before");
    // Both accesses are at the server.
    world.seconds(10);
    server.replace(world.way_after_restart());
    // It is opened for reading again, and then the thread is interrupted.
    let opens = AtomicU32::new(0);
    server.script(move |asked| {
        let reply = asked.execute();
        let is_opened = reply.as_ref().is_ok_and(|reply| open_status(reply) == Some(0));
        let is_interrupted = is_opened && opens.fetch_add(1, Relaxed) == 1;
        Some(if is_interrupted { Err(CallError::Interrupted) } else { reply })
    });
    ops::write(&op(), &writer, 0, b"after").unwrap();
    let _ = ops::fsync(&op(), &writer, false);
    server.obey();
    assert_eq!(ops::fsync(&op(), &writer, false), Ok(()));
    ops::close(&op(), &writer).unwrap();
    ops::close(&op(), &reader).unwrap();
    let other = world.mount_v4_over(CacheOptions::default(), "two", world.way());
    let found = other.lookup(&root(), other.client.root(), "file").unwrap();
    assert_eq!(other.cat(&root(), found.id), Ok(b"aftere".to_vec()));
}

// SEMANTICS: sessions-2.
#[test]
fn a_file_that_cannot_be_opened_after_a_restart_fails_for_its_users_alone() {
    let world = World::new();
    let server = ScriptedServer::new(&world);
    let mounted = nfs4_faults::mounted(&world, &server);
    let top = mounted.client.root();
    let op = || mounted.client.op(&root());
    let by_user = || mounted.client.op(&user(5));
    let (found, gone) = ops::create(&by_user(), top, b"gone", 0o644, OpenFlags::writing()).unwrap();
    let (_, kept) = ops::create(&op(), top, b"kept", 0o644, OpenFlags::writing()).unwrap();
    // The user may not open it again.
    let set = SetAttributes { uid: Some(0), ..SetAttributes::with_mode(0) };
    ops::setattr(&op(), found.id, &set).unwrap();
    server.replace(world.way_after_restart());
    ops::write(&by_user(), &gone.file, 0, b"lost").unwrap();
    assert_eq!(ops::fsync(&by_user(), &gone.file, false), Err(Errno::IO));
    ops::write(&op(), &kept.file, 0, b"kept").unwrap();
    assert_eq!(ops::fsync(&op(), &kept.file, false), Ok(()));
}

#[test]
fn a_server_that_asks_for_time_gets_it() {
    let world = World::new();
    let server = ScriptedServer::new(&world);
    let mounted = nfs4_faults::mounted(&world, &server);
    let is_delayed = times(20);
    server.spoil(move |reply| {
        if is_delayed() {
            *reply = refused(op::SEQUENCE, status::DELAY);
        }
    });
    let before = world.clock.passed();
    // The slot is behind: the server has executed what it seemed to delay.
    let _ = mounted.lookup(&root(), mounted.client.root(), "name");
    assert!(world.clock.passed() - before > Duration::from_secs(60), "DELAY is awaited");
    server.obey();
    assert_eq!(mounted.lookup(&root(), mounted.client.root(), "name").unwrap_err(), Errno::NOENT);
}

// SEMANTICS: sessions-6.
#[test]
fn a_server_that_breaks_the_protocol_causes_errors_and_no_loop() {
    let world = World::new();
    let server = ScriptedServer::new(&world);
    let mounted = nfs4_faults::mounted(&world, &server);
    let top = mounted.client.root();
    let file = mounted.put(&root(), top, "file", 0o644, b"x");
    let attempt = |spoil: SpoilResults| {
        server.spoil(spoil);
        world.seconds(100);
        mounted.sent();
        let result = ops::getattr(&mounted.client.op(&root()), file.id);
        let requests = number_of_requests(&mounted.sent());
        // Some minutes, with growing pauses, each with a new session.
        assert!((1..250).contains(&requests), "{requests} requests");
        server.obey();
        world.seconds(100);
        assert!(ops::getattr(&mounted.client.op(&root()), file.id).is_ok(), "it recovers");
        result.unwrap_err()
    };
    // Fewer results than operations, and success.
    assert_eq!(attempt(Box::new(|reply| set_word(reply, 2, 2))), Errno::IO);
    // A reply for another slot: word 3 and 4 are the result's header, the session has four words.
    // What is sent again may be refused.
    let set_long = |word, value| {
        move |reply: &mut Vec<u8>| {
            if reply.len() > 4 * word {
                set_word(reply, word, value);
            }
        }
    };
    assert_eq!(attempt(Box::new(set_long(10, 77))), Errno::IO);
    // Another sequence number.
    assert_eq!(attempt(Box::new(set_long(9, 1_000_000))), Errno::IO);
    // Another operation.
    assert_eq!(attempt(Box::new(|reply| set_word(reply, 3, 9))), Errno::IO);
    // Nothing at all.
    assert_eq!(attempt(Box::new(|reply| reply.clear())), Errno::IO);
    // Attributes that nobody asked for: words 16 and 17 are the header of GETATTR's result.
    assert_eq!(attempt(Box::new(|reply| set_word(reply, 19, u32::MAX))), Errno::IO);
    // An unknown status, and a session that is never known.
    assert_eq!(attempt(Box::new(|reply| set_word(reply, 0, 4_000_000))), Errno::IO);
    assert_eq!(attempt(Box::new(|reply| *reply = refused(op::SEQUENCE, status::BADSESSION))), Errno::IO);
}

const CB_PATH_DOWN: u32 = 1;

/// A server that cannot call the client until a connection is bound.
fn unbound(server: &ScriptedServer) {
    let is_bound = AtomicBool::new(false);
    server.spoil(move |reply| {
        let word = |at: usize| reply.get(4 * at..).and_then(|rest| rest.first_chunk().copied());
        match word(3).map(u32::from_be_bytes) {
            Some(op::BIND_CONN_TO_SESSION) => is_bound.store(true, Relaxed),
            // The status flags of SEQUENCE.
            _ if !is_bound.load(Relaxed) => set_word(reply, 13, CB_PATH_DOWN),
            _ => {}
        }
    });
}

// SEMANTICS: sessions-13.
#[test]
fn a_connection_that_replaces_one_which_is_lost_as_it_is_bound_is_bound_too() {
    let world = World::new();
    let server = ScriptedServer::new(&world);
    let mounted = nfs4_faults::mounted(&world, &server);
    let change = || {
        let (op, top) = (mounted.client.op(&root()), mounted.client.root());
        ops::setattr(&op, top, &SetAttributes::with_mode(0o777)).unwrap();
        mounted.sent()
    };
    change();
    let (lost, is_first) = (Arc::downgrade(&server), times(1));
    server.spoil(move |reply| {
        let operation = reply.get(12..).and_then(|rest| rest.first_chunk().copied());
        if operation.map(u32::from_be_bytes) != Some(op::BIND_CONN_TO_SESSION) {
            set_word(reply, 13, CB_PATH_DOWN);
        } else if is_first() {
            lost.upgrade().unwrap().replacements.fetch_add(1, Relaxed);
        }
    });
    server.replacements.fetch_add(1, Relaxed);
    assert_eq!(change(), "NFSv4.SETATTR 1 NFSv4.BIND_CONN_TO_SESSION 2");
    assert_eq!(change(), "NFSv4.SETATTR 1");
}

// SEMANTICS: sessions-13.
#[test]
fn a_connection_is_bound_for_the_servers_calls_as_soon_as_it_is_lost() {
    let world = World::new();
    let server = ScriptedServer::new(&world);
    let mounted = nfs4_faults::mounted(&world, &server);
    let top = mounted.client.root();
    let change = || {
        ops::setattr(&mounted.client.op(&root()), top, &SetAttributes::with_mode(0o777)).unwrap();
        mounted.sent()
    };
    change();
    let bound = "NFSv4.SETATTR 1 NFSv4.BIND_CONN_TO_SESSION 1";
    // Within the first lease, and again.
    for _ in 0..2 {
        server.replacements.fetch_add(1, Relaxed);
        unbound(&server);
        assert_eq!(change(), bound);
        assert_eq!(change(), "NFSv4.SETATTR 1");
    }
    // A server that says so without a loss is asked once in a lease.
    server.spoil(|reply| {
        if reply.len() > 4 * 13 {
            set_word(reply, 13, CB_PATH_DOWN);
        }
    });
    assert_eq!(change(), "NFSv4.SETATTR 1");
    world.seconds(90);
    assert_eq!(change(), bound);
    assert_eq!(change(), "NFSv4.SETATTR 1");
}

/// Takes bytes and forgets them.
struct Nowhere;

impl ReadTarget for Nowhere {
    fn put(&self, _: &[&[u8]]) {}
}

// SEMANTICS: sessions-13.
#[test]
fn a_connection_is_bound_although_all_replies_are_consumed() {
    let world = World::new();
    let server = ScriptedServer::new(&world);
    let mounted = nfs4_faults::mounted(&world, &server);
    let made = world.mount_v4_over(CacheOptions::default(), "two", world.way());
    made.put(&root(), made.client.root(), "file", 0o644, &[7; 1 << 20]);
    let found = mounted.lookup(&root(), mounted.client.root(), "file").unwrap();
    let flags = OpenFlags { direct: true, ..OpenFlags::reading() };
    let opened = ops::open(&mounted.client.op(&root()), found.id, flags).unwrap().file;
    let target: Arc<dyn ReadTarget> = Arc::new(Nowhere);
    let read = || ops::read_to(&mounted.client.op(&root()), &opened, 0, 65_536, &target).unwrap();
    read();
    mounted.sent();
    unbound(&server);
    server.has_sinks.store(true, Relaxed);
    read();
    assert_eq!(server.consumed.load(Relaxed), 1);
    assert!(mounted.sent().contains("NFSv4.BIND_CONN_TO_SESSION 1"));
}

/// How long a look-up takes whose PUTFH is refused `count` times with `status`.
fn lookup_refused(status: u32, count: u32) -> Duration {
    let world = World::new();
    let server = ScriptedServer::new(&world);
    let mounted = nfs4_faults::mounted(&world, &server);
    let is_refused = times(count);
    server.spoil(move |reply| {
        if is_refused() {
            reply.truncate(4 * HEAD);
            reply.extend(bytes(&[op::PUTFH, status]));
            set_word(reply, 0, status);
            set_word(reply, 2, 2);
        }
    });
    let before = world.clock.passed();
    let found = mounted.lookup(&root(), mounted.client.root(), "name");
    assert_eq!(found.unwrap_err(), Errno::NOENT);
    world.clock.passed() - before
}

#[test]
fn a_grace_period_of_minutes_is_awaited() {
    assert!(lookup_refused(status::GRACE, 1) >= Duration::from_millis(100));
    assert!(lookup_refused(status::GRACE, 20) > Duration::from_secs(60));
}

/// A recall takes a round trip or two, a tape minutes.
#[test]
fn a_request_that_waits_for_a_recall_is_repeated_at_once_and_one_for_a_tape_rarely() {
    let once = lookup_refused(status::DELAY, 1);
    assert!(once >= Duration::from_millis(1) && once < Duration::from_millis(10), "{once:?}");
    assert!(lookup_refused(status::DELAY, 20) > Duration::from_secs(40));
}

// SEMANTICS: sessions-6.
#[test]
fn a_stateid_that_is_never_right_causes_an_error_and_no_loop() {
    let world = World::new();
    let server = ScriptedServer::new(&world);
    let mounted = nfs4_faults::mounted(&world, &server);
    let file = mounted.put(&root(), mounted.client.root(), "file", 0o644, b"x");
    // Its CLOSE is piggybacked on this.
    let _ = mounted.lookup(&root(), mounted.client.root(), "none");
    server.spoil(|reply| {
        let word = |at: usize| reply.get(4 * at..4 * at + 4).map(|word| word.to_vec());
        let opened = (HEAD..reply.len() / 4).find(|at| {
            word(*at) == Some(op::OPEN.to_be_bytes().to_vec()) && word(at + 1) == Some(vec![0; 4])
        });
        if let Some(at) = opened {
            set_word(reply, at + 3, 0x5bad_5bad);
        }
    });
    let opened = ops::open(&mounted.client.op(&root()), file.id, OpenFlags::writing()).unwrap().file;
    ops::write(&mounted.client.op(&root()), &opened, 0, b"y").unwrap();
    mounted.sent();
    assert_eq!(ops::fsync(&mounted.client.op(&root()), &opened, false), Err(Errno::IO));
    let sent = mounted.sent();
    assert!((2..100).contains(&number_of_requests(&sent)), "{sent}");
    server.obey();
    ops::close(&mounted.client.op(&root()), &opened).unwrap();
    assert_eq!(mounted.cat(&root(), file.id), Ok(b"x".to_vec()));
}

#[test]
fn a_session_that_shrinks_to_one_slot_is_used_by_all() {
    let world = World::new();
    let server = ScriptedServer::new(&world);
    let mounted = world.mount_v4_over(CacheOptions::default(), "one", Arc::<ScriptedServer>::clone(&server));
    let file = mounted.put(&root(), mounted.client.root(), "file", 0o644, b"x");
    let slots = Arc::new(Mutex::new(Vec::new()));
    let used = Arc::clone(&slots);
    server.script(move |asked| {
        // Of SEQUENCE.
        used.lock().push(asked.words[9]);
        // The target of the highest slot.
        Some(asked.spoil(|reply| set_word(reply, 12, 0)))
    });
    world.seconds(100);
    assert!(ops::getattr(&mounted.client.op(&root()), file.id).is_ok());
    slots.lock().clear();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..10 {
                    world.seconds(100);
                    assert!(ops::getattr(&mounted.client.op(&root()), file.id).is_ok());
                }
            });
        }
    });
    let slots = slots.lock();
    assert!(slots.len() >= 10 && slots.iter().all(|slot| *slot == 0), "{slots:?}");
}

#[test]
fn an_interrupted_request_leaves_its_slot_in_doubt_until_a_sequence_settles_it() {
    let world = World::new();
    let server = ScriptedServer::new(&world);
    let mounted = nfs4_faults::mounted(&world, &server);
    let top = mounted.client.root();
    let op = || mounted.client.op(&root());
    mounted.sent();
    // The server has executed it, and nobody learns that.
    let is_first = times(1);
    server.script(move |asked| is_first().then(|| asked.execute().and(Err(CallError::Interrupted))));
    assert_eq!(ops::mkdir(&op(), top, b"d", 0o755).unwrap_err(), Errno::INTR);
    assert_eq!(mounted.sent(), "NFSv4.CREATE 1 NFSv4.SEQUENCE 1");
    assert!(mounted.lookup(&root(), top, "d").is_ok());
    mounted.sent();
    ops::mkdir(&op(), top, b"e", 0o755).unwrap();
    assert_eq!(mounted.sent(), "NFSv4.CREATE 1", "and never again");
}

// SEMANTICS: sessions-7.
#[test]
fn an_open_for_reading_waits_for_a_read_that_is_sent() {
    let world = World::new();
    let sloppy = CacheOptions { sloppy_open: Duration::from_secs(3), ..CacheOptions::default() };
    let mounted = world.mount_v4(sloppy);
    let top = mounted.client.root();
    let large = mounted.put(&user(5), top, "large", 0o644, &[7; 300_000]);
    let op = || mounted.client.op(&user(5));
    let other = world.mount_v4_over(sloppy, "two", world.way());
    let found = other.lookup(&user(5), other.client.root(), "large").unwrap();
    let op_other = || other.client.op(&user(5));
    other.sent();
    let opened = ops::open(&op_other(), found.id, OpenFlags::reading()).unwrap().file;
    assert_eq!(other.sent(), "", "its look-up has brought the rights, and a large file is not read");
    assert_eq!(ops::read(&op_other(), &opened, 0, 9).unwrap().to_vec(), [7; 9]);
    assert_eq!(other.sent(), "NFSv4.READ 1", "OPEN and READ");
    let again = ops::open(&op_other(), found.id, OpenFlags::reading()).unwrap().file;
    assert_eq!(ops::read(&op_other(), &again, 0, 9).unwrap().to_vec(), [7; 9]);
    assert_eq!(other.sent(), "", "data in memory need no open");
    ops::close(&op_other(), &again).unwrap();
    ops::close(&op_other(), &opened).unwrap();
    let never_read = ops::open(&op(), large.id, OpenFlags::reading()).unwrap().file;
    mounted.sent();
    ops::close(&op(), &never_read).unwrap();
    world.seconds(1);
    let _ = mounted.lookup(&user(5), top, "none");
    assert_eq!(mounted.sent(), "NFSv4.LOOKUP 1", "nothing was opened, so nothing is closed");
}

// SEMANTICS: sessions-7.
#[test]
fn with_sloppycto_a_look_up_brings_all_that_a_small_file_needs() {
    let world = World::new();
    let made = mounted(&world);
    let sloppy = CacheOptions { sloppy_open: Duration::from_secs(3), ..CacheOptions::default() };
    let mounted = world.mount_v4_over(sloppy, "two", world.way());
    let top = mounted.client.root();
    made.put(&root(), made.client.root(), "small", 0o644, b"some bytes");
    made.put(&root(), made.client.root(), "secret", 0o600, b"of root");
    made.put(&root(), made.client.root(), "large", 0o644, &[7; 100_000]);
    made.put(&root(), made.client.root(), "changed", 0o644, b"before");
    mounted.sent();
    let small = mounted.lookup(&user(5), top, "small").unwrap();
    assert_eq!(mounted.cat(&user(5), small.id), Ok(b"some bytes".to_vec()));
    assert_eq!(mounted.sent(), "NFSv4.LOOKUP 1", "OPEN is not needed for data in memory");
    let secret = mounted.lookup(&root(), top, "secret").unwrap();
    assert_eq!(mounted.cat(&user(5), secret.id), Err(Errno::ACCESS));
    assert_eq!(mounted.cat(&root(), secret.id), Ok(b"of root".to_vec()));
    mounted.sent();
    let large = mounted.lookup(&user(5), top, "large").unwrap();
    assert_eq!(mounted.cat(&user(5), large.id).unwrap().len(), 100_000);
    assert!(mounted.sent().contains("NFSv4.READ"), "a part of a file is no use");
    // What was read is no older than the attributes: an open after a change elsewhere reads again.
    let changed = mounted.lookup(&user(5), top, "changed").unwrap();
    let opened = made.lookup(&root(), made.client.root(), "changed").unwrap();
    let opened = ops::open(&made.client.op(&root()), opened.id, OpenFlags::writing()).unwrap().file;
    ops::write(&made.client.op(&root()), &opened, 0, b"after!").unwrap();
    ops::close(&made.client.op(&root()), &opened).unwrap();
    world.seconds(4);
    assert_eq!(mounted.cat(&user(5), changed.id), Ok(b"after!".to_vec()));
}

// SEMANTICS: sessions-7.
#[test]
fn a_delayed_open_gives_no_right_that_the_server_refuses() {
    let world = World::new();
    let mounted = mounted(&world);
    let file = mounted.put(&root(), mounted.client.root(), "file", 0o600, b"x");
    let large = mounted.put(&root(), mounted.client.root(), "large", 0o600, &[7; 300_000]);
    for file in [file.id, large.id] {
        let refused = ops::open(&mounted.client.op(&user(5)), file, OpenFlags::reading());
        assert_eq!(refused.unwrap_err(), Errno::ACCESS);
    }
}

#[test]
fn reads_with_opens_end_if_nobody_uses_the_data() {
    let world = World::new();
    let (made, mounted) = (mounted(&world), world.mount_v4_over(CacheOptions::default(), "two", world.way()));
    for number in 0..300 {
        made.put(&root(), made.client.root(), &format!("file{number}"), 0o644, b"x");
    }
    let count = |reads: bool, from: u32| {
        let mut read = 0;
        for number in from..from + 100 {
            let name = format!("file{number}");
            let found = mounted.lookup(&root(), mounted.client.root(), &name).unwrap();
            mounted.sent();
            let opened = ops::open(&mounted.client.op(&root()), found.id, OpenFlags::reading()).unwrap().file;
            read += u32::from(mounted.sent() == "NFSv4.OPEN 1");
            if reads {
                ops::read(&mounted.client.op(&root()), &opened, 0, 9).unwrap();
            }
            ops::close(&mounted.client.op(&root()), &opened).unwrap();
        }
        read
    };
    assert_eq!(count(false, 0), 32 + 1, "one of the next 32 is tried, then one of 64");
    assert!(count(true, 100) < 10);
    assert!(count(true, 200) < 20);
}

// SEMANTICS: sessions-1.
#[test]
fn opens_are_shared_and_upgraded() {
    let world = World::new();
    let mounted = mounted(&world);
    let top = mounted.client.root();
    let file = mounted.put(&root(), top, "file", 0o666, b"x");
    let open = |flags| ops::open(&mounted.client.op(&root()), file.id, flags).unwrap().file;
    let close = |file: &curt_client::OpenFile| ops::close(&mounted.client.op(&root()), file).unwrap();
    mounted.sent();
    let first = open(OpenFlags::reading());
    assert_eq!(mounted.sent(), "NFSv4.OPEN 1");
    let second = open(OpenFlags::reading());
    assert_eq!(mounted.sent(), "NFSv4.GETATTR 1", "close-to-open, by the same open");
    let writer = open(OpenFlags::writing());
    assert_eq!(mounted.sent(), "NFSv4.OPEN 1", "an upgrade");
    close(&writer);
    close(&second);
    close(&first);
    assert_eq!(mounted.sent(), "");
    let other = ops::open(&mounted.client.op(&user(5)), file.id, OpenFlags::reading()).unwrap().file;
    assert_eq!(mounted.sent(), "NFSv4.OPEN 1", "another owner");
    close(&other);
}

// SEMANTICS: sessions-5.
#[test]
fn a_name_that_another_client_has_given_to_another_file_is_looked_up_although_the_old_one_is_kept() {
    let world = World::new();
    let (one, other) = (mounted(&world), world.mount_v4_over(CacheOptions::default(), "two", world.way()));
    let (top, other_top) = (one.client.root(), other.client.root());
    one.put(&root(), top, "file", 0o644, b"old");
    let found = other.lookup(&root(), other_top, "file").unwrap();
    // The server keeps what is open.
    let kept = ops::open(&other.client.op(&root()), found.id, OpenFlags::writing()).unwrap().file;
    assert_eq!(other.cat(&root(), found.id), Ok(b"old".to_vec()));
    ops::unlink(&one.client.op(&root()), top, b"file").unwrap();
    one.put(&root(), top, "file", 0o644, b"new one");
    assert_eq!(other.cat(&root(), found.id), Err(Errno::STALE));
    let found = other.lookup(&root(), other_top, "file").unwrap();
    assert_eq!(other.cat(&root(), found.id), Ok(b"new one".to_vec()));
    ops::close(&other.client.op(&root()), &kept).unwrap();
}

// SEMANTICS: sessions-5.
#[test]
fn what_another_client_has_closed_is_read_after_the_next_open() {
    let world = World::new();
    let one = mounted(&world);
    let other = world.mount_v4_over(CacheOptions::default(), "two", world.way());
    let file = one.put(&root(), one.client.root(), "file", 0o666, b"first");
    let found = other.lookup(&root(), other.client.root(), "file").unwrap();
    assert_eq!(other.cat(&root(), found.id), Ok(b"first".to_vec()));
    let opened = ops::open(&one.client.op(&root()), file.id, OpenFlags::writing()).unwrap().file;
    ops::write(&one.client.op(&root()), &opened, 0, b"other").unwrap();
    ops::close(&one.client.op(&root()), &opened).unwrap();
    assert_eq!(other.cat(&root(), found.id), Ok(b"other".to_vec()));
}

// SEMANTICS: sessions-5.
#[test]
fn a_second_change_within_one_step_of_the_servers_clock_is_noticed_with_the_next_one() {
    let world = World::with_time_step(Duration::from_secs(1));
    let one = mounted(&world);
    let other = world.mount_v4_over(CacheOptions::default(), "two", world.way());
    let file = one.put(&root(), one.client.root(), "file", 0o666, b"first");
    let found = other.lookup(&root(), other.client.root(), "file").unwrap();
    let write = |bytes| {
        let opened = ops::open(&one.client.op(&root()), file.id, OpenFlags::writing()).unwrap().file;
        ops::write(&one.client.op(&root()), &opened, 0, bytes).unwrap();
        ops::close(&one.client.op(&root()), &opened).unwrap();
    };
    let read = || other.cat(&root(), found.id).unwrap();
    world.seconds(10);
    write(b"other");
    assert_eq!(read(), b"other");
    write(b"again");
    assert_eq!(read(), b"other", "the change attribute is the same");
    world.seconds(1);
    write(b"third");
    assert_eq!(read(), b"third");
}

// SEMANTICS: sessions-4.
#[test]
fn users_and_groups_are_sent_and_read_as_numbers_and_names_are_nobody() {
    const NUMBERS: &[u8] = b"\0\0\0\x041234\0\0\0\x045678";
    let world = World::new();
    let server = ScriptedServer::new(&world);
    let mounted = nfs4_faults::mounted(&world, &server);
    let file = mounted.put(&root(), mounted.client.root(), "file", 0o644, b"x");
    let has_numbers = |bytes: &[u8]| bytes.windows(NUMBERS.len()).position(|part| part == NUMBERS);
    let sent = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&sent);
    server.script(move |asked| {
        let is_found = asked.main() == op::SETATTR && has_numbers(&bytes(&asked.words)).is_some();
        count.fetch_add(is_found.into(), Relaxed);
        None
    });
    let set = SetAttributes { uid: Some(1234), gid: Some(5678), ..SetAttributes::default() };
    let owners = |stat: curt_client::InodeStat| (stat.attributes.uid, stat.attributes.gid);
    let op = || mounted.client.op(&root());
    assert_eq!(ops::setattr(&op(), file.id, &set).map(owners), Ok((1234, 5678)));
    assert_eq!(sent.load(Relaxed), 1);
    world.seconds(100);
    assert_eq!(ops::getattr(&op(), file.id).map(owners), Ok((1234, 5678)));
    server.spoil(move |reply| {
        if let Some(at) = has_numbers(reply) {
            reply[at + 4..at + 8].copy_from_slice(b"root");
        }
    });
    world.seconds(100);
    assert_eq!(ops::getattr(&op(), file.id).map(owners), Ok((65534, 5678)));
}

// SEMANTICS: sessions-8.
#[test]
fn over_nfs_3_each_of_many_names_is_a_request_and_no_version_follows_symbolic_links() {
    for is_nfs_3 in [true, false] {
        let world = World::new();
        let maker = world.mount(CacheOptions::default());
        let op = || maker.client.op(&root());
        let directory = ops::mkdir(&op(), maker.client.root(), b"d", 0o755).unwrap().id;
        for name in ["a", "b", "c"] {
            maker.put(&root(), directory, name, 0o644, b"x");
        }
        ops::symlink(&op(), maker.client.root(), b"link", b"d").unwrap();
        ops::symlink(&op(), directory, b"link", b"a").unwrap();
        // Over NFSv3 names are requested together with others of their directory otherwise.
        let alone = CacheOptions { fill: FillMode::Off, ..CacheOptions::default() };
        let mounted = if is_nfs_3 { world.mount(alone) } else { mounted(&world) };
        mounted.sent();
        let (op, top) = (mounted.client.op(&root()), mounted.client.root());
        let found = ops::stat_many(&op, top, &[b"d/a", b"d/b", b"d/c"]).unwrap();
        assert!(found.iter().all(Result::is_ok));
        assert_eq!(mounted.sent(), if is_nfs_3 { "LOOKUP 4" } else { "NFSv4.LOOKUP 1" });
        let found = ops::stat_many(&op, top, &[b"link", b"link/a"]).unwrap();
        assert_eq!(found[0].as_ref().map(|found| found.kind), Ok(FileKind::Symlink));
        assert!(found[1].is_err(), "{:?}", found[1]);
        let contents = ops::open_read_close(&op, top, &[b"d/link", b"link/a"]).unwrap();
        assert!(contents[0] == Err(Errno::LOOP) && contents[1].is_err(), "{contents:?}");
        let directory = mounted.lookup(&root(), top, "d").unwrap().id;
        mounted.sent();
        assert_eq!(ops::remove_many(&op, directory, &[b"link", b"b", b"c"]), Ok(vec![Ok(()); 3]));
        let sent = mounted.sent();
        assert!(sent.contains(if is_nfs_3 { "REMOVE 3" } else { "NFSv4.REMOVE 1" }), "{sent}");
        let left = ops::stat_many(&op, directory, &[b"a", b"b", b"link"]).unwrap();
        assert_eq!(left.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, false]);
    }
}

// SEMANTICS: sessions-8.
#[test]
fn many_paths_are_looked_up_and_read_in_few_requests() {
    let world = World::new();
    let mounted = mounted(&world);
    let top = mounted.client.root();
    let op = || mounted.client.op(&root());
    let directory = ops::mkdir(&op(), top, b"d", 0o755).unwrap().id;
    let below = ops::mkdir(&op(), directory, b"e", 0o755).unwrap().id;
    let paths: Vec<String> = (0..100).map(|number| format!("d/e/f{number}")).collect();
    for number in 0..100 {
        let bytes = vec![b'x'; number];
        mounted.put(&root(), below, &format!("f{number}"), 0o644, &bytes);
    }
    ops::symlink(&op(), directory, b"link", b"e").unwrap();
    mounted.put(&root(), top, "large", 0o644, &[7; 100_000]);
    let mut paths: Vec<&[u8]> = paths.iter().map(String::as_bytes).collect();
    paths.splice(50..50, [&b"d/none"[..], b"d", b"d/link", b"large", b"/d//./e/f3", b"d/../d", b"none/f"]);
    mounted.sent();
    let sizes: Vec<_> = ops::stat_many(&op(), top, &paths).unwrap();
    let sent = mounted.sent();
    // Seven operations each of 64 at most, and again after each path that is not there.
    assert_eq!(sent, "NFSv4.LOOKUP 14");
    let contents = ops::open_read_close(&op(), top, &paths).unwrap();
    assert_eq!((sizes.len(), contents.len()), (107, 107));
    for number in 0..107 {
        let (size, bytes) = (&sizes[number], &contents[number]);
        match number {
            50 | 56 => assert!(matches!((size, bytes), (Err(Errno::NOENT), Err(Errno::NOENT)))),
            51 => assert!(size.is_ok() && *bytes == Err(Errno::ISDIR)),
            52 => assert!(size.is_ok() && *bytes == Err(Errno::LOOP), "{bytes:?}"),
            53 => assert_eq!(bytes, &Ok(vec![7; 100_000])),
            54 => assert_eq!(bytes.as_ref().map(Vec::len), Ok(3)),
            55 => assert!(matches!((size, bytes), (Err(Errno::INVAL), Err(Errno::INVAL)))),
            _ => {
                let length = if number < 50 { number } else { number - 7 };
                assert_eq!(size.as_ref().map(|found| found.size), Ok(length as u64));
                assert_eq!(bytes.as_ref().map(Vec::len), Ok(length));
            }
        }
    }
}

// SEMANTICS: sessions-8.
#[test]
fn what_is_written_here_is_found_by_operations_on_many_paths() {
    let world = World::new();
    for mounted in [mounted(&world), world.mount(CacheOptions::default())] {
        let op = || mounted.client.op(&root());
        let (found, opened) =
            ops::create(&op(), mounted.client.root(), b"new", 0o644, OpenFlags::writing()).unwrap();
        ops::write(&op(), &opened.file, 0, b"unsent").unwrap();
        let sizes = ops::stat_many(&op(), mounted.client.root(), &[b"new"]).unwrap();
        assert_eq!(sizes[0].as_ref().map(|found| found.size), Ok(6));
        ops::write(&op(), &opened.file, 6, b" more").unwrap();
        let contents = ops::open_read_close(&op(), mounted.client.root(), &[b"new", b"none"]).unwrap();
        assert_eq!(contents, [Ok(b"unsent more".to_vec()), Err(Errno::NOENT)]);
        ops::close(&op(), &opened.file).unwrap();
        mounted.client.forget(found.id, 1);
        ops::unlink(&op(), mounted.client.root(), b"new").unwrap();
    }
}

// SEMANTICS: sessions-8.
#[test]
fn many_names_are_removed_in_few_requests_and_open_files_keep_a_silly_one() {
    let world = World::new();
    let mounted = mounted(&world);
    let top = mounted.client.root();
    let op = || mounted.client.op(&root());
    let names: Vec<String> = (0..30).map(|number| format!("f{number}")).collect();
    for name in &names {
        mounted.put(&root(), top, name, 0o644, b"x");
    }
    ops::mkdir(&op(), top, b"d", 0o755).unwrap();
    let kept = mounted.lookup(&root(), top, "f20").unwrap();
    let kept = ops::open(&op(), kept.id, OpenFlags::reading()).unwrap().file;
    let mut names: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
    names.splice(10..10, [&b"none"[..], b"d", b"f3", b"..", b"f11"]);
    mounted.sent();
    let removed = ops::remove_many(&op(), top, &names).unwrap();
    let sent = mounted.sent();
    assert_eq!(removed.len(), 35);
    for (name, result) in names.iter().zip(&removed).take(14) {
        let wanted = match *name {
            b"none" => Err(Errno::NOENT),
            b"d" | b".." => Err(Errno::ISDIR),
            _ => Ok(()),
        };
        if *name != b"f3" {
            assert_eq!(*result, wanted, "{}", name.escape_ascii());
        }
    }
    assert_eq!((removed[3], removed[12]), (Ok(()), Err(Errno::NOENT)), "a name is removed once");
    assert!(removed[14..].iter().filter(|result| result.is_err()).count() == 1, "f11 twice: {removed:?}");
    let requests: u32 = sent.split_whitespace().filter_map(|word| word.parse::<u32>().ok()).sum();
    assert!(requests <= 16, "{sent}");
    assert_eq!(ops::read(&op(), &kept, 0, 9).unwrap().to_vec(), b"x");
    let left = self::names(&mounted);
    assert!(left.len() == 4 && left.iter().any(|name| name.starts_with(".nfs")), "{left:?}");
    ops::close(&op(), &kept).unwrap();
    assert_eq!(self::names(&mounted), [".", "..", "d"]);
}
