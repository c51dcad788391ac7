//! The opens and the callbacks, without a server.

#![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

use std::{
    cell::Cell,
    sync::Arc,
    time::{Duration, Instant},
};

use curt_policy::{delegation::DelegationReply, locks::LockRanges, open::KEPT_FOR};
use curt_proto::nfs4::{
    Bitmap4, CallbackHeader, CbRecallAnyArgs4, CbRecallArgs4, CbSequenceArgs4, ChangeInfo, NfsFh4, NfsStat4,
    OpenDelegation, OpenOk4, OpenResultFlags, SequenceId, SessionId, SlotId, Stateid,
};
use curt_rpc::{
    auth::{OpaqueAuth, RpcCredential},
    message::CallMessage,
    server::{CallContext, RpcService},
};
use curt_types::{ByteRange, FileHandle, LockType};
use curt_xdr::{Encode, VarArray};

use super::{
    callback::{self, CallbackService},
    delegation::{HeldDelegations, OpenedForDelegation},
    lock_states::{self, LockOfIo, LockStateRef, LockStateTable, LockUse, UnlockTarget, Weakening},
    open::{GrantedOpen, IDLE_MAX, OfferedDelegation, OpenKey, OpenTable, SentOpen, UsableOpen},
    piggybacked::{ClosedOpens, PiggybackedKind, PiggybackedOperation},
    session::{Execution, SessionGeneration},
};
use crate::caller::{Caller, RpcSecurity};
use crate::protocol::{
    HeldDelegation, LockCallbackId, LockEvents, OpenContext, OpenOwner, ShareAccess, WireLock, WireOwner,
};
use parking_lot::Mutex;

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
        taken.into_iter().map(|it| (it.file.clone(), it.kind, it)).collect::<Vec<_>>()
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
        closed.extend(taken.iter().map(|it| it.file.clone()));
    }
    assert!(closed.len() >= IDLE_MAX && rig.table.unused_count() == 0);
    assert_eq!(closed.last(), Some(&FileHandle::new(&(most + 300).to_be_bytes()).unwrap()));
    open_and_close(&rig, 0..most + 100);
    assert_eq!(rig.table.unused_count(), IDLE_MAX + 100, "the server closes again");
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

const SESSION: SessionId = SessionId([7; 16]);

/// The words of the reply to a callback compound of CB_SEQUENCE and another operation.
fn call(service: &CallbackService, session: SessionId, sequence: u32, then: u32) -> Vec<u32> {
    let recall =
        CbRecallArgs4 { stateid: Stateid::ANONYMOUS, truncate: false, object: NfsFh4::new(b"file").unwrap() };
    call_with(service, session, sequence, then, &recall)
}

fn call_with(
    service: &CallbackService,
    session: SessionId,
    sequence: u32,
    then: u32,
    operation: &dyn Encode,
) -> Vec<u32> {
    let mut arguments = Vec::new();
    CallbackHeader { minor_version: 1, operations: 2, ..CallbackHeader::default() }.encode(&mut arguments);
    11_u32.encode(&mut arguments);
    let asked = CbSequenceArgs4 {
        session,
        sequence: SequenceId(sequence),
        slot: SlotId(0),
        highest_slot: SlotId(0),
        cache_this: false,
        referring: VarArray::default(),
    };
    asked.encode(&mut arguments);
    then.encode(&mut arguments);
    operation.encode(&mut arguments);
    let message = CallMessage {
        xid: 1,
        program: callback::PROGRAM,
        version: 1,
        procedure: 1,
        credential: OpaqueAuth::None,
        arguments: &arguments,
    };
    let here = "127.0.0.1:1".parse().unwrap();
    let mut reply = Vec::new();
    service.call(&message, &mut CallContext::detached(here, here), &mut reply).unwrap();
    reply.chunks(4).map(|word| u32::from_be_bytes(word.try_into().unwrap())).collect()
}

#[test]
fn a_recall_of_what_is_not_held_is_refused_and_its_repetition_gets_the_same_reply() {
    let service = CallbackService::default();
    assert_eq!(call(&service, SESSION, 1, 4)[0], NfsStat4::Badsession.number(), "there is no session");
    service.serve(SESSION, 1);
    let reply = call(&service, SESSION, 1, 4);
    assert_eq!((reply[0], reply[2]), (NfsStat4::BadStateid.number(), 2));
    assert_eq!(call(&service, SESSION, 1, 4), reply);
    assert_eq!(call(&service, SESSION, 3, 4)[0], NfsStat4::SeqMisordered.number());
    assert_eq!(call(&service, SESSION, 2, 99)[0], NfsStat4::OpIllegal.number());
}

