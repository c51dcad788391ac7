//! The opens, without a server.

#![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

use std::{cell::Cell, time::Duration};

use curt_proto::nfs4::{ChangeInfo, NfsStat4, OpenDelegation, OpenOk4, OpenResultFlags};

use super::{closing::IDLE_MAX, *};
use crate::caller::{Caller, RpcSecurity};
use crate::protocol::{HeldDelegation, OpenOwner, v4::piggybacked::ClosedOpens};

const fn stateid(other: u8) -> Stateid {
    Stateid { seqid: 1, other: [other; 12] }
}

struct Rig {
    table: OpenTable,
    credential: Arc<RpcCredential>,
    file: FileHandle,
    now: Instant,
    generation: Cell<SessionGeneration>,
    /// OPENs are sent because the open was lost.
    reopens: Cell<bool>,
}

impl Rig {
    fn new() -> Self {
        Self {
            table: OpenTable::default(),
            credential: Arc::new(RpcCredential::None),
            file: FileHandle::new(b"file").unwrap(),
            now: Instant::now(),
            generation: Cell::default(),
            reopens: Cell::default(),
        }
    }

    fn forgotten_by_server(&self) {
        let next = self.generation.get().next();
        self.table.forgotten_by_server(next);
        self.generation.set(next);
    }

    fn key(&self) -> OpenKey {
        OpenKey { file: self.file.clone(), owner: 1 }
    }

    fn opened(&self, other: u8, seqid: u32, access: ShareAccess) -> bool {
        let owner = OpenOwner { number: 1, credential: &self.credential };
        self.opened_by(&self.file, owner, Stateid { seqid, other: [other; 12] }, access)
    }

    /// An OPEN of a server that keeps the file although its last name is removed.
    fn opened_preserved(&self, seqid: u32, access: ShareAccess) {
        let owner = OpenOwner { number: 1, credential: &self.credential };
        let flags = OpenResultFlags(OpenResultFlags::PRESERVE_UNLINKED);
        self.opened_with(flags, &self.file, owner, Stateid { seqid, other: [3; 12] }, access);
    }

    fn opened_by(
        &self,
        file: &FileHandle,
        owner: OpenOwner<'_>,
        stateid: Stateid,
        access: ShareAccess,
    ) -> bool {
        self.opened_with(OpenResultFlags(0), file, owner, stateid, access)
    }

    fn opened_with(
        &self,
        flags: OpenResultFlags,
        file: &FileHandle,
        owner: OpenOwner<'_>,
        stateid: Stateid,
        access: ShareAccess,
    ) -> bool {
        let ok = OpenOk4 {
            stateid,
            directory: ChangeInfo::default(),
            flags,
            attributes_set: Default::default(),
            delegation: OpenDelegation::None,
        };
        let generation = self.generation.get();
        let sent = SentOpen { access, wants_delegation: false, generation, is_reopening: self.reopens.get() };
        self.table.opened(file, owner, sent, GrantedOpen::from(&ok), self.now)
    }

    /// The open that a READ uses.
    fn usable(&self) -> UsableOpen {
        self.table.usable(&self.key(), ShareAccess::Read)
    }

    fn piggybacked(&self, after: Duration) -> Vec<(PiggybackedKind, u32)> {
        let piggybacked =
            self.table.take_piggybacked(&self.credential, self.now + after, ClosedOpens::Due, 4);
        piggybacked.iter().map(|operation| (operation.kind, operation.stateid.seqid)).collect()
    }
}

// SEMANTICS: sessions-1.
#[test]
fn an_open_is_closed_after_its_last_user_and_used_again_before() {
    let rig = Rig::new();
    assert!(!rig.table.share(&rig.key(), ShareAccess::Read));
    rig.opened(3, 1, ShareAccess::Read);
    assert!(rig.table.share(&rig.key(), ShareAccess::Read));
    assert!(!rig.table.share(&rig.key(), ShareAccess::Write), "it is not for writing");
    assert_eq!(rig.piggybacked(Duration::from_secs(9)), [], "it is used");
    assert!(rig.table.release(&rig.key(), ShareAccess::Read, rig.now));
    assert_eq!(rig.piggybacked(Duration::ZERO), [], "it may be used again");
    assert!(rig.table.share(&rig.key(), ShareAccess::Read));
    rig.table.release(&rig.key(), ShareAccess::Read, rig.now);
    assert_eq!(rig.piggybacked(Duration::from_secs(1)), [(PiggybackedKind::Close, 1)]);
    assert_eq!(rig.usable(), UsableOpen::None);
}

#[test]
fn a_file_that_is_opened_and_closed_often_counts_as_one_idle_open() {
    let rig = Rig::new();
    rig.opened(3, 1, ShareAccess::Read);
    for _ in 0..20 {
        assert!(rig.table.share(&rig.key(), ShareAccess::Read));
        assert!(rig.table.release(&rig.key(), ShareAccess::Read, rig.now));
    }
    assert_eq!(rig.table.unused_count(), 1);
    assert_eq!(rig.piggybacked(Duration::ZERO), [], "it may be used again");
    assert!(rig.table.share(&rig.key(), ShareAccess::Read));
    assert_eq!(rig.piggybacked(Duration::from_secs(1)), [], "it is used");
    assert_eq!(rig.table.unused_count(), 0);
    assert!(rig.table.release(&rig.key(), ShareAccess::Read, rig.now));
    assert_eq!(rig.piggybacked(Duration::from_secs(1)), [(PiggybackedKind::Close, 1)]);
}

