//! Locks of processes of this machine.

use std::collections::BTreeMap;

use curt_vfs::{Error, KernelLockError, KernelLocks, ProcessLock};
use parking_lot::Mutex;
use proptest::prelude::*;

use super::*;

/// The number of bytes of a file here.
const BYTES: usize = 12;

/// The holder of each byte in the kernel: the server, and a process.
#[derive(Debug, Default)]
struct Kernel {
    server: [Option<LockType>; BYTES],
    process: [Option<LockType>; BYTES],
    tries: u32,
}

#[derive(Clone, Default)]
struct Description(Arc<Mutex<Kernel>>);

fn positions(range: ByteRange) -> std::ops::RangeInclusive<usize> {
    let at = |byte| usize::try_from(byte).unwrap_or(BYTES).min(BYTES - 1);
    at(range.first())..=at(range.last())
}

impl KernelLocks for Description {
    fn set(&mut self, range: ByteRange, lock_type: Option<LockType>) -> Result<(), KernelLockError> {
        let mut kernel = self.0.lock();
        kernel.tries += 1;
        let conflicts =
            |held: Option<LockType>| held.zip(lock_type).is_some_and(|(held, wanted)| held.conflicts(wanted));
        if positions(range).any(|at| conflicts(kernel.process[at])) {
            return Err(KernelLockError::Conflict);
        }
        kernel.server[positions(range)].fill(lock_type);
        Ok(())
    }

    fn test(&self, range: ByteRange, lock_type: LockType) -> Result<Option<ProcessLock>, Error> {
        let kernel = self.0.lock();
        let conflict = positions(range).find_map(|at| {
            let held = kernel.process[at].filter(|held| held.conflicts(lock_type))?;
            Some(ProcessLock { process: 77, lock_type: held, range: bytes(at as u64, at as u64) })
        });
        Ok(conflict)
    }
}

impl Description {
    fn process_sets(&self, range: ByteRange, lock_type: Option<LockType>) {
        self.0.lock().process[positions(range)].fill(lock_type);
    }
}

impl Fixture {
    fn lock_with(
        &mut self,
        kernel: &Description,
        who: Who,
        lock_type: LockType,
        range: ByteRange,
        waits: Waits,
    ) -> LockOutcome {
        let wait = waits.of_request(&self.handle, 0);
        let request = LockRequest { owner: who.owner(), lock_type, range, wait, reclaim: false };
        let local = Box::new(kernel.clone());
        let account = &self.accounts[usize::from(who.client)];
        self.table.lock(&file(FILE), &request, account, Some(local), self.now, &mut self.callbacks)
    }
}

#[test]
fn a_process_of_this_machine_denies_a_lock_and_is_named() {
    let (mut fixture, kernel) = (Fixture::new(), Description::default());
    kernel.process_sets(bytes(3, 5), Some(WRITE));
    let outcome = fixture.lock_with(&kernel, who(1, 0), READ, bytes(0, 9), Waits::No);
    let LockOutcome::Denied(LockDenial::Conflict(holder)) = outcome else { panic!("{outcome:?}") };
    assert_eq!((holder.client, holder.process, holder.range), (LockClient::Local, 77, bytes(3, 3)));
    fixture.assert_empty();
    assert_eq!(fixture.lock_with(&kernel, who(1, 0), READ, bytes(0, 2), Waits::No), LockOutcome::Granted);
    let tested = fixture.table.test(&file(FILE), &who(2, 0).owner(), READ, bytes(0, 9));
    assert_eq!(tested.map(|holder| holder.client), Some(LockClient::Local));
    assert_eq!(Arc::strong_count(&kernel.0), 2);
    fixture.unlock(who(1, 0), WHOLE);
    assert_eq!(Arc::strong_count(&kernel.0), 1, "the description is closed");
}

// SEMANTICS: lockd-13.
#[test]
fn waiters_behind_a_process_are_polled_less_and_less_often() {
    for waits in [Waits::Granted, Waits::Notified] {
        let (mut fixture, kernel) = (Fixture::new(), Description::default());
        kernel.process_sets(bytes(0, 0), Some(WRITE));
        let outcome = fixture.lock_with(&kernel, who(1, 0), WRITE, bytes(0, 5), waits);
        assert!(matches!(outcome, LockOutcome::Blocked(_)));
        let start = fixture.now;
        let mut polls = Vec::new();
        for _ in 0..7 {
            fixture.now = fixture.table.next_tick().unwrap();
            fixture.advance(Duration::ZERO);
            polls.push((fixture.now - start).as_millis());
        }
        assert_eq!(polls, [50, 150, 350, 750, 1_550, 2_550, 3_550]);
        assert_eq!(fixture.called(), []);
        kernel.process_sets(bytes(0, 0), None);
        fixture.advance(Duration::from_secs(1));
        let callback = fixture.callbacks().remove(0);
        assert_eq!(Who::of(&callback.lock), who(1, 0));
        fixture.answer(&callback, ACCEPTED);
        if waits == Waits::Notified {
            assert_eq!(fixture.lock(who(1, 0), WRITE, bytes(0, 5), waits), LockOutcome::Granted);
        }
        fixture.unlock(who(1, 0), WHOLE);
        fixture.assert_empty();
    }
}

