//! PATHCONF (RFC 1813 section 3.3.20).

use curt_proto::nfs3::{Fattr, NfsFh3, NfsResult, PathconfOk};

use crate::request::{NfsRequest, Refusal};
use crate::status;

pub(super) fn run(
    request: &mut NfsRequest<'_, '_>,
    object: NfsFh3,
) -> Result<NfsResult<PathconfOk, Option<Fattr>>, Refusal> {
    let target = request.resolve(&object)?;
    request.may_block_on_metadata(&target);
    let answer = target.vfs().limits(&target.node);
    let attributes = target.post_op(answer.attributes);
    Ok(match answer.value {
        Ok(limits) => NfsResult::Ok(PathconfOk {
            attributes,
            link_max: limits.link_max,
            name_max: limits.name_max,
            no_truncation: true,
            chown_restricted: true,
            case_insensitive: limits.case_insensitive,
            case_preserving: limits.case_preserving,
        }),
        Err(error) => NfsResult::Failed(status::of_error(error), attributes),
    })
}
