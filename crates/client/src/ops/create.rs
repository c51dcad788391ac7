//! CREATE, MKDIR, SYMLINK and MKNOD: new names for new objects.

use std::sync::Arc;

use curt_observe::{events::Event, probe, scope};
use curt_policy::open::OpenTime;
use curt_types::{Device, Fault, FileKind};
use rustix::{fs::OFlags, io::Errno};

use super::change::{NameChangeOutcome, prove_change};
use crate::{
    api::{FoundInode, InodeId, OpenFlags},
    dentry_cache::{NameInDirectory, NameKey, ResolvedName},
    errno,
    inode::{Inode, InodeFlag},
    open_file::OpenResult,
    ops::{
        change,
        close::OpenGuard,
        getattr, kernel_names, lookup, open,
        steps::retransmitted,
        steps::server_open::{ServerOpenGuard, share_access},
    },
    protocol::{CreateRequest, NewOpen, OpenOwner},
    superblock::{Op, Superblock},
};

/// Creates a file and traces the request.
fn traced_create(
    op: &Op<'_>,
    directory: &Arc<Inode>,
    name: &[u8],
    flags: OpenFlags,
    new: &CreateRequest<'_>,
) -> Result<(Arc<Inode>, NameChangeOutcome), Errno> {
    probe!(NfsCreateEnter {
        pid: scope::current().process,
        uid: op.identity.uid,
        dir: directory.fileid_if_enabled(Event::NfsCreateEnter),
        name,
        flags: bits(flags),
        mode: new.mode
    });
    let made = make(op, directory, name, new);
    let fileid = made.as_ref().map_or(0, |(inode, _)| inode.fileid_if_enabled(Event::NfsCreateExit));
    probe!(NfsCreateExit {
        dir: directory.fileid_if_enabled(Event::NfsCreateExit),
        name,
        fileid,
        error: errno::event_status(&made)
    });
    made
}

/// The flags in the encoding of open(2), as far as the client knows them.
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
    others.fold(access | OFlags::CREATE, |all, (_, flag)| all | flag).bits()
}

/// open(2) with O_CREAT: creates `name` in `directory` if it does not exist, and opens it. `mode`
/// is the mode of a created file, with the umask applied. With [`OpenFlags::exclusive`] the name
/// must not exist.
///
/// # Errors
/// EEXIST, EACCES, ENOSPC, EROFS and the others of CREATE; those of [`super::open`] if the file
/// existed.
pub fn create(
    op: &Op<'_>,
    directory: InodeId,
    name: &[u8],
    mode: u32,
    flags: OpenFlags,
) -> Result<(FoundInode, OpenResult), Errno> {
    let directory = op.sb.find_directory(directory)?;
    kernel_names::check_path(op, &directory)?;
    check_new_name(op.sb, name)?;
    // No other operation of this mount removes it before it is counted as open.
    let name_lock = op.sb.name_locks.lock(NameKey::new(directory.id(), name), op.interrupt())?;
    let owner = OpenOwner { number: op.identity.number, credential: &op.identity.credential };
    let at_creation = NewOpen { owner, access: share_access(flags) };
    let new =
        CreateRequest { is_exclusive: flags.exclusive, open: Some(at_creation), ..CreateRequest::file(mode) };
    let made = traced_create(op, &directory, name, flags, &new);
    match made {
        Ok((inode, ended)) => {
            let opening = OpenGuard::of_new(op.sb, &inode);
            let at_server = ServerOpenGuard::get(op, &inode, flags, OpenTime::Now)?;
            let found = found_made(op, &directory, name, &inode, ended)?;
            drop(name_lock);
            // The creator may use the file with the flags of its open, whatever the mode (POSIX,
            // open).
            let flags = OpenFlags { truncate: false, ..flags };
            Ok((found, open::opened(op, opening, at_server, flags)))
        }
        Err(Errno::EXIST) if !flags.exclusive => {
            // The file existed, or our own request was executed twice. The name is looked up at the
            // server, because the cache had no entry or a negative one.
            drop(name_lock);
            match lookup::send_lookup(op, &directory, name, None)? {
                ResolvedName::Object(inode, _) => {
                    let opened = open::open_inode(op, &inode, flags, false)?;
                    // No label, so no lifetime: the kernel may have to drop pages first.
                    let found = lookup::found(op, NameInDirectory::new(&directory, name), &inode, None)?;
                    Ok((found, opened))
                }
                ResolvedName::Missing(_) => Err(Errno::NOENT),
            }
        }
        Err(error) => Err(error),
    }
}

