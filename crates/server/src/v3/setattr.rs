//! SETATTR (RFC 1813 section 3.3.2).

use curt_proto::nfs3::{NfsResult, SetattrArguments, WccData};

use crate::attributes::{set_from_wire, time_from_wire};
use crate::request::{NfsRequest, Refusal};
use crate::status;

pub(super) fn run(
    request: &mut NfsRequest<'_, '_>,
    arguments: &SetattrArguments,
) -> Result<NfsResult<WccData, WccData>, Refusal> {
    let target = request.resolve(&arguments.object)?;
    let wanted = target.writable().and_then(|()| {
        let set = set_from_wire(&arguments.attributes);
        let guard = arguments.guard.map(time_from_wire).transpose();
        set.and_then(|set| guard.map(|guard| (set, guard)))
    });
    let (set, guard) = match wanted {
        Ok(wanted) => wanted,
        Err(status) => return super::not_begun(&target, status),
    };
    request.may_block(&target);
    let changed = target
        .vfs()
        .set_attributes(&target.caller(), &target.node, &set, guard);
    let wcc = target.wcc(changed.before, changed.after);
    Ok(match changed.value {
        Ok(()) => NfsResult::Ok(wcc),
        Err(error) => NfsResult::Failed(status::of_error_on_data(error), wcc),
    })
}
