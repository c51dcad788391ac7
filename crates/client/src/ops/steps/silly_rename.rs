//! Silly rename: an open file is renamed instead of removed.
//!
//! An NFSv3 server deletes a file with its last name, even if clients have it open. So a file that
//! is open here is renamed to `.nfs` and a number instead, as other clients do, and removed at its
//! last release (`ops/close.rs`). Listings show the name. The silly names of a client that crashed
//! stay; an administrator can find them with `find -name '.nfs*'` on the server.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use curt_observe::{ClientCounter, events::Event, probe};
use rustix::io::Errno;

use crate::{
    dentry_cache::{NameInDirectory, ResolvedName},
    errno,
    inode::{Inode, type_state::SillyName},
    ops::{change, close, link, lookup, rename::rename_at_server},
    superblock::Op,
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
    if target.lock().by_type.file().silly.as_ref().is_some_and(|silly| *silly.name == *name) {
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
            let mut locked = target.lock();
            let state = locked.by_type.file();
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

/// Restores the name of an open file after its replacement failed. It uses LINK, which replaces
/// nothing, because the RENAME may have been executed although its reply was lost. Many servers
/// refuse LINK to another user's file (Linux: `fs.protected_hardlinks`); the file is then renamed
/// back if the name does not exist.
pub(crate) fn undo_sillyrename(op: &Op<'_>, place: NameInDirectory<'_>, target: &Arc<Inode>) {
    let Some(silly) = target.lock().by_type.file().silly.clone() else {
        return;
    };
    let forget = || {
        let mut locked = target.lock();
        locked.by_type.file().silly.take_if(|now| now.name == silly.name);
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
