//! COMMIT (RFC 1813 section 3.3.21).

use super::{OpResult, WccOp};
use crate::request::{NfsRequest, VerifiedHandle};

/// Makes written data durable, and returns the write verifier. A read-only export may have been
/// writable before.
pub(crate) fn commit(
    request: &mut NfsRequest<'_, '_>,
    current: &VerifiedHandle<'_>,
    offset: u64,
    count: u32,
) -> WccOp<[u8; 8]> {
    if current.rules().asynchronous {
        return OpResult { attributes: current.unchanged(), value: Ok(current.write_verifier()) };
    }
    request.may_block(current);
    let committed = current.vfs().commit(&current.caller(), &current.node, offset, count);
    current.wcc(committed).map(|()| current.write_verifier())
}
