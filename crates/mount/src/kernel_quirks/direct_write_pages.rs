//! A page that is read while an asynchronous write with `O_DIRECT` is under way keeps the old
//! bytes. The kernel drops the pages past which it writes only before it sends the bytes, and after
//! the reply only for synchronous writes (`fuse_aio_complete`).
//!
//! Kernels: Linux to 6.18. Shown by
//! `a_page_read_after_an_asynchronous_direct_write_shows_what_was_written` (tests/tests/direct.rs).
//! It can go when the kernel drops the pages after the reply as well.

use curt_fuse::{NodeId, Notifier};

/// Has the kernel drop the pages past which bytes were written.
pub(crate) fn drop_pages(notifier: Option<&Notifier>, node: NodeId, offset: u64, length: usize) {
    let range = i64::try_from(offset).ok().zip(i64::try_from(length).ok());
    if let (Some(notifier), Some((offset, length @ 1..))) = (notifier, range) {
        // ENOENT: the kernel has no copy.
        let _ = notifier.invalidate_inode(node, offset, length);
    }
}
