//! The attribute timeout.
//!
//! Linux doubles the timeout when a whole timeout has passed without a reply with attributes and
//! nothing has changed, and restarts from the minimum after a change. Any reply with attributes
//! counts, so the timeout of an object in constant use stays at the minimum.

use core::time::Duration;

use curt_policy::{MonotonicTime, TimeoutRange};

/// The timer of one object's attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AttributeTimer {
    /// The time at which their request was sent.
    read_at: MonotonicTime,
    /// The timeout.
    lifetime: Duration,
}

impl AttributeTimer {
    /// The timer of attributes that are new in the cache.
    pub(super) const fn start(now: MonotonicTime, interval: TimeoutRange) -> Self {
        Self { read_at: now, lifetime: interval.min }
    }

    /// The attributes were received again, unchanged.
    pub(super) fn confirm(&mut self, now: MonotonicTime, interval: TimeoutRange) {
        if self.is_expired(now) {
            self.lifetime = (self.lifetime * 2).min(interval.max);
        }
        self.read_at = now;
    }

    /// The attributes were received again, and differ.
    pub(super) const fn restart(&mut self, now: MonotonicTime, interval: TimeoutRange) {
        *self = Self::start(now, interval);
    }

    /// Whether they have expired.
    pub(super) fn is_expired(&self, now: MonotonicTime) -> bool {
        now.since(self.read_at) >= self.lifetime
    }
}
