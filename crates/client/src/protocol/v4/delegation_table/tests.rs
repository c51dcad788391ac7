//! The delegations, without a server.

#![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

use curt_policy::delegation::{EARLY_RECALLS_MAX, RETURNS_MAX};

use super::*;
use crate::caller::{Caller, RpcSecurity};

/// The reported state, and the number of delegations that waited to be returned then.
#[derive(Default)]
struct Reported {
    table: OnceLock<Weak<DelegationTable>>,
    ended: Mutex<Vec<(DelegationEnd, usize)>>,
    granted: Mutex<u32>,
}

impl DelegationEvents for Reported {
    fn granted(&self, _: &FileHandle, _: &Arc<HeldDelegation>) {
        *self.granted.lock() += 1;
    }

    fn ended(&self, _: &FileHandle, why: DelegationEnd) {
        let waiting = self.table.get().and_then(Weak::upgrade).map_or(0, |table| table.returns_count());
        self.ended.lock().push((why, waiting));
    }
}

struct Rig {
    table: Arc<DelegationTable>,
    events: Arc<Reported>,
    credential: Arc<RpcCredential>,
}

fn file(number: u32) -> FileHandle {
    FileHandle::new(&number.to_be_bytes()).unwrap()
}

fn stateid(number: u32) -> Stateid {
    let mut other = [0; 12];
    other[..4].copy_from_slice(&number.to_be_bytes());
    Stateid { seqid: 1, other }
}

impl Rig {
    fn new() -> Self {
        let (table, events) = (Arc::<DelegationTable>::default(), Arc::<Reported>::default());
        events.table.set(Arc::downgrade(&table)).unwrap();
        let weak = Arc::downgrade(&events);
        table.report(weak, Instant::now());
        table.allow(true);
        Self { table, events, credential: Arc::new(RpcCredential::None) }
    }

    fn opened(&self, number: u32, was_wanted: bool) -> Option<Arc<HeldDelegation>> {
        self.opened_in(number, was_wanted, SessionGeneration::default().next())
    }

    fn opened_in(
        &self,
        number: u32,
        was_wanted: bool,
        generation: SessionGeneration,
    ) -> Option<Arc<HeldDelegation>> {
        let key = OpenKey { file: file(number), owner: 1 };
        let open = OpenedForDelegation {
            key: &key,
            credential: &self.credential,
            was_wanted,
            generation,
            is_written_here: false,
            now: Instant::now(),
        };
        let offered = OfferedDelegation { stateid: stateid(number), is_read: true, is_recalled: false };
        self.table.opened(&open, Some(offered), DelegationReply::Granted)
    }

    /// An OPEN of another owner was answered with the delegation of this number.
    fn opened_again(&self, number: u32, is_recalled: bool) -> Option<Arc<HeldDelegation>> {
        let key = OpenKey { file: file(number), owner: 2 };
        let open = OpenedForDelegation {
            key: &key,
            credential: &self.credential,
            was_wanted: true,
            generation: SessionGeneration::default().next(),
            is_written_here: false,
            now: Instant::now(),
        };
        let offered = OfferedDelegation { stateid: stateid(number), is_read: true, is_recalled };
        self.table.opened(&open, Some(offered), DelegationReply::Granted)
    }

    fn returns(&self) -> Vec<u32> {
        let returns = self.table.take_returns(&self.credential, Instant::now(), usize::MAX);
        returns
            .iter()
            .map(|returned| u32::from_be_bytes(returned.stateid.other[..4].try_into().unwrap()))
            .collect()
    }
}

// SEMANTICS: sessions-16.
#[test]
fn a_delegation_that_is_not_used_for_long_is_returned() {
    let rig = Rig::new();
    let start = Instant::now();
    rig.table.end_unused(start);
    let [used, _unused] = [1, 2].map(|number| rig.opened(number, true).unwrap());
    for minutes in 1..=30 {
        used.note_use();
        rig.table.end_unused(start + minutes * Duration::from_secs(60));
        // It counts as used when it is new.
        let returns = if minutes == 20 { vec![2] } else { vec![] };
        assert_eq!((rig.returns(), used.is_held()), (returns, true), "after {minutes} minutes");
    }
    assert_eq!((rig.table.held(), rig.events.ended.lock().len()), (1, 1));
}

