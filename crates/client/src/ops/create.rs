//! CREATE, MKDIR, SYMLINK and MKNOD: new names for new objects.

use std::{
    hash::{BuildHasher, RandomState},
    sync::Arc,
};

use curt_rpc::client::CallError;
use curt_trace::{events::Event, probe, scope};
use curt_types::{Fault, FileHandle, SetAttributes, SetTime, Wcc};
use rustix::{fs::OFlags, io::Errno};

use super::{
    change::{NameChangeOutcome, prove_change},
    retransmitted::Making,
};
use crate::{
    api::{FoundInode, OpenFlags, OpenResult},
    errno,
    identity::InodeId,
    inode::Inode,
    op::Op,
    ops::{
        attributes, change, last_close::OpenGuard, lookup, names::ResolvedName, open, retransmitted, setattr,
    },
    protocol::{CreateReply, CreateSemantics, MknodType, NfsReply, v3},
    superblock::Superblock,
};

/// Has a file made, and tells of it.
fn traced_create(
    op: &Op<'_>,
    directory: &Inode,
    name: &[u8],
    flags: OpenFlags,
    mode: u32,
    make: impl FnOnce() -> Result<(Arc<Inode>, NameChangeOutcome), Errno>,
) -> Result<(Arc<Inode>, NameChangeOutcome), Errno> {
    probe!(NfsCreateEnter {
        pid: scope::current().process,
        uid: op.identity.uid,
        dir: directory.fileid_if_enabled(Event::NfsCreateEnter),
        name,
        flags: bits(flags),
        mode
    });
    let made = make();
    let fileid = made
        .as_ref()
        .map_or(0, |(inode, _)| inode.fileid_if_enabled(Event::NfsCreateExit));
    probe!(NfsCreateExit {
        dir: directory.fileid_if_enabled(Event::NfsCreateExit),
        name,
        fileid,
        error: errno::event_status(&made)
    });
    made
}

/// As open(2) takes them, as far as the client is told.
fn bits(flags: OpenFlags) -> u32 {
    let access = match (flags.read, flags.write) {
        (true, true) => OFlags::RDWR,
        (false, true) => OFlags::WRONLY,
        (_, false) => OFlags::RDONLY,
    };
    let others = [
        (flags.exclusive, OFlags::EXCL),
        (flags.truncate, OFlags::TRUNC),
        (flags.append, OFlags::APPEND),
        (flags.direct, OFlags::DIRECT),
        (flags.sync, OFlags::SYNC),
    ];
    let others = others.into_iter().filter(|(is_set, _)| *is_set);
    others
        .fold(access | OFlags::CREATE, |all, (_, flag)| all | flag)
        .bits()
}

/// Makes `name` in `directory` if it is not there, and opens it: open(2) with O_CREAT. `mode`
/// is what the file gets if it is made (umask applied already). With [`OpenFlags::exclusive`]
/// the name must be new.
///
/// # Errors
/// EEXIST, EACCES, ENOSPC, EROFS and the others of CREATE; those of [`super::open`] if the
/// file was there.
pub fn create(
    op: &Op<'_>,
    directory: InodeId,
    name: &[u8],
    mode: u32,
    flags: OpenFlags,
) -> Result<(FoundInode, OpenResult), Errno> {
    let directory = op.sb.find_directory(directory)?;
    check_new_name(op.sb, name)?;
    let set = SetAttributes {
        mode: Some(mode),
        ..SetAttributes::default()
    };
    // Until it is counted as open nobody here removes it.
    let turn = op.sb.name_locks.lock(directory.id(), name, &op.interrupt)?;
    let make = || {
        if flags.exclusive {
            return create_exclusive(op, &directory, name, set);
        }
        // Guarded, not unchecked: a file that is there already must not be given this mode.
        make(op, &directory, name, Some(&Making::file(mode)), |place| {
            v3::create(
                &op.sb.core.rpc,
                op.rpc_caller(),
                place,
                name,
                &CreateSemantics::Guarded(set),
            )
        })
    };
    let made = traced_create(op, &directory, name, flags, mode, make);
    match made {
        Ok((inode, ended)) => {
            let opening = OpenGuard::of_new(op.sb, &inode);
            let found = found_made(op, &directory, name, &inode, ended)?;
            drop(turn);
            // Whoever makes a file may use it as op, whatever its mode says.
            let flags = OpenFlags {
                truncate: false,
                ..flags
            };
            Ok((found, open::opened(op, opening, flags)))
        }
        Err(Errno::EXIST) if !flags.exclusive => {
            // It was there, or our own request was executed twice: the name is looked up at the
            // server, since what led here was the belief that it was missing.
            drop(turn);
            match lookup::send_lookup(op, &directory, name, None)? {
                ResolvedName::Object(inode, label) => {
                    let opened = open::open_inode(op, &inode, flags, false)?;
                    let found = lookup::found(op, &directory, &inode, label)?;
                    Ok((found, opened))
                }
                ResolvedName::Missing(_) => Err(Errno::NOENT),
            }
        }
        Err(error) => Err(error),
    }
}

