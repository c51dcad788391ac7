//! Byte-range locks: which requests are sent to the lock manager, when callers are answered, and
//! what is believed of a file afterwards.

mod lock_manager;
mod nfs4;

use std::{
    sync::{Arc, Barrier, mpsc},
    time::Duration,
};

use curt_client::{
    Background, Caller, ClientOptions, LocalLockOwner, LockArguments, OpenFile, OpenFlags, ops,
    threads::BackgroundThreads,
};
use curt_observe::ClientCounter;
use curt_policy::{
    CacheOptions,
    locks::{LockOptions, LockOrder},
};
use curt_proto::nfs3::NfsProcedure;
use curt_proto::nlm4::{NlmProcedure, NlmStat4};
use curt_rpc::client::{Interrupt, Transport};
use curt_types::{ByteRange, LockType, SetAttributes};
use rustix::io::Errno;

use self::lock_manager::{LockManager, SOON};
use crate::delegations::Timers;
use crate::failures::{Kind, Trouble};
use crate::scripted_server::bytes;
use crate::world::{BenchMount, World, root, user};

/// A mount whose locks are those of a lock manager, and one open file.
struct LockingMount {
    world: World,
    manager: Arc<LockManager>,
    mounted: BenchMount,
    file: Arc<OpenFile>,
}

/// The result of a request that may wait.
type Pending = mpsc::Receiver<Result<(), Errno>>;

fn range(first: u64, last: u64) -> ByteRange {
    ByteRange::new(first, last).unwrap()
}

fn want(owner: u64, range: ByteRange, lock_type: LockType, wait: bool) -> LockArguments {
    LockArguments { owner: LocalLockOwner::Posix(owner), pid: 0, range, lock_type, wait }
}

impl LockingMount {
    fn new() -> Self {
        Self::with(LockOptions::default())
    }

    fn with(locks: LockOptions) -> Self {
        let world = World::new();
        let transport = world.way();
        Self::over(world, transport, locks)
    }

    fn over(world: World, transport: Arc<dyn Transport>, locks: LockOptions) -> Self {
        Self::working_on(world, transport, locks, Arc::new(BackgroundThreads::new(8)))
    }

    /// Also with an executor for delayed work.
    fn working_on(
        world: World,
        transport: Arc<dyn Transport>,
        locks: LockOptions,
        background: Arc<dyn Background>,
    ) -> Self {
        let manager = Arc::new(LockManager::default());
        let options = ClientOptions { locks, ..ClientOptions::default() };
        let client = lock_manager::client(&manager);
        let mounted = world.mount_locking(options, transport, client, background);
        mounted.put(&root(), mounted.client.root(), "f", 0o666, b"0123456789");
        let file = open(&mounted, "f", OpenFlags::writing());
        mounted.sent();
        Self { world, manager, mounted, file }
    }

    fn begin(&self, caller: &Caller, file: &Arc<OpenFile>, arguments: LockArguments) -> Pending {
        let (answer, answered) = mpsc::channel();
        let done = Box::new(move |result| answer.send(result).unwrap());
        ops::lock(&self.mounted.client.op(caller), file, arguments, done);
        answered
    }

    fn lock(&self, owner: u64, range: ByteRange, lock_type: LockType, wait: bool) -> Result<(), Errno> {
        let op = self.mounted.client.op(&root());
        ops::lock_and_wait(&op, &self.file, want(owner, range, lock_type, wait))
    }

    fn unlock(&self, owner: u64, range: ByteRange) -> Result<(), Errno> {
        ops::unlock_and_wait(
            &self.mounted.client.op(&root()),
            &self.file,
            LocalLockOwner::Posix(owner),
            range,
        )
    }

    fn waits(&self, owner: u64, range: ByteRange) -> Pending {
        self.begin(&root(), &self.file, want(owner, range, LockType::Write, true))
    }

    fn handle(&self) -> Vec<u8> {
        self.mounted.client.file_handle(self.file.id()).unwrap().as_bytes().to_vec()
    }
}

fn open(mounted: &BenchMount, name: &str, flags: OpenFlags) -> Arc<OpenFile> {
    open_as(&root(), mounted, name, flags)
}

fn open_as(caller: &Caller, mounted: &BenchMount, name: &str, flags: OpenFlags) -> Arc<OpenFile> {
    let found = mounted.lookup(caller, mounted.client.root(), name).unwrap();
    ops::open(&mounted.client.op(caller), found.id, flags).unwrap().file
}

const W: LockType = LockType::Write;
const R: LockType = LockType::Read;

// SEMANTICS: lock-15.
#[test]
fn waiters_of_one_mount_send_no_request_until_their_turn() {
    let mount = LockingMount::new();
    assert_eq!(mount.lock(0, range(0, 9), W, true), Ok(()));
    assert_eq!(mount.manager.calls(), ["LOCK w 0..=9"]);
    let waiters: Vec<_> = (1..200).map(|owner| mount.waits(owner, range(0, 9))).collect();
    assert!(mount.manager.calls().is_empty());
    assert_eq!(mount.mounted.counter(ClientCounter::LockLocalWait), 199);
    assert_eq!(mount.lock(999, range(5, 5), R, false), Err(Errno::AGAIN));
    for (owner, waiter) in (1..).zip(&waiters) {
        assert_eq!(waiter.try_recv(), Err(mpsc::TryRecvError::Empty), "{owner}");
        assert_eq!(mount.unlock(owner - 1, ByteRange::WHOLE), Ok(()));
        assert_eq!(waiter.recv_timeout(SOON), Ok(Ok(())), "{owner}");
        assert_eq!(mount.manager.calls(), ["UNLOCK 0..=9", "LOCK w 0..=9"], "{owner}");
    }
    assert_eq!(mount.unlock(199, range(3, 4)), Ok(()));
    assert_eq!(mount.manager.calls(), ["UNLOCK 3..=4"]);
    assert_eq!(mount.mounted.client.locks().locks.len(), 2, "it is split");
    assert_eq!(mount.unlock(199, ByteRange::WHOLE), Ok(()));
    assert!(!mount.manager.holds_something());
    assert_eq!(mount.mounted.client.locks().locks, []);
}

