//! NFSv4.1: servers that are restarted, slow or wrong.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed},
        mpsc::channel,
    },
    time::Duration,
};

use curt_client::{
    Caller, DirEmit, DirEntry, InodeId, OpenFlags, RenameMode, ops,
    protocol::{
        LockOperations, Protocol,
        v4::mounting::{Callbacks, EstablishError},
    },
    threads::BackgroundThreads,
};
use curt_observe::ClientCounter;
use curt_policy::CacheOptions;
use curt_rpc::client::{CallError, RecoveryMode, Transport};
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::{
    damaged_replies::{FIRST, make_files, reading_in_order},
    delegations::{self, delegated_many, mounted_on_timers},
    mutations::list,
    scripted_server::{ScriptedRequest, ScriptedServer, bytes, op, refused, set_word, status},
    world::{BenchMount, REQUEST, V4Setup, World, root, user},
};

pub(crate) fn mounted(world: &World, server: &Arc<ScriptedServer>) -> BenchMount {
    let way = Arc::<ScriptedServer>::clone(server);
    let mounted = world.mount_v4_calling(CacheOptions::default(), "one", way, &server.callbacks);
    mounted.sent();
    mounted
}

/// Whether something happens for one of the first `count` times.
pub(crate) fn times(count: u32) -> impl Fn() -> bool {
    let left = AtomicU32::new(count);
    move || left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok()
}

fn me() -> Caller {
    user(500)
}

/// A server that is restarted before it replies to a change.
struct RestartedServer {
    mounted: BenchMount,
    server: Arc<ScriptedServer>,
    world: World,
    /// The client takes it for an outage of the network.
    seems_an_outage: AtomicBool,
}

impl RestartedServer {
    fn new() -> Self {
        let world = World::new();
        let server = ScriptedServer::new(&world);
        let mounted = mounted(&world, &server);
        mounted.teach_time(&world);
        Self { mounted, server, world, seems_an_outage: AtomicBool::new(false) }
    }

    /// The result of `change`, whose operation the server executes before it is restarted, or does
    /// not.
    fn restart_at<T>(
        &self,
        operation: u32,
        is_executed: bool,
        change: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<(), Errno> {
        // Earlier changes are in the past.
        self.world.pass(Duration::from_millis(100));
        let (next, clock) = (self.world.way_after_restart(), Arc::clone(&self.world.clock));
        let (is_first, server) = (times(1), Arc::downgrade(&self.server));
        let seems_restarted = !self.seems_an_outage.load(Relaxed);
        self.server.script(move |asked| {
            if asked.main() != operation || !is_first() {
                return None;
            }
            if is_executed {
                asked.execute().unwrap();
            }
            asked.lost.set(Some((REQUEST, seems_restarted)));
            clock.pass(Duration::from_secs(5));
            server.upgrade()?.replace(Arc::clone(&next));
            None
        });
        let result = change().map(drop);
        self.server.obey();
        assert!(self.mounted.sent().contains("NFSv4.EXCHANGE_ID 1"), "the server was restarted");
        result
    }

    /// Restarts the server after `change` was executed.
    fn executed<T>(&self, operation: u32, change: impl FnOnce() -> Result<T, Errno>) -> Result<(), Errno> {
        self.restart_at(operation, true, change)
    }

    fn id(&self, name: &str) -> InodeId {
        self.mounted.lookup(&me(), self.mounted.client.root(), name).unwrap().id
    }
}

// SEMANTICS: rpc-12.
#[test]
fn a_change_that_a_restarted_server_had_executed_is_no_error_over_v4() {
    for seems_an_outage in [false, true] {
        let bed = RestartedServer::new();
        bed.seems_an_outage.store(seems_an_outage, Relaxed);
        let (client, top) = (&bed.mounted.client, bed.mounted.client.root());
        let op = || client.op(&me());
        bed.mounted.put(&me(), top, "f", 0o640, b"x");
        assert_eq!(bed.executed(op::CREATE, || ops::mkdir(&op(), top, b"d", 0o750)), Ok(()));
        assert_eq!(bed.executed(op::CREATE, || ops::symlink(&op(), top, b"s", b"to")), Ok(()));
        assert_eq!(bed.executed(op::OPEN, || ops::make_file(&op(), top, b"made", 0o640)), Ok(()));
        let create = || ops::create(&op(), top, b"readonly", 0o400, OpenFlags::writing());
        // Its creator may not open it: the server does not know that it has created it.
        assert_eq!(bed.executed(op::OPEN, create), Err(Errno::ACCESS));
        let file = bed.id("f");
        assert_eq!(bed.executed(op::LINK, || ops::link(&op(), file, top, b"l")), Ok(()));
        assert_eq!(bed.id("l"), bed.id("f"));
        let rename = || ops::rename(&op(), top, b"d", top, b"e", RenameMode::Replace);
        let directory = bed.id("d");
        assert_eq!(bed.executed(op::RENAME, rename), Ok(()));
        assert_eq!(bed.id("e"), directory);
        for (name, is_directory) in [("e", true), ("l", false), ("s", false)] {
            bed.id(name);
            let remove = || match is_directory {
                true => ops::rmdir(&op(), top, name.as_bytes()).map(drop),
                false => ops::unlink(&op(), top, name.as_bytes()).map(drop),
            };
            assert_eq!(bed.executed(op::REMOVE, remove), Ok(()), "{name}");
            assert_eq!(bed.mounted.lookup(&me(), top, name).unwrap_err(), Errno::NOENT);
        }
    }
}

// SEMANTICS: rpc-12.
#[test]
fn names_that_a_restarted_server_had_removed_in_one_compound_are_no_errors() {
    let bed = RestartedServer::new();
    let top = bed.mounted.client.root();
    let names: [&[u8]; 6] = [b"a", b"b", b"c", b"none", b"d", b"e"];
    for name in names.into_iter().filter(|name| *name != b"none") {
        bed.mounted.put(&me(), top, std::str::from_utf8(name).unwrap(), 0o640, b"x");
    }
    let removed = std::cell::RefCell::new(Vec::new());
    let remove = || ops::remove_many(&bed.mounted.client.op(&me()), top, &names);
    let remove = || remove().map(|results| *removed.borrow_mut() = results);
    assert_eq!(bed.executed(op::REMOVE, remove), Ok(()));
    let none = Err(Errno::NOENT);
    // The earlier copy ended at the name that is missing.
    assert_eq!(removed.into_inner(), [Ok(()), Ok(()), Ok(()), none, Ok(()), Ok(())]);
}

// SEMANTICS: rpc-12, sessions-8.
#[test]
fn names_that_a_server_had_removed_before_its_sessions_became_smaller_are_no_errors() {
    for is_executed in [true, false] {
        let bed = RestartedServer::new();
        let top = bed.mounted.client.root();
        let names: [&[u8]; 6] = [b"a", b"b", b"c", b"d", b"e", b"f"];
        for name in names {
            bed.mounted.put(&me(), top, std::str::from_utf8(name).unwrap(), 0o640, b"x");
        }
        bed.mounted.sent();
        bed.world.pass(Duration::from_millis(100));
        let is_first = times(1);
        restart_with_few_operations_at(&bed.world, &bed.server, move |asked| {
            if asked.main() != op::REMOVE || !is_first() {
                return false;
            }
            if is_executed {
                asked.execute().unwrap();
            }
            asked.lost.set(Some((REQUEST, true)));
            true
        });
        if !is_executed {
            let other = bed.world.mount_v4_over(CacheOptions::default(), "two", bed.world.way());
            ops::unlink(&other.client.op(&me()), other.client.root(), b"a").unwrap();
            bed.world.seconds(1);
        }
        let removed = ops::remove_many(&bed.mounted.client.op(&me()), top, &names).unwrap();
        let first = if is_executed { Ok(()) } else { Err(Errno::NOENT) };
        assert_eq!(removed[0], first);
        assert_eq!(removed[1..], [Ok(()); 5]);
        assert!(bed.mounted.sent().contains("NFSv4.EXCHANGE_ID 1"), "the server was restarted");
    }
}

// SEMANTICS: rpc-12.
#[test]
fn names_behind_one_that_a_restarted_server_had_not_removed_are_not_taken_for_its_work() {
    let bed = RestartedServer::new();
    let top = bed.mounted.client.root();
    let names: [&[u8]; 3] = [b"a", b"b", b"c"];
    for name in ["a", "b", "c"] {
        bed.mounted.put(&me(), top, name, 0o640, b"x");
    }
    let other = bed.world.mount_v4_over(CacheOptions::default(), "two", bed.world.way());
    let removed = std::cell::RefCell::new(Vec::new());
    let remove = || {
        ops::unlink(&other.client.op(&me()), other.client.root(), b"c").unwrap();
        let results = ops::remove_many(&bed.mounted.client.op(&me()), top, &names)?;
        *removed.borrow_mut() = results;
        Ok(())
    };
    assert_eq!(bed.restart_at(op::REMOVE, false, remove), Ok(()));
    assert_eq!(removed.into_inner(), [Ok(()), Ok(()), Err(Errno::NOENT)]);
}

// SEMANTICS: rpc-12.
#[test]
fn a_restarted_server_recognises_an_exclusive_creation_and_whose_it_is() {
    let bed = RestartedServer::new();
    let (client, top) = (&bed.mounted.client, bed.mounted.client.root());
    let exclusive = OpenFlags { exclusive: true, ..OpenFlags::writing() };
    let create = |name: &'static [u8]| move || ops::create(&client.op(&me()), top, name, 0o600, exclusive);
    assert_eq!(bed.executed(op::OPEN, create(b"ours")), Ok(()));
    let other = bed.world.mount_v4_over(CacheOptions::default(), "two", bed.world.way());
    ops::create(&other.client.op(&me()), other.client.root(), b"theirs", 0o600, exclusive).unwrap();
    assert_eq!(bed.restart_at(op::OPEN, false, create(b"theirs")), Err(Errno::EXIST));
}

/// The words of a reply that are changed.
mod word {
    /// The slot, in the result of SEQUENCE.
    pub(super) const SLOT: usize = 10;
    /// The highest slot that the server wants to be used, in the result of SEQUENCE.
    pub(super) const TARGET_SLOT: usize = 12;
    /// The status flags.
    pub(super) const FLAGS: usize = 13;
    /// The limits of the fore channel, in the result of CREATE_SESSION.
    pub(super) const REQUEST_MAX: usize = 12;
    pub(super) const RESPONSE_MAX: usize = 13;
    pub(super) const OPERATIONS_MAX: usize = 15;
}

/// Gives the next request up, although the server executes it.
fn give_up_next(operation: u32) -> impl Fn(&ScriptedRequest<'_>) -> Option<Result<Vec<u8>, CallError>> {
    let is_first = times(1);
    move |asked| {
        let is_given_up = asked.main() == operation && is_first();
        is_given_up.then(|| asked.execute().and(Err(CallError::Interrupted)))
    }
}

/// Sends a request.
pub(crate) fn statfs(world: &World, mounted: &BenchMount) -> Result<(), Errno> {
    world.seconds(1);
    ops::statfs(&mounted.client.op(&root()), mounted.client.root()).map(drop)
}

// SEMANTICS: sessions-6.
#[test]
fn a_request_that_the_server_still_executes_delays_only_who_has_no_other_slot() {
    for has_one_slot in [false, true] {
        let world = World::new();
        let server = ScriptedServer::new(&world);
        let mounted = mounted(&world, &server);
        let (give_up, is_executed) = (give_up_next(op::CREATE), times(30));
        server.script(move |asked| {
            let is_alone = asked.operations() == 1;
            if is_alone && is_executed() {
                return Some(Ok(refused(op::SEQUENCE, status::DELAY)));
            }
            give_up(asked).or_else(|| {
                has_one_slot.then(|| {
                    asked.spoil(|reply| {
                        // SEQUENCE may be refused.
                        if reply.len() > 4 * word::TARGET_SLOT {
                            set_word(reply, word::TARGET_SLOT, 0);
                        }
                    })
                })
            })
        });
        statfs(&world, &mounted).unwrap();
        let made = ops::mkdir(&mounted.client.op(&root()), mounted.client.root(), b"d", 0o755);
        assert_eq!(made.map(drop).unwrap_err(), Errno::INTR);
        let before = world.clock.passed();
        assert_eq!(statfs(&world, &mounted), Ok(()));
        let waited = world.clock.passed() - before;
        assert_eq!(waited > Duration::from_secs(60), has_one_slot, "{waited:?}");
    }
}

// SEMANTICS: sessions-2, sessions-6.
#[test]
fn a_server_that_delays_a_client_or_its_session_is_awaited() {
    for delayed in [op::EXCHANGE_ID, op::CREATE_SESSION] {
        let world = World::new();
        let server = ScriptedServer::new(&world);
        let delay = || {
            let is_delayed = times(100);
            move |asked: &ScriptedRequest<'_>| {
                let is_delayed = asked.main() == delayed && is_delayed();
                is_delayed.then(|| Ok(refused(delayed, status::DELAY)))
            }
        };
        server.script(delay());
        let mounted = mounted(&world, &server);
        server.script(delay());
        server.replace(world.way_after_restart());
        let before = world.clock.passed();
        assert_eq!(statfs(&world, &mounted), Ok(()));
        assert!(world.clock.passed() - before > Duration::from_secs(300));
    }
}

