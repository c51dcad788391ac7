//! For how long attributes are believed.
//!
//! Linux doubles the time each time that a whole one has passed without another look at the
//! attributes and nothing had changed, and starts again from the least after a change. Any reply
//! that brings attributes is such a look, so that an object that is looked at all the time stays at
//! the least.

use core::time::Duration;

use curt_policy::{Moment, TimeoutRange};

/// The timer of one object's attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AttributeTimer {
    /// When the request was sent that brought them.
    read_at: Moment,
    /// For how long they are believed.
    lifetime: Duration,
}

impl AttributeTimer {
    /// Of attributes that are seen for the first time.
    pub(super) const fn start(now: Moment, interval: TimeoutRange) -> Self {
        Self {
            read_at: now,
            lifetime: interval.min,
        }
    }

    /// They came again, unchanged.
    pub(super) fn confirm(&mut self, now: Moment, interval: TimeoutRange) {
        if self.is_expired(now) {
            self.lifetime = (self.lifetime * 2).min(interval.max);
        }
        self.read_at = now;
    }

    /// They came again, and differ.
    pub(super) const fn restart(&mut self, now: Moment, interval: TimeoutRange) {
        *self = Self::start(now, interval);
    }

    /// Whether they are too old.
    pub(super) fn is_expired(&self, now: Moment) -> bool {
        now.since(self.read_at) >= self.lifetime
    }
}
