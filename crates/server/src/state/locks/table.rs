//! The table: files, their locks and queues, and the decisions.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use curt_types::{ByteRange, LockType};
use curt_vfs::{KernelLockError, KernelLocks, ProcessLock};

use super::held::{Change, HeldLocks, HeldPart};
use super::owners::{ClientAccount, Counted, OwnerId, Owners};
use super::queue::{ClientQueue, LocalPoll, PendingGrant, Timers, WaitQueue, Waiter, WaiterState, exclude};
use super::ranges::{Barrier, RangeSet};
use super::values::{
    CallbackAnswer, CallbackId, CallbackStyle, CancelOutcome, HeldLock, LockCallback, LockClient, LockDenial,
    LockFile, LockHolder, LockOutcome, LockOwner, LockRequest, LockTableCounts, LockWait, OWNER_NAME_MAX,
};

/// How long a range is reserved for a waiter that was notified: this many round trips of its
/// callback, within [`RESERVATION_MIN`] and [`RESERVATION_MAX`].
const RESERVATION_ROUND_TRIPS: u32 = 4;
/// Minimum time of a reservation.
pub(super) const RESERVATION_MIN: Duration = Duration::from_millis(50);
/// Maximum time of a reservation.
pub(super) const RESERVATION_MAX: Duration = Duration::from_secs(2);
/// The first interval between transmissions of a grant. Each further one is twice as long.
const RETRANSMISSION_MIN: Duration = Duration::from_secs(1);
/// Maximum interval between transmissions of a grant, as with Linux's lockd.
const RETRANSMISSION_MAX: Duration = Duration::from_secs(10);
/// How long a protocol may take to report that a callback is not answered.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// The first interval at which a lock that a local process holds is tried again. Each further one
/// is twice as long.
const LOCAL_POLL_MIN: Duration = Duration::from_millis(50);
/// Maximum interval at which a lock that a local process holds is tried again.
const LOCAL_POLL_MAX: Duration = Duration::from_secs(1);

/// Options of a table.
#[derive(Clone, Copy, Debug)]
pub struct LockTableOptions {
    /// How long a waiter of [`LockWait::Notified`] stays in the queue without a new request.
    pub poll_max: Duration,
    /// How long a grant is retransmitted to a client that does not answer, before it is taken back.
    /// The client may know of it, so this is as long as a lease.
    pub unanswered_max: Duration,
    /// Decides the shape of trees; random, except in tests.
    pub seed: u64,
    /// The first id of a callback. Ids of an earlier run should not occur again.
    pub first_id: u64,
    /// The difference between one id and the next.
    pub id_step: u64,
}

impl Default for LockTableOptions {
    fn default() -> Self {
        let poll_max = Duration::from_secs(90);
        Self { poll_max, unanswered_max: poll_max, seed: 0, first_id: 1, id_step: 1 }
    }
}

/// Byte-range locks of files.
pub struct LockTable {
    options: LockTableOptions,
    slots: HashMap<LockFile, Slot>,
    files: Vec<FileLocks>,
    free: Vec<Slot>,
    pub(super) owners: Owners,
    /// The files of waiters and grants, by their ids.
    ids: HashMap<u64, Slot>,
    next_id: u64,
    pub(super) timers: Timers,
    counts: LockTableCounts,
}

/// The place of a file in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot(u32);

/// The locks of a file.
struct FileLocks {
    held: HeldLocks,
    queue: Option<Box<WaitQueue>>,
    /// The kernel's locks, for processes of this machine.
    local: Option<Box<dyn KernelLocks>>,
}

/// Why a lock that conflicts with none in the table is not granted.
enum NotGranted {
    /// A limit, or the kernel has no more locks.
    Limit,
    /// A process of this machine holds it.
    Local(LockHolder),
}

impl LockTable {
    /// An empty table.
    #[must_use]
    pub fn new(options: LockTableOptions) -> Self {
        Self {
            options,
            slots: HashMap::new(),
            files: Vec::new(),
            free: Vec::new(),
            owners: Owners::default(),
            ids: HashMap::new(),
            next_id: options.first_id,
            timers: Timers::default(),
            counts: LockTableCounts::default(),
        }
    }

    /// Whether a file has locks or waiters. A request for one that has not needs its kernel locks,
    /// if these are used.
    #[must_use]
    pub fn has(&self, file: &LockFile) -> bool {
        self.slots.contains_key(file)
    }

