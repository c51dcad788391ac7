//! close(2) does not wait for RELEASE. A program that has just closed the last removed file of a
//! directory, and removes or replaces the directory, is overtaken by it: another thread may still
//! be handling the RELEASE, and the file's silly name is in the directory.
//!
//! Kernels: Linux to 6.18, the newest that was tested. Shown by
//! `a_directory_whose_removed_file_was_closed_can_be_removed_and_replaced_at_once`
//! (tests/tests/names.rs). It can go when RELEASE is awaited, or arrives before what follows it.

use curt_client::{InodeId, Superblock, ops};
use curt_fuse::{FuseContext, Interruption};

/// Waits for requests that arrived earlier, if the directory may hold removed files.
pub(crate) fn wait<I: Interruption>(
    client: &Superblock,
    context: &FuseContext<'_, I>,
    parent: InodeId,
    name: &[u8],
) {
    if ops::may_hold_removed_files(client, parent, name) {
        context.wait_for_earlier();
    }
}