#[test]
fn an_open_for_writing_is_kept_for_who_sent_the_open() {
    let rig = Rig::new();
    rig.opened(3, 1, ShareAccess::Both);
    assert_eq!(rig.piggybacked(Duration::ZERO), [], "another request closes what is idle");
    assert!(rig.table.share(&rig.key(), ShareAccess::Both));
    rig.opened(3, 2, ShareAccess::Both);
    rig.table.release(&rig.key(), ShareAccess::Both, rig.now);
    assert_eq!(rig.piggybacked(Duration::ZERO), [(PiggybackedKind::Close, 2)]);
    rig.opened(4, 1, ShareAccess::Both);
    assert_eq!(rig.piggybacked(Duration::ZERO), []);
    assert_eq!(rig.piggybacked(Duration::from_secs(1)), [(PiggybackedKind::Close, 1)], "it is not used");
}

#[test]
fn an_open_is_kept_as_long_as_its_delegation_and_closed_with_it() {
    let rig = Rig::new();
    let held = HeldDelegation::new(&Arc::default());
    rig.opened(3, 1, ShareAccess::Read);
    rig.table.delegated(&rig.key(), &held);
    assert!(rig.table.share(&rig.key(), ShareAccess::Read));
    assert!(!rig.table.release(&rig.key(), ShareAccess::Read, rig.now), "nothing waits");
    assert_eq!(rig.piggybacked(Duration::from_secs(99)), []);
    assert!(rig.table.share(&rig.key(), ShareAccess::Read), "it is still there");
    held.end();
    rig.table.undelegated(&rig.key(), rig.now);
    assert_eq!(rig.piggybacked(Duration::ZERO), [], "it is used");
    assert!(rig.table.release(&rig.key(), ShareAccess::Read, rig.now));
    rig.table.undelegated(&rig.key(), rig.now);
    assert_eq!(rig.piggybacked(Duration::ZERO), [(PiggybackedKind::Close, 1)], "at once");
    assert!(!rig.table.share(&rig.key(), ShareAccess::Read));
}

#[test]
fn the_opens_of_all_owners_are_closed_when_their_delegation_ends() {
    let rig = Rig::new();
    let held = HeldDelegation::new(&Arc::default());
    for owner in [1, 2, 3] {
        let of = OpenOwner { number: owner, credential: &rig.credential };
        rig.opened_by(&rig.file, of, Stateid { seqid: owner, other: [3; 12] }, ShareAccess::Read);
        if owner != 3 {
            rig.table.delegated(&OpenKey { owner, ..rig.key() }, &held);
        }
    }
    held.end();
    rig.table.undelegated(&rig.key(), rig.now);
    let mut closed = rig.piggybacked(Duration::ZERO);
    closed.sort_by_key(|(_, owner)| *owner);
    assert_eq!(closed, [(PiggybackedKind::Close, 1), (PiggybackedKind::Close, 2)]);
    assert_eq!(rig.piggybacked(Duration::from_secs(1)), [(PiggybackedKind::Close, 3)], "it was not kept");
}

#[test]
fn a_delegation_does_not_keep_an_open_for_writing() {
    let rig = Rig::new();
    let held = HeldDelegation::new(&Arc::default());
    rig.opened(3, 1, ShareAccess::Both);
    rig.table.delegated(&rig.key(), &held);
    assert!(rig.table.is_written(&rig.file));
    assert!(rig.table.share(&rig.key(), ShareAccess::Both));
    assert!(rig.table.release(&rig.key(), ShareAccess::Both, rig.now));
    assert_eq!(rig.piggybacked(Duration::ZERO), [(PiggybackedKind::Close, 1)]);
    assert!(!rig.table.is_written(&rig.file));
}

#[test]
fn a_server_keeps_a_removed_file_only_for_the_users_whose_open_it_has() {
    let rig = Rig::new();
    let is_preserved = || rig.table.is_preserved(&rig.file);
    assert!(rig.table.use_unopened(&rig.key(), &rig.credential, ShareAccess::Read));
    assert!(!is_preserved(), "the server does not know of the reader");
    rig.opened_preserved(1, ShareAccess::Write);
    assert!(rig.table.share(&rig.key(), ShareAccess::Write));
    assert!(!is_preserved(), "nor does it now");
    rig.table.release(&rig.key(), ShareAccess::Write, rig.now);
    assert!(!is_preserved());
    assert_eq!(rig.piggybacked(Duration::ZERO), [(PiggybackedKind::Close, 1)]);
    assert!(!is_preserved());
    rig.opened_preserved(1, ShareAccess::Read);
    assert!(is_preserved(), "until the reader closes it");
    rig.table.stateid_refused(&rig.key(), stateid(3));
    assert!(!is_preserved(), "the server has lost the open");
    rig.opened_preserved(2, ShareAccess::Read);
    assert!(is_preserved());
    rig.table.release(&rig.key(), ShareAccess::Read, rig.now);
    assert!(!is_preserved());
}

