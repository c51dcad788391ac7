//! The table: files, their locks and queues, and the decisions about requests.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use curt_types::{ByteRange, LockType};
use curt_vfs::{KernelLockError, KernelLocks, ProcessLock};

use super::held::{Change, HeldLocks, HeldPart};
use super::owners::{ClientAccount, Counted, OwnerId, Owners};
use super::promotion::LOCAL_POLL_MIN;
use super::queue::{LocalPoll, PendingGrant, Timers, WaitQueue, Waiter, WaiterState, repeat_time};
use super::ranges::RangeSet;
use super::requests::{
    CallbackStyle, CancelOutcome, HeldLock, LockCallback, LockClient, LockDenial, LockFile, LockHolder,
    LockOutcome, LockOwner, LockRequest, LockTableCounts, LockWait,
};

/// Options of a table.
#[derive(Clone, Copy, Debug)]
pub struct LockTableOptions {
    /// How long a waiter of [`LockWait::Notified`] stays in the queue without a new request.
    pub poll_max: Duration,
    /// Decides the shape of trees; random, except in tests.
    pub seed: u64,
    /// The first id of a callback. Ids of an earlier run should not occur again.
    pub first_id: u64,
    /// The difference between one id and the next.
    pub id_step: u64,
}

impl Default for LockTableOptions {
    fn default() -> Self {
        Self { poll_max: Duration::from_secs(90), seed: 0, first_id: 1, id_step: 1 }
    }
}

/// Byte-range locks of files.
pub struct LockTable {
    pub(super) options: LockTableOptions,
    pub(super) slots: HashMap<LockFile, FileSlot>,
    pub(super) files: Vec<FileLocks>,
    free: Vec<FileSlot>,
    pub(super) owners: Owners,
    /// The files of waiters and grants, by their ids.
    pub(super) ids: HashMap<u64, FileSlot>,
    next_id: u64,
    pub(super) timers: Timers,
    pub(super) counts: LockTableCounts,
}

/// The place of a file in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileSlot(pub(super) u32);

/// The locks of a file.
pub(super) struct FileLocks {
    pub(super) held: HeldLocks,
    pub(super) queue: Option<Box<WaitQueue>>,
    /// The kernel's locks, for processes of this machine.
    pub(super) local: Option<Box<dyn KernelLocks>>,
}

/// Why a lock that conflicts with none in the table is not granted.
pub(super) enum NotGranted {
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

    /// Whether anybody has locked a part of a file for writing, or waits for that.
    #[must_use]
    pub fn is_wanted_for_writing(&self, file: &LockFile) -> bool {
        let Some(slot) = self.slots.get(file) else { return false };
        let FileLocks { held, queue, .. } = &self.files[slot.0 as usize];
        let mut waiters = queue.iter().flat_map(|queue| queue.iter());
        held.conflict(None, LockType::Read, ByteRange::WHOLE).is_some()
            || waiters.any(|waiter| waiter.wanted.lock_type == LockType::Write)
    }

