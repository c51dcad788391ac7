//! Conflicts, merges and splits.

use super::*;

#[test]
fn an_owners_locks_merge_and_split_as_posix_locks_do() {
    let mut fixture = Fixture::new();
    let a = who(1, 1);
    fixture.take(a, READ, bytes(0, 9));
    fixture.take(a, READ, bytes(10, 19));
    assert_eq!(fixture.held(a), [(READ, bytes(0, 19))]);
    fixture.take(a, WRITE, bytes(5, 7));
    assert_eq!(fixture.held(a), [(READ, bytes(0, 4)), (WRITE, bytes(5, 7)), (READ, bytes(8, 19))]);
    fixture.unlock(a, bytes(6, 12));
    assert_eq!(fixture.held(a), [(READ, bytes(0, 4)), (WRITE, bytes(5, 5)), (READ, bytes(13, 19))]);
    fixture.take(a, WRITE, bytes(0, u64::MAX));
    assert_eq!(fixture.held(a), [(WRITE, WHOLE)]);
    fixture.unlock(a, bytes(u64::MAX, u64::MAX));
    fixture.unlock(a, bytes(0, 0));
    assert_eq!(fixture.held(a), [(WRITE, bytes(1, u64::MAX - 1))]);
    fixture.unlock(a, WHOLE);
    fixture.unlock(a, WHOLE);
    fixture.assert_empty();
}

#[test]
fn locks_of_other_owners_conflict_where_ranges_and_types_do() {
    let mut fixture = Fixture::new();
    let (a, b, same_process_elsewhere) = (who(1, 1), who(1, 2), who(2, 1));
    fixture.take(a, READ, bytes(10, 19));
    fixture.take(b, READ, bytes(0, 14));
    assert!(fixture.denies(same_process_elsewhere, WRITE, bytes(14, 14)));
    assert!(fixture.denies(a, WRITE, bytes(14, 30)));
    assert_eq!(fixture.held(a), [(READ, bytes(10, 19))], "a denied upgrade changes nothing");
    fixture.take(a, WRITE, bytes(15, 30));
    let outcome = fixture.lock(b, READ, bytes(30, 40), Waits::No);
    let LockOutcome::Denied(LockDenial::Conflict(holder)) = outcome else { panic!("{outcome:?}") };
    assert_eq!((Who::of(&holder), &*holder.name), (a, &b"owner"[..]));
    assert_eq!((holder.lock_type, holder.range), (WRITE, bytes(15, 30)));
    let tested = fixture.table.test(&file(FILE), &b.owner(), READ, bytes(30, 40));
    assert_eq!(tested, Some(holder));
    assert_eq!(fixture.table.test(&file(FILE), &a.owner(), WRITE, bytes(15, 40)), None);
    assert_eq!(fixture.table.test(&file(2), &b.owner(), WRITE, WHOLE), None);
    assert!(fixture.table.holds(&file(FILE), &a.owner()));
    assert!(!fixture.table.holds(&file(FILE), &same_process_elsewhere.owner()));
}

#[test]
fn owners_with_other_names_or_protocols_are_others() {
    let mut fixture = Fixture::new();
    fixture.take(who(1, 1), WRITE, WHOLE);
    let owner = who(1, 1).owner();
    let long = [7; OWNER_NAME_MAX];
    for other in [
        LockOwner { name: b"owner2", ..owner },
        LockOwner { name: b"", ..owner },
        LockOwner { name: &long, ..owner },
        LockOwner { client: LockClient::Clientid(1), ..owner },
        LockOwner { client: LockClient::Host("::ffff:10.0.0.1".parse().unwrap()), ..owner },
    ] {
        assert!(fixture.table.test(&file(FILE), &other, READ, WHOLE).is_some(), "{other:?}");
    }
    let too_long = [7; OWNER_NAME_MAX + 1];
    let request = LockRequest {
        owner: LockOwner { name: &too_long, ..owner },
        lock_type: READ,
        range: WHOLE,
        wait: LockWait::No,
        reclaim: false,
    };
    let account = Arc::clone(&fixture.accounts[1]);
    let mut lock = |request| {
        let now = fixture.now;
        fixture.table.lock(&file(2), request, &account, None, now, &mut Vec::new())
    };
    assert_eq!(lock(&request), LockOutcome::Denied(LockDenial::NoLocks));
    let longest = LockRequest { owner: LockOwner { name: &long, ..owner }, ..request };
    assert_eq!(lock(&longest), LockOutcome::Granted);
}

#[test]
fn locks_are_found_among_many_of_all_kinds() {
    // Long and short ones, of many owners and of one with many.
    let mut fixture = Fixture::new();
    for number in 0..2_000_u32 {
        let at = u64::from(number) * 10;
        fixture.take(who(1, 1), READ, bytes(at, at));
        fixture.take(who(2, number), READ, bytes(at + 1, at + 1 + u64::from(number % 7) * 1_000));
        fixture.take(who(3, number), WRITE, bytes(FAR + at, FAR + at + 8));
    }
    for number in 0..2_000_u32 {
        let at = u64::from(number) * 10;
        // Another owner's long locks may reach here; only the first has none before it.
        assert_eq!(
            fixture.denies(who(1, 1), WRITE, bytes(at, at)),
            number > 0 && reaches(number),
            "{number}"
        );
        assert!(fixture.denies(who(4, 0), READ, bytes(FAR + at + 8, FAR + at + 9)));
        fixture.take(who(4, 0), READ, bytes(FAR + at + 9, FAR + at + 9));
    }
    fixture.unlock(who(1, 1), WHOLE);
    assert!(!fixture.table.holds(&file(FILE), &who(1, 1).owner()));
}

/// Beyond all other locks of the test.
const FAR: u64 = 1 << 40;

/// Whether a lock of client 2 reaches the byte `number * 10`.
fn reaches(number: u32) -> bool {
    let at = u64::from(number) * 10;
    let before = number.saturating_sub(700)..number;
    before.into_iter().any(|other| u64::from(other) * 10 + 1 + u64::from(other % 7) * 1_000 >= at)
}
