//! The number of descriptors for caching. The kernel assigns the lowest free number, so the number
//! of a new descriptor shows how many the whole process uses, connections included.

use std::os::fd::RawFd;

use rustix::process::{Resource, getrlimit};

/// Above this percentage of the limit, descriptors not used since the last sweep are closed.
const SOFT: u64 = 50;
/// Above this percentage, idle descriptors are closed before another is cached.
const HIGH: u64 = 75;
/// Above this percentage, none is cached.
const HARD: u64 = 90;

/// The pressure indicated by the number of a new descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DescriptorPressure {
    Plenty,
    Scarce,
    Short,
    None,
}

/// The process's limit of descriptors.
#[derive(Clone, Copy, Debug)]
pub(super) struct DescriptorBudget {
    limit: u64,
}

impl DescriptorBudget {
    pub(super) const fn new(limit: u64) -> Self {
        Self { limit }
    }

    pub(super) fn of_process() -> Self {
        Self::new(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX))
    }

    pub(super) fn room(self, number: RawFd) -> DescriptorPressure {
        let used = u64::try_from(number).unwrap_or(0) + 1;
        let reached =
            |percent| used >= (self.limit / 100).saturating_mul(percent) + self.limit % 100 * percent / 100;
        match () {
            () if reached(HARD) => DescriptorPressure::None,
            () if reached(HIGH) => DescriptorPressure::Short,
            () if reached(SOFT) => DescriptorPressure::Scarce,
            () => DescriptorPressure::Plenty,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_room_shrinks_at_half_three_quarters_and_nine_tenths_of_the_limit() {
        for limit in [1000_u64, 1024, 20_000, 60] {
            let room = |used: u64| {
                DescriptorBudget::new(limit).room(RawFd::try_from(used - 1).expect("it is small"))
            };
            for (percent, below, from) in [
                (50, DescriptorPressure::Plenty, DescriptorPressure::Scarce),
                (75, DescriptorPressure::Scarce, DescriptorPressure::Short),
                (90, DescriptorPressure::Short, DescriptorPressure::None),
            ] {
                let bound = limit * percent / 100;
                assert_eq!((room(bound - 1), room(bound)), (below, from), "{percent} % of {limit}");
            }
        }
        assert_eq!(DescriptorBudget::new(u64::MAX).room(RawFd::MAX), DescriptorPressure::Plenty);
    }
}
