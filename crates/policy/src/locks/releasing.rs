//! Releasing ranges: passing them to the next waiter of this mount, or giving them back to the
//! server by UNLOCK. A range is free here once the server has replied.

use core::time::Duration;

use curt_types::{ByteRange, Fault};

use super::{
    agent::LockAgent,
    events::{
        LockAction, LockCallId, LockError, LockFileId, LockProcedure, LockReply, LockRequestId,
        LockServerCall, LockTimer, LockWait,
    },
    intervals::{DENIALS_MAX, poll_interval},
    table::{LockRelease, ReleasePhase},
    waiters::LocalWaiterState,
};
use crate::time::MonotonicTime;

/// Time from the first hand-off of a lock until it is returned to the server.
const HANDOFF_TIME_MAX: Duration = Duration::from_millis(250);
/// Minimum time for which this mount then does not request it, so that another client can.
const PAUSE_MIN: Duration = Duration::from_millis(1);
/// Of this many returns in a row, the first is followed by that time. A lock of another client that
/// this mount waited for begins a new row.
const LIMITS_PER_PAUSE: u8 = 4;

/// The next pass of a lock without a request.
#[derive(Clone, Copy)]
struct HandOff {
    /// The position of the next owner's request.
    waiter: usize,
    lock: ByteRange,
    /// When the first such pass in a row was made.
    since: MonotonicTime,
    /// Its number in that row.
    number: u32,
}

impl LockAgent {
    /// Takes the locks of an owner within a range from it, and releases them.
    pub(super) fn release(
        &mut self,
        id: LockCallId,
        range: ByteRange,
        caller: Option<LockRequestId>,
        now: MonotonicTime,
    ) {
        let next = self.next_owner(id, range, now);
        let is_allowed = |next: &HandOff| {
            next.number <= self.options.handoffs_max && now.since(next.since) < HANDOFF_TIME_MAX
        };
        if let Some(next) = next.filter(is_allowed) {
            return self.hand_off(id, caller, next);
        }
        let Some(table) = self.files.get_mut(&id.file) else {
            self.answer(caller, Ok(()));
            return;
        };
        let is_limit = next.is_some_and(|next| next.number > 1);
        let pauses = is_limit && table.handoff_limits.is_multiple_of(LIMITS_PER_PAUSE);
        table.handoff_limits = (table.handoff_limits + u8::from(is_limit)) % LIMITS_PER_PAUSE;
        let wire_owner = table.wire_owner(id.owner);
        let mut ranges = table.take(id.owner, range);
        // Bytes that an earlier, interrupted call releases are not free before that release ends.
        let earlier = table.releases.iter().filter(|release| release.id.owner == id.owner);
        for earlier in earlier.filter(|release| release.phase != ReleasePhase::Pauses) {
            ranges.strengthen(&earlier.ranges.within(range));
        }
        if ranges.is_empty() {
            self.answer(caller, Ok(()));
        } else {
            let pauses_since = pauses.then_some(now);
            self.push_release(LockRelease {
                pauses_since,
                ..LockRelease::new(id, wire_owner, ranges, caller)
            });
        }
    }

    /// Passes a lock to the first waiter for just these bytes without telling the server.
    fn hand_off(&mut self, id: LockCallId, caller: Option<LockRequestId>, next: HandOff) {
        let Some(table) = self.files.get_mut(&id.file) else { return };
        let request = table.waiters[next.waiter].request;
        let wire_owner = table.wire_owner(id.owner);
        table.take(id.owner, next.lock);
        table.adopted.insert(request.owner, wire_owner);
        table.grant(&request, false);
        table.forget_adopted(id.owner);
        if let Some(holder) = table.holders.get_mut(&request.owner) {
            holder.handoffs = Some((next.since, next.number));
        }
        self.remove(id.file, next.waiter);
        self.note_holder(id.file, request.owner);
        self.answer(caller, Ok(()));
        self.actions.push(LockAction::HandedOff { request: request.id });
        self.answer(request.id, Ok(()));
    }

