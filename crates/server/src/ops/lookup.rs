//! LOOKUP (RFC 1813 section 3.3.3).

use curt_vfs::{LookupUse, PostOpResult, VfsNode};

use super::export_crossing;
use super::name::{NamePurpose, check_name};
use super::{FoundObject, OpResult, PostOp};
use crate::request::{NfsRequest, VerifiedHandle};

/// Looks up `name` in the current target, and returns the target's attributes too.
#[inline]
pub(crate) fn lookup(
    request: &mut NfsRequest<'_, '_>,
    current: &VerifiedHandle<'_>,
    name: &[u8],
) -> PostOp<FoundObject> {
    if let Err(fault) = check_name(name, NamePurpose::Lookup) {
        return OpResult { attributes: current.attributes(), value: Err(fault) };
    }
    if let Some(left) = export_crossing::leave(request, current, name) {
        return left;
    }
    let found = find(request, current, name);
    if let Ok(node) = &found.value
        && let Some(entered) = export_crossing::enter(request, current, &node.handle)
    {
        return entered;
    }
    current.post_op(found).map(|node| current.child(&node, name))
}

/// As [`find`], for callers that need no attributes of the directory if the name is found, or if
/// `is_directory`: they may be missing.
pub(crate) fn find_object(
    request: &mut NfsRequest<'_, '_>,
    current: &VerifiedHandle<'_>,
    name: &[u8],
    wanted: LookupUse,
    is_directory: bool,
) -> PostOpResult<VfsNode> {
    if wanted == LookupUse::Name {
        request.may_block(current);
    }
    let (vfs, caller) = (current.vfs(), current.caller());
    let found = vfs.lookup_child(&caller, &current.node, name, wanted, is_directory);
    found.unwrap_or_else(|| {
        request.context.may_block();
        vfs.lookup(&caller, &current.node, name)
    })
}

/// Looks up `name` within the current target's tree.
#[inline]
pub(crate) fn find(
    request: &mut NfsRequest<'_, '_>,
    current: &VerifiedHandle<'_>,
    name: &[u8],
) -> PostOpResult<VfsNode> {
    let (vfs, caller) = (current.vfs(), current.caller());
    vfs.lookup_nowait(&caller, &current.node, name).unwrap_or_else(|| {
        request.context.may_block();
        vfs.lookup(&caller, &current.node, name)
    })
}