// SEMANTICS: lock-3.
#[test]
fn a_waiter_that_cannot_be_called_repeats_its_request_to_keep_its_place() {
    let mount = LockingMount::new();
    mount.manager.keep_places();
    let file = mount.handle();
    mount.manager.other(&file, range(0, 9), Some(W));
    assert_eq!(mount.lock(1, range(0, 0), W, false), Err(Errno::AGAIN));
    assert_eq!(mount.manager.calls(), ["LOCK w 0..=0"], "one that does not wait gets no place");
    let caller = Caller { interrupt: Interrupt::new(), ..root() };
    let killed = mount.begin(&caller, &mount.file, want(2, range(0, 9), W, true));
    mount.manager.wait_for_calls(4);
    caller.interrupt.raise();
    assert_eq!(killed.recv_timeout(SOON), Ok(Err(Errno::INTR)));
    // Nothing is at the server that would have to be cancelled.
    let calls = mount.manager.calls();
    assert!(calls.iter().all(|call| call == "LOCK repeated w 0..=9"), "{calls:?}");
    let next = mount.waits(3, range(5, 5));
    // One call of the killed waiter may still be on its way.
    mount.manager.wait_for_calls(3);
    mount.manager.other(&file, ByteRange::WHOLE, None);
    assert_eq!(next.recv_timeout(SOON), Ok(Ok(())));
    let calls = mount.manager.calls();
    let repeated = calls.iter().filter(|call| *call == "LOCK repeated w 5..=5").count();
    assert!(repeated >= 2 && !calls.iter().any(|call| call.starts_with("CANCEL")), "{calls:?}");
}

// SEMANTICS: lock-3.
#[test]
fn a_waiting_upgrade_keeps_its_place_also_if_the_server_calls_back() {
    let mount = LockingMount::new();
    mount.manager.keep_places();
    mount.manager.call_back();
    let file = mount.handle();
    assert_eq!(mount.lock(1, range(0, 9), R, true), Ok(()));
    mount.manager.other(&file, range(0, 9), Some(R));
    assert_eq!(mount.lock(1, range(0, 9), W, false), Err(Errno::AGAIN));
    let upgraded = mount.waits(1, range(0, 9));
    mount.manager.wait_for_calls(4);
    mount.manager.other(&file, ByteRange::WHOLE, None);
    assert_eq!(upgraded.recv_timeout(SOON), Ok(Ok(())));
    let calls = mount.manager.calls();
    assert_eq!(calls[..2], ["LOCK wait r 0..=9", "LOCK w 0..=9"]);
    assert!(calls[2..].iter().all(|call| call == "LOCK repeated w 0..=9"), "{calls:?}");
}

// SEMANTICS: lock-3.
#[test]
fn a_lock_of_another_client_is_polled_for_by_the_first_waiter_alone() {
    let mount = LockingMount::new();
    let file = mount.handle();
    mount.manager.other(&file, range(0, 9), Some(W));
    assert_eq!(mount.lock(1, range(0, 0), R, false), Err(Errno::AGAIN));
    mount.manager.calls();
    let (first, second) = (mount.waits(2, range(0, 9)), mount.waits(3, range(0, 9)));
    mount.manager.wait_for_calls(3);
    assert_eq!(first.try_recv(), Err(mpsc::TryRecvError::Empty));
    mount.manager.other(&file, ByteRange::WHOLE, None);
    assert_eq!(first.recv_timeout(SOON), Ok(Ok(())));
    assert_eq!(second.try_recv(), Err(mpsc::TryRecvError::Empty));
    assert!(mount.manager.calls().iter().all(|call| call == "LOCK w 0..=9"));
    assert!(mount.mounted.counter(ClientCounter::LockPoll) >= 2);
    assert_eq!(mount.unlock(2, ByteRange::WHOLE), Ok(()));
    assert_eq!(second.recv_timeout(SOON), Ok(Ok(())));
}

// SEMANTICS: lock-3.
#[test]
fn a_server_that_calls_back_is_not_polled_and_strange_callbacks_change_nothing() {
    let mount = LockingMount::new();
    mount.manager.call_back();
    let file = mount.handle();
    mount.manager.other(&file, range(0, 9), Some(W));
    let waiter = mount.waits(2, range(0, 9));
    mount.manager.wait_for_calls(1);
    assert_eq!(mount.manager.calls(), ["LOCK wait w 0..=9"]);
    assert!(!mount.manager.grant(b"another file", 0, range(0, 9)));
    assert!(!mount.manager.grant(&file, 77, range(0, 9)), "nobody has this number");
    assert_eq!(waiter.try_recv(), Err(mpsc::TryRecvError::Empty));
    assert!(mount.manager.grant(&file, 0, range(0, 9)));
    assert_eq!(waiter.recv_timeout(SOON), Ok(Ok(())));
    assert!(mount.manager.grant(&file, 0, range(0, 9)), "a repeated callback is confirmed");
    assert_eq!(mount.manager.calls(), Vec::<String>::new());
    assert_eq!(mount.mounted.counter(ClientCounter::LockCallback), 1);
}

// SEMANTICS: lock-3.
#[test]
fn a_late_callback_for_a_request_that_was_sent_again_grants_nothing() {
    let mount = LockingMount::new();
    mount.manager.call_back();
    let file = mount.handle();
    // It is blocked, granted, and executed once more; the callback is delayed.
    mount.manager.script(&[NlmStat4::Blocked]);
    mount.manager.lose_connection();
    assert_eq!(mount.lock(2, range(0, 9), W, true), Ok(()));
    assert_eq!(mount.manager.calls(), ["LOCK wait w 0..=9", "LOCK wait w 0..=9"]);
    assert_eq!(mount.unlock(2, range(0, 9)), Ok(()));
    mount.manager.other(&file, range(0, 9), Some(W));
    mount.manager.calls();
    let waiter = mount.waits(2, range(0, 9));
    mount.manager.wait_for_calls(1);
    mount.manager.calls();
    assert!(mount.manager.call_again(&file, 0, range(0, 9)), "for the first time");
    mount.manager.wait_for_calls(1);
    assert_eq!(mount.manager.calls(), ["LOCK wait w 0..=9"], "the server is asked");
    assert_eq!(waiter.try_recv(), Err(mpsc::TryRecvError::Empty));
    mount.manager.other(&file, range(0, 9), None);
    assert!(mount.manager.grant(&file, 0, range(0, 9)));
    assert_eq!(waiter.recv_timeout(SOON), Ok(Ok(())));
}

// SEMANTICS: lock-3.
#[test]
fn a_callback_that_comes_again_later_grants_nothing() {
    let mount = LockingMount::new();
    mount.manager.call_back();
    let file = mount.handle();
    mount.manager.other(&file, range(0, 9), Some(W));
    let waiter = mount.waits(2, range(0, 9));
    mount.manager.wait_for_calls(1);
    mount.manager.other(&file, range(0, 9), None);
    assert!(mount.manager.grant(&file, 0, range(0, 9)));
    assert_eq!(waiter.recv_timeout(SOON), Ok(Ok(())));
    assert_eq!(mount.unlock(2, range(0, 9)), Ok(()));
    mount.manager.other(&file, range(0, 9), Some(W));
    let waiter = mount.waits(2, range(0, 9));
    mount.manager.wait_for_calls(3);
    mount.manager.calls();
    mount.manager.call_again(&file, 0, range(0, 9));
    mount.manager.wait_for_calls(1);
    assert_eq!(mount.manager.calls(), ["LOCK wait w 0..=9"], "the server is asked");
    assert_eq!(waiter.try_recv(), Err(mpsc::TryRecvError::Empty));
    mount.manager.other(&file, range(0, 9), None);
    assert!(mount.manager.grant(&file, 0, range(0, 9)));
    assert_eq!(waiter.recv_timeout(SOON), Ok(Ok(())));
}

