//! access(2).

use curt_types::Access;
use rustix::io::Errno;

use crate::{
    api::InodeId,
    ops::{getattr::revalidate, kernel_names, permission::require},
    superblock::Op,
};

/// access(2) with `mask` (R_OK 4, W_OK 2, X_OK 1; 0 checks only the path).
///
/// # Errors
/// EACCES; those of ACCESS and GETATTR.
pub fn access(op: &Op<'_>, id: InodeId, mask: u32) -> Result<(), Errno> {
    op.note_path_result(check(op, id, mask))
}

fn check(op: &Op<'_>, id: InodeId, mask: u32) -> Result<(), Errno> {
    let inode = op.sb.find_inode(id)?;
    kernel_names::check_path(op, &inode)?;
    if mask & 7 == 0 {
        return Ok(());
    }
    let kind = inode.lock().attributes.newest().map(|known| known.kind);
    let kind = match kind {
        Some(kind) => kind,
        None => {
            revalidate(op, &inode)?;
            inode.lock().attributes.newest().ok_or(Errno::IO)?.kind
        }
    };
    require(op, &inode, Access::from_access_mask(mask, kind))
}