/// A mount of a scripted server, with soft recovery or hard.
fn mounted_as(world: &World, server: &Arc<ScriptedServer>, is_soft: bool) -> BenchMount {
    match is_soft {
        false => mounted(world, server),
        true => {
            let transport = Some(Arc::<ScriptedServer>::clone(server) as Arc<dyn Transport>);
            world.mount_v4_as(V4Setup { transport, recovery: RecoveryMode::Soft, ..V4Setup::default() })
        }
    }
}

// SEMANTICS: sessions-13.
#[test]
fn no_request_waits_until_a_connection_is_bound() {
    const CB_PATH_DOWN: u32 = 1;
    let world = World::new();
    let server = ScriptedServer::new(&world);
    let (way, threads) = (Arc::<ScriptedServer>::clone(&server), Arc::new(BackgroundThreads::new(1)));
    let mounted = world.mount_v4_calling_on(CacheOptions::default(), way, &Callbacks::default(), threads);
    let (answer, is_answered) = channel();
    let (is_answered, is_first) = (Mutex::new(is_answered), times(1));
    let (bind, binds) = channel();
    server.script(move |asked| {
        if asked.main() == op::BIND_CONN_TO_SESSION {
            // Without a limit a request that waits would do so for ever.
            let after_the_request = is_answered.lock().recv_timeout(Duration::from_secs(60)).is_ok();
            bind.send(after_the_request).unwrap();
            return None;
        }
        is_first().then(|| {
            let mut reply = asked.execute()?;
            set_word(&mut reply, word::FLAGS, CB_PATH_DOWN);
            Ok(reply)
        })
    });
    assert_eq!(statfs(&world, &mounted), Ok(()));
    answer.send(()).unwrap();
    assert!(binds.recv().unwrap(), "the request has not waited");
}

