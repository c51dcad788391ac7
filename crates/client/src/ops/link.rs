//! LINK: a further name for a file.

use std::sync::Arc;

use curt_types::Fault;
use rustix::io::Errno;

use crate::{
    api::{FoundInode, InodeId},
    dentry_cache::NameInDirectory,
    errno,
    inode::Inode,
    ops::{
        change::{self, NameChange, NameChangeOutcome, prove_change},
        create, kernel_names, lookup,
        steps::retransmitted,
    },
    superblock::Op,
};

/// Links the file `id` as `name` in `directory`.
///
/// # Errors
/// EEXIST, EXDEV, EMLINK, EACCES, EPERM, EROFS and the others of LINK.
pub fn link(op: &Op<'_>, id: InodeId, directory: InodeId, name: &[u8]) -> Result<FoundInode, Errno> {
    let (inode, directory) = (op.sb.find_inode(id)?, op.sb.find_directory(directory)?);
    kernel_names::check_path(op, &inode)?;
    kernel_names::check_path(op, &directory)?;
    create::check_new_name(op.sb, name)?;
    let ended = link_at_server(op, &inode, &directory, name)?;
    let label = change::learn_own(op.sb, &directory, name, Some(&inode), ended);
    lookup::found(op, NameInDirectory::new(&directory, name), &inode, label)
}

/// Sends LINK and applies the attributes of file and directory in its reply.
pub(crate) fn link_at_server(
    op: &Op<'_>,
    inode: &Arc<Inode>,
    directory: &Arc<Inode>,
    name: &[u8],
) -> Result<NameChangeOutcome, Errno> {
    let before = inode.attributes();
    inode.give_up_delegation();
    let change = NameChange::begin(op.sb, directory, name);
    let answer = op.protocol().link(op.rpc_caller(), inode.handle(), directory.handle(), name);
    let answer = answer.map_err(|error| {
        inode.distrust_attributes();
        errno::of_call(error)
    })?;
    let sent_at = op.sb.core.moment(answer.sent_at);
    let ended = change.end(&answer.attributes.directory, &answer);
    match &answer.attributes.file {
        Some(after) => inode.absorb_attribute_change(after, sent_at),
        None => inode.distrust_attributes(),
    }
    match answer.outcome {
        Ok(()) => {
            prove_change(op, directory, ended);
            Ok(ended)
        }
        Err(Fault::Exist) if retransmitted::is_own_link(op, inode, before, directory, name, ended) => {
            prove_change(op, directory, ended);
            Ok(ended)
        }
        Err(status) => Err(change::refused_change(op, directory, name, status, ended)),
    }
}
