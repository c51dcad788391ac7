//! The headers of calls and replies (RFC 5531 section 9).
//!
//! Both directions of both messages: the client encodes calls and decodes replies, the server
//! decodes calls and encodes replies, and tests do the reverse. Arguments and results are bytes.

pub(crate) mod call;
pub(crate) mod failure;
pub(crate) mod header;
pub(crate) mod reply;

pub use call::{CALL_HEADER_MAX, CallDecodeError, CallMessage, ProcedureId, call_record, encode_call_header};
pub use failure::{CallFailure, VersionRange};
pub use header::RPC_VERSION;
pub use reply::{
    AcceptStatus, REPLY_HEADER_SIZE, RejectedReply, ReplyHeader, decode_reply_header, encode_accepted_header,
    encode_denied, encode_failure,
};