#[test]
fn a_delegation_that_comes_twice_is_one_and_ends_once() {
    let rig = Rig::new();
    let held = rig.opened(1, true).unwrap();
    assert!(Arc::ptr_eq(&held, &rig.opened_again(1, false).unwrap()));
    assert!(rig.opened_again(1, true).is_none(), "it is recalled");
    assert!(!held.is_held());
    assert!(rig.opened_again(1, false).is_none(), "it is being returned");
    assert_eq!((rig.table.held(), rig.returns()), (0, vec![1]));
    assert_eq!((*rig.events.granted.lock(), rig.events.ended.lock().len()), (1, 1));
}

#[test]
fn a_recall_that_comes_before_the_reply_ends_the_delegation_with_the_reply() {
    let rig = Rig::new();
    let opening = rig.table.begin_opening();
    assert_eq!(rig.table.recall(&file(1), stateid(1)), NfsStat4::Ok);
    assert!(rig.opened(1, true).is_none(), "it is recalled already");
    drop(opening);
    assert_eq!((rig.returns(), *rig.events.granted.lock()), (vec![1], 0));
    // Another delegation of the file is not concerned.
    assert!(rig.opened(1, true).is_some());
}

#[test]
fn a_recall_is_remembered_no_longer_than_the_opens_that_it_may_be_about() {
    let rig = Rig::new();
    let first = rig.table.begin_opening();
    assert_eq!(rig.table.recall(&file(1), stateid(1)), NfsStat4::Ok);
    let second = rig.table.begin_opening();
    drop(first);
    assert!(rig.opened(1, true).is_some(), "the OPEN began after the recall");
    for number in 10..10 + u32::try_from(EARLY_RECALLS_MAX).unwrap() {
        assert_eq!(rig.table.recall(&file(number), stateid(number)), NfsStat4::Ok);
    }
    assert_eq!(rig.table.recall(&file(9), stateid(9)), NfsStat4::Delay);
    drop(second);
    assert_eq!(rig.table.recall(&file(9), stateid(9)), NfsStat4::BadStateid);
}

#[test]
fn a_recall_of_what_an_interrupted_open_may_have_brought_is_answered_by_its_return() {
    let rig = Rig::new();
    let opening = rig.table.begin_opening();
    opening.lose_reply(&rig.credential);
    drop(opening);
    for _ in 0..2 {
        assert_eq!(rig.table.recall(&file(1), stateid(1)), NfsStat4::Ok);
    }
    assert_eq!(rig.returns(), [1], "once");
    for number in 2..2 + u32::try_from(EARLY_RECALLS_MAX).unwrap() {
        assert_eq!(rig.table.recall(&file(number), stateid(number)), NfsStat4::Ok);
    }
    assert_eq!(rig.table.recall(&file(99), stateid(99)), NfsStat4::Delay, "too many wait");
    assert_eq!(rig.returns().len(), EARLY_RECALLS_MAX);
    rig.table.forgotten_by_server(SessionGeneration::default().next());
    assert_eq!(rig.table.recall(&file(1), stateid(1)), NfsStat4::BadStateid);
}

#[test]
fn a_recall_of_what_an_interrupted_open_may_have_brought_outlasts_other_opens() {
    for is_lost_before in [true, false] {
        let rig = Rig::new();
        let (lost, other) = (rig.table.begin_opening(), rig.table.begin_opening());
        if is_lost_before {
            lost.lose_reply(&rig.credential);
        }
        for _ in 0..2 {
            assert_eq!(rig.table.recall(&file(1), stateid(1)), NfsStat4::Ok);
        }
        lost.lose_reply(&rig.credential);
        drop(lost);
        assert_eq!(rig.returns(), [0_u32; 0], "the other reply may bring it");
        assert!(rig.opened(2, true).is_some());
        drop(other);
        assert_eq!(rig.returns(), [1], "once");
    }
}

