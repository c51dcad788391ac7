//! The kernel ignores the size in a reply if it has written to the file, or was notified about it,
//! since the request (Linux, `fuse_change_attributes`). A read that requests the size, because it
//! goes beyond the end that the kernel knows, then ends at the old end: a process that has just
//! been granted a lock misses what others appended before, if another process of the mount writes
//! or is granted a lock meanwhile. So the kernel's size is raised before the reply,
//! and its pages are dropped, as it does itself with a reply that it accepts: the last one ends in
//! zeros.
//!
//! A file that has shrunk needs nothing: the READ that finds its end corrects the kernel's size.
//!
//! Kernels: Linux up to 6.18, the newest that was tested. Shown by
//! `a_read_under_a_new_lock_reaches_what_was_appended_elsewhere_while_another_process_writes`
//! (tests/tests/file_size_changes.rs). It can be removed when the kernel takes the larger one of
//! two sizes of which it does not know the order.

use curt_client::{InodeId, Superblock};
use curt_types::{Attributes, FileKind};

/// Has the kernel know the size in a reply to GETATTR before the reply is sent: `renew` drops the
/// file's pages and raises its size.
pub(crate) fn raise(client: &Superblock, id: InodeId, reply: &Attributes, renew: impl Fn(u64)) {
    if reply.kind == FileKind::Regular {
        client.raise_kernel_size(id, reply.size, renew);
    }
}
