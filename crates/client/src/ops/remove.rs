//! REMOVE and RMDIR, and files that are removed while they are open (sillyrename).
//!
//! An NFSv3 server forgets a file with its last name, whoever has it open. So a file that is open
//! here is renamed to `.nfs` and a number instead, as other clients do, which a listing shows, and
//! removed at its last release. Those of a client that died stay behind; the administrator removes
//! what `find -name '.nfs*'` shows on the server.

use std::sync::Arc;

use curt_types::Fault;
use rustix::io::Errno;

use crate::{
    identity::InodeId,
    inode::Inode,
    op::Op,
    open_unlink::RemovalGuard,
    ops::{
        change::{self, NameChangeOutcome, prove_change},
        last_close, lookup,
        names::{self, ResolvedName},
        rename, retransmitted,
    },
    superblock::Superblock,
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
    let _turn = op.sb.name_locks.lock(directory.id(), name, op.interrupt())?;
    let target = removal_target(op, &directory, name)?;
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
    match own_or_refused(op, &directory, removed, outcome, ended) {
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
    let former = op.sb.dentries.find(directory.id(), name).and_then(|kept| kept.child);
    let target = names::last_object(op.sb, &directory, name);
    await_last_closes(op, &directory, name, former.as_ref())?;
    let send = || op.protocol().remove(op.rpc_caller(), directory.handle(), name, true);
    let (outcome, ended) = change::change_name(op, &directory, name, send)?;
    match own_or_refused(op, &directory, target.as_ref(), outcome, ended) {
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

/// What a name leads to that is about to be removed or replaced.
#[must_use]
pub(crate) enum RemovalTarget {
    /// Programs here have it open, or are about to.
    Open(Arc<Inode>),
    /// Nobody here has.
    Closed(RemovalGuard),
    /// Nothing, as far as is known here.
    Missing,
}

/// The outcome of a removal whose refusal may have been of a second copy. `target`: what the
/// name led to.
pub(crate) fn own_or_refused(
    op: &Op<'_>,
    directory: &Arc<Inode>,
    target: Option<&Arc<Inode>>,
    outcome: Result<(), Fault>,
    ended: NameChangeOutcome,
) -> Result<(), Fault> {
    match outcome {
        Err(Fault::Noent) if retransmitted::is_own_removal(op, directory, target, ended) => {
            prove_change(op, directory, ended);
            Ok(())
        }
        outcome => outcome,
    }
}

/// What the removal of `name` would be of. If that is not open, the removal has begun: no open
/// of it is granted until the target is let go. A name that is not known is looked up, for it
/// may have been forgotten, or not kept because the directory was changing: only of a file that
/// is known can opens be told from those of others, which shall not wait.
pub(crate) fn removal_target(
    op: &Op<'_>,
    directory: &Arc<Inode>,
    name: &[u8],
) -> Result<RemovalTarget, Errno> {
    let kept = names::cached_dentry(op.sb, directory, name).and_then(|kept| kept.child);
    await_last_closes(op, directory, name, kept.as_ref())?;
    if let Some(child) = kept
        && let Some(removal) = RemovalGuard::begin(&child)
    {
        return Ok(RemovalTarget::Closed(removal));
    }
    // If it is open, somebody else may have given the name to another file since.
    Ok(match lookup::resolve(op, directory, name)? {
        ResolvedName::Object(inode, _) => match RemovalGuard::begin(&inode) {
            Some(removal) => RemovalTarget::Closed(removal),
            None => RemovalTarget::Open(inode),
        },
        ResolvedName::Missing(_) => RemovalTarget::Missing,
    })
}

/// Waits for the end of last closes in the directory that is about to be removed or replaced,
/// if `name` leads to one: they began before, and without them the server finds names in it.
/// `known` is what is kept of the name.
pub(crate) fn await_last_closes(
    op: &Op<'_>,
    directory: &Arc<Inode>,
    name: &[u8],
    known: Option<&Arc<Inode>>,
) -> Result<(), Errno> {
    if op.sb.silly_directories.is_empty() {
        return Ok(());
    }
    if let Some(known) = known {
        return op.sb.silly_directories.wait(known.id(), op.interrupt());
    }
    match lookup::resolve(op, directory, name) {
        Ok(ResolvedName::Object(found, _)) => op.sb.silly_directories.wait(found.id(), op.interrupt()),
        Err(Errno::INTR) => Err(Errno::INTR),
        // What is to be done with the name finds that out for itself.
        Ok(ResolvedName::Missing(_)) | Err(_) => Ok(()),
    }
}

/// Whether `name` may lead to a directory that holds names of removed files. Whoever is about
/// to remove or replace it then has to see to it that releases that came before have begun
/// ([`super::release_noting`]).
#[must_use]
pub fn may_hold_removed_files(sb: &Superblock, directory: InodeId, name: &[u8]) -> bool {
    if sb.silly_directories.is_empty() {
        return false;
    }
    let known = sb.dentries.find(directory, name).and_then(|kept| kept.child);
    known.is_none_or(|known| sb.silly_directories.contains(known.id()))
}
