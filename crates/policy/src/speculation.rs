//! The benefit of speculative requests: whether their results are used.

/// The measured benefits of a mount's speculative requests, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SpeculationBenefits {
    /// READ of a file with its OPEN.
    pub open_reads: SpeculationBenefit,
    /// READ of a file with the LOOKUP of its name.
    pub lookup_reads: SpeculationBenefit,
    /// OPEN of a file with the LOOKUP of its name. Decided after 4 results, because each unused
    /// OPEN delays a program that only looks names up.
    pub lookup_opens: SpeculationBenefit<4>,
    /// OPEN of files with the OPEN of a file that is listed beside them.
    pub sibling_opens: SpeculationBenefit,
    /// READDIR of a directory with its opendir.
    pub open_lists: SpeculationBenefit,
}

/// The measured benefit of one kind of speculative request. The results of the first `ENOUGH`
/// decide for the first time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SpeculationBenefit<const ENOUGH: u32 = 32> {
    /// Requests of this kind that were recorded, and those whose results were used.
    recorded: u32,
    used: u32,
    /// Opportunities not taken since the last one that was taken.
    skipped: u32,
    /// Doublings of the pause between tries: requests that were recorded as unused since the last
    /// use, while results were not expected to be used.
    doubled: u32,
}

impl<const ENOUGH: u32> SpeculationBenefit<ENOUGH> {
    /// Older results are halved at this number.
    const RECORDED_MAX: u32 = 64;

    /// While results are not expected to be used, one opportunity in this many is tried. Each
    /// unused result doubles the number, [`Self::DOUBLED_MAX`] times at most.
    const TRIED_OF: u32 = 32;

    const DOUBLED_MAX: u32 = 4;

    /// Decides whether to send a request of this kind, and counts the opportunity if not. Results
    /// that are not used cost their bytes and the server's work; a request that is not sent may
    /// cost another one later.
    pub const fn should_try(&mut self) -> bool {
        if self.expects_use() || self.skipped + 1 >= Self::TRIED_OF << self.doubled {
            self.skipped = 0;
            return true;
        }
        self.skipped += 1;
        false
    }

    const fn expects_use(&self) -> bool {
        self.recorded < ENOUGH || self.used >= self.recorded / 4
    }

    /// Records a request of this kind, and whether its results were used.
    pub const fn record(&mut self, was_used: bool) {
        if !was_used && !self.expects_use() && self.doubled < Self::DOUBLED_MAX {
            self.doubled += 1;
        }
        if self.recorded >= Self::RECORDED_MAX {
            (self.recorded, self.used) = (self.recorded / 2, self.used / 2);
        }
        self.recorded += 1;
        if was_used {
            (self.used, self.doubled) = (self.used + 1, 0);
        }
    }

    /// Records that the results of a request were used that was recorded as unused.
    pub const fn record_use(&mut self) {
        if self.used < self.recorded {
            self.used += 1;
        }
        self.doubled = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_sent_as_long_as_every_fourth_is_used() {
        let mut benefit: SpeculationBenefit = SpeculationBenefit::default();
        for number in 0..1000 {
            assert!(benefit.should_try());
            benefit.record(number % 4 == 0);
        }
        let none_is_used = |benefit: &mut SpeculationBenefit, opportunities: u32| {
            let is_tried = |benefit: &mut SpeculationBenefit| {
                let is_tried = benefit.should_try();
                if is_tried {
                    benefit.record(false);
                }
                is_tried
            };
            (0..opportunities).filter(|_| is_tried(benefit)).count()
        };
        let most = SpeculationBenefit::<32>::RECORDED_MAX as usize;
        assert!((8..most).contains(&none_is_used(&mut benefit, 3200)));
        let tried_of = SpeculationBenefit::<32>::TRIED_OF << SpeculationBenefit::<32>::DOUBLED_MAX;
        assert_eq!(
            none_is_used(&mut benefit, 10 * tried_of),
            10,
            "each try doubles the distance, up to this"
        );
        while !(benefit.should_try() && benefit.should_try()) {
            benefit.record(true);
        }
        assert!(benefit.used >= benefit.recorded / 4);
    }

    #[test]
    fn the_first_results_decide() {
        let mut benefit = SpeculationBenefit::<8>::default();
        for _ in 0..8 {
            assert!(benefit.should_try());
            benefit.record(false);
        }
        assert!(!benefit.should_try());
        (0..2).for_each(|_| benefit.record_use());
        assert!(benefit.should_try(), "every fourth was used");
    }

    #[test]
    fn a_use_ends_the_pauses_between_tries() {
        let mut benefit: SpeculationBenefit = SpeculationBenefit::default();
        let next_try = |benefit: &mut SpeculationBenefit| {
            let found = (1..).find(|_| benefit.should_try());
            // A try without an outcome does not count.
            assert_eq!((1..).find(|_| benefit.should_try()), found);
            benefit.record(false);
            found
        };
        (0..32).for_each(|_| benefit.record(false));
        assert_eq!([0; 6].map(|_| next_try(&mut benefit)), [32, 64, 128, 256, 512, 512].map(Some));
        benefit.record_use();
        assert_eq!([0; 2].map(|_| next_try(&mut benefit)), [32, 64].map(Some));
        benefit.record(true);
        assert_eq!(next_try(&mut benefit), Some(32));
    }
}
