//! Passes over the queue of a file: who is granted a lock, or notified, when bytes become free.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use curt_types::ByteRange;

use super::callbacks::ANSWER_MAX;
use super::held::{Change, HeldLocks, HeldPart};
use super::owners::OwnerId;
use super::queue::{
    ClientQueue, LocalPoll, PendingGrant, Transmission, WaitQueue, Waiter, WaiterState, WantedRanges,
    count_visit, exclude,
};
use super::ranges::{Barrier, RangeSet};
use super::requests::{CallbackStyle, LockCallback};
use super::table::{FileSlot, LockTable, NotGranted, local_holder, weakened};

/// The first interval at which a lock that a local process holds is tried again. Each further one
/// is twice as long.
pub(super) const LOCAL_POLL_MIN: Duration = Duration::from_millis(50);
/// Maximum interval at which a lock that a local process holds is tried again.
const LOCAL_POLL_MAX: Duration = Duration::from_secs(1);

/// The position of a scan in the waiters of one client.
struct QueueCursor {
    /// Its position among the clients.
    at: usize,
    /// The position of its next waiter.
    next: usize,
}

/// The state of a scan of a queue for waiters that can be granted.
#[derive(Default)]
struct PromotionScan {
    /// The ranges that the waiters so far want or have got.
    barrier: Barrier,
    /// Whether an owner of a waiter may have locks or other waiters, and so pass waiters; if known.
    may_pass: Option<bool>,
    /// The waiters so far that still wait.
    in_front: Vec<HeldPart>,
    /// The ranges of all waiters, when they are needed. Those of waiters that leave meanwhile stay.
    wanted: Option<WantedRanges>,
    /// The waiters of those owners that have no new lock yet, when they are needed. Those that
    /// leave meanwhile stay.
    by_owner: Option<BTreeMap<OwnerId, Vec<HeldPart>>>,
    /// The ranges that became less locked meanwhile, or whose waiters may pass others now.
    weakened: RangeSet,
}

impl PromotionScan {
    /// Whether a waiter so far that still wants the same bytes is not passed.
    fn is_behind(&mut self, queue: &WaitQueue, held: &HeldLocks, wanted: &HeldPart) -> bool {
        if !self.barrier.conflicts(wanted.lock_type, wanted.range) {
            return false;
        }
        // The barrier also has the bytes of waiters of the same owner, and of those passed. Those
        // that exclude it are often the first ones, for many bytes, or the last ones, for bytes
        // near its own.
        let in_front = self.in_front.iter().zip(self.in_front.iter().rev());
        let in_front = in_front.take(self.in_front.len().div_ceil(2)).flat_map(|(first, last)| [first, last]);
        let mut in_front =
            in_front.inspect(|_| count_visit()).filter(|other| exclude(other, wanted)).peekable();
        if in_front.peek().is_none() {
            return false;
        }
        let ranges = self.wanted.get_or_insert_with(|| queue.wanted_ranges());
        if !ranges.may_pass(held, wanted) {
            return true;
        }
        // Takes time in proportion to all waiters. Those that wait for the owner are always among
        // the passed.
        let mut passed = None;
        in_front.any(|other| {
            !held.blocks(wanted.owner, other.lock_type, other.range) && {
                let passed = passed.get_or_insert_with(|| queue.passed_by(held, wanted.owner));
                !passed.overlaps(other.range)
            }
        })
    }
}

/// The result for a waiter in a scan of its queue.
enum PromotionOutcome {
    Stays,
    /// The waiter stays, and is first: the range is reserved for it.
    Reserved,
    Granted(PendingGrant),
    Leaves,
}

impl LockTable {
    /// Grants to waiters, or notifies them of, what they can have now that `freed` is less locked.
    pub(super) fn promote(
        &mut self,
        slot: FileSlot,
        freed: RangeSet,
        now: Instant,
        callbacks: &mut Vec<LockCallback>,
    ) {
        let mut freed = freed;
        while !freed.is_empty() {
            let Some(mut queue) = self.files[slot.0 as usize].queue.take() else { return };
            freed = self.promote_in(slot, &mut queue, &freed, now, callbacks);
            self.files[slot.0 as usize].queue = Some(queue);
        }
    }

