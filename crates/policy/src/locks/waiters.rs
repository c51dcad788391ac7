//! The waiters of one file.
//!
//! Thousands may wait for one lock. Most are only queued; events visit the few that have started.

use std::{
    collections::{VecDeque, vec_deque},
    ops::{Deref, Index, IndexMut},
};

use curt_types::ByteRange;

use super::{
    events::{LocalLockOwner, LocalLockRequest, LockCallId, LockTimer},
    ranges::LockRanges,
    table::{LockRelease, ReleasePhase},
};

/// The waiters, in the order of their arrival.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct LockWaiters {
    all: VecDeque<LockWaiter>,
    /// The number of those that are not [`LocalWaiterState::Queued`].
    started: usize,
    /// The number of those that fail if another owner holds the lock.
    impatient: usize,
}

/// A request that is not answered yet, or is not finished.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct LockWaiter {
    pub(super) request: LocalLockRequest,
    state: LocalWaiterState,
    /// Whether the caller still waits for the answer.
    pub(super) is_awaited: bool,
    /// Polls instead of blocking at the server: another request of its owner has to pass it.
    pub(super) only_polls: bool,
    /// The callback that came before the reply to the LOCK that it is for.
    pub(super) early_callback: Option<EarlyCallback>,
    /// The server was restarted after the LOCK was sent: a grant may be that of the server before.
    pub(super) is_stale: bool,
    /// How often the server denied it.
    pub(super) denials: u8,
    /// The number of its last timer. Earlier ones have no effect: each would set another.
    pub(super) timer: u64,
    /// Ranges still to be locked, that of the call in progress first.
    pub(super) pieces: VecDeque<ByteRange>,
    /// Ranges that are locked.
    pub(super) acquired: Vec<ByteRange>,
    pub(super) wire_owner: LocalLockOwner,
}

/// The event that a waiter waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum LocalWaiterState {
    /// For its turn.
    Queued,
    /// For the reply to a LOCK.
    Asking,
    /// For a callback of the server.
    Blocked,
    /// For a timer.
    Polling,
}

/// A callback that has overtaken the reply to its LOCK. It counts if that LOCK is blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum EarlyCallback {
    /// The lock is requested again: the callback may be that of an earlier LOCK, or grants nothing.
    AskAgain,
    /// The lock is granted.
    Grants,
}

impl LockWaiters {
    pub(super) fn push(&mut self, waiter: LockWaiter) {
        self.started += usize::from(waiter.is_started());
        self.impatient += usize::from(!waiter.request.wait);
        self.all.push_back(waiter);
    }

    pub(super) fn remove(&mut self, index: usize) -> Option<LockWaiter> {
        let waiter = self.all.remove(index)?;
        self.started -= usize::from(waiter.is_started());
        self.impatient -= usize::from(!waiter.request.wait);
        Some(waiter)
    }

    pub(super) fn set_state(&mut self, index: usize, state: LocalWaiterState) {
        let waiter = &mut self.all[index];
        self.started -= usize::from(waiter.is_started());
        waiter.state = state;
        self.started += usize::from(waiter.is_started());
    }

    /// As [`LockWaiter::cancel`], of a waiter that stays.
    pub(super) fn cancel(&mut self, index: usize) -> Option<LockRelease> {
        let release = self.all[index].cancel();
        self.set_state(index, LocalWaiterState::Polling);
        release
    }

    /// Those that are not [`LocalWaiterState::Queued`], with their positions.
    pub(super) fn started(&self) -> impl Iterator<Item = (usize, &LockWaiter)> {
        let started = self.all.iter().enumerate().filter(|(_, waiter)| waiter.is_started());
        started.take(self.started)
    }

    /// Whether each of them waits while another owner holds the lock.
    pub(super) const fn all_wait(&self) -> bool {
        self.impatient == 0
    }
}

impl Deref for LockWaiters {
    type Target = VecDeque<LockWaiter>;

    fn deref(&self) -> &Self::Target {
        &self.all
    }
}

impl<'a> IntoIterator for &'a LockWaiters {
    type Item = &'a LockWaiter;
    type IntoIter = vec_deque::Iter<'a, LockWaiter>;

    fn into_iter(self) -> Self::IntoIter {
        self.all.iter()
    }
}

impl Index<usize> for LockWaiters {
    type Output = LockWaiter;

    fn index(&self, index: usize) -> &LockWaiter {
        &self.all[index]
    }
}

impl IndexMut<usize> for LockWaiters {
    fn index_mut(&mut self, index: usize) -> &mut LockWaiter {
        &mut self.all[index]
    }
}

impl LockWaiter {
    pub(super) fn new(request: LocalLockRequest) -> Self {
        Self {
            request,
            state: LocalWaiterState::Queued,
            is_awaited: true,
            only_polls: false,
            early_callback: None,
            is_stale: false,
            denials: 0,
            timer: 0,
            pieces: VecDeque::new(),
            acquired: Vec::new(),
            wire_owner: request.owner,
        }
    }

    pub(super) const fn call(&self) -> LockCallId {
        LockCallId { file: self.request.file, request: self.request.id, owner: self.request.owner }
    }

    /// Its next timer, instead of those before.
    pub(super) const fn next_timer(&mut self) -> LockTimer {
        self.timer += 1;
        LockTimer { call: self.call(), number: self.timer }
    }

    /// Whether the server has its LOCK, or will have it.
    pub(super) const fn is_at_server(&self) -> bool {
        matches!(self.state, LocalWaiterState::Asking | LocalWaiterState::Blocked)
    }

    pub(super) const fn state(&self) -> LocalWaiterState {
        self.state
    }

    const fn is_started(&self) -> bool {
        !matches!(self.state, LocalWaiterState::Queued)
    }

    /// Takes the waiter back: whatever it has at the server has to be released.
    pub(super) fn cancel(&mut self) -> Option<LockRelease> {
        let (state, piece) = (self.state, self.pieces.front().copied());
        let phase = match (state, piece) {
            (LocalWaiterState::Asking, Some(piece)) => ReleasePhase::AwaitsLock(piece),
            (LocalWaiterState::Blocked, Some(piece)) => ReleasePhase::Cancels(piece),
            _ => ReleasePhase::Queued,
        };
        let mut ranges = LockRanges::default();
        let at_server = piece.filter(|_| self.is_at_server());
        for range in self.acquired.drain(..).chain(at_server) {
            ranges.set(range, Some(self.request.lock_type));
        }
        self.pieces.clear();
        let release = LockRelease::new(self.call(), self.wire_owner, ranges, None);
        (!release.ranges.is_empty()).then_some(LockRelease { phase, is_undo: true, ..release })
    }
}