/// Whether written bytes are stored, and after which time: the server is restarted before they are
/// sent, and refuses an operation of recovery 100 times.
fn stored_although(operation: u32, status: u32, is_soft: bool) -> (Result<(), Errno>, Duration) {
    let world = World::new();
    let server = ScriptedServer::new(&world);
    let mounted = mounted_as(&world, &server, is_soft);
    let op = || mounted.client.op(&root());
    let flags = OpenFlags::writing();
    let (_, opened) = ops::create(&op(), mounted.client.root(), b"file", 0o644, flags).unwrap();
    ops::write(&op(), &opened.file, 0, b"x").unwrap();
    let is_refused = times(100);
    server.script(move |asked| {
        (asked.main() == operation && is_refused()).then(|| Ok(refused(operation, status)))
    });
    server.replace(world.way_after_restart());
    let before = world.clock.passed();
    (ops::fsync(&op(), &opened.file, false), world.clock.passed() - before)
}

// SEMANTICS: sessions-6.
#[test]
fn written_bytes_outlast_what_a_server_can_get_over() {
    for operation in [op::EXCHANGE_ID, op::CREATE_SESSION] {
        for status in [status::SERVERFAULT, status::NOSPC, status::CLID_INUSE] {
            let (stored, waited) = stored_although(operation, status, false);
            assert_eq!(stored, Ok(()), "{operation} {status}");
            assert!(waited > Duration::from_secs(300), "{waited:?}");
        }
        for (status, is_soft) in [(status::INVAL, false), (status::SERVERFAULT, true)] {
            let (stored, waited) = stored_although(operation, status, is_soft);
            assert_eq!(stored, Err(Errno::IO), "{operation} {status}");
            assert!(waited < Duration::from_secs(1), "{waited:?}");
        }
    }
}

/// Writes a byte and has it stored.
fn write_one(mounted: &BenchMount) -> Result<(), Errno> {
    let (top, op) = (mounted.client.root(), || mounted.client.op(&root()));
    let (_, opened) = ops::create(&op(), top, b"file", 0o644, OpenFlags::writing())?;
    ops::write(&op(), &opened.file, 0, b"x")?;
    ops::fsync(&op(), &opened.file, false)
}

// SEMANTICS: sessions-6.
#[test]
fn a_server_that_needs_time_to_bind_a_connection_is_waited_for() {
    let world = World::new();
    let server = ScriptedServer::new(&world);
    let mounted = mounted(&world, &server);
    let (is_bound, clock) = (AtomicBool::new(false), Arc::clone(&world.clock));
    let until = world.clock.passed() + Duration::from_secs(60);
    server.script(move |asked| match asked.main() {
        op::BIND_CONN_TO_SESSION if clock.passed() < until => Some(Ok(refused(asked.main(), status::DELAY))),
        op::BIND_CONN_TO_SESSION => {
            is_bound.store(true, Relaxed);
            None
        }
        _ if is_bound.load(Relaxed) => None,
        _ => Some(Ok(refused(op::SEQUENCE, status::CONN_NOT_BOUND_TO_SESSION))),
    });
    assert_eq!(write_one(&mounted), Ok(()));
    assert!(world.clock.passed() >= until);
}

// SEMANTICS: sessions-6.
#[test]
fn a_session_that_is_lost_again_and_again_is_paused_for() {
    for (is_soft, expected) in [(false, Ok(())), (true, Err(Errno::IO))] {
        let world = World::new();
        let server = ScriptedServer::new(&world);
        let mounted = mounted_as(&world, &server, is_soft);
        let is_lost = times(30);
        server.script(move |asked| {
            (asked.main() == op::WRITE && is_lost()).then(|| Ok(refused(op::SEQUENCE, status::BADSESSION)))
        });
        assert_eq!(write_one(&mounted), expected);
        assert_eq!(world.clock.passed() > Duration::from_secs(30), !is_soft);
    }
}

// SEMANTICS: sessions-6.
#[test]
fn a_write_is_sent_again_if_the_server_answers_for_another_slot() {
    let world = World::new();
    let server = ScriptedServer::new(&world);
    let mounted = mounted(&world, &server);
    let is_first = times(1);
    server.script(move |asked| {
        (asked.main() == op::WRITE && is_first())
            .then(|| asked.spoil(|reply| set_word(reply, word::SLOT, 77)))
    });
    assert_eq!(write_one(&mounted), Ok(()));
}

// SEMANTICS: sessions-6.
#[test]
fn a_listing_and_a_look_up_are_sent_again_if_the_server_answers_for_another_slot() {
    let world = World::new();
    let server = ScriptedServer::new(&world);
    // A look-up asks for rights and data too.
    let sloppy = CacheOptions { sloppy_open: Duration::from_secs(3), ..CacheOptions::default() };
    let mounted = world.mount_v4_over(sloppy, "one", Arc::<ScriptedServer>::clone(&server));
    let maker = world.mount_v4_over(CacheOptions::default(), "maker", world.way());
    maker.put(&root(), maker.client.root(), "file", 0o644, b"x");
    let answer_for_another_slot = || {
        let is_first = times(1);
        server.script(move |asked| {
            is_first().then(|| {
                let mut reply = asked.execute()?;
                set_word(&mut reply, word::SLOT, 77);
                Ok(reply)
            })
        });
        mounted.sent();
    };
    answer_for_another_slot();
    assert_eq!(mounted.lookup(&root(), mounted.client.root(), "file").map(drop), Ok(()));
    assert!(mounted.sent().contains("NFSv4.LOOKUP 2"));
    answer_for_another_slot();
    assert!(list(&mounted, mounted.client.root()).contains(&"file".to_owned()));
    assert!(mounted.sent().contains("NFSv4.READDIR 2"));
}

/// A script that changes the session that the server offers.
pub(crate) fn limit_session(
    limits: &'static [(usize, u32)],
) -> impl Fn(&ScriptedRequest<'_>) -> Option<Result<Vec<u8>, CallError>> {
    move |asked| {
        (asked.main() == op::CREATE_SESSION).then(|| {
            asked.spoil(|reply| {
                // It may be refused.
                if reply.len() > 4 * word::OPERATIONS_MAX {
                    limits.iter().for_each(|(at, limit)| set_word(reply, *at, *limit));
                }
            })
        })
    }
}

// SEMANTICS: sessions-6.
#[test]
fn a_session_of_few_operations_closes_what_was_opened() {
    let world = World::new();
    let server = ScriptedServer::new(&world);
    server.script(limit_session(&[(word::OPERATIONS_MAX, 11)]));
    let (mounted, timers) = mounted_on_timers(&world, &server);
    mounted.put(&root(), mounted.client.root(), "file", 0o644, b"x");
    server.obey();
    assert_eq!(server.executed(op::CLOSE), 0);
    mounted.sent();
    timers.pass(Duration::from_secs(1));
    assert_eq!(server.executed(op::CLOSE), 1);
    assert_eq!(mounted.sent(), "NFSv4.SEQUENCE 1");
}

// SEMANTICS: sessions-15.
#[test]
fn a_session_of_few_operations_returns_all_delegations_at_once() {
    let world = World::new();
    world.serve_callbacks();
    let server = ScriptedServer::calling_back(&world);
    server.script(limit_session(&[(word::OPERATIONS_MAX, 16)]));
    let mounted = mounted(&world, &server);
    let names: Vec<String> = (0..400).map(|number| format!("f{number}")).collect();
    delegated_many(&world, &mounted, &names);
    mounted.client.set_options(CacheOptions { delegations: false, ..CacheOptions::default() });
    // Seven in each request; as many closes.
    assert_eq!(mounted.sent(), "NFSv4.SEQUENCE 58");
    assert_eq!(statfs(&world, &mounted), Ok(()));
    assert_eq!(mounted.sent(), "NFSv4.GETATTR 1");
    let writer = world.mount_v4_over(CacheOptions::default(), "writer", world.way());
    for name in &names {
        let found = writer.lookup(&root(), writer.client.root(), name).unwrap();
        writer.sent();
        let opened = ops::open(&writer.client.op(&root()), found.id, OpenFlags::writing()).unwrap();
        assert_eq!(writer.sent(), "NFSv4.OPEN 1", "{name}: nobody has to return it");
        ops::close(&writer.client.op(&root()), &opened.file).unwrap();
    }
}