#[test]
fn an_open_with_fewer_accesses_in_use_is_downgraded() {
    let rig = Rig::new();
    rig.opened(3, 1, ShareAccess::Read);
    rig.opened(3, 2, ShareAccess::Both);
    for access in [ShareAccess::Read, ShareAccess::Both] {
        assert!(rig.table.share(&rig.key(), access));
    }
    assert!(rig.table.release(&rig.key(), ShareAccess::Both, rig.now));
    let piggybacked = rig.table.take_piggybacked(&rig.credential, rig.now, ClosedOpens::Due, 4);
    assert_eq!(
        piggybacked.iter().map(|operation| operation.kind).collect::<Vec<_>>(),
        [PiggybackedKind::Downgrade(ShareAccess::Read)]
    );
    rig.table.piggybacked_done(&piggybacked[0], Ok(Stateid { seqid: 3, other: [3; 12] }), rig.now);
    assert!(!rig.table.share(&rig.key(), ShareAccess::Both), "another OPEN is needed");
    rig.table.release(&rig.key(), ShareAccess::Read, rig.now);
    assert_eq!(rig.piggybacked(Duration::from_secs(1)), [(PiggybackedKind::Close, 3)]);
}

#[test]
fn who_opens_a_file_while_its_downgrade_is_in_flight_needs_an_open() {
    let rig = Rig::new();
    rig.opened(3, 1, ShareAccess::Read);
    rig.opened(3, 2, ShareAccess::Both);
    assert!(rig.table.share(&rig.key(), ShareAccess::Read) && rig.table.share(&rig.key(), ShareAccess::Both));
    assert!(rig.table.release(&rig.key(), ShareAccess::Both, rig.now));
    let piggybacked = rig.table.take_piggybacked(&rig.credential, rig.now, ClosedOpens::Due, 4);
    assert!(!rig.table.share(&rig.key(), ShareAccess::Both), "the server may deny its WRITEs");
    // The replies to both arrive in the other order.
    rig.opened(3, 4, ShareAccess::Both);
    rig.table.piggybacked_done(&piggybacked[0], Ok(Stateid { seqid: 3, other: [3; 12] }), rig.now);
    assert!(rig.table.share(&rig.key(), ShareAccess::Both));
    for access in [ShareAccess::Read, ShareAccess::Both] {
        rig.table.release(&rig.key(), access, rig.now);
    }
    assert_eq!(rig.piggybacked(Duration::from_secs(1)), [(PiggybackedKind::Close, 4)]);
}

#[test]
fn an_open_whose_reply_comes_after_a_close_of_the_newest_state_is_opened_again() {
    for is_refused in [false, true] {
        let rig = Rig::new();
        rig.opened(3, 1, ShareAccess::Read);
        let take =
            || rig.table.take_piggybacked(&rig.credential, rig.now + KEPT_FOR, ClosedOpens::Due, 4).remove(0);
        // The server has executed another OPEN before it.
        rig.table.piggybacked_done(&take(), Err(NfsStat4::OldStateid), rig.now);
        let newest = take();
        assert_eq!((newest.kind, newest.stateid.seqid), (PiggybackedKind::Close, 0));
        if is_refused {
            rig.table.piggybacked_done(&newest, Err(NfsStat4::Serverfault), rig.now);
        }
        rig.opened(3, 2, ShareAccess::Read);
        assert!(rig.table.share(&rig.key(), ShareAccess::Read));
        assert_eq!(rig.usable() == UsableOpen::Reopen, !is_refused);
        rig.opened(4, 1, ShareAccess::Read);
        assert_eq!(rig.usable(), UsableOpen::Stateid(Stateid { seqid: 0, other: [4; 12] }));
    }
}

#[test]
fn all_replies_that_come_after_a_close_of_the_newest_state_concern_a_lost_open() {
    // The CLOSE is executed before the first of the replies arrives, after it, or never.
    for executed in ["before", "after", "never"] {
        let rig = Rig::new();
        rig.opened(3, 1, ShareAccess::Read);
        let take = || rig.table.take_piggybacked(&rig.credential, rig.now, ClosedOpens::All, 4);
        rig.table.piggybacked_done(&take()[0], Err(NfsStat4::OldStateid), rig.now);
        let newest = take().remove(0);
        assert_eq!((newest.kind, newest.stateid.seqid), (PiggybackedKind::Close, 0));
        let done = || rig.table.piggybacked_done(&newest, Ok(newest.stateid), rig.now);
        if executed == "before" {
            done();
        }
        rig.opened(3, 2, ShareAccess::Read);
        assert!(rig.table.share(&rig.key(), ShareAccess::Read));
        assert_eq!(rig.usable(), UsableOpen::Reopen);
        match executed {
            "never" => {
                rig.table.put_back(vec![newest]);
                assert!(take().is_empty(), "the file is open again");
                rig.opened(3, 3, ShareAccess::Read);
                assert!(matches!(rig.usable(), UsableOpen::Stateid(_)));
                continue;
            }
            "after" => {
                // The OPEN that is sent again overtakes the CLOSE, too.
                rig.reopens.set(true);
                rig.opened(3, 3, ShareAccess::Read);
                assert!(matches!(rig.usable(), UsableOpen::Stateid(_)), "it is not sent for ever");
                done();
            }
            _ => {
                rig.opened(3, 3, ShareAccess::Read);
            }
        }
        assert_eq!(rig.usable(), UsableOpen::Reopen, "executed {executed}");
        rig.reopens.set(true);
        rig.opened(4, 1, ShareAccess::Read);
        assert_eq!(rig.usable(), UsableOpen::Stateid(Stateid { seqid: 0, other: [4; 12] }));
    }
}

