//! The requests that wait for locks of one file, and the grants that are not answered yet.
//!
//! Requests are queued per client, and clients are served round-robin. After a grant the client
//! moves to the end, behind clients that arrive during its turn. A client with one waiter therefore
//! gets as many grants as a client with hundreds.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use curt_types::{ByteRange, FileHandle, LockType};

use super::held::{HeldLocks, HeldPart};
use super::owners::OwnerId;
use super::ranges::{Barrier, RangeSet};
use super::requests::{CallbackId, CallbackStyle, LockCallback, LockClient, LockFile, LockHolder};

/// A request that is repeated keeps its place, or a range, for this number of the client's
/// intervals, within [`REPEAT_MIN`] and [`REPEAT_MAX`]. Its next interval may be longer.
const REPEAT_INTERVALS: u32 = 3;
/// Minimum time for which a request that is repeated keeps its place.
pub(super) const REPEAT_MIN: Duration = Duration::from_millis(250);
/// Maximum time for which a request that is repeated keeps its place.
pub(super) const REPEAT_MAX: Duration = Duration::from_secs(2);

/// How long a waiter whose client has not answered that it was notified holds back other waiters.
pub(super) const NOTIFICATION_WINDOW: Duration = Duration::from_secs(1);

/// The queue of a file.
#[derive(Debug)]
pub(super) struct WaitQueue {
    pub(super) file: LockFile,
    /// In the order of their turns.
    pub(super) clients: VecDeque<ClientQueue>,
    /// The client that had the last turn.
    pub(super) latest: Option<LockClient>,
    /// Locks that were granted, and whose callback is not answered.
    pub(super) grants: Vec<PendingGrant>,
    /// The number of waiters.
    pub(super) len: u32,
}

/// The waiters of a client, in the order of their arrival.
#[derive(Debug)]
pub(super) struct ClientQueue {
    pub(super) client: LockClient,
    pub(super) waiters: VecDeque<Waiter>,
}

/// A request that waits.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) id: u64,
    /// The owner, type and range that it waits for.
    pub(super) wanted: HeldPart,
    /// `None`: its client is not called, and repeats the request.
    pub(super) style: Option<CallbackStyle>,
    /// When it was requested last.
    pub(super) asked: Instant,
    pub(super) handle: FileHandle,
    pub(super) local: Option<IpAddr>,
    pub(super) state: WaiterState,
    /// The number of the open on which it is based.
    pub(super) open: Option<u64>,
    /// When it leaves the queue unless its request is repeated.
    pub(super) expires: Option<Instant>,
    /// A process of this machine holds the lock.
    pub(super) poll: Option<LocalPoll>,
    /// The time for which a timer is set.
    pub(super) timer: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaiterState {
    Waiting,
    /// The client was notified that it may request the lock again, and has not answered. Nothing is
    /// reserved.
    Notified {
        sent: Instant,
    },
    /// The client has answered, or will repeat its request; the range is reserved for it.
    Reserved {
        until: Instant,
    },
}

/// When to try again what a process of this machine prevented.
#[derive(Clone, Copy, Debug)]
pub(super) struct LocalPoll {
    pub(super) at: Instant,
    pub(super) delay: Duration,
}

/// A lock that was granted to a waiter, and whose client has not answered the callback.
#[derive(Debug)]
pub(super) struct PendingGrant {
    pub(super) id: u64,
    pub(super) granted: HeldPart,
    /// The owner's locks of the range before.
    pub(super) replaced: Vec<HeldPart>,
    pub(super) handle: FileHandle,
    pub(super) local: Option<IpAddr>,
    /// The number of retransmissions.
    pub(super) attempt: u32,
    /// Whether a transmission before the last one may have reached the client.
    pub(super) may_be_known: bool,
    pub(super) transmission: Transmission,
    pub(super) timer: Option<Instant>,
}

/// The state of the last transmission of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transmission {
    /// The protocol has it, and has not begun to send it. It gets it again at `timer`.
    Queued,
    /// Its answer may still come, until `timer`.
    Sent,
    /// No answer has come. The next one follows at `timer`.
    Failed,
    /// The client has refused it, but may have accepted an earlier one. There is no further one.
    Ended,
}

/// How long a request keeps its place that its client repeats, and has sent last after `interval`.
pub(super) fn repeat_time(interval: Duration) -> Duration {
    interval.saturating_mul(REPEAT_INTERVALS).clamp(REPEAT_MIN, REPEAT_MAX)
}

impl Waiter {
    /// When something happens to it without a request.
    fn deadline(&self, now: Instant) -> Option<Instant> {
        let of_state = match self.state {
            WaiterState::Waiting => self.poll.map(|poll| poll.at),
            WaiterState::Notified { sent } => Some(sent + NOTIFICATION_WINDOW),
            WaiterState::Reserved { until } => return Some(until),
        };
        of_state.filter(|at| *at > now).into_iter().chain(self.expires).min()
    }

