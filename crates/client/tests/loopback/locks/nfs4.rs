//! Locks over NFSv4.1: the requests of each, and what becomes of them when the server forgets.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use curt_client::{
    ClientOptions, LocalLockOwner, LockArguments, OpenFile, OpenFlags, ops, protocol::Protocol as _,
};
use curt_observe::ClientCounter;
use curt_policy::{CacheOptions, locks::LockOptions};
use curt_rpc::client::{CallError, RecoveryMode, Transport};
use curt_types::{ByteRange, LockType, SetAttributes};
use parking_lot::Mutex;
use rustix::io::Errno;

use super::{R, W, lock_manager::SOON, range, want};
use crate::delegations::Timers;
use crate::nfs4_faults::statfs;
use crate::scripted_server::{ScriptedServer, op, set_word, status};
use crate::world::{BenchMount, V4Setup, World, root};

/// A mount of NFSv4.1, and one open file.
struct Locking {
    mounted: BenchMount,
    timers: Arc<Timers>,
    file: Arc<OpenFile>,
}

impl Locking {
    fn new(world: &World, name: &str, locks: LockOptions) -> Self {
        Self::over(world, name, locks, world.way())
    }

    fn over(world: &World, name: &str, locks: LockOptions, way: Arc<dyn Transport>) -> Self {
        let options = ClientOptions { locks, ..ClientOptions::default() };
        let timers = Arc::<Timers>::default();
        let (transport, background) = (Some(way), Arc::<Timers>::clone(&timers));
        let setup = V4Setup { options, name, transport, background, ..V4Setup::default() };
        Self::of(world.mount_v4_as(setup), timers)
    }

    /// A soft mount.
    fn soft(world: &World, name: &str, way: Arc<dyn Transport>) -> Self {
        let (transport, recovery) = (Some(way), RecoveryMode::Soft);
        let setup = V4Setup { name, transport, recovery, ..V4Setup::default() };
        Self::of(world.mount_v4_as(setup), Arc::default())
    }

    fn of(mounted: BenchMount, timers: Arc<Timers>) -> Self {
        let top = mounted.client.root();
        let found = match mounted.lookup(&root(), top, "f") {
            Ok(found) => found.id,
            Err(_) => mounted.put(&root(), top, "f", 0o666, b"0123456789").id,
        };
        let file = ops::open(&mounted.client.op(&root()), found, OpenFlags::writing()).unwrap().file;
        mounted.sent();
        Self { mounted, timers, file }
    }

    fn try_lock(&self, owner: u64, range: ByteRange, lock_type: LockType) -> Result<(), Errno> {
        self.lock(want(owner, range, lock_type, false))
    }

    fn lock(&self, arguments: LockArguments) -> Result<(), Errno> {
        ops::lock_and_wait(&self.mounted.client.op(&root()), &self.file, arguments)
    }

    fn unlock(&self, owner: u64, range: ByteRange) -> Result<(), Errno> {
        let op = self.mounted.client.op(&root());
        ops::unlock_and_wait(&op, &self.file, LocalLockOwner::Posix(owner), range)
    }

    fn write(&self, bytes: &[u8]) -> Result<(), Errno> {
        let op = self.mounted.client.op(&root());
        ops::write(&op, &self.file, 0, bytes)?;
        ops::fsync(&op, &self.file, false)
    }
}

// SEMANTICS: sessions-3.
#[test]
fn a_lock_takes_one_request_and_an_unlock_another() {
    let world = World::new();
    let one = Locking::new(&world, "one", LockOptions::default());
    let two = Locking::new(&world, "two", LockOptions::default());
    for owner in 0..3 {
        assert_eq!(one.try_lock(owner, range(0, 9), W), Ok(()));
        assert_eq!(one.mounted.sent(), "NFSv4.LOCK 1");
        assert_eq!(one.try_lock(owner + 1, range(0, 0), R), Err(Errno::AGAIN));
        assert_eq!(one.mounted.sent(), "", "it is decided here");
        assert_eq!(two.try_lock(9, range(9, 20), R), Err(Errno::AGAIN));
        assert_eq!(two.try_lock(9, range(10, u64::MAX), R), Ok(()));
        assert_eq!(two.mounted.sent(), "NFSv4.LOCK 2");
        let tested = |arguments| ops::test_lock(&one.mounted.client.op(&root()), &one.file, &arguments);
        let found = tested(want(owner, range(5, 1000), W, false)).unwrap().unwrap();
        assert_eq!((found.range, found.lock_type, found.pid), (range(10, u64::MAX), R, 0));
        assert_eq!(tested(want(owner, range(5, 9), W, false)), Ok(None), "it is its own");
        assert_eq!(one.mounted.sent(), "NFSv4.LOCKT 2");
        assert_eq!(one.unlock(owner, range(3, 4)), Ok(()));
        assert_eq!(two.try_lock(9, range(3, 4), W), Ok(()));
        assert_eq!(two.unlock(9, ByteRange::WHOLE), Ok(()));
        assert_eq!(one.unlock(owner, ByteRange::WHOLE), Ok(()));
        assert_eq!(one.mounted.sent(), "NFSv4.LOCKU 3", "the lock is in two parts");
        two.mounted.sent();
    }
    assert_eq!(two.try_lock(9, ByteRange::WHOLE, W), Ok(()));
    assert_eq!(two.unlock(9, ByteRange::WHOLE), Ok(()));
    two.mounted.sent();
    // The open was kept for the locks, and is closed now.
    ops::close(&two.mounted.client.op(&root()), &two.file).unwrap();
    let found = two.mounted.lookup(&root(), two.mounted.client.root(), "f").unwrap();
    ops::getattr(&two.mounted.client.op(&root()), found.id).unwrap();
    let next = ops::open(&two.mounted.client.op(&root()), found.id, OpenFlags::writing());
    assert!(next.is_ok());
}

