//! REMOVE and RMDIR (RFC 1813 sections 3.3.12 and 3.3.13).

use curt_vfs::RemovedKind;

use super::name::{NamePurpose, check_name};
use super::{WccOp, interrupted_change};
use crate::request::{NfsRequest, VerifiedHandle};
use crate::state::ChangeKind;

/// Removes `name` from the current target: an empty directory or any other object, according to the
/// purpose.
pub(crate) fn remove<'r>(
    request: &mut NfsRequest<'r, '_>,
    current: &VerifiedHandle<'r>,
    name: &[u8],
    purpose: NamePurpose,
) -> WccOp<()> {
    if let Err(fault) = current.writable().and_then(|()| check_name(name, purpose)) {
        return current.not_begun(fault);
    }
    if let Some(window) = request.repeated {
        return current.wcc(interrupted_change::remove(request, current, window));
    }
    let _directory = match request.begin_change_of_directory(current) {
        Ok(change) => change,
        Err(fault) => return current.not_begun(fault),
    };
    request.may_block(current);
    let kind = match purpose {
        NamePurpose::RemoveDirectory => RemovedKind::Directory,
        _ => RemovedKind::Other,
    };
    let removed = request.change_names(&[current], ChangeKind::Attributes, |permit| {
        current.vfs().remove_permitted(&current.caller(), &current.node, name, kind, permit)
    });
    match removed {
        Ok(removed) => current.wcc(removed),
        Err(fault) => current.not_begun(fault),
    }
}
