//! What statfs(2) tells, kept for a moment.

use std::time::Duration;

use curt_policy::Moment;
use rustix::io::Errno;

use crate::{
    api::FileSystemStatistics,
    client::Client,
    errno,
    identity::{Caller, InodeId},
    plan::{Space, v3},
};

/// For how long an answer is believed.
const BELIEVED: Duration = Duration::from_secs(1);

/// The block in which space is told: the page of most machines.
const BLOCK: u32 = 4096;

/// The last answer of a server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KnownSpace {
    id: InodeId,
    sent_at: Moment,
    statistics: FileSystemStatistics,
}

impl Client {
    /// Space and files of the file system that `id` is in; at most a second old.
    ///
    /// # Errors
    /// Those of FSSTAT.
    pub fn statfs(&self, caller: &Caller, id: InodeId) -> Result<FileSystemStatistics, Errno> {
        let inode = self.held(id)?;
        let asked = self.asked(caller);
        let known = *self.space.lock();
        if let Some(known) =
            known.filter(|known| known.id == id && self.core.now().since(known.sent_at) < BELIEVED)
        {
            return Ok(known.statistics);
        }
        let answer = v3::fsstat(&self.core.wire, asked.asker(), inode.handle()).map_err(errno::of_call)?;
        let sent_at = self.core.moment(answer.sent_at);
        if let Some(attributes) = &answer.about {
            let _ = inode.absorb(attributes, sent_at);
        }
        let space = answer.outcome.map_err(|status| self.refused(&inode, status))?;
        let statistics = self.told(&space);
        *self.space.lock() = Some(KnownSpace {
            id,
            sent_at,
            statistics,
        });
        Ok(statistics)
    }

    /// The last answer of any [`Client::statfs`], however old, without any request: for a server that does not answer.
    #[must_use]
    pub fn last_statistics(&self) -> Option<FileSystemStatistics> {
        self.space.lock().map(|known| known.statistics)
    }

    fn told(&self, space: &Space) -> FileSystemStatistics {
        let block = u64::from(BLOCK);
        FileSystemStatistics {
            block_size: BLOCK,
            blocks: space.total_bytes / block,
            blocks_free: space.free_bytes / block,
            blocks_available: space.available_bytes / block,
            files: space.total_files,
            files_free: space.free_files,
            name_max: match self.path_limits.name_max {
                0 => 255,
                name_max => name_max,
            },
        }
    }
}