#[test]
fn the_open_of_a_locked_file_that_is_gone_at_the_server_is_closed() {
    for status in [status::STALE, status::FHEXPIRED] {
        let world = World::new();
        let server = ScriptedServer::new(&world);
        let one = Locking::over(&world, "one", LockOptions::default(), Arc::<ScriptedServer>::clone(&server));
        assert_eq!(one.try_lock(1, range(0, 9), W), Ok(()));
        server.script(move |asked| {
            let is_gone = asked.main() == op::LOCKU;
            is_gone.then(|| asked.answer(1, status, &[op::PUTFH, status]))
        });
        assert_eq!(one.unlock(1, ByteRange::WHOLE), Ok(()));
        ops::close(&one.mounted.client.op(&root()), &one.file).unwrap();
        assert_eq!(server.executed(op::CLOSE), 0);
        one.timers.pass(SOON);
        assert_eq!(server.executed(op::CLOSE), 1, "{status}");
    }
}

// SEMANTICS: lock-12.
#[test]
fn a_lock_is_handed_on_while_no_other_client_wants_it() {
    let world = World::new();
    let handing = LockOptions { handoffs_max: 16, ..LockOptions::default() };
    let one = Locking::new(&world, "one", handing);
    assert_eq!(one.try_lock(0, range(0, 9), W), Ok(()));
    for owner in 1..=40 {
        let (answer, answered) = std::sync::mpsc::channel();
        let done = Box::new(move |result| answer.send(result).unwrap());
        let wanted = want(owner, range(0, 9), W, true);
        ops::lock(&one.mounted.client.op(&root()), &one.file, wanted, done);
        assert_eq!(one.unlock(owner - 1, range(0, 9)), Ok(()));
        // Another client has its time after the first 16.
        one.timers.pass(Duration::from_millis(2));
        assert_eq!(answered.recv_timeout(SOON), Ok(Ok(())));
    }
    assert_eq!(one.mounted.sent(), "NFSv4.LOCK 3 NFSv4.LOCKU 2", "each 16 times");
    assert_eq!(one.mounted.counter(ClientCounter::LockHandoff), 38);
    assert_eq!(one.unlock(40, range(0, 9)), Ok(()));
}

// SEMANTICS: sessions-3.
#[test]
fn a_file_is_locked_only_as_it_is_open() {
    let world = World::new();
    let one = Locking::new(&world, "one", LockOptions::default());
    let open = |flags| {
        let op = one.mounted.client.op(&root());
        ops::open(&op, one.file.id(), flags).unwrap().file
    };
    let flock = |file: &Arc<OpenFile>, lock_type| {
        let owner = LocalLockOwner::Flock(7);
        let arguments = LockArguments { owner, lock_type, ..want(7, ByteRange::WHOLE, W, false) };
        ops::lock_and_wait(&one.mounted.client.op(&root()), file, arguments)
    };
    let (reader, writer) =
        (open(OpenFlags::reading()), open(OpenFlags { read: false, ..OpenFlags::writing() }));
    assert_eq!(flock(&reader, W), Err(Errno::BADF));
    assert_eq!(flock(&writer, R), Err(Errno::BADF));
    assert_eq!(flock(&reader, R), Ok(()));
    assert_eq!(flock(&writer, W), Ok(()));
}

// SEMANTICS: lock-10, sessions-2.
#[test]
fn what_cannot_be_reclaimed_fails_once_and_is_free() {
    let world = World::new();
    let server = ScriptedServer::new(&world);
    let one = Locking::over(&world, "one", LockOptions::default(), Arc::<ScriptedServer>::clone(&server));
    assert_eq!(one.try_lock(1, range(0, 9), W), Ok(()));
    assert_eq!(one.try_lock(2, range(20, 29), R), Ok(()));
    // This server knows no client, so that it lets nobody reclaim.
    server.replace(world.way_after_restart());
    assert_eq!(one.write(b"lost"), Err(Errno::IO));
    assert_eq!(one.mounted.counter(ClientCounter::LockLost), 2);
    assert_eq!(one.mounted.client.locks().locks, []);
    assert_eq!(one.write(b"next"), Ok(()), "once");
    assert_eq!(one.try_lock(3, ByteRange::WHOLE, W), Ok(()));
    assert_eq!(one.unlock(3, ByteRange::WHOLE), Ok(()));
}

