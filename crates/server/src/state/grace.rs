//! The grace period after a restart (RFC 8881 sections 8.4.2 and 8.4.3): for a while only reclaims
//! are granted, and only to clients that had state when the last run of the server ended.
//!
//! The list of those clients is on stable storage and is kept by `recovery`. The period ends when
//! each client of the list has sent RECLAIM_COMPLETE, or after its time. Then the list must be
//! replaced before other state is granted: a client that has not completed its reclaims must not be
//! on it after the next restart, because others may have had its locks.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::Duration,
};

use parking_lot::Mutex;

use super::{Client, Principal};

/// Minimum time from a reclaim to the end of the period: other reclaims may follow.
const RECLAIM_TIME: Duration = Duration::from_secs(2);

/// A client that had state: by its owner, because its id does not survive a restart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RecordedClient {
    /// Its owner.
    pub(crate) owner: Box<[u8]>,
    /// Its principal.
    pub(crate) principal: Principal,
    /// The state that it may have had.
    pub(crate) held: RecordedState,
}

/// The kinds of state of a client that other clients must not contradict before it is reclaimed.
/// The files are not recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct RecordedState {
    /// Whether it may have denied access to others.
    pub(crate) denies: bool,
    /// Whether it may have delegations.
    pub(crate) has_delegations: bool,
}

impl RecordedState {
    /// The kinds of state that one of the two has.
    pub(crate) const fn and(self, other: Self) -> Self {
        Self {
            denies: self.denies || other.denies,
            has_delegations: self.has_delegations || other.has_delegations,
        }
    }
}

impl From<&Client> for RecordedClient {
    fn from(client: &Client) -> Self {
        Self { owner: client.owner.clone(), principal: client.principal, held: client.recorded_state() }
    }
}

/// The grace period.
#[derive(Default)]
pub(crate) struct GracePeriod {
    /// Whether it lasts, readable without the lock. Relaxed: requests that run at the same time as
    /// its end may come before or after it.
    is_on: AtomicBool,
    /// Number of clients that may have denials which they have not reclaimed yet. Relaxed: see
    /// `is_on`.
    denying: AtomicUsize,
    /// Number of clients that may have delegations which they have not reclaimed yet. Relaxed: see
    /// `is_on`.
    delegating: AtomicUsize,
    /// Whether a client has reclaimed something since [`Self::is_over`] was asked last. Relaxed:
    /// see `is_on`.
    has_reclaimed: AtomicBool,
    contents: Mutex<GraceContents>,
}

#[derive(Default)]
struct GraceContents {
    /// The end for clients of NFSv4, if none reclaims shortly before it.
    until: Duration,
    /// The latest end for them.
    latest: Duration,
    /// The end for clients of other protocols.
    others_until: Duration,
    /// The principals of recorded clients, by owner.
    recorded: HashMap<Box<[u8]>, Principal>,
    /// The owners that have not completed their reclaims, and what they may have.
    waiting: HashMap<Box<[u8]>, RecordedState>,
    /// Whether clients of other protocols may reclaim, which do not report when they have
    /// completed.
    has_others: bool,
}

impl GracePeriod {
    /// Begins the period until `until`, unless no client is recorded. Reclaims of NFSv4 clients
    /// prolong it by [`RECLAIM_TIME`] each, to `latest` at most.
    pub(crate) fn begin(&self, recorded: Vec<RecordedClient>, until: Duration, latest: Duration) {
        if recorded.is_empty() {
            return;
        }
        let mut contents = self.contents.lock();
        contents.until = contents.until.max(until);
        contents.latest = contents.latest.max(latest);
        contents.waiting.extend(recorded.iter().map(|client| (client.owner.clone(), client.held)));
        let count =
            |has: fn(&RecordedState) -> bool| contents.waiting.values().filter(|held| has(held)).count();
        self.denying.store(count(|held| held.denies), Ordering::Relaxed);
        self.delegating.store(count(|held| held.has_delegations), Ordering::Relaxed);
        contents.recorded.extend(recorded.into_iter().map(|client| (client.owner, client.principal)));
        self.is_on.store(true, Ordering::Relaxed);
    }

    /// Makes the period last until `until`, for clients of other protocols.
    pub(crate) fn begin_for_others(&self, until: Duration) {
        let mut contents = self.contents.lock();
        contents.others_until = contents.others_until.max(until);
        contents.has_others = true;
        self.is_on.store(true, Ordering::Relaxed);
    }

    /// Whether the period lasts: it has not been ended.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Whether a client may have denied access to others that it has not reclaimed yet. The files
    /// are not recorded, so this concerns all files.
    pub(crate) fn may_deny(&self) -> bool {
        self.denying.load(Ordering::Relaxed) > 0
    }

    /// Whether a client may have delegations that it has not reclaimed yet. The files are not
    /// recorded, so this concerns all files.
    pub(crate) fn may_be_delegated(&self) -> bool {
        self.delegating.load(Ordering::Relaxed) > 0
    }

    /// Records that a client tries to reclaim something.
    pub(super) fn note_reclaim(&self) {
        self.has_reclaimed.store(true, Ordering::Relaxed);
    }

    /// Whether the period lasts and is to be ended.
    pub(crate) fn is_over(&self, now: Duration) -> bool {
        if !self.is_on() {
            return false;
        }
        let mut contents = self.contents.lock();
        if self.has_reclaimed.swap(false, Ordering::Relaxed) {
            let prolonged = contents.latest.min(now.saturating_add(RECLAIM_TIME));
            contents.until = contents.until.max(prolonged);
        }
        if now >= contents.until {
            // Changes wait no longer, even if the period goes on because its end cannot be
            // recorded. Delegations of files that were changed cannot be reclaimed.
            self.delegating.store(0, Ordering::Relaxed);
        }
        now >= contents.until.max(contents.others_until)
            || contents.waiting.is_empty() && !contents.has_others
    }

    /// Ends the period.
    pub(crate) fn end(&self) {
        let mut contents = self.contents.lock();
        self.is_on.store(false, Ordering::Relaxed);
        self.denying.store(0, Ordering::Relaxed);
        self.delegating.store(0, Ordering::Relaxed);
        *contents = GraceContents::default();
    }

    /// Whether the client had state when the last run ended.
    pub(super) fn is_recorded(&self, client: &Client) -> bool {
        self.contents.lock().recorded.get(&client.owner) == Some(&client.principal)
    }

    /// The client has completed its reclaims.
    pub(super) fn complete(&self, client: &Client) {
        if !self.is_on() {
            return;
        }
        let mut contents = self.contents.lock();
        // The instance is not compared: a client that restarted has nothing left to reclaim. The
        // principal is: another one must not end the period for this client.
        if contents.recorded.get(&client.owner) == Some(&client.principal) {
            let held = contents.waiting.remove(&client.owner).unwrap_or_default();
            self.denying.fetch_sub(usize::from(held.denies), Ordering::Relaxed);
            let reclaimed = usize::from(held.has_delegations);
            let _ = self
                .delegating
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_sub(reclaimed));
        }
    }
}
