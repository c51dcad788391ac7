//! FSSTAT, FSINFO and PATHCONF (RFC 1813 sections 3.3.18 to 3.3.20).

use curt_vfs::{FileSystemSpace, Limits};

use super::PostOp;
use crate::request::{NfsRequest, VerifiedHandle};

/// FSSTAT: the space of the file system.
pub(crate) fn space(
    request: &mut NfsRequest<'_, '_>,
    current: &VerifiedHandle<'_>,
) -> PostOp<FileSystemSpace> {
    request.may_block_on_metadata(current);
    current.post_op(current.vfs().space(&current.node))
}

/// FSINFO and PATHCONF: the limits and capabilities of the file system.
pub(crate) fn limits(request: &mut NfsRequest<'_, '_>, current: &VerifiedHandle<'_>) -> PostOp<Limits> {
    request.may_block_on_metadata(current);
    current.post_op(current.vfs().limits(&current.node))
}
