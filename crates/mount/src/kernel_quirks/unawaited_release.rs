//! close(2) does not wait for RELEASE. After the close of the last removed file of a directory, a
//! program may remove or replace the directory while another thread still handles the RELEASE, and
//! the file's silly name is still in the directory. Likewise the lock of a closed open file may
//! still be there when a program that does not wait requests it.
//!
//! Kernels: Linux up to 6.18, the newest that was tested. Shown by
//! `a_directory_whose_removed_file_was_closed_can_be_removed_and_replaced_at_once`
//! (tests/tests/names.rs), `a_closed_file_is_not_locked_any_more` (tests/tests/locks) and
//! `random_locks_at_knfsd_are_granted_and_refused_as_in_a_local_directory`
//! (tests/tests/same_calls.rs). It can be removed when close(2) waits for RELEASE, or RELEASE
//! arrives before later requests.

use curt_client::{InodeId, LockArguments, Op, OpenFile, Superblock, ops};
use curt_fuse::FuseContext;

/// Waits for requests that arrived earlier, if the directory may have removed files.
pub(crate) fn wait(client: &Superblock, context: &FuseContext<'_>, parent: InodeId, name: &[u8]) {
    if ops::may_hold_removed_files(client, parent, name) {
        context.wait_for_earlier();
    }
}

/// Waits for requests that arrived earlier, if a lock of this mount is in the way, or the owner may
/// be the name of an open file description that was closed before: the lock that it is about to get
/// must not end with the RELEASE of that one, nor keep its locks.
pub(crate) fn wait_for_lock(op: &Op<'_>, context: &FuseContext<'_>, file: &OpenFile, lock: &LockArguments) {
    if ops::is_locked_here(op, file, lock) {
        context.wait_for_earlier();
    }
}

/// Waits before a test, which the server answers: it may still have what is being unlocked.
pub(crate) fn wait_for_test(op: &Op<'_>, context: &FuseContext<'_>, file: &OpenFile, lock: &LockArguments) {
    if ops::is_locked_here(op, file, lock) || ops::is_being_unlocked_here(op, file, lock) {
        context.wait_for_earlier();
    }
}
