//! Names that the kernel caches for a moment: their lifetimes, and what these make necessary.
//!
//! The kernel answers for such a name without a request, and a lifetime is never revoked. So a
//! caller may have passed directories that no LOOKUP showed ([`check_path`]), and a
//! reply that contradicts what the kernel has cached waits ([`await_closed`], [`note_renamed`],
//! [`await_listed`]). [`grant`] alone begins lifetimes of names that replies show.

use std::{sync::Arc, time::Duration};

use curt_policy::{
    AccessDecision, Epoch, MonotonicTime, NameLabel,
    kernel_cache::{KernelNameView, wait_for, with_expiry_delay},
    names::DentryState,
};
use curt_types::{Access, FileKind};
use rustix::io::Errno;

use crate::{
    dentry_cache::NameInDirectory,
    inode::{Inode, InodeState},
    ops::permission::require,
    superblock::Op,
};

/// The object to which a name leads.
#[derive(Clone, Copy)]
pub(crate) struct NamedObject<'a> {
    pub(crate) inode: &'a Arc<Inode>,
    pub(crate) kind: FileKind,
}

/// How long the kernel may cache `name`, which leads to `child` or is missing, from now on. Called
/// last before the reply, so that the lifetime ends when it is recorded to end. Zero if no kernel
/// asks, or if `name` is not cached with this `label` any more: then it may have been renamed, and
/// the rename does not wait for a lifetime that begins afterwards.
pub(crate) fn grant(
    op: &Op<'_>,
    name: NameInDirectory<'_>,
    child: Option<NamedObject<'_>>,
    label: Option<NameLabel>,
) -> Duration {
    match label.filter(|_| may_grant(op, name.name)) {
        Some(label) => {
            let mut locked = name.directory.lock();
            let state = if child.is_some() { DentryState::Positive } else { DentryState::Negative };
            let clock = op.sb.core.clocks.of(locked.fsid().unwrap_or(0));
            let directory = name.directory.directory_view(&locked, &clock);
            let view = view(op, &locked, name.name, child.map(|child| child.kind));
            let lifetime = view.map_or(Duration::ZERO, |view| {
                view.lifetime(state, label, &directory, op.now(), &op.options)
            });
            grant_locked(op, &mut locked, name, child, label, lifetime)
        }
        None => {
            note_found(op, name, child);
            Duration::ZERO
        }
    }
}

/// The view that decides on the lifetime of a name; `None` if none is granted.
pub(crate) fn view(
    op: &Op<'_>,
    locked: &InodeState,
    name: &[u8],
    kind: Option<FileKind>,
) -> Option<KernelNameView> {
    // A remount may have come since the operation began; it waits for what was granted before.
    let longest = || op.sb.core.options().kernel_names;
    let view = || KernelNameView { granted: locked.name_lifetimes(), kind, longest: longest() };
    may_grant(op, name).then(view)
}

/// Grants a lifetime under the lock of the directory, whose state is `locked`.
pub(crate) fn grant_locked(
    op: &Op<'_>,
    locked: &mut InodeState,
    name: NameInDirectory<'_>,
    child: Option<NamedObject<'_>>,
    label: NameLabel,
    lifetime: Duration,
) -> Duration {
    let object = child.map(|child| child.inode);
    if !lifetime.is_zero() && record_lifetime(op, locked, name, object, label, lifetime) {
        return lifetime;
    }
    note_found(op, name, child);
    Duration::ZERO
}

fn may_grant(op: &Op<'_>, name: &[u8]) -> bool {
    !op.options.kernel_names.is_zero()
        && op.sb.grants_names()
        && !matches!(name, b"." | b"..")
        && op.kernel_time() == op.now()
}

/// LOOKUP has found `child`: its callers may have passed this name as well.
fn note_found(op: &Op<'_>, name: NameInDirectory<'_>, child: Option<NamedObject<'_>>) {
    if let Some(child) = child
        && op.sb.core.kernel.checks_paths(op.kernel_time())
        && !matches!(name.name, b"." | b"..")
    {
        op.sb.kernel_dentries.note_found(child.inode.id(), name.directory, op.kernel_time());
    }
}

/// Records the lifetime for the directory, for the object and for the mount, under the lock of the
/// directory: a rename that ends afterwards finds all of them. Returns whether the name may still
/// be granted one.
fn record_lifetime(
    op: &Op<'_>,
    locked: &mut InodeState,
    name: NameInDirectory<'_>,
    child: Option<&Arc<Inode>>,
    label: NameLabel,
    lifetime: Duration,
) -> bool {
    let (now, directory) = (op.now(), name.directory);
    if !op.sb.dentries.has(directory.id(), name.name, child, label) {
        return false;
    }
    let end = now.plus(lifetime);
    if let Some(child) = child
        && !op.sb.kernel_dentries.grant(child.id(), directory, now, end)
    {
        return false;
    }
    let state = if child.is_some() { DentryState::Positive } else { DentryState::Negative };
    locked.by_type.directory().name_lifetimes.grant(state, label.epoch, end);
    op.sb.core.kernel.note_name_lifetime(end);
    true
}

