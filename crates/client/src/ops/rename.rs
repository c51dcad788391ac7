//! RENAME.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use curt_observe::{ClientCounter, events::Event, probe};
use curt_types::{Fault, FileKind};
use rustix::io::Errno;

use crate::{
    api::{InodeId, RenameMode},
    dentry_cache::{NameInDirectory, ResolvedName},
    errno,
    inode::{Inode, TypeState, type_state::SillyName},
    ops::{
        change::{self, NameChange, NameChangeOutcome, prove_change},
        close::{self, OpenGuard},
        kernel_names, link, lookup,
        remove::{self, RemovalTarget},
        retransmitted,
    },
    superblock::{Op, Superblock},
};

/// Most silly names tried for a file before the removal fails with EBUSY.
const NAMES_MAX: u32 = 8;

/// Renames an open file to a silly name instead of removing it.
pub(crate) fn sillyrename(
    op: &Op<'_>,
    directory: &Arc<Inode>,
    name: &[u8],
    target: &Arc<Inode>,
) -> Result<(), Errno> {
    if target.facts().by_type.file().silly.as_ref().is_some_and(|silly| *silly.name == *name) {
        // The name is a silly name already. As in other clients, it cannot be removed while the
        // file is open.
        return Err(Errno::BUSY);
    }
    let fileid = target.attributes().map_or(0, |attributes| attributes.fileid);
    for _ in 0..NAMES_MAX {
        let number = op.sb.silly_names.fetch_add(1, Relaxed);
        let silly = format!(".nfs{fileid:016x}{number:08x}").into_bytes();
        // RENAME would replace an existing file of that name, left by a client that crashed.
        if let ResolvedName::Object(..) = lookup::send_lookup(op, directory, &silly, None)? {
            continue;
        }
        let renamed = rename_at_server(
            op,
            NameInDirectory::new(directory, name),
            NameInDirectory::new(directory, &silly),
            None,
        );
        probe!(let dir = directory.fileid_if_enabled(Event::NfsAsyncRenameDone); NfsAsyncRenameDone {
            dir,
            name,
            new_dir: dir,
            new_name: &silly[..],
            error: errno::event_status(&renamed)
        });
        renamed?;
        op.sb.count(ClientCounter::SillyRename);
        op.sb.silly_directories.add(directory.id());
        let (former, abandoned) = {
            let mut facts = target.facts();
            let state = facts.by_type.file();
            let identity = Arc::clone(&op.identity);
            let silly = SillyName { identity, directory: Arc::clone(directory), name: silly.into() };
            let former = state.silly.replace(silly);
            (former, state.take_unused_silly_name())
        };
        // A second name of the same file was removed.
        if let Some(former) = former {
            close::remove_silly(op.sb, target, &former);
        }
        // The file was closed in the meantime.
        if let Some(abandoned) = abandoned {
            close::remove_silly_name(op.sb, target, &abandoned);
        }
        return Ok(());
    }
    Err(Errno::BUSY)
}

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
        sillyrename(op, &new, new_name, target)?;
    }
    if let Err(error) = rename_at_server(op, from, to, former) {
        if let Some(target) = replaced_open {
            undo_sillyrename(op, to, target);
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

/// Restores the name of an open file after its replacement failed. It uses LINK, which replaces
/// nothing, because the RENAME may have been executed although its reply was lost. Many servers
/// refuse LINK to another user's file (Linux: `fs.protected_hardlinks`); the file is then renamed
/// back if the name does not exist.
fn undo_sillyrename(op: &Op<'_>, place: NameInDirectory<'_>, target: &Arc<Inode>) {
    let Some(silly) = target.facts().by_type.file().silly.clone() else {
        return;
    };
    let forget = || {
        let mut facts = target.facts();
        facts.by_type.file().silly.take_if(|now| now.name == silly.name);
    };
    match link::link_at_server(op, target, place.directory, place.name) {
        Ok(ended) => {
            let _ = change::learn_own(op.sb, place.directory, place.name, Some(target), ended);
            forget();
            close::remove_silly(op.sb, target, &silly);
        }
        // The target was replaced after all, or another client has created the name: the silly name
        // is removed at the last close.
        Err(Errno::EXIST) => {}
        Err(error) => {
            // Whether LINK succeeded or failed, this file is not removed.
            forget();
            op.sb.silly_directories.remove(silly.directory.id());
            if move_back(op, NameInDirectory::new(&silly.directory, &silly.name), place) {
                return;
            }
            let (name, silly) = (place.name.escape_ascii(), silly.name.escape_ascii());
            tracing::warn!(%name, %silly, %error, "cannot undo a silly rename after a failed rename");
        }
    }
}

/// Renames `from` to `to` if `to` does not exist; returns whether it did.
fn move_back(op: &Op<'_>, from: NameInDirectory<'_>, to: NameInDirectory<'_>) -> bool {
    let is_free = matches!(lookup::resolve(op, to.directory, to.name), Ok(ResolvedName::Missing(_)));
    is_free && rename_at_server(op, from, to, None).is_ok()
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
    let is_directory = moved.facts().state.facts().is_some_and(|known| known.kind == FileKind::Directory);
    // If both names refer to the same file, RENAME does nothing, and the old name still exists (RFC
    // 1813, section 3.3.14).
    if is_directory || known.is_some_and(|attributes| attributes.nlink == 1) {
        let _ = change::learn_own(sb, from.directory, from.name, None, ended_from);
    }
    // Its ctime has changed, and the `..` of a moved directory.
    moved.distrust_attributes();
    if is_directory && let TypeState::Directory(directory) = &mut moved.facts().by_type {
        directory.parent = None;
    }
    let _ = change::learn_own(sb, to.directory, to.name, Some(moved), ended_to);
}
