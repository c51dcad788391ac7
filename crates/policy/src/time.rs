//! The client's own time as a plain number: the scale on which replies are dated. Must not know the
//! clock that provides the numbers.

use core::{num::NonZeroU64, time::Duration};

/// A time on the client's monotonic scale: nanoseconds since a start that the caller chose.
///
/// The scale covers 584 years; arithmetic saturates. An `Option` of it has the same size: each
/// inode stores several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MonotonicTime(
    /// One more than the number of nanoseconds.
    NonZeroU64,
);

impl Default for MonotonicTime {
    fn default() -> Self {
        Self::from_nanoseconds(0)
    }
}

impl MonotonicTime {
    /// Returns the time `since_start` after the start of the scale.
    #[must_use]
    pub fn from_start(since_start: Duration) -> Self {
        Self::default().plus(since_start)
    }

    /// Returns the time that is this many nanoseconds since the start of the scale.
    #[must_use]
    pub const fn from_nanoseconds(nanoseconds: u64) -> Self {
        Self(NonZeroU64::MIN.saturating_add(nanoseconds))
    }

    /// Nanoseconds since the start of the scale.
    #[must_use]
    pub const fn nanoseconds(self) -> u64 {
        self.0.get() - 1
    }

    /// The time since `earlier`; zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.get().saturating_sub(earlier.0.get()))
    }

    /// Returns the time `later` after this one.
    #[must_use]
    pub fn plus(self, later: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(later.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// The remainder of `whole` after `gone`; zero if nothing is left.
pub(crate) const fn left(whole: Duration, gone: Duration) -> Duration {
    whole.saturating_sub(gone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_optional_moment_takes_no_more_memory() {
        assert_eq!(size_of::<Option<MonotonicTime>>(), size_of::<u64>());
        assert_eq!(MonotonicTime::from_nanoseconds(7).nanoseconds(), 7);
        assert_eq!(MonotonicTime::default(), MonotonicTime::from_start(Duration::ZERO));
    }

    #[test]
    fn a_moment_never_wraps() {
        let last = MonotonicTime::from_nanoseconds(u64::MAX);
        assert_eq!(last.plus(Duration::MAX), last);
        assert_eq!(MonotonicTime::from_start(Duration::MAX), last);
        assert_eq!(MonotonicTime::default().since(last), Duration::ZERO);
    }

    #[test]
    fn since_undoes_plus() {
        let moment = MonotonicTime::from_nanoseconds(7);
        assert_eq!(moment.plus(Duration::from_secs(3)).since(moment), Duration::from_secs(3));
    }
}
