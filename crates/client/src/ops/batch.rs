//! Operations of the library on many paths at once, in few requests where the version allows that.
//!
//! A path is given from a directory; symbolic links are not followed. Each path has its own result.
//! Names are asked of the server, not of the cache, and are not cached.

use std::{collections::BTreeSet, sync::Arc};

use curt_types::{Attributes, FileKind, Wcc};
use rustix::io::Errno;

use crate::{
    api::{InodeId, OpenFlags},
    dentry_cache::{NameKey, ResolvedName},
    errno,
    inode::{Inode, InodeFlag},
    open_unlink::RemovalGuard,
    ops::{change::NameChange, close, getattr, kernel_names, lookup, open, read, remove},
    protocol::{NfsReply, ReadData},
    superblock::Op,
};

/// The most components of a path that is looked up in one request.
const COMPONENTS_MAX: usize = 16;

/// The most paths of one request; the session allows fewer.
const PATHS_MAX: usize = 256;

/// The most bytes of a file that are read while it is looked up.
const READ_MAX: u32 = 64 << 10;

/// Bytes of one read of a larger file.
const READ_STEP: usize = 1 << 20;

/// lstat(2) of each of `paths` below `directory`.
///
/// # Errors
/// There is no reply; `directory` is not one. Those of a path are in its own result.
pub fn stat_many(
    op: &Op<'_>,
    directory: InodeId,
    paths: &[&[u8]],
) -> Result<Vec<Result<Attributes, Errno>>, Errno> {
    each_path(op, directory, paths, None, |inode, _| getattr::stat(op, inode).map(|stat| stat.attributes))
}

/// The contents of each of the files `paths` below `directory`, as from open(2), read(2) to the end
/// and close(2). Nothing is cached.
///
/// # Errors
/// There is no reply; `directory` is not one. Those of a path are in its own result: EISDIR, ELOOP,
/// ENXIO for other types, and those of open(2) and read(2).
pub fn open_read_close(
    op: &Op<'_>,
    directory: InodeId,
    paths: &[&[u8]],
) -> Result<Vec<Result<Vec<u8>, Errno>>, Errno> {
    each_path(op, directory, paths, Some(READ_MAX), |inode, data| match data {
        // What was written here may be newer.
        Some(data) if data.end && !inode.data_if_any().is_some_and(|data| data.has_unwritten()) => {
            Ok(data.bytes.to_vec())
        }
        _ => read_whole(op, inode),
    })
}

fn read_whole(op: &Op<'_>, inode: &Arc<Inode>) -> Result<Vec<u8>, Errno> {
    if inode.attributes().is_some_and(|known| known.kind == FileKind::Directory) {
        return Err(Errno::ISDIR);
    }
    let file = open::open_inode(op, inode, OpenFlags::reading(), false)?.file;
    let mut bytes = Vec::new();
    let result = loop {
        match read(op, &file, bytes.len() as u64, READ_STEP) {
            Ok(part) if part.is_empty() => break Ok(()),
            Ok(part) => bytes.extend(part.to_vec()),
            Err(error) => break Err(error),
        }
    };
    close::release(op.sb, &file);
    result.map(|()| bytes)
}

/// unlink(2) of each of `names` in `directory`. The order is kept.
///
/// # Errors
/// There is no reply; `directory` is not one. Those of a name are in its own result.
pub fn remove_many(
    op: &Op<'_>,
    directory: InodeId,
    names: &[&[u8]],
) -> Result<Vec<Result<(), Errno>>, Errno> {
    let directory = op.sb.find_directory(directory)?;
    kernel_names::check_path(op, &directory)?;
    let mut results = Vec::with_capacity(names.len());
    while results.len() < names.len() {
        let rest = &names[results.len()..];
        let before = results.len();
        results.extend(remove_some(op, &directory, rest)?);
        if results.len() == before {
            results.push(remove::unlink(op, directory.id(), rest[0]));
        }
    }
    Ok(results)
}

/// Removes the first of these names in one request; none if that cannot be done.
fn remove_some(
    op: &Op<'_>,
    directory: &Arc<Inode>,
    names: &[&[u8]],
) -> Result<Vec<Result<(), Errno>>, Errno> {
    let mut seen = BTreeSet::new();
    let all = names.iter().take(PATHS_MAX).copied();
    let names: Vec<&[u8]> = all
        .take_while(|name| {
            let is_usable = lookup::check_name(op.sb, name).is_ok() && !matches!(*name, b"." | b"..");
            is_usable && seen.insert(*name)
        })
        .collect();
    if names.len() < 2 {
        return Ok(Vec::new());
    }
    // All locks before the first removal begins, and in the order of their names.
    let mut locks = Vec::with_capacity(names.len());
    for name in names.iter().collect::<BTreeSet<_>>() {
        locks.push(op.sb.name_locks.lock(NameKey::new(directory.id(), name), op.interrupt())?);
    }
    let mut removals = Vec::with_capacity(names.len());
    let targets = removal_targets(op, directory, &names)?;
    for target in &targets {
        match target.as_ref().map(RemovalGuard::begin) {
            Some(None) => break,
            Some(removal) => removals.push(removal),
            None => removals.push(None),
        }
    }
    // Those of the first names are returned first: they are removed in the first request.
    for target in targets.iter().take(removals.len()).rev().flatten() {
        target.give_up_delegation();
    }
    remove_targets(op, directory, &names[..removals.len()], &removals)
}