    /// Decides a request for a lock. `account` is that of its client; `local` the kernel's locks of
    /// the file, if they are used; `callbacks` gets the callbacks to be sent.
    pub fn lock(
        &mut self,
        file: &LockFile,
        request: &LockRequest<'_>,
        account: &Arc<ClientAccount>,
        local: Option<Box<dyn KernelLocks>>,
        now: Instant,
        callbacks: &mut Vec<LockCallback>,
    ) -> LockOutcome {
        let is_valid = request.owner.name.len() <= OWNER_NAME_MAX;
        let owner = is_valid.then(|| self.owners.find_or_add(&request.owner, account)).flatten();
        let Some(owner) = owner else {
            self.counts.limited += 1;
            return LockOutcome::Denied(LockDenial::NoLocks);
        };
        let slot = self.slot(file, local);
        let wanted = HeldPart { owner, lock_type: request.lock_type, range: request.range };
        let outcome = self.decide(file, slot, wanted, &request.wait, now, callbacks);
        match &outcome {
            LockOutcome::Granted => self.counts.granted += 1,
            LockOutcome::Blocked(_) => {}
            LockOutcome::Denied(LockDenial::NoLocks) => self.counts.limited += 1,
            LockOutcome::Denied(_) => self.counts.denied += 1,
        }
        self.owners.change_uses(owner, 0);
        self.remove_if_unused(file, slot);
        outcome
    }

    fn decide(
        &mut self,
        file: &LockFile,
        slot: Slot,
        wanted: HeldPart,
        wait: &LockWait<'_>,
        now: Instant,
        callbacks: &mut Vec<LockCallback>,
    ) -> LockOutcome {
        let HeldPart { owner, lock_type, range } = wanted;
        let entry = &mut self.files[slot.0 as usize];
        let queue = entry.queue.as_deref_mut();
        let waiter = queue.and_then(|queue| queue.find_request(&wanted)).map(|waiter| waiter.state);
        let conflict = match entry.held.conflict(Some(owner), lock_type, range) {
            Some(held) => Some(held),
            None if entry.held.covers(owner, lock_type, range) => None,
            None => entry.queue.as_deref().and_then(|queue| match waiter {
                None | Some(WaiterState::Waiting) => queue.precedes(&entry.held, &wanted),
                Some(WaiterState::Notified { .. } | WaiterState::Reserved { .. }) => queue.reserved(&wanted),
            }),
        };
        if let Some(conflict) = conflict {
            let holder = self.owners.holder(conflict);
            return self.wait(file, slot, wanted, wait, holder, None, now, callbacks);
        }
        match self.grant(slot, wanted) {
            Ok(change) => {
                self.confirm(slot, owner, range);
                if waiter.is_some() {
                    self.end_wait(slot, &wanted);
                }
                self.promote(slot, weakened(&change, Some(lock_type)), now, callbacks);
                LockOutcome::Granted
            }
            Err(NotGranted::Limit) => LockOutcome::Denied(LockDenial::NoLocks),
            Err(NotGranted::Local(holder)) => {
                let poll = Some(LocalPoll { at: now + LOCAL_POLL_MIN, delay: LOCAL_POLL_MIN });
                self.wait(file, slot, wanted, wait, holder, poll, now, callbacks)
            }
        }
    }

    /// Queues a request that conflicts, or denies it.
    #[expect(clippy::too_many_arguments, reason = "the request, what it waits for, and the time")]
    fn wait(
        &mut self,
        file: &LockFile,
        slot: Slot,
        wanted: HeldPart,
        wait: &LockWait<'_>,
        holder: LockHolder,
        poll: Option<LocalPoll>,
        now: Instant,
        callbacks: &mut Vec<LockCallback>,
    ) -> LockOutcome {
        let entry = &mut self.files[slot.0 as usize];
        if let Some(waiter) = entry.queue.as_deref_mut().and_then(|queue| queue.find_request(&wanted))
            && matches!(waiter.state, WaiterState::Notified { .. })
        {
            // The range has been taken before the client came back.
            waiter.state = WaiterState::Waiting;
        }
        let (style, handle, caller_name) = match *wait {
            LockWait::No => return LockOutcome::Denied(LockDenial::Conflict(holder)),
            LockWait::Granted { handle, caller_name } => (CallbackStyle::Granted, handle, caller_name),
            LockWait::Notified { handle } => (CallbackStyle::Notified, handle, &b""[..]),
        };
        let expires = (style == CallbackStyle::Notified).then(|| now + self.options.poll_max);
        let queue = entry.queue.get_or_insert_with(|| Box::new(WaitQueue::new(*file)));
        if let Some(waiter) = queue.find_request(&wanted) {
            waiter.poll = waiter.poll.or(poll);
            waiter.expires = expires;
            waiter.set_timer(now, &mut self.timers);
            return LockOutcome::Blocked(holder);
        }
        let account = Arc::clone(self.owners.account(wanted.owner));
        if caller_name.len() > OWNER_NAME_MAX || !account.allows(Counted::Waiters, 1) {
            return LockOutcome::Denied(LockDenial::NoLocks);
        }
        let id = self.next_id;
        self.next_id = id.wrapping_add(self.options.id_step);
        let mut waiter = Waiter {
            id,
            wanted,
            style,
            handle: handle.clone(),
            caller_name: Arc::from(caller_name),
            state: WaiterState::Waiting,
            expires,
            poll,
            timer: None,
        };
        waiter.set_timer(now, &mut self.timers);
        queue.add(account.client(), waiter);
        self.counts.waiters_max = self.counts.waiters_max.max(queue.len.into());
        self.counts.waiters += 1;
        self.counts.blocked += 1;
        account.change(Counted::Waiters, 1);
        self.owners.change_uses(wanted.owner, 1);
        self.ids.insert(id, slot);
        self.pass_waiters(slot, id, now, callbacks);
        LockOutcome::Blocked(holder)
    }