#[test]
fn a_close_that_was_overtaken_is_sent_again_unless_the_file_is_open_again() {
    for is_open_again in [false, true] {
        let rig = Rig::new();
        rig.opened(3, 1, ShareAccess::Read);
        let late = rig.now + Duration::from_secs(1);
        let piggybacked = rig.table.take_piggybacked(&rig.credential, late, ClosedOpens::Due, 4);
        rig.table.piggybacked_done(&piggybacked[0], Err(NfsStat4::OldStateid), rig.now);
        if is_open_again {
            rig.opened(3, 2, ShareAccess::Read);
            assert!(rig.table.share(&rig.key(), ShareAccess::Read));
            assert_eq!(rig.piggybacked(Duration::ZERO), []);
            continue;
        }
        let piggybacked = rig.table.take_piggybacked(&rig.credential, rig.now, ClosedOpens::Due, 4);
        assert_eq!((piggybacked[0].kind, piggybacked[0].stateid.seqid), (PiggybackedKind::Close, 0));
        rig.table.piggybacked_done(&piggybacked[0], Err(NfsStat4::OldStateid), rig.now);
        assert_eq!(rig.piggybacked(Duration::ZERO), [], "not for ever");
    }
}

#[test]
fn the_server_learns_of_a_delayed_open_when_it_is_used() {
    let rig = Rig::new();
    assert!(rig.table.use_unopened(&rig.key(), &rig.credential, ShareAccess::Read));
    assert_eq!(rig.usable(), UsableOpen::Delayed(Arc::clone(&rig.credential)));
    assert!(rig.table.held().is_empty(), "the server has nothing to test");
    rig.forgotten_by_server();
    assert!(rig.table.next_to_reclaim(16).is_empty(), "nor to reclaim");
    assert!(matches!(rig.usable(), UsableOpen::Delayed(_)), "it is still used");
    assert!(!rig.table.release(&rig.key(), ShareAccess::Read, rig.now), "nothing is closed");
    assert_eq!(rig.piggybacked(Duration::from_secs(9)), []);
    assert_eq!(rig.usable(), UsableOpen::None);
    assert!(rig.table.use_unopened(&rig.key(), &rig.credential, ShareAccess::Read));
    rig.opened(3, 1, ShareAccess::Read);
    assert!(matches!(rig.usable(), UsableOpen::Stateid(_)));
    assert!(rig.table.release(&rig.key(), ShareAccess::Read, rig.now));
    assert_eq!(rig.piggybacked(Duration::from_secs(1)), [(PiggybackedKind::Close, 1)]);
}

#[test]
fn an_open_for_writing_is_closed_although_a_delayed_one_is_left() {
    let rig = Rig::new();
    for opened in [ShareAccess::Write, ShareAccess::Both] {
        rig.opened(3, 1, opened);
        assert!(rig.table.share(&rig.key(), opened));
        assert!(rig.table.use_unopened(&rig.key(), &rig.credential, ShareAccess::Read));
        let covers = opened == ShareAccess::Both;
        assert_eq!(matches!(rig.usable(), UsableOpen::Stateid(_)), covers);
        assert!(rig.table.release(&rig.key(), opened, rig.now));
        assert_eq!(rig.piggybacked(Duration::ZERO), [(PiggybackedKind::Close, 1)], "others may see it");
        assert!(matches!(rig.usable(), UsableOpen::Delayed(_)));
        assert!(!rig.table.release(&rig.key(), ShareAccess::Read, rig.now));
    }
}

#[test]
fn a_request_that_writes_does_not_need_a_delayed_open() {
    let rig = Rig::new();
    let usable_to_write = || rig.table.usable(&rig.key(), ShareAccess::Write);
    assert!(rig.table.use_unopened(&rig.key(), &rig.credential, ShareAccess::Read));
    assert_eq!(usable_to_write(), UsableOpen::None, "nobody has opened it for that");
    rig.opened(3, 1, ShareAccess::Write);
    assert!(rig.table.share(&rig.key(), ShareAccess::Write));
    assert_eq!(usable_to_write(), UsableOpen::Stateid(Stateid { seqid: 0, other: [3; 12] }));
    assert!(matches!(rig.usable(), UsableOpen::Delayed(_)), "who reads does");
}

