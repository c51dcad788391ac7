//! What READ, WRITE, SETATTR of a size, and OPEN have in common: the check of the stateid, and the
//! statuses for objects that are no regular files.

use curt_proto::nfs4::{NfsStat4, Stateid};
use curt_types::{Attributes, Fault, FileKind};

use super::{Compound, OpFailure, Outcome};
use crate::ops;
use crate::request::{NfsRequest, VerifiedHandle};
use crate::state::{ChangeKind, FileChange, IoDirection, StateFault, WantedAccess};

/// Whether the client may read or write a file with a stateid of its arguments (RFC 8881 section
/// 8.2.5). The result exists as long as the operation lasts.
pub(super) fn check_stateid<'r>(
    compound: &mut Compound<'r, '_>,
    target: &VerifiedHandle<'r>,
    given: Stateid,
    io: IoDirection,
) -> Result<Option<FileChange<'r>>, OpFailure> {
    let stateid = compound.stateid(given)?;
    let slot = compound.slot()?;
    let (service, file) = (compound.request.service, target.file_key());
    let is_special = matches!(stateid, Stateid::ANONYMOUS | Stateid::READ_BYPASS);
    let is_write = io == IoDirection::Write;
    // Others have no delegation of a file that is open for writing, and get none before the end of
    // this, even if the open ends earlier.
    let change = (is_write && !is_special).then(|| service.held.delegations.begin_write(&file));
    let check = || service.held.check_io(slot.client(), &stateid, &file, io);
    match check() {
        Err(StateFault::Locked) => {
            service.expire_holders(&file, WantedAccess::Io(io))?;
            check()?;
        }
        outcome => outcome?,
    }
    Ok(if is_write && is_special {
        Some(compound.request.begin_change(target, ChangeKind::Data)?)
    } else {
        change
    })
}

/// The status of I/O that failed, for an object with these attributes: where the kernel says
/// "invalid" of all that is not regular, the protocol says what it is.
pub(super) fn failure(fault: Fault, attributes: Option<&Attributes>) -> OpFailure {
    let kind = attributes.map(|attributes| attributes.kind);
    match (fault, kind) {
        (Fault::Inval | Fault::Isdir, Some(kind)) if kind != FileKind::Regular => not_regular(kind).into(),
        _ => fault.into(),
    }
}

/// Refuses what is not a regular file.
pub(super) fn check_regular(request: &mut NfsRequest<'_, '_>, target: &VerifiedHandle<'_>) -> Outcome {
    let kind = ops::getattr(request, target)?.kind;
    if kind == FileKind::Regular { Ok(()) } else { Err(not_regular(kind).into()) }
}

/// The status for an object that is not a regular file.
pub(super) const fn not_regular(kind: FileKind) -> NfsStat4 {
    match kind {
        FileKind::Directory => NfsStat4::Isdir,
        FileKind::Symlink => NfsStat4::Symlink,
        _ => NfsStat4::WrongType,
    }
}