// SEMANTICS: sessions-3.
#[test]
fn a_file_that_was_locked_is_open_at_the_server_only_as_it_is_open_here() {
    const OPEN_DOWNGRADE: u32 = 21;
    // An OPEN for direct reading is delayed until the first READ.
    for (direct, narrower) in [(false, OPEN_DOWNGRADE), (true, op::CLOSE)] {
        let world = World::new();
        let server = ScriptedServer::new(&world);
        let one = Locking::over(&world, "one", LockOptions::default(), Arc::<ScriptedServer>::clone(&server));
        let op = || one.mounted.client.op(&root());
        let open = |flags| ops::open(&op(), one.file.id(), flags).unwrap().file;
        ops::close(&op(), &one.file).unwrap();
        statfs(&world, &one.mounted).unwrap();
        let writer = open(OpenFlags::writing());
        let reader = open(OpenFlags { direct, ..OpenFlags::reading() });
        let lock = |owner, file, lock_type| {
            ops::lock_and_wait(&op(), file, want(owner, range(owner, owner), lock_type, false))
        };
        let unlock =
            |owner, file| ops::unlock_and_wait(&op(), file, LocalLockOwner::Posix(owner), ByteRange::WHOLE);
        assert_eq!(lock(1, &writer, W), Ok(()));
        assert_eq!(lock(2, &reader, R), Ok(()));
        assert_eq!(unlock(1, &writer), Ok(()));
        let narrowed = Arc::<Mutex<Vec<u32>>>::default();
        let seen = Arc::clone(&narrowed);
        server.script(move |asked| {
            let all = [OPEN_DOWNGRADE, op::CLOSE].into_iter().filter(|operation| asked.does(*operation));
            seen.lock().extend(all);
            None
        });
        ops::close(&op(), &writer).unwrap();
        statfs(&world, &one.mounted).unwrap();
        assert_eq!(*narrowed.lock(), [0; 0], "a lock is based on it");
        assert_eq!(unlock(2, &reader), Ok(()));
        statfs(&world, &one.mounted).unwrap();
        assert_eq!(*narrowed.lock(), [narrower], "direct: {direct}");
        assert_eq!(lock(3, &reader, R), Ok(()));
        assert_eq!(unlock(3, &reader), Ok(()));
        ops::close(&op(), &reader).unwrap();
        statfs(&world, &one.mounted).unwrap();
        assert_eq!(*narrowed.lock(), [narrower, op::CLOSE]);
    }
}

/// Bytes of the file as a mount without locks reads them.
fn contents(world: &World) -> Vec<u8> {
    let reader = world.mount_v4_over(CacheOptions::default(), "reader", world.way());
    let found = reader.lookup(&root(), reader.client.root(), "f").unwrap();
    reader.cat(&root(), found.id).unwrap()
}

// SEMANTICS: lock-10, sessions-10.
#[test]
fn what_was_written_under_a_lost_lock_is_not_sent_and_fails_once() {
    let world = World::new();
    for is_closed in [false, true] {
        let way = ScriptedServer::new(&world);
        let one = Locking::over(&world, "one", LockOptions::default(), Arc::<ScriptedServer>::clone(&way));
        let op = || one.mounted.client.op(&root());
        let other = ops::open(&op(), one.file.id(), OpenFlags::writing()).unwrap().file;
        assert_eq!(one.try_lock(1, range(0, 4), W), Ok(()));
        assert_eq!(one.try_lock(2, range(5, 6), R), Ok(()));
        assert_eq!(ops::write(&op(), &one.file, 0, b"abcdefgh"), Ok(8));
        // This server knows no client, so that it lets nobody reclaim. Another request notices.
        way.replace(world.way_after_restart());
        assert_eq!(statfs(&world, &one.mounted), Ok(()));
        assert_eq!(one.mounted.counter(ClientCounter::LockLost), 2);
        let end = || match is_closed {
            true => ops::flush(&op(), &one.file),
            false => ops::fsync(&op(), &one.file, false),
        };
        assert_eq!((end(), end()), (Err(Errno::IO), Ok(())), "once");
        assert_eq!(ops::fsync(&op(), &one.file, false), Ok(()), "nor for the lock");
        assert_eq!(ops::fsync(&op(), &other, false), Err(Errno::IO), "it is the file's error");
        assert_eq!(contents(&world), b"01234fgh89", "the rest was not locked for writing");
        assert_eq!(one.write(b"01234567"), Ok(()));
    }
}

// SEMANTICS: lock-10, sessions-10.
#[test]
fn a_file_is_not_truncated_under_a_lost_lock_and_that_fails_once() {
    let world = World::new();
    let way = ScriptedServer::new(&world);
    let one = Locking::over(&world, "one", LockOptions::default(), Arc::<ScriptedServer>::clone(&way));
    assert_eq!(one.try_lock(1, range(0, 9), W), Ok(()));
    // This server knows no client, so that it lets nobody reclaim.
    way.replace(world.way_after_restart());
    let truncate = || {
        let size = SetAttributes { size: Some(3), ..SetAttributes::default() };
        ops::setattr_open(&one.mounted.client.op(&root()), &one.file, &size).map(drop)
    };
    assert_eq!(truncate(), Err(Errno::IO));
    assert_eq!(contents(&world), b"0123456789");
    assert_eq!(truncate(), Ok(()), "once");
    assert_eq!(contents(&world), b"012");
}

// SEMANTICS: lock-10, sessions-10.
#[test]
fn a_size_is_set_while_a_lock_is_lost_that_is_none_for_writing_of_what_is_cut_off() {
    for (first, last, lock_type, expected) in
        [(0, 9, R, Ok(())), (0, 2, W, Ok(())), (0, 3, W, Err(Errno::IO)), (90, 99, W, Err(Errno::IO))]
    {
        let world = World::new();
        let way = ScriptedServer::new(&world);
        let one = Locking::over(&world, "one", LockOptions::default(), Arc::<ScriptedServer>::clone(&way));
        // Of another process of the same user.
        assert_eq!(one.try_lock(1, range(first, last), lock_type), Ok(()));
        let op = || one.mounted.client.op(&root());
        let file = ops::open(&op(), one.file.id(), OpenFlags::writing()).unwrap().file;
        // This server knows no client, so that it lets nobody reclaim.
        way.replace(world.way_after_restart());
        let size = SetAttributes { size: Some(3), ..SetAttributes::default() };
        assert_eq!(ops::setattr_open(&op(), &file, &size).map(drop), expected, "{first} {lock_type:?}");
        assert_eq!(one.mounted.counter(ClientCounter::LockLost), 1);
        let left: &[u8] = if expected.is_ok() { b"012" } else { b"0123456789" };
        assert_eq!(contents(&world), left);
        assert_eq!(ops::setattr_open(&op(), &file, &size).map(drop), Ok(()), "once");
    }
}