/// Removes names whose removals have begun: the first in one request, and the others too if an
/// earlier copy of that request may have removed them.
fn remove_targets(
    op: &Op<'_>,
    directory: &Arc<Inode>,
    names: &[&[u8]],
    removals: &[Option<RemovalGuard>],
) -> Result<Vec<Result<(), Errno>>, Errno> {
    let mut results = Vec::with_capacity(names.len());
    let mut earlier: Option<NfsReply<(), ()>> = None;
    loop {
        let rest = &names[results.len()..];
        let mut changes: Vec<_> = rest.iter().map(|name| NameChange::begin(op.sb, directory, name)).collect();
        let Some(answer) = op.protocol().remove_names(op.rpc_caller(), directory.handle(), rest) else {
            return Ok(results);
        };
        let NfsReply { sent_at, lost_at, outcome, attributes } = answer.map_err(errno::of_call)?;
        let outcomes = match outcome {
            Ok(outcomes) if !outcomes.is_empty() && outcomes.len() <= rest.len() => outcomes,
            Ok(_) => return Err(Errno::IO),
            Err(fault) => return Err(errno::of_fault(fault)),
        };
        let mut reply = NfsReply { sent_at, lost_at, outcome: Ok(()), attributes: () };
        if let Some(earlier) = earlier {
            reply.sent_at = earlier.sent_at;
            reply.lost_at = lost_at.or(earlier.lost_at);
        }
        // The changes of names that were not reached end without a result, and first.
        drop(changes.split_off(outcomes.len()));
        let last = outcomes.len() - 1;
        for (at, (change, outcome)) in changes.into_iter().zip(outcomes).enumerate() {
            let wcc = if at == last { attributes } else { Wcc::default() };
            let ended = change.end(&wcc, &reply);
            let removed = removals[results.len()].as_ref().map(RemovalGuard::of);
            results.push(remove::end_removal(op, directory, rest[at], removed, outcome, ended));
            if outcome.is_ok() {
                // The names are removed in their order: an earlier copy has not come to this one.
                reply.lost_at = None;
            }
        }
        if reply.lost_at.is_none() || results.len() == names.len() {
            return Ok(results);
        }
        earlier = Some(reply);
    }
}

/// The objects of names that are about to be removed, as far as there are any.
fn removal_targets(
    op: &Op<'_>,
    directory: &Arc<Inode>,
    names: &[&[u8]],
) -> Result<Vec<Option<Arc<Inode>>>, Errno> {
    let cached = |name: &&[u8]| op.sb.dentries.cached_dentry(directory, name).and_then(|cached| cached.child);
    let mut targets: Vec<_> = names.iter().map(cached).collect();
    let unknown = names.iter().zip(&targets).filter(|(_, target)| target.is_none());
    let unknown: Vec<&[u8]> = unknown.map(|(name, _)| *name).collect();
    let mut found =
        each_path(op, directory.id(), &unknown, None, |inode, _| Ok(Arc::clone(inode)))?.into_iter();
    for target in targets.iter_mut().filter(|target| target.is_none()) {
        *target = match found.next() {
            Some(Ok(inode)) => Some(inode),
            Some(Err(Errno::NOENT)) | None => None,
            Some(Err(error)) => return Err(error),
        };
    }
    Ok(targets)
}

/// Calls `finish` with the object of each path, and with its first bytes if they are to be read and
/// came with it.
fn each_path<T>(
    op: &Op<'_>,
    directory: InodeId,
    paths: &[&[u8]],
    read: Option<u32>,
    finish: impl Fn(&Arc<Inode>, Option<ReadData>) -> Result<T, Errno>,
) -> Result<Vec<Result<T, Errno>>, Errno> {
    let directory = op.sb.find_directory(directory)?;
    kernel_names::check_path(op, &directory)?;
    let mut results = Vec::with_capacity(paths.len());
    while results.len() < paths.len() {
        let rest = &paths[results.len()..];
        let split = rest.iter().take(PATHS_MAX).map_while(|path| components(op, path).ok());
        let split: Vec<Vec<&[u8]>> = split.take_while(|names| names.len() <= COMPONENTS_MAX).collect();
        let found = (!split.is_empty())
            .then(|| op.protocol().find_paths(op.rpc_caller(), directory.handle(), &split, read))
            .flatten();
        let Some(answer) = found else {
            let walked = components(op, rest[0]).and_then(|names| walk(op, &directory, &names));
            results.push(walked.and_then(|inode| finish(&inode, None)));
            continue;
        };
        let answer = answer.map_err(errno::of_call)?;
        let found = answer.outcome.map_err(errno::of_fault)?;
        if found.is_empty() || found.len() > split.len() {
            return Err(Errno::IO);
        }
        let sent_at = op.sb.core.moment(answer.sent_at);
        for path in found {
            let object = path.map_err(errno::of_fault).map(|path| {
                let inode = op.sb.registry.inode(&path.found.handle);
                inode.clear(InodeFlag::Stale);
                if let Some(attributes) = &path.found.attributes {
                    let _ = inode.absorb(attributes, sent_at);
                }
                (inode, path.data)
            });
            results.push(object.and_then(|(inode, data)| finish(&inode, data)));
        }
    }
    Ok(results)
}

/// The components of a path.
fn components<'a>(op: &Op<'_>, path: &'a [u8]) -> Result<Vec<&'a [u8]>, Errno> {
    let names = path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
    let names: Vec<&[u8]> = names.collect();
    for name in &names {
        lookup::check_name(op.sb, name)?;
        if *name == b".." {
            return Err(Errno::INVAL);
        }
    }
    Ok(names)
}

/// Looks the names up, one after the other.
fn walk(op: &Op<'_>, directory: &Arc<Inode>, names: &[&[u8]]) -> Result<Arc<Inode>, Errno> {
    let mut at = Arc::clone(directory);
    for name in names {
        at = match lookup::resolve(op, &at, name)? {
            ResolvedName::Object(inode, _) => inode,
            ResolvedName::Missing(_) => return Err(Errno::NOENT),
        };
    }
    Ok(at)
}
