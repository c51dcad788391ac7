//! The caches of the kernel in front of a mount: names, and targets of symbolic links.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use curt_policy::{MonotonicTime, kernel_cache::with_expiry_delay};

/// The state of these caches. Relaxed accesses: no other data depend on them.
#[derive(Debug, Default)]
pub(crate) struct KernelCaches {
    /// The user of the library is a kernel (FUSE).
    pub(crate) is_used_by_kernel: AtomicBool,
    /// The kernel caches the targets of symbolic links until it is notified.
    pub(crate) keeps_targets: AtomicBool,
    /// No name gets a lifetime before this [`MonotonicTime`]; 0: no limit.
    names_withheld_until: AtomicU64,
    /// End of the latest lifetime granted to a name, as a [`MonotonicTime`].
    names_end: AtomicU64,
}

impl KernelCaches {
    /// Grants no lifetime to names for at least this time from `now` on; zero: grants them again.
    pub(crate) fn suspend_names(&self, duration: Duration, now: MonotonicTime) {
        if duration.is_zero() {
            self.names_withheld_until.store(0, Relaxed);
        } else {
            self.names_withheld_until.fetch_max(now.plus(duration).nanoseconds(), Relaxed);
        }
    }

    /// Whether names get no lifetime.
    pub(crate) fn withholds_names(&self, now: impl FnOnce() -> MonotonicTime) -> bool {
        let until = self.names_withheld_until.load(Relaxed);
        until != 0 && MonotonicTime::from_nanoseconds(until) > now()
    }

    /// Records that the kernel was granted a lifetime of a name.
    pub(crate) fn note_name_lifetime(&self, end: MonotonicTime) {
        self.names_end.fetch_max(end.nanoseconds(), Relaxed);
    }

    /// Whether the kernel may have resolved a path by cached names, without asking for permission.
    pub(crate) fn checks_paths(&self, now: MonotonicTime) -> bool {
        let end = self.names_end.load(Relaxed);
        end != 0 && with_expiry_delay(Some(MonotonicTime::from_nanoseconds(end))) > Some(now)
    }

    /// The time after which the kernel has no name cached.
    pub(crate) fn names_expire(&self) -> Option<MonotonicTime> {
        with_expiry_delay(Some(MonotonicTime::from_nanoseconds(self.names_end.load(Relaxed))))
    }
}
