//! A page that is read during an asynchronous `O_DIRECT` write keeps the old bytes. The kernel
//! drops the pages of the written range before it sends the write, and after the reply only for
//! synchronous writes (`fuse_aio_complete`).
//!
//! Kernels: Linux up to 6.18. Shown by
//! `a_page_read_after_an_asynchronous_direct_write_shows_what_was_written` (tests/tests/direct.rs).
//! It can be removed when the kernel drops the pages after the reply as well.

use curt_fuse::{NodeId, Notifier};

/// Has the kernel drop the pages of the written range.
pub(crate) fn drop_pages(notifier: Option<&Notifier>, node: NodeId, offset: u64, length: usize) {
    let range = i64::try_from(offset).ok().zip(i64::try_from(length).ok());
    if let (Some(notifier), Some((offset, length @ 1..))) = (notifier, range) {
        // ENOENT: the kernel has no copy.
        let _ = notifier.invalidate_inode(node, offset, length);
    }
}