#[test]
fn a_waiter_behind_another_client_that_meets_a_process_waits_for_it() {
    let (mut fixture, kernel) = (Fixture::new(), Description::default());
    assert_eq!(fixture.lock_with(&kernel, who(1, 0), READ, bytes(0, 5), Waits::No), LockOutcome::Granted);
    kernel.process_sets(bytes(0, 0), Some(READ));
    fixture.queue(who(2, 0), WRITE, bytes(0, 5), Waits::Granted);
    fixture.queue(who(3, 0), WRITE, bytes(0, 5), Waits::Granted);
    fixture.unlock(who(1, 0), WHOLE);
    assert_eq!(fixture.called(), []);
    fixture.advance(Duration::from_millis(50));
    assert_eq!(fixture.called(), []);
    kernel.process_sets(bytes(0, 0), None);
    fixture.advance(Duration::from_millis(100));
    assert_eq!(fixture.called_and_accepted(), [who(2, 0)]);
    fixture.unlock(who(2, 0), WHOLE);
    assert_eq!(fixture.called_and_accepted(), [who(3, 0)]);
    fixture.unlock(who(3, 0), WHOLE);
    fixture.assert_empty();
}

#[derive(Clone, Debug)]
enum Call {
    Lock { who: Who, writes: bool, range: ByteRange, waits: bool },
    Unlock { who: Who, range: ByteRange },
    Refuse,
    Accept,
    ReleaseClient(u8),
    Process { writes: Option<bool>, range: ByteRange },
    Wait,
}

fn call() -> impl Strategy<Value = Call> {
    let range =
        || (0..BYTES as u64, 0..BYTES as u64).prop_map(|(one, other)| bytes(one.min(other), one.max(other)));
    let owner = || (1..4_u8, 0..2_u32).prop_map(|(client, process)| who(client, process));
    prop_oneof![
        6 => (owner(), any::<bool>(), range(), any::<bool>())
            .prop_map(|(who, writes, range, waits)| Call::Lock { who, writes, range, waits }),
        4 => (owner(), range()).prop_map(|(who, range)| Call::Unlock { who, range }),
        1 => Just(Call::Refuse),
        2 => Just(Call::Accept),
        1 => (1..4_u8).prop_map(Call::ReleaseClient),
        2 => (any::<Option<bool>>(), range()).prop_map(|(writes, range)| Call::Process { writes, range }),
        2 => Just(Call::Wait),
    ]
}

const fn lock_type(writes: bool) -> LockType {
    if writes { WRITE } else { READ }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn the_kernel_holds_the_union_of_the_clients_locks(calls in prop::collection::vec(call(), 1..60)) {
        let mut fixture = Fixture::new();
        // The description of the file while it has locks or waiters.
        let mut kernel = Description::default();
        let mut process = [None; BYTES];
        for call in &calls {
            if !fixture.table.has(&file(FILE)) {
                kernel = Description::default();
                kernel.0.lock().process = process;
            }
            match call {
                Call::Lock { who, writes, range, waits } => {
                    let waits = if *waits { Waits::Granted } else { Waits::No };
                    let _ = fixture.lock_with(&kernel, *who, lock_type(*writes), *range, waits);
                }
                Call::Unlock { who, range } => fixture.unlock(*who, *range),
                Call::Refuse | Call::Accept => {
                    let callbacks = fixture.callbacks();
                    let accepts = matches!(call, Call::Accept);
                    for callback in &callbacks {
                        fixture.answer(callback, if accepts { ACCEPTED } else { CallbackAnswer::Refused });
                    }
                }
                Call::ReleaseClient(number) => {
                    let now = fixture.now;
                    fixture.table.release_client(client(*number), now, &mut fixture.callbacks);
                }
                Call::Process { writes, range } => {
                    // The kernel decides for the process too.
                    let wanted = writes.map(lock_type);
                    let server = kernel.0.lock().server;
                    let is_free = |at: usize| {
                        !server[at].zip(wanted).is_some_and(|(held, wanted)| held.conflicts(wanted))
                    };
                    if positions(*range).all(is_free) {
                        process[positions(*range)].fill(wanted);
                        kernel.process_sets(*range, wanted);
                    }
                }
                Call::Wait => fixture.advance(Duration::from_secs(1)),
            }
            let mut union: BTreeMap<usize, LockType> = BTreeMap::new();
            fixture.table.report(&mut |_, lock| {
                for at in positions(lock.lock.range).filter(|_| !lock.waits) {
                    let strongest = union.entry(at).or_insert(READ);
                    *strongest = (*strongest).max(lock.lock.lock_type);
                }
                true
            });
            let kernel = kernel.0.lock();
            if fixture.table.has(&file(FILE)) {
                for at in 0..BYTES {
                    prop_assert_eq!(kernel.server[at], union.get(&at).copied(), "byte {}", at);
                }
            }
        }
    }
}
