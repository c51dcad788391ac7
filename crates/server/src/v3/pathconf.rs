//! PATHCONF (RFC 1813 section 3.3.20).

use curt_proto::nfs3::{Fattr, FileHandle, Outcome, PathconfOk};

use crate::request::{Refusal, Request};
use crate::status;

pub(super) fn run(
    request: &mut Request<'_, '_>,
    object: FileHandle,
) -> Result<Outcome<PathconfOk, Option<Fattr>>, Refusal> {
    let target = request.resolve(&object)?;
    request.may_wait_for(&target);
    let answer = target.vfs().limits(&target.node);
    let attributes = target.post_op(answer.attributes);
    Ok(match answer.value {
        Ok(limits) => Outcome::Ok(PathconfOk {
            attributes,
            link_max: limits.names_max,
            name_max: limits.name_bytes_max,
            no_truncation: true,
            chown_restricted: true,
            case_insensitive: limits.case_insensitive,
            case_preserving: limits.case_preserving,
        }),
        Err(error) => Outcome::Failed(status::of_error(error), attributes),
    })
}
