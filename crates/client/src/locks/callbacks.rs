//! Callbacks of the server, and other news of the protocol: which callbacks came before, and what
//! they are worth.

use std::{
    collections::VecDeque,
    sync::{Arc, atomic::Ordering},
};

use curt_observe::ClientCounter;
use curt_policy::{
    MonotonicTime,
    locks::{GrantedCallback, LockAction},
};
use curt_types::{ByteRange, FileHandle};

use super::{LockEffects, MountLocks, files::LockedFiles, senders::RequestKind, trace_state};
use crate::protocol::{LockCallbackId, LockEvents, WireLock, WireOwner};

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

impl LockEvents for MountLocks {
    fn granted(&self, file: &FileHandle, lock: &WireLock, callback: LockCallbackId) -> bool {
        let Some(this) = self.this.upgrade() else { return false };
        let mut is_confirmed = false;
        let effects = self.event(|state, now| {
            let number = self.next_request();
            let found = state.files.by_handle(file).zip(state.owners.owner(lock.owner));
            let Some((file, owner)) = found else { return Vec::new() };
            if let Some(known) = state.files.get(file) {
                trace_state(&known.inode, lock.range, "called back");
            }
            let callback = GrantedCallback {
                wire_owner: owner,
                range: lock.range,
                lock_type: lock.lock_type,
                is_repeated: state.callbacks.note(callback),
            };
            let (confirmed, actions) = state.agent.granted(number, file, callback);
            is_confirmed = confirmed;
            self.count_callback_wait(&mut state.files, &actions, now);
            actions
        });
        self.count_callback(&effects);
        this.perform_elsewhere(effects);
        is_confirmed
    }

    fn server_restarted(&self) {
        let Some(this) = self.this.upgrade() else { return };
        if this.restart_notices.fetch_add(1, Ordering::AcqRel) > 0 {
            return;
        }
        // Not on this thread: the server is asked first.
        let senders = Arc::clone(&this.senders(RequestKind::Lock).threads);
        senders.spawn(Box::new(move || this.check_restart_notices()));
    }

    fn callbacks_lost(&self) {
        let Some(this) = self.this.upgrade() else { return };
        let effects = self.event(|state, _| state.agent.callbacks_lost());
        this.perform_elsewhere(effects);
    }

    fn notified(&self, file: &FileHandle, owner: WireOwner) -> bool {
        let Some(this) = self.this.upgrade() else { return false };
        let mut is_awaited = false;
        let effects = self.event(|state, now| {
            let found = state.files.by_handle(file).zip(state.owners.owner(owner));
            let Some((file, owner)) = found else { return Vec::new() };
            let (awaited, actions) = state.agent.available(file, owner);
            is_awaited = awaited;
            self.count_callback_wait(&mut state.files, &actions, now);
            actions
        });
        if is_awaited {
            self.core.count(ClientCounter::LockCallback);
        }
        for call in &effects.sends {
            self.trace_state(call, "called back");
        }
        this.perform_elsewhere(effects);
        is_awaited
    }

    fn reclaimed(&self, file: &FileHandle, range: ByteRange) {
        self.core.count(ClientCounter::LockReclaimed);
        let mut state = self.state.lock();
        let file = state.files.by_handle(file);
        if let Some(known) = file.and_then(|file| state.files.get(file)) {
            trace_state(&known.inode, range, "reclaimed");
        }
    }

    fn lost(&self, file: &FileHandle, owner: WireOwner, range: ByteRange) {
        let Some(this) = self.this.upgrade() else { return };
        let effects = self.event(|state, _| {
            let found = state.files.by_handle(file).zip(state.owners.owner(owner));
            found.map(|(file, owner)| state.agent.lost(file, owner, range)).unwrap_or_default()
        });
        // Runs on another thread: to drop pages the kernel waits for requests, and these may wait
        // for this thread.
        let threads = Arc::clone(&self.senders(RequestKind::Release).threads);
        threads.spawn(Box::new(move || this.perform_elsewhere(effects)));
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