    /// One pass over the queue. Returns what has to be looked at again because of the grants.
    fn promote_in(
        &mut self,
        slot: FileSlot,
        queue: &mut WaitQueue,
        freed: &RangeSet,
        now: Instant,
        callbacks: &mut Vec<LockCallback>,
    ) -> RangeSet {
        let mut pass = PromotionScan::default();
        let mut served = Vec::new();
        // Clients without further waiters leave.
        let mut turns: Vec<QueueCursor> =
            (0..queue.clients.len()).map(|at| QueueCursor { at, next: 0 }).collect();
        while !turns.is_empty() && !self.is_over(slot, &mut pass, queue, freed) {
            turns.retain_mut(|turn| {
                let Some(waiter) = queue.clients[turn.at].waiters.get(turn.next) else { return false };
                let wanted = waiter.wanted;
                count_visit();
                if self.is_over(slot, &mut pass, queue, freed) {
                    return true;
                }
                let is_next = self.is_next(slot, queue, waiter, freed, &mut pass, now);
                let ClientQueue { client, waiters } = &mut queue.clients[turn.at];
                let waiter = &mut waiters[turn.next];
                match self.consider(slot, waiter, is_next, &mut pass, now, callbacks) {
                    PromotionOutcome::Stays => turn.next += 1,
                    PromotionOutcome::Reserved => {
                        served.push(*client);
                        turn.next += 1;
                    }
                    PromotionOutcome::Granted(grant) => {
                        served.push(*client);
                        queue.len -= 1;
                        let waiter = waiters.remove(turn.next);
                        waiter.into_iter().for_each(|waiter| self.removed(waiter));
                        let HeldPart { owner, range, .. } = wanted;
                        let is_older = |other: &HeldPart| other.owner == owner && other.range.overlaps(range);
                        self.confirm_in(queue, &is_older);
                        queue.grants.push(grant);
                        if self.owners.waits(owner) {
                            // See `let_owner_pass`. Its next grant would add none of them.
                            let all = pass.by_owner.get_or_insert_with(|| queue.by_owner());
                            let others = all.remove(&owner).into_iter().flatten();
                            let others = others.filter(|other| *other != wanted);
                            pass.weakened.extend(others.map(|other| other.range));
                        }
                    }
                    PromotionOutcome::Leaves => {
                        queue.len -= 1;
                        let waiter = waiters.remove(turn.next);
                        waiter.into_iter().for_each(|waiter| {
                            self.ids.remove(&waiter.id);
                            self.removed(waiter);
                        });
                        pass.weakened.add(wanted.range);
                    }
                }
                true
            });
        }
        for client in served {
            queue.end_turn(client);
        }
        queue.clients.retain(|queue| !queue.waiters.is_empty());
        pass.weakened
    }

    /// Whether no further waiter can get any of the bytes.
    fn is_over(&self, slot: FileSlot, pass: &mut PromotionScan, queue: &WaitQueue, freed: &RangeSet) -> bool {
        let may_pass = || self.owners.any_waits_more_than_once() || self.any_holder_waits(slot, queue);
        pass.barrier.closes(freed) && !*pass.may_pass.get_or_insert_with(may_pass)
    }

    /// Whether an owner that waits in the queue may hold a lock of the file. Iterates over the
    /// smaller set: the locks or the waiters.
    pub(super) fn any_holder_waits(&self, slot: FileSlot, queue: &WaitQueue) -> bool {
        let held = &self.files[slot.0 as usize].held;
        if held.len() > queue.len {
            return queue.iter().any(|waiter| held.holds(waiter.wanted.owner));
        }
        let mut found = false;
        held.visit(ByteRange::WHOLE, &mut |part| found = found || self.owners.waits(part.owner));
        found
    }