// SEMANTICS: sessions-10.
#[test]
fn a_write_that_begins_while_its_lock_is_reclaimed_waits_for_the_result() {
    for is_reclaimed in [false, true] {
        let world = World::new();
        let server = ScriptedServer::new(&world);
        let way = ScriptedServer::over(Arc::<ScriptedServer>::clone(&server));
        let one = Locking::over(&world, "one", LockOptions::default(), Arc::<ScriptedServer>::clone(&way));
        assert_eq!(one.try_lock(1, range(0, 4), W), Ok(()));
        assert_eq!(ops::write(&one.mounted.client.op(&root()), &one.file, 0, b"abcdefgh"), Ok(8));
        if is_reclaimed {
            drop(let_reclaim(&server));
        }
        server.replace(world.way_after_restart());
        let (one, clock) = (Arc::new(one), Arc::clone(&world.clock));
        let (flushed, results) = std::sync::mpsc::channel();
        let (user, is_first) = (Arc::downgrade(&one), crate::nfs4_faults::times(1));
        way.script(move |asked| {
            if asked.main() == op::OPEN && is_first() {
                // Recovery has begun. The operation and its WRITE each read the clock.
                let (user, flushed) = (user.upgrade().unwrap(), flushed.clone());
                let read = clock.read.load(Relaxed);
                std::thread::spawn(move || {
                    let result = ops::flush(&user.mounted.client.op(&root()), &user.file);
                    flushed.send(result).unwrap();
                });
                while clock.read.load(Relaxed) < read + 2 {
                    std::thread::yield_now();
                }
            }
            None
        });
        assert_eq!(statfs(&world, &one.mounted), Ok(()));
        let expected: (_, &[u8]) = match is_reclaimed {
            true => (Ok(()), b"abcdefgh89"),
            false => (Err(Errno::IO), b"01234fgh89"),
        };
        assert_eq!((results.recv_timeout(SOON).unwrap(), &*contents(&world)), expected);
    }
}

// SEMANTICS: sessions-2.
#[test]
fn the_owner_of_a_lock_that_is_unlocked_after_a_restart_learns_that_it_was_lost() {
    let world = World::new();
    let server = ScriptedServer::new(&world);
    let one = Locking::over(&world, "one", LockOptions::default(), Arc::<ScriptedServer>::clone(&server));
    assert_eq!(one.try_lock(1, range(0, 9), W), Ok(()));
    server.replace(world.way_after_restart());
    assert_eq!(one.unlock(1, range(0, 9)), Err(Errno::IO));
    assert_eq!(one.mounted.client.locks().locks, []);
    assert_eq!(one.unlock(1, range(0, 9)), Ok(()), "once");
    assert_eq!(one.try_lock(2, range(0, 9), W), Ok(()));
}

/// A LOCK at a server that was restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AskedLock {
    lock_type: u32,
    reclaims: bool,
}

/// Lets a client reclaim an open and locks from a server that lets nobody reclaim, and returns what
/// it is asked to lock.
fn let_reclaim(server: &ScriptedServer) -> Arc<Mutex<Vec<AskedLock>>> {
    let asked_locks = Arc::<Mutex<Vec<AskedLock>>>::default();
    let locks = Arc::clone(&asked_locks);
    server.script(move |asked| match asked.main() {
        op::OPEN => {
            let (mut words, _) = crate::nfs4_faults::without_claims(&asked.words, u32::MAX)?;
            // Before RECLAIM_COMPLETE the server opens nothing.
            words.splice(12..12, [op::RECLAIM_COMPLETE, 0]);
            words[2] += 1;
            let mut reply = asked.execute_instead(&words).unwrap();
            reply.drain(4 * 14..4 * 16);
            set_word(&mut reply, 2, words[2] - 1);
            Some(Ok(reply))
        }
        op::LOCK => {
            let mut words = asked.words.clone();
            // SEQUENCE and PUTFH precede.
            let at = 14 + usize::try_from(words[13]).unwrap().div_ceil(4);
            let reclaims = std::mem::take(&mut words[at + 2]) != 0;
            locks.lock().push(AskedLock { lock_type: words[at + 1], reclaims });
            Some(asked.execute_instead(&words))
        }
        _ => None,
    });
    asked_locks
}

/// The server answers no request about locks.
fn lose_locks(server: &ScriptedServer) {
    server.script(|asked| {
        let is_lost = [op::LOCK, op::LOCKU].contains(&asked.main());
        is_lost.then_some(Err(CallError::TimedOut { softerr: false }))
    });
}

/// Two soft mounts of a server.
fn two_soft(world: &World) -> [(Arc<ScriptedServer>, Locking); 2] {
    ["one", "two"].map(|name| {
        let server = ScriptedServer::new(world);
        let locking = Locking::soft(world, name, Arc::<ScriptedServer>::clone(&server));
        (server, locking)
    })
}

