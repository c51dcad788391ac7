//! What the worlds of all models have in common: how fine a server's stamps are, which guard, how
//! long clients believe attributes.

use core::time::Duration;

use curt_policy::{
    Absorbed, AttributeReport, AttributeState, CacheOptions, Facts, Moment, Mutation, RacyGuard, ServerClock,
    TimeoutRange, server_clock::GUARD_MIN,
};
use curt_types::FileKind;

use crate::time::{Changed, Grain};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) grain: Grain,
    pub(crate) guard: RacyGuard,
    /// acdirmin and acdirmax; `None` is noac.
    pub(crate) lifetime: Option<Duration>,
}

/// The threads of the clients: client 0 has so many, client 1 one.
pub(crate) fn threads(count: usize) -> impl Iterator<Item = (usize, usize)> {
    [(0, 0), (0, 1), (1, 0)].into_iter().filter(move |(client, thread)| *client != 0 || *thread < count)
}

impl Setting {
    /// Of mounts of directories.
    pub(crate) fn options(&self) -> CacheOptions {
        let lifetime = self.lifetime.unwrap_or(Duration::ZERO);
        CacheOptions {
            racy_guard: self.guard,
            attribute_cache: self.lifetime.is_some(),
            directories: TimeoutRange { min: lifetime, max: lifetime },
            ..CacheOptions::default()
        }
    }

    /// Whether the difference of the clocks matters.
    pub(crate) fn is_guarded(&self) -> bool {
        self.guard != RacyGuard::Off
    }

    /// How old what a look-up is told may be.
    pub(crate) fn allowance(&self) -> Duration {
        let guard = if self.is_guarded() { GUARD_MIN } else { Duration::ZERO };
        self.lifetime.unwrap_or(Duration::ZERO).max(guard)
    }

    /// What the server says of an object that was last changed then.
    pub(crate) fn facts(&self, kind: FileKind, changed: Changed) -> Facts {
        Facts {
            kind,
            mode: if kind == FileKind::Directory { 0o755 } else { 0o644 },
            uid: 1,
            gid: 1,
            size: 2,
            stamp: changed.stamp(self.grain),
        }
    }
}

/// A client takes note of the time in a reply.
pub(crate) fn learn_time(clock: &mut ServerClock, facts: &Facts, received_at: Moment) {
    if let Some(ctime) = facts.stamp.changed_at() {
        clock.learn(ctime, received_at);
    }
}

/// What a reply to a request that changed nothing says of the object.
pub(crate) fn report(facts: Facts, sent_at: Moment, received_at: Moment) -> AttributeReport {
    AttributeReport { facts, sent_at, received_at }
}

/// A change of ours is given up without a reply.
pub(crate) fn absorb_loss(
    state: &mut AttributeState,
    (sent_at, received_at): (Moment, Moment),
    options: &CacheOptions,
) -> Absorbed {
    let mutation = Mutation { before: None, after: None, sent_at, received_at };
    state.absorb_mutation(mutation, options)
}
