//! The contents of the reply cache, their lifetime and owners; no caller gets the reply to another.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use curt_observe::{ServerCounter, ServerCounters};
use curt_rpc::auth::{AuthSys, AuthSysGids, OpaqueAuth};
use curt_rpc::clock::TimeSource;
use curt_rpc::message::CallMessage;
use curt_rpc::server::{CallContext, CallFailure};
use curt_types::Fault;

use super::super::{ChangedNames, Execution, ExecutionWindow};
use super::fingerprint::{Fingerprint, FingerprintHasher};
use super::table::{ENTRY_COST, ReplyCacheKey, ReplyCacheLookup, ReplyCacheShardLimits, ReplyCacheTable};
use super::{REPLY_MAX, ReplyCache, ReplyCacheLimits};

const AGE: Duration = Duration::from_secs(120);
const START: Duration = Duration::from_secs(1000);
const SAME: Fingerprint = Fingerprint(1);
const OTHER: Fingerprint = Fingerprint(2);

fn table(entries: usize, bytes: usize) -> ReplyCacheTable {
    ReplyCacheTable::new(ReplyCacheShardLimits { entries, bytes, age: AGE })
}

fn key(peer: &str, xid: u32) -> ReplyCacheKey {
    let peer: IpAddr = peer.parse().unwrap();
    ReplyCacheKey { peer, xid }
}

/// Executes a call and caches its reply.
fn execute(table: &mut ReplyCacheTable, key: ReplyCacheKey, reply: &[u8], now: Duration) -> bool {
    let ReplyCacheLookup::Execute(ticket) = table.lookup(key, SAME, now) else {
        panic!("{key:?} is not new");
    };
    let kept = table.insert(key, ticket, reply, now);
    table.abandon(key, ticket);
    kept
}

fn assert_replay(begin: ReplyCacheLookup<'_>, reply: &[u8]) {
    match begin {
        ReplyCacheLookup::Replay(kept) => assert_eq!(&*kept.reply, reply),
        other => panic!("{other:?}"),
    }
}