    /// Whether it is a waiter's turn, and nothing that clients hold is in its way.
    fn is_next(
        &self,
        slot: FileSlot,
        queue: &WaitQueue,
        waiter: &Waiter,
        freed: &RangeSet,
        pass: &mut PromotionScan,
        now: Instant,
    ) -> bool {
        let HeldPart { owner, lock_type, range } = waiter.wanted;
        let held = &self.files[slot.0 as usize].held;
        waiter.state == WaiterState::Waiting
            && waiter.poll.is_none_or(|poll| poll.at <= now)
            && freed.overlaps(range)
            && held.conflict(Some(owner), lock_type, range).is_none()
            // Takes the most time: it may look at all waiters.
            && !pass.is_behind(queue, held, &waiter.wanted)
    }

    fn consider(
        &mut self,
        slot: FileSlot,
        waiter: &mut Waiter,
        is_next: bool,
        pass: &mut PromotionScan,
        now: Instant,
        callbacks: &mut Vec<LockCallback>,
    ) -> PromotionOutcome {
        let wanted = waiter.wanted;
        let HeldPart { lock_type, range, .. } = wanted;
        if !waiter.precedes_waiters(now) {
            return PromotionOutcome::Stays;
        }
        pass.barrier.add(lock_type, range);
        if !is_next {
            pass.in_front.push(wanted);
            return PromotionOutcome::Stays;
        }
        let poll_again = match waiter.style {
            Some(CallbackStyle::Granted) => match self.grant(slot, wanted) {
                Ok(change) => {
                    return PromotionOutcome::Granted(self.granted(waiter, change, pass, now, callbacks));
                }
                // Its client learns this when it repeats the request.
                Err(NotGranted::Limit) => return PromotionOutcome::Leaves,
                Err(NotGranted::Local(_)) => true,
            },
            Some(CallbackStyle::Notified) | None => {
                let local = self.files[slot.0 as usize].local.as_deref();
                local.and_then(|local| local_holder(local, lock_type, range)).is_some()
            }
        };
        pass.in_front.push(wanted);
        let mut considered = PromotionOutcome::Stays;
        if poll_again {
            let delay = waiter.poll.map_or(LOCAL_POLL_MIN, |poll| poll.delay * 2).min(LOCAL_POLL_MAX);
            waiter.poll = Some(LocalPoll { at: now + delay, delay });
        } else {
            waiter.poll = None;
            waiter.state = if waiter.style.is_some() {
                self.counts.callbacks += 1;
                callbacks.push(waiter.notification(self.owners.holder(wanted)));
                WaiterState::Notified { sent: now }
            } else {
                considered = PromotionOutcome::Reserved;
                WaiterState::Reserved { until: waiter.expires.unwrap_or(now) }
            };
        }
        waiter.set_timer(now, &mut self.timers);
        considered
    }

    /// Records the grant of a waiter's lock, with its callback.
    fn granted(
        &mut self,
        waiter: &Waiter,
        change: Change,
        pass: &mut PromotionScan,
        now: Instant,
        callbacks: &mut Vec<LockCallback>,
    ) -> PendingGrant {
        for range in weakened(&change, Some(waiter.wanted.lock_type)).ranges() {
            pass.weakened.add(*range);
        }
        let mut grant = PendingGrant {
            id: waiter.id,
            granted: waiter.wanted,
            replaced: change.replaced,
            handle: waiter.handle.clone(),
            local: waiter.local,
            attempt: 0,
            may_be_known: false,
            transmission: Transmission::Queued,
            timer: waiter.timer,
        };
        self.timers.set(grant.id, &mut grant.timer, Some(now + ANSWER_MAX));
        self.owners.change_uses(grant.granted.owner, 1);
        self.counts.granted += 1;
        self.counts.callbacks += 1;
        callbacks.push(grant.callback(self.owners.holder(grant.granted)));
        grant
    }
}