#[test]
fn an_open_that_waits_to_be_sent_again_keeps_no_recall_waiting() {
    let rig = Rig::new();
    let (lost, delayed) = (rig.table.begin_opening(), rig.table.begin_opening());
    lost.lose_reply(&rig.credential);
    assert_eq!(rig.table.recall(&file(1), stateid(1)), NfsStat4::Ok);
    drop(lost);
    assert_eq!(rig.returns(), [0_u32; 0], "the other reply may bring it");
    delayed.suspend();
    assert_eq!(rig.returns(), [1]);
    assert_eq!(rig.table.recall(&file(2), stateid(2)), NfsStat4::Ok);
    assert_eq!(rig.returns(), [2]);
    delayed.resume();
    assert_eq!(rig.table.recall(&file(3), stateid(3)), NfsStat4::Ok);
    assert_eq!(rig.returns(), [0_u32; 0], "the next reply may bring it");
    drop(delayed);
    assert_eq!(rig.returns(), [3]);
}

#[test]
fn none_is_expected_while_many_are_being_returned() {
    let rig = Rig::new();
    let now = Instant::now();
    let most = u32::try_from(RETURNS_MAX).unwrap();
    for number in 0..most {
        assert!(rig.table.is_expected(|| now), "{number} are being returned");
        rig.opened(number, true).unwrap();
        rig.table.give_up(&file(number));
    }
    assert!(!rig.table.is_expected(|| now));
    let returned = rig.table.take_returns(&rig.credential, now, 1).pop().unwrap();
    assert!(!rig.table.is_expected(|| now), "its DELEGRETURN is in flight");
    rig.table.returned(&returned, Ok(()), now);
    assert!(rig.table.is_expected(|| now));
}

#[test]
fn recalls_of_what_is_not_held_are_refused() {
    let rig = Rig::new();
    let held = rig.opened(1, true).unwrap();
    assert_eq!(rig.table.recall(&file(1), stateid(2)), NfsStat4::BadStateid);
    assert_eq!(rig.table.recall(&file(2), stateid(1)), NfsStat4::BadStateid);
    assert!(held.is_held());
    assert_eq!(rig.table.recall(&file(1), stateid(1)), NfsStat4::Ok);
    assert!(!held.is_held());
    assert_eq!(*rig.events.ended.lock(), [(DelegationEnd::Recalled, 0)], "before it can be returned");
    assert_eq!(rig.table.recall(&file(1), stateid(1)), NfsStat4::Ok, "it is being returned");
    assert_eq!(rig.returns(), [1]);
}

#[test]
fn a_delegation_that_nobody_asked_for_is_returned() {
    let rig = Rig::new();
    assert!(rig.opened(1, false).is_none());
    assert_eq!(rig.returns(), [1]);
    assert_eq!(*rig.events.granted.lock(), 0);
}

#[test]
fn delegations_that_nobody_asked_for_and_the_server_does_not_take_back_are_dropped_beyond_a_limit() {
    let rig = Rig::new();
    let most = u32::try_from(UNKEPT_MAX).unwrap();
    for number in 0..=most {
        assert!(rig.opened(number, false).is_none());
    }
    assert_eq!(rig.table.returns_count(), UNKEPT_MAX);
    assert_eq!(rig.table.recall(&file(most), stateid(most)), NfsStat4::Ok);
    assert_eq!(rig.returns(), (0..=most).collect::<Vec<_>>(), "the dropped one after its recall");
}

// SEMANTICS: sessions-16.
#[test]
fn the_least_recently_used_is_returned_at_the_limit_and_beyond_what_the_server_lets_keep() {
    let rig = Rig::new();
    let most = u32::try_from(DELEGATIONS_MAX).unwrap();
    let held: Vec<_> = (0..most).map(|number| rig.opened(number, true).unwrap()).collect();
    assert_eq!(rig.returns(), [0_u32; 0]);
    for delegation in &held {
        let _ = delegation.take_use();
    }
    held[0].note_use();
    assert!(rig.opened(most, true).is_some());
    assert_eq!(rig.returns(), [1], "the first was used");
    rig.table.limit(2);
    assert_eq!(rig.returns().len(), DELEGATIONS_MAX - 2);
    assert_eq!(held.iter().filter(|delegation| delegation.is_held()).count(), 1);
}

