//! LINK (RFC 1813 section 3.3.15).

use curt_types::Wcc;

use super::name::{NamePurpose, check_name};
use super::{BothAttributes, BothOp, OpResult, interrupted_change};
use crate::request::{NfsRequest, VerifiedHandle};

/// Adds a name for the saved target to the current target.
pub(crate) fn link<'r>(
    request: &mut NfsRequest<'r, '_>,
    saved: &VerifiedHandle<'r>,
    current: &VerifiedHandle<'r>,
    name: &[u8],
) -> BothOp {
    let allowed = saved
        .same_export(current)
        .and_then(|()| current.writable())
        .and_then(|()| check_name(name, NamePurpose::Create));
    if let Err(fault) = allowed {
        return saved.both_unchanged(current, Err(fault));
    }
    if let Some(window) = request.repeated {
        let linked = interrupted_change::link(request, saved, current, name, window);
        return saved.both_unchanged(current, linked);
    }
    let changes = (request.begin_link(saved, current), request.begin_change_of_directory(current));
    if let (Err(fault), _) | (_, Err(fault)) = changes {
        return saved.both_unchanged(current, Err(fault));
    }
    request.may_block(saved);
    let linked = saved.vfs().link(&saved.caller(), &saved.node, &current.node, name);
    let directory = current.wcc(linked.directory);
    let object = Wcc { before: None, after: linked.node.map(|node| saved.exported(node)) };
    OpResult {
        attributes: BothAttributes { saved: object, current: directory.attributes },
        value: directory.value,
    }
}