// SEMANTICS: sessions-6.
#[test]
fn a_session_without_room_for_a_request_is_refused_by_name() {
    let world = World::new();
    for limit in [(word::OPERATIONS_MAX, 10), (word::REQUEST_MAX, 4095), (word::RESPONSE_MAX, 4095)] {
        let server = ScriptedServer::new(&world);
        server.script(limit_session(Box::leak(Box::new([limit]))));
        let refused = world.establish_v4("one", server, &Callbacks::default());
        assert!(matches!(refused, Err(EstablishError::TooSmall)), "{limit:?}");
    }
}

// SEMANTICS: sessions-19.
#[test]
fn an_open_that_is_refused_with_and_without_a_wish_does_not_end_the_wishes() {
    const WANTS: u32 = 0xff00;
    let world = World::new();
    let server = ScriptedServer::new(&world);
    let maker = world.mount_v4_over(CacheOptions::default(), "maker", world.way());
    maker.put(&root(), maker.client.root(), "file", 0o644, &[b'x'; 300_000]);
    let mounted = mounted(&world, &server);
    let (is_refused, wishes) = (times(2), Arc::new(Mutex::new(Vec::new())));
    let noted = Arc::clone(&wishes);
    server.script(move |asked| {
        let open = asked.words.windows(3).find(|words| words[..2] == [op::OPEN, 0])?;
        noted.lock().push(open[2] & WANTS != 0);
        is_refused().then(|| asked.answer(2, status::INVAL, &[op::PUTFH, 0, op::OPEN, status::INVAL]))
    });
    let file = mounted.lookup(&root(), mounted.client.root(), "file").unwrap();
    let open = || ops::open(&mounted.client.op(&root()), file.id, OpenFlags::reading());
    assert_eq!(open().map(drop), Err(Errno::INVAL));
    assert_eq!(open().map(drop), Ok(()));
    assert_eq!(*wishes.lock(), [true, false, true]);
}

// SEMANTICS: sessions-6.
#[test]
fn many_long_names_are_sent_in_requests_that_the_session_allows() {
    const SMALL: u32 = 4096;
    let world = World::new();
    let server = ScriptedServer::new(&world);
    let limit = limit_session(&[(word::REQUEST_MAX, SMALL)]);
    server.script(move |asked| {
        let is_larger = 4 * asked.words.len() > SMALL as usize;
        limit(asked).or_else(|| is_larger.then(|| Ok(refused(op::SEQUENCE, status::REQ_TOO_BIG))))
    });
    let mounted = mounted(&world, &server);
    let op = || mounted.client.op(&root());
    let names: Vec<_> = (0..15_u32).map(|number| format!("{number:0255}").into_bytes()).collect();
    let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    for name in &names {
        ops::make_file(&op(), mounted.client.root(), name, 0o644).unwrap();
    }
    let found = ops::stat_many(&op(), mounted.client.root(), &names).unwrap();
    assert!(found.iter().all(Result::is_ok), "{found:?}");
    mounted.sent();
    assert_eq!(ops::remove_many(&op(), mounted.client.root(), &names).unwrap(), vec![Ok(()); 15]);
    let sent = mounted.sent();
    assert!(sent.ends_with("NFSv4.REMOVE 5"), "three in each: {sent}");
}

// SEMANTICS: sessions-2, sessions-6.
#[test]
fn a_smaller_session_of_a_restarted_server_takes_smaller_requests() {
    const SMALL: u32 = 65_536;
    let world = World::new();
    let server = ScriptedServer::new(&world);
    let (mounted, other) =
        (mounted(&world, &server), world.mount_v4_over(CacheOptions::default(), "two", world.way()));
    let large: Vec<u8> = (0..1_u32 << 20).flat_map(u32::to_be_bytes).take(1 << 20).collect();
    let theirs = other.put(&root(), other.client.root(), "theirs", 0o644, &large).id;
    let flags = OpenFlags::writing();
    let op = || mounted.client.op(&root());
    let (found, opened) = ops::create(&op(), mounted.client.root(), b"ours", 0o644, flags).unwrap();
    let limit = limit_session(&[(word::REQUEST_MAX, SMALL), (word::RESPONSE_MAX, SMALL)]);
    server.script(move |asked| {
        let is_larger = |words: usize| words > SMALL as usize / 4;
        limit(asked).or_else(|| {
            let reply = asked.execute().unwrap();
            // Nothing but SEQUENCE is in the reply if the session is unknown.
            let is_known = reply.len() > 4 * word::FLAGS;
            Some(Ok(match is_known {
                true if is_larger(asked.words.len()) => refused(op::SEQUENCE, status::REQ_TOO_BIG),
                true if is_larger(reply.len() / 4) => refused(op::SEQUENCE, status::REP_TOO_BIG),
                _ => reply,
            }))
        })
    });
    server.replace(world.way_after_restart());
    assert_eq!(ops::write(&op(), &opened.file, 0, &large), Ok(large.len()));
    assert_eq!(ops::fsync(&op(), &opened.file, false), Ok(()));
    ops::close(&op(), &opened.file).unwrap();
    let theirs_here = mounted.lookup(&root(), mounted.client.root(), "theirs").unwrap().id;
    assert!(mounted.cat(&root(), theirs_here) == Ok(large.clone()));
    assert!(other.cat(&root(), theirs) == Ok(large.clone()));
    let ours = other.lookup(&root(), other.client.root(), "ours").unwrap().id;
    assert!(other.cat(&root(), ours) == Ok(large));
    mounted.client.forget(found.id, 1);
}

/// The server is restarted, and allows no more than 16 operations in a request from then on.
fn restart_with_few_operations(world: &World, server: &Arc<ScriptedServer>) {
    server.replace(world.way_after_restart());
    restart_with_few_operations_at(world, server, |_| false);
}

