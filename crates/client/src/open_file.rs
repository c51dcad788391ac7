//! An open file.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
};

use curt_policy::locks::LockOpenId;
use rustix::io::Errno;

use crate::{
    api::{InodeId, OpenFlags, PageCacheState},
    caller::InternedCaller,
    data::{DataOwner, OpenData},
    inode::Inode,
};

/// An open file and the state of its cached data.
#[derive(Debug)]
pub struct OpenResult {
    /// The argument of reads and writes; to be closed with [`crate::ops::release`].
    pub file: Arc<OpenFile>,
    /// Whether data cached before the open are valid.
    pub data: PageCacheState,
}

/// An open file. Closed by [`crate::ops::release`] or [`crate::ops::close`].
pub struct OpenFile {
    pub(crate) inode: Arc<Inode>,
    pub(crate) owner: Arc<dyn DataOwner>,
    /// The opener, whose credential READ and WRITE carry.
    pub(crate) identity: Arc<InternedCaller>,
    pub(crate) flags: OpenFlags,
    pub(crate) data: OpenData,
    pub(crate) copies_invalidated: AtomicU32,
    pub(crate) released: AtomicBool,
    /// Data were read with the open, and not used yet. Relaxed accesses: no other data depend on
    /// it.
    pub(crate) read_at_open: AtomicBool,
    pub(crate) locks: OpenFileLocks,
}

/// The part of an open file that its locks need. Relaxed accesses: no other data depend on them.
#[derive(Debug)]
pub(crate) struct OpenFileLocks {
    id: LockOpenId,
    /// Whether a lock was requested through it.
    is_used: AtomicBool,
    /// A lock was lost, and no operation has failed for that yet.
    is_lost: AtomicBool,
}

impl Default for OpenFileLocks {
    fn default() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let id = LockOpenId(LAST.fetch_add(1, Relaxed));
        Self { id, is_used: AtomicBool::new(false), is_lost: AtomicBool::new(false) }
    }
}

impl OpenFileLocks {
    pub(crate) const fn id(&self) -> LockOpenId {
        self.id
    }

    pub(crate) fn note_use(&self) {
        self.is_used.store(true, Relaxed);
    }

    pub(crate) fn was_used(&self) -> bool {
        self.is_used.load(Relaxed)
    }

    pub(crate) fn note_lost(&self) {
        self.is_lost.store(true, Relaxed);
    }

    /// An operation has failed, perhaps because a lock was lost meanwhile: no other does for that.
    pub(crate) fn note_failure(&self, error: Errno) -> Errno {
        if error == Errno::IO {
            self.is_lost.store(false, Relaxed);
        }
        error
    }
}

impl OpenFile {
    /// The file's inode ID. The inode is kept as long as the file is open.
    #[must_use]
    pub fn id(&self) -> InodeId {
        self.inode.id()
    }

    /// Whether a lock was requested through this open file.
    #[must_use]
    pub fn may_hold_locks(&self) -> bool {
        self.locks.was_used()
    }

    pub(crate) fn opener(&self) -> Arc<InternedCaller> {
        Arc::clone(&self.identity)
    }

    /// Fails once after a lock was lost: what the program does relies on it.
    ///
    /// # Errors
    /// EIO.
    pub(crate) fn check_lost(&self) -> Result<(), Errno> {
        let is_lost = &self.locks.is_lost;
        if is_lost.load(Relaxed) && is_lost.swap(false, Relaxed) {
            self.data.note_loss_reported(self.owner.data());
            return Err(Errno::IO);
        }
        Ok(())
    }

    /// The flags of its open.
    #[must_use]
    pub fn flags(&self) -> OpenFlags {
        self.flags
    }
}

impl fmt::Debug for OpenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenFile").field("id", &self.id()).field("flags", &self.flags).finish_non_exhaustive()
    }
}
