//! A mutex with a condition variable whose waiters can be interrupted.
//!
//! All waits of this crate other than for requests use it.

use std::sync::Arc;

use curt_rpc::client::{Interrupt, Wake};
use parking_lot::{Condvar, Mutex, MutexGuard};

/// A value with waiters for its changes.
#[derive(Debug, Default)]
pub(super) struct Monitor<T> {
    value: Mutex<T>,
    changed: Condvar,
}

/// The waiter was interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WaitInterrupted;

impl<T: Send + 'static> Monitor<T> {
    pub(super) fn new(value: T) -> Self {
        Self { value: Mutex::new(value), changed: Condvar::new() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, T> {
        self.value.lock()
    }

    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.value.try_lock()
    }

    /// Wakes all waiters. Called after the lock was taken under which the value changed.
    pub(super) fn notify_all(&self) {
        self.changed.notify_all();
    }

    /// Waits until `done` returns a value, or until `interrupt` is raised.
    pub(super) fn wait_for<R>(
        self: &Arc<Self>,
        interrupt: &Interrupt,
        mut done: impl FnMut(&mut T) -> Option<R>,
    ) -> Result<R, WaitInterrupted> {
        if let Some(result) = done(&mut self.lock()) {
            return Ok(result);
        }
        let waker: Arc<dyn Wake> = Arc::clone(self) as Arc<dyn Wake>;
        let _registration = interrupt.register(waker);
        let mut guard = self.lock();
        loop {
            if let Some(result) = done(&mut guard) {
                return Ok(result);
            }
            if interrupt.is_raised() {
                return Err(WaitInterrupted);
            }
            self.changed.wait(&mut guard);
        }
    }
}

impl<T: Send> Wake for Monitor<T> {
    fn wake(&self) {
        // Once this lock is taken, each waiter either has seen the raised flag or is inside `wait`.
        drop(self.value.lock());
        self.changed.notify_all();
    }
}