/// The server is restarted when it gets a request of this kind, and allows no more than 16
/// operations in a request from then on.
fn restart_with_few_operations_at(
    world: &World,
    server: &Arc<ScriptedServer>,
    restarts: impl Fn(&ScriptedRequest<'_>) -> bool + Send + Sync + 'static,
) {
    let limit = limit_session(&[(word::OPERATIONS_MAX, 16)]);
    let is_limited = AtomicBool::new(false);
    let (next, restarted) = (world.way_after_restart(), Arc::downgrade(server));
    server.script(move |asked| {
        if restarts(asked) {
            restarted.upgrade()?.replace(Arc::clone(&next));
        }
        let limited = limit(asked);
        let is_limited = is_limited.fetch_or(limited.is_some(), Relaxed);
        let refused = || (asked.operations() > 16).then(|| Ok(refused(op::SEQUENCE, status::TOO_MANY_OPS)));
        limited.or_else(|| is_limited.then(refused).flatten())
    });
}

// SEMANTICS: sessions-8.
#[test]
fn requests_about_many_files_are_made_again_for_a_session_of_fewer_operations() {
    let world = delegations::world();
    let names = make_files(&world);
    let (server, mounted, files) = reading_in_order(&world, &names);
    restart_with_few_operations(&world, &server);
    assert_eq!(mounted.cat(&root(), files[FIRST]), Ok(b"one".to_vec()), "without those next to it");
    for is_removal in [false, true] {
        let world = World::new();
        let names = make_files(&world);
        let names: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
        let server = ScriptedServer::new(&world);
        let mounted = self::mounted(&world, &server);
        restart_with_few_operations(&world, &server);
        let (op, top) = (mounted.client.op(&root()), mounted.client.root());
        let done: Vec<Result<(), Errno>> = match is_removal {
            true => ops::remove_many(&op, top, &names).unwrap(),
            false => {
                ops::stat_many(&op, top, &names).unwrap().into_iter().map(|found| found.map(drop)).collect()
            }
        };
        assert_eq!(done, vec![Ok(()); names.len()]);
    }
}

#[test]
fn the_data_of_a_write_are_sent_from_where_they_are() {
    let world = World::new();
    let server = ScriptedServer::new(&world);
    let mounted = mounted(&world, &server);
    let most_encoded = Arc::new(AtomicUsize::new(0));
    let most = Arc::clone(&most_encoded);
    server.script(move |asked| {
        if asked.main() == op::WRITE {
            assert!(4 * asked.words.len() > asked.encoded + 100_000, "the data are there");
            most.fetch_max(asked.encoded, Relaxed);
        }
        None
    });
    let bytes = vec![b'x'; 300_001];
    let written = mounted.put(&root(), mounted.client.root(), "large", 0o644, &bytes).id;
    let encoded = most_encoded.load(Relaxed);
    assert!((1..1000).contains(&encoded), "{encoded} bytes of a WRITE were copied");
    assert!(mounted.cat(&root(), written) == Ok(bytes));
}

/// A fault in the READDIRs that continue a listing.
#[derive(Clone, Copy, Debug)]
enum Continuation {
    /// Refuses the first with this status.
    RefusedOnce(u32),
    /// Refuses all.
    Refused(u32),
    /// Lists from the beginning again, once.
    Repeated,
    /// Lists from the beginning again, always.
    RepeatedAlways,
}

/// The position of READDIR in a compound of SEQUENCE, PUTFH, GETATTR, perhaps ACCESS, and READDIR.
fn readdir_at(words: &[u32]) -> Option<usize> {
    let word = |at: usize| words.get(at).copied();
    let length = |at: usize| word(at).and_then(|word| usize::try_from(word).ok());
    let putfh = 12;
    let getattr = putfh + 2 + length(putfh + 1).filter(|_| word(putfh) == Some(op::PUTFH))?.div_ceil(4);
    let next = getattr + 2 + length(getattr + 1).filter(|_| word(getattr) == Some(op::GETATTR))?;
    let at = if word(next) == Some(op::ACCESS) { next + 2 } else { next };
    (word(at) == Some(op::READDIR)).then_some(at)
}

/// The server executes what precedes READDIR, and refuses that.
fn refuse_readdir(asked: &ScriptedRequest<'_>, at: usize, status: u32) -> Result<Vec<u8>, CallError> {
    let mut before = asked.words[..at].to_vec();
    before[2] = if before[at - 2] == op::ACCESS { 4 } else { 3 };
    let mut reply = asked.execute_instead(&before)?;
    reply.extend(bytes(&[op::READDIR, status]));
    set_word(&mut reply, 0, status);
    set_word(&mut reply, 2, before[2] + 1);
    Ok(reply)
}

#[test]
fn a_listing_whose_cookies_change_has_all_names_or_fails_and_ends() {
    let world = World::new();
    let maker = world.mount_v4_over(CacheOptions::default(), "maker", world.way());
    let all: Vec<_> = (0..1500_u32).map(|number| format!("{number:0250}").into_bytes()).collect();
    for name in &all {
        ops::make_file(&maker.client.op(&root()), maker.client.root(), name, 0o644).unwrap();
    }
    for continuation in [
        Continuation::RefusedOnce(status::NOT_SAME),
        Continuation::RefusedOnce(status::BAD_COOKIE),
        Continuation::Refused(status::NOT_SAME),
        Continuation::Refused(status::BAD_COOKIE),
        Continuation::Repeated,
        Continuation::RepeatedAlways,
    ] {
        let server = ScriptedServer::new(&world);
        let mounted = mounted(&world, &server);
        let (first, continued) = (times(1), Arc::new(AtomicU32::new(0)));
        let count = Arc::clone(&continued);
        server.script(move |asked| {
            let at = readdir_at(&asked.words).filter(|at| asked.words[at + 1..at + 3] != [0, 0])?;
            count.fetch_add(1, Relaxed);
            let mut again = asked.words.clone();
            again[at + 1..at + 5].fill(0);
            match continuation {
                Continuation::RefusedOnce(status) => first().then(|| refuse_readdir(asked, at, status)),
                Continuation::Refused(status) => Some(refuse_readdir(asked, at, status)),
                Continuation::Repeated => first().then(|| asked.execute_instead(&again)),
                Continuation::RepeatedAlways => Some(asked.execute_instead(&again)),
            }
        });
        let op = mounted.client.op(&root());
        let directory = ops::opendir(&op, mounted.client.root()).unwrap();
        let (mut names, mut cookie) = (Vec::new(), 0);
        let listed = loop {
            let (before, from) = (names.len(), cookie);
            let mut emit = |entry: &DirEntry<'_>| {
                names.push(entry.name.to_vec());
                cookie = entry.cookie;
                DirEmit::Taken
            };
            match ops::readdir(&op, &directory, from, false, &mut emit) {
                Ok(_) if names.len() == before => break Ok(()),
                Ok(_) => assert!(names.len() <= 10 * all.len(), "{continuation:?}: it does not end"),
                Err(errno) => break Err(errno),
            }
        };
        let continued = continued.load(Relaxed);
        assert!((1..100).contains(&continued), "{continuation:?}: {continued} READDIRs with a cookie");
        names.retain(|name| name.len() > 2);
        names.sort();
        // Only a server that lists its names again makes them come again.
        if matches!(continuation, Continuation::Repeated | Continuation::RepeatedAlways) {
            names.dedup();
        }
        match listed {
            Ok(()) => assert!(names == all, "{continuation:?}: {} names", names.len()),
            Err(errno) => assert_eq!(errno, Errno::IO, "{continuation:?}"),
        }
        if let Continuation::RefusedOnce(_) | Continuation::Repeated = continuation {
            assert_eq!(listed, Ok(()), "{continuation:?}");
        }
    }
}

/// How the reply to an OPEN that was executed is lost.
#[derive(Clone, Copy, Debug)]
enum LostOpen {
    /// Its caller is interrupted.
    GivenUp,
    /// The server answers for another slot.
    OtherSlot,
    /// The server has not kept it, and then the caller is interrupted.
    Uncached,
}

// SEMANTICS: sessions-1.
#[test]
fn what_an_interrupted_open_has_opened_is_closed() {
    use LostOpen::{GivenUp, OtherSlot, Uncached};
    for (creates, lost) in
        [(false, GivenUp), (true, GivenUp), (true, OtherSlot), (false, Uncached), (true, Uncached)]
    {
        let world = World::new();
        world.serve_callbacks();
        let maker = world.mount_v4_over(CacheOptions::default(), "maker", world.way());
        let server = ScriptedServer::new(&world);
        let (mounted, timers) = mounted_on_timers(&world, &server);
        let (top, op) = (mounted.client.root(), || mounted.client.op(&root()));
        if !creates {
            maker.put(&root(), maker.client.root(), "file", 0o644, b"x");
            let _ = maker.lookup(&root(), maker.client.root(), "none");
        }
        let found = mounted.lookup(&root(), top, "file").map(|found| found.id);
        let (is_first, is_killed) = (times(1), times(1));
        server.script(move |asked| {
            if asked.main() == op::CREATE_SESSION && is_killed() {
                return Some(Err(CallError::Interrupted));
            }
            (asked.main() == op::OPEN && is_first()).then(|| match lost {
                GivenUp => asked.execute().and(Err(CallError::Interrupted)),
                OtherSlot => asked.spoil(|reply| set_word(reply, word::SLOT, 77)),
                Uncached => asked.execute().map(|_| refused(op::SEQUENCE, status::RETRY_UNCACHED_REP)),
            })
        });
        let opened = match found {
            Ok(found) => ops::open(&op(), found, OpenFlags::writing()).map(drop),
            Err(_) => ops::create(&op(), top, b"file", 0o644, OpenFlags::writing()).map(drop),
        };
        assert!(opened.is_err(), "{lost:?}");
        server.obey();
        for _ in 0..3 {
            world.seconds(2);
            statfs(&world, &mounted).unwrap();
            timers.pass(Duration::from_secs(1));
        }
        // No file is delegated that another client has open for writing.
        let reader = world.mount_called_back(CacheOptions::default(), "reader");
        let found = reader.lookup(&root(), reader.client.root(), "file").unwrap();
        reader.cat(&root(), found.id).unwrap();
        assert_eq!(reader.counter(ClientCounter::DelegationGranted), 1, "{lost:?}: creates: {creates}");
    }
}

