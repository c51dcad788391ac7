//! Changes that an earlier run of the server may have made without a reply. A call was interrupted,
//! and is repeated after a restart. If it fails like one that was executed before
//! (`replay::reply_cache::interrupted`), the tree may show that it was executed.
//!
//! An existing name is the result of a repeated creation if its object is of the right kind, is as
//! new as the call (its ctime is between the beginning of the call and of this run), is still
//! empty, and its directory has changed since. A missing name is the result of a repeated removal
//! if the directory has changed since the call began. After a rename, in addition, the object has
//! to be at the new name, with a ctime in that window.
//!
//! These functions are rarely called, and may wait for a disk.

use std::ops::ControlFlow;

use curt_types::{Attributes, Fault, FileKind, SetAttributes, Timestamp};
use curt_vfs::{CreateMode, CreatedNode, Error, NewNode, ReaddirDetail, VfsNode, WccResult};
use rustix::io::Errno;

use crate::replay::ExecutionWindow;
use crate::request::{NfsRequest, VerifiedHandle};

/// Repeats [`super::make()`], which failed because the name exists.
pub(super) fn make(
    request: &mut NfsRequest<'_, '_>,
    current: &VerifiedHandle<'_>,
    name: &[u8],
    object: NewNode<'_>,
    window: ExecutionWindow,
) -> WccResult<CreatedNode> {
    request.context.may_block();
    let made = new_at(current, name, window).and_then(|(mut node, above)| {
        if !is_of_caller(current, &node, object) || !is_as_made(current, &node, object) {
            return None;
        }
        set_rest(current, &mut node, object);
        make_durable(current).then_some((CreatedNode { node, new: true }, above))
    });
    let (value, after) = match made {
        Some((made, above)) => (Ok(made), Some(above)),
        None => (Err(Error::Os(Errno::EXIST)), None),
    };
    WccResult { before: None, after, value }
}

/// Repeats [`super::link()`], which failed because the name exists.
pub(super) fn link(
    request: &mut NfsRequest<'_, '_>,
    saved: &VerifiedHandle<'_>,
    current: &VerifiedHandle<'_>,
    name: &[u8],
    window: ExecutionWindow,
) -> Result<(), Fault> {
    request.context.may_block();
    let is_own = new_at(current, name, window).is_some_and(|(node, _)| node.handle == saved.node);
    (is_own && make_durable(current)).then_some(()).ok_or(Fault::Exist)
}

/// Repeats [`super::remove()`], which failed because the name does not exist.
pub(super) fn remove(
    request: &mut NfsRequest<'_, '_>,
    current: &VerifiedHandle<'_>,
    window: ExecutionWindow,
) -> WccResult<()> {
    request.context.may_block();
    let after = changed_since(current, window);
    let is_own = after.is_some() && make_durable(current);
    WccResult { before: None, after, value: is_own.then_some(()).ok_or(Error::Os(Errno::NOENT)) }
}

/// Repeats [`super::rename()`], which failed because the name does not exist.
pub(super) fn rename(
    request: &mut NfsRequest<'_, '_>,
    saved: &VerifiedHandle<'_>,
    current: &VerifiedHandle<'_>,
    to: &[u8],
    window: ExecutionWindow,
) -> Result<(), Fault> {
    request.context.may_block();
    let is_own = changed_since(saved, window).is_some() && new_at(current, to, window).is_some();
    (is_own && make_durable(current)).then_some(()).ok_or(Fault::Noent)
}

/// Whether `time` lies in `window`. A time in whole seconds was truncated by the file system.
fn is_within(time: Timestamp, window: ExecutionWindow) -> bool {
    is_since(time, window.from) && time <= window.until
}

fn is_since(time: Timestamp, from: Timestamp) -> bool {
    time >= from || time.nanoseconds() == 0 && time.seconds() == from.seconds()
}

