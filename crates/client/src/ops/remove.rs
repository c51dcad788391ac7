//! REMOVE and RMDIR. A file that is open here is renamed instead (`silly_rename`).

use std::sync::Arc;

use curt_types::Fault;
use rustix::io::Errno;

use crate::{
    api::InodeId,
    dentry_cache::{NameKey, ResolvedName},
    inode::{Inode, TypeState},
    open_unlink::RemovalGuard,
    ops::{
        change::{self, NameChangeOutcome, prove_change},
        close, kernel_names, lookup,
        steps::retransmitted,
        steps::silly_rename,
    },
    superblock::{Op, Superblock},
};

/// Removes a name of an object other than a directory. A file that is open here keeps a silly name
/// until its last release.
///
/// # Errors
/// ENOENT, EACCES, EISDIR or EPERM for a directory, EROFS and the others of REMOVE.
pub fn unlink(op: &Op<'_>, directory: InodeId, name: &[u8]) -> Result<(), Errno> {
    let directory = op.sb.find_directory(directory)?;
    kernel_names::check_path(op, &directory)?;
    lookup::check_name(op.sb, name)?;
    if matches!(name, b"." | b"..") {
        return Err(Errno::ISDIR);
    }
    let _name_lock = op.sb.name_locks.lock(NameKey::new(directory.id(), name), op.interrupt())?;
    let target = removal_target(op, &directory, name)?;
    if let RemovalTarget::Open(target) = &target
        && !op.protocol().keeps_removed_file(target.handle())
    {
        return silly_rename::sillyrename(op, &directory, name, target);
    }
    let (outcome, ended) = close::remove_at_server(op, &directory, name)?;
    let removed = match &target {
        RemovalTarget::Closed(removal) => Some(removal.of()),
        RemovalTarget::Open(target) => Some(target),
        RemovalTarget::Missing => None,
    };
    end_removal(op, &directory, name, removed, outcome, ended)
}

/// Applies the outcome of a removal of `name`, which referred to `removed`.
pub(crate) fn end_removal(
    op: &Op<'_>,
    directory: &Arc<Inode>,
    name: &[u8],
    removed: Option<&Arc<Inode>>,
    outcome: Result<(), Fault>,
    ended: NameChangeOutcome,
) -> Result<(), Errno> {
    match own_or_refused(op, directory, removed, outcome, ended) {
        Ok(()) => {
            let _ = change::learn_own(op.sb, directory, name, None, ended);
            if let Some(removed) = removed {
                note_removed_here(removed);
                close::note_removed(op, removed);
            }
            Ok(())
        }
        Err(status) => Err(change::refused_change(op, directory, name, status, ended)),
    }
}

/// Records that this mount has removed a name of a file that is open here, and not another client.
pub(crate) fn note_removed_here(removed: &Inode) {
    if let TypeState::File(file) = &mut removed.lock().by_type {
        file.was_removed_here = file.is_used();
    }
}

/// Removes an empty directory.
///
/// # Errors
/// ENOTEMPTY, ENOENT, ENOTDIR, EACCES, EROFS and the others of RMDIR.
pub fn rmdir(op: &Op<'_>, directory: InodeId, name: &[u8]) -> Result<(), Errno> {
    let directory = op.sb.find_directory(directory)?;
    kernel_names::check_path(op, &directory)?;
    lookup::check_name(op.sb, name)?;
    match name {
        b"." => return Err(Errno::INVAL),
        b".." => return Err(Errno::NOTEMPTY),
        _ => {}
    }
    let former = op.sb.dentries.find(directory.id(), name).and_then(|cached| cached.child);
    let target = op.sb.dentries.last_object(&directory, name);
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

/// The object of a name that is about to be removed or replaced.
#[must_use]
pub(crate) enum RemovalTarget {
    /// The file is open here or being opened.
    Open(Arc<Inode>),
    /// The file is not open here.
    Closed(RemovalGuard),
    /// The name does not exist, as far as this client knows.
    Missing,
}

/// The outcome of a removal; a refusal is a success if an earlier copy of the request was executed.
/// `target`: the object that the name referred to.
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

/// The object of `name`, which is about to be removed. If it is not open, its removal has begun: no
/// open of it is granted until the result is dropped. A name that is not cached is looked up,
/// because the client must know the file: only opens of the same file have to wait for the removal.
pub(crate) fn removal_target(
    op: &Op<'_>,
    directory: &Arc<Inode>,
    name: &[u8],
) -> Result<RemovalTarget, Errno> {
    let child = op.sb.dentries.cached_dentry(directory, name).and_then(|cached| cached.child);
    await_last_closes(op, directory, name, child.as_ref())?;
    if let Some(child) = child
        && let Some(removal) = RemovalGuard::begin(&child)
    {
        return Ok(RemovalTarget::Closed(removal));
    }
    // If the cached file is open, another client may have assigned the name to another file since.
    Ok(match lookup::resolve(op, directory, name)? {
        ResolvedName::Object(inode, _) => match RemovalGuard::begin(&inode) {
            Some(removal) => RemovalTarget::Closed(removal),
            None => RemovalTarget::Open(inode),
        },
        ResolvedName::Missing(_) => RemovalTarget::Missing,
    })
}

/// Waits for last closes in a directory that is about to be removed or replaced, if `name` refers
/// to one. The closes came first, and until their removals end the server finds names in the
/// directory. `known` is the cached object of the name.
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
        // The removal itself will return the error.
        Ok(ResolvedName::Missing(_)) | Err(_) => Ok(()),
    }
}

/// Whether `name` may refer to a directory that contains silly names. Before a caller removes or
/// replaces it, the caller must make sure that all earlier releases have begun
/// ([`super::release_noting`]).
#[must_use]
pub fn may_hold_removed_files(sb: &Superblock, directory: InodeId, name: &[u8]) -> bool {
    if sb.silly_directories.is_empty() {
        return false;
    }
    let known = sb.dentries.find(directory, name).and_then(|cached| cached.child);
    known.is_none_or(|known| sb.silly_directories.contains(known.id()))
}