// SEMANTICS: sessions-1.
#[test]
fn an_interrupted_open_for_writing_leaves_others_who_read_an_open_for_reading() {
    let world = World::new();
    world.serve_callbacks();
    let maker = world.mount_v4_over(CacheOptions::default(), "maker", world.way());
    maker.put(&root(), maker.client.root(), "file", 0o644, b"x");
    let _ = maker.lookup(&root(), maker.client.root(), "none");
    let server = ScriptedServer::new(&world);
    let mounted = mounted(&world, &server);
    let op = || mounted.client.op(&root());
    let found = mounted.lookup(&root(), mounted.client.root(), "file").unwrap();
    let reading = ops::open(&op(), found.id, OpenFlags::reading()).unwrap().file;
    assert_eq!(ops::read(&op(), &reading, 0, 9).unwrap().to_vec(), b"x");
    server.script(give_up_next(op::OPEN));
    let opened = ops::open(&op(), found.id, OpenFlags::writing()).map(drop);
    assert_eq!(opened, Err(Errno::INTR));
    world.seconds(2);
    statfs(&world, &mounted).unwrap();
    // No file is delegated that another client has open for writing.
    let reader = world.mount_called_back(CacheOptions::default(), "reader");
    let theirs = reader.lookup(&root(), reader.client.root(), "file").unwrap();
    reader.cat(&root(), theirs.id).unwrap();
    assert_eq!(reader.counter(ClientCounter::DelegationGranted), 1);
    assert_eq!(ops::read(&op(), &reading, 0, 9).unwrap().to_vec(), b"x");
    ops::close(&op(), &reading).unwrap();
}

#[test]
fn what_an_interrupted_read_has_opened_is_closed() {
    let world = World::new();
    let maker = world.mount_v4_over(CacheOptions::default(), "maker", world.way());
    maker.put(&root(), maker.client.root(), "large", 0o644, &[7; 300_000]);
    let server = ScriptedServer::new(&world);
    let sloppy = CacheOptions { sloppy_open: Duration::from_secs(3), ..CacheOptions::default() };
    let mounted = world.mount_v4_over(sloppy, "one", Arc::<ScriptedServer>::clone(&server));
    let op = || mounted.client.op(&root());
    let found = mounted.lookup(&root(), mounted.client.root(), "large").unwrap();
    let opened = ops::open(&op(), found.id, OpenFlags::reading()).unwrap().file;
    server.script(give_up_next(op::OPEN));
    assert_eq!(ops::read(&op(), &opened, 0, 9).map(drop), Err(Errno::INTR));
    ops::close(&op(), &opened).unwrap();
    server.obey();
    assert_eq!(server.executed(op::CLOSE), 0);
    world.seconds(2);
    statfs(&world, &mounted).unwrap();
    assert_eq!(server.executed(op::CLOSE), 1);
}

// SEMANTICS: sessions-6.
#[test]
fn a_session_that_is_replaced_is_destroyed() {
    let world = World::new();
    let server = ScriptedServer::new(&world);
    let mounted = mounted(&world, &server);
    let is_first = times(1);
    server.script(move |_| is_first().then(|| Ok(refused(op::SEQUENCE, status::SEQ_MISORDERED))));
    assert_eq!(statfs(&world, &mounted), Ok(()));
    let sent = mounted.sent();
    assert!(sent.contains("NFSv4.CREATE_SESSION 1") && sent.contains("NFSv4.DESTROY_SESSION 1"), "{sent}");
}

// SEMANTICS: sessions-6.
#[test]
fn a_session_or_a_client_that_is_still_in_use_is_destroyed_later() {
    let (session, client) = (op::DESTROY_SESSION, op::DESTROY_CLIENTID);
    let cases = [
        (session, status::DELAY, "NFSv4.DESTROY_SESSION 4 NFSv4.DESTROY_CLIENTID 1"),
        (session, status::BACK_CHAN_BUSY, "NFSv4.DESTROY_SESSION 4 NFSv4.DESTROY_CLIENTID 1"),
        (client, status::CLIENTID_BUSY, "NFSv4.DESTROY_SESSION 1 NFSv4.DESTROY_CLIENTID 4"),
    ];
    for (ended, busy, expected) in cases {
        let world = World::new();
        let server = ScriptedServer::new(&world);
        let mounted = mounted(&world, &server);
        let is_busy = times(3);
        server.script(move |asked| {
            (asked.main() == ended && is_busy()).then(|| Ok(refused(asked.main(), busy)))
        });
        mounted.v4.as_ref().unwrap().end(Duration::from_secs(20));
        let sent = mounted.sent();
        assert!(sent.ends_with(expected), "{busy}: {sent}");
        // A server that never ends it is left with it.
        server.script(move |asked| (asked.main() == session).then(|| Ok(refused(asked.main(), busy))));
        mounted.v4.as_ref().unwrap().end(Duration::from_secs(20));
        let sent = mounted.sent();
        assert!(sent.contains("NFSv4.DESTROY_SESSION 5 "), "{busy}: {sent}");
    }
}

// SEMANTICS: sessions-6.
#[test]
fn a_confirmed_client_creates_a_session_although_the_server_returns_no_next_number() {
    const CONFIRMED: u8 = 0x80;
    /// The number and the flags in the result of EXCHANGE_ID.
    const SEQUENCE: usize = 7;
    const EXCHANGED_FLAGS: usize = 8;
    // As RFC 8881 says, a server counts those that it refuses; others do not.
    for (is_counted, is_soft) in [(false, false), (true, false), (false, true), (true, true)] {
        let world = World::new();
        let server = ScriptedServer::new(&world);
        let recovery = if is_soft { RecoveryMode::Soft } else { RecoveryMode::Hard };
        let transport = Some(Arc::<ScriptedServer>::clone(&server) as Arc<dyn Transport>);
        let mounted = world.mount_v4_as(V4Setup { transport, recovery, ..V4Setup::default() });
        let (is_lost, is_full) = (times(1), times(2));
        server.script(move |asked| match asked.main() {
            op::EXCHANGE_ID => Some(asked.spoil(|reply| {
                // The first bit.
                if reply[4 * EXCHANGED_FLAGS] & CONFIRMED != 0 {
                    set_word(reply, SEQUENCE, 0);
                }
            })),
            op::CREATE_SESSION if is_full() => {
                if is_counted {
                    asked.execute().unwrap();
                }
                Some(Ok(refused(op::CREATE_SESSION, status::NOSPC)))
            }
            _ => is_lost().then(|| Ok(refused(op::SEQUENCE, status::BADSESSION))),
        });
        // Each refusal is an error of a soft mount.
        for _ in 0..if is_soft { 2 } else { 0 } {
            assert_eq!(statfs(&world, &mounted), Err(Errno::IO));
        }
        assert_eq!(statfs(&world, &mounted), Ok(()), "counted: {is_counted}, soft: {is_soft}");
    }
}