    /// The waiter that an owner could pass its lock on to, if it were not for the limits.
    fn next_owner(&self, id: LockCallId, range: ByteRange, now: MonotonicTime) -> Option<HandOff> {
        if !self.options.is_local_first() || self.options.handoffs_max == 0 {
            return None;
        }
        let table = self.files.get(&id.file).filter(|table| table.reclaim.is_none())?;
        let holder = table.holders.get(&id.owner).filter(|holder| !holder.is_contended)?;
        let (since, count) = holder.handoffs.unwrap_or((now, 0));
        let mut locks = holder.ranges.overlapping(range);
        let (lock, lock_type) = locks.next()?;
        let is_only = locks.next().is_none() && lock.common(range) == Some(lock);
        let waiter = table.waiters.iter().position(|waiter| waiter.request.range.overlaps(lock))?;
        let request = &table.waiters[waiter].request;
        let is_alike = (request.range, request.lock_type) == (lock, lock_type)
            && table.waiters[waiter].state() == LocalWaiterState::Queued;
        let wire_owner = table.wire_owner(id.owner);
        let is_next = table.conflicts(request).all(|lock| lock.owner == id.owner)
            && !table.is_being_released(request)
            && !table.is_busy(wire_owner, lock, table.releases.len())
            && table.may_adopt(request.owner, wire_owner, request.id);
        (is_only && is_alike && is_next).then_some(HandOff { waiter, lock, since, number: count + 1 })
    }

    pub(super) fn push_release(&mut self, release: LockRelease) {
        let file = release.id.file;
        for (range, lock_type) in release.ranges.iter() {
            self.changed.push_back((file, range));
            if let ReleasePhase::Cancels(piece) = release.phase
                && range.overlaps(piece)
            {
                self.cancelled.note((file, release.wire_owner));
                self.actions.push(LockAction::Send(LockServerCall {
                    id: release.id,
                    wire_owner: release.wire_owner,
                    range: piece,
                    procedure: LockProcedure::Cancel { lock_type },
                    is_undo: true,
                }));
            }
        }
        self.files.entry(file).or_default().releases.push(release);
    }

    pub(super) fn start_releases(&mut self, file: LockFileId) {
        let mut index = 0;
        while let Some(table) = self.files.get(&file)
            && let Some(release) = table.releases.get(index)
        {
            let is_busy = |(range, _)| table.is_busy(release.wire_owner, range, index);
            let is_first = release.phase == ReleasePhase::Queued && !release.ranges.iter().any(is_busy);
            let count = table.releases.len();
            if is_first {
                self.send_steps(file, index);
            }
            let is_finished = self.files.get(&file).is_none_or(|table| table.releases.len() < count);
            index += usize::from(!is_finished);
        }
    }

    /// Begins to send the steps of a release.
    fn send_steps(&mut self, file: LockFileId, index: usize) {
        let Some(table) = self.files.get_mut(&file) else { return };
        let release = &table.releases[index];
        let steps = table.steps(release.wire_owner, &release.ranges);
        let release = &mut table.releases[index];
        (release.phase, release.steps) = (ReleasePhase::SendsSteps, steps);
        self.send_step(file, index);
    }

    pub(super) fn send_step(&mut self, file: LockFileId, index: usize) {
        let Some(table) = self.files.get_mut(&file) else { return };
        let release = &table.releases[index];
        let Some((range, needed)) = release.steps.front().copied() else {
            return self.finish(file, index);
        };
        let procedure = match needed {
            Some(lock_type) => LockProcedure::Lock { lock_type, wait: LockWait::No },
            None => LockProcedure::Unlock,
        };
        let LockRelease { id, wire_owner, is_undo, .. } = *release;
        let call = LockServerCall { id, wire_owner, range, procedure, is_undo };
        self.actions.push(LockAction::Send(call));
    }

