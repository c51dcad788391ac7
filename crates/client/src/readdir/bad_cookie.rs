//! A server that refuses its own cookie: the pass starts again from the beginning, once, and skips
//! the names that were already returned.
//!
//! Must not send anything.

use std::sync::Arc;

use curt_observe::{ClientCounter, probe};
use curt_types::Fault;
use parking_lot::Mutex;
use rustix::io::Errno;

use super::{
    cache::{DirectoryListing, ReaddirError},
    cursor::{CursorPosition, ReaddirCursor},
    memory::ListingMemory,
    returned_names::{HASH_BYTES, ReturnedNames},
};
use crate::{inode::Inode, superblock::Superblock};

impl ReaddirError {
    /// Whether the server no longer accepts its own cookie.
    pub(super) fn is_bad_cookie(&self) -> bool {
        matches!(self, Self::Refused(Fault::BadCookie | Fault::NotSync, _))
    }
}

/// Counts and traces a refused cookie.
pub(super) fn note_bad_cookie(sb: &Superblock, inode: &Inode, cookie: u64) {
    sb.count(ClientCounter::ListingBadCookie);
    probe!(NfsReaddirBadCookie { dir: inode.event_fileid(), cookie });
}

/// Emits the event of a directory that is read again from its beginning.
pub(super) fn trace_restart(inode: &Inode, cookie: u64) {
    probe!(NfsReaddirRestart { dir: inode.event_fileid(), cookie });
}

/// The server refused its own cookie: the pass starts again, once, and skips the names that were
/// returned. Returns the new position.
pub(super) fn restart(
    sb: &Superblock,
    inode: &Inode,
    cursor: &Mutex<ReaddirCursor>,
    at: &CursorPosition,
) -> Result<CursorPosition, Errno> {
    let Some(begun) = cursor.lock().restart_skipping_returned(&sb.listing_memory, at) else {
        tracing::warn!(
            directory = ?inode,
            "the server refused its own cookie again, or more names were returned than fit into listing_max="
        );
        return Err(Errno::IO);
    };
    sb.count(ClientCounter::ListingRestart);
    trace_restart(inode, at.cookie);
    Ok(begun)
}

impl ReaddirCursor {
    /// The server refused the cookie of `at`: the pass starts again and skips the names that were
    /// returned. `None` if it did so before, or not all returned names are known.
    fn restart_skipping_returned(
        &mut self,
        memory: &Arc<ListingMemory>,
        at: &CursorPosition,
    ) -> Option<CursorPosition> {
        if !self.is_whole || self.at.skipped.is_some() {
            return None;
        }
        let mut parts = self.read_before.clone();
        parts.push((Arc::clone(&at.listing), at.ordinal));
        let count: u64 = parts.iter().map(|(_, end)| u64::from(*end)).sum();
        let charge = memory.reserve(count * HASH_BYTES)?;
        // The returned names are discarded only after all of them were collected.
        let skipped = ReturnedNames::collect(&parts, charge)?;
        *self = Self::new(DirectoryListing::from_start(memory));
        self.at.skipped = Some(Arc::new(skipped));
        // The cookie is of the former pass: it stands for the beginning of this one.
        self.at.cookie = at.cookie;
        memory.shrink();
        Some(self.at.clone())
    }
}
