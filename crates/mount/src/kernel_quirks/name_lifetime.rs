//! There is no safe way to have the kernel ask for the names of one directory again. The
//! notification for a name waits for whoever works in that directory, perhaps with a silent server.
//! That for all names (a new epoch, Linux 6.16 to 6.18) unmounts what is mounted anywhere below the
//! mount point, and makes programs that run from there find their files "(deleted)". And nobody
//! checks search permission for a name that the kernel has cached.
//!
//! Kernels: Linux to 6.18, the newest that was tested. Shown by
//! `what_is_mounted_below_a_mount_stays` (tests/tests/mounted_below.rs). It can go when a directory
//! can be notified without locks, and its names are asked for again without being dropped.

use std::time::Duration;

/// For how long the kernel may use a name without asking.
pub(crate) const NAME_VALID: Duration = Duration::ZERO;
