//! FSSTAT (RFC 1813 section 3.3.18).

use curt_proto::nfs3::{Fattr, FsstatOk, NfsFh3, NfsResult};

use crate::request::{NfsRequest, Refusal};
use crate::status;

pub(super) fn run(
    request: &mut NfsRequest<'_, '_>,
    root: NfsFh3,
) -> Result<NfsResult<FsstatOk, Option<Fattr>>, Refusal> {
    let target = request.resolve(&root)?;
    request.may_block_on_metadata(&target);
    let answer = target.vfs().space(&target.node);
    let attributes = target.post_op(answer.attributes);
    Ok(match answer.value {
        Ok(space) => NfsResult::Ok(FsstatOk {
            attributes,
            total_bytes: space.bytes_total,
            free_bytes: space.bytes_free,
            available_bytes: space.bytes_available,
            total_files: space.files_total,
            free_files: space.files_free,
            available_files: space.files_available,
            // Nobody promises that nothing will change.
            invariant_seconds: 0,
        }),
        Err(error) => NfsResult::Failed(status::of_error(error), attributes),
    })
}
