//! RENAME (RFC 1813 section 3.3.14).

use curt_types::Fault;

use super::name::{NamePurpose, check_name};
use super::{BothAttributes, BothOp, OpResult, interrupted_change};
use crate::request::{NfsRequest, VerifiedHandle};
use crate::state::ChangeKind;

/// Renames `from` in the saved target to `to` in the current target.
pub(crate) fn rename<'r>(
    request: &mut NfsRequest<'r, '_>,
    saved: &VerifiedHandle<'r>,
    current: &VerifiedHandle<'r>,
    from: &[u8],
    to: &[u8],
) -> BothOp {
    let allowed = saved
        .same_export(current)
        .and_then(|()| saved.writable())
        .and_then(|()| check_name(from, NamePurpose::Rename))
        .and_then(|()| check_name(to, NamePurpose::Rename));
    if let Err(fault) = allowed {
        return saved.both_unchanged(current, Err(fault));
    }
    if let Some(window) = request.repeated {
        let renamed = interrupted_change::rename(request, saved, current, to, window);
        return saved.both_unchanged(current, renamed);
    }
    // Both are recalled before the request waits for the first.
    let directories = [request.begin_change_of_directory(saved), request.begin_change_of_directory(current)];
    if let Some(fault) = directories.iter().find_map(|change| change.as_ref().err()) {
        return saved.both_unchanged(current, Err(*fault));
    }
    request.may_block(saved);
    let renamed = request.change_names(&[saved, current], ChangeKind::Attributes, |permit| {
        saved.vfs().rename_permitted(&saved.caller(), &saved.node, from, &current.node, to, permit)
    });
    let renamed = match renamed {
        Ok(renamed) => renamed,
        Err(fault) => return saved.both_unchanged(current, Err(fault)),
    };
    OpResult {
        attributes: BothAttributes {
            saved: saved.exported_wcc(renamed.from),
            current: current.exported_wcc(renamed.to),
        },
        value: renamed.value.map_err(Fault::from),
    }
}
