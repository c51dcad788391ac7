//! The stateids of locks, with a table of locks that does as the test says.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

use curt_types::{ByteRange, LockType};
use parking_lot::Mutex;

use super::super::locks::{LockClient, LockDenial, LockHolder, LockOutcome, LockOwner, visits};
use super::super::{ClientLocks, LockBasis, LockStateOutcome, LockStateRequest};
use super::lock_table::with_lock_table;
use super::*;

/// Keeps what is released.
#[derive(Default)]
struct Released {
    owners: Mutex<Vec<(FileKey, Vec<u8>)>>,
    holds: AtomicBool,
}

impl ClientLocks for Arc<Released> {
    fn holds(&self, _: &FileKey, _: &LockOwner<'_>) -> bool {
        self.holds.load(Ordering::Relaxed)
    }

    fn is_wanted_for_writing(&self, _: &FileKey) -> bool {
        false
    }

    fn release_owner(&self, file: &FileKey, owner: &LockOwner<'_>) {
        self.owners.lock().push((*file, owner.name.to_vec()));
    }

    fn cancel_based_on(&self, _: &FileKey, _: Clientid, _: u64) {}

    fn clients_waited_for(&self) -> HashSet<Clientid> {
        HashSet::new()
    }
}

impl Released {
    fn owners(&self) -> Vec<(FileKey, Vec<u8>)> {
        std::mem::take(&mut *self.owners.lock())
    }
}

fn with_locks(limits: StateLimits) -> (ServerState, Arc<Released>) {
    let released = Arc::<Released>::default();
    let locks = Some(Box::new(Arc::clone(&released)) as Box<dyn ClientLocks>);
    (ServerState::new(limits, 7, &[1; 16], Arc::default(), locks), released)
}

fn lock_with(
    state: &ServerState,
    client: &Client,
    basis: LockBasis<'_>,
    outcome: LockOutcome,
) -> Result<LockStateOutcome, StateFault> {
    let asked = LockStateRequest { basis, file: file(1), lock_type: LockType::Write, is_reclaim: false };
    state.lock(client, &asked, |owner, _| {
        assert_eq!((owner.client, owner.process), (LockClient::Clientid(client.id.0), 0));
        Ok(outcome)
    })
}

fn lock(state: &ServerState, client: &Client, basis: LockBasis<'_>) -> Result<Stateid, StateFault> {
    match lock_with(state, client, basis, LockOutcome::Granted)? {
        LockStateOutcome::Granted(stateid) => Ok(stateid),
        LockStateOutcome::Conflict(holder) => panic!("{holder:?}"),
    }
}

fn of(stateid: Stateid, owner: &[u8]) -> LockBasis<'_> {
    LockBasis::Open { stateid, owner }
}

#[test]
fn a_lock_that_is_not_granted_leaves_no_state() {
    let (state, released) = with_locks(StateLimits::default());
    let (client, _) = client(&state, "a");
    let opened = open(&state, &client, "o", file(1), mode(3, 0)).unwrap();
    let holder = LockHolder {
        client: LockClient::Local,
        process: 1,
        name: Arc::default(),
        lock_type: LockType::Read,
        range: ByteRange::WHOLE,
    };
    let refuse = |outcome| lock_with(&state, &client, of(opened, b"l"), outcome);
    for outcome in
        [LockOutcome::Blocked(holder.clone()), LockOutcome::Denied(LockDenial::Conflict(holder.clone()))]
    {
        assert!(matches!(refuse(outcome), Ok(LockStateOutcome::Conflict(found)) if found == holder));
    }
    for (denial, fault) in [
        (LockDenial::Grace, StateFault::Grace),
        (LockDenial::NoGrace, StateFault::NoGrace),
        (LockDenial::NoLocks, StateFault::TooManyLocks),
    ] {
        assert_eq!(refuse(LockOutcome::Denied(denial)).err(), Some(fault));
    }
    assert_eq!(state.states.load(Ordering::Relaxed), 1);
    state.close(&client, &opened, &file(1)).unwrap();
    assert!(released.owners().is_empty());
    // There is nothing to reclaim.
    let opened = open(&state, &client, "o", file(1), mode(3, 0)).unwrap();
    let asked = LockStateRequest {
        basis: of(opened, b"l"),
        file: file(1),
        lock_type: LockType::Read,
        is_reclaim: true,
    };
    let reclaimed = state.lock::<StateFault>(&client, &asked, |_, _| panic!("the table is asked"));
    assert_eq!(reclaimed.err(), Some(StateFault::NoGrace));
}

