//! GETATTR, SETATTR, ACCESS, READLINK (RFC 1813 sections 3.3.1, 3.3.2, 3.3.4, 3.3.5).

use curt_proto::nfs3::{
    AccessArguments, AccessOk, Fattr, NfsFh3, NfsPath, NfsResult, NfsStat3, ReadlinkOk, SetattrArguments,
    WccData,
};
use curt_rpc::server::CallFailure;
use curt_types::Access;

use super::{Results, finish, not_begun, on_data, post_op, set_attributes, timestamp, wcc};
use crate::ops;
use crate::request::NfsRequest;
use crate::state::IoDirection;

#[inline]
pub(super) fn getattr(request: &mut NfsRequest<'_, '_>, object: NfsFh3) -> Results<Fattr, ()> {
    let current = request.resolve(object.as_bytes())?;
    Ok(NfsResult::Ok(ops::getattr(request, &current)?.into()))
}

pub(super) fn setattr(
    request: &mut NfsRequest<'_, '_>,
    arguments: &SetattrArguments,
) -> Results<WccData, WccData> {
    let current = request.resolve(arguments.object.as_bytes())?;
    let set = set_attributes(&arguments.attributes);
    Ok(match (set, arguments.guard.map(timestamp).transpose()) {
        (Ok(set), Ok(guard)) => {
            if set.size.is_some()
                && let Err(fault) = current.not_denied(IoDirection::Write)
            {
                return Ok(not_begun(&current, fault));
            }
            wcc(on_data(ops::setattr(request, &current, &set, guard)), |(), attributes| attributes)
        }
        (Err(fault), _) | (_, Err(fault)) => not_begun(&current, fault),
    })
}

pub(super) fn access(
    request: &mut NfsRequest<'_, '_>,
    arguments: AccessArguments,
) -> Results<AccessOk, Option<Fattr>> {
    let current = request.resolve(arguments.object.as_bytes())?;
    let granted = ops::access(request, &current, Access::from_bits(arguments.access));
    Ok(post_op(granted, |granted, attributes| AccessOk { attributes, access: granted.bits() }))
}

pub(super) fn readlink(
    request: &mut NfsRequest<'_, '_>,
    link: NfsFh3,
    reply: &mut Vec<u8>,
) -> Result<(), CallFailure> {
    let link = request.resolve(link.as_bytes());
    let read = link.map(|link| post_op(ops::readlink(&link), |target, attributes| (target, attributes)));
    let results = match &read {
        Ok(NfsResult::Ok((target, attributes))) => Ok(match NfsPath::new(target) {
            Ok(target) => NfsResult::Ok(ReadlinkOk { attributes: *attributes, target }),
            Err(_) => NfsResult::Failed(NfsStat3::Io, *attributes),
        }),
        Ok(NfsResult::Failed(status, attributes)) => Ok(NfsResult::Failed(*status, *attributes)),
        Err(refusal) => Err(*refusal),
    };
    finish(results, reply)
}
