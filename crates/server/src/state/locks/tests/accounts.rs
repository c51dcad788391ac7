//! Limits, and what is left after everything is released.

use super::super::owners::{OWNER_BYTES, Owners};
use super::*;

fn limited(limits: ClientLimits) -> Fixture {
    Fixture::with(limits, LockTableOptions::default())
}

// SEMANTICS: lockd-12.
#[test]
fn a_client_has_at_most_so_many_locks_and_another_is_not_affected() {
    let mut fixture = limited(ClientLimits { locks: 3, ..ClientLimits::CLIENT });
    let refused = LockOutcome::Denied(LockDenial::NoLocks);
    for at in [0, 10, 20] {
        fixture.take(who(1, 1), READ, bytes(at, at + 1));
    }
    assert_eq!(fixture.lock(who(1, 1), READ, bytes(30, 31), Waits::No), refused);
    assert_eq!(fixture.lock(who(1, 2), READ, bytes(0, 0), Waits::Granted), refused);
    assert_eq!(fixture.lock(who(1, 1), WRITE, bytes(1, 1), Waits::No), refused, "two in place of one");
    fixture.take(who(1, 1), READ, bytes(2, 9));
    fixture.take(who(2, 1), READ, bytes(30, 31));
    fixture.take(who(1, 1), READ, bytes(40, 41));
    // An unlock that would make two of one.
    let file = file(FILE);
    let unlock = |fixture: &mut Fixture, range| {
        fixture.table.unlock(&file, &who(1, 1).owner(), range, fixture.now, &mut Vec::new())
    };
    assert_eq!(unlock(&mut fixture, bytes(5, 5)), Err(LockDenial::NoLocks));
    assert_eq!(unlock(&mut fixture, bytes(0, 5)), Ok(()));
    assert_eq!(fixture.table.counts().limited, 4);
}

// SEMANTICS: lockd-12.
#[test]
fn a_client_has_at_most_so_many_owners_and_waiters() {
    let mut fixture = limited(ClientLimits { owners: 2, waiters: 3, ..ClientLimits::CLIENT });
    let refused = LockOutcome::Denied(LockDenial::NoLocks);
    fixture.take(who(1, 1), WRITE, WHOLE);
    for at in 0..3 {
        fixture.queue(who(2, 1), READ, bytes(at, at), Waits::Granted);
    }
    assert_eq!(fixture.lock(who(2, 1), READ, bytes(3, 3), Waits::Granted), refused);
    // A client of NFSv4 asks again in its own time.
    let asks = fixture.lock(who(2, 1), READ, bytes(3, 3), Waits::Notified);
    assert!(matches!(asks, LockOutcome::Denied(LockDenial::Conflict(_))), "{asks:?}");
    fixture.queue(who(2, 1), READ, bytes(2, 2), Waits::Granted);
    assert!(fixture.denies(who(2, 2), READ, WHOLE), "it leaves nothing behind");
    fixture.queue(who(3, 2), READ, WHOLE, Waits::Granted);
    fixture.queue(who(3, 3), READ, WHOLE, Waits::Granted);
    assert_eq!(fixture.lock(who(3, 4), READ, bytes(0, 0), Waits::Granted), refused, "a third owner");
    assert_eq!(fixture.cancel(who(3, 3), READ, WHOLE), CancelOutcome::Cancelled);
    fixture.queue(who(3, 4), READ, WHOLE, Waits::Granted);
}

// SEMANTICS: lockd-12.
#[test]
fn owners_with_long_names_count_as_several() {
    let limits = ClientLimits { owners: 10, ..ClientLimits::CLIENT };
    let account = Arc::new(ClientAccount::new(client(1), limits, None));
    let mut owners = Owners::default();
    let add = |owners: &mut Owners, process, length: usize| {
        let name = &vec![7; length][..];
        owners.find_or_add(&LockOwner { client: client(1), process, name }, &account)
    };
    let remove = |owners: &mut Owners, id: Option<_>| {
        let id = id.unwrap();
        owners.change_uses(id, 1);
        owners.change_uses(id, -1);
    };
    let [largest, empty, usual] = [(1, OWNER_NAME_MAX), (2, 0), (3, OWNER_BYTES)]
        .map(|(process, length)| add(&mut owners, process, length));
    assert_eq!(add(&mut owners, 4, 1), None);
    assert_eq!(add(&mut owners, 1, OWNER_NAME_MAX), largest);
    remove(&mut owners, usual);
    assert_eq!(add(&mut owners, 4, OWNER_BYTES + 1), None);
    let last = add(&mut owners, 4, OWNER_BYTES);
    for id in [largest, empty, last] {
        remove(&mut owners, id);
    }
    assert!(account.is_empty());
}

