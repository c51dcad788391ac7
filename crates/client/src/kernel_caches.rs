//! The caches of the kernel in front of a mount: names, and targets of symbolic links.
//!
//! The kernel's lifetimes stand still while the machine is suspended, and the clock does not. After
//! a suspend they are compared with [`KernelCaches::awake_time`], until the last one of before has
//! ended; none is granted meanwhile. The next comparison notices a suspend: both clocks are read
//! if the time has advanced by [`SUSPEND_MIN`] since they were.

use std::{
    sync::atomic::{
        AtomicBool, AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
    time::Duration,
};

use curt_policy::{MonotonicTime, kernel_cache::with_expiry_delay};
use parking_lot::Mutex;

use crate::threads::Clock;

/// Shorter suspends are part of the expiry delay
/// ([`EXPIRY_DELAY`](curt_policy::kernel_cache::EXPIRY_DELAY)).
const SUSPEND_MIN: Duration = Duration::from_millis(10);

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
    /// When both clocks were read last, as a [`MonotonicTime`].
    suspends_checked: AtomicU64,
    /// For how long the machine was suspended until then, at least.
    suspended: Mutex<Duration>,
    /// For how many nanoseconds it was suspended since the lifetimes were granted that have not
    /// ended.
    suspended_since_grants: AtomicU64,
}

impl KernelCaches {
    /// The state at the begin of a mount: what was suspended before does not concern it.
    pub(crate) fn new(clock: &dyn Clock) -> Self {
        Self { suspended: Mutex::new(clock.suspended().at_most), ..Self::default() }
    }

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

    /// The time to compare the ends of lifetimes with; earlier than `now` only after a suspend.
    /// `now` may be of before it: then `read` reads the clock. Calls `noticed` if there was one.
    pub(crate) fn awake_time(
        &self,
        now: MonotonicTime,
        clock: &dyn Clock,
        read: impl FnOnce() -> MonotonicTime,
        noticed: impl FnOnce(),
    ) -> MonotonicTime {
        let checked = MonotonicTime::from_nanoseconds(self.suspends_checked.load(Relaxed));
        if now.since(checked) >= SUSPEND_MIN {
            self.check_suspends(now, clock, read, noticed);
        }
        // Acquire: pairs with the store in `check_suspends`. The time of the check comes after the
        // suspend that it has noticed.
        let suspended = self.suspended_since_grants.load(Acquire);
        let now = now.max(MonotonicTime::from_nanoseconds(self.suspends_checked.load(Relaxed)));
        let awake = MonotonicTime::from_nanoseconds(now.nanoseconds().saturating_sub(suspended));
        if suspended != 0 && self.names_expire() <= Some(awake) {
            // Another suspend may have come between.
            let _ = self.suspended_since_grants.compare_exchange(suspended, 0, Relaxed, Relaxed);
            return now;
        }
        awake
    }

    fn check_suspends(
        &self,
        now: MonotonicTime,
        clock: &dyn Clock,
        read: impl FnOnce() -> MonotonicTime,
        noticed: impl FnOnce(),
    ) {
        let mut known = self.suspended.lock();
        let suspended = clock.suspended();
        let longer = suspended.at_most.saturating_sub(*known);
        let now = if longer < SUSPEND_MIN { now } else { read() };
        self.suspends_checked.fetch_max(now.nanoseconds(), Relaxed);
        if longer >= SUSPEND_MIN {
            let longer = u64::try_from(longer.as_nanos()).unwrap_or(u64::MAX);
            self.suspended_since_grants.fetch_add(longer, Release);
            noticed();
        }
        *known = suspended.at_least.max(*known);
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

#[cfg(test)]
mod tests {
    use std::{sync::atomic::AtomicUsize, time::Instant};

    use curt_rpc::client::Interrupt;

    use super::*;
    use crate::threads::SuspendedTime;

    #[derive(Debug, Default)]
    struct Suspended(Mutex<Duration>);

    impl Clock for Suspended {
        fn now(&self) -> Instant {
            Instant::now()
        }

        fn suspended(&self) -> SuspendedTime {
            let suspended = *self.0.lock();
            SuspendedTime { at_least: suspended, at_most: suspended }
        }

        fn pause(&self, _: Duration, _: &Interrupt) {}
    }

    #[test]
    fn a_suspend_is_noticed_once_and_lifetimes_stand_still_until_those_of_before_have_ended() {
        let clock = Suspended(Mutex::new(Duration::from_secs(50)));
        let (kernel, noticed) = (KernelCaches::new(&clock), AtomicUsize::new(0));
        let at = |seconds| MonotonicTime::from_start(Duration::from_secs(seconds));
        let awake_of = |cached, seconds| {
            kernel.awake_time(
                at(cached),
                &clock,
                || at(seconds),
                || {
                    noticed.fetch_add(1, Relaxed);
                },
            )
        };
        let awake = |seconds| awake_of(seconds, seconds);
        kernel.note_name_lifetime(at(3));
        assert_eq!(awake(1), at(1));
        *clock.0.lock() = Duration::from_secs(150);
        assert_eq!(awake_of(2, 102), at(2), "the operation has read the clock before the suspend");
        assert_eq!([awake(102), awake_of(2, 0)], [at(2); 2]);
        assert_eq!(noticed.load(Relaxed), 1);
        assert_eq!(awake(110), at(110), "those of before have ended");
        kernel.note_name_lifetime(at(112));
        assert_eq!(awake(111), at(111));
        assert_eq!(noticed.load(Relaxed), 1);
    }
}
