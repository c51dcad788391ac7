//! ACCESS (RFC 1813 section 3.3.4).

use curt_proto::nfs3::{AccessArguments, AccessMask, AccessOk, Fattr, Outcome};
use curt_vfs::Access;

use crate::request::{Refusal, Request};
use crate::status;

/// The rights that a read-only export grants to nobody.
const CHANGES: AccessMask = AccessMask::MODIFY.or(AccessMask::EXTEND).or(AccessMask::DELETE);

pub(super) fn run(
    request: &mut Request<'_, '_>,
    arguments: AccessArguments,
) -> Result<Outcome<AccessOk, Option<Fattr>>, Refusal> {
    let target = request.resolve(&arguments.object)?;
    request.may_wait_for(&target);
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
        Ok(granted) => Outcome::Ok(AccessOk {
            attributes,
            access: AccessMask(granted.bits()).and(asked),
        }),
        Err(error) => Outcome::Failed(status::of_error(error), attributes),
    })
}