#[test]
fn a_delayed_open_outlasts_a_reopen_of_the_others() {
    let rig = Rig::new();
    rig.opened(3, 1, ShareAccess::Write);
    assert!(rig.table.share(&rig.key(), ShareAccess::Write));
    assert!(rig.table.use_unopened(&rig.key(), &rig.credential, ShareAccess::Read));
    rig.table.stateid_refused(&rig.key(), Stateid { seqid: 0, other: [3; 12] });
    assert_eq!(rig.table.to_reopen(&rig.key()).unwrap().accesses, [ShareAccess::Write]);
    assert!(rig.table.release(&rig.key(), ShareAccess::Write, rig.now));
    assert_eq!(rig.usable(), UsableOpen::Reopen);
    assert!(rig.table.to_reopen(&rig.key()).unwrap().accesses.is_empty());
    rig.table.forget(&rig.key());
    assert!(matches!(rig.usable(), UsableOpen::Delayed(_)));
}

/// Accesses of an open that the server has lost, which are still to be opened again.
fn to_reopen(rig: &Rig) -> Option<Vec<ShareAccess>> {
    rig.table.to_reopen(&rig.key()).map(|open| open.accesses)
}

/// An open with a user for reading and one for writing.
fn opened_twice() -> Rig {
    let rig = Rig::new();
    for (seqid, access) in [(1, ShareAccess::Read), (2, ShareAccess::Write)] {
        rig.opened(3, seqid, access);
        assert!(rig.table.share(&rig.key(), access));
    }
    rig
}

// SEMANTICS: sessions-2.
#[test]
fn an_open_with_two_accesses_is_not_used_before_both_are_opened_again() {
    let rig = opened_twice();
    let stateid = Stateid { seqid: 0, other: [3; 12] };
    assert!(
        rig.table.stateid_refused(&rig.key(), stateid) && !rig.table.stateid_refused(&rig.key(), stateid),
        "once"
    );
    assert_eq!(to_reopen(&rig), Some(vec![ShareAccess::Read, ShareAccess::Write]));
    rig.opened(5, 1, ShareAccess::Read);
    assert_eq!(rig.usable(), UsableOpen::Reopen, "a WRITE would be refused");
    assert_eq!(to_reopen(&rig), Some(vec![ShareAccess::Write]));
    rig.opened(5, 2, ShareAccess::Write);
    let stateid = Stateid { seqid: 0, other: [5; 12] };
    assert_eq!(rig.usable(), UsableOpen::Stateid(stateid));
    assert_eq!(to_reopen(&rig), None, "another thread has nothing to do");
}

// SEMANTICS: sessions-2.
#[test]
fn what_was_not_reclaimed_of_an_open_is_opened_again() {
    let rig = opened_twice();
    rig.forgotten_by_server();
    let accesses = || rig.table.next_to_reclaim(16).pop().map(|open| open.accesses);
    assert_eq!(accesses(), Some(vec![ShareAccess::Read, ShareAccess::Write]));
    rig.opened(5, 1, ShareAccess::Read);
    // The thread was interrupted: the next one continues.
    assert_eq!(accesses(), Some(vec![ShareAccess::Write]));
    rig.table.not_reclaimed(&rig.key());
    assert_eq!((accesses(), to_reopen(&rig)), (None, Some(vec![ShareAccess::Write])));
    // Nobody writes any more: what there is suffices, and is closed.
    rig.table.release(&rig.key(), ShareAccess::Write, rig.now);
    assert!(matches!(rig.usable(), UsableOpen::Stateid(_)));
    assert!(rig.table.release(&rig.key(), ShareAccess::Read, rig.now));
    assert_eq!(rig.piggybacked(Duration::from_secs(1)), [(PiggybackedKind::Close, 1)]);
}

// SEMANTICS: sessions-2.
#[test]
fn another_stateid_than_before_means_that_the_other_accesses_are_lost() {
    let rig = opened_twice();
    rig.opened(9, 1, ShareAccess::Read);
    assert_eq!(rig.usable(), UsableOpen::Reopen);
    assert_eq!(to_reopen(&rig), Some(vec![ShareAccess::Write]));
    rig.opened(9, 2, ShareAccess::Write);
    assert!(matches!(rig.usable(), UsableOpen::Stateid(_)));
    // A server that refuses a WRITE for the open's mode does not know the OPEN for writing.
    assert!(rig.table.access_refused(&rig.key(), Stateid { seqid: 0, other: [9; 12] }));
    assert_eq!(to_reopen(&rig), Some(vec![ShareAccess::Read, ShareAccess::Write]));
    rig.table.lose(&rig.key());
    assert_eq!(rig.usable(), UsableOpen::Lost);
}