// SEMANTICS: lock-4.
#[test]
fn an_interrupted_wait_ends_at_once_and_leaves_nothing_at_the_server() {
    let mount = LockingMount::new();
    let interrupted = || Caller { interrupt: Interrupt::new(), ..root() };
    assert_eq!(mount.lock(0, range(0, 9), W, true), Ok(()));
    // Behind a lock of this mount.
    let caller = interrupted();
    let waiter = mount.begin(&caller, &mount.file, want(1, range(0, 9), W, true));
    caller.interrupt.raise();
    assert_eq!(waiter.recv_timeout(SOON), Ok(Err(Errno::INTR)));
    assert_eq!(mount.unlock(0, range(0, 9)), Ok(()));
    assert_eq!(mount.manager.calls(), ["LOCK w 0..=9", "UNLOCK 0..=9"]);
    // While its LOCK is in flight: what is granted then is given back.
    mount.manager.hold(Some(NlmProcedure::Lock));
    let caller = interrupted();
    std::thread::scope(|scope| {
        let (file, mount) = (&mount.file, &mount);
        let (answer, answered) = mpsc::channel();
        let of_caller = caller.clone();
        scope.spawn(move || {
            let op = mount.mounted.client.op(&of_caller);
            let done = Box::new(move |result| answer.send(result).unwrap());
            ops::lock(&op, file, want(1, range(0, 9), W, true), done);
        });
        mount.manager.wait_for_held();
        caller.interrupt.raise();
        assert_eq!(answered.recv_timeout(SOON), Ok(Err(Errno::INTR)));
        mount.manager.hold(None);
    });
    mount.manager.wait_for_calls(2);
    assert_eq!(mount.manager.calls(), ["LOCK w 0..=9", "UNLOCK 0..=9"]);
    assert!(!mount.manager.holds_something());
    // Blocked at the server.
    mount.manager.call_back();
    let file = mount.handle();
    mount.manager.other(&file, range(0, 9), Some(W));
    let caller = interrupted();
    let waiter = mount.begin(&caller, &mount.file, want(1, range(0, 9), W, true));
    mount.manager.wait_for_calls(1);
    caller.interrupt.raise();
    assert_eq!(waiter.recv_timeout(SOON), Ok(Err(Errno::INTR)));
    mount.manager.wait_for_calls(3);
    assert_eq!(mount.manager.calls(), ["LOCK wait w 0..=9", "CANCEL w 0..=9", "UNLOCK 0..=9"]);
    // Before it has begun.
    let waiter = mount.begin(&caller, &mount.file, want(1, range(0, 9), W, true));
    assert_eq!(waiter.recv_timeout(SOON), Ok(Err(Errno::INTR)));
    assert_eq!(mount.mounted.counter(ClientCounter::LockInterrupt), 4);
}

// SEMANTICS: lock-5.
#[test]
fn a_locker_sees_what_the_previous_one_wrote() {
    let mount = LockingMount::new();
    let other = mount.world.mount(CacheOptions::default());
    let reader = mount.mounted.client.op(&root());
    assert_eq!(&*ops::read(&reader, &mount.file, 0, 4).unwrap().to_vec(), b"0123");
    let writer = open(&other, "f", OpenFlags::writing());
    let op = other.client.op(&root());
    assert_eq!(ops::write(&op, &writer, 0, b"abcd"), Ok(4));
    ops::flush(&op, &writer).unwrap();
    let read = || ops::read(&mount.mounted.client.op(&root()), &mount.file, 0, 4).unwrap().to_vec();
    assert_eq!(read(), b"0123", "without a lock the cache is believed");
    mount.mounted.sent();
    assert_eq!(mount.lock(1, range(0, 9), W, true), Ok(()));
    assert_eq!(mount.manager.calls(), ["LOCK w 0..=9"]);
    assert_eq!(mount.mounted.sent(), "", "a grant sends nothing else");
    assert_eq!(read(), b"abcd");
    assert!(mount.mounted.sent().contains("READ"));
}

// SEMANTICS: lock-5.
#[test]
fn what_was_requested_before_a_grant_and_arrives_after_it_is_not_used() {
    for procedure in [NfsProcedure::Read, NfsProcedure::Getattr] {
        let world = World::new();
        let trouble = Trouble::before(world.way());
        let mount = LockingMount::over(world, trouble.clone(), LockOptions::default());
        let other = mount.world.mount(CacheOptions::default());
        let op = || mount.mounted.client.op(&root());
        let read = || ops::read(&op(), &mount.file, 0, 100).unwrap().to_vec();
        let (here, there) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
        // Expired, or the request would not be sent.
        mount.world.seconds(600);
        trouble.plan(procedure, Kind::MeetAfter(here.clone(), there.clone()));
        std::thread::scope(|scope| {
            let early = || match procedure {
                NfsProcedure::Read => drop(read()),
                _ => assert!(ops::getattr(&op(), mount.file.id()).is_ok()),
            };
            scope.spawn(early);
            here.wait();
            let writer = open(&other, "f", OpenFlags::writing());
            let other_op = other.client.op(&root());
            assert_eq!(ops::write(&other_op, &writer, 0, b"longer than before"), Ok(18));
            ops::flush(&other_op, &writer).unwrap();
            assert_eq!(mount.lock(1, ByteRange::WHOLE, W, true), Ok(()));
            there.wait();
        });
        assert_eq!(read(), b"longer than before", "{procedure:?}");
        let size = ops::getattr(&op(), mount.file.id()).unwrap().attributes.size;
        assert_eq!(size, 18, "{procedure:?}");
    }
}

// SEMANTICS: lock-4, lock-15.
#[test]
fn a_lock_manager_that_has_stopped_holds_few_threads_and_gets_nothing_that_nobody_wants_any_more() {
    let mount = LockingMount::new();
    mount.manager.hold(Some(NlmProcedure::Lock));
    let caller = || Caller { interrupt: Interrupt::new(), ..root() };
    let waiters: Vec<_> = (0..500).map(|owner| (owner, caller())).collect();
    let mount = &mount;
    // Those that are sent on the threads of their callers.
    std::thread::scope(|scope| {
        let (first, others) = waiters.split_at(3);
        let wanted = |owner| want(owner, range(owner, owner), W, true);
        for (owner, caller) in first {
            scope.spawn(move || drop(mount.begin(caller, &mount.file, wanted(*owner))));
        }
        mount.manager.wait_until_held(3);
        // None of these waits here.
        let others: Vec<_> = others
            .iter()
            .map(|(owner, caller)| (mount.begin(caller, &mount.file, wanted(*owner)), caller))
            .collect();
        mount.manager.wait_until_held(7);
        for (waiter, caller) in &others {
            caller.interrupt.raise();
            assert_eq!(waiter.recv_timeout(SOON), Ok(Err(Errno::INTR)));
        }
        mount.manager.hold(None);
    });
    // The seven that were sent; those of the killed are undone.
    mount.manager.wait_for_calls(11);
    let calls = mount.manager.calls();
    assert_eq!(calls.iter().filter(|call| call.starts_with("LOCK")).count(), 7, "{calls:?}");
    assert_eq!(calls.len(), 11, "{calls:?}");
    assert_eq!(mount.mounted.client.locks().locks.len(), 3);
}

