//! Calls and replies: round trips, each status, and malformed bytes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use curt_rpc::{
    auth::{AuthStatus, AuthSysCredential, AuthSysGids, GROUPS_MAX, MachineName, OpaqueAuth, RpcCredential},
    message::{
        AcceptStatus, CallDecodeError, CallMessage, RejectedReply, ReplyHeader, VersionRange,
        decode_reply_header, encode_accepted_header, encode_call_header, encode_denied, encode_failure,
    },
};
use curt_xdr::{DecodeError, Decoder, Encode};
use proptest::prelude::*;

fn call_bytes(credential: &RpcCredential) -> Vec<u8> {
    let mut out = Vec::new();
    encode_call_header(&mut out, 7, 100_003, 3, 1, credential);
    out.extend_from_slice(b"args");
    out
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

#[test]
fn a_call_without_credential_is_these_bytes() {
    let mut expected = words(&[7, 0, 2, 100_003, 3, 1, 0, 0, 0, 0]);
    expected.extend_from_slice(b"args");
    assert_eq!(call_bytes(&RpcCredential::None), expected);
}

proptest! {
    #[test]
    fn auth_sys_survives_a_round_trip(
        name in prop::collection::vec(any::<u8>(), 0..300), uid: u32, gid: u32,
        groups in prop::collection::vec(any::<u32>(), 0..20),
    ) {
        let credential = RpcCredential::Sys(AuthSysCredential {
            machine_name: MachineName::new(&name), uid, gid, groups: AuthSysGids::first_of(&groups),
        });
        let bytes = call_bytes(&credential);
        let call = CallMessage::decode(&bytes).unwrap();
        prop_assert_eq!((call.xid, call.program, call.version, call.procedure), (7, 100_003, 3, 1));
        prop_assert_eq!(call.arguments, b"args");
        let OpaqueAuth::Sys(sys) = call.credential else { panic!("AUTH_SYS was sent") };
        prop_assert_eq!(sys.machine_name, &name[..name.len().min(255)]);
        prop_assert_eq!((sys.uid, sys.gid), (uid, gid));
        prop_assert_eq!(&*sys.groups, &groups[..groups.len().min(GROUPS_MAX)]);
    }

    #[test]
    fn no_bytes_make_a_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let _ = CallMessage::decode(&bytes);
        let _ = decode_reply_header(&mut Decoder::new(&bytes));
    }

    #[test]
    fn a_mutated_call_never_panics(
        at in 0usize..200, value: u8, cut in 0usize..200, groups in prop::collection::vec(any::<u32>(), 0..16),
    ) {
        let mut bytes = call_bytes(&RpcCredential::Sys(AuthSysCredential {
            machine_name: MachineName::new(b"machine"), uid: 1, gid: 2, groups: AuthSysGids::first_of(&groups),
        }));
        let at = at % bytes.len();
        bytes[at] = value;
        let _ = CallMessage::decode(&bytes);
        bytes.truncate(cut);
        let _ = CallMessage::decode(&bytes);
    }
}

/// A call with `flavor` and `body` as its credential, with the length `length`.
fn with_credential(flavor: u32, length: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = words(&[7, 0, 2, 100_003, 3, 1, flavor, length]);
    bytes.extend_from_slice(body);
    bytes.extend_from_slice(&words(&[0, 0]));
    bytes
}

#[test]
fn broken_credentials_are_distinct_from_broken_messages() {
    let bad = Err(CallDecodeError::Authentication { xid: 7, status: AuthStatus::BadCredential });
    // 17 groups; a name of 256 bytes; a body that is too short, too long, or above 400 bytes.
    let mut groups = words(&[0, 0, 1, 2, 17]);
    groups.resize(groups.len() + 17 * 4, 0);
    let mut name = words(&[0, 256]);
    name.resize(8 + 256 + 12, 0);
    let trailing = words(&[0, 0, 1, 2, 0, 9]);
    for body in [groups, name, words(&[0, 0, 1]), trailing] {
        let bytes = with_credential(1, u32::try_from(body.len()).unwrap(), &body);
        assert_eq!(CallMessage::decode(&bytes), bad);
    }
    assert_eq!(CallMessage::decode(&with_credential(0, 401, &[0; 404])), bad);
    assert!(CallMessage::decode(&with_credential(0, 400, &[0; 400])).is_ok());
    let mut verifier = words(&[7, 0, 2, 100_003, 3, 1, 0, 0, 0, 401]);
    verifier.resize(500, 0);
    let defect = CallDecodeError::Authentication { xid: 7, status: AuthStatus::BadVerifier };
    assert_eq!(CallMessage::decode(&verifier), Err(defect));
    assert_eq!(
        CallMessage::decode(&words(&[7, 0, 3, 0])),
        Err(CallDecodeError::RpcVersion { xid: 7, version: 3 })
    );
    assert!(matches!(
        CallMessage::decode(&words(&[7, 1, 2])),
        Err(CallDecodeError::NotACall(DecodeError::BadValue { .. }))
    ));
    assert_eq!(
        CallMessage::decode(&words(&[7, 0, 2, 100_003])),
        Err(CallDecodeError::NotACall(DecodeError::Short))
    );
}

#[test]
fn flavours_that_are_not_ours_are_passed_on() {
    let bytes = with_credential(6, 8, &[3; 8]);
    assert_eq!(
        CallMessage::decode(&bytes).unwrap().credential,
        OpaqueAuth::Other { flavor: 6, body: &[3; 8] }
    );
}

#[test]
fn every_reply_survives_a_round_trip() {
    let versions = VersionRange { low: 2, high: 3 };
    let accepted = [
        AcceptStatus::Success,
        AcceptStatus::ProgramUnavailable,
        AcceptStatus::ProgramMismatch(versions),
        AcceptStatus::ProcedureUnavailable,
        AcceptStatus::GarbageArguments,
        AcceptStatus::SystemError,
    ];
    for status in accepted {
        let mut out = Vec::new();
        encode_failure(&mut out, 9, status);
        round_trip(&out, Ok(status));
    }
    let mut statuses = 0;
    for number in 0u32..20 {
        let mut bytes = Vec::new();
        number.encode(&mut bytes);
        let Ok(status) = Decoder::new(&bytes).get::<AuthStatus>() else {
            continue;
        };
        statuses += 1;
        let mut out = Vec::new();
        encode_denied(&mut out, 9, RejectedReply::Authentication(status));
        round_trip(&out, Err(RejectedReply::Authentication(status)));
    }
    assert_eq!(statuses, 15);
    let mut out = Vec::new();
    encode_denied(&mut out, 9, RejectedReply::RpcMismatch(versions));
    round_trip(&out, Err(RejectedReply::RpcMismatch(versions)));
}

fn round_trip(bytes: &[u8], outcome: Result<AcceptStatus, RejectedReply>) {
    let mut decoder = Decoder::new(bytes);
    assert_eq!(decode_reply_header(&mut decoder), Ok(ReplyHeader { xid: 9, outcome }));
    assert_eq!(decoder.finish(), Ok(()));
    for cut in 0..bytes.len() {
        assert_eq!(decode_reply_header(&mut Decoder::new(&bytes[..cut])), Err(DecodeError::Short));
    }
}

#[test]
fn a_successful_reply_is_these_bytes() {
    let mut out = Vec::new();
    encode_accepted_header(&mut out, 9);
    assert_eq!(out, words(&[9, 1, 0, 0, 0, 0]));
    assert_eq!(out.len(), curt_rpc::message::REPLY_HEADER_SIZE);
}
