//! close(2) does not wait for RELEASE. After the close of the last removed file of a directory, a
//! program may remove or replace the directory while another thread still handles the RELEASE, and
//! the file's silly name is still in the directory.
//!
//! Kernels: Linux up to 6.18, the newest that was tested. Shown by
//! `a_directory_whose_removed_file_was_closed_can_be_removed_and_replaced_at_once`
//! (tests/tests/names.rs). It can be removed when close(2) waits for RELEASE, or RELEASE arrives
//! before later requests.

use curt_client::{InodeId, Superblock, ops};
use curt_fuse::FuseContext;

/// Waits for requests that arrived earlier, if the directory may have removed files.
pub(crate) fn wait(client: &Superblock, context: &FuseContext<'_>, parent: InodeId, name: &[u8]) {
    if ops::may_hold_removed_files(client, parent, name) {
        context.wait_for_earlier();
    }
}