// SEMANTICS: lock-10, sessions-2.
#[test]
fn a_lock_that_was_not_granted_is_not_reclaimed_before_its_holder_does() {
    let world = World::new();
    let [(server, one), (others, other)] = two_soft(&world);
    assert_eq!(other.try_lock(2, range(0, 9), W), Ok(()));
    lose_locks(&server);
    assert_eq!(one.try_lock(1, range(0, 9), W), Err(Errno::IO));
    let (asked, asked_of_other) = (let_reclaim(&server), let_reclaim(&others));
    let next = world.way_after_restart();
    server.replace(Arc::clone(&next));
    others.replace(next);
    assert_eq!(statfs(&world, &one.mounted), Ok(()));
    assert_eq!(*asked.lock(), []);
    assert_eq!(other.write(b"locked"), Ok(()));
    assert_eq!(*asked_of_other.lock(), [AskedLock { lock_type: 2, reclaims: true }]);
    assert_eq!(other.mounted.counter(ClientCounter::LockLost), 0);
}

// SEMANTICS: lock-10, sessions-2.
#[test]
fn a_lock_whose_upgrade_has_no_reply_is_reclaimed_as_it_was_granted() {
    let world = World::new();
    let [(server, one), (others, other)] = two_soft(&world);
    for locking in [&one, &other] {
        assert_eq!(locking.try_lock(1, range(0, 9), R), Ok(()));
    }
    lose_locks(&server);
    assert_eq!(one.try_lock(1, range(0, 9), W), Err(Errno::IO));
    let asked = [let_reclaim(&server), let_reclaim(&others)];
    let next = world.way_after_restart();
    server.replace(Arc::clone(&next));
    others.replace(next);
    assert_eq!(statfs(&world, &other.mounted), Ok(()));
    assert_eq!(statfs(&world, &one.mounted), Ok(()));
    for asked in asked {
        assert_eq!(*asked.lock(), [AskedLock { lock_type: 1, reclaims: true }]);
    }
    assert_eq!(one.mounted.counter(ClientCounter::LockLost), 0);
}

/// The server executes the next request of this kind, and its reply is lost. It answers no later
/// one.
fn lose_reply_to(server: &ScriptedServer, operation: u32) {
    let is_first = crate::nfs4_faults::times(1);
    server.script(move |asked| {
        let lost = Err(CallError::TimedOut { softerr: false });
        let is_it = asked.main() == operation;
        is_it.then(|| if is_first() { asked.execute().and(lost) } else { lost })
    });
}

// SEMANTICS: lock-10, sessions-10.
#[test]
fn a_lock_whose_unlock_has_no_reply_is_not_reclaimed_before_its_next_holder_does() {
    let world = World::new();
    let [(server, one), (others, other)] = two_soft(&world);
    assert_eq!(one.try_lock(1, range(0, 19), W), Ok(()));
    lose_reply_to(&server, op::LOCKU);
    assert_eq!(one.unlock(1, range(0, 9)), Err(Errno::IO));
    assert_eq!(other.try_lock(2, range(0, 9), W), Ok(()));
    let (asked, asked_of_other) = (let_reclaim(&server), let_reclaim(&others));
    let next = world.way_after_restart();
    server.replace(Arc::clone(&next));
    others.replace(next);
    assert_eq!(statfs(&world, &one.mounted), Ok(()));
    assert_eq!(statfs(&world, &other.mounted), Ok(()));
    for asked in [asked, asked_of_other] {
        assert_eq!(*asked.lock(), [AskedLock { lock_type: 2, reclaims: true }]);
    }
    assert_eq!(other.mounted.counter(ClientCounter::LockLost), 0);
    assert_eq!(one.mounted.counter(ClientCounter::LockLost), 0, "the rest is still held");
}

// SEMANTICS: lock-10, sessions-10.
#[test]
fn an_unlock_that_may_have_been_executed_before_a_restart_has_nothing_reclaimed() {
    let world = World::new();
    let [(server, one), (others, other)] = ["one", "two"].map(|name| {
        let server = ScriptedServer::new(&world);
        let way = Arc::<ScriptedServer>::clone(&server);
        (server, Locking::over(&world, name, LockOptions::default(), way))
    });
    assert_eq!(one.try_lock(1, range(0, 9), W), Ok(()));
    let (next, other) = (world.way_after_restart(), Arc::new(other));
    let (reclaiming, reclaims) = std::sync::mpsc::channel();
    let (way, restarted, holder) = (Arc::clone(&next), Arc::clone(&server), Arc::clone(&other));
    server.script(move |asked| {
        (asked.main() == op::LOCKU).then(|| {
            asked.execute()?;
            assert_eq!(holder.try_lock(2, range(0, 9), W), Ok(()));
            // The reply is lost with the connection, and the server of after the restart is asked.
            restarted.replace(Arc::clone(&way));
            reclaiming.send(let_reclaim(&restarted)).unwrap();
            asked.lost.set(Some((Duration::ZERO, true)));
            asked.execute()
        })
    });
    assert_eq!(one.unlock(1, range(0, 9)), Ok(()));
    assert_eq!(*reclaims.recv().unwrap().lock(), []);
    let asked_of_other = let_reclaim(&others);
    others.replace(next);
    assert_eq!(other.write(b"locked"), Ok(()));
    assert_eq!(*asked_of_other.lock(), [AskedLock { lock_type: 2, reclaims: true }]);
    assert_eq!(other.mounted.counter(ClientCounter::LockLost), 0);
}

