//! What the table does without a request: the answers to callbacks, and what is due.

use std::time::{Duration, Instant};

use super::queue::{Transmission, WaiterState};
use super::ranges::RangeSet;
use super::requests::{CallbackAnswer, CallbackId, LockCallback, LockClient};
use super::table::{FileSlot, LockTable};

/// How long a range is reserved for a waiter that was notified: this many round trips of its
/// callback, within [`RESERVATION_MIN`] and [`RESERVATION_MAX`].
const RESERVATION_ROUND_TRIPS: u32 = 4;
/// Minimum time of a reservation.
pub(super) const RESERVATION_MIN: Duration = Duration::from_millis(50);
/// Maximum time of a reservation.
pub(super) const RESERVATION_MAX: Duration = Duration::from_secs(2);
/// The first interval between transmissions of a grant. Each further one is twice as long.
const RETRANSMISSION_MIN: Duration = Duration::from_secs(1);
/// Maximum interval between transmissions of a grant.
const RETRANSMISSION_MAX: Duration = Duration::from_secs(60);
/// How long the answer to a transmission may take. After that it counts as not answered, or, if the
/// protocol has not begun to send it, is handed to the protocol again.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(30);

impl LockTable {
    /// The callback of a grant is about to be sent to `client`. Returns `false` if it must not be
    /// sent: the grant is not pending any more, or was sent and may still be answered.
    #[must_use]
    pub fn begin_grant(&mut self, client: LockClient, id: CallbackId) -> bool {
        let Some(slot) = self.ids.get(&id.0).copied() else { return false };
        let Some(queue) = self.files[slot.0 as usize].queue.as_deref_mut() else { return false };
        let Some(grant) = queue.grants.iter_mut().find(|grant| grant.id == id.0) else { return false };
        if self.owners.client(grant.granted.owner) != client || grant.transmission != Transmission::Queued {
            return false;
        }
        grant.transmission = Transmission::Sent;
        true
    }

    /// Reports how `client` answered a callback. Answers to callbacks that are not its own, or not
    /// known any more, are ignored.
    pub fn answered(
        &mut self,
        client: LockClient,
        id: CallbackId,
        answer: CallbackAnswer,
        now: Instant,
        callbacks: &mut Vec<LockCallback>,
    ) {
        let Some(slot) = self.ids.get(&id.0).copied() else { return };
        let Some(queue) = self.files[slot.0 as usize].queue.as_deref_mut() else { return };
        let file = queue.file;
        let grant = queue.grants.iter().position(|grant| grant.id == id.0);
        let owner = match grant {
            Some(at) => Some(queue.grants[at].granted.owner),
            None => queue.find(|waiter| waiter.id == id.0).map(|waiter| waiter.wanted.owner),
        };
        if owner.is_none_or(|owner| self.owners.client(owner) != client) {
            return;
        }
        match grant {
            Some(at) => self.grant_answered(slot, at, answer, now, callbacks),
            None => self.notification_answered(slot, id.0, answer, now, callbacks),
        }
        self.remove_if_unused(&file, slot);
    }

    fn grant_answered(
        &mut self,
        slot: FileSlot,
        at: usize,
        answer: CallbackAnswer,
        now: Instant,
        callbacks: &mut Vec<LockCallback>,
    ) {
        let Some(queue) = self.files[slot.0 as usize].queue.as_deref_mut() else { return };
        let grant = &mut queue.grants[at];
        let client = self.owners.client(grant.granted.owner);
        match answer {
            CallbackAnswer::Accepted { .. } => self.remove_grant(slot, at),
            // A client that has accepted one copy refuses the next one, as Linux does. Its UNLOCK
            // or CANCEL shows what it knows.
            CallbackAnswer::Refused if grant.may_be_known => {
                grant.transmission = Transmission::Ended;
                self.timers.set(grant.id, &mut grant.timer, None);
            }
            CallbackAnswer::Refused => self.take_back(slot, at, now, callbacks),
            CallbackAnswer::Undelivered if !grant.may_be_known => {
                self.take_back(slot, at, now, callbacks);
                self.drop_waiters_of(slot, client, now, callbacks);
            }
            CallbackAnswer::Unanswered | CallbackAnswer::Undelivered => {
                grant.may_be_known = true;
                if grant.transmission == Transmission::Ended {
                    return;
                }
                let doubled = RETRANSMISSION_MIN.saturating_mul(1 << grant.attempt.min(6));
                grant.transmission = Transmission::Failed;
                let again = now + doubled.min(RETRANSMISSION_MAX);
                self.timers.set(grant.id, &mut grant.timer, Some(again));
            }
        }
    }

