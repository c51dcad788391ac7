//! The kernel has no safe notification that invalidates the names of one directory. The
//! notification for one name waits for all operations in that directory, possibly with a silent
//! server. The one for all names (a new epoch, Linux 6.16 to 6.18) unmounts the file systems
//! mounted anywhere below the mount point, and the files of programs that run from there become
//! "(deleted)". Also, search permission is not checked for names in the kernel's cache.
//!
//! Kernels: Linux up to 6.18, the newest that was tested. Shown by
//! `what_is_mounted_below_a_mount_stays` (tests/tests/mounted_below.rs). It can be removed when a
//! directory can be invalidated without locks, and its names are revalidated without being dropped.

use std::time::Duration;

/// The entry timeout of names.
pub(crate) const NAME_VALID: Duration = Duration::ZERO;
