//! Changes that were retransmitted and then refused: requests the current state of the objects, so
//! that policy can decide whether the first copy was executed.
//!
//! Sends requests only after such a refusal, which a server with a duplicate request cache never
//! returns. If a request fails, the refusal stands.

use std::sync::Arc;

use curt_policy::{
    CachingAttributes,
    retransmitted::{
        self as rules, CurrentObject, ExecutionInterval, LinksChange, NewObject, RemainingLinks,
    },
};
use curt_types::{Attributes, Fault, FileKind};

use crate::{
    dentry_cache::{NameInDirectory, ResolvedName},
    inode::Inode,
    ops::{change::NameChangeOutcome, getattr, lookup},
    protocol::CreateRequest,
    superblock::{Op, Superblock},
};

fn links(before: Option<Attributes>, now: &Attributes) -> LinksChange {
    LinksChange { before: before.map(|before| before.nlink), now: now.nlink, ctime: now.ctime }
}

/// The interval in which the first copy of a change in `directory` was executed, if it was; `None`
/// if the request was not retransmitted, or the server did not restart in between.
fn execution(sb: &Superblock, directory: &Inode, ended: NameChangeOutcome) -> Option<ExecutionInterval> {
    let lost_at = ended.lost_at.filter(|_| ended.is_alone)?;
    let fsid = directory.attributes()?.fsid;
    sb.core.clocks.execution(fsid, ended.sent_at, lost_at)
}

/// The object of `name`, if the change that failed with EEXIST has created it.
pub(in crate::ops) fn own_object(
    op: &Op<'_>,
    directory: &Arc<Inode>,
    name: &[u8],
    making: &CreateRequest<'_>,
    ended: NameChangeOutcome,
) -> Option<Arc<Inode>> {
    let execution = execution(op.sb, directory, ended)?;
    let inode = object_at(op, directory, name)?;
    let attributes = inode.attributes()?;
    let is_device = matches!(making.kind, FileKind::CharacterDevice | FileKind::BlockDevice);
    let is_same = attributes.kind == making.kind
        && (!is_device || attributes.rdev == making.device)
        && (making.kind != FileKind::Symlink || has_text(op, &inode, making.text));
    let wanted =
        NewObject { kind: making.kind, mode: making.mode, uid: op.identity.uid, gid: op.identity.gid };
    let Attributes { nlink: links, mtime, ctime, .. } = attributes;
    let found =
        CurrentObject { attributes: CachingAttributes::from(&attributes), links, mtime, ctime, is_same };
    let directory_gid = directory.attributes()?.gid;
    rules::is_own_object(&wanted, &found, directory_gid, &execution).then_some(inode)
}

fn object_at(op: &Op<'_>, directory: &Arc<Inode>, name: &[u8]) -> Option<Arc<Inode>> {
    match lookup::send_lookup(op, directory, name, None).ok()? {
        ResolvedName::Object(inode, _) => Some(inode),
        ResolvedName::Missing(_) => None,
    }
}

fn has_text(op: &Op<'_>, link: &Inode, text: &[u8]) -> bool {
    let answer = op.protocol().readlink(op.rpc_caller(), link.handle());
    answer.is_ok_and(|answer| answer.outcome.is_ok_and(|found| *found == *text))
}

/// Whether the LINK that failed with EEXIST has created the name. `before`: the file's attributes
/// before the request.
pub(crate) fn is_own_link(
    op: &Op<'_>,
    file: &Arc<Inode>,
    before: Option<Attributes>,
    directory: &Arc<Inode>,
    name: &[u8],
    ended: NameChangeOutcome,
) -> bool {
    let found = || {
        let execution = execution(op.sb, directory, ended)?;
        let found = object_at(op, directory, name)?;
        let now = found.attributes()?;
        let links = links(before, &now);
        Some(rules::is_own_link(Arc::ptr_eq(&found, file), &links, &execution))
    };
    found().unwrap_or(false)
}

/// Whether the REMOVE or RMDIR that failed with ENOENT has removed the name. `target`: the object
/// that the name referred to.
pub(crate) fn is_own_removal(
    op: &Op<'_>,
    directory: &Arc<Inode>,
    target: Option<&Arc<Inode>>,
    ended: NameChangeOutcome,
) -> bool {
    let found = || {
        let execution = execution(op.sb, directory, ended)?;
        let remains = remains(op, target?);
        getattr::send_getattr(op, directory).ok()?;
        let changed = directory.attributes()?.mtime;
        Some(rules::is_own_removal(&remains, changed, &execution))
    };
    found().unwrap_or(false)
}

fn remains(op: &Op<'_>, target: &Inode) -> RemainingLinks {
    let before = target.attributes();
    let Ok(answer) = op.protocol().attributes(op.rpc_caller(), target.handle()) else {
        return RemainingLinks::Unknown;
    };
    match answer.outcome {
        Ok(now) => {
            let _ = target.absorb(&now, op.sb.core.moment(answer.sent_at));
            match now.nlink {
                0 => RemainingLinks::Nothing,
                _ => RemainingLinks::Links(links(before, &now)),
            }
        }
        Err(Fault::Stale | Fault::Badhandle) => RemainingLinks::Nothing,
        Err(_) => RemainingLinks::Unknown,
    }
}

/// Whether the RENAME that failed with ENOENT has moved `source` from the old name to `to`.
/// `former`: the object that `to` referred to before.
pub(crate) fn is_own_rename(
    op: &Op<'_>,
    source: &Arc<Inode>,
    former: Option<&Arc<Inode>>,
    to: NameInDirectory<'_>,
    ended: NameChangeOutcome,
) -> bool {
    let found = || {
        let execution = execution(op.sb, to.directory, ended)?;
        let was_there = former.is_some_and(|former| Arc::ptr_eq(former, source));
        let is_there = Arc::ptr_eq(&object_at(op, to.directory, to.name)?, source);
        getattr::send_getattr(op, source).ok()?;
        getattr::send_getattr(op, to.directory).ok()?;
        let ctime = source.attributes()?.ctime;
        let changed = to.directory.attributes()?.mtime;
        Some(rules::is_own_rename(is_there, was_there, ctime, changed, &execution))
    };
    found().unwrap_or(false)
}