#[test]
fn a_recall_that_is_repeated_while_it_is_executed_is_delayed() {
    let service = Arc::new(CallbackService::default());
    service.serve(SESSION, 1);
    let delegations = service.delegations();
    delegations.allow(true);
    let meanwhile = Arc::new(Mutex::new(Vec::new()));
    let (replies, again) = (Arc::clone(&meanwhile), Arc::clone(&service));
    // Another connection brings it.
    delegations.set_must_return(Box::new(move || replies.lock().push(call(&again, SESSION, 1, 4))));
    let file = FileHandle::new(b"file").unwrap();
    assert!(delegate(&delegations, &file, Stateid::ANONYMOUS));
    let reply = call(&service, SESSION, 1, 4);
    assert_eq!(reply[0], NfsStat4::Ok.number());
    let delayed = [NfsStat4::Delay.number(), 0, 1, 11, NfsStat4::Delay.number()];
    assert_eq!(*meanwhile.lock(), [delayed.to_vec()]);
    assert_eq!(call(&service, SESSION, 1, 4), reply);
}

#[test]
fn a_callback_whose_arguments_are_malformed_gets_the_same_reply_again() {
    let service = CallbackService::default();
    service.serve(SESSION, 1);
    for _ in 0..2 {
        let reply = call_with(&service, SESSION, 1, 4, &1_u32);
        assert_eq!((reply[0], reply[2]), (NfsStat4::Badxdr.number(), 2));
    }
    assert_eq!(call(&service, SESSION, 2, 4)[0], NfsStat4::BadStateid.number());
}

#[test]
fn the_reply_to_a_callback_of_an_earlier_session_is_not_kept() {
    let service = Arc::new(CallbackService::default());
    service.serve(SESSION, 1);
    let (other, again) = (SessionId([9; 16]), Arc::clone(&service));
    service.set_slots_recalled(Box::new(move || again.serve(other, 1)));
    assert_eq!(call(&service, SESSION, 1, 10)[0], NfsStat4::Ok.number());
    assert_eq!(call(&service, other, 1, 4)[0], NfsStat4::BadStateid.number(), "it is the first");
}

#[test]
fn a_recall_of_undefined_types_is_refused() {
    let service = CallbackService::default();
    service.serve(SESSION, 1);
    let recall = |sequence, bits: &[u32]| {
        let types = bits.iter().copied().collect();
        call_with(&service, SESSION, sequence, 8, &CbRecallAnyArgs4 { objects_to_keep: 0, types })[0]
    };
    let defined = [0, 1, 2, 3, 4, 8, 9, 12, 13, 14, 15, 16, 17];
    assert_eq!(recall(1, &defined), NfsStat4::Ok.number());
    for (sequence, number) in (2..).zip((0..96).filter(|number| !defined.contains(number))) {
        assert_eq!(recall(sequence, &[0, number]), NfsStat4::Inval.number(), "type {number}");
    }
}

/// The client has opened the file and was offered this delegation. Returns whether it is kept.
fn delegate(delegations: &HeldDelegations, file: &FileHandle, stateid: Stateid) -> bool {
    let credential = Arc::new(RpcCredential::None);
    let open = OpenedForDelegation {
        key: &OpenKey { file: file.clone(), owner: 1 },
        credential: &credential,
        was_wanted: true,
        generation: SessionGeneration::default(),
        is_written_here: false,
        now: Instant::now(),
    };
    let offered = OfferedDelegation { stateid, is_read: true, is_recalled: false };
    delegations.opened(&open, Some(offered), DelegationReply::Granted).is_some()
}

#[test]
fn the_oldest_delegations_beyond_those_that_the_server_lets_be_kept_are_returned() {
    let service = CallbackService::default();
    service.serve(SESSION, 1);
    let delegations = service.delegations();
    delegations.allow(true);
    let said = Arc::new(Mutex::new(0));
    let count = Arc::clone(&said);
    delegations.set_must_return(Box::new(move || *count.lock() += 1));
    let credential = Arc::new(RpcCredential::None);
    let files = [b"a", b"b", b"c"].map(|name| FileHandle::new(name).unwrap());
    for (number, file) in (1..).zip(&files) {
        assert!(delegate(&delegations, file, Stateid { seqid: 1, other: [number; 12] }));
    }
    let keep = |sequence, objects_to_keep, of| {
        let types = Bitmap4::default().with(of);
        call_with(&service, SESSION, sequence, 8, &CbRecallAnyArgs4 { objects_to_keep, types })[0]
    };
    assert_eq!(keep(1, 0, CbRecallAnyArgs4::WRITE_DELEGATIONS), NfsStat4::Ok.number());
    assert_eq!(keep(2, 3, CbRecallAnyArgs4::READ_DELEGATIONS), NfsStat4::Ok.number());
    assert_eq!((delegations.held(), delegations.returns_count(), *said.lock()), (3, 0, 0));
    assert_eq!(keep(3, 1, CbRecallAnyArgs4::READ_DELEGATIONS), NfsStat4::Ok.number());
    assert_eq!((delegations.held(), delegations.returns_count(), *said.lock()), (1, 2, 1));
    let returned: Vec<_> = delegations
        .take_returns(&credential, Instant::now(), 9)
        .into_iter()
        .map(|returned| returned.key.file)
        .collect();
    assert_eq!(returned, files[..2]);
}

