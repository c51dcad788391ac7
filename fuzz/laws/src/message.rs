//! Headers of calls and replies: a decoded header is the same after encoding and decoding it again.

use curt_rpc::auth::{AuthSysCredential, AuthSysGids, MachineName, OpaqueAuth, RpcCredential};
use curt_rpc::message::{
    AcceptStatus, CallMessage, ReplyHeader, decode_reply_header, encode_accepted_header, encode_call_header,
    encode_denied, encode_failure,
};
use curt_xdr::{Decoder, put_fixed};

/// The bytes are decoded as a call, and as a reply.
///
/// # Panics
/// If a message changes by encoding and decoding it.
pub fn message(bytes: &[u8]) {
    if let Ok(call) = CallMessage::decode(bytes) {
        call_survives(&call);
    }
    let mut decoder = Decoder::new(bytes);
    if let Ok(header) = decode_reply_header(&mut decoder) {
        reply_survives(&header);
    }
}

fn call_survives(call: &CallMessage<'_>) {
    let credential = match call.credential {
        OpaqueAuth::None => RpcCredential::None,
        OpaqueAuth::Sys(sys) => RpcCredential::Sys(AuthSysCredential {
            machine_name: MachineName::new(sys.machine_name),
            uid: sys.uid,
            gid: sys.gid,
            groups: AuthSysGids::first_of(&sys.groups),
        }),
        // Curt never sends another flavor.
        OpaqueAuth::Other { .. } => return,
    };
    let mut bytes = Vec::new();
    encode_call_header(&mut bytes, call.xid, call.program, call.version, call.procedure, &credential);
    put_fixed(&mut bytes, call.arguments);
    let again = CallMessage::decode(&bytes).expect("our own call is understood");
    let mut expected = *call;
    if let OpaqueAuth::Sys(sys) = &mut expected.credential {
        // Arbitrary; Curt sends 0.
        sys.stamp = 0;
    }
    let padded = again.arguments.len().next_multiple_of(4) == again.arguments.len();
    assert!(padded && again.arguments.starts_with(call.arguments));
    expected.arguments = again.arguments;
    assert_eq!(again, expected);
}

fn reply_survives(header: &ReplyHeader) {
    let mut bytes = Vec::new();
    match header.outcome {
        Ok(AcceptStatus::Success) => encode_accepted_header(&mut bytes, header.xid),
        Ok(status) => encode_failure(&mut bytes, header.xid, status),
        Err(denial) => encode_denied(&mut bytes, header.xid, denial),
    }
    let again = decode_reply_header(&mut Decoder::new(&bytes)).expect("our own reply is understood");
    assert_eq!(&again, header);
}