    /// Sets the timer for what happens next.
    pub(super) fn set_timer(&mut self, now: Instant, timers: &mut Timers) {
        let deadline = self.deadline(now);
        timers.set(self.id, &mut self.timer, deadline);
    }

    /// Whether it holds back waiters that come later in the order of turns, and new requests that
    /// may wait.
    pub(super) fn precedes_waiters(&self, now: Instant) -> bool {
        match self.state {
            WaiterState::Waiting | WaiterState::Reserved { .. } => true,
            WaiterState::Notified { sent } => now < sent + NOTIFICATION_WINDOW,
        }
    }
}

/// Whether two requests exclude each other.
pub(super) fn exclude(one: &HeldPart, other: &HeldPart) -> bool {
    one.owner != other.owner && one.range.overlaps(other.range) && one.lock_type.conflicts(other.lock_type)
}

impl WaitQueue {
    pub(super) const fn new(file: LockFile) -> Self {
        Self { file, clients: VecDeque::new(), latest: None, grants: Vec::new(), len: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.clients.is_empty() && self.grants.is_empty()
    }

    /// Adds a waiter. `is_held`: it waits for a lock that is held, not for other waiters alone;
    /// only then its client may come before the one that has the turn. Otherwise readers would pass
    /// a writer that waits.
    pub(super) fn add(&mut self, client: LockClient, waiter: Waiter, is_held: bool) {
        self.len += 1;
        match self.clients.iter_mut().find(|queue| queue.client == client) {
            Some(queue) => queue.waiters.push_back(waiter),
            None => {
                let waiters = VecDeque::from([waiter]);
                let has_turn = |last: &ClientQueue| Some(last.client) == self.latest;
                let before = usize::from(is_held && self.clients.back().is_some_and(has_turn));
                self.clients.insert(self.clients.len() - before, ClientQueue { client, waiters });
            }
        }
    }

    /// All waiters, those of one client after those of the other.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Waiter> {
        self.clients.iter().flat_map(|queue| &queue.waiters).inspect(|_| count_visit())
    }

    pub(super) fn find(&mut self, is_wanted: impl Fn(&Waiter) -> bool) -> Option<&mut Waiter> {
        let mut all = self.clients.iter_mut().flat_map(|queue| &mut queue.waiters);
        all.find(|waiter| is_wanted(waiter))
    }

    /// The waiter for exactly this lock.
    pub(super) fn find_request(&mut self, wanted: &HeldPart) -> Option<&mut Waiter> {
        self.find(|waiter| waiter.wanted == *wanted)
    }

    /// Takes a waiter out of the queue.
    pub(super) fn remove(&mut self, id: u64) -> Option<Waiter> {
        for at in 0..self.clients.len() {
            let queue = &mut self.clients[at];
            let Some(position) = queue.waiters.iter().position(|waiter| waiter.id == id) else { continue };
            let waiter = queue.waiters.remove(position);
            if queue.waiters.is_empty() {
                self.clients.remove(at);
            }
            self.len -= 1;
            return waiter;
        }
        None
    }

    /// The client has had its turn.
    pub(super) fn end_turn(&mut self, client: LockClient) {
        self.latest = Some(client);
        if let Some(at) = self.clients.iter().position(|queue| queue.client == client) {
            let queue = self.clients.remove(at);
            self.clients.extend(queue);
        }
    }

    /// The waiters in the order in which they are considered: the first of each client, then the
    /// second of each, and so on.
    pub(super) fn in_turn(&self) -> Vec<&Waiter> {
        let mut queues: Vec<_> = self.clients.iter().map(|queue| queue.waiters.iter()).collect();
        let mut order = Vec::with_capacity(self.len as usize);
        while !queues.is_empty() {
            queues.retain_mut(|queue| {
                let next = queue.next();
                order.extend(next);
                next.is_some()
            });
        }
        order
    }

    /// The waiter that a new request has to wait for.
    pub(super) fn precedes(&self, held: &HeldLocks, wanted: &HeldPart, now: Instant) -> Option<HeldPart> {
        let in_front = |waiter: &&Waiter| waiter.precedes_waiters(now) && exclude(&waiter.wanted, wanted);
        let first = self.iter().find(in_front)?.wanted;
        if !held.holds(wanted.owner) {
            return Some(first);
        }
        let passed = self.passed_by(held, wanted.owner);
        let mut others = self.iter().filter(in_front).map(|waiter| waiter.wanted);
        others.find(|other| !passed.overlaps(other.range))
    }

    /// Where `owner` passes other waiters: around each that waits for a lock of the owner, as far
    /// as the ranges of waiters touch. These wait for one another, in an order that turns change.
    /// If the owner waited for one of them, each would wait for the other forever.
    pub(super) fn passed_by(&self, held: &HeldLocks, owner: OwnerId) -> RangeSet {
        let others = || self.iter().map(|waiter| waiter.wanted).filter(|wanted| wanted.owner != owner);
        let mut all = RangeSet::default();
        all.extend(others().map(|wanted| wanted.range));
        let mut passed = RangeSet::default();
        let dependent = others().filter(|wanted| held.blocks(owner, wanted.lock_type, wanted.range));
        passed.extend(dependent.filter_map(|wanted| all.around(wanted.range)));
        passed
    }

