//! The headers of calls and replies (RFC 5531 section 9).
//!
//! Both directions of both messages: the client encodes calls and decodes replies, the server
//! decodes calls and encodes replies, and tests do the reverse. Arguments and results are bytes.

mod call;
mod reply;

use crate::security::auth::AuthStatus;

pub use call::{CALL_HEADER_MAX, CallDecodeError, CallMessage, encode_call_header};
pub(crate) use call::{SignedCall, encode_signed_header};
pub use reply::{
    AcceptStatus, REPLY_HEADER_SIZE, RejectedReply, ReplyHeader, decode_reply_header, encode_accepted_header,
    encode_denied, encode_failure,
};
pub(crate) use reply::{RPC_MISMATCH, SignedReply, encode_accepted};

/// The version of the RPC protocol itself (RFC 5531 section 9).
pub const RPC_VERSION: u32 = 2;

pub(crate) const MESSAGE_CALL: u32 = 0;
pub(crate) const MESSAGE_REPLY: u32 = 1;

/// The xid and the type of a message, as far as they are present.
pub(crate) fn beginning(message: &[u8]) -> Option<(u32, u32)> {
    let (xid, rest) = message.split_first_chunk()?;
    Some((u32::from_be_bytes(*xid), u32::from_be_bytes(*rest.first_chunk()?)))
}

/// Whether a message is a call.
pub(crate) fn is_call(message: &[u8]) -> bool {
    beginning(message).is_some_and(|(_, kind)| kind == MESSAGE_CALL)
}

/// Whether a message is a reply.
pub(crate) fn is_reply(message: &[u8]) -> bool {
    beginning(message).is_some_and(|(_, kind)| kind == MESSAGE_REPLY)
}

/// The versions that a peer supports, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VersionRange {
    /// The lowest.
    pub low: u32,
    /// The highest.
    pub high: u32,
}

/// Why a call has no results; becomes the reply's status (RFC 5531 section 9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallFailure {
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
    /// The credential is rejected.
    Denied(AuthStatus),
    /// No reply is sent: the call is a duplicate of one that is in progress, whose reply will be
    /// sent.
    NoReply,
}
