//! The cached space of the file system.

use std::time::Duration;

use curt_policy::MonotonicTime;
use parking_lot::Mutex;

use crate::{
    api::{FileSystemStatistics, InodeId},
    protocol::FsstatReply,
};

/// How long a reply is cached.
const FSSTAT_LIFETIME: Duration = Duration::from_secs(1);

/// The block size reported to programs: the page size of most machines.
const BLOCK: u32 = 4096;

#[derive(Debug, Clone, Copy)]
struct CachedFsstat {
    id: InodeId,
    fsid: Option<u64>,
    sent_at: MonotonicTime,
    statistics: FileSystemStatistics,
}

impl CachedFsstat {
    /// Whether the reply is about file system `fsid`.
    fn is_of(&self, fsid: Option<u64>) -> bool {
        fsid.is_some() && self.fsid == fsid
    }
}

/// The last reply, and the longest name of the mount.
#[derive(Debug)]
pub(crate) struct FsstatCache {
    cached: Mutex<Option<CachedFsstat>>,
    name_max: u32,
}

impl FsstatCache {
    pub(crate) fn new(name_max: u32) -> Self {
        Self { cached: Mutex::default(), name_max }
    }

    /// The reply to a request for `id`, if it has not expired.
    pub(crate) fn find(&self, id: InodeId, now: MonotonicTime) -> Option<FileSystemStatistics> {
        let known = (*self.cached.lock())?;
        (known.id == id && now.since(known.sent_at) < FSSTAT_LIFETIME).then_some(known.statistics)
    }

    /// Caches the reply to a request for `id` in file system `fsid`, and converts it.
    pub(crate) fn keep(
        &self,
        id: InodeId,
        fsid: Option<u64>,
        sent_at: MonotonicTime,
        space: &FsstatReply,
    ) -> FileSystemStatistics {
        let statistics = self.statistics(space);
        *self.cached.lock() = Some(CachedFsstat { id, fsid, sent_at, statistics });
        statistics
    }

    /// The last reply for file system `fsid`, however old; zeros if there is none.
    pub(crate) fn last(&self, fsid: Option<u64>) -> FileSystemStatistics {
        let known = self.cached.lock().filter(|known| known.is_of(fsid));
        known.map_or_else(|| self.statistics(&FsstatReply::default()), |known| known.statistics)
    }

    fn statistics(&self, space: &FsstatReply) -> FileSystemStatistics {
        let block = u64::from(BLOCK);
        FileSystemStatistics {
            block_size: BLOCK,
            blocks: space.total_bytes / block,
            blocks_free: space.free_bytes / block,
            blocks_available: space.available_bytes / block,
            files: space.total_files,
            files_free: space.free_files,
            name_max: self.name_max,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // SEMANTICS: rpc-13.
    #[test]
    fn a_cached_fsstat_is_used_for_its_own_file_system_only() {
        let of = |fsid| CachedFsstat {
            id: InodeId::ROOT,
            fsid,
            sent_at: MonotonicTime::default(),
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
