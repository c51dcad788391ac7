//! What a name leads to that is about to be removed or replaced.

use std::sync::Arc;

use rustix::io::Errno;

use crate::{
    ops::{
        change::{NameChangeOutcome, prove_change},
        names::ResolvedName,
    },
    protocol::Fault,
};

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

use crate::{
    identity::InodeId, inode::Inode, op::Op, open_unlink::RemovalGuard, ops::lookup, ops::names,
    ops::retransmitted, superblock::Superblock,
};

/// The outcome of a removal whose refusal may have been of a second copy. `target`: what the
/// name led to.pub(crate)
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
/// `known` is what is kept of the name.pub(crate)
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
        return op.sb.silly_directories.wait(known.id(), &op.interrupt);
    }
    match lookup::resolve(op, directory, name) {
        Ok(ResolvedName::Object(found, _)) => op.sb.silly_directories.wait(found.id(), &op.interrupt),
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
