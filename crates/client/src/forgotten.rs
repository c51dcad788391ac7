//! Inodes of which a kernel has given back all look-ups, and which it may ask for again by their
//! number: its file handles (name_to_handle_at(2), a server that exports the mount) hold nothing
//! else.
//!
//! Such an inode is found as long as it lives, which [`crate::inode::InodeRegistry`] knows of a
//! bounded number: while its name is in the DentryCache, or it is one of the last that were given
//! back. These are owned here.

use std::{collections::VecDeque, sync::Arc};

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::{
    api::LookupResult,
    client::Client,
    identity::{Caller, InodeId},
    inode::Inode,
};

/// Inodes that live for no other reason, at most. Each takes some hundred bytes.
const LAST_MAX: usize = 16_384;

/// The last inodes of which all look-ups were given back, oldest first.
#[derive(Debug, Default)]
pub(crate) struct LastForgotten(Mutex<VecDeque<Arc<Inode>>>);

impl LastForgotten {
    pub(crate) fn add(&self, inode: Arc<Inode>) {
        let mut last = self.0.lock();
        let oldest = (last.len() == LAST_MAX).then(|| last.pop_front());
        last.push_back(inode);
        drop(last);
        drop(oldest);
    }
}

impl Client {
    /// The object `id` itself, of which no look-up need be held any more; holds one. The server is
    /// always asked for it.
    ///
    /// # Errors
    /// ESTALE: it is gone, or was forgotten too long ago. Those of GETATTR.
    pub fn lookup_id(&self, caller: &Caller, id: InodeId) -> Result<LookupResult, Errno> {
        let held = self.find_inode(id).ok();
        let inode = held
            .or_else(|| self.core.registry.forgotten(id))
            .ok_or(Errno::STALE)?;
        let asked = self.op_context(caller);
        self.send_getattr(&asked, &inode)?;
        self.found(&asked, &inode, &inode, None)
            .map(LookupResult::Positive)
    }
}
