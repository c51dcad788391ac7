//! Holds a file for a kernel that retries an open which failed with ESTALE.

use std::sync::Arc;

use crate::{
    inode::{Inode, InodeFlag},
    ops::close,
    superblock::{Op, Superblock},
};

/// Records that the operation's open fails with ESTALE; a kernel will look the name up again and
/// retry once. Returns whether the retry will be recognised.
pub(crate) fn note_stale_open(op: &Op<'_>, copies_invalidated: Option<u32>) -> bool {
    op.pid != 0 && op.sb.is_used_by_kernel() && op.sb.stale_opens.note(op.pid, op.began, copies_invalidated)
}

/// Removes the caller's entry, because it retries its open or does something else. Returns the file
/// held for it, which the caller must keep until its open has completed; `None` if no open had
/// failed.
pub(crate) fn take_stale_open<'a>(op: &Op<'a>) -> Option<StaleOpenHold<'a>> {
    if op.sb.stale_opens.is_empty() {
        return None;
    }
    let retry = op.sb.stale_opens.take(op.pid)?;
    Some(StaleOpenHold { sb: op.sb, file: retry.held, copies_invalidated: retry.copies_invalidated })
}

/// Holds `file`, which is counted as being opened, for the caller's retry.
pub(crate) fn hold_for_retry(op: &Op<'_>, file: Arc<Inode>) {
    if let Some(former) = op.sb.stale_opens.hold_file(op.pid, file) {
        close::cancel_open(op.sb, &former);
    }
}

/// Releases the files of threads that did not retry in time.
pub(crate) fn expire(op: &Op<'_>) {
    for file in op.sb.stale_opens.expire(op.began) {
        close::cancel_open(op.sb, &file);
    }
}

/// The failed open of a thread, and the file held for its retry, if any. The file counts as being
/// opened. Dropping this releases it.
#[must_use]
pub(crate) struct StaleOpenHold<'a> {
    sb: &'a Superblock,
    file: Option<Arc<Inode>>,
    copies_invalidated: Option<u32>,
}

impl StaleOpenHold<'_> {
    /// Records that the kernel knows the size of `inode`, if it certainly took the size from the
    /// lookup's reply: no invalidation since the failed open made the kernel ignore that reply, and
    /// the file was not open for writing (Linux, `attr_version`).
    pub(crate) fn note_size(&self, inode: &Arc<Inode>) {
        let looked_up = self.file.as_ref().is_some_and(|file| Arc::ptr_eq(file, inode));
        let locked = inode.lock();
        let is_quiet = locked.by_type.file_if_any().is_some_and(|file| {
            Some(file.copies_invalidated) == self.copies_invalidated
                && file.copies_invalidated == file.copies_dropped
                && file.write_opens == 0
        });
        if looked_up && is_quiet {
            inode.clear(InodeFlag::Shrunk);
        }
    }
}

impl Drop for StaleOpenHold<'_> {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            close::cancel_open(self.sb, file);
        }
    }
}
