//! Asks the server for the locks of waiters: when it is their turn, and what follows from a reply.

use core::mem;

use curt_types::ByteRange;

use super::{
    agent::LockAgent,
    deadlock::QueuedBefore,
    events::{LockAction, LockError, LockFileId, LockProcedure, LockReply, LockServerCall, LockWait},
    intervals::{BLOCKED_INTERVAL, DENIALS_MAX, REPEATS_MAX, poll_interval, repeat_interval},
    table::{FileLockTable, RequestStatus},
    waiters::{EarlyCallback, LocalWaiterState},
};

impl LockAgent {
    /// Whether a waiter may ask the server.
    fn status(&self, table: &FileLockTable, index: usize) -> RequestStatus {
        let request = &table.waiters[index].request;
        let is_local_first = self.options.is_local_first();
        if is_local_first {
            if table.conflicts(request).next().is_some() {
                return RequestStatus::Conflicts;
            }
            if table.is_being_released(request) || (request.wait && self.follows_waiter(table, index)) {
                return RequestStatus::Follows;
            }
        }
        let wire_owner = table.wire_owner(request.owner);
        if table.reclaim.is_some() || table.is_busy(wire_owner, request.range, table.releases.len()) {
            return RequestStatus::Follows;
        }
        RequestStatus::Eligible
    }

    pub(super) fn start_waiters(&mut self, file: LockFileId, changed: ByteRange) {
        let (mut index, mut last) = (0, None::<QueuedBefore>);
        while let Some(table) = self.files.get(&file)
            && let Some(waiter) = table.waiters.get(index)
        {
            let count = table.waiters.len();
            let request = &waiter.request;
            let is_due = waiter.state() == LocalWaiterState::Queued && request.range.overlaps(changed);
            let is_first = is_due && !last.as_mut().is_some_and(|last| last.precedes(request, &self.graph()));
            if is_first {
                let first = QueuedBefore { request: *request, awaited: None };
                self.start_waiter(file, index);
                last = self.options.is_local_first().then_some(first);
            }
            if self.files.get(&file).is_none_or(|table| table.waiters.len() < count) {
                last = None;
                continue;
            }
            let last = last.as_mut().filter(|_| is_first);
            if last.is_some_and(|last| last.precedes_rest(index, changed, &self.graph())) {
                return;
            }
            index += 1;
        }
    }

    /// Lets a queued waiter ask the server, or fail, if it is its turn.
    pub(super) fn start_waiter(&mut self, file: LockFileId, index: usize) -> Option<RequestStatus> {
        let table = self.files.get(&file)?;
        let request = table.waiters[index].request;
        let status = self.status(table, index);
        match status {
            RequestStatus::Eligible => self.ask(file, index),
            RequestStatus::Conflicts if !request.wait => {
                self.give_up(file, index);
                self.answer(request.id, Err(LockError::Held));
            }
            RequestStatus::Conflicts | RequestStatus::Follows => {}
        }
        Some(status)
    }

    /// Asks the server for all of a waiter's lock, or grants it if there is nothing to ask.
    fn ask(&mut self, file: LockFileId, index: usize) {
        let Some(table) = self.files.get_mut(&file) else { return };
        let request = table.waiters[index].request;
        let pieces = table.pieces(&request);
        let wire_owner = table.wire_owner(request.owner);
        let waiter = &mut table.waiters[index];
        (waiter.pieces, waiter.wire_owner) = (pieces, wire_owner);
        self.send_piece(file, index);
    }

    /// Sends a blocked LOCK again. If the server has granted it already, its callback may come
    /// after the reply, and after the unlock.
    pub(super) fn ask_again(&mut self, file: LockFileId, index: usize) {
        if let Some(table) = self.files.get(&file) {
            self.cancelled.note((file, table.waiters[index].wire_owner));
        }
        self.send_piece(file, index);
    }

    /// Sends the next LOCK of a waiter, or grants its lock if there is none left.
    pub(super) fn send_piece(&mut self, file: LockFileId, index: usize) {
        let Some(table) = self.files.get_mut(&file) else { return };
        let waiter = &table.waiters[index];
        let (request, wire_owner) = (waiter.request, waiter.wire_owner);
        let Some(range) = waiter.pieces.front().copied() else {
            let (is_awaited, is_contended) = (waiter.is_awaited, waiter.denials > 0);
            table.grant(&request, is_contended);
            self.remove(file, index);
            self.note_holder(file, request.owner);
            if is_awaited {
                self.answer(request.id, Ok(()));
            }
            return;
        };
        // A server that grants a blocked LOCK while another call for the same bytes is on its way
        // may execute the two in any order: such a LOCK does not block, but is repeated.
        let may_block = !waiter.only_polls && table.needed(wire_owner, request.range).is_empty();
        let wait = match (request.wait, may_block) {
            (false, _) => LockWait::No,
            (true, false) => LockWait::Repeat,
            (true, true) => LockWait::Block,
        };
        table.waiters[index].early_callback = None;
        table.waiters.set_state(index, LocalWaiterState::Asking);
        let procedure = LockProcedure::Lock { lock_type: request.lock_type, wait };
        let call =
            LockServerCall { id: table.waiters[index].call(), wire_owner, range, procedure, is_undo: false };
        self.actions.push(LockAction::Send(call));
    }