// SEMANTICS: lock-6.
#[test]
fn written_bytes_are_at_the_server_before_their_lock_is_free() {
    let mount = LockingMount::new();
    let other = mount.world.mount(CacheOptions::default());
    assert_eq!(mount.lock(1, range(0, 9), W, true), Ok(()));
    let op = mount.mounted.client.op(&root());
    assert_eq!(ops::write(&op, &mount.file, 0, b"abcd"), Ok(4));
    mount.mounted.sent();
    assert_eq!(mount.unlock(1, range(0, 3)), Ok(()));
    let found = other.lookup(&root(), other.client.root(), "f").unwrap();
    assert_eq!(other.cat(&root(), found.id).unwrap(), b"abcd456789");
    // Unstable data could be lost, and would be sent again after the next owner's.
    mount.mounted.sent();
    assert_eq!(ops::write(&op, &mount.file, 10, &vec![0; 3 << 20]), Ok(3 << 20));
    assert_eq!(mount.unlock(1, range(4, 4)), Ok(()));
    assert_eq!(mount.mounted.sent(), "WRITE 4 COMMIT 1");
    // The same at close.
    assert_eq!(ops::write(&op, &mount.file, 0, b"efgh"), Ok(4));
    mount.manager.calls();
    assert_eq!(ops::flush_and_unlock(&op, &mount.file, LocalLockOwner::Posix(1)), Ok(()));
    assert_eq!(mount.manager.calls(), ["UNLOCK 5..=9"]);
    let found = other.lookup(&root(), other.client.root(), "f").unwrap();
    assert!(other.cat(&root(), found.id).unwrap().starts_with(b"efgh456789"));
}

// SEMANTICS: lock-5, lock-6.
#[test]
fn what_another_client_wrote_between_two_locks_is_read_and_not_what_was_written_here() {
    let mount = LockingMount::new();
    let other = mount.world.mount(CacheOptions::default());
    let there = open(&other, "f", OpenFlags::writing());
    let op = mount.mounted.client.op(&root());
    assert_eq!(mount.lock(1, range(0, 9), W, true), Ok(()));
    assert_eq!(ops::write(&op, &mount.file, 0, &vec![b'a'; 3 << 20]), Ok(3 << 20));
    assert_eq!(mount.unlock(1, range(0, 9)), Ok(()));
    let other_op = other.client.op(&root());
    assert_eq!(ops::write(&other_op, &there, 0, b"b"), Ok(1));
    assert_eq!(ops::fsync(&other_op, &there, false), Ok(()));
    assert_eq!(mount.lock(1, range(0, 9), W, true), Ok(()));
    let found = mount.mounted.lookup(&root(), mount.mounted.client.root(), "f").unwrap();
    assert_eq!(mount.mounted.cat(&root(), found.id).unwrap()[..2], *b"ba");
}

// SEMANTICS: lock-6.
#[test]
fn written_bytes_are_at_the_server_before_a_lock_is_requested_or_downgraded() {
    let mount = LockingMount::new();
    let op = mount.mounted.client.op(&root());
    assert_eq!(ops::write(&op, &mount.file, 0, &vec![0; 3 << 20]), Ok(3 << 20));
    mount.mounted.sent();
    assert_eq!(mount.lock(1, range(0, 9), W, true), Ok(()));
    let sent = mount.mounted.sent();
    assert!(sent.ends_with("COMMIT 1"), "{sent}");
    assert_eq!(ops::write(&op, &mount.file, 0, b"abcd"), Ok(4));
    mount.mounted.sent();
    assert_eq!(mount.lock(1, range(0, 9), R, true), Ok(()));
    assert_eq!(mount.mounted.sent(), "WRITE 1");
    assert_eq!(mount.lock(1, range(0, 9), W, true), Ok(()));
    assert_eq!(mount.mounted.sent(), "", "nothing is unwritten");
}

// SEMANTICS: lock-7.
#[test]
fn a_killed_process_closes_its_files_while_the_lock_manager_does_not_reply() {
    let mount = LockingMount::new();
    let caller = Caller { interrupt: Interrupt::new(), ..root() };
    let interrupted = mount.mounted.client.op(&caller);
    assert_eq!(mount.lock(1, range(0, 9), W, true), Ok(()));
    mount.manager.hold(Some(NlmProcedure::Unlock));
    caller.interrupt.raise();
    let closed = ops::flush_and_unlock(&interrupted, &mount.file, LocalLockOwner::Posix(1));
    assert_eq!(closed, Err(Errno::INTR));
    mount.manager.hold(None);
    let again = mount.waits(1, range(0, 9));
    assert_eq!(again.recv_timeout(SOON), Ok(Ok(())));
}

// SEMANTICS: lock-7.
#[test]
fn closing_ends_the_locks_of_the_process_and_the_last_close_those_of_the_open_file() {
    let mount = LockingMount::new();
    let second = open(&mount.mounted, "f", OpenFlags::writing());
    let op = mount.mounted.client.op(&root());
    for (owner, first) in [(LocalLockOwner::Posix(1), 0), (LocalLockOwner::Posix(2), 10)] {
        let arguments = LockArguments { owner, ..want(0, range(first, first), W, false) };
        assert_eq!(ops::lock_and_wait(&op, &mount.file, arguments), Ok(()));
    }
    let ofd = LockArguments { owner: LocalLockOwner::Posix(3), ..want(0, range(20, 20), W, false) };
    assert_eq!(ops::lock_and_wait(&op, &second, ofd), Ok(()));
    mount.manager.calls();
    assert_eq!(ops::flush_and_unlock(&op, &second, LocalLockOwner::Posix(1)), Ok(()));
    assert_eq!(mount.manager.calls(), ["UNLOCK 0..=0"], "whichever descriptor it is");
    assert_eq!(ops::flush_and_unlock(&op, &second, LocalLockOwner::Posix(1)), Ok(()));
    assert!(mount.manager.calls().is_empty());
    ops::release(&mount.mounted.client, &second);
    assert_eq!(mount.manager.calls(), ["UNLOCK 20..=20"]);
    ops::release(&mount.mounted.client, &mount.file);
    assert_eq!(mount.manager.calls(), ["UNLOCK 10..=10"]);
}

