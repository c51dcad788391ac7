//! The data of a READ reply.

use curt_rpc::client::CallReply;

use crate::data::shared_bytes::SharedBytes;

/// Data shorter than this, in bytes, are copied out of the receive buffer, which may be much
/// larger.
const COPY_MAX: usize = 64 * 1024;

/// The data of a reply, in the reply's buffer.
struct ReadReplyData {
    reply: CallReply,
    start: usize,
    length: usize,
}

impl AsRef<[u8]> for ReadReplyData {
    fn as_ref(&self) -> &[u8] {
        &self.reply.results()[self.start..self.start + self.length]
    }
}

/// Whether a READ result is valid: not longer than requested, and empty only at end of file.
pub(super) fn is_valid_length(length: usize, end: bool, asked: usize) -> bool {
    length <= asked && (length > 0 || end || asked == 0)
}

/// The data of a READ reply: at the end of the results, padded to a multiple of four bytes.
pub(super) fn bytes_of(reply: CallReply, length: usize) -> SharedBytes {
    let start = reply.results().len() - length.next_multiple_of(4);
    let data = ReadReplyData { reply, start, length };
    if length < COPY_MAX { SharedBytes::new(data.as_ref().to_vec()) } else { SharedBytes::new(data) }
}
