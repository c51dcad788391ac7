//! Calls of the server.

#![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

use std::time::Instant;

use curt_policy::delegation::DelegationReply;
use curt_proto::nfs4::{Bitmap4, NfsFh4, Stateid};
use curt_rpc::auth::{OpaqueAuth, RpcCredential};
use curt_types::FileHandle;
use curt_xdr::VarArray;

use super::*;
use crate::protocol::v4::{
    delegation_table::OpenedForDelegation, open_codec::OfferedDelegation, open_key::OpenKey,
    session::SessionGeneration,
};

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
        program: PROGRAM,
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
fn delegate(delegations: &DelegationTable, file: &FileHandle, stateid: Stateid) -> bool {
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