#[test]
fn a_downgrade_that_was_not_executed_is_sent_again() {
    let rig = Rig::new();
    let take = |after| rig.table.take_piggybacked(&rig.credential, rig.now + after, ClosedOpens::Due, 4);
    let kinds = |taken: &[PiggybackedOperation]| taken.iter().map(|it| it.kind).collect::<Vec<_>>();
    rig.opened(3, 1, ShareAccess::Read);
    rig.opened(3, 2, ShareAccess::Both);
    for access in [ShareAccess::Read, ShareAccess::Both] {
        assert!(rig.table.share(&rig.key(), access));
    }
    rig.table.release(&rig.key(), ShareAccess::Both, rig.now);
    let downgrade = [PiggybackedKind::Downgrade(ShareAccess::Read)];
    for _ in 0..3 {
        let taken = take(Duration::ZERO);
        assert_eq!(kinds(&taken), downgrade);
        assert!(rig.table.idle_credential(rig.now, ClosedOpens::All).is_none());
        rig.table.put_back(taken);
        assert!(rig.table.idle_credential(rig.now, ClosedOpens::All).is_some());
        assert!(!rig.table.share(&rig.key(), ShareAccess::Both), "it may have been executed");
    }
    // Opened as wide again: there is nothing to narrow.
    rig.opened(3, 3, ShareAccess::Both);
    assert!(rig.table.share(&rig.key(), ShareAccess::Both));
    assert_eq!(kinds(&take(Duration::ZERO)), []);
    rig.table.release(&rig.key(), ShareAccess::Both, rig.now);
    let taken = take(Duration::ZERO);
    assert_eq!(kinds(&taken), downgrade);
    // An OPEN was executed meanwhile. That of a server which has no newer one is not repeated.
    rig.opened(3, 4, ShareAccess::Read);
    rig.table.piggybacked_done(&taken[0], Err(NfsStat4::OldStateid), rig.now);
    let taken = take(Duration::ZERO);
    assert_eq!((kinds(&taken), taken[0].stateid.seqid), (downgrade.to_vec(), 4));
    rig.table.piggybacked_done(&taken[0], Err(NfsStat4::OldStateid), rig.now);
    assert_eq!(kinds(&take(Duration::ZERO)), []);
    rig.table.put_back(taken);
    rig.table.release(&rig.key(), ShareAccess::Read, rig.now);
    assert_eq!(kinds(&take(Duration::from_secs(1))), [PiggybackedKind::Close]);
}

#[test]
fn what_the_server_delays_keeps_nothing_else_from_being_closed_for_long() {
    let rig = Rig::new();
    let take = |after, most| {
        let taken = rig.table.take_piggybacked(&rig.credential, rig.now + after, ClosedOpens::All, most);
        taken.into_iter().map(|it| (it.key.file.clone(), it.kind, it)).collect::<Vec<_>>()
    };
    let due = |after| rig.table.idle_credential(rig.now + after, ClosedOpens::All).is_some();
    let (soon, pause) = (Duration::from_millis(50), Duration::from_millis(100));
    // A CLOSE.
    rig.opened(3, 1, ShareAccess::Read);
    let (_, kind, close) = take(Duration::ZERO, 1).remove(0);
    assert_eq!(kind, PiggybackedKind::Close);
    // An OPEN_DOWNGRADE.
    for access in [ShareAccess::Read, ShareAccess::Both] {
        rig.opened(4, 2, access);
        assert!(rig.table.share(&rig.key(), access));
    }
    rig.table.release(&rig.key(), ShareAccess::Both, rig.now);
    let (_, kind, downgrade) = take(Duration::ZERO, 1).remove(0);
    assert_eq!(kind, PiggybackedKind::Downgrade(ShareAccess::Read));
    let (other, owner) =
        (FileHandle::new(b"other").unwrap(), OpenOwner { number: 2, credential: &rig.credential });
    rig.opened_by(&other, owner, stateid(5), ShareAccess::Read);
    assert!(due(Duration::ZERO));
    for delayed in [&close, &downgrade] {
        rig.table.piggybacked_done(delayed, Err(NfsStat4::Delay), rig.now);
    }
    let before = soon - Duration::from_nanos(1);
    assert!(rig.table.has_postponed(rig.now) && !due(before) && take(before, 4).is_empty());
    assert!(due(soon));
    assert_eq!(take(soon, 4).iter().map(|(file, ..)| file.clone()).collect::<Vec<_>>(), [other]);
    assert!(!due(pause - Duration::from_nanos(1)) && due(pause));
    let kinds = [PiggybackedKind::Close, PiggybackedKind::Downgrade(ShareAccess::Read)];
    assert_eq!(kinds.map(|_| take(pause, 1).remove(0).1), kinds);
}

