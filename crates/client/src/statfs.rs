//! statfs(2), whose answer is cached for a moment.

use std::time::Duration;

use curt_policy::Moment;
use rustix::io::Errno;

use crate::{
    api::FileSystemStatistics,
    client::Client,
    errno,
    identity::{Caller, InodeId},
    protocol::{FsstatReply, v3},
};

/// For how long an answer is believed.
const FSSTAT_LIFETIME: Duration = Duration::from_secs(1);

/// The block in which space is told: the page of most machines.
const BLOCK: u32 = 4096;

/// The last answer of a server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CachedFsstat {
    id: InodeId,
    fsid: Option<u64>,
    sent_at: Moment,
    statistics: FileSystemStatistics,
}

impl CachedFsstat {
    /// Whether it tells of the file system `fsid`.
    fn is_of(&self, fsid: Option<u64>) -> bool {
        fsid.is_some() && self.fsid == fsid
    }
}

impl Client {
    /// Space and files of the file system that `id` is in; at most a second old.
    ///
    /// # Errors
    /// Those of FSSTAT.
    pub fn statfs(&self, caller: &Caller, id: InodeId) -> Result<FileSystemStatistics, Errno> {
        let inode = self.find_inode(id)?;
        let asked = self.op_context(caller);
        let known = *self.cached_fsstat.lock();
        if let Some(known) =
            known.filter(|known| known.id == id && self.core.now().since(known.sent_at) < FSSTAT_LIFETIME)
        {
            return Ok(known.statistics);
        }
        let answer =
            v3::fsstat(&self.core.rpc, asked.rpc_caller(), inode.handle()).map_err(errno::of_call)?;
        let sent_at = self.core.moment(answer.sent_at);
        if let Some(attributes) = &answer.attributes {
            let _ = inode.absorb(attributes, sent_at);
        }
        let space = answer
            .outcome
            .map_err(|status| self.note_failed_status(&inode, status))?;
        let statistics = self.to_statistics(&space);
        *self.cached_fsstat.lock() = Some(CachedFsstat {
            id,
            fsid: inode.fsid(),
            sent_at,
            statistics,
        });
        Ok(statistics)
    }

    /// The last answer of [`Client::statfs`], however old, if that was about the file system that
    /// `id` is in, and else zeros; without any request: for a server that does not answer.
    #[must_use]
    pub fn last_statistics(&self, id: InodeId) -> FileSystemStatistics {
        let fsid = self.find_inode(id).ok().and_then(|inode| inode.fsid());
        let known = *self.cached_fsstat.lock();
        match known.filter(|known| known.is_of(fsid)) {
            Some(known) => known.statistics,
            None => self.to_statistics(&FsstatReply::default()),
        }
    }

    fn to_statistics(&self, space: &FsstatReply) -> FileSystemStatistics {
        let block = u64::from(BLOCK);
        FileSystemStatistics {
            block_size: BLOCK,
            blocks: space.total_bytes / block,
            blocks_free: space.free_bytes / block,
            blocks_available: space.available_bytes / block,
            files: space.total_files,
            files_free: space.free_files,
            name_max: self.path_limits.longest_name(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // SEMANTICS: rpc-13.
    #[test]
    fn what_is_told_in_haste_of_space_is_never_another_file_systems() {
        let of = |fsid| CachedFsstat {
            id: InodeId::ROOT,
            fsid,
            sent_at: Moment::default(),
            statistics: FileSystemStatistics {
                block_size: BLOCK,
                blocks: 1,
                blocks_free: 1,
                blocks_available: 1,
                files: 1,
                files_free: 1,
                name_max: 255,
            },
        };
        assert!(of(Some(1)).is_of(Some(1)));
        assert!(!of(Some(1)).is_of(Some(2)));
        assert!(!of(Some(1)).is_of(None) && !of(None).is_of(Some(1)));
        assert!(!of(None).is_of(None), "nobody knows whose either is");
    }
}