/// Checks that the caller may search the directories through which the kernel may have walked
/// without a look-up: the directory in which the kernel caches a name of `inode`, the one in which
/// it caches a name of that directory, and so on. If there are several, one of them is sufficient.
/// A caller that used a descriptor is not checked, unless the permission ended while the names were
/// cached.
///
/// # Errors
/// EACCES; those of ACCESS and GETATTR.
pub(crate) fn check_path(op: &Op<'_>, inode: &Arc<Inode>) -> Result<(), Errno> {
    if !op.sb.core.kernel.checks_paths(op.kernel_time()) {
        return Ok(());
    }
    let path = op.sb.kernel_dentries.path_of(inode.id(), op.kernel_time());
    for directory in &path.directories {
        check_search(op, directory)?;
    }
    if path.is_whole { Ok(()) } else { check_ways(op, path.directories.last().unwrap_or(inode)) }
}

/// As [`check_path`], for an object to which there are several ways, or a long one.
fn check_ways(op: &Op<'_>, inode: &Arc<Inode>) -> Result<(), Errno> {
    let mut ways = op.sb.kernel_dentries.directories_of(inode.id(), op.kernel_time());
    let Some(last) = ways.last() else {
        return Ok(());
    };
    let mut passed = vec![last.id()];
    let mut refusal = Errno::ACCESS;
    while let Some(directory) = ways.pop() {
        match check_search(op, &directory) {
            Ok(()) => {
                let above = op.sb.kernel_dentries.directories_of(directory.id(), op.kernel_time());
                if above.is_empty() {
                    return Ok(());
                }
                for directory in above {
                    if !passed.contains(&directory.id()) {
                        passed.push(directory.id());
                        ways.push(directory);
                    }
                }
            }
            // The caller may have passed another name, or the object was moved away from here.
            Err(error @ (Errno::ACCESS | Errno::STALE | Errno::NOENT)) => refusal = error,
            Err(error) => return Err(error),
        }
    }
    Err(refusal)
}

fn check_search(op: &Op<'_>, directory: &Arc<Inode>) -> Result<(), Errno> {
    match directory.access_decision(&op.identity, op.time(), Access::LOOKUP, &op.options) {
        AccessDecision::Allow => Ok(()),
        AccessDecision::Deny | AccessDecision::Revalidate | AccessDecision::Ask(_) => {
            require(op, directory, Access::LOOKUP)
        }
    }
}

/// If a user may not search `directory` after its attributes were set, waits until the kernel
/// caches no name of it.
pub(crate) fn await_closed(op: &Op<'_>, directory: &Inode) {
    let expiry = {
        let locked = directory.lock();
        let is_closed = !directory.everybody_may_search(&locked, op.options.users);
        locked.name_lifetimes().expiry().filter(|_| is_closed)
    };
    await_expiry(op, expiry);
}

/// Whether the kernel may have a present name of `directory`, which it then uses without a LOOKUP.
pub(crate) fn kernel_may_have_names(op: &Op<'_>, directory: &Inode) -> bool {
    with_expiry_delay(directory.lock().name_lifetimes().present_end()) > Some(op.kernel_time())
}

/// A name of `from` that leads to `moved`, if that is known, was renamed into `to`. The kernel
/// caches it there for as long as it would have in `from`. If some user may not search `to`, waits
/// for the end of that, and grants no more lifetimes in `from` for a while.
pub(crate) fn note_renamed(op: &Op<'_>, from: &Arc<Inode>, to: &Arc<Inode>, moved: Option<&Arc<Inode>>) {
    if Arc::ptr_eq(from, to) {
        return;
    }
    let end = {
        // Under the lock a lifetime that was granted before the rename has been recorded.
        let locked = from.lock();
        match moved {
            Some(moved) => op.sb.kernel_dentries.end_of(moved.id()),
            None => locked.name_lifetimes().present_end(),
        }
    };
    let has_links = moved
        .and_then(|moved| moved.attributes())
        .is_some_and(|known| known.kind != FileKind::Directory && known.nlink > 1);
    let end = end.filter(|end| with_expiry_delay(Some(*end)) > Some(op.kernel_time()));
    let is_open = {
        let mut locked = to.lock();
        let is_open = to.everybody_may_search(&locked, op.options.users);
        if let Some(end) = end.filter(|_| is_open) {
            locked.by_type.directory().name_lifetimes.grant_present(end);
        }
        if let Some(moved) = moved {
            op.sb.kernel_dentries.rename(moved.id(), from, to, has_links, op.kernel_time());
        }
        is_open
    };
    if !is_open {
        if op.sb.grants_names() {
            from.lock().by_type.directory().name_lifetimes.withhold(op.now());
        }
        await_expiry(op, with_expiry_delay(end));
    }
}

/// Whether the kernel may take a name for missing that a listing of `directory` in the epoch
/// `listed` shows.
pub(crate) fn contradicts_missing(op: &Op<'_>, directory: &Inode, listed: Option<Epoch>) -> bool {
    directory.lock().name_lifetimes().expiry_of_listed(listed) > Some(op.kernel_time())
}

/// Waits until the kernel does not any more. No missing name is granted a lifetime for a while, so
/// that the further requests of the same listing do not wait again.
pub(crate) fn await_listed(op: &Op<'_>, directory: &Inode, listed: Option<Epoch>) {
    let expiry = {
        let mut locked = directory.lock();
        locked.by_type.directory().name_lifetimes.withhold_missing(op.now());
        locked.name_lifetimes().expiry_of_listed(listed)
    };
    await_expiry(op, expiry);
}

/// A caller that is killed does not wait.
fn await_expiry(op: &Op<'_>, expiry: Option<MonotonicTime>) {
    let wait = wait_for(expiry, op.kernel_time());
    if !wait.is_zero() {
        op.sb.core.pause(wait, op.interrupt());
    }
}