// SEMANTICS: lock-10, sessions-10.
#[test]
fn a_lock_whose_downgrade_has_no_reply_is_reclaimed_as_the_weaker_one() {
    let world = World::new();
    let [(server, one), (others, other)] = two_soft(&world);
    assert_eq!(one.try_lock(1, range(0, 9), W), Ok(()));
    lose_reply_to(&server, op::LOCK);
    assert_eq!(one.try_lock(1, range(0, 9), R), Err(Errno::IO));
    assert_eq!(other.try_lock(1, range(0, 9), R), Ok(()));
    let asked = [let_reclaim(&server), let_reclaim(&others)];
    let next = world.way_after_restart();
    server.replace(Arc::clone(&next));
    others.replace(next);
    assert_eq!(statfs(&world, &one.mounted), Ok(()));
    assert_eq!(statfs(&world, &other.mounted), Ok(()));
    for asked in asked {
        assert_eq!(*asked.lock(), [AskedLock { lock_type: 1, reclaims: true }]);
    }
    for locking in [one, other] {
        assert_eq!(locking.mounted.counter(ClientCounter::LockLost), 0);
    }
}

// SEMANTICS: sessions-6, sessions-10.
#[test]
fn a_lock_whose_reclaim_is_refused_with_its_open_is_lost_and_nobody_waits() {
    let world = World::new();
    let server = ScriptedServer::new(&world);
    let one = Locking::over(&world, "one", LockOptions::default(), Arc::<ScriptedServer>::clone(&server));
    assert_eq!(one.try_lock(1, range(0, 9), W), Ok(()));
    let (is_first, is_next) = (crate::nfs4_faults::times(1), crate::nfs4_faults::times(1));
    server.script(move |asked| match asked.main() {
        // The OPEN is reclaimed, or so it seems.
        op::OPEN if is_first() => {
            let mut results = vec![op::PUTFH, 0, op::OPEN, 0];
            // The stateid, the change of no directory, flags, attributes, no delegation.
            results.extend([1, 7, 7, 7, 0, 0, 0, 0, 0, 0, 0, 0]);
            Some(asked.answer(2, 0, &results))
        }
        op::LOCK if is_next() => {
            Some(asked.answer(2, status::BAD_STATEID, &[op::PUTFH, 0, op::LOCK, status::BAD_STATEID]))
        }
        _ => None,
    });
    server.replace(world.way_after_restart());
    let (ended, end) = std::sync::mpsc::channel();
    let mounted = Arc::new(one);
    let user = Arc::clone(&mounted);
    std::thread::spawn(move || ended.send(user.write(b"lost")));
    assert_eq!(end.recv_timeout(SOON), Ok(Err(Errno::IO)), "recovery ends");
    assert_eq!(mounted.mounted.counter(ClientCounter::LockLost), 1);
    assert_eq!(mounted.write(b"next"), Ok(()), "the file is opened again");
    assert_eq!(mounted.try_lock(2, range(0, 9), W), Ok(()));
}

// SEMANTICS: sessions-10.
#[test]
fn a_lock_whose_stateid_is_being_replaced_is_not_taken_for_revoked() {
    const ADMIN_STATE_REVOKED: u32 = 0x20;
    const FLAGS: usize = 13;
    let world = World::new();
    let server = ScriptedServer::new(&world);
    let one =
        Arc::new(Locking::over(&world, "one", LockOptions::default(), Arc::<ScriptedServer>::clone(&server)));
    assert_eq!(one.try_lock(1, range(0, 9), W), Ok(()));
    one.mounted.sent();
    let (is_first, is_next) = (crate::nfs4_faults::times(1), crate::nfs4_faults::times(1));
    let (user, clock) = (Arc::downgrade(&one), Arc::clone(&world.clock));
    server.script(move |asked| match asked.main() {
        op::LOCK if is_first() => {
            // The reply arrives after the states were tested.
            let reply = asked.execute();
            let user = user.upgrade().unwrap();
            for _ in 0..2 {
                clock.pass(Duration::from_secs(1));
                ops::statfs(&user.mounted.client.op(&root()), user.mounted.client.root()).unwrap();
            }
            Some(reply)
        }
        op::LOCK => None,
        _ => is_next().then(|| asked.spoil(|reply| set_word(reply, FLAGS, ADMIN_STATE_REVOKED))),
    });
    assert_eq!(one.try_lock(1, range(20, 29), W), Ok(()));
    let sent = one.mounted.sent();
    assert!(sent.contains("NFSv4.TEST_STATEID 1") && !sent.contains("FREE_STATEID"), "{sent}");
    assert_eq!(one.mounted.counter(ClientCounter::LockLost), 0);
    assert_eq!(one.write(b"locked"), Ok(()));
}

