//! For how long somebody who keeps names was told that one of them is there.
//!
//! Owns the packing of a promise into eight bytes: there is one for each known name.

use std::time::Duration;

use curt_policy::Moment;

/// Nanoseconds of a step of the beginning: 2^42 of them are two years.
const STEP: u64 = 16_384;
const LENGTH_BITS: u32 = 22;
const LENGTH_MAX: u64 = (1 << LENGTH_BITS) - 1;

/// That a name is there, from when and for how many milliseconds at most 2^22 (70 minutes).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Promise(u64);

impl Promise {
    /// Nothing was promised.
    pub(crate) const NONE: Self = Self(0);

    /// Promised at `now` for `length`; none if that is less than a millisecond, or the mount is too old to say.
    pub(crate) fn new(now: Moment, length: Duration) -> Self {
        let from = now.nanoseconds().div_ceil(STEP);
        let length = u64::try_from(length.as_millis()).map_or(LENGTH_MAX, |length| length.min(LENGTH_MAX));
        if length == 0 || from >= 1 << (u64::BITS - LENGTH_BITS) {
            return Self::NONE;
        }
        Self(from << LENGTH_BITS | length)
    }

    /// Whether it was given before `moment` and after `taken_back`, and has not run out: whoever was given it has it.
    pub(crate) fn is_held(self, moment: Moment, taken_back: Moment) -> bool {
        let from = Moment::from_nanoseconds((self.0 >> LENGTH_BITS) * STEP);
        let length = Duration::from_millis(self.0 & LENGTH_MAX);
        from > taken_back && from < moment && moment.since(from) < length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Moment = Moment::from_nanoseconds(0);

    fn at(milliseconds: u64) -> Moment {
        Moment::from_start(Duration::from_millis(milliseconds))
    }

    #[test]
    fn a_promise_is_held_from_its_answer_to_its_end_unless_it_is_taken_back() {
        let promise = Promise::new(at(1000), Duration::from_millis(500));
        assert!(
            !promise.is_held(at(1000), START),
            "asked while it was being given"
        );
        assert!(promise.is_held(at(1001), START));
        assert!(promise.is_held(at(1500), START));
        assert!(!promise.is_held(at(1501), START));
        assert!(promise.is_held(at(1001), at(999)));
        assert!(!promise.is_held(at(1400), at(1200)));
    }

    #[test]
    fn what_cannot_be_said_is_no_promise() {
        assert_eq!(Promise::new(at(5), Duration::from_micros(999)), Promise::NONE);
        assert_eq!(
            Promise::new(Moment::from_nanoseconds(u64::MAX), Duration::MAX),
            Promise::NONE
        );
        assert!(!Promise::NONE.is_held(at(0), START));
        assert!(!Promise::NONE.is_held(at(1), START));
        let year = Promise::new(at(365 * 86_400_000), Duration::MAX);
        assert!(year.is_held(at(365 * 86_400_000 + LENGTH_MAX - 1), START));
    }
}
