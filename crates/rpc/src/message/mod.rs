//! The headers of calls and replies (RFC 5531 section 9).
//!
//! Both directions of both messages: the client writes calls and reads replies, the server reads
//! calls and writes replies, and tests do the reverse. What follows a header (arguments, results)
//! is bytes here.

mod call;
mod reply;

pub use call::{CALL_HEADER_MAX, CallDecodeError, CallMessage, encode_call_header};
pub(crate) use reply::RPC_MISMATCH;
pub use reply::{
    AcceptStatus, REPLY_HEADER_SIZE, RejectedReply, ReplyHeader, decode_reply_header, encode_accepted_header,
    encode_denied, encode_failure,
};

/// The version of the RPC protocol itself (RFC 5531 section 9).
pub const RPC_VERSION: u32 = 2;

pub(crate) const MESSAGE_CALL: u32 = 0;
pub(crate) const MESSAGE_REPLY: u32 = 1;

/// The versions of something that a peer supports, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VersionRange {
    /// The lowest.
    pub low: u32,
    /// The highest.
    pub high: u32,
}