/// Whether a call would be answered from the cache.
fn is_known(table: &mut ReplyCacheTable, key: ReplyCacheKey, now: Duration) -> bool {
    match table.lookup(key, SAME, now) {
        ReplyCacheLookup::Replay(_) => true,
        ReplyCacheLookup::Execute(ticket) => {
            table.abandon(key, ticket);
            false
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_reply_is_cached_until_it_expires() {
    let mut table = table(8, 8000);
    let call = key("10.0.0.1", 7);
    assert!(execute(&mut table, call, b"reply", START));
    assert_replay(table.lookup(call, SAME, START + AGE - Duration::from_nanos(1)), b"reply");
    assert!(matches!(table.lookup(call, SAME, START + AGE), ReplyCacheLookup::Execute(_)));
    // Expired replies are removed as soon as any reply is cached, whatever its client.
    let mut table = self::table(8, 8000);
    for xid in 0..8 {
        assert!(execute(&mut table, key("10.0.0.1", xid), b"reply", START));
    }
    assert!(execute(&mut table, key("10.0.0.2", 1), b"reply", START + AGE));
    assert_eq!(table.size(), (1, 5 + ENTRY_COST));
}

#[test]
fn a_number_that_is_used_again_is_a_new_call() {
    let mut table = table(8, 8000);
    let call = key("10.0.0.1", 7);
    assert!(execute(&mut table, call, b"old", START));
    let ReplyCacheLookup::Execute(ticket) = table.lookup(call, OTHER, START) else { panic!("not new") };
    assert_eq!(table.size(), (0, 0), "the old reply is forgotten");
    // While that call is in progress, its duplicate waits. The old call, for which no client can
    // wait any more, is not confused with it.
    assert_eq!(table.lookup(call, OTHER, START), ReplyCacheLookup::Running(ticket));
    assert_eq!(table.lookup(call, SAME, START), ReplyCacheLookup::ExecuteUncached);
    assert!(table.insert(call, ticket, b"new", START));
    assert_replay(table.lookup(call, OTHER, START), b"new");
    // The same xid of another peer is another call.
    assert!(matches!(table.lookup(key("10.0.0.2", 7), OTHER, START), ReplyCacheLookup::Execute(_)));
}

#[test]
fn number_and_bytes_are_bounded_and_the_oldest_goes_first() {
    let mut by_number = table(4, 1 << 20);
    for xid in 0..5 {
        assert!(execute(&mut by_number, key("10.0.0.1", xid), b"r", START));
        assert_eq!(by_number.size().0, 4.min(xid as usize + 1));
    }
    assert!(!is_known(&mut by_number, key("10.0.0.1", 0), START));
    assert!(is_known(&mut by_number, key("10.0.0.1", 1), START));

    let reply = [0; 100];
    let mut by_bytes = table(100, 4 * (reply.len() + ENTRY_COST));
    for xid in 0..5 {
        assert!(execute(&mut by_bytes, key("10.0.0.1", xid), &reply, START));
    }
    assert_eq!(by_bytes.size(), (4, 4 * (reply.len() + ENTRY_COST)));
    assert!(!is_known(&mut by_bytes, key("10.0.0.1", 0), START));
    let whole = vec![0; 4 * (reply.len() + ENTRY_COST) - ENTRY_COST];
    assert!(execute(&mut by_bytes, key("10.0.0.1", 9), &whole, START), "all of the room");
    assert_eq!(by_bytes.size().0, 1);
    let beyond = vec![0; whole.len() + 1];
    assert!(!execute(&mut by_bytes, key("10.0.0.1", 10), &beyond, START));
    assert!(is_known(&mut by_bytes, key("10.0.0.1", 9), START), "nothing goes for what has no room");
    assert_eq!(by_bytes.running(), 0);
}

#[test]
fn a_busy_client_displaces_its_own_replies_and_not_a_quiet_ones() {
    let mut table = table(16, 1 << 20);
    for xid in 0..4 {
        assert!(execute(&mut table, key("10.0.0.1", xid), b"quiet", START));
    }
    for xid in 0..100 {
        assert!(execute(&mut table, key("10.0.0.2", xid), b"busy", START));
    }
    for xid in 0..4 {
        assert!(is_known(&mut table, key("10.0.0.1", xid), START), "{xid}");
    }
    // Nor does a client that chooses its addresses: a /64 of IPv6 is one client.
    for host in 0..100 {
        let address = format!("2001:db8::{host:x}");
        assert!(execute(&mut table, key(&address, 1), b"many", START));
    }
    for xid in 0..4 {
        assert!(is_known(&mut table, key("10.0.0.1", xid), START), "{xid}");
    }
    assert_eq!(table.size().0, 16);
    // A new client evicts a reply of the client with the most, and keeps its own.
    assert!(execute(&mut table, key("10.0.0.3", 1), b"new", START));
    assert!(is_known(&mut table, key("10.0.0.3", 1), START));
    assert!(is_known(&mut table, key("10.0.0.1", 0), START));
}

#[test]
fn everything_that_means_something_tells_calls_apart() {
    let fingerprints = FingerprintHasher::new([3; 16]);
    let peer: SocketAddr = "10.0.0.1:1000".parse().unwrap();
    let sys =
        AuthSys { stamp: 1, machine_name: b"host", uid: 5, gid: 6, groups: AuthSysGids::first_of(&[7, 8]) };
    let call = call(1, OpaqueAuth::Sys(sys), b"arguments");
    let of = |call: &CallMessage<'_>| fingerprints.of(call, peer);
    let plain = of(&call);
    let with = |sys| of(&CallMessage { credential: OpaqueAuth::Sys(sys), ..call });
    let others = [
        of(&CallMessage { program: 1, ..call }),
        of(&CallMessage { version: 1, ..call }),
        of(&CallMessage { procedure: 1, ..call }),
        of(&CallMessage { arguments: b"Arguments", ..call }),
        of(&CallMessage { arguments: b"arguments\0", ..call }),
        of(&CallMessage { arguments: b"", ..call }),
        of(&CallMessage { credential: OpaqueAuth::None, ..call }),
        of(&CallMessage { credential: OpaqueAuth::Other { flavor: 6, body: b"" }, ..call }),
        with(AuthSys { uid: 6, ..sys }),
        with(AuthSys { gid: 5, ..sys }),
        with(AuthSys { machine_name: b"hos", ..sys }),
        with(AuthSys { groups: AuthSysGids::first_of(&[7]), ..sys }),
        fingerprints.of(&call, "10.0.0.1:1024".parse().unwrap()),
        FingerprintHasher::new([4; 16]).of(&call, peer),
    ];
    for (index, other) in others.iter().enumerate() {
        assert_ne!(*other, plain, "{index}");
    }
    assert_eq!(with(AuthSys { stamp: 2, ..sys }), plain, "the stamp means nothing");
    assert_eq!(fingerprints.of(&call, "10.0.0.1:1023".parse().unwrap()), plain, "nor does the port");
}

fn call<'a>(xid: u32, credential: OpaqueAuth<'a>, arguments: &'a [u8]) -> CallMessage<'a> {
    CallMessage { xid, program: curt_proto::nfs3::PROGRAM, version: 3, procedure: 9, credential, arguments }
}

/// A cache and the number of executions in it.
struct Bed {
    cache: ReplyCache,
    counters: Arc<ServerCounters>,
    executed: AtomicUsize,
}

struct CountedExecution<'b, W> {
    executed: &'b AtomicUsize,
    work: Option<W>,
}

impl<W: FnOnce(&mut Vec<u8>) -> Result<(), CallFailure>> Execution for CountedExecution<'_, W> {
    fn run(
        &mut self,
        repeated: Option<ExecutionWindow>,
        _: &mut CallContext<'_>,
        reply: &mut Vec<u8>,
    ) -> Result<Option<Fault>, CallFailure> {
        assert_eq!(repeated, None);
        self.executed.fetch_add(1, Ordering::SeqCst);
        (self.work.take().unwrap())(reply).map(|()| None)
    }

    fn subjects(&self, _: &dyn Fn(&[u8], &[u8]) -> u64) -> ChangedNames {
        ChangedNames::default()
    }
}

impl Bed {
    fn new(bounds: ReplyCacheLimits) -> Self {
        let counters = Arc::new(ServerCounters::default());
        Self {
            cache: ReplyCache::new(bounds, [1; 16], TimeSource::System, Arc::clone(&counters)),
            counters,
            executed: AtomicUsize::new(0),
        }
    }

    /// Sends the call with the xid `xid` from `port`; `work` runs during its execution.
    fn send(
        &self,
        xid: u32,
        port: u16,
        work: impl FnOnce(&mut Vec<u8>) -> Result<(), CallFailure>,
    ) -> Result<Vec<u8>, CallFailure> {
        let peer = SocketAddr::from(([10, 0, 0, 1], port));
        let mut context = CallContext::detached(peer, "10.0.0.9:2049".parse().unwrap());
        let mut reply = b"head".to_vec();
        let mut work = CountedExecution { executed: &self.executed, work: Some(work) };
        let call = call(xid, OpaqueAuth::None, b"x");
        self.cache.answer(&call, &mut context, &mut reply, &mut work)?;
        assert_eq!(&reply[..4], b"head", "what is in the reply already is not touched");
        Ok(reply.split_off(4))
    }

    fn counted(&self, counter: ServerCounter) -> u64 {
        self.counters.events.value(counter)
    }
}

fn says(text: &'static [u8]) -> impl FnOnce(&mut Vec<u8>) -> Result<(), CallFailure> {
    move |reply| {
        reply.extend_from_slice(text);
        Ok(())
    }
}

#[test]
fn a_duplicate_from_another_port_is_answered_and_not_executed() {
    let bed = Bed::new(ReplyCacheLimits::default());
    for port in [700, 701, 700] {
        assert_eq!(bed.send(1, port, says(b"done")).unwrap(), b"done");
    }
    assert_eq!(bed.executed.load(Ordering::SeqCst), 1);
    assert_eq!(bed.counted(ServerCounter::ReplyCacheHit), 2);
    assert_eq!(bed.counted(ServerCounter::ReplyCacheMiss), 1);
}

#[test]
fn a_call_that_has_no_results_is_forgotten() {
    let bed = Bed::new(ReplyCacheLimits::default());
    let fails = |_: &mut Vec<u8>| Err(CallFailure::GarbageArguments);
    assert_eq!(bed.send(1, 700, fails), Err(CallFailure::GarbageArguments));
    assert_eq!(bed.send(1, 700, says(b"done")).unwrap(), b"done");
    // A call that panicked is executed again, too.
    let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        bed.send(2, 700, |_| std::panic::resume_unwind(Box::new("in the middle")))
    }));
    assert!(panics.is_err());
    assert_eq!(bed.send(2, 700, says(b"again")).unwrap(), b"again");
}

