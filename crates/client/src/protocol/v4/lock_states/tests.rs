//! The locks, without a server.

#![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

use super::*;
use crate::protocol::LockCallbackId;

/// Somebody who waits, and what is reported.
#[derive(Default)]
struct Waiting {
    owner: Mutex<Option<WireOwner>>,
    notified: Mutex<Vec<WireOwner>>,
}

impl LockEvents for Waiting {
    fn granted(&self, _: &FileHandle, _: &WireLock, _: LockCallbackId) -> bool {
        panic!("a server of NFSv4 grants by replies alone")
    }

    fn server_restarted(&self) {}

    fn callbacks_lost(&self) {}

    fn notified(&self, _: &FileHandle, owner: WireOwner) -> bool {
        self.notified.lock().push(owner);
        *self.owner.lock() == Some(owner)
    }

    fn reclaimed(&self, _: &FileHandle, _: ByteRange) {}

    fn lost(&self, _: &FileHandle, _: WireOwner, _: ByteRange) {}
}

struct LockRig {
    table: LockStateTable,
    events: Arc<Waiting>,
    file: FileHandle,
    open: OpenContext,
}

impl LockRig {
    fn new() -> Self {
        let (table, events) = (LockStateTable::default(), Arc::new(Waiting::default()));
        let weak = Arc::downgrade(&events);
        table.report(weak);
        let open = OpenContext { owner: 1, credential: Arc::new(RpcCredential::None) };
        Self { table, events, file: FileHandle::new(b"file").unwrap(), open }
    }

    /// The state of a LOCK, which is in progress until the second value is dropped.
    fn lock(&self, owner: u32) -> (LockStateRef, LockUse<'_>) {
        let (state, used, _) = self.table.begin(&self.file, &self.open, WireOwner(owner), ByteRange::WHOLE);
        (state, used)
    }

    fn notify(&self, file: &FileHandle, name: &[u8]) -> NfsStat4 {
        notified(&self.table, NfsFh4::from(file), name)
    }
}

const fn wire(owner: u32, first: u64, last: u64) -> WireLock {
    let range = match ByteRange::new(first, last) {
        Some(range) => range,
        None => ByteRange::WHOLE,
    };
    WireLock { owner: WireOwner(owner), range, lock_type: LockType::Write }
}

fn range(first: u64, last: u64) -> ByteRange {
    ByteRange::new(first, last).unwrap()
}

fn stateid(other: u8) -> Stateid {
    Stateid { seqid: 1, other: [other; 12] }
}

// SEMANTICS: sessions-3, sessions-6.
#[test]
fn a_wait_ends_with_the_repetition_of_its_request_whatever_that_brings() {
    let rig = LockRig::new();
    let (state, used) = rig.lock(1);
    rig.table.denied(&state, ByteRange::WHOLE, true);
    drop(used);
    drop(rig.lock(1));
    let (next, _used) = rig.lock(2);
    assert_eq!(next.name, state.name, "nobody uses the state any more");
}

#[test]
fn a_notification_wakes_the_owner_that_waits_and_nobody_else() {
    let rig = LockRig::new();
    assert_eq!(rig.notify(&rig.file, b"lock\0\0\0\0\0\0\0\x01"), NfsStat4::Badhandle, "nothing is known");
    let (state, used) = rig.lock(7);
    *rig.events.owner.lock() = Some(WireOwner(7));
    rig.table.denied(&state, range(0, 9), true);
    drop(used);
    let name = state.name.bytes();
    let other = FileHandle::new(b"other").unwrap();
    let forged: [&[u8]; 5] = [b"", b"lock", b"lock\0\0\0\0\0\0\0\x63", &name[..11], &[0xff; 1024]];
    for name in forged {
        assert_eq!(rig.notify(&rig.file, name), NfsStat4::Badhandle, "{name:?}");
    }
    assert_eq!(rig.notify(&other, &name), NfsStat4::Badhandle);
    assert_eq!(*rig.events.notified.lock(), []);
    assert_eq!(rig.notify(&rig.file, &name), NfsStat4::Ok);
    assert_eq!(*rig.events.notified.lock(), [WireOwner(7)]);
    // Its caller was interrupted: the server passes the lock on.
    rig.table.withdraw(&rig.file, WireOwner(7), range(0, 9));
    assert_eq!(rig.notify(&rig.file, &name), NfsStat4::Badhandle);
}

