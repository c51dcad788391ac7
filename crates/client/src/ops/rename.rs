//! RENAME.

use std::sync::Arc;

use curt_types::{Fault, FileKind};
use rustix::io::Errno;

use crate::{
    api::{InodeId, RenameMode},
    dentry_cache::{NameInDirectory, ResolvedName},
    errno,
    inode::{Inode, TypeState},
    ops::{
        change::{self, NameChange, NameChangeOutcome, prove_change},
        close::{self, OpenGuard},
        kernel_names, lookup,
        remove::{self, RemovalTarget},
        steps::retransmitted,
        steps::silly_rename,
    },
    superblock::{Op, Superblock},
};

/// The object that is about to be renamed, if it is known. The kernel sends no LOOKUP for a name
/// that it caches, and a failed change may have dropped the name here since: then it is looked up,
/// because the rename changes the object's attributes.
fn source(op: &Op<'_>, from: &NameInDirectory<'_>) -> Result<Option<Arc<Inode>>, Errno> {
    let known = from.cached_child(&op.sb.dentries);
    if known.is_some() || !kernel_names::kernel_may_have_names(op, from.directory) {
        return Ok(known);
    }
    match lookup::resolve(op, from.directory, from.name)? {
        ResolvedName::Object(inode, _) => Ok(Some(inode)),
        ResolvedName::Missing(_) => Ok(None),
    }
}

/// Renames `old_name` to `new_name`, replacing an existing target. A replaced file that is open
/// here keeps a silly name until its last release.
///
/// # Errors
/// EINVAL for modes that NFS does not support; ENOENT, EXDEV, ENOTEMPTY, EACCES, EROFS and the
/// others of RENAME.
pub fn rename(
    op: &Op<'_>,
    old_directory: InodeId,
    old_name: &[u8],
    new_directory: InodeId,
    new_name: &[u8],
    mode: RenameMode,
) -> Result<(), Errno> {
    if mode != RenameMode::Replace {
        return Err(Errno::INVAL);
    }
    let (old, new) = (op.sb.find_directory(old_directory)?, op.sb.find_directory(new_directory)?);
    kernel_names::check_path(op, &old)?;
    kernel_names::check_path(op, &new)?;
    lookup::check_name(op.sb, old_name)?;
    lookup::check_name(op.sb, new_name)?;
    if [old_name, new_name].iter().any(|name| matches!(*name, b"." | b"..")) {
        return Err(Errno::BUSY);
    }
    let (from, to) = (NameInDirectory::new(&old, old_name), NameInDirectory::new(&new, new_name));
    let _name_locks = op.sb.name_locks.lock_both(from.key(), to.key(), op.interrupt())?;
    let moved = source(op, &from)?;
    let is_moved = |target: &Arc<Inode>| moved.as_ref().is_some_and(|moved| Arc::ptr_eq(moved, target));
    let target = remove::removal_target(op, &new, new_name)?;
    let former = match &target {
        RemovalTarget::Open(target) => Some(target).filter(|target| is_moved(target)),
        RemovalTarget::Closed(removal) => Some(removal.of()),
        RemovalTarget::Missing => None,
    };
    let is_kept = |target: &Inode| op.protocol().keeps_removed_file(target.handle());
    let replaced_open = match &target {
        RemovalTarget::Open(target) if !is_moved(target) && !is_kept(target) => Some(target),
        RemovalTarget::Open(_) | RemovalTarget::Closed(_) | RemovalTarget::Missing => None,
    };
    // Prevents a last close from removing the file, which gets its name back if RENAME fails.
    let _open = replaced_open.map(|target| OpenGuard::of_new(op.sb, target));
    if let Some(target) = replaced_open {
        silly_rename::sillyrename(op, &new, new_name, target)?;
    }
    if let Err(error) = rename_at_server(op, from, to, former) {
        if let Some(target) = replaced_open {
            silly_rename::undo_sillyrename(op, to, target);
        }
        return Err(error);
    }
    match &target {
        RemovalTarget::Closed(removal) if !is_moved(removal.of()) => close::note_removed(op, removal.of()),
        RemovalTarget::Open(target) if !is_moved(target) => remove::note_removed_here(target),
        RemovalTarget::Closed(_) | RemovalTarget::Open(_) | RemovalTarget::Missing => {}
    }
    kernel_names::note_renamed(op, &old, &new, moved.as_ref());
    Ok(())
}

/// Sends RENAME and caches the results of its success. `former` is the object of the new name.
pub(crate) fn rename_at_server(
    op: &Op<'_>,
    from: NameInDirectory<'_>,
    to: NameInDirectory<'_>,
    former: Option<&Arc<Inode>>,
) -> Result<(), Errno> {
    let source = op.sb.dentries.last_object(from.directory, from.name);
    let moved = from.cached_child(&op.sb.dentries);
    let replaced = to.cached_child(&op.sb.dentries);
    for changed in moved.iter().chain(&replaced) {
        changed.give_up_delegation();
    }
    let change_from = NameChange::begin(op.sb, from.directory, from.name);
    let change_to = NameChange::begin(op.sb, to.directory, to.name);
    let answer = op.protocol().rename(
        op.rpc_caller(),
        from.directory.handle(),
        from.name,
        to.directory.handle(),
        to.name,
    );
    let answer = answer.map_err(errno::of_call)?;
    let ended_from = change_from.end(&answer.attributes.from, &answer);
    let ended_to = change_to.end(&answer.attributes.to, &answer);
    let outcome = match (answer.outcome, &source) {
        (Err(Fault::Noent), Some(source))
            if retransmitted::is_own_rename(op, source, former, to, ended_to) =>
        {
            Ok(())
        }
        (outcome, _) => outcome,
    };
    if let Err(status) = outcome {
        change::refused_change(op, from.directory, from.name, status, ended_from);
        return Err(change::refused_change(op, to.directory, to.name, status, ended_to));
    }
    prove_change(op, from.directory, ended_from);
    prove_change(op, to.directory, ended_to);
    learn_renamed(op.sb, from, to, moved.as_ref(), ended_from, ended_to);
    if let Some(replaced) =
        replaced.filter(|replaced| !moved.is_some_and(|moved| Arc::ptr_eq(&moved, replaced)))
    {
        close::note_removed(op, &replaced);
    }
    Ok(())
}

fn learn_renamed(
    sb: &Superblock,
    from: NameInDirectory<'_>,
    to: NameInDirectory<'_>,
    moved: Option<&Arc<Inode>>,
    ended_from: NameChangeOutcome,
    ended_to: NameChangeOutcome,
) {
    let Some(moved) = moved else { return };
    let known = moved.attributes();
    let is_directory =
        moved.lock().attributes.newest().is_some_and(|known| known.kind == FileKind::Directory);
    // If both names refer to the same file, RENAME does nothing, and the old name still exists (RFC
    // 1813, section 3.3.14).
    if is_directory || known.is_some_and(|attributes| attributes.nlink == 1) {
        let _ = change::learn_own(sb, from.directory, from.name, None, ended_from);
    }
    // Its ctime has changed, and the `..` of a moved directory.
    moved.distrust_attributes();
    if is_directory && let TypeState::Directory(directory) = &mut moved.lock().by_type {
        directory.parent = None;
    }
    let _ = change::learn_own(sb, to.directory, to.name, Some(moved), ended_to);
}
