//! READLINK (RFC 1813 section 3.3.5).

use super::PostOp;
use crate::request::VerifiedHandle;

/// The target of a symbolic link, which is the current target.
pub(crate) fn readlink(current: &VerifiedHandle<'_>) -> PostOp<Vec<u8>> {
    let mut target = Vec::new();
    let read = current.vfs().read_link(&current.caller(), &current.node, &mut target);
    current.post_op(read).map(|()| target)
}