    /// Calls `visit` for the client of a lock that each waiter waits for. Without waiters it takes
    /// no time.
    pub fn holders_waited_for(&self, visit: &mut dyn FnMut(LockClient)) {
        let slots: HashSet<u32> = self.ids.values().map(|slot| slot.0).collect();
        for slot in slots {
            let FileLocks { held, queue, .. } = &self.files[slot as usize];
            for Waiter { wanted, .. } in queue.iter().flat_map(|queue| queue.iter()) {
                if let Some(lock) = held.conflict(Some(wanted.owner), wanted.lock_type, wanted.range) {
                    visit(self.owners.client(lock.owner));
                }
            }
        }
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
        let Some(owner) = self.owners.find_or_add(&request.owner, account) else {
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
        slot: FileSlot,
        wanted: HeldPart,
        wait: &LockWait<'_>,
        now: Instant,
        callbacks: &mut Vec<LockCallback>,
    ) -> LockOutcome {
        let HeldPart { owner, lock_type, range } = wanted;
        let entry = &mut self.files[slot.0 as usize];
        let queue = entry.queue.as_deref_mut().filter(|_| self.owners.waits(owner));
        let waiter = queue.and_then(|queue| queue.find_request(&wanted)).map(|waiter| waiter.state);
        let conflict = match entry.held.conflict(Some(owner), lock_type, range) {
            Some(held) => Some(held),
            None => match (entry.queue.as_deref(), wait, waiter) {
                (None, ..) => None,
                (Some(_), ..) if entry.held.covers(owner, lock_type, range) => None,
                (Some(queue), LockWait::No, _)
                | (Some(queue), _, Some(WaiterState::Notified { .. } | WaiterState::Reserved { .. })) => {
                    queue.reserved(&wanted)
                }
                (Some(queue), _, None | Some(WaiterState::Waiting)) => {
                    queue.precedes(&entry.held, &wanted, now)
                }
            },
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
                self.let_owner_pass(slot, owner, now, callbacks);
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
        slot: FileSlot,
        wanted: HeldPart,
        wait: &LockWait<'_>,
        holder: LockHolder,
        poll: Option<LocalPoll>,
        now: Instant,
        callbacks: &mut Vec<LockCallback>,
    ) -> LockOutcome {
        let entry = &mut self.files[slot.0 as usize];
        let known = entry.queue.as_deref_mut().filter(|_| self.owners.waits(wanted.owner));
        let mut known = known.and_then(|queue| queue.find_request(&wanted));
        if let Some(waiter) = &mut known {
            // If it was notified, others took the range before the client asked again.
            waiter.state = WaiterState::Waiting;
            waiter.poll = waiter.poll.or(poll);
            waiter.set_timer(now, &mut self.timers);
        }
        let (style, handle, local, open) = match *wait {
            LockWait::No | LockWait::Polled => return LockOutcome::Denied(LockDenial::Conflict(holder)),
            LockWait::Granted { handle, local } => (Some(CallbackStyle::Granted), handle, local, None),
            LockWait::Notified { handle, open } => (Some(CallbackStyle::Notified), handle, None, Some(open)),
            LockWait::Repeated { handle } => (None, handle, None, None),
        };
        let last = known.as_ref().map_or(now, |waiter| waiter.asked);
        let expires = match style {
            Some(CallbackStyle::Granted) => None,
            Some(CallbackStyle::Notified) => Some(now + self.options.poll_max),
            None => Some(now + repeat_time(now.saturating_duration_since(last))),
        };
        if let Some(waiter) = known {
            (waiter.style, waiter.asked, waiter.expires) = (style, now, expires);
            waiter.open = open;
            // By which address of this server the client knows the request.
            waiter.local = local.or(waiter.local);
            waiter.set_timer(now, &mut self.timers);
            return LockOutcome::Blocked(holder);
        }
        let waiter = Waiter {
            id: self.next_id,
            wanted,
            style,
            asked: now,
            handle: handle.clone(),
            local,
            state: WaiterState::Waiting,
            open,
            expires,
            poll,
            timer: None,
        };
        if self.enqueue(file, slot, waiter, now) {
            self.let_holders_pass(slot, &wanted, now, callbacks);
            return LockOutcome::Blocked(holder);
        }
        LockOutcome::Denied(match style {
            Some(CallbackStyle::Granted) => LockDenial::NoLocks,
            // The client polls.
            Some(CallbackStyle::Notified) | None => LockDenial::Conflict(holder),
        })
    }

    /// Queues a request; `false` if its client may have no more of them.
    fn enqueue(&mut self, file: &LockFile, slot: FileSlot, mut waiter: Waiter, now: Instant) -> bool {
        let HeldPart { owner, lock_type, range } = waiter.wanted;
        let account = Arc::clone(self.owners.account(owner));
        if !account.allows(Counted::Waiters, 1) {
            return false;
        }
        let id = waiter.id;
        self.next_id = id.wrapping_add(self.options.id_step);
        waiter.set_timer(now, &mut self.timers);
        let entry = &mut self.files[slot.0 as usize];
        let queue = entry.queue.get_or_insert_with(|| Box::new(WaitQueue::new(*file)));
        let is_held = entry.held.conflict(Some(owner), lock_type, range).is_some();
        queue.add(account.client(), waiter, is_held);
        self.counts.waiters_max = self.counts.waiters_max.max(queue.len.into());
        self.counts.waiters += 1;
        self.counts.blocked += 1;
        account.change(Counted::Waiters, 1);
        self.owners.change_waiters(owner, 1);
        self.ids.insert(id, slot);
        true
    }

    /// An owner has a new lock. If the owner waits, waiters may wait for that lock: the owner then
    /// passes others.
    fn let_owner_pass(
        &mut self,
        slot: FileSlot,
        owner: OwnerId,
        now: Instant,
        callbacks: &mut Vec<LockCallback>,
    ) {
        if !self.owners.waits(owner) {
            return;
        }
        let Some(queue) = self.files[slot.0 as usize].queue.as_deref() else { return };
        let mut wanted = RangeSet::default();
        wanted.extend(queue.wanted_by(owner));
        self.promote(slot, wanted, now, callbacks);
    }

    /// A request is queued. If it, or one that its range touches, waits for a lock of an owner that
    /// waits itself, that owner may pass others now.
    fn let_holders_pass(
        &mut self,
        slot: FileSlot,
        queued: &HeldPart,
        now: Instant,
        callbacks: &mut Vec<LockCallback>,
    ) {
        let FileLocks { held, queue, .. } = &self.files[slot.0 as usize];
        let Some(queue) = queue.as_deref() else { return };
        if queue.len < 2 || !self.any_holder_waits(slot, queue) {
            return;
        }
        // All who wait for one another are within this range, and the locks that they wait for.
        let Some(near) = queue.wanted_ranges().around(queued) else { return };
        let mut found = false;
        held.visit(near, &mut |part| found = found || self.owners.waits(part.owner));
        if found {
            self.promote(slot, RangeSet::of(near), now, callbacks);
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
        let owner = self.owners.find(owner);
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
        let owner = self.owners.find(owner);
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

    /// Takes a waiting request out of the queue: the one of this owner, type and range. If it has
    /// been granted and the client has not confirmed that, the grant is taken back: a client that
    /// knew of it would unlock.
    pub fn cancel(
        &mut self,
        file: &LockFile,
        owner: &LockOwner<'_>,
        lock_type: LockType,
        range: ByteRange,
        now: Instant,
        callbacks: &mut Vec<LockCallback>,
    ) -> CancelOutcome {
        let owner = self.owners.find(owner);
        let (Some(slot), Some(owner)) = (self.slots.get(file).copied(), owner) else {
            return CancelOutcome::NotWaiting;
        };
        let wanted = HeldPart { owner, lock_type, range };
        let Some(queue) = self.files[slot.0 as usize].queue.as_deref_mut() else {
            return CancelOutcome::NotWaiting;
        };
        let Some(waiter) = queue.find_request(&wanted).map(|waiter| waiter.id) else {
            let Some(at) = queue.grants.iter().position(|grant| grant.granted == wanted) else {
                return CancelOutcome::NotWaiting;
            };
            self.take_back(slot, at, now, callbacks);
            self.remove_if_unused(file, slot);
            return CancelOutcome::Cancelled;
        };
        self.counts.cancelled += 1;
        self.remove_waiter(slot, waiter);
        self.promote(slot, RangeSet::of(range), now, callbacks);
        self.remove_if_unused(file, slot);
        CancelOutcome::Cancelled
    }

    /// Takes a client's requests that are based on an open out of the queue of its file.
    pub fn cancel_based_on(
        &mut self,
        file: &LockFile,
        client: LockClient,
        open: u64,
        now: Instant,
        callbacks: &mut Vec<LockCallback>,
    ) {
        let Some(slot) = self.slots.get(file).copied() else { return };
        let Some(queue) = self.files[slot.0 as usize].queue.as_deref() else { return };
        let Some(queue) = queue.clients.iter().find(|queue| queue.client == client) else { return };
        let based = queue.waiters.iter().filter(|waiter| waiter.open == Some(open));
        let mut freed = RangeSet::default();
        let mut waiters = Vec::new();
        for waiter in based {
            freed.add(waiter.wanted.range);
            waiters.push(waiter.id);
        }
        for waiter in waiters {
            self.counts.cancelled += 1;
            self.remove_waiter(slot, waiter);
        }
        self.promote(slot, freed, now, callbacks);
        self.remove_if_unused(file, slot);
    }

    /// Releases all locks of an owner in a file and takes its requests out of the queue. Looks at
    /// no locks of others if nobody waits in the file and the kernel's locks are not used.
    pub fn release_owner(
        &mut self,
        file: &LockFile,
        owner: &LockOwner<'_>,
        now: Instant,
        callbacks: &mut Vec<LockCallback>,
    ) {
        let owner = self.owners.find(owner);
        if let (Some(slot), Some(owner)) = (self.slots.get(file).copied(), owner) {
            self.release_all_of(file, slot, &[owner], now, callbacks);
        }
    }

    /// Releases the locks of those files and owners of a host for which `is_released` holds, and
    /// takes their requests out of the queues. Looks at all locks if it has any.
    pub fn release_owners(
        &mut self,
        client: LockClient,
        is_released: &dyn Fn(&LockFile, &LockOwner<'_>) -> bool,
        now: Instant,
        callbacks: &mut Vec<LockCallback>,
    ) {
        if !self.owners.has_client(client) {
            return;
        }
        let files: Vec<LockFile> = self.slots.keys().copied().collect();
        for file in files {
            let slot = self.slots[&file];
            let entry = &self.files[slot.0 as usize];
            let mut owners = BTreeSet::new();
            let mut add = |of: OwnerId| {
                if self.owners.client(of) == client && is_released(&file, &self.owners.owner(of)) {
                    owners.insert(of);
                }
            };
            if let Some(queue) = entry.queue.as_deref() {
                queue.iter().for_each(|waiter| add(waiter.wanted.owner));
                queue.grants.iter().for_each(|grant| add(grant.granted.owner));
            }
            entry.held.visit(ByteRange::WHOLE, &mut |part| add(part.owner));
            let owners: Vec<OwnerId> = owners.into_iter().collect();
            self.release_all_of(&file, slot, &owners, now, callbacks);
        }
    }

    fn release_all_of(
        &mut self,
        file: &LockFile,
        slot: FileSlot,
        owners: &[OwnerId],
        now: Instant,
        callbacks: &mut Vec<LockCallback>,
    ) {
        let mut freed = RangeSet::default();
        for owner in owners {
            self.release_waiters(slot, *owner, &mut freed);
            let change = self.files[slot.0 as usize].held.change(*owner, None, ByteRange::WHOLE);
            if change.growth() != 0 {
                self.apply(slot, *owner, &change);
                freed.extend(change.replaced.iter().map(|part| part.range));
            }
        }
        for range in freed.ranges() {
            self.release_local(slot, *range);
        }
        self.promote(slot, freed, now, callbacks);
        self.remove_if_unused(file, slot);
    }

    /// Takes an owner's requests out of the queue, and forgets its unanswered grants.
    fn release_waiters(&mut self, slot: FileSlot, owner: OwnerId, freed: &mut RangeSet) {
        let (client, waits) = (self.owners.client(owner), self.owners.waits(owner));
        let Some(mut queue) = self.files[slot.0 as usize].queue.take() else { return };
        let mut waiters = Vec::new();
        if waits && let Some(own) = queue.clients.iter().find(|own| own.client == client) {
            for waiter in own.waiters.iter().filter(|waiter| waiter.wanted.owner == owner) {
                freed.add(waiter.wanted.range);
                waiters.push(waiter.id);
            }
        }
        self.confirm_in(&mut queue, &|grant| grant.owner == owner);
        self.files[slot.0 as usize].queue = Some(queue);
        for waiter in waiters {
            self.remove_waiter(slot, waiter);
        }
    }

    /// Whether the owner holds a lock in the file.
    #[must_use]
    pub fn holds(&self, file: &LockFile, owner: &LockOwner<'_>) -> bool {
        let owner = self.owners.find(owner);
        let (Some(slot), Some(owner)) = (self.slots.get(file), owner) else { return false };
        self.files[slot.0 as usize].held.holds(owner)
    }

    /// Calls `visit` for the locks and waiters of all files, those of each file together, until it
    /// returns `false` (at the latest when that file is done). Returns what it returned last.
    pub fn report(&self, visit: &mut dyn FnMut(&LockFile, HeldLock) -> bool) -> bool {
        let mut goes_on = true;
        for (file, slot) in &self.slots {
            let entry = &self.files[slot.0 as usize];
            entry.held.visit(ByteRange::WHOLE, &mut |part| {
                goes_on = goes_on && visit(file, HeldLock { lock: self.owners.holder(part), waits: false });
            });
            for waiter in entry.queue.as_deref().into_iter().flat_map(WaitQueue::in_turn) {
                let lock = self.owners.holder(waiter.wanted);
                goes_on = goes_on && visit(file, HeldLock { lock, waits: true });
            }
            if !goes_on {
                break;
            }
        }
        goes_on
    }

    /// The numbers of the table.
    #[must_use]
    pub fn counts(&self) -> LockTableCounts {
        let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        LockTableCounts { files: number(self.slots.len()), owners: number(self.owners.len()), ..self.counts }
    }

    fn slot(&mut self, file: &LockFile, local: Option<Box<dyn KernelLocks>>) -> FileSlot {
        if let Some(slot) = self.slots.get(file) {
            return *slot;
        }
        let entry = FileLocks { held: HeldLocks::new(), queue: None, local };
        let slot = if let Some(slot) = self.free.pop() {
            self.files[slot.0 as usize] = entry;
            slot
        } else {
            self.files.push(entry);
            FileSlot(
                u32::try_from(self.files.len() - 1).expect("each file has a lock, and these are limited"),
            )
        };
        self.slots.insert(*file, slot);
        slot
    }

    pub(super) fn remove_if_unused(&mut self, file: &LockFile, slot: FileSlot) {
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
    pub(super) fn grant(&mut self, slot: FileSlot, wanted: HeldPart) -> Result<Change, NotGranted> {
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

    pub(super) fn apply(&mut self, slot: FileSlot, owner: OwnerId, change: &Change) {
        let growth = change.growth();
        self.files[slot.0 as usize].held.apply(change, self.options.seed);
        self.counts.locks = self.counts.locks.saturating_add_signed(growth);
        self.owners.account(owner).change(Counted::Locks, growth);
        self.owners.change_uses(owner, growth);
    }

    /// Releases the kernel's locks in the range, as far as no client holds it any more.
    pub(super) fn release_local(&mut self, slot: FileSlot, range: ByteRange) {
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
    fn confirm(&mut self, slot: FileSlot, owner: OwnerId, range: ByteRange) {
        if let Some(mut queue) = self.files[slot.0 as usize].queue.take() {
            self.confirm_in(&mut queue, &|grant| grant.owner == owner && grant.range.overlaps(range));
            self.files[slot.0 as usize].queue = Some(queue);
        }
    }

    pub(super) fn confirm_in(&mut self, queue: &mut WaitQueue, is_confirmed: &dyn Fn(&HeldPart) -> bool) {
        while let Some(at) = queue.grants.iter().position(|grant| is_confirmed(&grant.granted)) {
            let grant = queue.grants.swap_remove(at);
            self.forget_grant(grant);
        }
    }

    pub(super) fn remove_grant(&mut self, slot: FileSlot, at: usize) {
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
    fn end_wait(&mut self, slot: FileSlot, wanted: &HeldPart) {
        let Some(queue) = self.files[slot.0 as usize].queue.as_deref_mut() else { return };
        let Some(id) = queue.find_request(wanted).map(|waiter| waiter.id) else { return };
        queue.end_turn(self.owners.client(wanted.owner));
        self.remove_waiter(slot, id);
    }

    pub(super) fn remove_waiter(&mut self, slot: FileSlot, id: u64) {
        let Some(queue) = self.files[slot.0 as usize].queue.as_deref_mut() else { return };
        if let Some(waiter) = queue.remove(id) {
            self.ids.remove(&id);
            self.removed(waiter);
        }
    }

    pub(super) fn removed(&mut self, mut waiter: Waiter) {
        self.timers.set(waiter.id, &mut waiter.timer, None);
        self.counts.waiters -= 1;
        self.owners.account(waiter.wanted.owner).change(Counted::Waiters, -1);
        self.owners.change_waiters(waiter.wanted.owner, -1);
    }
}

/// The ranges that others may lock after a change of an owner's locks to this type; `None`:
/// unlocked.
pub(super) fn weakened(change: &Change, lock_type: Option<LockType>) -> RangeSet {
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
pub(super) fn local_holder(
    local: &dyn KernelLocks,
    lock_type: LockType,
    range: ByteRange,
) -> Option<LockHolder> {
    match local.test(range, lock_type) {
        Ok(found) => found.map(LockHolder::of_process),
        Err(error) => {
            tracing::warn!(%error, "the kernel's locks of a file cannot be read");
            None
        }
    }
}