/// Creates a directory.
///
/// # Errors
/// EEXIST, EACCES, ENOSPC, EROFS and the others of MKDIR.
pub fn mkdir(op: &Op<'_>, directory: InodeId, name: &[u8], mode: u32) -> Result<FoundInode, Errno> {
    make_found(op, directory, name, &CreateRequest::directory(mode))
}

/// Creates a symbolic link with the target `text`.
///
/// # Errors
/// EEXIST, EACCES, ENOSPC, EROFS and the others of SYMLINK.
pub fn symlink(op: &Op<'_>, directory: InodeId, name: &[u8], text: &[u8]) -> Result<FoundInode, Errno> {
    make_found(op, directory, name, &CreateRequest::symlink(text))
}

/// Creates a device with these numbers, a FIFO or a socket.
///
/// # Errors
/// EEXIST, EACCES, EPERM and the others of MKNOD.
pub fn mknod(
    op: &Op<'_>,
    directory: InodeId,
    name: &[u8],
    kind: FileKind,
    device: Device,
    mode: u32,
) -> Result<FoundInode, Errno> {
    make_found(op, directory, name, &CreateRequest::node(kind, device, mode))
}

/// Creates a regular file without opening it, as mknod(2) can.
///
/// # Errors
/// EEXIST, EACCES, ENOSPC, EROFS and the others of CREATE.
pub fn make_file(op: &Op<'_>, directory: InodeId, name: &[u8], mode: u32) -> Result<FoundInode, Errno> {
    let directory = op.sb.find_directory(directory)?;
    kernel_names::check_path(op, &directory)?;
    check_new_name(op.sb, name)?;
    let flags = OpenFlags { exclusive: true, ..OpenFlags::default() };
    let (inode, ended) = traced_create(op, &directory, name, flags, &CreateRequest::file(mode))?;
    found_made(op, &directory, name, &inode, ended)
}

fn make_found(
    op: &Op<'_>,
    directory: InodeId,
    name: &[u8],
    new: &CreateRequest<'_>,
) -> Result<FoundInode, Errno> {
    let directory = op.sb.find_directory(directory)?;
    kernel_names::check_path(op, &directory)?;
    check_new_name(op.sb, name)?;
    let (inode, ended) = make(op, &directory, name, new)?;
    found_made(op, &directory, name, &inode, ended)
}

/// Refuses names that cannot be created: `.` and `..` always exist.
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
    lookup::found(op, NameInDirectory::new(directory, name), inode, label)
}

/// Creates `name` and finds the inode of the new object.
fn make(
    op: &Op<'_>,
    directory: &Arc<Inode>,
    name: &[u8],
    new: &CreateRequest<'_>,
) -> Result<(Arc<Inode>, NameChangeOutcome), Errno> {
    let protocol = &op.protocol();
    let send = || protocol.create(op.rpc_caller(), directory.handle(), name, new);
    let (outcome, ended) = change::change_name(op, directory, name, send)?;
    let created = match outcome {
        Ok(Ok(created)) => created,
        Ok(Err(fault)) => {
            change::discard_listing(directory, ended);
            return Err(errno::of_fault(fault));
        }
        Err(fault) => {
            // The server recognises an exclusive creation by its verifier.
            let is_own = fault == Fault::Exist && !new.is_exclusive;
            let own = is_own.then(|| retransmitted::own_object(op, directory, name, new, ended));
            let Some(inode) = own.flatten() else {
                return Err(change::refused_change(op, directory, name, fault, ended));
            };
            prove_change(op, directory, ended);
            return Ok((inode, ended));
        }
    };
    let inode = op.sb.registry.inode(&created.handle);
    inode.clear(InodeFlag::Stale);
    match &created.attributes {
        Some(attributes) => {
            let _ = inode.absorb(attributes, ended.sent_at);
        }
        None => getattr::send_getattr(op, &inode)?,
    }
    // A prefetch did not bring this inode in: it counts as used.
    inode.note_use();
    Ok((inode, ended))
}