#[test]
fn locks_are_released_with_the_last_state_of_their_owner() {
    let (state, released) = with_locks(StateLimits::default());
    let (client, _) = client(&state, "a");
    let [one, two] = ["o", "p"].map(|owner| open(&state, &client, owner, file(1), mode(3, 0)).unwrap());
    let first = lock(&state, &client, of(one, b"l")).unwrap();
    let second = lock(&state, &client, of(two, b"l")).unwrap();
    let other = lock(&state, &client, of(two, b"m")).unwrap();
    assert_eq!(state.states.load(Ordering::Relaxed), 5);
    state.close(&client, &one, &file(1)).unwrap();
    assert!(released.owners().is_empty());
    assert_eq!(state.test_stateid(&client, &first), Err(StateFault::BadStateid));
    released.holds.store(true, Ordering::Relaxed);
    assert_eq!(state.free_stateid(&client, &other), Err(StateFault::LocksHeld));
    released.holds.store(false, Ordering::Relaxed);
    state.free_stateid(&client, &other).unwrap();
    assert_eq!(released.owners(), [(file(1), b"m".to_vec())]);
    assert_eq!(state.test_stateid(&client, &second), Ok(()));
    state.close(&client, &two, &file(1)).unwrap();
    assert_eq!(released.owners(), [(file(1), b"l".to_vec())]);
    assert_eq!(state.states.load(Ordering::Relaxed), 0);
    let opened = open(&state, &client, "o", file(1), mode(3, 0)).unwrap();
    let last = lock(&state, &client, of(opened, b"n")).unwrap();
    expire_client(&state, client.id);
    assert_eq!(released.owners(), [(file(1), b"n".to_vec())]);
    for stateid in [second, last] {
        assert_eq!(state.test_stateid(&client, &stateid), Err(StateFault::BadStateid));
    }
}

#[test]
fn locks_are_revoked_with_their_open() {
    let (state, released) = with_locks(StateLimits::default());
    let (client, _) = client(&state, "a");
    let opened = open(&state, &client, "o", file(1), mode(3, 0)).unwrap();
    let locks = lock(&state, &client, of(opened, b"l")).unwrap();
    assert_eq!(state.revoke_opens(|_| true), 1);
    assert_eq!(released.owners(), [(file(1), b"l".to_vec())]);
    for stateid in [opened, locks] {
        assert_eq!(state.test_stateid(&client, &stateid), Err(StateFault::AdminRevoked));
    }
    let again = lock(&state, &client, LockBasis::Locks(locks));
    assert_eq!(again, Err(StateFault::AdminRevoked));
    let unlocked = state.unlock(&client, &locks, &file(1), |_| panic!("the table is asked"));
    assert_eq!(unlocked, Err(StateFault::AdminRevoked));
    for stateid in [locks, opened] {
        state.free_stateid(&client, &stateid).unwrap();
    }
    assert_eq!(state.states.load(Ordering::Relaxed), 0);
    assert!(released.owners().is_empty());
}