#[test]
fn a_return_that_the_server_delays_or_denies_is_repeated() {
    let (rig, mut now) = (Rig::new(), Instant::now());
    rig.opened(1, true).unwrap();
    rig.table.give_up(&file(1));
    assert_eq!(rig.table.next_return(now), Some(Duration::ZERO));
    let take = |now| rig.table.take_returns(&rig.credential, now, 1).pop();
    for pause in [100, 200, 400, 800, 1000, 1000].map(Duration::from_millis) {
        rig.table.returned(&take(now).unwrap(), Err(NfsStat4::Delay), now);
        assert_eq!(rig.table.next_return(now), Some(pause));
        let early = now + pause - Duration::from_nanos(1);
        assert!(take(early).is_none() && rig.table.return_credential(early).is_none());
        now += pause;
        assert!(rig.table.return_credential(now).is_some());
    }
    assert_eq!(rig.table.returning(), 1);
    rig.table.returned(&take(now).unwrap(), Err(NfsStat4::Access), now);
    let other = RpcSecurity::sys().credential(&Caller::new(7, 7, &[]));
    assert!(rig.table.take_returns(&other, now, 1).is_empty(), "with its own credential");
    rig.table.returned(&take(now).unwrap(), Err(NfsStat4::DelegRevoked), now);
    assert_eq!((rig.table.all(), rig.table.returning()), (vec![], 0));
    assert!(take(now).is_none() && rig.table.next_return(now).is_none(), "it has ended");
    assert_eq!(*rig.events.ended.lock(), [(DelegationEnd::Returned, 0)], "it ended once");
}

#[test]
fn what_the_server_revokes_or_forgets_is_lost() {
    let rig = Rig::new();
    let (revoked, forgotten) = (rig.opened(1, true).unwrap(), rig.opened(2, true).unwrap());
    rig.table.lose(&file(1), stateid(1));
    assert!(!revoked.is_held() && forgotten.is_held());
    let (first, next) = (SessionGeneration::default().next(), SessionGeneration::default().next().next());
    rig.table.forgotten_by_server(next);
    assert!(!forgotten.is_held());
    assert_eq!((rig.returns(), rig.table.all()), (vec![], vec![]));
    let lost: Vec<_> = rig.events.ended.lock().iter().map(|(why, _)| *why).collect();
    assert_eq!(lost, [DelegationEnd::Lost; 2]);
    assert!(rig.opened_in(3, true, first).is_none(), "the reply is of before");
    assert_eq!(rig.returns(), [0_u32; 0], "the server does not know it");
    assert!(rig.opened_in(4, true, next).is_some());
}

#[test]
fn what_the_server_has_forgotten_is_reclaimed_once() {
    let rig = Rig::new();
    for number in 1..=4 {
        rig.opened(number, true).unwrap();
    }
    rig.table.give_up(&file(4));
    rig.table.forgotten_by_server(SessionGeneration::default().next().next());
    let key = |number| OpenKey { file: file(number), owner: 1 };
    let is_waiting = |number| rig.table.to_reclaim().contains(&key(number));
    assert!(is_waiting(2), "with its open");
    rig.table.to_reclaim().remove(&key(2));
    assert!(!is_waiting(2) && !is_waiting(4), "it was given up");
    let taken = rig.table.to_reclaim().take(9);
    let files = |taken: &[DelegationToReclaim]| taken.iter().map(|it| it.key.clone()).collect::<Vec<_>>();
    assert_eq!(files(&taken), [key(1), key(3)]);
    rig.table.to_reclaim().put_back(taken.into_iter());
    assert_eq!(files(&rig.table.to_reclaim().take(1)), [key(1)]);
    rig.table.to_reclaim().clear();
    assert!(rig.table.to_reclaim().take(9).is_empty());
}
