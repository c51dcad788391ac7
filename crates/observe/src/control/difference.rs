//! The difference between two reports of a mount.

use std::collections::BTreeMap;

use super::messages::MountReport;

/// The counts between two reports, by name.
pub(super) fn counted_since(
    now: &BTreeMap<String, u64>,
    earlier: &BTreeMap<String, u64>,
) -> BTreeMap<String, u64> {
    let since = |(name, now): (&String, &u64)| {
        let then = earlier.get(name).copied().unwrap_or(0);
        (name.clone(), now.saturating_sub(then))
    };
    now.iter().map(since).collect()
}

/// How two reports of one mount point go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportContinuity {
    /// A later state of one mount.
    SameMount,
    /// Another daemon, or one that was restarted: its counters do not continue the earlier ones.
    Restarted,
}

impl MountReport {
    /// Whether this report continues an earlier one of the same mount.
    #[must_use]
    pub fn continuity_with(&self, earlier: &Self) -> ReportContinuity {
        let is_same = self.pid == earlier.pid
            && self.source == earlier.source
            && self.age_seconds >= earlier.age_seconds
            && self.counters.requests.total() >= earlier.counters.requests.total();
        if is_same { ReportContinuity::SameMount } else { ReportContinuity::Restarted }
    }

    /// The report of the time between `earlier` and this one: counters are differences, the age is
    /// the time in between; other values are current.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            age_seconds: (self.age_seconds - earlier.age_seconds).max(0.0),
            counters: self.counters.since(&earlier.counters),
            fuse: counted_since(&self.fuse, &earlier.fuse),
            operations: self.operations.since(&earlier.operations),
            transport: self.transport.since(&earlier.transport),
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::ClientCounter;

    use super::*;

    fn report(age_seconds: f64, hits: u64, asked: u64) -> MountReport {
        let counters = crate::ClientCounters::default();
        counters.add(ClientCounter::NegHit, hits);
        MountReport {
            pid: 7,
            age_seconds,
            counters: counters.snapshot(),
            fuse: [("LOOKUP".to_owned(), asked)].into(),
            ..MountReport::default()
        }
    }

    #[test]
    fn between_two_reports_are_the_differences_and_the_time() {
        let between = report(12.5, 9, 40).since(&report(10.0, 4, 30));
        assert_eq!(between.age_seconds.to_bits(), 2.5_f64.to_bits());
        assert_eq!(between.counters.events.value(ClientCounter::NegHit), 5);
        assert_eq!(between.fuse["LOOKUP"], 10);
    }

    #[test]
    fn a_daemon_that_began_again_goes_on_from_nothing() {
        let first = report(10.0, 4, 30);
        assert_eq!(report(12.0, 4, 30).continuity_with(&first), ReportContinuity::SameMount);
        assert_eq!(report(1.0, 4, 30).continuity_with(&first), ReportContinuity::Restarted);
        let another = MountReport { pid: 8, ..report(12.0, 4, 30) };
        assert_eq!(another.continuity_with(&first), ReportContinuity::Restarted);
    }
}
