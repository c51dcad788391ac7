//! The parameters common to all models: resolution of the server's stamps, the racy guard, and the
//! attribute lifetimes of clients.

use core::time::Duration;

use curt_policy::{
    Absorbed, AttributeReport, AttributeState, CacheOptions, CachingAttributes, MonotonicTime, Mutation,
    RacyGuard, ServerClock, TimeoutRange, names::GUARD_MIN,
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

/// The threads of the clients: client 0 has `count`, client 1 one.
pub(crate) fn threads(count: usize) -> impl Iterator<Item = (usize, usize)> {
    [(0, 0), (0, 1), (1, 0)].into_iter().filter(move |(client, thread)| *client != 0 || *thread < count)
}

impl Setting {
    /// The mount options for directories.
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

    /// The maximum age of the result of a lookup.
    pub(crate) fn allowance(&self) -> Duration {
        let guard = if self.is_guarded() { GUARD_MIN } else { Duration::ZERO };
        self.lifetime.unwrap_or(Duration::ZERO).max(guard)
    }

    /// The attributes of an object with this last change.
    pub(crate) fn attributes(&self, kind: FileKind, changed: Changed) -> CachingAttributes {
        CachingAttributes {
            kind,
            mode: if kind == FileKind::Directory { 0o755 } else { 0o644 },
            uid: 1,
            gid: 1,
            size: 2,
            stamp: changed.stamp(self.grain),
        }
    }
}

/// A client learns from the time in a reply.
pub(crate) fn learn_time(
    clock: &mut ServerClock,
    attributes: &CachingAttributes,
    received_at: MonotonicTime,
) {
    if let Some(ctime) = attributes.stamp.changed_at() {
        clock.learn(ctime, received_at);
    }
}

/// The attributes in a reply to a request that changed nothing.
pub(crate) fn report(
    attributes: CachingAttributes,
    sent_at: MonotonicTime,
    received_at: MonotonicTime,
) -> AttributeReport {
    AttributeReport { attributes, sent_at, received_at }
}

/// The reply to a change of this client is lost.
pub(crate) fn absorb_loss(
    state: &mut AttributeState,
    (sent_at, received_at): (MonotonicTime, MonotonicTime),
    options: &CacheOptions,
) -> Absorbed {
    let mutation = Mutation { before: None, after: None, sent_at, received_at };
    state.absorb_mutation(mutation, options)
}