    pub(super) fn release_replied(
        &mut self,
        file: LockFileId,
        index: usize,
        reply: LockReply,
        now: MonotonicTime,
    ) {
        let Some(table) = self.files.get_mut(&file) else { return };
        let release = &mut table.releases[index];
        match (release.phase, reply) {
            (ReleasePhase::AwaitsLock(piece), LockReply::Blocked) => {
                let mut release = table.releases.remove(index);
                release.phase = ReleasePhase::Cancels(piece);
                self.push_release(release);
            }
            (
                ReleasePhase::AwaitsLock(piece),
                LockReply::Denied | LockReply::Kept | LockReply::Grace | LockReply::Refused(_),
            ) => {
                release.ranges.set(piece, None);
                self.changed.push_back((file, piece));
                self.send_steps(file, index);
            }
            // knfsd confirms a CANCEL also if it has granted the LOCK before, so an UNLOCK is sent.
            (ReleasePhase::AwaitsLock(_) | ReleasePhase::Cancels(_), _) => {
                if matches!(reply, LockReply::Unknown(_)) {
                    self.cancelled.note((file, release.wire_owner));
                }
                self.send_steps(file, index);
            }
            (ReleasePhase::SendsSteps, _) => self.step_replied(file, index, reply, now),
            (ReleasePhase::AwaitsData | ReleasePhase::Queued | ReleasePhase::Pauses, _) => {}
        }
    }

    /// A step of a release was answered. An UNLOCK is sent until the server confirms it: knfsd
    /// refuses it (LCK_DENIED_NOLOCKS) while it cannot open the file.
    fn step_replied(&mut self, file: LockFileId, index: usize, reply: LockReply, now: MonotonicTime) {
        let Some(table) = self.files.get_mut(&file) else { return };
        let release = &mut table.releases[index];
        let Some((range, needed)) = release.steps.front().copied() else { return };
        let error = match reply {
            LockReply::Granted => None,
            // The file was removed, and its locks with it.
            LockReply::Refused(LockError::Failed(Fault::Stale)) if needed.is_none() => None,
            LockReply::Denied | LockReply::Kept | LockReply::Refused(_) if needed.is_some() => {
                // A write lock that may have become weaker cannot be restored.
                let wire_owner = release.wire_owner;
                table.downgrade(wire_owner, range);
                None
            }
            LockReply::Grace | LockReply::Blocked => Some(None),
            LockReply::Denied | LockReply::Kept => Some(Some(LockError::NoLocks)),
            LockReply::Refused(error) | LockReply::Unknown(error) => Some(Some(error)),
        };
        let release = &mut table.releases[index];
        let Some(error) = error else {
            release.steps.pop_front();
            match release.pauses_since.filter(|_| release.steps.is_empty()) {
                Some(since) => self.pause(file, index, now.since(since)),
                None => self.send_step(file, index),
            }
            return;
        };
        release.is_delayed = true;
        let (timer, after) = (LockTimer::of_repeated(release.id), poll_interval(release.failures));
        release.failures = (release.failures + 1).min(DENIALS_MAX);
        self.actions.push(LockAction::SetTimer { timer, after });
        if let Some(error) = error {
            let caller = release.caller.take();
            self.answer(caller, Err(error));
        }
    }

    /// Pauses a release that the server has confirmed after the time `took`. For the same time this
    /// mount does not request the bytes again. Otherwise a client that the server calls back now
    /// would always come too late.
    fn pause(&mut self, file: LockFileId, index: usize, took: Duration) {
        let Some(table) = self.files.get_mut(&file) else { return };
        let release = &mut table.releases[index];
        (release.phase, release.is_delayed) = (ReleasePhase::Pauses, true);
        let (timer, caller) = (LockTimer::of_repeated(release.id), release.caller.take());
        let after = took.clamp(PAUSE_MIN, HANDOFF_TIME_MAX);
        self.actions.push(LockAction::SetTimer { timer, after });
        self.answer(caller, Ok(()));
    }

    /// The server holds no more than it has to: the bytes are free here, too.
    fn finish(&mut self, file: LockFileId, index: usize) {
        let Some(table) = self.files.get_mut(&file) else { return };
        let release = table.releases.remove(index);
        table.forget_adopted(release.id.owner);
        for (range, _) in release.ranges.iter() {
            // The server may have denied these because of what is free now.
            let denied = table.waiters.started().filter(|(_, waiter)| {
                waiter.state() == LocalWaiterState::Polling
                    && waiter.request.range.overlaps(range)
                    && waiter.request.owner != release.id.owner
                    && self.options.is_local_first()
            });
            for index in denied.map(|(index, _)| index).collect::<Vec<_>>() {
                table.waiters.set_state(index, LocalWaiterState::Queued);
            }
            self.changed.push_back((file, range));
        }
        self.answer(release.caller, Ok(()));
    }
}
