//! statfs(2): the file system's space, whose reply is cached briefly.

use rustix::io::Errno;

use crate::{
    api::{FileSystemStatistics, InodeId},
    errno,
    ops::kernel_names,
    superblock::Op,
};

/// Space and number of files of the file system of `id`; at most one second old.
///
/// # Errors
/// EACCES; those of the request for the space.
pub fn statfs(op: &Op<'_>, id: InodeId) -> Result<FileSystemStatistics, Errno> {
    let inode = op.sb.find_inode(id)?;
    kernel_names::check_path(op, &inode)?;
    if let Some(known) = op.sb.fsstat.find(id, op.now()) {
        return Ok(known);
    }
    let answer = op.protocol().space(op.rpc_caller(), inode.handle()).map_err(errno::of_call)?;
    let sent_at = op.sb.core.moment(answer.sent_at);
    if let Some(attributes) = &answer.attributes {
        let _ = inode.absorb(attributes, sent_at);
    }
    let space = answer.outcome.map_err(|status| inode.note_failed_status(status))?;
    Ok(op.sb.fsstat.keep(id, inode.fsid(), sent_at, &space))
}