#[test]
fn lock_states_count_as_opens_do_and_their_seqids_wrap_around() {
    let (state, _) = with_locks(StateLimits { states: 4, ..StateLimits::default() });
    let (client, _) = client(&state, "a");
    let opened = open(&state, &client, "o", file(1), mode(3, 0)).unwrap();
    let locks = lock(&state, &client, of(opened, b"l")).unwrap();
    assert_eq!(lock(&state, &client, of(opened, b"m")), Err(StateFault::TooManyLocks));
    // The same owner needs no other state.
    assert_eq!(lock(&state, &client, of(opened, b"l")).unwrap().seqid, 2);
    client.states.lock().set_seqids(u32::MAX);
    let newest = Stateid { seqid: 0, ..locks };
    assert_eq!(state.unlock(&client, &newest, &file(1), |_| Ok(())).unwrap(), Stateid { seqid: 1, ..locks });
    let denied = state.unlock(&client, &newest, &file(1), |_| Err(LockDenial::NoLocks));
    assert_eq!(denied, Err(StateFault::TooManyLocks));
    assert_eq!(lock(&state, &client, of(locks, b"l")), Err(StateFault::BadStateid));
}

#[test]
fn states_of_owners_with_long_names_count_as_several() {
    let (state, _) = with_locks(StateLimits { states: 32, ..StateLimits::default() });
    let (client, _) = client(&state, "a");
    let name = "o".repeat(1024);
    let counted = || state.states.load(Ordering::Relaxed);
    let both = || {
        let opened = open(&state, &client, &name, file(1), mode(3, 0)).unwrap();
        let locks = lock(&state, &client, of(opened, name.as_bytes())).unwrap();
        assert_eq!(counted(), 16);
        assert_eq!(open(&state, &client, "p", file(1), mode(1, 0)), Err(StateFault::NoSpace));
        (opened, locks)
    };
    let (opened, locks) = both();
    state.free_stateid(&client, &locks).unwrap();
    assert_eq!(counted(), 8);
    state.close(&client, &opened, &file(1)).unwrap();
    assert_eq!(counted(), 0);
    let (opened, _) = both();
    state.close(&client, &opened, &file(1)).unwrap();
    assert_eq!(counted(), 0);
    let (opened, locks) = both();
    state.revoke_opens(|_| true);
    for stateid in [opened, locks] {
        state.free_stateid(&client, &stateid).unwrap();
    }
    assert_eq!(counted(), 0);
    both();
    expire_client(&state, client.id);
    assert_eq!(counted(), 0);
}

#[test]
fn the_end_of_a_lock_state_or_of_a_client_looks_at_no_locks_of_others() {
    let (state, table) = with_lock_table(false);
    table.fill(&file(1), 100_000);
    let lock_in = |owner: &str, number: u8| {
        let (client, session) = client(&state, owner);
        let opened = open(&state, &client, "o", file(number), mode(3, 0)).unwrap();
        let basis = of(opened, b"l");
        let asked =
            LockStateRequest { basis, file: file(number), lock_type: LockType::Read, is_reclaim: false };
        match state.lock(&client, &asked, |owner, _| table.lock(&asked, owner)) {
            Ok(LockStateOutcome::Granted(stateid)) => (client, session, opened, stateid),
            outcome => panic!("{outcome:?}"),
        }
    };
    let (closing, session, opened, _) = lock_in("closes", 1);
    let (freeing, _, _, locks) = lock_in("frees", 1);
    let (leaving, ..) = lock_in("leaves", 2);
    lock_in("revoked", 3);
    let ends: [(&str, &dyn Fn()); 5] = [
        ("CLOSE", &|| state.close(&closing, &opened, &file(1)).unwrap()),
        ("DESTROY_CLIENTID", &|| {
            state.destroy_session(&session, None).unwrap();
            state.destroy_clientid(closing.id).unwrap();
            release(&state);
        }),
        ("FREE_STATEID", &|| {
            state.unlock(&freeing, &locks, &file(1), |owner| table.unlock(&file(1), owner)).unwrap();
            state.free_stateid(&freeing, &Stateid { seqid: 0, ..locks }).unwrap();
        }),
        ("the end of a lease", &|| expire_client(&state, leaving.id)),
        ("a revocation", &|| assert_eq!(state.revoke_opens(|of| *of == file(3)), 1)),
    ];
    for (what, end) in ends {
        let before = visits();
        end();
        assert!(visits() - before < 5_000, "{what}: {}", visits() - before);
    }
    assert_eq!(table.len(), 100_000);
}
