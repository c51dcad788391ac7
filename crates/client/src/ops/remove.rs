//! REMOVE and RMDIR, and files that are removed while they are open (sillyrename).
//!
//! An NFSv3 server forgets a file with its last name, whoever has it open. So a file that is open
//! here is renamed to `.nfs` and a number instead, as other clients do, which a listing shows, and
//! removed at its last release. Those of a client that died stay behind; the administrator removes
//! what `find -name '.nfs*'` shows on the server.

use rustix::io::Errno;

use crate::{
    identity::InodeId,
    op::Op,
    ops::{
        change, last_close, lookup, names,
        removal::{self, RemovalTarget},
        rename,
    },
};

/// Removes a name of anything but a directory. A file that is open here lives on under another
/// name until its last release.
///
/// # Errors
/// ENOENT, EACCES, EISDIR or EPERM for a directory, EROFS and the others of REMOVE.
pub fn unlink(op: &Op<'_>, directory: InodeId, name: &[u8]) -> Result<(), Errno> {
    let directory = op.sb.find_directory(directory)?;
    lookup::check_name(op.sb, name)?;
    if matches!(name, b"." | b"..") {
        return Err(Errno::ISDIR);
    }
    let _turn = op.sb.name_locks.lock(directory.id(), name, &op.interrupt)?;
    let target = removal::removal_target(op, &directory, name)?;
    if let RemovalTarget::Open(target) = &target
        && !op.protocol().keeps_removed_files()
    {
        return rename::sillyrename(op, &directory, name, target);
    }
    let (outcome, ended) = last_close::remove_at_server(op, &directory, name)?;
    let removed = match &target {
        RemovalTarget::Closed(removal) => Some(removal.of()),
        RemovalTarget::Open(target) => Some(target),
        RemovalTarget::Missing => None,
    };
    match removal::own_or_refused(op, &directory, removed, outcome, ended) {
        Ok(()) => {
            let _ = change::learn_own(op.sb, &directory, name, None, ended);
            if let Some(removed) = removed {
                last_close::note_removed(op, removed);
            }
            Ok(())
        }
        Err(status) => Err(change::refused_change(op, &directory, name, status, ended)),
    }
}

/// Removes an empty directory.
///
/// # Errors
/// ENOTEMPTY, ENOENT, ENOTDIR, EACCES, EROFS and the others of RMDIR.
pub fn rmdir(op: &Op<'_>, directory: InodeId, name: &[u8]) -> Result<(), Errno> {
    let directory = op.sb.find_directory(directory)?;
    lookup::check_name(op.sb, name)?;
    match name {
        b"." => return Err(Errno::INVAL),
        b".." => return Err(Errno::NOTEMPTY),
        _ => {}
    }
    let former = op
        .sb
        .dentries
        .find(directory.id(), name)
        .and_then(|kept| kept.child);
    let target = names::last_object(op.sb, &directory, name);
    removal::await_last_closes(op, &directory, name, former.as_ref())?;
    let send = || {
        op.protocol()
            .remove(op.rpc_caller(), directory.handle(), name, true)
    };
    let (outcome, ended) = change::change_name(op, &directory, name, send)?;
    match removal::own_or_refused(op, &directory, target.as_ref(), outcome, ended) {
        Ok(()) => {
            let _ = change::learn_own(op.sb, &directory, name, None, ended);
            if let Some(gone) = former {
                gone.mark_stale();
            }
            Ok(())
        }
        Err(status) => Err(change::refused_change(op, &directory, name, status, ended)),
    }
}