#[test]
fn a_reply_of_the_maximum_length_is_cached_and_a_longer_one_is_not() {
    let bed = Bed::new(ReplyCacheLimits::default());
    for (xid, length, executions) in [(1, REPLY_MAX, 1), (2, REPLY_MAX + 1, 2)] {
        bed.executed.store(0, Ordering::SeqCst);
        for _ in 0..2 {
            let reply = bed.send(xid, 700, |reply| {
                reply.resize(reply.len() + length, 1);
                Ok(())
            });
            assert_eq!(reply.unwrap(), vec![1; length]);
        }
        assert_eq!(bed.executed.load(Ordering::SeqCst), executions, "{length} bytes");
    }
    assert_eq!(bed.counted(ServerCounter::ReplyCacheNotCached), 2);
}

#[test]
fn a_duplicate_of_a_running_call_waits_for_its_reply() {
    let patient = ReplyCacheLimits { wait: Duration::from_secs(60), ..ReplyCacheLimits::default() };
    let bed = Arc::new(Bed::new(patient));
    let (begun, end) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let first = {
        let (bed, begun, end) = (Arc::clone(&bed), Arc::clone(&begun), Arc::clone(&end));
        std::thread::spawn(move || {
            bed.send(1, 700, |reply| {
                begun.wait();
                end.wait();
                says(b"done")(reply)
            })
        })
    };
    begun.wait();
    let second = {
        let bed = Arc::clone(&bed);
        std::thread::spawn(move || bed.send(1, 701, says(b"twice")))
    };
    while bed.cache.waiters.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    end.wait();
    assert_eq!(first.join().unwrap().unwrap(), b"done");
    assert_eq!(second.join().unwrap().unwrap(), b"done");
    assert_eq!(bed.executed.load(Ordering::SeqCst), 1);
    assert_eq!(bed.cache.waiters.load(Ordering::SeqCst), 0);
}

#[test]
fn a_duplicate_is_dropped_when_it_has_waited_enough_or_too_many_wait() {
    let too_long = ReplyCacheLimits { wait: Duration::from_millis(1), ..ReplyCacheLimits::default() };
    let too_many = ReplyCacheLimits { waiters: 0, ..ReplyCacheLimits::default() };
    for bounds in [too_long, too_many] {
        let bed = Bed::new(bounds);
        let first = bed.send(1, 700, |reply| {
            assert_eq!(bed.send(1, 701, says(b"twice")), Err(CallFailure::NoReply));
            says(b"done")(reply)
        });
        assert_eq!(first.unwrap(), b"done");
        assert_eq!(bed.counted(ServerCounter::ReplyCacheDropped), 1);
        assert_eq!(bed.send(1, 701, says(b"twice")).unwrap(), b"done");
    }
}
