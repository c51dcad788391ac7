//! Access rights of a node, and writing data.

use curt_types::{Access, FileKind, Stability};
use rustix::io::Errno;

use super::MemoryVfs;
use super::permission::{EXECUTE, READ, WRITE};
use super::tree::{MemoryInode, MemoryTree};
use crate::caller::FsCred;
use crate::error::Error;
use crate::result::WriteResult;

/// Maximum file size: an offset is a signed 64-bit number.
pub(super) const SIZE_MAX: u64 = i64::MAX as u64;

impl MemoryVfs {
    /// All rights of the caller.
    pub(super) fn granted(&self, caller: &FsCred<'_>, inode: &MemoryInode) -> Access {
        let allows = |wanted| inode.owned().allows(caller, wanted);
        let mut granted = Access::default();
        if allows(READ) {
            granted = granted.with(Access::READ);
        }
        let directory = inode.kind() == FileKind::Directory;
        if allows(EXECUTE) && inode.kind() != FileKind::Symlink {
            granted = granted.with(if directory { Access::LOOKUP } else { Access::EXECUTE });
        }
        let needed = if directory { WRITE | EXECUTE } else { WRITE };
        if allows(needed) {
            granted = granted.with(Access::MODIFY).with(Access::EXTEND);
            if directory {
                granted = granted.with(Access::DELETE);
            }
        }
        granted
    }

    pub(super) fn write_data(
        &self,
        tree: &mut MemoryTree,
        caller: &FsCred<'_>,
        fileid: u64,
        offset: u64,
        data: &[u8],
        stability: Stability,
    ) -> Result<WriteResult, Error> {
        let inode = tree.inode(fileid);
        let content = inode.content()?;
        inode.owned().check_write(caller)?;
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= SIZE_MAX);
        if end.is_none() {
            return Err(Errno::FBIG.into());
        }
        let (before, growth) = (content.used(), content.growth(offset, data.len()));
        if growth > 0 && tree.used + growth > self.options.bytes_max {
            return Err(Errno::NOSPC.into());
        }
        let changed = self.change_time(inode.ctime);
        let inode = tree.inode_mut(fileid);
        if !data.is_empty() {
            inode.mode = inode.owned().after_write(caller);
            inode.content_mut()?.write(offset, data);
            (inode.mtime, inode.ctime) = (changed, changed);
        }
        if stability > Stability::Unstable {
            inode.make_durable();
        }
        tree.charge(before, before + growth);
        Ok(WriteResult { count: u32::try_from(data.len()).map_err(|_| Errno::INVAL)?, stability })
    }
}