    /// A new waiter may wait for the locks of an owner that waits itself: that owner then passes
    /// others.
    fn pass_waiters(&mut self, slot: Slot, new: u64, now: Instant, callbacks: &mut Vec<LockCallback>) {
        let entry = &self.files[slot.0 as usize];
        let Some(queue) = entry.queue.as_deref() else { return };
        let holds = |owner| self.owners.has_more_than_a_waiter(owner) && entry.held.holds(owner);
        if queue.iter().any(|waiter| waiter.id != new && holds(waiter.wanted.owner)) {
            self.promote(slot, RangeSet::of(ByteRange::WHOLE), now, callbacks);
        }
    }

    /// The lock that a request would conflict with (NLM_TEST, LOCKT). Waiters do not count, except
    /// those for whom a range is reserved.
    #[must_use]
    pub fn test(
        &self,
        file: &LockFile,
        owner: &LockOwner<'_>,
        lock_type: LockType,
        range: ByteRange,
    ) -> Option<LockHolder> {
        let entry = &self.files[self.slots.get(file)?.0 as usize];
        let is_valid = owner.name.len() <= OWNER_NAME_MAX;
        let owner = is_valid.then(|| self.owners.find(owner)).flatten();
        let held = entry.held.conflict(owner, lock_type, range);
        let held = held.or_else(|| entry.queue.as_deref()?.reserved_for_other(owner, lock_type, range));
        match held {
            Some(part) => Some(self.owners.holder(part)),
            None => local_holder(entry.local.as_deref()?, lock_type, range),
        }
    }

    /// Releases the owner's locks in `range`.
    ///
    /// # Errors
    /// [`LockDenial::NoLocks`], if that would split a lock in two and there are too many already.
    pub fn unlock(
        &mut self,
        file: &LockFile,
        owner: &LockOwner<'_>,
        range: ByteRange,
        now: Instant,
        callbacks: &mut Vec<LockCallback>,
    ) -> Result<(), LockDenial> {
        let is_valid = owner.name.len() <= OWNER_NAME_MAX;
        let owner = is_valid.then(|| self.owners.find(owner)).flatten();
        let (Some(slot), Some(owner)) = (self.slots.get(file).copied(), owner) else { return Ok(()) };
        let change = self.files[slot.0 as usize].held.change(owner, None, range);
        if !self.owners.account(owner).allows(Counted::Locks, change.growth()) {
            self.counts.limited += 1;
            return Err(LockDenial::NoLocks);
        }
        self.confirm(slot, owner, range);
        self.apply(slot, owner, &change);
        self.release_local(slot, range);
        self.promote(slot, weakened(&change, None), now, callbacks);
        self.remove_if_unused(file, slot);
        Ok(())
    }

