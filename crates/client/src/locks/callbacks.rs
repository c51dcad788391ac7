//! Callbacks of the server: which came before, and what they are worth.

use std::collections::VecDeque;

use curt_observe::ClientCounter;
use curt_policy::{MonotonicTime, locks::LockAction};

use super::{LockEffects, MountLocks, files::LockedFiles};
use crate::protocol::LockCallbackId;

/// Callbacks that are remembered, to recognise repeated ones.
const CALLBACKS_MAX: usize = 1024;

/// The last callbacks of the server.
#[derive(Default)]
pub(super) struct SeenCallbacks(VecDeque<LockCallbackId>);

impl SeenCallbacks {
    /// Remembers a callback; returns whether it came before.
    pub(super) fn note(&mut self, callback: LockCallbackId) -> bool {
        if self.0.contains(&callback) {
            return true;
        }
        if self.0.len() >= CALLBACKS_MAX {
            self.0.pop_front();
        }
        self.0.push_back(callback);
        false
    }
}

impl MountLocks {
    /// Counts a callback that has granted a lock.
    pub(super) fn count_callback(&self, effects: &LockEffects) {
        if effects.answers.iter().any(|(_, _, result)| result.is_ok()) {
            self.core.count(ClientCounter::LockCallback);
        }
    }

    /// Counts for how long requests that have got a lock by a callback, or ask again because of it,
    /// were blocked at the server.
    pub(super) fn count_callback_wait(
        &self,
        files: &mut LockedFiles,
        actions: &[LockAction],
        now: MonotonicTime,
    ) {
        for action in actions {
            let request = match action {
                LockAction::Answer { request, result: Ok(()) } => *request,
                LockAction::Send(call) => call.id.request,
                _ => continue,
            };
            let wait = files.called_back(request, now).as_nanos();
            self.core.counters.add(ClientCounter::LockCallbackWait, u64::try_from(wait).unwrap_or(u64::MAX));
        }
    }
}
