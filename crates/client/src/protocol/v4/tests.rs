//! The opens and the callbacks, without a server.

#![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use curt_proto::nfs4::{
    CallbackHeader, CbRecallArgs4, CbSequenceArgs4, ChangeInfo, NfsFh4, NfsStat4, OpenDelegation, OpenOk4,
    OpenResultFlags, SequenceId, SessionId, SlotId, Stateid,
};
use curt_rpc::{
    auth::{OpaqueAuth, RpcCredential},
    message::CallMessage,
    server::{CallContext, RpcService},
};
use curt_types::FileHandle;
use curt_xdr::{Encode, VarArray};

use super::{
    callback::{self, CallbackService},
    open::{OpenKey, OpenResult, OpenTable, RiderOperation, UsableOpen},
};
use crate::protocol::{OpenOwner, ShareAccess};

struct Rig {
    table: OpenTable,
    credential: Arc<RpcCredential>,
    file: FileHandle,
    now: Instant,
}

impl Rig {
    fn new() -> Self {
        Self {
            table: OpenTable::default(),
            credential: Arc::new(RpcCredential::None),
            file: FileHandle::new(b"file").unwrap(),
            now: Instant::now(),
        }
    }

    fn key(&self) -> OpenKey {
        OpenKey { file: self.file.clone(), owner: 1 }
    }

    fn opened(&self, other: u8, seqid: u32, access: ShareAccess) {
        let ok = OpenOk4 {
            stateid: Stateid { seqid, other: [other; 12] },
            directory: ChangeInfo::default(),
            flags: OpenResultFlags(0),
            attributes_set: Default::default(),
            delegation: OpenDelegation::None,
        };
        let owner = OpenOwner { number: 1, credential: &self.credential };
        self.table.opened(&self.file, owner, access, OpenResult::from(&ok), self.now);
    }

    fn riders(&self, after: Duration) -> Vec<(RiderOperation, u32)> {
        let riders = self.table.take_riders(&self.credential, Some(self.now + after), 4);
        riders.iter().map(|rider| (rider.does, rider.stateid.seqid)).collect()
    }
}

#[test]
fn an_open_is_closed_after_its_last_user_and_used_again_before() {
    let rig = Rig::new();
    assert!(!rig.table.share(&rig.key(), ShareAccess::Read));
    rig.opened(3, 1, ShareAccess::Read);
    assert!(rig.table.share(&rig.key(), ShareAccess::Read));
    assert!(!rig.table.share(&rig.key(), ShareAccess::Write), "it is not for writing");
    assert_eq!(rig.riders(Duration::from_secs(9)), [], "it is used");
    assert!(rig.table.release(&rig.key(), ShareAccess::Read, rig.now));
    assert_eq!(rig.riders(Duration::ZERO), [], "it may be used again");
    assert!(rig.table.share(&rig.key(), ShareAccess::Read));
    rig.table.release(&rig.key(), ShareAccess::Read, rig.now);
    assert_eq!(rig.riders(Duration::from_secs(1)), [(RiderOperation::Close, 1)]);
    assert_eq!(rig.table.usable(&rig.key()), UsableOpen::None);
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
    let riders = rig.table.take_riders(&rig.credential, Some(rig.now), 4);
    assert_eq!(
        riders.iter().map(|rider| rider.does).collect::<Vec<_>>(),
        [RiderOperation::Downgrade(ShareAccess::Read)]
    );
    rig.table.rode(&riders[0], Ok(Stateid { seqid: 3, other: [3; 12] }));
    assert!(!rig.table.share(&rig.key(), ShareAccess::Both), "another OPEN is needed");
    rig.table.release(&rig.key(), ShareAccess::Read, rig.now);
    assert_eq!(rig.riders(Duration::from_secs(1)), [(RiderOperation::Close, 3)]);
}

#[test]
fn the_server_learns_of_a_delayed_open_when_it_is_used() {
    let rig = Rig::new();
    assert!(rig.table.delay(&rig.key(), &rig.credential));
    assert_eq!(rig.table.usable(&rig.key()), UsableOpen::Delayed(Arc::clone(&rig.credential)));
    assert!(rig.table.held().is_empty(), "the server has nothing to test");
    rig.table.forgotten_by_server();
    assert!(rig.table.next_to_reclaim().is_none(), "nor to reclaim");
    assert!(matches!(rig.table.usable(&rig.key()), UsableOpen::Delayed(_)), "it is still used");
    assert!(!rig.table.release(&rig.key(), ShareAccess::Read, rig.now), "nothing is closed");
    assert_eq!(rig.riders(Duration::from_secs(9)), []);
    assert_eq!(rig.table.usable(&rig.key()), UsableOpen::None);
    assert!(rig.table.delay(&rig.key(), &rig.credential));
    rig.opened(3, 1, ShareAccess::Read);
    assert!(matches!(rig.table.usable(&rig.key()), UsableOpen::Stateid(_)));
    assert!(rig.table.release(&rig.key(), ShareAccess::Read, rig.now));
    assert_eq!(rig.riders(Duration::from_secs(1)), [(RiderOperation::Close, 1)]);
}

