//! Replies (RFC 5531 section 9, `reply_body`).

use curt_xdr::{DecodeError, Decoder, Encode};

use super::{
    failure::VersionRange,
    header::{MESSAGE_REPLY, RPC_VERSION},
};
use crate::{
    security::auth::{AuthStatus, FLAVOR_NONE, OpaqueVerifier},
    security::flavor::{AuthFlavor, AuthNone},
};

/// The size of the header that [`encode_accepted_header`] appends, in bytes.
pub const REPLY_HEADER_SIZE: usize = 24;

const REPLY_ACCEPTED: u32 = 0;
const REPLY_DENIED: u32 = 1;

const ACCEPT_SUCCESS: u32 = 0;
const ACCEPT_PROGRAM_UNAVAILABLE: u32 = 1;
const ACCEPT_PROGRAM_MISMATCH: u32 = 2;
const ACCEPT_PROCEDURE_UNAVAILABLE: u32 = 3;
const ACCEPT_GARBAGE_ARGUMENTS: u32 = 4;
const ACCEPT_SYSTEM_ERROR: u32 = 5;

const DENIED_RPC_MISMATCH: u32 = 0;
const DENIED_AUTH_ERROR: u32 = 1;

/// The status of an accepted call (RFC 5531 section 9, `accept_stat`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AcceptStatus {
    /// The call was executed; results follow.
    Success,
    /// The program is not served here.
    ProgramUnavailable,
    /// The program is served in other versions.
    ProgramMismatch(VersionRange),
    /// The program has no such procedure.
    ProcedureUnavailable,
    /// The arguments could not be decoded.
    GarbageArguments,
    /// Another error, such as lack of memory.
    SystemError,
}

/// Why a call was denied (RFC 5531 section 9, `rejected_reply`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RejectedReply {
    /// The RPC version is not supported.
    RpcMismatch(VersionRange),
    /// The caller could not be authenticated.
    Authentication(AuthStatus),
}

/// A reply's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyHeader {
    /// The xid of the call.
    pub xid: u32,
    /// The status of the call.
    pub outcome: Result<AcceptStatus, RejectedReply>,
}

/// A reply's header, and the parts that its verifier covers.
pub(crate) struct SignedReply<'a> {
    pub(crate) header: ReplyHeader,
    /// The bytes before the verifier.
    pub(crate) signed: &'a [u8],
    /// `None` for a reply that denies the call.
    pub(crate) verifier: Option<OpaqueVerifier<'a>>,
    /// The bytes after the header.
    pub(crate) results: &'a [u8],
}

/// Decodes a reply's header; the results, if [`AcceptStatus::Success`], are the rest of the
/// decoder's bytes.
///
/// # Errors
/// Not a reply as defined by RFC 5531.
pub fn decode_reply_header(decoder: &mut Decoder<'_>) -> Result<ReplyHeader, DecodeError> {
    let reply = SignedReply::decode(decoder.remaining())?;
    *decoder = Decoder::new(reply.results);
    Ok(reply.header)
}

impl<'a> SignedReply<'a> {
    pub(crate) fn decode(record: &'a [u8]) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(record);
        let xid = decoder.u32()?;
        expect(decoder.u32()?, MESSAGE_REPLY, "msg_type of a reply")?;
        let status = decoder.u32()?;
        let signed = &record[..record.len() - decoder.remaining().len()];
        let (verifier, outcome) = match status {
            REPLY_ACCEPTED => {
                let verifier = OpaqueVerifier::decode(&mut decoder)?;
                (Some(verifier), Ok(decode_accepted(&mut decoder)?))
            }
            REPLY_DENIED => (None, Err(decode_denied(&mut decoder)?)),
            value => {
                return Err(DecodeError::BadValue { name: "reply_stat", value });
            }
        };
        Ok(Self { header: ReplyHeader { xid, outcome }, signed, verifier, results: decoder.remaining() })
    }
}