// SEMANTICS: sessions-9.
#[test]
fn an_owner_is_notified_of_each_range_that_it_waits_for_whatever_becomes_of_others() {
    let rig = LockRig::new();
    *rig.events.owner.lock() = Some(WireOwner(7));
    let lock = |range, is_denied| {
        let (state, _used) = rig.lock(7);
        match is_denied {
            true => rig.table.denied(&state, range, true),
            false => assert!(rig.table.granted(&state, stateid(1), &WireLock { range, ..wire(7, 0, 0) })),
        }
        state
    };
    let state = lock(range(0, 9), true);
    let is_notified = || rig.notify(&rig.file, &state.name.bytes()) == NfsStat4::Ok;
    lock(range(20, 29), false);
    assert!(rig.table.unlocked(&state, stateid(1), range(20, 29)));
    assert!(is_notified(), "another lock is granted and unlocked");
    lock(range(40, 49), true);
    rig.table.withdraw(&rig.file, WireOwner(7), range(40, 49));
    assert!(is_notified(), "another wait ends");
    lock(range(0, 9), false);
    assert!(rig.table.unlocked(&state, stateid(1), ByteRange::WHOLE));
    assert!(!is_notified());
}

#[test]
fn owners_that_take_turns_share_a_lock_state() {
    let rig = LockRig::new();
    let (whole, used) = rig.lock(1);
    assert_eq!(whole.stateid, None);
    assert!(rig.table.granted(&whole, stateid(1), &wire(1, 0, 9)));
    drop(used);
    let (other, _used) = rig.lock(2);
    assert_ne!(other.name, whole.name, "the state is in use");
    let UnlockTarget::State(held) = rig.table.unlockable(&rig.file, WireOwner(1), ByteRange::WHOLE) else {
        panic!("it is held")
    };
    assert!(rig.table.unlocked(&held, stateid(1), ByteRange::WHOLE));
    assert!(matches!(rig.table.unlockable(&rig.file, WireOwner(1), ByteRange::WHOLE), UnlockTarget::None));
    let (next, _used) = rig.lock(3);
    assert_eq!((next.name, next.stateid), (whole.name, Some(Stateid { seqid: 0, ..stateid(1) })));
    // Another credential has another open.
    let open = OpenContext { owner: 2, ..rig.open.clone() };
    let (foreign, _use, is_new) = rig.table.begin(&rig.file, &open, WireOwner(4), ByteRange::WHOLE);
    assert!(is_new && foreign.name != next.name && foreign.name != other.name);
}

#[test]
fn a_reply_of_before_a_restart_changes_nothing() {
    let rig = LockRig::new();
    let (state, used) = rig.lock(1);
    assert!(rig.table.granted(&state, stateid(1), &wire(1, 0, 9)));
    drop(used);
    let late = rig.table.current_state(&state);
    rig.table.forgotten_by_server();
    assert!(!rig.table.granted(&late, stateid(1), &wire(1, 20, 29)));
    assert!(!rig.table.unlocked(&late, stateid(1), ByteRange::WHOLE));
    let reclaim = rig.table.to_reclaim().remove(0);
    assert_eq!(reclaim.ranges.iter().count(), 1);
    rig.table.reclaimed(&reclaim.state, stateid(2));
    let key = OpenKey { file: rig.file.clone(), owner: 1 };
    rig.table.reclaim_ended(&reclaim.state, &LockRanges::default());
    assert!(rig.table.to_reclaim().is_empty());
    assert_eq!(rig.table.stateid_refused(&rig.file, stateid(1)), None, "it was replaced");
    let lost = rig.table.stateid_refused(&rig.file, stateid(2)).unwrap();
    assert_eq!((lost.owner, lost.ranges.iter().count()), (Some(WireOwner(1)), 1));
    assert_eq!(rig.table.stateid_refused(&rig.file, stateid(2)), None, "it is reported once");
    rig.table.loss_reported(&lost);
    assert_eq!(rig.table.for_io(&key, ByteRange::WHOLE), LockOfIo::None);
}

// SEMANTICS: sessions-10.
#[test]
fn nothing_is_written_without_its_lock_before_the_loss_of_the_lock_is_reported() {
    let rig = LockRig::new();
    let key = OpenKey { file: rig.file.clone(), owner: 1 };
    let io = || rig.table.for_io(&key, range(5, 15));
    let (state, used) = rig.lock(1);
    assert!(rig.table.granted(&state, stateid(1), &wire(1, 0, 9)));
    drop(used);
    let locked = LockOfIo::Stateid(Stateid { seqid: 0, ..stateid(1) });
    assert_eq!(io(), locked);
    let lost = rig.table.stateid_refused(&rig.file, stateid(1)).unwrap();
    assert_eq!(io(), locked, "the server refuses it");
    rig.table.loss_reported(&lost);
    assert_eq!(io(), LockOfIo::None);
    let (state, used) = rig.lock(1);
    assert!(rig.table.granted(&state, stateid(2), &wire(1, 0, 9)));
    drop(used);
    rig.table.forgotten_by_server();
    assert_eq!(io(), LockOfIo::Forgotten, "it waits for recovery");
    let reclaim = rig.table.to_reclaim().remove(0);
    rig.table.reclaim_ended(&reclaim.state, &reclaim.ranges);
    assert_eq!(io(), LockOfIo::None);
}