#[test]
fn all_clients_together_have_a_limit_as_well() {
    let all = ClientLimits { locks: 2, ..ClientLimits::ALL };
    let all = ClientAccount::new(LockClient::Local, all, None);
    let mut fixture = Fixture::new();
    for (number, account) in (0..).zip(&mut fixture.accounts) {
        *account = Arc::new(ClientAccount::new(client(number), ClientLimits::CLIENT, Some(&all)));
    }
    fixture.take(who(1, 1), READ, bytes(0, 0));
    fixture.take(who(2, 1), READ, bytes(0, 0));
    assert!(fixture.denies(who(3, 1), READ, bytes(0, 0)));
    fixture.unlock(who(1, 1), WHOLE);
    fixture.take(who(3, 1), READ, bytes(0, 0));
}

// SEMANTICS: lockd-12.
#[test]
fn a_client_takes_no_more_than_is_free_for_others() {
    let all = ClientLimits { locks: 12, ..ClientLimits::ALL };
    let all = ClientAccount::new(LockClient::Local, all, None);
    let mut fixture = Fixture::new();
    for (number, account) in (0..).zip(&mut fixture.accounts) {
        *account = Arc::new(ClientAccount::new(client(number), ClientLimits::CLIENT, Some(&all)));
    }
    let refused = LockOutcome::Denied(LockDenial::NoLocks);
    for (number, share) in [(1, 6), (2, 3), (3, 2), (4, 1)] {
        for at in 0..share {
            fixture.take(who(number, 1), READ, bytes(at * 10, at * 10));
        }
        assert_eq!(fixture.lock(who(number, 1), READ, bytes(1000, 1000), Waits::No), refused, "{number}");
    }
    fixture.unlock(who(1, 1), bytes(0, 19));
    fixture.take(who(5, 1), READ, bytes(0, 0));
}

// SEMANTICS: lockd-12.
#[test]
fn the_clients_of_one_address_have_its_limits_together() {
    let mut fixture = Fixture::new();
    let usage = Arc::new(LockUsage::new(ClientLimits { locks: 3, ..ClientLimits::CLIENT }, None));
    for number in [1, 2] {
        let account = ClientAccount::of_address(client(number), Arc::clone(&usage));
        fixture.accounts[usize::from(number)] = Arc::new(account);
    }
    fixture.take(who(1, 1), READ, bytes(0, 0));
    fixture.take(who(2, 1), READ, bytes(0, 0));
    fixture.take(who(2, 2), READ, bytes(0, 0));
    for number in [1, 2] {
        assert!(fixture.denies(who(number, 3), READ, bytes(0, 0)));
    }
    fixture.take(who(3, 1), READ, bytes(0, 0));
    fixture.unlock(who(2, 1), WHOLE);
    fixture.take(who(1, 2), READ, bytes(0, 0));
}

#[test]
fn the_release_of_a_client_without_locks_looks_at_no_locks_of_others() {
    let mut fixture = Fixture::new();
    for at in 0..1000 {
        fixture.take(who(1, at), READ, bytes(at.into(), at.into()));
    }
    let release = |fixture: &mut Fixture| {
        let before = visits();
        fixture.table.release_client(client(2), fixture.now, &mut Vec::new());
        visits() - before
    };
    assert_eq!(release(&mut fixture), 0);
    fixture.take(who(2, 1), READ, bytes(5, 5));
    fixture.take(who(2, 2), READ, bytes(5, 5));
    assert!(release(&mut fixture) >= 1000);
    assert_eq!(release(&mut fixture), 0);
    assert_eq!(fixture.table.counts().locks, 1000);
}

#[test]
fn what_clients_owners_and_files_have_can_be_released_at_once() {
    let mut fixture = Fixture::new();
    let (a, b, c) = (who(1, 1), who(1, 2), who(2, 1));
    fixture.take(a, WRITE, bytes(0, 9));
    fixture.take(b, WRITE, bytes(10, 19));
    fixture.queue(a, READ, bytes(15, 15), Waits::Granted);
    fixture.queue(c, WRITE, bytes(5, 15), Waits::Granted);
    assert_eq!(fixture.lock_in(2, a, READ, WHOLE, Waits::No), LockOutcome::Granted);
    let (file, now) = (file(FILE), fixture.now);
    fixture.table.release_owner(&file, &a.owner(), now, &mut fixture.callbacks);
    assert_eq!(fixture.called(), []);
    assert!(!fixture.table.holds(&file, &a.owner()));
    fixture.table.release_client(client(1), now, &mut fixture.callbacks);
    assert_eq!(fixture.called(), [c]);
    assert_eq!(fixture.table.counts().files, 1);
    fixture.queue(a, READ, bytes(15, 15), Waits::Notified);
    for number in [1, 2] {
        fixture.table.release_client(client(number), now, &mut fixture.callbacks);
    }
    fixture.assert_empty();
}