    /// The server has called back for a blocked LOCK.
    pub(super) fn called_back(&mut self, file: LockFileId, index: usize, callback: EarlyCallback) {
        match callback {
            EarlyCallback::AskAgain => self.send_piece(file, index),
            EarlyCallback::Grants => self.lock_replied(file, index, LockReply::Granted),
        }
    }

    pub(super) fn lock_replied(&mut self, file: LockFileId, index: usize, reply: LockReply) {
        let Some(table) = self.files.get_mut(&file) else { return };
        let waiter = &mut table.waiters[index];
        let (id, is_awaited, wait) = (waiter.request.id, waiter.is_awaited, waiter.request.wait);
        if !matches!(reply, LockReply::Granted | LockReply::Blocked) {
            waiter.is_stale = false;
        }
        let answer = match reply {
            LockReply::Granted if !is_awaited => {
                let piece = waiter.pieces.pop_front();
                waiter.acquired.extend(piece);
                let owner = waiter.wire_owner;
                table.waiters.set_state(index, LocalWaiterState::Polling);
                piece.into_iter().for_each(|piece| table.downgrade(owner, piece));
                LockError::Interrupted
            }
            LockReply::Granted | LockReply::Blocked if is_awaited && mem::take(&mut waiter.is_stale) => {
                waiter.acquired.clear();
                let (owner, piece) = (waiter.wire_owner, waiter.pieces.front().copied());
                let request = waiter.request;
                if let Some(piece) = piece.filter(|piece| table.is_downgrade(&request, *piece)) {
                    // Others may have locked what was given up: it cannot be reclaimed.
                    table.downgrade(owner, piece);
                }
                return self.ask(file, index);
            }
            LockReply::Granted => {
                waiter.acquired.extend(waiter.pieces.pop_front());
                return self.send_piece(file, index);
            }
            LockReply::Blocked if is_awaited && wait => {
                table.waiters.set_state(index, LocalWaiterState::Blocked);
                let waiter = &mut table.waiters[index];
                waiter.denials = waiter.denials.max(1);
                if let Some(callback) = waiter.early_callback.take() {
                    return self.called_back(file, index, callback);
                }
                let timer = waiter.next_timer();
                self.changed.push_back((file, waiter.request.range));
                self.actions.push(LockAction::SetTimer { timer, after: BLOCKED_INTERVAL });
                return;
            }
            LockReply::Denied | LockReply::Kept if is_awaited && wait => {
                return self.poll(file, index, reply);
            }
            LockReply::Grace if is_awaited => return self.poll(file, index, reply),
            LockReply::Blocked => {
                table.waiters.set_state(index, LocalWaiterState::Blocked);
                LockError::Held
            }
            LockReply::Denied | LockReply::Kept | LockReply::Grace => {
                table.waiters.set_state(index, LocalWaiterState::Polling);
                LockError::Held
            }
            LockReply::Refused(error) => {
                table.waiters.set_state(index, LocalWaiterState::Polling);
                error
            }
            LockReply::Unknown(error) => {
                waiter.acquired.extend(waiter.pieces.pop_front());
                self.cancelled.note((file, waiter.wire_owner));
                table.waiters.set_state(index, LocalWaiterState::Polling);
                error
            }
        };
        self.give_up(file, index);
        if is_awaited {
            self.answer(id, Err(answer));
        }
    }

    /// The server has denied a waiter's lock: asks again later, and gives back what it has granted
    /// of it, so that clients never wait for each other's parts.
    fn poll(&mut self, file: LockFileId, index: usize, reply: LockReply) {
        let Some(table) = self.files.get_mut(&file) else { return };
        table.waiters.set_state(index, LocalWaiterState::Polling);
        let waiter = &mut table.waiters[index];
        let (after, denials_max) = match reply {
            LockReply::Kept => (repeat_interval(waiter.denials), REPEATS_MAX),
            _ => (poll_interval(waiter.denials), DENIALS_MAX),
        };
        waiter.denials = (waiter.denials + 1).min(denials_max);
        let (timer, range) = (waiter.next_timer(), waiter.request.range);
        let release = table.waiters.cancel(index);
        self.actions.push(LockAction::SetTimer { timer, after });
        release.into_iter().for_each(|release| self.push_release(release));
        self.changed.push_back((file, range));
    }

    /// Blocked waiters make way for other requests of their owners: the server could grant their
    /// locks in the middle of those. They poll from now on.
    pub(super) fn pause_blocked(&mut self, file: LockFileId, changed: ByteRange) {
        let Some(table) = self.files.get(&file) else { return };
        let paused = table.waiters.started().filter(|(_, waiter)| {
            waiter.state() == LocalWaiterState::Blocked
                && waiter.request.range.overlaps(changed)
                && table.is_in_the_way(waiter)
        });
        let paused: Vec<_> = paused.map(|(index, _)| index).collect();
        for index in paused {
            let Some(table) = self.files.get_mut(&file) else { return };
            let waiter = &mut table.waiters[index];
            waiter.only_polls = true;
            let (timer, release) = (waiter.next_timer(), table.waiters.cancel(index));
            self.actions.push(LockAction::SetTimer { timer, after: poll_interval(0) });
            release.into_iter().for_each(|release| self.push_release(release));
        }
    }
}