#[test]
fn slots_that_the_server_recalls_are_given_up_and_that_is_said() {
    let service = CallbackService::default();
    let said = Arc::new(Mutex::new(0));
    let count = Arc::clone(&said);
    service.set_slots_recalled(Box::new(move || *count.lock() += 1));
    service.serve(SESSION, 1);
    assert_eq!(call(&service, SESSION, 1, 10)[0], NfsStat4::Ok.number());
    assert_eq!(*said.lock(), 1);
}

#[test]
fn a_callback_of_a_forged_session_is_refused() {
    let service = CallbackService::default();
    service.serve(SESSION, 1);
    let reply = call(&service, SessionId([8; 16]), 1, 4);
    assert_eq!((reply[0], reply[2]), (NfsStat4::Badsession.number(), 1));
    service.serve(SessionId([9; 16]), 1);
    assert_eq!(call(&service, SESSION, 1, 4)[0], NfsStat4::Badsession.number(), "of an earlier one");
}

#[test]
fn a_callback_that_overtakes_the_reply_to_the_first_create_session_is_delayed_too() {
    let service = CallbackService::default();
    assert_eq!(call(&service, SESSION, 1, 4)[0], NfsStat4::Badsession.number());
    let creating = service.begin_creating();
    assert_eq!(call(&service, SESSION, 1, 4)[0], NfsStat4::Delay.number());
    service.serve(SESSION, 1);
    drop(creating);
    assert_eq!(call(&service, SESSION, 1, 4)[0], NfsStat4::BadStateid.number(), "it is repeated");
    service.serve(SESSION, 2);
    assert_eq!(call(&service, SESSION, 1, 4)[0], NfsStat4::MinorVersMismatch.number());
}

#[test]
fn a_callback_that_overtakes_the_reply_to_create_session_is_delayed() {
    let (service, new) = (CallbackService::default(), SessionId([9; 16]));
    service.serve(SESSION, 1);
    let creating = service.begin_creating();
    assert_eq!(call(&service, new, 1, 4)[0], NfsStat4::Delay.number());
    assert_eq!(call(&service, SESSION, 1, 4)[0], NfsStat4::BadStateid.number(), "that is known");
    service.serve(new, 1);
    drop(creating);
    assert_eq!(call(&service, new, 1, 4)[0], NfsStat4::BadStateid.number());
    assert_eq!(call(&service, SESSION, 2, 4)[0], NfsStat4::Badsession.number());
}

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
        lock_states::notified(&self.table, NfsFh4::from(file), name)
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
    let watched = rig.table.watch(&key, range(5, 15)).unwrap();
    let lost = rig.table.stateid_refused(&rig.file, stateid(1)).unwrap();
    assert_eq!(io(), locked, "the server refuses it");
    rig.table.loss_reported(&lost);
    assert!(io() == LockOfIo::None && watched.is_lost());
    assert!(rig.table.watch(&key, range(5, 15)).is_none());
    let (state, used) = rig.lock(1);
    assert!(rig.table.granted(&state, stateid(2), &wire(1, 0, 9)));
    drop(used);
    let watched = rig.table.watch(&key, range(5, 15)).unwrap();
    rig.table.forgotten_by_server();
    assert_eq!(io(), LockOfIo::Forgotten, "it waits for recovery");
    assert!(!watched.is_lost());
    let reclaim = rig.table.to_reclaim().remove(0);
    rig.table.reclaim_ended(&reclaim.state, &reclaim.ranges);
    assert!(io() == LockOfIo::None && watched.is_lost());
}

// SEMANTICS: sessions-10.
#[test]
fn a_size_is_set_although_the_lock_of_other_bytes_is_lost_meanwhile() {
    let rig = LockRig::new();
    let key = OpenKey { file: rig.file.clone(), owner: 1 };
    for (number, bytes) in [(1, (0, 9)), (2, (10, 19))] {
        let (state, _used) = rig.lock(number);
        let lock = wire(number, bytes.0, bytes.1);
        assert!(rig.table.granted(&state, stateid(u8::try_from(number).unwrap()), &lock));
    }
    let other = FileHandle::new(b"other").unwrap();
    let (state, _used, _) = rig.table.begin(&other, &rig.open, WireOwner(3), ByteRange::WHOLE);
    assert!(rig.table.granted(&state, stateid(3), &wire(3, 0, 9)));
    let watched = rig.table.watch(&key, range(0, 9)).unwrap();
    // Its own lock is unlocked, and those of others are lost.
    let UnlockTarget::State(held) = rig.table.unlockable(&rig.file, WireOwner(1), ByteRange::WHOLE) else {
        panic!("it is held")
    };
    assert!(rig.table.unlocked(&held, stateid(1), ByteRange::WHOLE));
    for (file, number) in [(&other, 3), (&rig.file, 2)] {
        let lost = rig.table.stateid_refused(file, stateid(number)).unwrap();
        rig.table.loss_reported(&lost);
    }
    assert!(rig.table.for_io(&key, range(0, 9)) == LockOfIo::None && !watched.is_lost());
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