    /// Takes a waiting request out of the queue: the one of this owner, type and range.
    pub fn cancel(
        &mut self,
        file: &LockFile,
        owner: &LockOwner<'_>,
        lock_type: LockType,
        range: ByteRange,
        now: Instant,
        callbacks: &mut Vec<LockCallback>,
    ) -> CancelOutcome {
        let is_valid = owner.name.len() <= OWNER_NAME_MAX;
        let owner = is_valid.then(|| self.owners.find(owner)).flatten();
        let (Some(slot), Some(owner)) = (self.slots.get(file).copied(), owner) else {
            return CancelOutcome::NotWaiting;
        };
        let wanted = HeldPart { owner, lock_type, range };
        let Some(queue) = self.files[slot.0 as usize].queue.as_deref_mut() else {
            return CancelOutcome::NotWaiting;
        };
        let Some(waiter) = queue.find_request(&wanted).map(|waiter| waiter.id) else {
            let is_granted = queue.grants.iter().any(|grant| grant.granted == wanted);
            return if is_granted { CancelOutcome::Granted } else { CancelOutcome::NotWaiting };
        };
        self.counts.cancelled += 1;
        self.remove_waiter(slot, waiter);
        self.promote(slot, RangeSet::of(range), now, callbacks);
        self.remove_if_unused(file, slot);
        CancelOutcome::Cancelled
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
        slot: Slot,
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
            // The client has lost its answer to an earlier transmission, or it knows of the lock
            // and does not wait any more. Both unlock what they do not want.
            CallbackAnswer::Refused if grant.may_be_known => self.remove_grant(slot, at),
            CallbackAnswer::Refused => self.take_back(slot, at, now, callbacks),
            CallbackAnswer::Undelivered if !grant.may_be_known => {
                self.take_back(slot, at, now, callbacks);
                self.drop_waiters_of(slot, client, now, callbacks);
            }
            CallbackAnswer::Unanswered | CallbackAnswer::Undelivered => {
                grant.may_be_known = true;
                if now >= grant.first_sent + self.options.unanswered_max {
                    self.take_back(slot, at, now, callbacks);
                    self.drop_waiters_of(slot, client, now, callbacks);
                    return;
                }
                let doubled = RETRANSMISSION_MIN.saturating_mul(1 << grant.attempt.min(4));
                grant.is_sent = false;
                let again = now + doubled.min(RETRANSMISSION_MAX);
                self.timers.set(grant.id, &mut grant.timer, Some(again));
            }
        }
    }

    fn notification_answered(
        &mut self,
        slot: Slot,
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
                // Whoever came first meanwhile has it: the waiter keeps its place.
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
    fn take_back(&mut self, slot: Slot, at: usize, now: Instant, callbacks: &mut Vec<LockCallback>) {
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

    /// Releases all locks of an owner in a file and takes its requests out of the queue.
    pub fn release_owner(
        &mut self,
        file: &LockFile,
        owner: &LockOwner<'_>,
        now: Instant,
        callbacks: &mut Vec<LockCallback>,
    ) {
        let is_valid = owner.name.len() <= OWNER_NAME_MAX;
        let owner = is_valid.then(|| self.owners.find(owner)).flatten();
        if let (Some(slot), Some(owner)) = (self.slots.get(file).copied(), owner) {
            self.release_if(slot, &|_, of| of == owner, now, callbacks);
            self.remove_if_unused(file, slot);
        }
    }

    /// Releases all locks of a client and takes its requests out of the queues.
    pub fn release_client(&mut self, client: LockClient, now: Instant, callbacks: &mut Vec<LockCallback>) {
        let files: Vec<LockFile> = self.slots.keys().copied().collect();
        for file in files {
            let slot = self.slots[&file];
            self.release_if(slot, &|owners, of| owners.client(of) == client, now, callbacks);
            self.remove_if_unused(&file, slot);
        }
    }

    /// Releases all locks of a file and takes all requests out of its queue.
    pub fn release_file(&mut self, file: &LockFile, now: Instant) {
        if let Some(slot) = self.slots.get(file).copied() {
            self.release_if(slot, &|_, _| true, now, &mut Vec::new());
            self.remove_if_unused(file, slot);
        }
    }

    fn release_if(
        &mut self,
        slot: Slot,
        is_released: &dyn Fn(&Owners, OwnerId) -> bool,
        now: Instant,
        callbacks: &mut Vec<LockCallback>,
    ) {
        let entry = &mut self.files[slot.0 as usize];
        let mut freed = RangeSet::default();
        let mut waiters = Vec::new();
        if let Some(queue) = entry.queue.as_deref() {
            let leaving = queue.iter().filter(|waiter| is_released(&self.owners, waiter.wanted.owner));
            for waiter in leaving {
                freed.add(waiter.wanted.range);
                waiters.push(waiter.id);
            }
        }
        let mut parts = Vec::new();
        entry.held.visit(ByteRange::WHOLE, &mut |part| {
            if is_released(&self.owners, part.owner) {
                parts.push(part);
            }
        });
        for waiter in waiters {
            self.remove_waiter(slot, waiter);
        }
        if let Some(mut queue) = self.files[slot.0 as usize].queue.take() {
            let released: Vec<OwnerId> = queue.grants.iter().map(|grant| grant.granted.owner).collect();
            let released: Vec<OwnerId> =
                released.into_iter().filter(|owner| is_released(&self.owners, *owner)).collect();
            self.confirm_in(&mut queue, &|grant| released.contains(&grant.owner));
            self.files[slot.0 as usize].queue = Some(queue);
        }
        for part in parts {
            freed.add(part.range);
            let change = self.files[slot.0 as usize].held.change(part.owner, None, part.range);
            self.apply(slot, part.owner, &change);
        }
        for range in freed.ranges() {
            self.release_local(slot, *range);
        }
        self.promote(slot, freed, now, callbacks);
    }

    /// Whether the owner holds a lock in the file.
    #[must_use]
    pub fn holds(&self, file: &LockFile, owner: &LockOwner<'_>) -> bool {
        let is_valid = owner.name.len() <= OWNER_NAME_MAX;
        let owner = is_valid.then(|| self.owners.find(owner)).flatten();
        let (Some(slot), Some(owner)) = (self.slots.get(file), owner) else { return false };
        self.files[slot.0 as usize].held.holds(owner)
    }

    /// Carries out what is due at `now`: retransmissions, expired reservations, another try where a
    /// local process held a lock.
    pub fn tick(&mut self, now: Instant, callbacks: &mut Vec<LockCallback>) {
        while let Some(id) = self.timers.due(now) {
            let slot = *self.ids.get(&id).expect("only waiters and grants have timers");
            let Some(queue) = self.files[slot.0 as usize].queue.as_deref_mut() else { return };
            let file = queue.file;
            match queue.grants.iter().position(|grant| grant.id == id) {
                Some(at) if queue.grants[at].is_sent => {
                    self.grant_answered(slot, at, CallbackAnswer::Unanswered, now, callbacks);
                }
                Some(at) => self.retransmit(slot, at, now, callbacks),
                None => self.waiter_due(slot, id, now, callbacks),
            }
            self.remove_if_unused(&file, slot);
        }
    }

    fn retransmit(&mut self, slot: Slot, at: usize, now: Instant, callbacks: &mut Vec<LockCallback>) {
        let Some(queue) = self.files[slot.0 as usize].queue.as_deref_mut() else { return };
        let grant = &mut queue.grants[at];
        grant.attempt += 1;
        grant.is_sent = true;
        self.timers.set(grant.id, &mut grant.timer, Some(now + ANSWER_MAX));
        self.counts.callbacks += 1;
        callbacks.push(grant.callback(self.owners.holder(grant.granted)));
    }

    fn waiter_due(&mut self, slot: Slot, id: u64, now: Instant, callbacks: &mut Vec<LockCallback>) {
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

    /// Calls `visit` for the locks and waiters of all files, those of each file together.
    pub fn report(&self, visit: &mut dyn FnMut(&LockFile, HeldLock)) {
        for (file, slot) in &self.slots {
            let entry = &self.files[slot.0 as usize];
            entry.held.visit(ByteRange::WHOLE, &mut |part| {
                visit(file, HeldLock { lock: self.owners.holder(part), waits: false });
            });
            for waiter in entry.queue.as_deref().into_iter().flat_map(WaitQueue::in_turn) {
                visit(file, HeldLock { lock: self.owners.holder(waiter.wanted), waits: true });
            }
        }
    }

    /// The numbers of the table.
    #[must_use]
    pub fn counts(&self) -> LockTableCounts {
        let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        LockTableCounts { files: number(self.slots.len()), owners: number(self.owners.len()), ..self.counts }
    }

    fn slot(&mut self, file: &LockFile, local: Option<Box<dyn KernelLocks>>) -> Slot {
        if let Some(slot) = self.slots.get(file) {
            return *slot;
        }
        let entry = FileLocks { held: HeldLocks::new(), queue: None, local };
        let slot = if let Some(slot) = self.free.pop() {
            self.files[slot.0 as usize] = entry;
            slot
        } else {
            self.files.push(entry);
            Slot(u32::try_from(self.files.len() - 1).expect("each file has a lock, and these are limited"))
        };
        self.slots.insert(*file, slot);
        slot
    }

    fn remove_if_unused(&mut self, file: &LockFile, slot: Slot) {
        let entry = &mut self.files[slot.0 as usize];
        if entry.queue.as_deref().is_some_and(WaitQueue::is_empty) {
            entry.queue = None;
        }
        if entry.held.is_empty() && entry.queue.is_none() {
            entry.local = None;
            self.slots.remove(file);
            self.free.push(slot);
        }
    }

    /// Grants what conflicts with no lock in the table.
    fn grant(&mut self, slot: Slot, wanted: HeldPart) -> Result<Change, NotGranted> {
        let entry = &mut self.files[slot.0 as usize];
        let change = entry.held.change(wanted.owner, Some(wanted.lock_type), wanted.range);
        if !self.owners.account(wanted.owner).allows(Counted::Locks, change.growth()) {
            return Err(NotGranted::Limit);
        }
        if let Some(local) = entry.local.as_deref_mut() {
            match local.set(wanted.range, Some(wanted.lock_type)) {
                Ok(()) => {}
                Err(KernelLockError::Conflict) => {
                    let holder = local_holder(local, wanted.lock_type, wanted.range);
                    // It may have been released since.
                    let unknown = ProcessLock { process: 0, lock_type: LockType::Write, range: wanted.range };
                    return Err(NotGranted::Local(holder.unwrap_or_else(|| LockHolder::of_process(unknown))));
                }
                Err(KernelLockError::Failed(error)) => {
                    tracing::warn!(%error, "the kernel did not lock a file");
                    return Err(NotGranted::Limit);
                }
            }
        }
        self.apply(slot, wanted.owner, &change);
        Ok(change)
    }

    fn apply(&mut self, slot: Slot, owner: OwnerId, change: &Change) {
        let growth = change.growth();
        self.files[slot.0 as usize].held.apply(change, self.options.seed);
        self.counts.locks = self.counts.locks.saturating_add_signed(growth);
        self.owners.account(owner).change(Counted::Locks, growth);
        self.owners.change_uses(owner, growth);
    }

    /// Releases the kernel's locks in the range, as far as no client holds it any more.
    fn release_local(&mut self, slot: Slot, range: ByteRange) {
        let entry = &mut self.files[slot.0 as usize];
        let Some(local) = entry.local.as_deref_mut() else { return };
        let mut held = RangeSet::default();
        let mut reads = RangeSet::default();
        entry.held.visit(range, &mut |part| {
            let common = part.range.common(range);
            held.extend(common);
            reads.extend(common.filter(|_| part.lock_type == LockType::Read));
        });
        let freed = held.gaps(range).into_iter().map(|range| local.set(range, None));
        let freed: Result<Vec<()>, KernelLockError> = freed.collect();
        // Read locks of others, or of the same owner, may take the place of a write lock.
        let weakened = reads.ranges().iter().try_for_each(|range| local.set(*range, Some(LockType::Read)));
        if let Err(error) = freed.map(drop).and(weakened) {
            tracing::warn!(%error, "the kernel did not release a file's lock");
        }
    }

    /// Forgets unanswered grants: a request of the owner shows that the client knows of them.
    fn confirm(&mut self, slot: Slot, owner: OwnerId, range: ByteRange) {
        if let Some(mut queue) = self.files[slot.0 as usize].queue.take() {
            self.confirm_in(&mut queue, &|grant| grant.owner == owner && grant.range.overlaps(range));
            self.files[slot.0 as usize].queue = Some(queue);
        }
    }

    fn confirm_in(&mut self, queue: &mut WaitQueue, is_confirmed: &dyn Fn(&HeldPart) -> bool) {
        while let Some(at) = queue.grants.iter().position(|grant| is_confirmed(&grant.granted)) {
            let grant = queue.grants.swap_remove(at);
            self.forget_grant(grant);
        }
    }

    fn remove_grant(&mut self, slot: Slot, at: usize) {
        if let Some(queue) = self.files[slot.0 as usize].queue.as_deref_mut() {
            let grant = queue.grants.swap_remove(at);
            self.forget_grant(grant);
        }
    }

    fn forget_grant(&mut self, mut grant: PendingGrant) {
        self.timers.set(grant.id, &mut grant.timer, None);
        self.ids.remove(&grant.id);
        self.owners.change_uses(grant.granted.owner, -1);
    }

    /// A waiter has got its lock by a request.
    fn end_wait(&mut self, slot: Slot, wanted: &HeldPart) {
        let Some(queue) = self.files[slot.0 as usize].queue.as_deref_mut() else { return };
        let Some(id) = queue.find_request(wanted).map(|waiter| waiter.id) else { return };
        queue.end_turn(self.owners.client(wanted.owner));
        self.remove_waiter(slot, id);
    }

    fn remove_waiter(&mut self, slot: Slot, id: u64) {
        let Some(queue) = self.files[slot.0 as usize].queue.as_deref_mut() else { return };
        if let Some(waiter) = queue.remove(id) {
            self.ids.remove(&id);
            self.removed(waiter);
        }
    }

    fn removed(&mut self, mut waiter: Waiter) {
        self.timers.set(waiter.id, &mut waiter.timer, None);
        self.counts.waiters -= 1;
        self.owners.account(waiter.wanted.owner).change(Counted::Waiters, -1);
        self.owners.change_uses(waiter.wanted.owner, -1);
    }

    /// The client cannot be reached: its requests leave the queue. It sends them again if it still
    /// waits.
    fn drop_waiters_of(
        &mut self,
        slot: Slot,
        client: LockClient,
        now: Instant,
        callbacks: &mut Vec<LockCallback>,
    ) {
        let Some(queue) = self.files[slot.0 as usize].queue.as_deref() else { return };
        let Some(queue) = queue.clients.iter().find(|queue| queue.client == client) else { return };
        let mut freed = RangeSet::default();
        let mut dropped = Vec::new();
        for waiter in &queue.waiters {
            freed.add(waiter.wanted.range);
            dropped.push(waiter.id);
        }
        for id in dropped {
            self.remove_waiter(slot, id);
        }
        self.promote(slot, freed, now, callbacks);
    }

    /// Grants to waiters, or notifies them of, what they can have now that `freed` is less locked.
    fn promote(&mut self, slot: Slot, freed: RangeSet, now: Instant, callbacks: &mut Vec<LockCallback>) {
        let mut freed = freed;
        while !freed.is_empty() {
            let Some(mut queue) = self.files[slot.0 as usize].queue.take() else { return };
            freed = self.promote_in(slot, &mut queue, &freed, now, callbacks);
            self.files[slot.0 as usize].queue = Some(queue);
        }
    }

    /// One pass over the queue. Returns what became less locked by the grants themselves.
    fn promote_in(
        &mut self,
        slot: Slot,
        queue: &mut WaitQueue,
        freed: &RangeSet,
        now: Instant,
        callbacks: &mut Vec<LockCallback>,
    ) -> RangeSet {
        let mut pass = Pass::default();
        let mut served = Vec::new();
        // Clients without further waiters leave.
        let mut turns: Vec<Turn> = (0..queue.clients.len()).map(|at| Turn { at, next: 0 }).collect();
        while !turns.is_empty() && !self.is_over(&mut pass, queue, freed) {
            turns.retain_mut(|turn| {
                let Some(waiter) = queue.clients[turn.at].waiters.get(turn.next) else { return false };
                let wanted = waiter.wanted;
                if self.is_over(&mut pass, queue, freed) {
                    return true;
                }
                let held = &self.files[slot.0 as usize].held;
                let is_behind = pass.barrier.conflicts(wanted.lock_type, wanted.range);
                let may_pass = is_behind && held.holds(wanted.owner);
                let passed = if may_pass { queue.passed_by(held, wanted.owner) } else { RangeSet::default() };
                let ClientQueue { client, waiters } = &mut queue.clients[turn.at];
                let waiter = &mut waiters[turn.next];
                match self.consider(slot, waiter, &passed, freed, &mut pass, now, callbacks) {
                    Considered::Stays => turn.next += 1,
                    Considered::Granted(grant) => {
                        served.push(*client);
                        queue.len -= 1;
                        let waiter = waiters.remove(turn.next);
                        waiter.into_iter().for_each(|waiter| self.removed(waiter));
                        let HeldPart { owner, range, .. } = wanted;
                        let is_older = |other: &HeldPart| other.owner == owner && other.range.overlaps(range);
                        self.confirm_in(queue, &is_older);
                        queue.grants.push(grant);
                    }
                    Considered::Leaves => {
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
    fn is_over(&self, pass: &mut Pass, queue: &WaitQueue, freed: &RangeSet) -> bool {
        let may_pass = || queue.iter().any(|waiter| self.owners.has_more_than_a_waiter(waiter.wanted.owner));
        pass.barrier.closes(freed) && !*pass.may_pass.get_or_insert_with(may_pass)
    }

    #[expect(clippy::too_many_arguments, reason = "the waiter, and what the pass has found so far")]
    fn consider(
        &mut self,
        slot: Slot,
        waiter: &mut Waiter,
        passed: &RangeSet,
        freed: &RangeSet,
        pass: &mut Pass,
        now: Instant,
        callbacks: &mut Vec<LockCallback>,
    ) -> Considered {
        let wanted = waiter.wanted;
        let HeldPart { owner, lock_type, range } = wanted;
        let entry = &self.files[slot.0 as usize];
        if !waiter.precedes_waiters(now) {
            return Considered::Stays;
        }
        let is_next = waiter.state == WaiterState::Waiting
            && waiter.poll.is_none_or(|poll| poll.at <= now)
            && freed.overlaps(range)
            && entry.held.conflict(Some(owner), lock_type, range).is_none()
            && (!pass.barrier.conflicts(lock_type, range) || !pass.is_behind(&wanted, passed));
        pass.barrier.add(lock_type, range);
        if !is_next {
            pass.in_front.push(wanted);
            return Considered::Stays;
        }
        let poll_again = match waiter.style {
            CallbackStyle::Granted => match self.grant(slot, wanted) {
                Ok(change) => return Considered::Granted(self.granted(waiter, change, pass, now, callbacks)),
                // Its client learns this when it repeats the request.
                Err(NotGranted::Limit) => return Considered::Leaves,
                Err(NotGranted::Local(_)) => true,
            },
            CallbackStyle::Notified => {
                let local = entry.local.as_deref();
                local.and_then(|local| local_holder(local, lock_type, range)).is_some()
            }
        };
        pass.in_front.push(wanted);
        if poll_again {
            let delay = waiter.poll.map_or(LOCAL_POLL_MIN, |poll| poll.delay * 2).min(LOCAL_POLL_MAX);
            waiter.poll = Some(LocalPoll { at: now + delay, delay });
        } else {
            waiter.poll = None;
            waiter.state = WaiterState::Notified { sent: now };
            self.counts.callbacks += 1;
            callbacks.push(waiter.notification(self.owners.holder(wanted)));
        }
        waiter.set_timer(now, &mut self.timers);
        Considered::Stays
    }

    /// Records the grant of a waiter's lock, with its callback.
    fn granted(
        &mut self,
        waiter: &Waiter,
        change: Change,
        pass: &mut Pass,
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
            caller_name: Arc::clone(&waiter.caller_name),
            attempt: 0,
            first_sent: now,
            may_be_known: false,
            is_sent: true,
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

#[cfg(test)]
impl LockTable {
    /// Whether a callback's answer would have an effect.
    pub(super) fn knows(&self, id: CallbackId) -> bool {
        self.ids.contains_key(&id.0)
    }

    /// The state, with times relative to `now` and without ids.
    pub(super) fn describe(&self, now: Instant) -> String {
        let until = |at: Option<Instant>| at.map(|at| at.saturating_duration_since(now));
        let mut text = String::new();
        for slot in self.slots.values() {
            let entry = &self.files[slot.0 as usize];
            entry.held.visit(ByteRange::WHOLE, &mut |part| {
                text += &format!("{:?} ", self.owners.holder(part));
            });
            let Some(queue) = entry.queue.as_deref() else { continue };
            for queue in &queue.clients {
                text += &format!("queue {:?} ", queue.client);
                for waiter in &queue.waiters {
                    let holder = self.owners.holder(waiter.wanted);
                    let state = match waiter.state {
                        WaiterState::Waiting => "waits".to_owned(),
                        WaiterState::Notified { sent } => format!("notified {:?}", now - sent),
                        WaiterState::Reserved { until: at } => format!("reserved {:?}", until(Some(at))),
                    };
                    text += &format!("{holder:?} {state} {:?} ", until(waiter.expires));
                }
            }
            let mut grants: Vec<String> = Vec::new();
            for grant in &queue.grants {
                let holder = self.owners.holder(grant.granted);
                let since = now - grant.first_sent;
                let flags = (grant.attempt, grant.may_be_known, grant.is_sent);
                grants.push(format!("grant {holder:?} {since:?} {flags:?} {:?} ", until(grant.timer)));
            }
            grants.sort();
            text += &grants.concat();
        }
        text
    }

    /// Undoes the end of the last turn.
    pub(super) fn undo_turns(&mut self) {
        for queue in self.files.iter_mut().filter_map(|file| file.queue.as_deref_mut()) {
            queue.clients.rotate_right(1.min(queue.clients.len()));
        }
    }
}

/// The place of a client in a pass over the queue.
struct Turn {
    /// Its position among the clients.
    at: usize,
    /// The position of its next waiter.
    next: usize,
}

/// What a pass over a queue has found so far.
#[derive(Default)]
struct Pass {
    /// What the waiters so far want or have got.
    barrier: Barrier,
    /// Whether an owner of a waiter may have locks, or other waiters; if known. It may pass waiters.
    may_pass: Option<bool>,
    /// The waiters so far that still wait.
    in_front: Vec<HeldPart>,
    /// What became less locked meanwhile.
    weakened: RangeSet,
}

impl Pass {
    /// Whether a waiter so far that still wants the same bytes is not passed.
    fn is_behind(&self, wanted: &HeldPart, passed: &RangeSet) -> bool {
        // The barrier also has the bytes of waiters of the same owner, and of those passed.
        let mut in_front = self.in_front.iter().filter(|other| exclude(other, wanted));
        in_front.any(|other| !passed.overlaps(other.range))
    }
}

/// What becomes of a waiter in a pass over its queue.
enum Considered {
    Stays,
    Granted(PendingGrant),
    Leaves,
}

/// What others may lock after a change of an owner's locks to this type (none: unlocked).
fn weakened(change: &Change, lock_type: Option<LockType>) -> RangeSet {
    let mut ranges = RangeSet::default();
    let is_weaker = |part: &&HeldPart| match lock_type {
        None => true,
        Some(LockType::Read) => part.lock_type == LockType::Write,
        Some(LockType::Write) => false,
    };
    ranges.extend(change.replaced.iter().filter(is_weaker).map(|part| part.range));
    ranges
}

/// The lock of a local process that a request conflicts with.
fn local_holder(local: &dyn KernelLocks, lock_type: LockType, range: ByteRange) -> Option<LockHolder> {
    match local.test(range, lock_type) {
        Ok(found) => found.map(LockHolder::of_process),
        Err(error) => {
            tracing::warn!(%error, "the kernel's locks of a file cannot be read");
            None
        }
    }
}