#[test]
fn a_close_does_not_wait_because_the_server_has_delayed_a_downgrade() {
    let rig = Rig::new();
    for access in [ShareAccess::Read, ShareAccess::Both] {
        rig.opened(4, 2, access);
        assert!(rig.table.share(&rig.key(), access));
    }
    rig.table.release(&rig.key(), ShareAccess::Both, rig.now);
    let take = || rig.table.take_piggybacked(&rig.credential, rig.now, ClosedOpens::All, 4);
    let taken = take();
    assert_eq!(taken[0].kind, PiggybackedKind::Downgrade(ShareAccess::Read));
    rig.table.piggybacked_done(&taken[0], Err(NfsStat4::Delay), rig.now);
    assert!(rig.table.release(&rig.key(), ShareAccess::Read, rig.now));
    assert!(rig.table.idle_credential(rig.now, ClosedOpens::All).is_some());
    let taken = take();
    assert_eq!(taken[0].kind, PiggybackedKind::Close);
    // The compound that it was taken for takes it from the queue.
    rig.table.put_back_first(taken);
    let taken = take();
    assert_eq!(taken.len(), 1);
    // One that is delayed itself waits.
    rig.table.piggybacked_done(&taken[0], Err(NfsStat4::Delay), rig.now);
    assert!(take().is_empty() && rig.table.has_postponed(rig.now));
}

/// Opens and closes files with these numbers.
fn open_and_close(rig: &Rig, numbers: std::ops::Range<u32>) {
    for number in numbers {
        let file = FileHandle::new(&number.to_be_bytes()).unwrap();
        let owner = OpenOwner { number: 1, credential: &rig.credential };
        let mut other = [1; 12];
        other[..4].copy_from_slice(&number.to_be_bytes());
        rig.opened_by(&file, owner, Stateid { seqid: 1, other }, ShareAccess::Read);
    }
}

#[test]
fn a_server_that_delays_each_close_makes_no_more_opens_wait_than_the_bound() {
    let rig = Rig::new();
    let mut now = rig.now;
    let mut refuse = |count| {
        for _ in 0..count {
            now += Duration::from_secs(1);
            let mut taken = rig.table.take_piggybacked(&rig.credential, now, ClosedOpens::All, 4);
            assert_eq!(taken.len(), 4);
            let others = taken.split_off(1);
            rig.table.put_back(others);
            rig.table.piggybacked_done(&taken[0], Err(NfsStat4::Delay), now);
        }
    };
    let most = u32::try_from(IDLE_MAX).unwrap();
    // A process with many files ends: they are closed, although one of them is delayed.
    open_and_close(&rig, 0..most + 100);
    assert_eq!(rig.table.unused_count(), IDLE_MAX + 100);
    refuse(15);
    open_and_close(&rig, most + 100..most + 200);
    assert_eq!(rig.table.unused_count(), IDLE_MAX + 200);
    // Each is delayed.
    refuse(1);
    open_and_close(&rig, most + 200..most + 201);
    let (idle, waiting) = (IDLE_MAX, 4 * 16);
    assert!((idle..=idle + waiting).contains(&rig.table.unused_count()), "{}", rig.table.unused_count());
    open_and_close(&rig, most + 201..most + 301);
    assert!(rig.table.unused_count() <= idle + waiting);
    // The newest are kept, and are closed when the server does that again.
    now += Duration::from_secs(1);
    let mut closed = Vec::new();
    loop {
        let taken = rig.table.take_piggybacked(&rig.credential, now, ClosedOpens::All, 16);
        if taken.is_empty() {
            break;
        }
        taken.iter().for_each(|it| rig.table.piggybacked_done(it, Ok(it.stateid), now));
        closed.extend(taken.iter().map(|it| it.key.file.clone()));
    }
    assert!(closed.len() >= IDLE_MAX && rig.table.unused_count() == 0);
    assert_eq!(closed.last(), Some(&FileHandle::new(&(most + 300).to_be_bytes()).unwrap()));
    open_and_close(&rig, 0..most + 100);
    assert_eq!(rig.table.unused_count(), IDLE_MAX + 100, "the server closes again");
}

#[test]
fn no_more_opens_wait_to_be_narrowed_than_the_bound() {
    let rig = Rig::new();
    let most = u32::try_from(IDLE_MAX).unwrap();
    let file = |number: u32| FileHandle::new(&number.to_be_bytes()).unwrap();
    let key = |number| OpenKey { file: file(number), owner: 1 };
    for number in 0..=most {
        let owner = OpenOwner { number: 1, credential: &rig.credential };
        let mut other = [1; 12];
        other[..4].copy_from_slice(&number.to_be_bytes());
        for (seqid, access) in [(1, ShareAccess::Read), (2, ShareAccess::Both)] {
            rig.opened_by(&file(number), owner, Stateid { seqid, other }, access);
            assert!(rig.table.share(&key(number), access));
        }
        // The last lock through it is unlocked.
        rig.table.begin_lock(&key(number), true);
        assert!(!rig.table.release(&key(number), ShareAccess::Both, rig.now));
        rig.table.note_locks(&key(number), false);
        let narrowed = rig.table.narrow_all(&file(number));
        let expected = if number < most { vec![key(number)] } else { Vec::new() };
        assert_eq!(narrowed, expected);
        assert_eq!(rig.table.narrow_all(&file(number)), [], "it waits already, or never does");
    }
    assert!(!rig.table.release(&key(most), ShareAccess::Read, rig.now), "a lock state is based on it");
    assert!(rig.table.unpin(&key(most), rig.now), "it is closed");
}

