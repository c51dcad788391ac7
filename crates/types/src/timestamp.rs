//! Times of files.

use core::{fmt, num::NonZeroU64};

/// A time in a file's attributes: nanoseconds since 1970-01-01 UTC, from 1678 to 2261. Times
/// outside that range are clamped.
///
/// Its size, and that of an `Option` of it, is 8 bytes, because an inode has several. NFSv3 times
/// end in 2106 (RFC 1813 section 2.5, nfstime3).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(
    /// Nanoseconds with the sign bit inverted, so that the order is that of the times. Zero would
    /// be out of range.
    NonZeroU64,
);

/// Inverts the sign bit.
const SIGN: u64 = 1 << 63;
/// Nanoseconds of one second.
const SECOND: i64 = 1_000_000_000;
/// A second in nanoseconds, unsigned.
const SECOND_UNSIGNED: u64 = SECOND.unsigned_abs();
/// The start of the range: whole seconds since 1970, and nanoseconds within the second.
const START_SECONDS: i64 = i64::MIN.div_euclid(SECOND);
#[expect(clippy::cast_possible_truncation, reason = "the remainder is at least 0 and less than a second")]
const START_NANOSECONDS: u32 = i64::MIN.rem_euclid(SECOND) as u32;
/// The last nanosecond of a second.
const NANOSECONDS_MAX: u32 = 999_999_999;

impl Timestamp {
    /// The time from seconds since 1970 and nanoseconds within the second. Some servers send more
    /// than 999,999,999 nanoseconds: these are clamped.
    #[must_use]
    #[inline]
    pub const fn new(seconds: i64, nanoseconds: u32) -> Self {
        const EARLIEST: i64 = i64::MIN / SECOND + 1;
        const LATEST: i64 = i64::MAX / SECOND - 1;
        let seconds = if seconds < EARLIEST {
            EARLIEST
        } else if seconds > LATEST {
            LATEST
        } else {
            seconds
        };
        let nanoseconds = if nanoseconds > NANOSECONDS_MAX { NANOSECONDS_MAX } else { nanoseconds };
        Self::from_nanoseconds(seconds * SECOND + nanoseconds as i64)
    }

    /// The time this many nanoseconds after 1970.
    #[must_use]
    #[inline]
    pub const fn from_nanoseconds(nanoseconds: i64) -> Self {
        match NonZeroU64::new(nanoseconds.cast_unsigned() ^ SIGN) {
            Some(ordered) => Self(ordered),
            None => Self(NonZeroU64::MIN),
        }
    }

    /// Whole seconds since 1970, negative before.
    #[must_use]
    #[inline]
    pub const fn seconds(self) -> i64 {
        self.parts().0
    }

    /// Nanoseconds within the second, 0 to 999,999,999.
    #[must_use]
    #[inline]
    pub const fn nanoseconds(self) -> u32 {
        self.parts().1
    }

    /// Whole seconds since 1970, and nanoseconds within the second, with one division.
    #[must_use]
    #[inline]
    pub const fn parts(self) -> (i64, u32) {
        // Counted from the start of the range, it is not negative.
        let ordered = self.0.get();
        let seconds = ordered / SECOND_UNSIGNED;
        // The start of the range is not a whole second.
        let nanoseconds = (ordered % SECOND_UNSIGNED) as u32 + START_NANOSECONDS;
        let (carry, nanoseconds) =
            if nanoseconds > NANOSECONDS_MAX { (1, nanoseconds - 1_000_000_000) } else { (0, nanoseconds) };
        (seconds.cast_signed() + START_SECONDS + carry, nanoseconds)
    }

    /// Nanoseconds since 1970.
    #[must_use]
    #[inline]
    pub const fn as_nanoseconds(self) -> i64 {
        (self.0.get() ^ SIGN).cast_signed()
    }
}

impl Default for Timestamp {
    /// 1970-01-01.
    fn default() -> Self {
        Self::from_nanoseconds(0)
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Timestamp({}.{:09})", self.seconds(), self.nanoseconds())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_keep_their_parts_and_their_order() {
        let times = [(-2, 999_999_999), (-1, 0), (-1, 1), (0, 0), (0, 1), (1, 0), (1 << 32, 5)];
        for (seconds, nanoseconds) in times {
            let time = Timestamp::new(seconds, nanoseconds);
            assert_eq!((time.seconds(), time.nanoseconds()), (seconds, nanoseconds));
        }
        assert!(times.is_sorted_by_key(|(seconds, nanoseconds)| Timestamp::new(*seconds, *nanoseconds)));
    }

    #[test]
    fn the_parts_are_those_of_the_nanoseconds() {
        let ends = [i64::MIN + 1, i64::MAX, -1, 0, 1];
        let starts = (-2000..2000).map(|second| second * SECOND * 4_611_685);
        for start in starts.chain(ends) {
            for nanoseconds in [start.saturating_sub(1).max(i64::MIN + 1), start, start.saturating_add(1)] {
                let (seconds, rest) = Timestamp::from_nanoseconds(nanoseconds).parts();
                assert_eq!(seconds, nanoseconds.div_euclid(SECOND));
                assert_eq!(i64::from(rest), nanoseconds.rem_euclid(SECOND));
            }
        }
    }

    #[test]
    fn times_out_of_range_become_the_nearest_end() {
        let (first, last) = (Timestamp::new(i64::MIN, 0), Timestamp::new(i64::MAX, u32::MAX));
        assert!(first < Timestamp::new(-9_000_000_000, 0));
        assert!(last > Timestamp::new(9_000_000_000, 0));
        assert_eq!(Timestamp::new(1, u32::MAX), Timestamp::new(1, 999_999_999));
        let least = Timestamp::from_nanoseconds(i64::MIN);
        assert_eq!(least.as_nanoseconds(), i64::MIN + 1);
        assert!(least < first);
        assert_eq!(size_of::<Option<Timestamp>>(), 8);
    }
}