// SEMANTICS: lock-7.
#[test]
fn a_close_has_unlocked_when_it_returns_although_another_process_writes() {
    let mount = LockingMount::new();
    let (written, read_only) =
        (open(&mount.mounted, "f", OpenFlags::writing()), open(&mount.mounted, "f", OpenFlags::reading()));
    let op = mount.mounted.client.op(&root());
    assert_eq!(mount.lock(1, range(0, 9), W, true), Ok(()));
    assert_eq!(ops::write(&op, &written, 20, b"x"), Ok(1));
    mount.manager.calls();
    assert_eq!(ops::flush_and_unlock(&op, &read_only, LocalLockOwner::Posix(1)), Ok(()));
    assert_eq!(mount.lock(1, range(0, 9), W, true), Ok(()));
    assert_eq!(mount.manager.calls(), ["UNLOCK 0..=9", "LOCK w 0..=9"]);
    assert!(mount.manager.holds_something());
}

// SEMANTICS: lock-6, lock-7.
#[test]
fn an_interrupted_close_unlocks_after_its_data_and_no_lock_that_comes_later() {
    let mount = LockingMount::new();
    let caller = Caller { interrupt: Interrupt::new(), ..root() };
    let interrupted = mount.mounted.client.op(&caller);
    assert_eq!(mount.lock(1, range(0, 9), W, true), Ok(()));
    assert_eq!(ops::write(&interrupted, &mount.file, 0, b"abcd"), Ok(4));
    mount.manager.calls();
    mount.manager.hold(Some(NlmProcedure::Unlock));
    caller.interrupt.raise();
    let closed = ops::flush_and_unlock(&interrupted, &mount.file, LocalLockOwner::Posix(1));
    assert_eq!(closed, Err(Errno::INTR));
    let again = mount.waits(1, range(0, 9));
    assert_eq!(again.try_recv(), Err(mpsc::TryRecvError::Empty));
    mount.manager.hold(None);
    assert_eq!(again.recv_timeout(SOON), Ok(Ok(())));
    assert_eq!(mount.manager.calls(), ["UNLOCK 0..=9", "LOCK w 0..=9"]);
    let other = mount.world.mount(CacheOptions::default());
    let found = other.lookup(&root(), other.client.root(), "f").unwrap();
    assert_eq!(other.cat(&root(), found.id).unwrap(), b"abcd456789");
}

// SEMANTICS: lock-8.
#[test]
fn refusals_have_the_errnos_of_linux_and_the_end_of_the_grace_period_is_awaited() {
    let mount = LockingMount::new();
    for (status, errno) in [
        (NlmStat4::Denied, Errno::AGAIN),
        (NlmStat4::DeniedNolocks, Errno::NOLCK),
        (NlmStat4::Failed, Errno::NOLCK),
        (NlmStat4::Deadlck, Errno::DEADLK),
        (NlmStat4::StaleFh, Errno::STALE),
        (NlmStat4::Fbig, Errno::OVERFLOW),
        (NlmStat4::Rofs, Errno::ROFS),
    ] {
        mount.manager.script(&[status]);
        assert_eq!(mount.lock(1, range(0, 9), W, false), Err(errno), "{status}");
        assert_eq!(mount.lock(1, range(0, 9), W, false), Ok(()), "{status}");
        assert_eq!(mount.unlock(1, range(0, 9)), Ok(()));
    }
    mount.manager.calls();
    mount.manager.script(&[NlmStat4::DeniedGracePeriod; 2]);
    assert_eq!(mount.lock(1, range(0, 9), W, false), Ok(()));
    assert_eq!(mount.manager.calls(), ["LOCK w 0..=9"; 3]);
}

// SEMANTICS: lock-8.
#[test]
fn what_a_late_copy_of_a_lock_may_have_locked_is_unlocked_once_more() {
    const LATE: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(84)];
    for has_reply in [true, false] {
        let (world, timers) = (World::new(), Arc::<Timers>::default());
        let (way, background) = (world.way(), Arc::<Timers>::clone(&timers));
        let mount = LockingMount::working_on(world, way, LockOptions::default(), background);
        if has_reply {
            mount.manager.lose_connection();
            assert_eq!(mount.lock(1, range(0, 9), W, false), Ok(()));
            assert_eq!(mount.unlock(1, range(0, 9)), Ok(()));
            assert_eq!(mount.manager.calls(), ["LOCK w 0..=9", "LOCK w 0..=9", "UNLOCK 0..=9"]);
        } else {
            mount.manager.mix_up_cookies(true);
            assert_eq!(mount.lock(1, range(0, 9), W, false), Err(Errno::IO));
            mount.manager.mix_up_cookies(false);
            timers.pass(Duration::from_secs(1));
            assert_eq!(mount.manager.calls(), ["LOCK w 0..=9", "UNLOCK 0..=9", "UNLOCK 0..=9"]);
        }
        mount.manager.execute_copy(&mount.handle(), range(0, 9));
        let is_late = |delay: &Duration| (LATE[0]..=LATE[1]).contains(delay);
        assert_eq!(timers.delays().iter().filter(|delay| is_late(delay)).count(), 1);
        assert!(mount.manager.holds_something(), "other clients wait");
        timers.pass(LATE[1]);
        assert_eq!(mount.manager.calls(), ["UNLOCK 0..=9"]);
        assert!(!mount.manager.holds_something());
    }
}

#[test]
fn a_reply_with_another_cookie_is_no_reply_and_what_it_may_have_locked_is_unlocked() {
    let mount = LockingMount::new();
    mount.manager.mix_up_cookies(true);
    assert_eq!(mount.lock(1, range(0, 9), W, false), Err(Errno::IO));
    mount.manager.mix_up_cookies(false);
    mount.manager.wait_for_calls(2);
    assert_eq!(mount.manager.calls()[..2], ["LOCK w 0..=9", "UNLOCK 0..=9"]);
    let pending = mount.waits(2, range(0, 9));
    assert_eq!(pending.recv_timeout(SOON), Ok(Ok(())));
}

// SEMANTICS: lock-9.
#[test]
fn the_holder_of_a_lock_is_found_here_and_at_the_server() {
    let mount = LockingMount::new();
    let op = mount.mounted.client.op(&root());
    let test = |owner, range, lock_type| {
        ops::test_lock(&op, &mount.file, &want(owner, range, lock_type, false)).unwrap()
    };
    assert_eq!(test(1, range(0, 9), W), None);
    assert_eq!(mount.manager.calls(), ["TEST"]);
    let arguments = LockArguments { pid: 4711, ..want(1, range(2, 3), R, false) };
    assert_eq!(ops::lock_and_wait(&op, &mount.file, arguments), Ok(()));
    mount.manager.calls();
    let held = test(2, range(0, 9), W).unwrap();
    assert_eq!((held.range, held.lock_type, held.pid), (range(2, 3), R, 4711));
    assert_eq!(mount.manager.calls(), Vec::<String>::new());
    mount.manager.other(&mount.handle(), range(5, u64::MAX), Some(W));
    let held = test(2, range(4, 9), R).unwrap();
    assert_eq!((held.range, held.lock_type, held.pid), (range(5, u64::MAX), W, 0));
}