// SEMANTICS: sessions-6, sessions-10.
#[test]
fn the_lock_states_of_a_revoked_open_are_freed_before_it() {
    // A server may count locks that the client does not know.
    for has_others in [false, true] {
        let world = World::new();
        let server = ScriptedServer::new(&world);
        let one = Locking::over(&world, "one", LockOptions::default(), Arc::<ScriptedServer>::clone(&server));
        let locked = Arc::<Mutex<Vec<u32>>>::default();
        let state = Arc::clone(&locked);
        let last_words = |reply: &[u8]| {
            let words = reply[reply.len() - 12..].chunks(4);
            words.map(|word| u32::from_be_bytes(word.try_into().unwrap())).collect()
        };
        server.script(move |asked| {
            (asked.main() == op::LOCK)
                .then(|| asked.execute().inspect(|reply| *state.lock() = last_words(reply)))
        });
        assert_eq!(one.try_lock(1, range(0, 3), W), Ok(()));
        let freed = Arc::<Mutex<Vec<&str>>>::default();
        let (is_first, state, order) =
            (crate::nfs4_faults::times(1), Arc::clone(&locked), Arc::clone(&freed));
        server.script(move |asked| match asked.words.get(12) {
            Some(&op::FREE_STATEID) => Some(asked.free_states(|stateid| {
                let is_lock = stateid == **state.lock();
                let mut order = order.lock();
                let is_held = !is_lock && (has_others || !order.contains(&"lock"));
                order.push(if is_lock { "lock" } else { "open" });
                if is_held { status::LOCKS_HELD } else { 0 }
            })),
            Some(&op::PUTFH) if asked.main() == op::WRITE && is_first() => {
                let results = [op::PUTFH, 0, op::GETATTR, status::ADMIN_REVOKED];
                Some(asked.answer(2, status::ADMIN_REVOKED, &results))
            }
            _ => None,
        });
        let op = || one.mounted.client.op(&root());
        ops::write(&op(), &one.file, 5, b"x").unwrap();
        let _ = ops::fsync(&op(), &one.file, false);
        assert_eq!(one.mounted.counter(ClientCounter::LockLost), 1);
        assert_eq!(statfs(&world, &one.mounted), Ok(()));
        let expected: &[&str] = if has_others { &["lock", "open", "open"] } else { &["lock", "open"] };
        assert_eq!(*freed.lock(), expected, "others: {has_others}");
    }
}

// SEMANTICS: sessions-6.
#[test]
fn revoked_states_of_which_the_server_frees_one_at_a_time_are_asked_for_twice_at_most() {
    const LOCKS: u64 = 8;
    let world = World::new();
    let server = ScriptedServer::new(&world);
    let one = Locking::over(&world, "one", LockOptions::default(), Arc::<ScriptedServer>::clone(&server));
    for owner in 0..LOCKS {
        assert_eq!(one.try_lock(owner, range(owner, owner), W), Ok(()));
    }
    let asked_for = Arc::<Mutex<Vec<[u32; 3]>>>::default();
    let (states, is_first) = (Arc::clone(&asked_for), crate::nfs4_faults::times(1));
    // Those that were asked for since the last one was freed.
    let since = Mutex::new(Vec::new());
    server.script(move |asked| match asked.words.get(12) {
        Some(&op::FREE_STATEID) => {
            let (since, all) = (&mut *since.lock(), &mut *states.lock());
            Some(asked.free_states(|stateid| {
                all.push(stateid);
                let is_next = all.len() == 1 || since.contains(&stateid);
                if is_next {
                    since.clear();
                }
                since.push(stateid);
                if is_next { 0 } else { status::LOCKS_HELD }
            }))
        }
        Some(&op::PUTFH) if asked.main() == op::WRITE && is_first() => {
            let results = [op::PUTFH, 0, op::GETATTR, status::ADMIN_REVOKED];
            Some(asked.answer(2, status::ADMIN_REVOKED, &results))
        }
        _ => None,
    });
    let op = || one.mounted.client.op(&root());
    ops::write(&op(), &one.file, 9, b"x").unwrap();
    let _ = ops::fsync(&op(), &one.file, false);
    for _ in 0..3 {
        assert_eq!(statfs(&world, &one.mounted), Ok(()));
    }
    let all = &*asked_for.lock();
    let different = all.iter().collect::<std::collections::HashSet<_>>().len();
    assert_eq!(different, usize::try_from(LOCKS).unwrap() + 1, "the locks and the open");
    assert!(all.len() < 2 * different, "{} times for {different}", all.len());
}

// SEMANTICS: lock-10, sessions-10.
#[test]
fn a_synchronous_write_under_a_lost_lock_fails_once() {
    let world = World::new();
    let way = ScriptedServer::new(&world);
    let one = Locking::over(&world, "one", LockOptions::default(), Arc::<ScriptedServer>::clone(&way));
    let op = || one.mounted.client.op(&root());
    let flags = OpenFlags { sync: true, ..OpenFlags::writing() };
    let file = ops::open(&op(), one.file.id(), flags).unwrap().file;
    let one = Locking { file, mounted: one.mounted, timers: one.timers };
    let op = || one.mounted.client.op(&root());
    assert_eq!(one.try_lock(1, range(0, 9), W), Ok(()));
    assert_eq!(ops::write(&op(), &one.file, 0, b"ab"), Ok(2));
    // This server knows no client, so that it lets nobody reclaim.
    way.replace(world.way_after_restart());
    assert_eq!(ops::write(&op(), &one.file, 2, b"cd"), Err(Errno::IO));
    assert_eq!(one.mounted.counter(ClientCounter::LockLost), 1);
    assert_eq!(contents(&world), b"ab23456789");
    assert_eq!(ops::write(&op(), &one.file, 2, b"ef"), Ok(2), "once");
    assert_eq!(ops::fsync(&op(), &one.file, false), Ok(()));
    assert_eq!(contents(&world), b"abef456789");
}

