//! CREATE, MKDIR, SYMLINK and MKNOD (RFC 1813 sections 3.3.8 to 3.3.11).

use curt_types::Fault;
use curt_vfs::{CreateMode, NewNode, SpecialFile};
use rustix::io::Errno;

use super::name::{NamePurpose, check_name};
use super::{FoundObject, WccOp, attributes, interrupted_change, lookup};
use crate::request::{NfsRequest, VerifiedHandle};
use crate::state::{ChangeKind, FileChange};

/// The number of bits of a major device number in Linux.
const MAJOR_BITS: u32 = 12;
/// The number of bits of a minor device number in Linux.
const MINOR_BITS: u32 = 20;

/// Creates an object with the name `name` in the current target.
pub(crate) fn make<'r>(
    request: &mut NfsRequest<'r, '_>,
    current: &VerifiedHandle<'r>,
    name: &[u8],
    object: NewNode<'_>,
) -> WccOp<FoundObject> {
    let allowed = current
        .writable()
        .and_then(|()| check_name(name, NamePurpose::Create))
        .and_then(|()| check_object(object));
    if let Err(fault) = allowed {
        return current.not_begun(fault);
    }
    let directory = match begin(request, current, name, object) {
        Ok(change) => change,
        Err(fault) => return current.not_begun(fault),
    };
    let made = if let Some(window) = request.repeated {
        interrupted_change::make(request, current, name, object, window)
    } else {
        request.may_block(current);
        let made = request.change_names(&[current], ChangeKind::Data, |permit| {
            current.vfs().make_permitted(&current.caller(), &current.node, name, object, &mut |above, of| {
                match (of == above, &directory) {
                    (true, Some(_)) => Ok(()),
                    // The name was removed since it was found.
                    (true, None) => Err(Errno::AGAIN.into()),
                    (false, _) => permit(above, of),
                }
            })
        });
        match made {
            Ok(made) => made,
            Err(fault) => return current.not_begun(fault),
        }
    };
    current.wcc(made).map(|made| FoundObject { is_new: made.new, ..current.child(&made.node, name) })
}

/// Begins the change of the directory. An unchecked creation that finds a file does not change it.
fn begin<'r>(
    request: &mut NfsRequest<'r, '_>,
    current: &VerifiedHandle<'r>,
    name: &[u8],
    object: NewNode<'_>,
) -> Result<Option<FileChange<'r>>, Fault> {
    let is_unchecked = matches!(object, NewNode::File(CreateMode::Unchecked(_)));
    let is_delegated = request.service.held.delegations.is_held(&current.file_key(), request.client);
    if is_unchecked && is_delegated && lookup::find(request, current, name).value.is_ok() {
        return Ok(None);
    }
    request.begin_change_of_directory(current).map(Some)
}

/// Refuses device numbers that Linux would truncate to another device, and attributes that cannot
/// be set.
fn check_object(object: NewNode<'_>) -> Result<(), Fault> {
    if let NewNode::Special(SpecialFile::BlockDevice(device) | SpecialFile::CharacterDevice(device), _) =
        object
        && (device.major >> MAJOR_BITS != 0 || device.minor >> MINOR_BITS != 0)
    {
        return Err(Fault::Inval);
    }
    attributes::check(&object.set())
}
