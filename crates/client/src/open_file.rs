//! An open file of a program.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32},
    },
};

use crate::{
    api::OpenFlags,
    credentials::InternedCaller,
    data::{DataOwner, OpenData},
    identity::InodeId,
    inode::Inode,
};

/// An open file. Given to [`crate::ops::release`] (or [`crate::ops::close`]) when it is not used
/// any more.
pub struct OpenFile {
    pub(crate) inode: Arc<Inode>,
    pub(crate) owner: Arc<dyn DataOwner>,
    /// Who opened it: in whose name data are asked for.
    pub(crate) identity: Arc<InternedCaller>,
    pub(crate) flags: OpenFlags,
    pub(crate) data: OpenData,
    pub(crate) copies_invalidated: AtomicU32,
    pub(crate) released: AtomicBool,
}

impl OpenFile {
    /// The file's inode. It is kept as long as the file is open, whoever else holds it.
    #[must_use]
    pub fn id(&self) -> InodeId {
        self.inode.id()
    }

    /// Who opened it.
    pub(crate) fn opener(&self) -> Arc<InternedCaller> {
        Arc::clone(&self.identity)
    }

    /// How it was opened.
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
