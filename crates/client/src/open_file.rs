//! An open file.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32},
    },
};

use crate::{
    api::{InodeId, OpenFlags},
    caller::InternedCaller,
    data::{DataOwner, OpenData},
    inode::Inode,
};

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
}

impl OpenFile {
    /// The file's inode ID. The inode is kept as long as the file is open.
    #[must_use]
    pub fn id(&self) -> InodeId {
        self.inode.id()
    }

    pub(crate) fn opener(&self) -> Arc<InternedCaller> {
        Arc::clone(&self.identity)
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
