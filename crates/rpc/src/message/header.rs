//! The beginning of both kinds of messages: the xid and the message type.

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
