//! GETATTR, which needs no permission, and SETATTR (RFC 1813 sections 3.3.1 and 3.3.2).

use curt_types::{Attributes, Fault, SetAttributes, Timestamp};

use super::WccOp;
use crate::request::{NfsRequest, VerifiedHandle};
use crate::state::ChangeKind;

/// The largest size that a file offset can represent (`i64::MAX`); CVE-2022-48828 was a server
/// without this limit.
pub(crate) const MAX_SIZE: u64 = i64::MAX as u64;

#[inline]
pub(crate) fn getattr(
    request: &mut NfsRequest<'_, '_>,
    current: &VerifiedHandle<'_>,
) -> Result<Attributes, Fault> {
    request.may_block_on_metadata(current);
    let attributes = current.vfs().attributes(&current.node)?;
    Ok(current.exported(attributes))
}

/// With `guard`, the attributes change only if it equals the object's ctime.
pub(crate) fn setattr<'r>(
    request: &mut NfsRequest<'r, '_>,
    current: &VerifiedHandle<'r>,
    set: &SetAttributes,
    guard: Option<Timestamp>,
) -> WccOp<()> {
    if let Err(fault) = current.writable().and_then(|()| check(set)) {
        return current.not_begun(fault);
    }
    let kind = if set.size.is_some() { ChangeKind::Data } else { ChangeKind::Attributes };
    let _change = match request.begin_change(current, kind) {
        Ok(change) => change,
        // chmod(2) and chown(2) are the owner's alone.
        Err(Fault::Acces) if set.mode.or(set.uid).or(set.gid).is_some() => {
            return current.not_begun(Fault::Perm);
        }
        Err(fault) => return current.not_begun(fault),
    };
    request.may_block(current);
    let vfs = current.vfs();
    current.wcc(vfs.set_attributes(&current.caller(), &current.node, set, guard))
}

/// Whether these attributes can be set. An id of all ones means "no change" to system calls, and is
/// not a valid id in a request.
pub(super) fn check(set: &SetAttributes) -> Result<(), Fault> {
    let is_none = |id: Option<u32>| id == Some(u32::MAX);
    if is_none(set.uid) || is_none(set.gid) || set.size.is_some_and(|size| size > MAX_SIZE) {
        return Err(Fault::Inval);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_no_system_call_takes_are_invalid() {
        let size = |size| SetAttributes { size: Some(size), ..SetAttributes::default() };
        let refused = [
            SetAttributes { uid: Some(u32::MAX), ..SetAttributes::default() },
            SetAttributes { gid: Some(u32::MAX), ..SetAttributes::default() },
            size(1 << 63),
            size(u64::MAX),
        ];
        for set in refused {
            assert_eq!(check(&set), Err(Fault::Inval), "{set:?}");
        }
        assert_eq!(check(&size((1 << 63) - 1)), Ok(()));
    }
}
