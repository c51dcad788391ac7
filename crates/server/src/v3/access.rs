//! ACCESS (RFC 1813 section 3.3.4).

use curt_proto::nfs3::{AccessArguments, AccessMask, AccessOk, Fattr, NfsResult};
use curt_types::Access;

use crate::request::{NfsRequest, Refusal};
use crate::status;

/// The rights that a read-only export grants to nobody.
const CHANGES: AccessMask = AccessMask::MODIFY.or(AccessMask::EXTEND).or(AccessMask::DELETE);

pub(super) fn run(
    request: &mut NfsRequest<'_, '_>,
    arguments: AccessArguments,
) -> Result<NfsResult<AccessOk, Option<Fattr>>, Refusal> {
    let target = request.resolve(&arguments.object)?;
    request.may_block_on_metadata(&target);
    let asked = if target.read_only() {
        AccessMask(arguments.access.0 & !CHANGES.0)
    } else {
        arguments.access
    };
    let verdict = target
        .vfs()
        .access(&target.caller(), &target.node, Access::from_bits(asked.0));
    let attributes = target.post_op(verdict.attributes);
    Ok(match verdict.value {
        Ok(granted) => NfsResult::Ok(AccessOk {
            attributes,
            access: AccessMask(granted.bits()).and(asked),
        }),
        Err(error) => NfsResult::Failed(status::of_error(error), attributes),
    })
}
