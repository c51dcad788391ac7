//! Crossing from an export into another that is mounted in it, and back (`crossmnt`, `nohide`).

use curt_types::Fault;
use curt_vfs::NodeHandle;

use super::{FoundObject, OpResult, PostOp};
use crate::file_handle::HandleContents;
use crate::request::{NfsRequest, VerifiedHandle};

/// The result of a LOOKUP that found a directory where an export is mounted: that export's root, if
/// the caller may enter it from `above`; otherwise the directory that is covered, as with knfsd.
pub(super) fn enter(
    request: &mut NfsRequest<'_, '_>,
    above: &VerifiedHandle<'_>,
    found: &NodeHandle,
) -> Option<PostOp<FoundObject>> {
    let id = above.export().child_at(found)?;
    let exports = request.service.exports.current();
    let child = exports.by_id(id)?;
    let root = request.target(HandleContents {
        export: child.id,
        file_system: child.file_system,
        node: child.vfs.root(),
        parent: None,
    });
    let root = root.ok()?;
    if !(above.rules().crossmnt || root.rules().nohide) {
        return None;
    }
    let root = FoundObject { handle: root.handle().clone(), attributes: root.attributes(), is_new: false };
    Some(OpResult { attributes: above.attributes(), value: Ok(root) })
}

/// The parent of an export's root, if the export was entered from another: the directory on which
/// it is mounted. None for every other directory and name.
pub(super) fn leave(
    request: &mut NfsRequest<'_, '_>,
    below: &VerifiedHandle<'_>,
    name: &[u8],
) -> Option<PostOp<FoundObject>> {
    if name != b".." || below.node != below.vfs().root() {
        return None;
    }
    let (id, covered) = below.export().parent_export()?;
    let exports = request.service.exports.current();
    let above = exports.by_id(id)?;
    let covered =
        HandleContents { export: above.id, file_system: above.file_system, node: covered, parent: None };
    let above = request.target(covered).ok()?;
    if !(above.rules().crossmnt || below.rules().nohide) {
        return None;
    }
    let parent = above.vfs().lookup(&above.caller(), &above.node, b"..").value;
    Some(match parent {
        Ok(node) => OpResult { attributes: below.attributes(), value: Ok(above.child(&node, b"..")) },
        Err(error) => OpResult { attributes: None, value: Err(Fault::from(error)) },
    })
}