// SEMANTICS: lock-8.
#[test]
fn a_test_waits_for_the_end_of_the_grace_period_unless_its_process_is_killed() {
    let mount = LockingMount::new();
    let wanted = want(1, range(0, 9), W, false);
    mount.manager.other(&mount.handle(), range(0, 9), Some(R));
    mount.manager.script(&[NlmStat4::DeniedGracePeriod; 2]);
    let held = ops::test_lock(&mount.mounted.client.op(&root()), &mount.file, &wanted).unwrap().unwrap();
    assert_eq!((held.range, held.lock_type), (range(0, 9), R));
    assert_eq!(mount.manager.calls(), ["TEST"; 3]);
    mount.manager.script(&[NlmStat4::DeniedGracePeriod; 100]);
    let caller = Caller { interrupt: Interrupt::new(), ..root() };
    std::thread::scope(|scope| {
        let tested = scope.spawn(|| {
            ops::test_lock(&mount.mounted.client.op(&caller), &mount.file, &wanted).map(|held| held.is_some())
        });
        mount.manager.wait_for_calls(2);
        caller.interrupt.raise();
        assert_eq!(tested.join().unwrap(), Err(Errno::INTR));
    });
}

// SEMANTICS: lock-10.
#[test]
fn locks_are_reclaimed_after_a_restart_and_what_is_lost_fails_once() {
    let mount = LockingMount::new();
    let second = open(&mount.mounted, "f", OpenFlags::writing());
    let op = mount.mounted.client.op(&root());
    assert_eq!(mount.lock(1, range(0, 9), W, true), Ok(()));
    assert_eq!(ops::lock_and_wait(&op, &second, want(2, range(10, 19), W, true)), Ok(()));
    let waiter = mount.waits(3, range(0, 9));
    mount.manager.calls();
    // Nothing is granted but reclaims, one of which comes too late.
    mount.manager.script(&[NlmStat4::Granted, NlmStat4::DeniedGracePeriod]);
    mount.manager.restart();
    mount.manager.wait_for_calls(2);
    // What is lost may be unlocked already.
    assert_eq!(mount.manager.calls()[..2], ["RECLAIM w 0..=9", "RECLAIM w 10..=19"]);
    while mount.mounted.counter(ClientCounter::LockLost) == 0 {
        std::thread::yield_now();
    }
    assert_eq!(mount.mounted.counter(ClientCounter::LockReclaimed), 1);
    assert_eq!(ops::write(&op, &second, 10, b"x"), Err(Errno::IO));
    assert_eq!(ops::write(&op, &second, 10, b"x"), Ok(1));
    assert_eq!(ops::write(&op, &mount.file, 0, b"x"), Ok(1));
    assert_eq!(waiter.try_recv(), Err(mpsc::TryRecvError::Empty));
    assert_eq!(mount.unlock(1, ByteRange::WHOLE), Ok(()));
    assert_eq!(waiter.recv_timeout(SOON), Ok(Ok(())));
}

// SEMANTICS: lock-10.
#[test]
fn a_lock_is_reclaimed_and_unlocked_as_its_owner_whoever_else_tries_to_lock_the_file() {
    let mount = LockingMount::new();
    let mounted = &mount.mounted;
    let (alice, bob) = (user(1000), user(1001));
    let lock = |caller, file, arguments| ops::lock_and_wait(&mounted.client.op(caller), file, arguments);
    let alices = open_as(&alice, mounted, "f", OpenFlags::writing());
    let bobs = open_as(&bob, mounted, "f", OpenFlags::reading());
    assert_eq!(lock(&bob, &bobs, want(2, range(20, 29), R, false)), Ok(()));
    assert_eq!(lock(&alice, &alices, want(1, range(0, 9), W, false)), Ok(()));
    assert_eq!(lock(&bob, &bobs, want(2, range(0, 9), R, false)), Err(Errno::AGAIN));
    // Another process of his.
    assert_eq!(lock(&bob, &bobs, want(3, range(0, 9), R, false)), Err(Errno::AGAIN));
    mount.manager.forbid_writing_except(alice.uid, NlmStat4::Failed);
    mount.manager.calls();
    mount.manager.restart();
    mount.manager.wait_for_calls(2);
    assert_eq!(mount.manager.users(), [alice.uid, bob.uid]);
    assert_eq!(mount.manager.calls(), ["RECLAIM w 0..=9", "RECLAIM r 20..=29"]);
    while mounted.counter(ClientCounter::LockReclaimed) < 2 {
        std::thread::yield_now();
    }
    assert_eq!(mounted.counter(ClientCounter::LockLost), 0);
    // No process waits for these.
    for (file, caller) in [(&alices, &alice), (&bobs, &bob)] {
        ops::release(&mounted.client, file);
        assert_eq!(mount.manager.users(), [caller.uid]);
        assert_eq!(mount.manager.calls().len(), 1);
    }
}

// SEMANTICS: lock-10.
#[test]
fn many_notices_of_a_restart_delay_no_lock() {
    let mount = LockingMount::new();
    let file = mount.handle();
    mount.manager.other(&file, range(0, 9), Some(W));
    mount.manager.hold(Some(NlmProcedure::Null));
    (0..100).for_each(|_| mount.manager.say_that_it_restarted());
    mount.manager.wait_for_held();
    let waiter = mount.waits(1, range(0, 9));
    // The second request comes from a thread that notices use, too.
    mount.manager.wait_for_calls(2);
    mount.manager.other(&file, ByteRange::WHOLE, None);
    assert_eq!(waiter.recv_timeout(SOON), Ok(Ok(())));
    mount.manager.hold(None);
}