/// The attributes of a directory, if it has changed since `window` began.
fn changed_since(directory: &VerifiedHandle<'_>, window: ExecutionWindow) -> Option<Attributes> {
    let now = directory.vfs().attributes(&directory.node).ok()?;
    is_since(now.mtime, window.from).then_some(now)
}

/// The object at a name, if both have changed in `window`; the directory may have changed later,
/// too.
fn new_at(
    directory: &VerifiedHandle<'_>,
    name: &[u8],
    window: ExecutionWindow,
) -> Option<(VfsNode, Attributes)> {
    let found = directory.vfs().lookup(&directory.caller(), &directory.node, name);
    let (node, above) = (found.value.ok()?, found.attributes?);
    let is_new = is_within(node.attributes.ctime, window) && is_since(above.mtime, window.from);
    is_new.then_some((node, above))
}

/// The reply promises a durable change, and the earlier run may have ended before the sync.
fn make_durable(directory: &VerifiedHandle<'_>) -> bool {
    directory.vfs().sync_all().is_ok()
}

/// Whether `node` has the owner and the mode that the caller would have set. A default ACL may
/// remove mode bits; setgid is inherited from the directory.
fn is_of_caller(directory: &VerifiedHandle<'_>, node: &VfsNode, object: NewNode<'_>) -> bool {
    const SET_GID: u32 = 0o2000;
    let set = object.set();
    let Attributes { uid, mode, .. } = node.attributes;
    let is_owner = uid == directory.caller().uid || set.uid == Some(uid);
    let wanted = set.mode.unwrap_or(0o7777) | SET_GID;
    is_owner && (node.attributes.kind == FileKind::Symlink || mode & 0o7777 & !wanted == 0)
}

/// Whether `node` is of the right kind and as empty as a new one. UNCHECKED accepts an existing
/// file, and EXCLUSIVE recognises its own.
fn is_as_made(directory: &VerifiedHandle<'_>, node: &VfsNode, object: NewNode<'_>) -> bool {
    let is = |kind| node.attributes.kind == kind;
    match object {
        NewNode::File(CreateMode::Guarded(set)) => {
            is(FileKind::Regular) && node.attributes.size == set.size.unwrap_or(0)
        }
        NewNode::File(CreateMode::Unchecked(_) | CreateMode::Exclusive(_)) => false,
        NewNode::Directory(_) => is(FileKind::Directory) && is_empty(directory, node),
        NewNode::Symlink(target, _) => is(FileKind::Symlink) && leads_to(directory, node, target),
        NewNode::Special(special, _) => is(special.kind()),
    }
}

fn is_empty(directory: &VerifiedHandle<'_>, node: &VfsNode) -> bool {
    let mut any = false;
    let mut visit = |entry: &curt_vfs::VfsDirEntry<'_>| {
        any = !matches!(entry.name, b"." | b"..");
        if any { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let caller = directory.caller();
    let listed = directory.vfs().read_directory(&caller, &node.handle, 0, ReaddirDetail::Names, &mut visit);
    listed.value.is_ok() && !any
}

fn leads_to(directory: &VerifiedHandle<'_>, link: &VfsNode, target: &[u8]) -> bool {
    let mut read = Vec::new();
    let answer = directory.vfs().read_link(&directory.caller(), &link.handle, &mut read);
    answer.value.is_ok() && read == target
}

/// Sets owner, group and times, because the server may have ended after it created the object and
/// before it set them. Attributes that the caller may not set stay unchanged, as at creation.
fn set_rest(directory: &VerifiedHandle<'_>, node: &mut VfsNode, object: NewNode<'_>) {
    let set = object.set();
    let caller = directory.caller();
    let rest = SetAttributes {
        mode: None,
        uid: set.uid.filter(|uid| caller.privileged && *uid != node.attributes.uid),
        gid: set.gid.filter(|gid| *gid != node.attributes.gid),
        size: None,
        ..set
    };
    if rest != SetAttributes::default() {
        let changed = directory.vfs().set_attributes(&caller, &node.handle, &rest, None);
        node.attributes = changed.after.unwrap_or(node.attributes);
    }
}