/// O_EXCL: the server keeps a verifier with the new file, by which a repeated request is known.
fn create_exclusive(
    op: &Op<'_>,
    directory: &Arc<Inode>,
    name: &[u8],
    set: SetAttributes,
) -> Result<(Arc<Inode>, NameChangeOutcome), Errno> {
    // Random, and different for each call: the keys of RandomState are the process's own.
    let verifier = RandomState::new().hash_one((directory.id(), name, op.now().nanoseconds()));
    let how = CreateSemantics::Exclusive(verifier.to_be_bytes());
    let making = set.mode.map(Making::file);
    let made = make(op, directory, name, None, |place| {
        v3::create(&op.sb.core.rpc, op.rpc_caller(), place, name, &how)
    });
    match made {
        Ok((inode, ended)) => {
            // The server kept the verifier in the times.
            let now = SetTime::ServerTime;
            let set = SetAttributes {
                atime: now,
                mtime: now,
                ..set
            };
            setattr::set_attributes(op, &inode, &set)?;
            Ok((inode, ended))
        }
        Err(Errno::OPNOTSUPP) => make(op, directory, name, making.as_ref(), |place| {
            v3::create(
                &op.sb.core.rpc,
                op.rpc_caller(),
                place,
                name,
                &CreateSemantics::Guarded(set),
            )
        }),
        Err(error) => Err(error),
    }
}

/// Makes a directory.
///
/// # Errors
/// EEXIST, EACCES, ENOSPC, EROFS and the others of MKDIR.
pub fn mkdir(op: &Op<'_>, directory: InodeId, name: &[u8], mode: u32) -> Result<FoundInode, Errno> {
    let set = SetAttributes {
        mode: Some(mode),
        ..SetAttributes::default()
    };
    let making = Making::directory(mode);
    make_found(op, directory, name, &making, |op, place| {
        v3::mkdir(&op.sb.core.rpc, op.rpc_caller(), place, name, &set)
    })
}

/// Makes a symbolic link with this text.
///
/// # Errors
/// EEXIST, EACCES, ENOSPC, EROFS and the others of SYMLINK.
pub fn symlink(op: &Op<'_>, directory: InodeId, name: &[u8], text: &[u8]) -> Result<FoundInode, Errno> {
    let set = SetAttributes {
        mode: Some(0o777),
        ..SetAttributes::default()
    };
    make_found(op, directory, name, &Making::link(text), |op, place| {
        v3::symlink(&op.sb.core.rpc, op.rpc_caller(), place, name, text, &set)
    })
}

/// Makes a device, named pipe or socket.
///
/// # Errors
/// EEXIST, EACCES, EPERM and the others of MKNOD.
pub fn mknod(
    op: &Op<'_>,
    directory: InodeId,
    name: &[u8],
    node: MknodType,
    mode: u32,
) -> Result<FoundInode, Errno> {
    let set = SetAttributes {
        mode: Some(mode),
        ..SetAttributes::default()
    };
    let making = Making::node(node, mode);
    make_found(op, directory, name, &making, |op, place| {
        v3::mknod(&op.sb.core.rpc, op.rpc_caller(), place, name, node, &set)
    })
}

