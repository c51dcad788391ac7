//! Calls (RFC 5531 section 9, `call_body`).

use curt_xdr::{DecodeError, Decoder, Encode};

use super::header::{MESSAGE_CALL, RPC_VERSION};
use crate::record;
use crate::security::{
    auth::{AUTH_BODY_MAX, AuthError, AuthStatus, OpaqueAuth, OpaqueVerifier},
    credential::{CallFlavor, RpcCredential},
    flavor::AuthFlavor,
};

/// The longest header of a call in bytes: six words, and credential and verifier with bodies of the
/// maximum size.
pub const CALL_HEADER_MAX: usize = 6 * 4 + 2 * (8 + AUTH_BODY_MAX);

/// The procedure that a call names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcedureId {
    /// The program.
    pub program: u32,
    /// The version of the program.
    pub version: u32,
    /// The procedure of the program.
    pub procedure: u32,
}

/// A call with a well-formed header, borrowed from its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallMessage<'a> {
    /// The transaction id, chosen by the client.
    pub xid: u32,
    /// The program.
    pub program: u32,
    /// The version of the program.
    pub version: u32,
    /// The procedure of the program.
    pub procedure: u32,
    /// The credential, unverified.
    pub credential: OpaqueAuth<'a>,
    /// The procedure's arguments, undecoded.
    pub arguments: &'a [u8],
}

/// Why a record cannot be dispatched as a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallDecodeError {
    /// Not a call, or truncated inside the header: no reply is possible.
    #[error("not an RPC call: {0}")]
    NotACall(DecodeError),
    /// A call of another version of RPC: it is denied.
    #[error("call of RPC version {version}")]
    RpcVersion {
        /// The call's xid.
        xid: u32,
        /// The version in the call.
        version: u32,
    },
    /// A call with a malformed credential or verifier: it is denied.
    #[error("call with a broken credential or verifier: {status:?}")]
    Authentication {
        /// The call's xid.
        xid: u32,
        /// The status for the client.
        status: AuthStatus,
    },
}

impl<'a> CallMessage<'a> {
    /// Decodes a complete record.
    ///
    /// # Errors
    /// [`CallDecodeError`], which determines the reply, if any.
    pub fn decode(record: &'a [u8]) -> Result<Self, CallDecodeError> {
        SignedCall::decode(record).map(|signed| signed.call)
    }
}

/// A call, and the parts that its verifier covers.
pub(crate) struct SignedCall<'a> {
    pub(crate) call: CallMessage<'a>,
    /// The header up to and including the credential.
    pub(crate) signed: &'a [u8],
    pub(crate) verifier: OpaqueVerifier<'a>,
}

impl<'a> SignedCall<'a> {
    pub(crate) fn decode(record: &'a [u8]) -> Result<Self, CallDecodeError> {
        let mut decoder = Decoder::new(record);
        let [xid, kind, rpc_version] = decoder.words().map_err(CallDecodeError::NotACall)?;
        if kind != MESSAGE_CALL {
            return Err(CallDecodeError::NotACall(DecodeError::BadValue {
                name: "msg_type of a call",
                value: kind,
            }));
        }
        if rpc_version != RPC_VERSION {
            return Err(CallDecodeError::RpcVersion { xid, version: rpc_version });
        }
        let [program, version, procedure] = decoder.words().map_err(CallDecodeError::NotACall)?;
        let refuse = |status| CallDecodeError::Authentication { xid, status };
        let credential = OpaqueAuth::decode(&mut decoder).map_err(|defect| match defect {
            AuthError::Framing(_) | AuthError::Body(_) => refuse(AuthStatus::BadCredential),
        })?;
        let signed = &record[..record.len() - decoder.remaining().len()];
        let verifier = OpaqueVerifier::decode(&mut decoder).map_err(|_| refuse(AuthStatus::BadVerifier))?;
        let call =
            CallMessage { xid, program, version, procedure, credential, arguments: decoder.remaining() };
        Ok(Self { call, signed, verifier })
    }
}

/// Appends the header of a call; the arguments follow.
pub fn encode_call_header(
    out: &mut Vec<u8>,
    xid: u32,
    program: u32,
    version: u32,
    procedure: u32,
    credential: &RpcCredential,
) {
    let flavor = CallFlavor::of(credential);
    encode_signed_header(out, [xid, program, version, procedure], flavor.get());
}

/// The record of a whole call.
#[must_use]
pub fn call_record(
    xid: u32,
    program: u32,
    version: u32,
    procedure: u32,
    credential: &RpcCredential,
    arguments: &dyn Encode,
) -> Vec<u8> {
    let mut out = Vec::new();
    let body = record::begin_record(&mut out);
    encode_call_header(&mut out, xid, program, version, procedure, credential);
    arguments.encode(&mut out);
    record::finish_record(&mut out, body, 0);
    out
}

/// Appends the header of the call `[xid, program, version, procedure]`.
pub(crate) fn encode_signed_header(out: &mut Vec<u8>, numbers: [u32; 4], flavor: &dyn AuthFlavor) {
    let [xid, program, version, procedure] = numbers;
    let from = out.len();
    for word in [xid, MESSAGE_CALL, RPC_VERSION, program, version, procedure] {
        word.encode(out);
    }
    flavor.encode_credential(out);
    flavor.sign(out, from);
}