    /// The ranges that an owner waits for.
    pub(super) fn wanted_by(&self, owner: OwnerId) -> impl Iterator<Item = ByteRange> {
        self.iter()
            .map(|waiter| waiter.wanted)
            .filter(move |wanted| wanted.owner == owner)
            .map(|wanted| wanted.range)
    }

    /// The requests of all waiters, by owner.
    pub(super) fn by_owner(&self) -> BTreeMap<OwnerId, Vec<HeldPart>> {
        let mut by_owner = BTreeMap::<_, Vec<_>>::new();
        for wanted in self.iter().map(|waiter| waiter.wanted) {
            by_owner.entry(wanted.owner).or_default().push(wanted);
        }
        by_owner
    }

    /// The ranges of all waiters.
    pub(super) fn wanted_ranges(&self) -> WantedRanges {
        let mut ranges = WantedRanges::default();
        for HeldPart { lock_type, range, .. } in self.iter().map(|waiter| waiter.wanted) {
            ranges.all.add(range);
            ranges.by_type.add(lock_type, range);
        }
        ranges
    }
}

/// The ranges of the waiters of a queue.
#[derive(Debug, Default)]
pub(super) struct WantedRanges {
    all: RangeSet,
    by_type: Barrier,
}

impl WantedRanges {
    /// The bytes around those of a waiter, as far as the ranges of waiters touch.
    pub(super) fn around(&self, wanted: &HeldPart) -> Option<ByteRange> {
        self.all.around(wanted.range)
    }

    /// Whether a waiter may pass others that want its bytes, see [`WaitQueue::passed_by`]: its
    /// owner has locks near them for which others may wait. The ranges of its owner's own waiters
    /// are among those that are compared, so `true` is no answer.
    pub(super) fn may_pass(&self, held: &HeldLocks, wanted: &HeldPart) -> bool {
        let Some(near) = self.around(wanted) else { return false };
        let own = held.parts_of(wanted.owner, near);
        own.iter().any(|part| self.by_type.conflicts(part.lock_type, part.range))
    }
}

/// Counts the visit of a waiter, for tests of how many a request makes.
pub(super) fn count_visit() {
    #[cfg(test)]
    VISITS.with(|visits| visits.set(visits.get() + 1));
}

#[cfg(test)]
thread_local! {
    /// The number of waiters visited by this thread.
    pub(super) static VISITS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

impl WaitQueue {
    /// The waiter for whom a range is reserved that `wanted` needs.
    pub(super) fn reserved(&self, wanted: &HeldPart) -> Option<HeldPart> {
        self.reserved_for_other(Some(wanted.owner), wanted.lock_type, wanted.range)
    }

    /// As [`Self::reserved`], for an owner that may have nothing yet.
    pub(super) fn reserved_for_other(
        &self,
        owner: Option<OwnerId>,
        lock_type: LockType,
        range: ByteRange,
    ) -> Option<HeldPart> {
        let in_the_way = |waiter: &&Waiter| {
            matches!(waiter.state, WaiterState::Reserved { .. })
                && Some(waiter.wanted.owner) != owner
                && waiter.wanted.range.overlaps(range)
                && waiter.wanted.lock_type.conflicts(lock_type)
        };
        self.iter().find(in_the_way).map(|waiter| waiter.wanted)
    }
}

impl Waiter {
    /// The callback that notifies its client.
    pub(super) fn notification(&self, lock: LockHolder) -> LockCallback {
        LockCallback {
            id: CallbackId(self.id),
            style: CallbackStyle::Notified,
            handle: self.handle.clone(),
            local: self.local,
            lock,
            attempt: 0,
        }
    }
}

impl PendingGrant {
    /// The callback that reports it.
    pub(super) fn callback(&self, lock: LockHolder) -> LockCallback {
        LockCallback {
            id: CallbackId(self.id),
            style: CallbackStyle::Granted,
            handle: self.handle.clone(),
            local: self.local,
            lock,
            attempt: self.attempt,
        }
    }
}

/// The timers of a table: of its waiters and grants, by their ids.
#[derive(Debug, Default)]
pub(super) struct Timers(BTreeSet<(Instant, u64)>);

impl Timers {
    /// Changes a timer.
    pub(super) fn set(&mut self, id: u64, timer: &mut Option<Instant>, at: Option<Instant>) {
        if *timer == at {
            return;
        }
        if let Some(old) = timer.take() {
            self.0.remove(&(old, id));
        }
        if let Some(at) = at {
            self.0.insert((at, id));
            *timer = Some(at);
        }
    }

    /// The next time at which one is due.
    pub(super) fn next(&self) -> Option<Instant> {
        Some(self.0.first()?.0)
    }

    /// One that is due at `now`. It stays set until its owner changes it.
    pub(super) fn due(&self, now: Instant) -> Option<u64> {
        let (at, id) = self.0.first()?;
        (*at <= now).then_some(*id)
    }

    /// The number of timers.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