fn decode_accepted(decoder: &mut Decoder<'_>) -> Result<AcceptStatus, DecodeError> {
    Ok(match decoder.u32()? {
        ACCEPT_SUCCESS => AcceptStatus::Success,
        ACCEPT_PROGRAM_UNAVAILABLE => AcceptStatus::ProgramUnavailable,
        ACCEPT_PROGRAM_MISMATCH => AcceptStatus::ProgramMismatch(decode_versions(decoder)?),
        ACCEPT_PROCEDURE_UNAVAILABLE => AcceptStatus::ProcedureUnavailable,
        ACCEPT_GARBAGE_ARGUMENTS => AcceptStatus::GarbageArguments,
        ACCEPT_SYSTEM_ERROR => AcceptStatus::SystemError,
        value => {
            return Err(DecodeError::BadValue { name: "accept_stat", value });
        }
    })
}

fn decode_denied(decoder: &mut Decoder<'_>) -> Result<RejectedReply, DecodeError> {
    match decoder.u32()? {
        DENIED_RPC_MISMATCH => decode_versions(decoder).map(RejectedReply::RpcMismatch),
        DENIED_AUTH_ERROR => decoder.get().map(RejectedReply::Authentication),
        value => Err(DecodeError::BadValue { name: "reject_stat", value }),
    }
}

fn decode_versions(decoder: &mut Decoder<'_>) -> Result<VersionRange, DecodeError> {
    Ok(VersionRange { low: decoder.u32()?, high: decoder.u32()? })
}

const fn expect(value: u32, expected: u32, name: &'static str) -> Result<(), DecodeError> {
    if value == expected { Ok(()) } else { Err(DecodeError::BadValue { name, value }) }
}

/// Appends the header of a successful reply; the results follow.
pub fn encode_accepted_header(out: &mut Vec<u8>, xid: u32) {
    // What `encode_accepted` appends with AUTH_NONE, in one piece.
    let words = [xid, MESSAGE_REPLY, REPLY_ACCEPTED, FLAVOR_NONE, 0, ACCEPT_SUCCESS];
    out.extend_from_slice(words.map(u32::to_be_bytes).as_flattened());
}

/// Appends the whole reply to a call that was accepted and not executed, or that succeeded without
/// results.
pub fn encode_failure(out: &mut Vec<u8>, xid: u32, status: AcceptStatus) {
    encode_accepted(out, xid, status, &AuthNone);
}

/// The header of the reply to a call with a flavor. Results follow it if the call succeeded.
pub(crate) fn encode_accepted(out: &mut Vec<u8>, xid: u32, status: AcceptStatus, flavor: &dyn AuthFlavor) {
    let from = out.len();
    for word in [xid, MESSAGE_REPLY, REPLY_ACCEPTED] {
        word.encode(out);
    }
    flavor.sign(out, from);
    match status {
        AcceptStatus::Success => ACCEPT_SUCCESS.encode(out),
        AcceptStatus::ProgramUnavailable => ACCEPT_PROGRAM_UNAVAILABLE.encode(out),
        AcceptStatus::ProgramMismatch(versions) => {
            ACCEPT_PROGRAM_MISMATCH.encode(out);
            encode_versions(out, versions);
        }
        AcceptStatus::ProcedureUnavailable => ACCEPT_PROCEDURE_UNAVAILABLE.encode(out),
        AcceptStatus::GarbageArguments => ACCEPT_GARBAGE_ARGUMENTS.encode(out),
        AcceptStatus::SystemError => ACCEPT_SYSTEM_ERROR.encode(out),
    }
}

/// Appends the whole reply to a denied call.
pub fn encode_denied(out: &mut Vec<u8>, xid: u32, denial: RejectedReply) {
    for word in [xid, MESSAGE_REPLY, REPLY_DENIED] {
        word.encode(out);
    }
    match denial {
        RejectedReply::RpcMismatch(versions) => {
            DENIED_RPC_MISMATCH.encode(out);
            encode_versions(out, versions);
        }
        RejectedReply::Authentication(status) => {
            DENIED_AUTH_ERROR.encode(out);
            status.encode(out);
        }
    }
}

fn encode_versions(out: &mut Vec<u8>, versions: VersionRange) {
    versions.low.encode(out);
    versions.high.encode(out);
}

/// The reply to calls of another RPC version.
pub(crate) const RPC_MISMATCH: RejectedReply =
    RejectedReply::RpcMismatch(VersionRange { low: RPC_VERSION, high: RPC_VERSION });