/// The end of a request that gives up a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    NotSent,
    NoReply,
    Refused,
}

// SEMANTICS: lock-10, sessions-10.
#[test]
fn a_lock_that_is_given_up_is_not_reclaimed_unless_the_request_was_not_executed() {
    let all = range(0, 19);
    let first = range(0, 9);
    let (read, write) = (LockType::Read, LockType::Write);
    let rest = (range(10, 19), write);
    let (none, possible) = (Execution::None, Execution::Possible);
    // Attempts without a result, the end of the last one, and whether the lock is still held.
    let ends: [(&[Execution], End, bool); 6] = [
        (&[], End::NoReply, false),
        (&[], End::Refused, true),
        (&[none], End::NotSent, true),
        (&[none], End::NoReply, false),
        (&[possible], End::NotSent, false),
        (&[possible, none], End::Refused, false),
    ];
    for to in [None, Some(read), Some(write)] {
        for (attempts, end, is_held) in ends {
            let rig = LockRig::new();
            let (state, used) = rig.lock(1);
            assert!(rig.table.granted(&state, stateid(1), &wire(1, 0, 19)));
            drop(used);
            let state = rig.table.current_state(&state);
            let request = Weakening::new(&rig.table, &state, first, to);
            for execution in attempts {
                request.begin();
                request.again(*execution);
            }
            if end != End::NotSent {
                request.begin();
                // It is encoded once more.
                request.begin();
            }
            if end == End::Refused {
                request.refused();
            }
            let unlocked = rig.table.unlockable(&rig.file, WireOwner(1), first);
            assert!(matches!(unlocked, UnlockTarget::State(_)), "it may be held");
            rig.table.forgotten_by_server();
            let held: Vec<_> = rig.table.to_reclaim()[0].ranges.iter().collect();
            let expected = match to {
                _ if is_held => vec![(all, write)],
                None => vec![rest],
                Some(LockType::Read) => vec![(first, read), rest],
                Some(LockType::Write) => vec![(all, write)],
            };
            assert_eq!(held, expected, "{to:?}, {attempts:?}, {end:?}");
            request.refused();
            let held: Vec<_> = rig.table.to_reclaim()[0].ranges.iter().collect();
            assert_eq!(held, expected, "{to:?}, {attempts:?}, {end:?}: it is of before");
        }
    }
}

#[test]
fn a_lock_that_is_lost_or_unlocked_during_a_request_is_not_held_when_that_is_refused() {
    let held = [true, false].map(|is_lost| {
        let rig = LockRig::new();
        let (state, used) = rig.lock(1);
        assert!(rig.table.granted(&state, stateid(1), &wire(1, 0, 29)));
        drop(used);
        let state = rig.table.current_state(&state);
        let request = Weakening::new(&rig.table, &state, range(0, 9), None);
        request.begin();
        if is_lost {
            let lost = rig.table.stateid_refused(&rig.file, stateid(1)).unwrap();
            rig.table.loss_reported(&lost);
            let (next, _used) = rig.lock(1);
            assert!(rig.table.granted(&next, stateid(2), &wire(1, 20, 29)));
            // The reply to another LOCK is lost.
            rig.table.may_hold(&next, range(0, 9), LockType::Write);
        } else {
            assert!(rig.table.unlocked(&state, stateid(1), range(0, 19)));
        }
        request.refused();
        rig.table.forgotten_by_server();
        rig.table.to_reclaim()[0].ranges.iter().collect::<Vec<_>>()
    });
    let rest = vec![(range(20, 29), LockType::Write)];
    assert_eq!(held, [rest.clone(), rest]);
}

#[test]
fn a_lock_state_ends_when_its_file_is_not_open_any_more() {
    let rig = LockRig::new();
    let (state, used) = rig.lock(1);
    assert!(rig.table.granted(&state, stateid(1), &wire(1, 5, 9)));
    drop(used);
    let key = OpenKey { file: rig.file.clone(), owner: 1 };
    let io = |first, last| rig.table.for_io(&key, ByteRange::new(first, last).unwrap());
    assert_eq!(io(0, 5), LockOfIo::Stateid(Stateid { seqid: 0, ..stateid(1) }));
    assert_eq!(io(0, 4), LockOfIo::None);
    assert_eq!(rig.table.tidy(&rig.file, |_, is_locked| !is_locked), [], "it is locked");
    assert!(rig.table.unlocked(&state, stateid(1), ByteRange::WHOLE));
    assert_eq!(rig.table.tidy(&rig.file, |_, is_locked| !is_locked), [], "it may be locked again");
    assert_eq!(rig.table.tidy(&rig.file, |_, is_locked| is_locked), [key]);
    assert!(rig.table.is_empty());
}