/// A status flag of SEQUENCE.
const BACKCHANNEL_FAULT: u32 = 0x400;

// SEMANTICS: sessions-13.
#[test]
fn a_session_whose_backchannel_is_at_fault_is_replaced_and_recalls_are_answered_again() {
    let delegated = delegations::DelegatedMount::new(&["file"]);
    let delegations::DelegatedMount { world, server, timers, mounted } = &delegated;
    let is_first = times(1);
    server.script(move |asked| {
        is_first().then(|| asked.spoil(|reply| set_word(reply, word::FLAGS, BACKCHANNEL_FAULT)))
    });
    assert_eq!(statfs(world, mounted), Ok(()));
    mounted.sent();
    // No request is necessary.
    timers.pass(Duration::from_secs(1));
    let sent = mounted.sent();
    assert_eq!(sent, "NFSv4.CREATE_SESSION 1 NFSv4.DESTROY_SESSION 1 NFSv4.SEQUENCE 1");
    let writer = world.mount_v4_over(CacheOptions::default(), "writer", world.way());
    delegations::write(&writer, "file", b"two");
    assert_eq!(server.executed(op::DELEGRETURN), 1);
}

// SEMANTICS: sessions-13.
#[test]
fn a_backchannel_that_is_always_at_fault_costs_a_session_for_each_lease() {
    let world = World::new();
    let server = ScriptedServer::new(&world);
    let mounted = mounted(&world, &server);
    server.script(|asked| {
        (asked.words[3] == op::SEQUENCE)
            .then(|| asked.spoil(|reply| set_word(reply, word::FLAGS, BACKCHANNEL_FAULT)))
    });
    for _ in 0..2 {
        for _ in 0..40 {
            assert_eq!(statfs(&world, &mounted), Ok(()));
        }
        let sent = mounted.sent();
        assert!(sent.ends_with(" NFSv4.CREATE_SESSION 1 NFSv4.DESTROY_SESSION 1"), "{sent}");
        world.seconds(60);
    }
}

// SEMANTICS: sessions-13.
#[test]
fn a_session_that_is_replaced_is_not_destroyed_while_the_reply_to_a_request_is_outstanding() {
    let world = World::new();
    let server = ScriptedServer::new(&world);
    let mounted = Arc::new(mounted(&world, &server));
    let (is_first, is_faulty, other) = (times(1), times(1), Arc::downgrade(&mounted));
    let clock = Arc::clone(&world.clock);
    server.script(move |asked| {
        if asked.main() == op::CREATE && is_first() {
            let (other, reply) = (other.upgrade()?, asked.execute());
            for _ in 0..2 {
                clock.pass(Duration::from_secs(1));
                assert!(ops::statfs(&other.client.op(&root()), other.client.root()).is_ok());
            }
            let sent = other.sent();
            assert!(sent.contains("CREATE_SESSION 1") && !sent.contains("DESTROY_SESSION"), "{sent}");
            return Some(reply);
        }
        is_faulty().then(|| asked.spoil(|reply| set_word(reply, word::FLAGS, BACKCHANNEL_FAULT)))
    });
    let made = ops::mkdir(&mounted.client.op(&root()), mounted.client.root(), b"d", 0o755);
    assert_eq!(made.map(drop), Ok(()));
}

// SEMANTICS: sessions-2.
#[test]
fn a_server_that_always_wants_opens_reclaimed_gets_them_once_in_a_lease() {
    const RESTART_RECLAIM_NEEDED: u32 = 0x100;
    let world = World::new();
    let server = ScriptedServer::new(&world);
    let mounted = mounted(&world, &server);
    server.spoil(|reply| set_word(reply, word::FLAGS, RESTART_RECLAIM_NEEDED));
    for _ in 0..2 {
        for _ in 0..40 {
            assert_eq!(statfs(&world, &mounted), Ok(()));
        }
        let sent = mounted.sent();
        assert!(sent.ends_with("NFSv4.RECLAIM_COMPLETE 1"), "{sent}");
        world.seconds(60);
    }
}

// SEMANTICS: sessions-6.
#[test]
fn a_server_that_goes_on_reporting_revoked_states_is_asked_twice_in_a_lease() {
    const ADMIN_STATE_REVOKED: u32 = 0x20;
    let world = World::new();
    let server = ScriptedServer::new(&world);
    let mounted = mounted(&world, &server);
    let flags = OpenFlags::writing();
    let (_, opened) =
        ops::create(&mounted.client.op(&root()), mounted.client.root(), b"file", 0o644, flags).unwrap();
    server.spoil(|reply| set_word(reply, word::FLAGS, ADMIN_STATE_REVOKED));
    mounted.sent();
    for _ in 0..40 {
        assert_eq!(statfs(&world, &mounted), Ok(()));
    }
    let sent = mounted.sent();
    assert!(sent.ends_with(" NFSv4.TEST_STATEID 1"), "{sent}");
    drop(opened);
}

// SEMANTICS: sessions-6.
#[test]
fn a_revoked_open_that_nobody_uses_any_more_is_freed() {
    let world = World::new();
    let server = ScriptedServer::new(&world);
    let mounted = mounted(&world, &server);
    mounted.put(&root(), mounted.client.root(), "file", 0o644, b"x");
    world.seconds(2);
    mounted.sent();
    let refused = [op::PUTFH, 0, op::CLOSE, status::ADMIN_REVOKED];
    server
        .script(move |asked| asked.does(op::CLOSE).then(|| asked.answer(2, status::ADMIN_REVOKED, &refused)));
    assert_eq!(statfs(&world, &mounted), Ok(()));
    assert!(mounted.sent().contains("NFSv4.FREE_STATEID 1"));
    assert_eq!(statfs(&world, &mounted), Ok(()));
    assert!(!mounted.sent().contains("STATEID"), "once");
}

// SEMANTICS: sessions-2.
#[test]
fn the_lease_of_a_restarted_server_counts() {
    let world = World::new();
    let server = ScriptedServer::new(&world);
    let mounted = mounted(&world, &server);
    server.script(|asked| {
        (asked.main() == op::RECLAIM_COMPLETE).then(|| {
            asked.spoil(|reply| {
                // The last value.
                let words = reply.len() / 4;
                set_word(reply, words - 1, 15);
            })
        })
    });
    server.replace(world.way_after_restart());
    assert_eq!(statfs(&world, &mounted), Ok(()));
    let wait = mounted.v4.as_ref().unwrap().blocked_lock_wait_max();
    assert_eq!(wait, Duration::from_millis(7500), "half of the lease");
}

// SEMANTICS: sessions-6.
#[test]
fn an_open_whose_access_is_delayed_asks_for_that_alone() {
    let world = World::new();
    let server = ScriptedServer::new(&world);
    let mounted = mounted(&world, &server);
    let file = mounted.put(&user(5), mounted.client.root(), "file", 0o644, b"x");
    // Its open is closed.
    let _ = mounted.lookup(&user(5), mounted.client.root(), "none");
    let is_first = times(1);
    server.script(move |asked| {
        (asked.main() == op::OPEN && is_first()).then(|| {
            asked.spoil(|reply| {
                let word = |at: usize| reply[4 * at..4 * at + 4].try_into().map(u32::from_be_bytes).unwrap();
                let open = 2 + (14..).find(|at| (word(*at), word(at + 1)) == (op::OPEN, 0)).unwrap();
                // The stateid, the change of the directory and flags; the attributes set; the kind
                // of delegation, and perhaps why there is none.
                let kind = open + 11 + usize::try_from(word(open + 10)).unwrap();
                let end = kind + 1 + usize::from(word(kind) == 3);
                let piggybacked = word(2);
                reply.truncate(4 * end);
                reply.extend(bytes(&[op::ACCESS, status::DELAY]));
                set_word(reply, 0, status::DELAY);
                set_word(reply, 2, piggybacked.min(4));
            })
        })
    });
    mounted.sent();
    let opened = ops::open(&mounted.client.op(&user(5)), file.id, OpenFlags::writing());
    assert_eq!(mounted.sent(), "NFSv4.ACCESS 1 NFSv4.OPEN 1");
    ops::close(&mounted.client.op(&user(5)), &opened.unwrap().file).unwrap();
}