/// Makes a regular file without opening it, as mknod(2) can.
///
/// # Errors
/// EEXIST, EACCES, ENOSPC, EROFS and the others of CREATE.
pub fn make_file(op: &Op<'_>, directory: InodeId, name: &[u8], mode: u32) -> Result<FoundInode, Errno> {
    let set = SetAttributes {
        mode: Some(mode),
        ..SetAttributes::default()
    };
    let directory = op.sb.find_directory(directory)?;
    check_new_name(op.sb, name)?;
    let how = CreateSemantics::Guarded(set);
    let flags = OpenFlags {
        exclusive: true,
        ..OpenFlags::default()
    };
    let (inode, ended) = traced_create(op, &directory, name, flags, mode, || {
        make(op, &directory, name, Some(&Making::file(mode)), |place| {
            v3::create(&op.sb.core.rpc, op.rpc_caller(), place, name, &how)
        })
    })?;
    found_made(op, &directory, name, &inode, ended)
}

fn make_found(
    op: &Op<'_>,
    directory: InodeId,
    name: &[u8],
    making: &Making<'_>,
    send: impl FnOnce(&Op<'_>, &FileHandle) -> Result<NfsReply<CreateReply, Wcc>, CallError>,
) -> Result<FoundInode, Errno> {
    let directory = op.sb.find_directory(directory)?;
    check_new_name(op.sb, name)?;
    let send = |place: &FileHandle| send(op, place);
    let (inode, ended) = make(op, &directory, name, Some(making), send)?;
    found_made(op, &directory, name, &inode, ended)
}

/// The names `.` and `..` are there always.
pub(crate) fn check_new_name(sb: &Superblock, name: &[u8]) -> Result<(), Errno> {
    if matches!(name, b"." | b"..") {
        return Err(Errno::EXIST);
    }
    lookup::check_name(sb, name)
}

fn found_made(
    op: &Op<'_>,
    directory: &Arc<Inode>,
    name: &[u8],
    inode: &Arc<Inode>,
    ended: NameChangeOutcome,
) -> Result<FoundInode, Errno> {
    let label = change::learn_own(op.sb, directory, name, Some(inode), ended);
    let found = lookup::found(op, directory, inode, label)?;
    Ok(found)
}

/// Sends the request that makes `name`, and finds out what it made. Without `making` it is the
/// server that knows a second copy of the request, by its verifier.
fn make(
    op: &Op<'_>,
    directory: &Arc<Inode>,
    name: &[u8],
    making: Option<&Making<'_>>,
    send: impl FnOnce(&FileHandle) -> Result<NfsReply<CreateReply, Wcc>, CallError>,
) -> Result<(Arc<Inode>, NameChangeOutcome), Errno> {
    let (outcome, ended) = change::change_name(op, directory, name, || send(directory.handle()))?;
    let created = match outcome {
        Ok(created) => created,
        Err(status) => {
            let making = making.filter(|_| status == Fault::Exist);
            let own = making.and_then(|making| retransmitted::own_object(op, directory, name, making, ended));
            let Some(inode) = own else {
                return Err(change::refused_change(op, directory, name, status, ended));
            };
            prove_change(op, directory, ended);
            return Ok((inode, ended));
        }
    };
    let Some(handle) = created.handle else {
        return match lookup::send_lookup(op, directory, name, None)? {
            ResolvedName::Object(inode, _) => Ok((inode, ended)),
            // Somebody removed it at once.
            ResolvedName::Missing(_) => Err(Errno::NOENT),
        };
    };
    let inode = op.sb.core.registry.inode(&op.sb.core, &handle);
    inode.clear_stale();
    match &created.attributes {
        Some(attributes) => {
            let _ = inode.absorb(attributes, ended.sent_at);
        }
        None => attributes::send_getattr(op, &inode)?,
    }
    // Nobody else's name brought it.
    inode.note_use();
    Ok((inode, ended))
}