#[test]
fn an_open_for_writing_is_closed_although_a_delayed_one_is_left() {
    let rig = Rig::new();
    for opened in [ShareAccess::Write, ShareAccess::Both] {
        rig.opened(3, 1, opened);
        assert!(rig.table.share(&rig.key(), opened));
        assert!(rig.table.delay(&rig.key(), &rig.credential));
        let covers = opened == ShareAccess::Both;
        assert_eq!(matches!(rig.table.usable(&rig.key()), UsableOpen::Stateid(_)), covers);
        assert!(rig.table.release(&rig.key(), opened, rig.now));
        assert_eq!(rig.riders(Duration::ZERO), [(RiderOperation::Close, 1)], "others may see it");
        assert!(matches!(rig.table.usable(&rig.key()), UsableOpen::Delayed(_)));
        assert!(!rig.table.release(&rig.key(), ShareAccess::Read, rig.now));
    }
}

#[test]
fn a_delayed_open_outlasts_a_reopen_of_the_others() {
    let rig = Rig::new();
    rig.opened(3, 1, ShareAccess::Write);
    assert!(rig.table.share(&rig.key(), ShareAccess::Write));
    assert!(rig.table.delay(&rig.key(), &rig.credential));
    rig.table.doubt(&rig.key(), Stateid { seqid: 0, other: [3; 12] });
    assert_eq!(rig.table.to_reopen(&rig.key()).unwrap().accesses, [ShareAccess::Write]);
    assert!(rig.table.release(&rig.key(), ShareAccess::Write, rig.now));
    assert_eq!(rig.table.usable(&rig.key()), UsableOpen::Reopen);
    assert!(rig.table.to_reopen(&rig.key()).unwrap().accesses.is_empty());
    rig.table.forget(&rig.key());
    assert!(matches!(rig.table.usable(&rig.key()), UsableOpen::Delayed(_)));
}

#[test]
fn replies_to_concurrent_opens_leave_the_newest_stateid() {
    let rig = Rig::new();
    rig.opened(3, 2, ShareAccess::Both);
    rig.opened(3, 1, ShareAccess::Read);
    assert_eq!(rig.riders(Duration::ZERO), [(RiderOperation::Close, 2)], "written opens are closed at once");
}

#[test]
fn a_stateid_that_the_server_has_forgotten_is_doubted_once() {
    let rig = Rig::new();
    rig.opened(3, 1, ShareAccess::Read);
    assert!(rig.table.share(&rig.key(), ShareAccess::Read));
    rig.table.doubt(&rig.key(), Stateid { seqid: 0, other: [9; 12] });
    assert!(matches!(rig.table.usable(&rig.key()), UsableOpen::Stateid(_)), "it was another one");
    rig.table.doubt(&rig.key(), Stateid { seqid: 0, other: [3; 12] });
    assert_eq!(rig.table.usable(&rig.key()), UsableOpen::Reopen);
    rig.opened(4, 1, ShareAccess::Read);
    assert!(matches!(rig.table.usable(&rig.key()), UsableOpen::Stateid(_)));
    rig.table.lose(&rig.key());
    assert_eq!(rig.table.usable(&rig.key()), UsableOpen::Lost);
}

#[test]
fn what_the_server_has_forgotten_is_reclaimed_if_it_is_used() {
    let rig = Rig::new();
    rig.opened(3, 1, ShareAccess::Read);
    rig.table.forgotten_by_server();
    assert!(rig.table.next_to_reclaim().is_none());
    rig.opened(3, 1, ShareAccess::Read);
    assert!(rig.table.share(&rig.key(), ShareAccess::Read));
    rig.table.forgotten_by_server();
    let open = rig.table.next_to_reclaim().unwrap();
    assert_eq!(open.accesses, [ShareAccess::Read]);
    rig.opened(5, 1, ShareAccess::Read);
    assert!(rig.table.next_to_reclaim().is_none());
}

const SESSION: SessionId = SessionId([7; 16]);

/// The words of the reply to a callback compound of CB_SEQUENCE and another operation.
fn call(service: &CallbackService, session: SessionId, sequence: u32, then: u32) -> Vec<u32> {
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
    let recall =
        CbRecallArgs4 { stateid: Stateid::ANONYMOUS, truncate: false, object: NfsFh4::new(b"file").unwrap() };
    recall.encode(&mut arguments);
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
    assert_eq!(call(&service, SESSION, 1, 4)[0], NfsStat4::MinorVersMismatch.number(), "there is no session");
    service.serve(SESSION, 1);
    let reply = call(&service, SESSION, 1, 4);
    assert_eq!((reply[0], reply[2]), (NfsStat4::BadStateid.number(), 2));
    assert_eq!(call(&service, SESSION, 1, 4), reply);
    assert_eq!(call(&service, SESSION, 3, 4)[0], NfsStat4::SeqMisordered.number());
    assert_eq!(call(&service, SESSION, 2, 99)[0], NfsStat4::OpIllegal.number());
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
