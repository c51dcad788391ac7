//! REMOVE and RMDIR (RFC 1813 sections 3.3.12 and 3.3.13).

use curt_vfs::{FsCred, NodeHandle, Vfs, WccResult};

use super::WccOp;
use super::name::{NamePurpose, check};
use super::repeated;
use crate::request::{NfsRequest, VerifiedHandle};

/// Removes `name`, which is not a directory's, from the current target.
pub(crate) fn remove(
    request: &mut NfsRequest<'_, '_>,
    current: &VerifiedHandle<'_>,
    name: &[u8],
) -> WccOp<()> {
    remove_as(
        request,
        current,
        name,
        NamePurpose::Remove,
        |vfs, caller, node| vfs.remove(caller, node, name),
    )
}

/// Removes the empty directory called `name` from the current target.
pub(crate) fn remove_directory(
    request: &mut NfsRequest<'_, '_>,
    current: &VerifiedHandle<'_>,
    name: &[u8],
) -> WccOp<()> {
    remove_as(
        request,
        current,
        name,
        NamePurpose::RemoveDirectory,
        |vfs, caller, node| vfs.remove_directory(caller, node, name),
    )
}

fn remove_as(
    request: &mut NfsRequest<'_, '_>,
    current: &VerifiedHandle<'_>,
    name: &[u8],
    purpose: NamePurpose,
    remove: impl FnOnce(&dyn Vfs, &FsCred<'_>, &NodeHandle) -> WccResult<()>,
) -> WccOp<()> {
    if let Err(fault) = current.writable().and_then(|()| check(name, purpose)) {
        return current.not_begun(fault);
    }
    if let Some(window) = request.repeated {
        return current.wcc(repeated::remove(request, current, window));
    }
    request.may_block(current);
    current.wcc(remove(current.vfs(), &current.caller(), &current.node))
}