// SEMANTICS: sessions-2.
#[test]
fn a_restarted_server_that_has_kept_the_session_gets_the_opens_again() {
    const RESTART_RECLAIM_NEEDED: u32 = 0x100;
    let world = World::new();
    let server = ScriptedServer::new(&world);
    let mounted = mounted(&world, &server);
    let flags = OpenFlags::writing();
    let op = || mounted.client.op(&root());
    let (_, opened) = ops::create(&op(), mounted.client.root(), b"file", 0o644, flags).unwrap();
    let opened_before = server.executed(op::OPEN);
    // It may restart again soon.
    for _ in 0..2 {
        let is_first = times(1);
        server.script(move |asked| {
            is_first().then(|| asked.spoil(|reply| set_word(reply, word::FLAGS, RESTART_RECLAIM_NEEDED)))
        });
        assert_eq!(statfs(&world, &mounted), Ok(()));
        mounted.sent();
        assert_eq!(statfs(&world, &mounted), Ok(()));
        assert!(mounted.sent().contains("NFSv4.RECLAIM_COMPLETE 1"));
    }
    // This server has refused the reclaim.
    assert_eq!(server.executed(op::OPEN), opened_before + 1);
    ops::write(&op(), &opened.file, 0, b"x").unwrap();
    assert_eq!(ops::fsync(&op(), &opened.file, false), Ok(()));
}

/// The arguments of a compound that reclaims opens, with the first `most` OPENs as ordinary ones by
/// CLAIM_FH, because this server lets nobody reclaim, and their number. `None`: it is another
/// compound.
pub(crate) fn without_claims(words: &[u32], most: u32) -> Option<(Vec<u32>, u32)> {
    const CLAIM_FH: u32 = 4;
    const CLAIM_PREVIOUS: u32 = 1;
    /// Words of OPEN up to the claim, and of that.
    const OPEN: usize = 10;
    let length = |at: usize| usize::try_from(words[at]).unwrap();
    let (mut changed, mut at, mut opens) = (words[..12].to_vec(), 12, 0);
    changed[2] = 1;
    while at < words.len() && opens < most {
        let claim = at + 2 + length(at + 1).div_ceil(4) + OPEN;
        if words.get(claim) != Some(&CLAIM_PREVIOUS) {
            return None;
        }
        changed.extend(&words[at..claim]);
        changed.push(CLAIM_FH);
        let is_delegated = words[claim + 1] != 0;
        (at, opens) = (claim + 2, opens + 1);
        changed[2] += 2;
        if is_delegated {
            // GETATTR.
            let end = at + 2 + length(at + 1);
            changed.extend(&words[at..end]);
            at = end;
            changed[2] += 1;
        }
    }
    Some((changed, opens))
}

// SEMANTICS: sessions-2.
#[test]
fn many_opens_are_reclaimed_in_few_requests_and_a_refusal_concerns_one_file() {
    // Of each user 32 requests with up to 16 OPENs; one ends behind its first OPEN.
    let cases = [
        (None, 64, 0),
        (Some(status::DELAY), 65, 0),
        (Some(status::RECLAIM_CONFLICT), 65, 1),
        // It is too late for all.
        (Some(status::NO_GRACE), 1, 999),
    ];
    for (refusal, requests, opened_again) in cases {
        let world = World::new();
        let server = ScriptedServer::new(&world);
        let mounted = mounted(&world, &server);
        let users = [root(), me()];
        let create = |number: usize| {
            let (op, name) = (mounted.client.op(&users[number % 2]), format!("f{number}"));
            let made = ops::create(&op, mounted.client.root(), name.as_bytes(), 0o644, OpenFlags::writing());
            made.unwrap().1.file
        };
        let files: Vec<_> = (0..1000).map(create).collect();
        server.replace(world.way_after_restart());
        let is_first = times(1);
        server.script(move |asked| {
            if asked.main() != op::OPEN {
                return None;
            }
            without_claims(&asked.words, u32::MAX)?;
            let is_first = is_first();
            let refusal = refusal.filter(|_| is_first);
            let most = if refusal.is_some() { 1 } else { u32::MAX };
            let (mut words, opens) = without_claims(&asked.words, most)?;
            if is_first {
                // Before RECLAIM_COMPLETE the server opens nothing.
                words.splice(12..12, [op::RECLAIM_COMPLETE, 0]);
                words[2] += 1;
            }
            let mut reply = asked.execute_instead(&words).unwrap();
            if is_first {
                reply.drain(4 * 14..4 * 16);
            }
            let refused = refusal.map(|status| bytes(&[op::PUTFH, 0, op::OPEN, status]));
            set_word(&mut reply, 0, refusal.unwrap_or(0));
            set_word(&mut reply, 2, 1 + 2 * (opens + u32::from(refused.is_some())));
            reply.extend(refused.unwrap_or_default());
            Some(Ok(reply))
        });
        mounted.sent();
        assert_eq!(statfs(&world, &mounted), Ok(()));
        let sent = mounted.sent();
        assert!(sent.contains(&format!("NFSv4.OPEN {requests} ")), "{refusal:?}: {sent}");
        for (number, file) in files.iter().enumerate() {
            let op = mounted.client.op(&users[number % 2]);
            ops::write(&op, file, 0, b"x").unwrap();
            assert_eq!(ops::fsync(&op, file, false), Ok(()), "{refusal:?}: {number}");
        }
        let sent = mounted.sent();
        let opens =
            sent.split(" NFSv4.").find_map(|word| word.trim_start_matches("NFSv4.").strip_prefix("OPEN "));
        assert_eq!(opens.map_or(Ok(0), str::parse), Ok(opened_again), "{refusal:?}: {sent}");
    }
}

// SEMANTICS: sessions-7.
#[test]
fn data_are_written_although_another_process_may_not_read_the_file_any_more() {
    let world = World::new();
    let server = ScriptedServer::new(&world);
    let sloppy = CacheOptions { sloppy_open: Duration::from_secs(3), ..CacheOptions::default() };
    let mounted = world.mount_v4_over(sloppy, "one", Arc::<ScriptedServer>::clone(&server));
    let maker = world.mount_v4_over(CacheOptions::default(), "maker", world.way());
    maker.put(&root(), maker.client.root(), "large", 0o644, &[7; 300_000]);
    let file = mounted.lookup(&root(), mounted.client.root(), "large").unwrap().id;
    let op = || mounted.client.op(&root());
    let reader = ops::open(&op(), file, OpenFlags::reading()).unwrap().file;
    assert_eq!(mounted.counter(ClientCounter::OpenDelayed), 1);
    let only_writes = OpenFlags { read: false, ..OpenFlags::writing() };
    let writer = ops::open(&op(), file, only_writes).unwrap().file;
    server.script(|asked| {
        let results = [op::PUTFH, 0, op::OPEN, status::ACCESS];
        (asked.main() == op::OPEN).then(|| asked.answer(2, status::ACCESS, &results))
    });
    ops::write(&op(), &writer, 0, b"y").unwrap();
    assert_eq!(ops::fsync(&op(), &writer, false), Ok(()));
    server.obey();
    ops::close(&op(), &writer).unwrap();
    assert_eq!(ops::read(&op(), &reader, 0, 2).unwrap().to_vec(), b"y\x07");
}
