//! REMOVE and RMDIR (RFC 1813 sections 3.3.12 and 3.3.13).

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
    let changes = (
        request.begin_change_of_directory(current),
        request.begin_change_of_name(current, name, ChangeKind::Attributes),
    );
    if let (Err(fault), _) | (_, Err(fault)) = changes {
        return current.not_begun(fault);
    }
    request.may_block(current);
    let (vfs, caller) = (current.vfs(), current.caller());
    current.wcc(if purpose == NamePurpose::RemoveDirectory {
        vfs.remove_directory(&caller, &current.node, name)
    } else {
        vfs.remove(&caller, &current.node, name)
    })
}