// SEMANTICS: lock-10.
#[test]
fn locks_of_a_server_that_was_not_restarted_are_kept_and_those_that_others_took_are_lost() {
    let mount = LockingMount::new();
    let file = mount.handle();
    for (first, lock_type) in [(0, W), (10, W), (20, R), (30, R)] {
        assert_eq!(mount.lock(1, range(first, first + 5), lock_type, true), Ok(()));
    }
    mount.manager.other(&file, range(20, 25), Some(R));
    mount.manager.calls();
    let (late, mounted) = (NlmStat4::DeniedGracePeriod, &mount.mounted);
    let suspect = |locks: u64, lost: u64| {
        let before = mounted.counter(ClientCounter::LockReclaimed);
        // Each reclaim is refused, and the TEST after it is answered truly.
        mount.manager.refuse_reclaims(late);
        mount.manager.say_that_it_restarted();
        while mounted.counter(ClientCounter::LockReclaimed) < before + locks
            || mounted.counter(ClientCounter::LockLost) < lost
        {
            std::thread::yield_now();
        }
    };
    suspect(4, 0);
    let mut expected = vec![
        "RECLAIM w 0..=5",
        "TEST",
        "RECLAIM w 10..=15",
        "TEST",
        "RECLAIM r 20..=25",
        // It names the other reader.
        "TEST",
        "LOCK r 20..=25",
        "RECLAIM r 30..=35",
        "TEST",
    ];
    assert_eq!(mount.manager.calls(), expected);
    mount.manager.hide_holders();
    suspect(4, 0);
    expected.insert(9, "LOCK r 30..=35");
    // It names nobody else now.
    expected.splice(4..4, ["LOCK w 10..=15", "TEST"]);
    expected.splice(2..2, ["LOCK w 0..=5", "TEST"]);
    assert_eq!(mount.manager.calls(), expected);
    // One was lost without anybody's notice, and is another client's.
    mount.manager.forget_all_but_others();
    mount.manager.other(&file, range(10, 15), Some(W));
    suspect(1, 3);
    assert_eq!(mount.unlock(1, ByteRange::WHOLE), Err(Errno::IO));
}

// SEMANTICS: lock-10.
#[test]
fn a_lock_for_reading_is_kept_without_a_restart_where_its_user_may_not_write() {
    for status in [NlmStat4::Failed, NlmStat4::Rofs] {
        let mount = LockingMount::new();
        let (file, mounted, alice) = (mount.handle(), &mount.mounted, user(1000));
        let alices = open_as(&alice, mounted, "f", OpenFlags::reading());
        let op = mounted.client.op(&alice);
        assert_eq!(ops::lock_and_wait(&op, &alices, want(1, range(0, 9), R, true)), Ok(()));
        mount.manager.forbid_writing_except(0, status);
        mount.manager.refuse_reclaims(NlmStat4::DeniedGracePeriod);
        mount.manager.calls();
        mount.manager.say_that_it_restarted();
        while mounted.counter(ClientCounter::LockReclaimed) == 0 {
            assert_eq!(mounted.counter(ClientCounter::LockLost), 0);
            std::thread::yield_now();
        }
        assert_eq!(mount.manager.calls(), ["RECLAIM r 0..=9", "TEST", "LOCK r 0..=9"]);
        assert_eq!(ops::fsync(&op, &alices, false), Ok(()));
        // Another client has it now.
        mount.manager.forget_all_but_others();
        mount.manager.other(&file, range(0, 9), Some(W));
        mount.manager.say_that_it_restarted();
        while mounted.counter(ClientCounter::LockLost) == 0 {
            std::thread::yield_now();
        }
        assert_eq!(ops::fsync(&op, &alices, false), Err(Errno::IO));
    }
}

// SEMANTICS: lock-10.
#[test]
fn a_lock_that_another_client_had_meanwhile_is_lost_though_it_is_free_again() {
    let mount = LockingMount::new();
    let file = mount.handle();
    assert_eq!(mount.lock(1, range(0, 9), W, true), Ok(()));
    mount.manager.refuse_reclaims(NlmStat4::DeniedGracePeriod);
    mount.manager.forget_all_but_others();
    mount.manager.other(&file, range(0, 9), Some(W));
    mount.manager.calls();
    mount.manager.free_after_test(&file);
    mount.manager.say_that_it_restarted();
    while mount.mounted.counter(ClientCounter::LockLost) == 0 {
        std::thread::yield_now();
    }
    assert_eq!(mount.manager.calls()[..4], ["RECLAIM w 0..=9", "TEST", "LOCK w 0..=9", "TEST"]);
    assert_eq!(mount.mounted.counter(ClientCounter::LockReclaimed), 0);
    assert_eq!(mount.unlock(1, ByteRange::WHOLE), Err(Errno::IO));
}

// SEMANTICS: lock-10.
#[test]
fn a_lost_lock_is_an_error_of_every_open_file_that_its_owner_locked_through() {
    let mount = LockingMount::new();
    let (second, third) =
        (open(&mount.mounted, "f", OpenFlags::writing()), open(&mount.mounted, "f", OpenFlags::writing()));
    let op = mount.mounted.client.op(&root());
    assert_eq!(mount.lock(1, range(0, 9), W, true), Ok(()));
    for (file, at) in [(&second, 20), (&third, 40)] {
        assert_eq!(ops::lock_and_wait(&op, file, want(1, range(at, at + 9), W, true)), Ok(()));
    }
    mount.manager.calls();
    mount.mounted.told.contents.lock().clear();
    let (granted, late) = (NlmStat4::Granted, NlmStat4::DeniedGracePeriod);
    // A TEST follows each reclaim that comes too late.
    mount.manager.script(&[granted, late, granted, late, granted]);
    mount.manager.restart();
    // What is lost is unlocked: the server may not have been restarted.
    mount.manager.wait_for_calls(7);
    assert_eq!(mount.manager.calls()[5..], ["UNLOCK 20..=29", "UNLOCK 40..=49"]);
    while mount.mounted.counter(ClientCounter::LockLost) < 2 {
        std::thread::yield_now();
    }
    // The pages of the kernel are dropped, so that the next read asks.
    assert!(mount.mounted.told.contents.lock().contains(&mount.file.id()));
    assert_eq!(ops::fsync(&op, &second, false), Err(Errno::IO));
    assert_eq!(ops::fsync(&op, &second, false), Ok(()));
    let size = SetAttributes { size: Some(5), ..SetAttributes::default() };
    assert_eq!(ops::setattr_open(&op, &third, &size).map(drop), Err(Errno::IO));
    assert_eq!(ops::setattr_open(&op, &third, &size).map(drop), Ok(()));
    // The unlock is done all the same.
    assert_eq!(mount.unlock(1, ByteRange::WHOLE), Err(Errno::IO));
    assert_eq!(mount.manager.calls()[0], "UNLOCK 0..=9");
    assert!(!mount.manager.holds_something());
    assert_eq!(mount.unlock(1, ByteRange::WHOLE), Ok(()));
}

// SEMANTICS: lock-10.
#[test]
fn what_was_written_under_a_lock_that_is_not_reclaimed_is_not_sent_and_fails_once() {
    let mount = LockingMount::new();
    let op = || mount.mounted.client.op(&root());
    assert_eq!(mount.lock(1, range(0, 4), W, true), Ok(()));
    assert_eq!(ops::write(&op(), &mount.file, 0, b"abcdefgh"), Ok(8));
    mount.mounted.sent();
    mount.manager.script(&[NlmStat4::DeniedGracePeriod]);
    mount.manager.restart();
    while mount.mounted.counter(ClientCounter::LockLost) == 0 {
        std::thread::yield_now();
    }
    assert_eq!(ops::write(&op(), &mount.file, 8, b"x"), Err(Errno::IO));
    assert_eq!(ops::fsync(&op(), &mount.file, false), Ok(()), "once");
    let reader = mount.world.mount(CacheOptions::default());
    let found = reader.lookup(&root(), reader.client.root(), "f").unwrap();
    assert_eq!(reader.cat(&root(), found.id), Ok(b"01234fgh89".to_vec()));
}