#[test]
fn an_idle_open_is_found_behind_one_that_was_delegated_since() {
    let rig = Rig::new();
    let held = HeldDelegation::new(&Arc::default());
    rig.opened(3, 1, ShareAccess::Read);
    rig.table.delegated(&rig.key(), &held);
    let credential = Arc::new(RpcSecurity::sys().credential(&Caller::new(7, 7, &[])));
    let (other, owner) =
        (FileHandle::new(b"other").unwrap(), OpenOwner { number: 2, credential: &credential });
    rig.opened_by(&other, owner, stateid(4), ShareAccess::Read);
    assert_eq!(rig.table.idle_credential(rig.now, ClosedOpens::All), Some(credential));
}

#[test]
fn replies_to_concurrent_opens_leave_the_newest_stateid() {
    let rig = Rig::new();
    rig.opened(3, 2, ShareAccess::Both);
    rig.opened(3, 1, ShareAccess::Read);
    assert_eq!(rig.piggybacked(Duration::from_secs(1)), [(PiggybackedKind::Close, 2)]);
}

#[test]
fn a_stateid_that_the_server_has_forgotten_is_doubted_once() {
    let rig = Rig::new();
    rig.opened(3, 1, ShareAccess::Read);
    assert!(rig.table.share(&rig.key(), ShareAccess::Read));
    rig.table.stateid_refused(&rig.key(), Stateid { seqid: 0, other: [9; 12] });
    assert!(matches!(rig.usable(), UsableOpen::Stateid(_)), "it was another one");
    rig.table.stateid_refused(&rig.key(), Stateid { seqid: 0, other: [3; 12] });
    assert_eq!(rig.usable(), UsableOpen::Reopen);
    rig.opened(4, 1, ShareAccess::Read);
    assert!(matches!(rig.usable(), UsableOpen::Stateid(_)));
    assert!(rig.table.stateid_refused(&rig.key(), stateid(4)));
    rig.table.lose(&rig.key());
    assert_eq!(rig.usable(), UsableOpen::Lost);
}

#[test]
fn what_the_server_has_forgotten_is_reclaimed_if_it_is_used() {
    let rig = Rig::new();
    rig.opened(3, 1, ShareAccess::Read);
    rig.forgotten_by_server();
    assert!(rig.table.next_to_reclaim(16).is_empty());
    rig.opened(3, 1, ShareAccess::Read);
    assert!(rig.table.share(&rig.key(), ShareAccess::Read));
    rig.forgotten_by_server();
    let open = rig.table.next_to_reclaim(16).pop().unwrap();
    assert_eq!(open.accesses, [ShareAccess::Read]);
    rig.opened(5, 1, ShareAccess::Read);
    assert!(rig.table.next_to_reclaim(16).is_empty());
}

// SEMANTICS: sessions-2.
#[test]
fn an_open_that_was_not_held_when_the_server_restarted_is_opened_again_and_not_reclaimed() {
    let rig = Rig::new();
    rig.opened(3, 1, ShareAccess::Read);
    rig.table.share(&rig.key(), ShareAccess::Read);
    assert!(rig.table.stateid_refused(&rig.key(), Stateid { seqid: 0, other: [3; 12] }));
    rig.forgotten_by_server();
    assert!(rig.table.next_to_reclaim(16).is_empty());
    assert_eq!(to_reopen(&rig), Some(vec![ShareAccess::Read]));
    rig.opened(4, 1, ShareAccess::Read);
    assert_eq!(to_reopen(&rig), None);
    // A second restart before the reclaim does not change what was held.
    rig.forgotten_by_server();
    rig.forgotten_by_server();
    assert_eq!(rig.table.next_to_reclaim(16).len(), 1);
}

#[test]
fn the_reply_to_an_open_of_before_a_restart_opens_nothing() {
    let rig = Rig::new();
    assert!(rig.opened(3, 1, ShareAccess::Read));
    let former = rig.generation.get();
    rig.forgotten_by_server();
    let current = rig.generation.replace(former);
    assert!(!rig.opened(4, 1, ShareAccess::Read), "the server does not know it");
    assert!(!rig.table.share(&rig.key(), ShareAccess::Read));
    rig.generation.set(current);
    assert!(rig.opened(5, 1, ShareAccess::Read));
    assert!(rig.table.share(&rig.key(), ShareAccess::Read));
}

#[test]
fn an_open_is_closed_after_its_last_lock_state() {
    let rig = Rig::new();
    rig.opened(3, 1, ShareAccess::Both);
    assert!(rig.table.share(&rig.key(), ShareAccess::Both));
    rig.table.begin_lock(&rig.key(), true);
    assert!(!rig.table.release(&rig.key(), ShareAccess::Both, rig.now));
    assert_eq!(rig.piggybacked(Duration::from_secs(9)), []);
    assert!(!rig.table.has_users(&rig.key()));
    assert!(rig.table.unpin(&rig.key(), rig.now));
    assert_eq!(rig.piggybacked(Duration::from_secs(9)), [(PiggybackedKind::Close, 1)]);
}
