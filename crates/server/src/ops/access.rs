//! ACCESS (RFC 1813 section 3.3.4).

use curt_types::Access;

use super::PostOp;
use crate::request::{NfsRequest, VerifiedHandle};

/// The rights that a read-only export never grants.
const CHANGES: Access = Access::MODIFY.with(Access::EXTEND).with(Access::DELETE);

/// The rights in `asked` that the caller has.
pub(crate) fn access(
    request: &mut NfsRequest<'_, '_>,
    current: &VerifiedHandle<'_>,
    asked: Access,
) -> PostOp<Access> {
    request.may_block_on_metadata(current);
    let asked = if current.read_only() { asked.without(CHANGES) } else { asked };
    current.post_op(current.vfs().access(&current.caller(), &current.node, asked))
}
