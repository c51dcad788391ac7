//! READLINK: the target of a symbolic link, cached while the link's attributes are valid.
//!
//! A kernel may cache the target too, without a limit in time. It does so only while it is cached
//! here, and each lookup of the link revalidates the link's attributes ([`revalidate_target`]).

use std::sync::{Arc, atomic::Ordering::Relaxed};

use curt_observe::ClientCounter;
use curt_types::FileKind;
use rustix::io::Errno;

use crate::{
    api::{ChangeObserver, InodeId},
    errno,
    inode::{Inode, TypeState, type_state::CachedLinkText},
    ops::{getattr, kernel_names},
    superblock::Op,
};

/// The target of a symbolic link, from the cache while the link's attributes are valid.
///
/// # Errors
/// EINVAL if the object is not a symbolic link; those of READLINK and GETATTR.
pub fn readlink(op: &Op<'_>, id: InodeId) -> Result<Box<[u8]>, Errno> {
    let inode = op.sb.find_inode(id)?;
    kernel_names::check_path(op, &inode)?;
    if let Some(text) = cached_link_text(op, &inode)? {
        forbid_caching_unless(op, &inode, true);
        return Ok(text);
    }
    let answer = op.protocol().readlink(op.rpc_caller(), inode.handle()).map_err(errno::of_call)?;
    let sent_at = op.sb.core.moment(answer.sent_at);
    let adopted =
        answer.attributes.as_ref().is_some_and(|attributes| inode.absorb(attributes, sent_at).adopted);
    let text = answer.outcome.map_err(|status| inode.note_failed_status(status))?;
    let mut locked = inode.lock();
    let is_link = locked.attributes.newest().is_some_and(|known| known.kind == FileKind::Symlink);
    let epoch = locked.contents().filter(|_| is_link && adopted);
    if let Some(epoch) = epoch {
        locked.by_type = TypeState::Link(Box::new(CachedLinkText { text: text.clone(), epoch }));
    }
    drop(locked);
    forbid_caching_unless(op, &inode, epoch.is_some());
    Ok(text)
}

/// Makes the kernel drop the target that it is about to receive, unless `may_cache`, or if each
/// operation of the kernel is to be seen.
fn forbid_caching_unless(op: &Op<'_>, inode: &Inode, may_cache: bool) {
    let core = &op.sb.core;
    if core.kernel.keeps_targets.load(Relaxed)
        && (!may_cache || core.kernel.withholds_names(|| core.now()))
        && let Some(observer) = &core.observer
    {
        observer.target_changed(inode.id());
    }
}

/// Revalidates the attributes of an object that a name leads to, if it is a symbolic link whose
/// target the kernel may return without a request. A changed target is notified to the observer.
pub(crate) fn revalidate_target(op: &Op<'_>, inode: &Arc<Inode>) -> Result<(), Errno> {
    if !op.sb.core.kernel.keeps_targets.load(Relaxed) || !inode.has_link_text() {
        return Ok(());
    }
    let is_valid = inode.lock().can_be_served(op.time(), &op.options);
    if is_valid { Ok(()) } else { getattr::revalidate(op, inode) }
}

/// Whether a reply that shows `inode`, a symbolic link, needs neither of these.
pub(crate) fn is_target_settled(op: &Op<'_>, inode: &Inode) -> bool {
    let core = &op.sb.core;
    let is_valid = || !inode.has_link_text() || inode.lock().can_be_served(op.time(), &op.options);
    let may_be_old = |observer: &Arc<dyn ChangeObserver>| observer.keeps_changed_target(inode.id());
    !core.kernel.keeps_targets.load(Relaxed)
        || (is_valid() && !core.observer.as_ref().is_some_and(may_be_old))
}

/// If `inode` is a symbolic link that has changed, waits until the kernel has dropped its target.
pub(crate) fn await_target_dropped(op: &Op<'_>, inode: &Inode) {
    if let Some(observer) = op.sb.core.observer.as_ref().filter(|_| must_await_target(op, inode)) {
        observer.await_target_dropped(inode.id());
        // The clock is read again.
        let _ = op.interrupt();
    }
}

/// Whether a reply that shows `inode` has to wait for that.
pub(crate) fn must_await_target(op: &Op<'_>, inode: &Inode) -> bool {
    let core = &op.sb.core;
    core.kernel.keeps_targets.load(Relaxed)
        && core.observer.as_ref().is_some_and(|observer| observer.keeps_changed_target(inode.id()))
        && inode.lock().attributes.newest().is_some_and(|known| known.kind == FileKind::Symlink)
}

fn cached_link_text(op: &Op<'_>, inode: &Arc<Inode>) -> Result<Option<Box<[u8]>>, Errno> {
    if !matches!(inode.lock().by_type, TypeState::Link(_)) {
        return Ok(None);
    }
    let is_believed = || inode.lock().can_be_served(op.time(), &op.options);
    if is_believed() {
        op.sb.count(ClientCounter::AttrHit);
    } else {
        getattr::revalidate(op, inode)?;
    }
    let locked = inode.lock();
    let TypeState::Link(link) = &locked.by_type else {
        return Ok(None);
    };
    Ok((locked.contents() == Some(link.epoch)).then(|| link.text.clone()))
}