// SEMANTICS: lock-10.
#[test]
fn an_error_of_the_server_is_not_taken_for_a_lost_lock() {
    let world = World::new();
    let server = ScriptedServer::new(&world);
    let one = Locking::over(&world, "one", LockOptions::default(), Arc::<ScriptedServer>::clone(&server));
    let two = Locking::new(&world, "two", LockOptions::default());
    assert_eq!(one.try_lock(1, range(0, 9), W), Ok(()));
    let (is_first, is_second) = (crate::nfs4_faults::times(1), Arc::new(AtomicBool::new(false)));
    let sent_again = Arc::clone(&is_second);
    server.script(move |asked| {
        if asked.main() != op::WRITE {
            return None;
        }
        if !is_first() {
            sent_again.store(true, Relaxed);
            return None;
        }
        let results = [op::PUTFH, 0, op::GETATTR, 0, 1, 1 << 3, 8, 0, 1, op::WRITE, status::IO];
        Some(asked.answer(3, status::IO, &results))
    });
    let op = || one.mounted.client.op(&root());
    ops::write(&op(), &one.file, 0, b"ab").unwrap();
    assert_eq!(ops::fsync(&op(), &one.file, false), Err(Errno::IO));
    assert_eq!(ops::fsync(&op(), &one.file, false), Ok(()), "once");
    assert!(!is_second.load(Relaxed), "the bytes are dropped");
    assert_eq!(one.mounted.counter(ClientCounter::LockLost), 0);
    assert_eq!(two.try_lock(2, range(0, 9), W), Err(Errno::AGAIN), "it is held");
    assert_eq!(ops::write(&op(), &one.file, 2, b"cd"), Ok(2));
    assert_eq!(ops::fsync(&op(), &one.file, false), Ok(()));
    assert_eq!(contents(&world), b"01cd456789");
}

// SEMANTICS: sessions-22.
#[test]
fn locks_are_unlocked_one_by_one_before_a_mount_ends_for_a_limited_time() {
    let limit = Duration::from_secs(1);
    for is_silent in [false, true] {
        let world = World::new();
        let server = ScriptedServer::new(&world);
        let one = Locking::over(&world, "one", LockOptions::default(), Arc::<ScriptedServer>::clone(&server));
        for owner in 1..=3 {
            assert_eq!(one.try_lock(owner, range(owner, owner), W), Ok(()));
        }
        one.mounted.sent();
        let timers = Arc::clone(&one.timers);
        server.script(move |asked| {
            (is_silent && asked.main() == op::LOCKU).then(|| {
                timers.pass(limit);
                asked.keep_silent()
            })
        });
        one.mounted.client.release_locks(limit);
        let sent = one.mounted.sent();
        assert!(sent.contains(if is_silent { "NFSv4.LOCKU 1" } else { "NFSv4.LOCKU 3" }), "{sent}");
        one.mounted.v4.as_ref().unwrap().end(SOON);
        let sent = one.mounted.sent();
        assert!(sent.contains("NFSv4.DESTROY_CLIENTID 1") && !sent.contains("LOCKU"), "{sent}");
        let two = Locking::new(&world, "two", LockOptions::default());
        assert_eq!(two.try_lock(9, ByteRange::WHOLE, W), Ok(()), "the rest ends with the mount");
    }
}

// SEMANTICS: sessions-22.
#[test]
fn the_end_of_a_mount_does_not_wait_for_a_silent_server_which_keeps_what_it_has() {
    let world = World::new();
    let server = ScriptedServer::new(&world);
    let one = Locking::over(&world, "one", LockOptions::default(), Arc::<ScriptedServer>::clone(&server));
    assert_eq!(one.try_lock(1, range(0, 9), W), Ok(()));
    server.script(|asked| Some(asked.keep_silent()));
    one.mounted.v4.as_ref().unwrap().end(Duration::from_millis(1));
    let two = Locking::new(&world, "two", LockOptions::default());
    assert_eq!(two.try_lock(9, range(9, 9), W), Err(Errno::AGAIN));
}

// SEMANTICS: sessions-3.
#[test]
fn a_size_is_set_by_the_stateid_of_the_open_or_of_its_lock() {
    const ANONYMOUS: [u32; 4] = [0; 4];
    let world = World::new();
    let server = ScriptedServer::new(&world);
    let one = Locking::over(&world, "one", LockOptions::default(), Arc::<ScriptedServer>::clone(&server));
    let (used, stateids) = std::sync::mpsc::channel();
    server.script(move |asked| {
        // GETATTR of the change attribute precedes.
        let setattr = [9, 1, 1 << 3, op::SETATTR];
        if let Some(at) = asked.words.windows(4).position(|words| words == setattr) {
            used.send(<[u32; 4]>::try_from(&asked.words[at + 4..at + 8]).unwrap()).unwrap();
        }
        None
    });
    let op = || one.mounted.client.op(&root());
    let set = |size| SetAttributes { size: Some(size), ..SetAttributes::default() };
    let truncate = |size| {
        ops::setattr_open(&op(), &one.file, &set(size)).unwrap();
        stateids.try_recv().unwrap()
    };
    let of_open = truncate(9);
    assert_ne!(of_open, ANONYMOUS);
    assert_eq!(one.try_lock(1, range(4, 5), W), Ok(()));
    let of_lock = truncate(5);
    assert!(of_lock != of_open && of_lock != ANONYMOUS, "{of_lock:?}");
    assert_eq!(truncate(6), of_open, "the locked bytes stay");
    ops::setattr(&op(), one.file.id(), &set(3)).unwrap();
    assert_eq!(stateids.try_recv(), Ok(ANONYMOUS), "truncate(2) has no open");
    let truncating = OpenFlags { truncate: true, ..OpenFlags::writing() };
    ops::open(&op(), one.file.id(), truncating).unwrap();
    assert_eq!(stateids.try_recv(), Ok(of_lock));
}
