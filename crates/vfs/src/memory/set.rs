//! SETATTR, in the order and with the rules of the kernel's notify_change.

use curt_types::{FileKind, SetAttributes, SetTime, Timestamp};
use rustix::io::Errno;

use super::MemoryVfs;
use super::file::SIZE_MAX;
use super::tree::{MemoryInode, MemoryTree};
use crate::caller::FsCred;
use crate::error::Error;
use crate::mode::revoke;

impl MemoryVfs {
    pub(super) fn set(
        &self,
        tree: &mut MemoryTree,
        caller: &FsCred<'_>,
        fileid: u64,
        set: &SetAttributes,
        guard: Option<Timestamp>,
    ) -> Result<(), Error> {
        let inode = tree.inode(fileid);
        if guard.is_some_and(|guard| guard != inode.ctime) {
            return Err(Error::NotSync);
        }
        if *set == SetAttributes::default() {
            return Ok(());
        }
        self.check_set(caller, inode, set)?;
        self.apply_set(tree, caller, fileid, set);
        Ok(())
    }

    fn check_set(&self, caller: &FsCred<'_>, inode: &MemoryInode, set: &SetAttributes) -> Result<(), Error> {
        if set.size.is_some() {
            inode.content()?;
        }
        let owned = inode.owned();
        owned.check_chown(caller, set.uid, set.gid)?;
        if let Some(size) = set.size {
            owned.check_write(caller)?;
            if size > SIZE_MAX {
                return Err(Errno::FBIG.into());
            }
        }
        if set.mode.is_some() {
            owned.check_owner(caller)?;
        }
        match (set.atime, set.mtime) {
            (SetTime::Keep, SetTime::Keep) => {}
            (SetTime::Time(_), _) | (_, SetTime::Time(_)) => owned.check_owner(caller)?,
            (_, _) => owned.check_write(caller)?,
        }
        Ok(())
    }

    fn apply_set(&self, tree: &mut MemoryTree, caller: &FsCred<'_>, fileid: u64, set: &SetAttributes) {
        let before = tree.inode(fileid).used();
        let changed = self.change_time(tree.inode(fileid).ctime);
        let inode = tree.inode_mut(fileid);
        let regular_or_special = inode.kind() != FileKind::Directory;
        let chown = set.uid.is_some() || set.gid.is_some();
        if chown && regular_or_special {
            inode.mode = inode.owned().after_chown(caller);
        }
        if set.size.is_some() {
            inode.mode = inode.owned().after_write(caller);
        }
        inode.uid = set.uid.unwrap_or(inode.uid);
        inode.gid = set.gid.unwrap_or(inode.gid);
        if let Some(size) = set.size
            && let Ok(content) = inode.content_mut()
        {
            content.resize(size);
            // A truncation changes attributes: it is durable before the reply.
            inode.make_durable();
            inode.mtime = changed;
        }
        if let Some(mode) = set.mode
            && inode.kind() != FileKind::Symlink
        {
            let wanted = if chown && regular_or_special { revoke(mode) } else { mode };
            inode.mode = inode.owned().chmod(caller, wanted);
        }
        apply_time(&mut inode.atime, set.atime, changed);
        apply_time(&mut inode.mtime, set.mtime, changed);
        inode.ctime = changed;
        let after = inode.used();
        tree.charge(before, after);
    }
}

fn apply_time(time: &mut Timestamp, set: SetTime, now: Timestamp) {
    match set {
        SetTime::Keep => {}
        SetTime::ServerTime => *time = now,
        SetTime::Time(to) => *time = to,
    }
}