    fn notification_answered(
        &mut self,
        slot: FileSlot,
        id: u64,
        answer: CallbackAnswer,
        now: Instant,
        callbacks: &mut Vec<LockCallback>,
    ) {
        let entry = &mut self.files[slot.0 as usize];
        let Some(queue) = entry.queue.as_deref_mut() else { return };
        let Some(waiter) = queue.find(|waiter| waiter.id == id) else { return };
        let wanted = waiter.wanted;
        let client = self.owners.client(wanted.owner);
        match answer {
            CallbackAnswer::Accepted { round_trip } => {
                let WaiterState::Notified { .. } = waiter.state else { return };
                let is_free =
                    entry.held.conflict(Some(wanted.owner), wanted.lock_type, wanted.range).is_none()
                        && queue.reserved(&wanted).is_none();
                let lasts = round_trip.saturating_mul(RESERVATION_ROUND_TRIPS);
                let until = now + lasts.clamp(RESERVATION_MIN, RESERVATION_MAX);
                let Some(waiter) = queue.find(|waiter| waiter.id == id) else { return };
                // If another request was granted meanwhile, the waiter keeps its place.
                waiter.state = if is_free { WaiterState::Reserved { until } } else { WaiterState::Waiting };
                waiter.set_timer(now, &mut self.timers);
                if is_free {
                    queue.end_turn(client);
                }
            }
            CallbackAnswer::Refused => {
                self.remove_waiter(slot, id);
                self.promote(slot, RangeSet::of(wanted.range), now, callbacks);
            }
            CallbackAnswer::Undelivered | CallbackAnswer::Unanswered => {
                self.drop_waiters_of(slot, client, now, callbacks);
            }
        }
    }

    /// Takes a granted lock back, and restores what the owner held before, as far as it is free.
    pub(super) fn take_back(
        &mut self,
        slot: FileSlot,
        at: usize,
        now: Instant,
        callbacks: &mut Vec<LockCallback>,
    ) {
        let Some(queue) = self.files[slot.0 as usize].queue.as_deref_mut() else { return };
        let granted = queue.grants[at].granted;
        let replaced = std::mem::take(&mut queue.grants[at].replaced);
        self.counts.taken_back += 1;
        let change = self.files[slot.0 as usize].held.change(granted.owner, None, granted.range);
        self.apply(slot, granted.owner, &change);
        for part in replaced {
            // Others may have got what a downgrade gave up.
            let lock_type = Some(part.lock_type.min(granted.lock_type));
            let change = self.files[slot.0 as usize].held.change(part.owner, lock_type, part.range);
            self.apply(slot, part.owner, &change);
        }
        self.release_local(slot, granted.range);
        self.remove_grant(slot, at);
        self.promote(slot, RangeSet::of(granted.range), now, callbacks);
    }

    /// The client cannot be reached: its requests leave the queue. It sends them again if it still
    /// waits.
    fn drop_waiters_of(
        &mut self,
        slot: FileSlot,
        client: LockClient,
        now: Instant,
        callbacks: &mut Vec<LockCallback>,
    ) {
        let Some(queue) = self.files[slot.0 as usize].queue.as_deref() else { return };
        let Some(queue) = queue.clients.iter().find(|queue| queue.client == client) else { return };
        let mut freed = RangeSet::default();
        let mut dropped = Vec::new();
        for waiter in queue.waiters.iter().filter(|waiter| waiter.style.is_some()) {
            freed.add(waiter.wanted.range);
            dropped.push(waiter.id);
        }
        for id in dropped {
            self.remove_waiter(slot, id);
        }
        self.promote(slot, freed, now, callbacks);
    }

    /// Carries out what is due at `now`: retransmissions, expired reservations, another try where a
    /// local process held a lock.
    pub fn tick(&mut self, now: Instant, callbacks: &mut Vec<LockCallback>) {
        while let Some(id) = self.timers.due(now) {
            let slot = *self.ids.get(&id).expect("only waiters and grants have timers");
            let Some(queue) = self.files[slot.0 as usize].queue.as_deref_mut() else { return };
            let file = queue.file;
            match queue.grants.iter().position(|grant| grant.id == id) {
                Some(at) if queue.grants[at].transmission == Transmission::Sent => {
                    self.grant_answered(slot, at, CallbackAnswer::Unanswered, now, callbacks);
                }
                Some(at) => self.retransmit(slot, at, now, callbacks),
                None => self.waiter_due(slot, id, now, callbacks),
            }
            self.remove_if_unused(&file, slot);
        }
    }

    fn retransmit(&mut self, slot: FileSlot, at: usize, now: Instant, callbacks: &mut Vec<LockCallback>) {
        let Some(queue) = self.files[slot.0 as usize].queue.as_deref_mut() else { return };
        let grant = &mut queue.grants[at];
        grant.attempt += u32::from(grant.transmission == Transmission::Failed);
        grant.transmission = Transmission::Queued;
        self.timers.set(grant.id, &mut grant.timer, Some(now + ANSWER_MAX));
        self.counts.callbacks += 1;
        callbacks.push(grant.callback(self.owners.holder(grant.granted)));
    }

    fn waiter_due(&mut self, slot: FileSlot, id: u64, now: Instant, callbacks: &mut Vec<LockCallback>) {
        let Some(queue) = self.files[slot.0 as usize].queue.as_deref_mut() else { return };
        let Some(waiter) = queue.find(|waiter| waiter.id == id) else { return };
        let range = waiter.wanted.range;
        let is_over = match waiter.state {
            WaiterState::Reserved { until } => until <= now,
            WaiterState::Waiting | WaiterState::Notified { .. } => {
                waiter.expires.is_some_and(|expires| expires <= now)
            }
        };
        if is_over {
            self.counts.expired += 1;
            self.remove_waiter(slot, id);
        } else {
            waiter.set_timer(now, &mut self.timers);
        }
        self.promote(slot, RangeSet::of(range), now, callbacks);
    }

    /// When [`Self::tick`] is due next.
    #[must_use]
    pub fn next_tick(&self) -> Option<Instant> {
        self.timers.next()
    }
}
