//! Servers of NFSv4.1 that refuse a SEQUENCE with DELAY, as they do while they execute an earlier
//! copy of the request.

use std::sync::{Arc, OnceLock};

use curt_client::{Caller, OpenFlags, ops};
use curt_policy::CacheOptions;
use curt_rpc::client::{CallError, Interrupt};
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::{
    nfs4_faults::{mounted, statfs, times},
    scripted_server::{ScriptedRequest, ScriptedServer, op, refused, status},
    world::{BenchMount, REQUEST, World, root},
};

/// The compounds that the server has received.
type Received = Arc<Mutex<Vec<Vec<u32>>>>;

/// The sequence number and the slot of a compound.
fn sequence_and_slot(words: &[u32]) -> [u32; 2] {
    [words[8], words[9]]
}

/// A server that executes the first request with this operation, if `is_executed`, and refuses its
/// next transmission with DELAY, since the first one was lost, if `is_lost`.
fn delay_next(
    operation: u32,
    is_executed: bool,
    is_lost: bool,
) -> impl Fn(&ScriptedRequest<'_>) -> Option<Result<Vec<u8>, CallError>> {
    let is_first = times(1);
    move |asked| {
        if asked.main() != operation || !is_first() {
            return None;
        }
        if is_executed {
            asked.execute().unwrap();
        }
        asked.lost.set(is_lost.then_some((REQUEST, false)));
        Some(Ok(refused(op::SEQUENCE, status::DELAY)))
    }
}

fn record(received: &Received, asked: &ScriptedRequest<'_>) {
    if asked.words[3] == op::SEQUENCE {
        received.lock().push(asked.words.clone());
    }
}

// SEMANTICS: rpc-11.
#[test]
fn a_delayed_request_keeps_its_slot_and_is_sent_again_unchanged() {
    for is_lost in [false, true] {
        let world = World::new();
        let server = ScriptedServer::new(&world);
        let mounted = Arc::new(mounted(&world, &server));
        let op = || mounted.client.op(&root());
        let top = mounted.client.root();
        mounted.put(&root(), top, "x", 0o644, b"x");
        let (received, made) = (Received::default(), Arc::new(OnceLock::new()));
        let (log, delay) = (Arc::clone(&received), delay_next(op::REMOVE, is_lost, is_lost));
        server.script(move |asked| {
            record(&log, asked);
            delay(asked)
        });
        let (user, outcome) = (Arc::downgrade(&mounted), Arc::clone(&made));
        world.clock.in_next_pause(move |_| {
            let user: Arc<BenchMount> = user.upgrade().unwrap();
            let made = ops::mkdir(&user.client.op(&root()), user.client.root(), b"d", 0o755);
            outcome.set(made.map(drop)).unwrap();
        });
        assert_eq!(ops::unlink(&op(), top, b"x"), Ok(()));
        assert_eq!(made.get(), Some(&Ok(())), "another slot is used meanwhile");
        let received = received.lock();
        let delayed = received.first().unwrap();
        let same = |words: &&Vec<u32>| sequence_and_slot(words) == sequence_and_slot(delayed);
        let transmissions: Vec<_> = received.iter().filter(same).collect();
        assert_eq!(transmissions, [delayed, delayed], "lost: {is_lost}");
        assert!(!mounted.sent().contains("CREATE_SESSION"));
    }
}

// SEMANTICS: rpc-11, sessions-1.
#[test]
fn an_open_that_is_interrupted_while_it_is_delayed_is_settled_and_closed() {
    let world = World::new();
    let maker = world.mount_v4_over(CacheOptions::default(), "maker", world.way());
    maker.put(&root(), maker.client.root(), "file", 0o644, b"x");
    let server = ScriptedServer::new(&world);
    let mounted = mounted(&world, &server);
    let found = mounted.lookup(&root(), mounted.client.root(), "file").unwrap();
    let received = Received::default();
    let (log, delay) = (Arc::clone(&received), delay_next(op::OPEN, true, true));
    server.script(move |asked| {
        record(&log, asked);
        delay(asked)
    });
    world.clock.in_next_pause(Interrupt::raise);
    let caller = Caller { interrupt: Interrupt::new(), ..root() };
    let opened = ops::open(&mounted.client.op(&caller), found.id, OpenFlags::writing());
    assert_eq!(opened.map(drop), Err(Errno::INTR));
    let sent = std::mem::take(&mut *received.lock());
    assert_eq!(sequence_and_slot(&sent[0]), sequence_and_slot(&sent[1]));
    assert_eq!(sent[1][2], 1, "a SEQUENCE alone settles the slot");
    assert!(mounted.sent().contains("NFSv4.OPEN 2"), "what may be open is opened again");
    let closes = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&closes);
    server.script(move |asked| {
        *counted.lock() += u32::from(asked.does(op::CLOSE));
        None
    });
    world.seconds(2);
    assert_eq!(statfs(&world, &mounted), Ok(()));
    assert_eq!(*closes.lock(), 1);
}

// SEMANTICS: rpc-11, rpc-12.
#[test]
fn a_change_that_was_executed_while_it_was_delayed_is_no_error_if_the_session_is_lost_then() {
    let world = World::new();
    let server = ScriptedServer::new(&world);
    let mounted = mounted(&world, &server);
    mounted.teach_time(&world);
    let (delay, is_second) = (delay_next(op::CREATE, false, true), times(1));
    server.script(move |asked| {
        delay(asked).or_else(|| {
            (asked.main() == op::CREATE && is_second()).then(|| {
                asked.execute().unwrap();
                Ok(refused(op::SEQUENCE, status::BADSESSION))
            })
        })
    });
    let made = ops::mkdir(&mounted.client.op(&root()), mounted.client.root(), b"made", 0o755);
    assert_eq!(made.map(drop), Ok(()));
    assert!(mounted.sent().contains("NFSv4.CREATE_SESSION 1"));
}