/// A mount over NFSv3 with a lock of the first bytes of its file, which is lost while the next
/// request of this procedure is delayed.
fn losing_while_delayed(procedure: NfsProcedure) -> LockingMount {
    const JUKEBOX_WITHOUT_WCC: [u32; 3] = [10_008, 0, 0];
    let world = World::new();
    let trouble = Trouble::before(world.way());
    let mount = LockingMount::over(world, trouble.clone(), LockOptions::default());
    assert_eq!(mount.lock(1, range(0, 4), W, true), Ok(()));
    trouble.plan(procedure, Kind::Nonsense(bytes(&JUKEBOX_WITHOUT_WCC)));
    mount.manager.script(&[NlmStat4::DeniedGracePeriod]);
    let (manager, told) = (Arc::clone(&mount.manager), Arc::clone(&mount.mounted.told));
    let file = mount.file.id();
    told.contents.lock().clear();
    mount.world.clock.in_next_pause(move |_| {
        manager.restart();
        // The kernel's pages are dropped when the loss was noted.
        while !told.contents.lock().contains(&file) {
            std::thread::yield_now();
        }
    });
    mount
}

/// Bytes of the file as a mount without locks reads them.
fn contents(world: &World) -> Vec<u8> {
    let reader = world.mount(CacheOptions::default());
    let found = reader.lookup(&root(), reader.client.root(), "f").unwrap();
    reader.cat(&root(), found.id).unwrap()
}

// SEMANTICS: lock-10.
#[test]
fn a_delayed_write_is_not_sent_again_once_its_lock_is_lost() {
    let mount = losing_while_delayed(NfsProcedure::Write);
    let op = || mount.mounted.client.op(&root());
    assert_eq!(ops::write(&op(), &mount.file, 0, b"abcdefgh"), Ok(8));
    assert_eq!(ops::fsync(&op(), &mount.file, false), Err(Errno::IO));
    assert_eq!(mount.mounted.counter(ClientCounter::LockLost), 1);
    assert_eq!(ops::fsync(&op(), &mount.file, false), Ok(()), "once");
    assert_eq!(contents(&mount.world), b"01234fgh89", "the rest was not locked");
}

// SEMANTICS: lock-10.
#[test]
fn a_delayed_truncation_is_not_sent_again_once_the_lock_of_what_it_cuts_off_is_lost() {
    for (size, expected) in [(4, Err(Errno::IO)), (5, Ok(()))] {
        let mount = losing_while_delayed(NfsProcedure::Setattr);
        let op = || mount.mounted.client.op(&root());
        let size = SetAttributes { size: Some(size), ..SetAttributes::default() };
        let other = open(&mount.mounted, "f", OpenFlags::writing());
        let truncate = || ops::setattr_open(&op(), &other, &size).map(drop);
        assert_eq!(truncate(), expected);
        assert_eq!(mount.mounted.counter(ClientCounter::LockLost), 1);
        let left: &[u8] = if expected.is_ok() { b"01234" } else { b"0123456789" };
        assert_eq!(contents(&mount.world), left);
        assert_eq!(truncate(), Ok(()), "once");
    }
}

// SEMANTICS: lock-11.
#[test]
fn a_cycle_of_waits_over_two_files_is_a_deadlock_for_its_last_member() {
    for order in [LockOrder::LocalFirst, LockOrder::ServerFirst] {
        check_cycle(&LockingMount::with(LockOptions { order, ..LockOptions::default() }));
    }
}

fn check_cycle(mount: &LockingMount) {
    mount.mounted.put(&root(), mount.mounted.client.root(), "g", 0o666, b"");
    let other = open(&mount.mounted, "g", OpenFlags::writing());
    let op = mount.mounted.client.op(&root());
    assert_eq!(mount.lock(1, range(0, 9), W, true), Ok(()));
    assert_eq!(ops::lock_and_wait(&op, &other, want(2, range(0, 9), W, true)), Ok(()));
    let waiter = mount.waits(2, range(0, 9));
    assert_eq!(ops::lock_and_wait(&op, &other, want(1, range(0, 9), W, true)), Err(Errno::DEADLK));
    assert_eq!(mount.unlock(1, range(0, 9)), Ok(()));
    assert_eq!(waiter.recv_timeout(SOON), Ok(Ok(())));
}

// SEMANTICS: lock-11.
#[test]
fn a_grant_that_completes_a_cycle_is_a_deadlock_for_who_waits_for_it() {
    let mount = LockingMount::new();
    mount.mounted.put(&root(), mount.mounted.client.root(), "g", 0o666, b"");
    let other = open(&mount.mounted, "g", OpenFlags::writing());
    let op = mount.mounted.client.op(&root());
    assert_eq!(mount.lock(1, range(0, 9), W, true), Ok(()));
    assert_eq!(ops::lock_and_wait(&op, &other, want(2, range(0, 9), W, true)), Ok(()));
    // Two threads of one process wait: for the first file, and for the second.
    let granted = mount.waits(3, range(0, 9));
    let waits = mount.begin(&root(), &other, want(3, range(0, 9), W, true));
    let fails = mount.waits(2, range(0, 9));
    assert_eq!(fails.try_recv(), Err(mpsc::TryRecvError::Empty));
    assert_eq!(mount.unlock(1, range(0, 9)), Ok(()));
    assert_eq!(granted.recv_timeout(SOON), Ok(Ok(())));
    assert_eq!(fails.recv_timeout(SOON), Ok(Err(Errno::DEADLK)));
    assert_eq!(ops::unlock_and_wait(&op, &other, LocalLockOwner::Posix(2), ByteRange::WHOLE), Ok(()));
    assert_eq!(waits.recv_timeout(SOON), Ok(Ok(())));
}

// SEMANTICS: lock-12.
#[test]
fn with_hand_offs_a_lock_passes_between_processes_without_requests_as_often_as_allowed() {
    let mount = LockingMount::with(LockOptions { handoffs_max: 2, ..LockOptions::default() });
    assert_eq!(mount.lock(0, range(0, 9), W, true), Ok(()));
    let waiters: Vec<_> = (1..=4).map(|owner| mount.waits(owner, range(0, 9))).collect();
    mount.manager.calls();
    for (owner, waiter) in (0..).zip(&waiters) {
        assert_eq!(mount.unlock(owner, ByteRange::WHOLE), Ok(()));
        assert_eq!(waiter.recv_timeout(SOON), Ok(Ok(())));
    }
    assert_eq!(mount.manager.calls(), ["UNLOCK 0..=9", "LOCK w 0..=9"]);
    assert_eq!(mount.mounted.counter(ClientCounter::LockHandoff), 3);
}
