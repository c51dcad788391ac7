//! Replies (RFC 5531 section 9, `reply_body`).

use curt_xdr::{DecodeError, Decoder, Encode};

use super::{MESSAGE_REPLY, RPC_VERSION, VersionRange};
use crate::auth::{AuthStatus, OpaqueAuth, encode_none};

/// The size of what [`encode_accepted_header`] appends, in bytes.
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

/// What became of an accepted call (RFC 5531 section 9, `accept_stat`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AcceptStatus {
    /// It was executed; results follow.
    Success,
    /// The program is not served here.
    ProgramUnavailable,
    /// The program is served in other versions.
    ProgramMismatch(VersionRange),
    /// The program has no such procedure.
    ProcedureUnavailable,
    /// The arguments could not be decoded.
    GarbageArguments,
    /// Something else, such as memory that ran out.
    SystemError,
}

/// Why a call was denied (RFC 5531 section 9, `rejected_reply`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RejectedReply {
    /// The version of RPC itself is not supported.
    RpcMismatch(VersionRange),
    /// The caller could not be authenticated.
    Authentication(AuthStatus),
}

/// A reply's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyHeader {
    /// The number of the call that is answered.
    pub xid: u32,
    /// What became of the call.
    pub outcome: Result<AcceptStatus, RejectedReply>,
}

/// Reads a reply's header; the results, if [`AcceptStatus::Success`], are what the decoder has
/// left.
///
/// # Errors
/// Whatever is not a reply of RFC 5531.
pub fn decode_reply_header(decoder: &mut Decoder<'_>) -> Result<ReplyHeader, DecodeError> {
    let xid = decoder.u32()?;
    expect(decoder.u32()?, MESSAGE_REPLY, "msg_type of a reply")?;
    let outcome = match decoder.u32()? {
        REPLY_ACCEPTED => Ok(decode_accepted(decoder)?),
        REPLY_DENIED => Err(decode_denied(decoder)?),
        value => {
            return Err(DecodeError::BadValue {
                name: "reply_stat",
                value,
            });
        }
    };
    Ok(ReplyHeader { xid, outcome })
}

fn decode_accepted(decoder: &mut Decoder<'_>) -> Result<AcceptStatus, DecodeError> {
    OpaqueAuth::skip(decoder)?;
    Ok(match decoder.u32()? {
        ACCEPT_SUCCESS => AcceptStatus::Success,
        ACCEPT_PROGRAM_UNAVAILABLE => AcceptStatus::ProgramUnavailable,
        ACCEPT_PROGRAM_MISMATCH => AcceptStatus::ProgramMismatch(decode_versions(decoder)?),
        ACCEPT_PROCEDURE_UNAVAILABLE => AcceptStatus::ProcedureUnavailable,
        ACCEPT_GARBAGE_ARGUMENTS => AcceptStatus::GarbageArguments,
        ACCEPT_SYSTEM_ERROR => AcceptStatus::SystemError,
        value => {
            return Err(DecodeError::BadValue {
                name: "accept_stat",
                value,
            });
        }
    })
}

fn decode_denied(decoder: &mut Decoder<'_>) -> Result<RejectedReply, DecodeError> {
    match decoder.u32()? {
        DENIED_RPC_MISMATCH => decode_versions(decoder).map(RejectedReply::RpcMismatch),
        DENIED_AUTH_ERROR => decoder.get().map(RejectedReply::Authentication),
        value => Err(DecodeError::BadValue {
            name: "reject_stat",
            value,
        }),
    }
}

fn decode_versions(decoder: &mut Decoder<'_>) -> Result<VersionRange, DecodeError> {
    Ok(VersionRange {
        low: decoder.u32()?,
        high: decoder.u32()?,
    })
}

const fn expect(value: u32, expected: u32, name: &'static str) -> Result<(), DecodeError> {
    if value == expected {
        Ok(())
    } else {
        Err(DecodeError::BadValue { name, value })
    }
}

/// Appends the header of a successful reply; the results follow it.
pub fn encode_accepted_header(out: &mut Vec<u8>, xid: u32) {
    encode_accepted(out, xid, ACCEPT_SUCCESS);
}

fn encode_accepted(out: &mut Vec<u8>, xid: u32, status: u32) {
    for word in [xid, MESSAGE_REPLY, REPLY_ACCEPTED] {
        word.encode(out);
    }
    encode_none(out);
    status.encode(out);
}

/// Appends the whole reply to a call that was accepted and not executed, or of one that succeeded
/// without results.
pub fn encode_failure(out: &mut Vec<u8>, xid: u32, status: AcceptStatus) {
    match status {
        AcceptStatus::Success => encode_accepted(out, xid, ACCEPT_SUCCESS),
        AcceptStatus::ProgramUnavailable => encode_accepted(out, xid, ACCEPT_PROGRAM_UNAVAILABLE),
        AcceptStatus::ProgramMismatch(versions) => {
            encode_accepted(out, xid, ACCEPT_PROGRAM_MISMATCH);
            encode_versions(out, versions);
        }
        AcceptStatus::ProcedureUnavailable => encode_accepted(out, xid, ACCEPT_PROCEDURE_UNAVAILABLE),
        AcceptStatus::GarbageArguments => encode_accepted(out, xid, ACCEPT_GARBAGE_ARGUMENTS),
        AcceptStatus::SystemError => encode_accepted(out, xid, ACCEPT_SYSTEM_ERROR),
    }
}

/// Appends the whole reply to a call that is denied.
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

/// What is said to calls of another RPC version.
pub(crate) const RPC_MISMATCH: RejectedReply = RejectedReply::RpcMismatch(VersionRange {
    low: RPC_VERSION,
    high: RPC_VERSION,
});
