//! The newest attributes of one object, their dates and their timer.
//!
//! Owns the order of replies and the doubling of lifetimes. One per inode, so it is kept small.

use core::time::Duration;

use curt_types::Timestamp;

use super::AttributeReport;
use crate::{
    facts::Facts,
    options::{CacheOptions, TimeoutRange},
    time::{Moment, left},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct KnownAttributes {
    pub(super) facts: Facts,
    pub(super) sent_at: Moment,
    pub(super) received_at: Moment,
    /// Nanoseconds.
    lifetime: u64,
    adjusted_at: Moment,
    /// The server's time of the last change before the epoch of contents began; `None` if it began
    /// with a change of ours.
    pub(super) epoch_since: Option<Timestamp>,
    /// When a change of ours was last found to join on.
    pub(super) own_change_at: Option<Moment>,
}

/// How a reply stands to what is known.
pub(super) enum ReplyOrder {
    Newer,
    Same,
    Older,
    Unclear,
}

impl KnownAttributes {
    pub(super) fn first(report: AttributeReport, options: &CacheOptions) -> Self {
        Self {
            facts: report.facts,
            sent_at: report.sent_at,
            received_at: report.received_at,
            lifetime: nanoseconds(options.interval(report.facts.kind).min),
            adjusted_at: report.received_at,
            epoch_since: report.facts.stamp.changed_at(),
            own_change_at: None,
        }
    }

    /// A request sent after our knowledge arrived was answered from a later state; of others only
    /// the stamps can tell.
    pub(super) fn order(&self, report: &AttributeReport) -> ReplyOrder {
        if report.facts == self.facts {
            return ReplyOrder::Same;
        }
        if report.sent_at >= self.received_at {
            return ReplyOrder::Newer;
        }
        match report.facts.stamp.later_than(self.facts.stamp) {
            Some(true) => ReplyOrder::Newer,
            Some(false) => ReplyOrder::Older,
            None => ReplyOrder::Unclear,
        }
    }

    /// With the facts of the report, dated `sent_at`, and the lifetime doubled if it has passed
    /// since it was last set: a storm of stats does not drive it up.
    pub(super) fn confirm(self, report: AttributeReport, sent_at: Moment, options: &CacheOptions) -> Self {
        let lifetime = self.lifetime(options);
        let due = report.received_at.since(self.adjusted_at) >= lifetime;
        let doubled = lifetime.saturating_mul(2).min(bounds(&report.facts, options).max);
        Self {
            facts: report.facts,
            sent_at,
            received_at: self.received_at.max(report.received_at),
            lifetime: nanoseconds(if due { doubled } else { lifetime }),
            adjusted_at: if due { report.received_at } else { self.adjusted_at },
            ..self
        }
    }

    pub(super) fn restart_timer(&mut self, now: Moment, options: &CacheOptions) {
        self.lifetime = nanoseconds(options.interval(self.facts.kind).min);
        self.adjusted_at = now;
    }

    /// For how long from `now` these attributes are believed.
    pub(super) fn remaining_lifetime(&self, now: Moment, options: &CacheOptions) -> Duration {
        left(self.lifetime(options), now.since(self.sent_at))
    }

    /// Within the present bounds, which a remount may have moved.
    fn lifetime(&self, options: &CacheOptions) -> Duration {
        let TimeoutRange { min, max } = bounds(&self.facts, options);
        Duration::from_nanos(self.lifetime).clamp(min, max)
    }
}

/// The interval for this object, put in order.
fn bounds(facts: &Facts, options: &CacheOptions) -> TimeoutRange {
    let TimeoutRange { min, max } = options.interval(facts.kind);
    TimeoutRange {
        min,
        max: max.max(min),
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
