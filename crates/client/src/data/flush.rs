//! Writes bytes back to stable storage and reports failures.
//!
//! Owns what close, fsync, SETATTR and unmount require of a file's written bytes. They record the
//! requirement and wait. Workers send the requests and cannot be interrupted, so an interrupted
//! wait loses no data.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use curt_policy::setattr::{UnwrittenData, WritesBeforeSetattr, decide_writes_before};
use curt_rpc::client::{CallError, Interrupt};
use curt_types::{Fault, SetAttributes};

use super::{
    errors::DataError,
    file::{FileState, SetattrWithWrite, StableWrite},
    owner::{DataOwner, event_status},
    plane::{DataPlane, OpenData, UnsentData},
};
use crate::{
    event_fields::{trace_enter, trace_exit},
    protocol::RpcCaller,
};

impl DataPlane {
    /// Writes all bytes accepted so far to stable storage (close, fsync). Each failure is reported
    /// once to each open file.
    ///
    /// # Errors
    /// The failure; EINTR if interrupted (write-back continues in the background).
    pub fn flush(
        self: &Arc<Self>,
        owner: &Arc<dyn DataOwner>,
        open: &OpenData,
        interrupt: &Interrupt,
    ) -> Result<(), DataError> {
        let target = owner.data().core.lock().writes;
        let wait = || self.wait_durable(owner, open, target, interrupt);
        if owner.data().core.lock().durable_through >= target {
            return wait();
        }
        self.request_durable(owner, target, None);
        traced_writeback(owner, wait)
    }

    /// Waits until the writes up to `target` are on stable storage.
    fn wait_durable(
        self: &Arc<Self>,
        owner: &Arc<dyn DataOwner>,
        open: &OpenData,
        target: u64,
        interrupt: &Interrupt,
    ) -> Result<(), DataError> {
        let file = owner.data();
        let is_done =
            |state: &mut FileState| (state.durable_through >= target || state.stopped).then_some(());
        file.core.wait_for(interrupt, is_done)?;
        let mut state = file.core.lock();
        match state.errors.report(&open.cursor) {
            Some(error) => Err(error),
            None if state.durable_through >= target => Ok(()),
            None => Err(DataError::Call(CallError::Closed)),
        }
    }

    /// Sends all bytes accepted so far and waits for the replies. The server's size and times are
    /// then current, and a SETATTR that follows is ordered after them. Sends no COMMIT and reports
    /// no failure.
    ///
    /// # Errors
    /// EINTR if interrupted.
    pub fn flush_unsent(
        self: &Arc<Self>,
        owner: &Arc<dyn DataOwner>,
        interrupt: &Interrupt,
    ) -> Result<(), DataError> {
        let file = owner.data();
        let mut state = file.core.lock();
        let target = state.writes;
        if state.is_answered(target) {
            return Ok(());
        }
        state.targets.send_through = state.targets.send_through.max(target);
        drop(state);
        self.start_workers(owner);
        let is_done = |state: &mut FileState| (state.is_answered(target) || state.stopped).then_some(());
        traced_writeback(owner, || Ok(file.core.wait_for(interrupt, is_done)?))
    }

    /// As [`DataPlane::flush_unsent`], before a SETATTR that sets the size. While the result is
    /// held, no WRITE beyond `size` is in flight: not of bytes that a restarted server has lost
    /// either, which are sent again.
    ///
    /// # Errors
    /// EINTR if interrupted.
    pub fn begin_resize(
        self: &Arc<Self>,
        owner: &Arc<dyn DataOwner>,
        size: u64,
        interrupt: &Interrupt,
    ) -> Result<ResizeInFlight, DataError> {
        let file = owner.data();
        let target = file.core.lock().writes;
        loop {
            self.flush_unsent(owner, interrupt)?;
            let begins = |state: &mut FileState| {
                if !state.stopped && !state.is_answered(target) {
                    // Bytes became dirty again.
                    return Some(false);
                }
                state.begin_resize(size).then_some(true)
            };
            if file.core.wait_for(interrupt, begins)? {
                return Ok(ResizeInFlight { plane: Arc::clone(self), owner: Arc::clone(owner) });
            }
        }
    }

    /// As [`DataPlane::flush_unsent`], and waits until the bytes are on stable storage.
    ///
    /// # Errors
    /// EINTR if interrupted.
    pub fn settle_durably(
        self: &Arc<Self>,
        owner: &Arc<dyn DataOwner>,
        interrupt: &Interrupt,
    ) -> Result<(), DataError> {
        self.settle_with(owner, None, interrupt)
    }

    /// Writes the bytes accepted so far as a SETATTR of `set` requires it. Returns the result of
    /// the SETATTR if it was sent with them. Reports no failure to write.
    ///
    /// # Errors
    /// EINTR if interrupted.
    pub fn write_before_setattr(
        self: &Arc<Self>,
        owner: &Arc<dyn DataOwner>,
        set: &SetAttributes,
        caller: RpcCaller<'_>,
    ) -> Result<Option<Result<(), Fault>>, DataError> {
        let is_whole_file = owner.last_size() == Some(0);
        let data = {
            let state = owner.data().core.lock();
            let writer = state.segments.only_writer();
            let is_callers = writer.is_some_and(|writer| *writer.credential == *caller.credential);
            UnwrittenData { is_one_write: lone_segment(&state).is_some(), is_whole_file, is_callers }
        };
        match decide_writes_before(set, data) {
            WritesBeforeSetattr::Answered => self.flush_unsent(owner, caller.interrupt).map(|()| None),
            WritesBeforeSetattr::Durable => self.settle_durably(owner, caller.interrupt).map(|()| None),
            WritesBeforeSetattr::InSameRequest => {
                let (credential, outcome) = (caller.credential.clone(), OnceLock::new());
                let setattr = Arc::new(SetattrWithWrite { set: *set, credential, outcome });
                let settled = self.settle_with(owner, Some(&setattr), caller.interrupt);
                let stable = &mut owner.data().core.lock().targets.stable;
                if let Some(StableWrite { setattr: waiting, .. }) = stable {
                    // The caller sends it, or was interrupted.
                    waiting.take_if(|waiting| Arc::ptr_eq(waiting, &setattr));
                }
                settled.map(|()| setattr.outcome.get().copied())
            }
        }
    }

    fn settle_with(
        self: &Arc<Self>,
        owner: &Arc<dyn DataOwner>,
        setattr: Option<&Arc<SetattrWithWrite>>,
        interrupt: &Interrupt,
    ) -> Result<(), DataError> {
        let file = owner.data();
        let state = file.core.lock();
        let target = state.writes;
        if state.durable_through >= target {
            return Ok(());
        }
        drop(state);
        self.request_durable(owner, target, setattr);
        let is_done =
            |state: &mut FileState| (state.durable_through >= target || state.stopped).then_some(());
        traced_writeback(owner, || Ok(file.core.wait_for(interrupt, is_done)?))
    }

    /// Starts write-back of a file without waiting.
    pub fn write_behind(self: &Arc<Self>, owner: &Arc<dyn DataOwner>) {
        let target = owner.data().core.lock().writes;
        self.request_durable(owner, target, None);
    }

    /// Writes all unwritten bytes for at most `limit`, then cancels all waiting requests of the
    /// data half. Returns the data that were lost. Called at unmount: afterwards nothing can be
    /// written or read ahead.
    pub fn sync_all(self: &Arc<Self>, limit: Duration) -> Vec<UnsentData> {
        self.sync_until(&self.interrupt_at(limit))
    }

    /// As [`DataPlane::sync_all`], until `deadline` is raised.
    pub fn sync_until(self: &Arc<Self>, deadline: &Interrupt) -> Vec<UnsentData> {
        self.write_until(deadline);
        self.stop.raise();
        self.unwritten_files(|_| true).iter().filter_map(given_up).collect()
    }

    /// Writes the bytes that are unwritten now, for at most `limit`. Reads and writes proceed as
    /// usual meanwhile and afterwards.
    pub fn write_all(self: &Arc<Self>, limit: Duration) {
        self.write_until(&self.interrupt_at(limit));
    }

    /// An interrupt that is raised after `limit`.
    fn interrupt_at(&self, limit: Duration) -> Interrupt {
        let deadline = Interrupt::new();
        let alarm = deadline.clone();
        self.alarms.spawn_after(limit, Box::new(move || alarm.raise()));
        deadline
    }

    fn write_until(self: &Arc<Self>, deadline: &Interrupt) {
        let files = self.unwritten_files(|_| true);
        for owner in &files {
            self.write_behind(owner);
        }
        for owner in &files {
            let target = owner.data().core.lock().writes;
            let is_done = |state: &mut FileState| (state.durable_through >= target).then_some(());
            if owner.data().core.wait_for(deadline, is_done).is_err() {
                break;
            }
        }
    }

    /// The data that are not on stable storage at this moment.
    #[must_use]
    pub fn unwritten(&self) -> Vec<UnsentData> {
        self.unwritten_files(|_| true).iter().filter_map(given_up).collect()
    }

    /// Makes the workers send and commit the writes up to `target`, with `setattr` if a single
    /// WRITE suffices.
    fn request_durable(
        self: &Arc<Self>,
        owner: &Arc<dyn DataOwner>,
        target: u64,
        setattr: Option<&Arc<SetattrWithWrite>>,
    ) {
        let mut state = owner.data().core.lock();
        if state.durable_through >= target {
            return;
        }
        state.targets.send_through = state.targets.send_through.max(target);
        state.targets.commit_through = state.targets.commit_through.max(target);
        let lone = lone_segment(&state);
        state.targets.stable = lone.map(|at| StableWrite { at, setattr: setattr.cloned() });
        drop(state);
        self.start_workers(owner);
    }
}

/// A SETATTR of a file's size is in flight. WRITEs beyond the size may begin when this is dropped.
#[must_use]
pub struct ResizeInFlight {
    plane: Arc<DataPlane>,
    owner: Arc<dyn DataOwner>,
}

impl ResizeInFlight {
    /// Whether a lock for writing of bytes behind the size was lost since it began.
    pub fn is_lost(&self) -> bool {
        self.owner.data().core.lock().resizing.as_ref().is_some_and(|resizing| resizing.is_lost)
    }
}

impl Drop for ResizeInFlight {
    fn drop(&mut self) {
        let mut state = self.owner.data().core.lock();
        state.resizing = None;
        // A worker also settles a flush whose bytes were dropped meanwhile.
        let waits = state.segments.dirty_count() > 0 || state.durable_through < state.targets.commit_through;
        drop(state);
        self.owner.data().core.notify_all();
        if waits {
            self.plane.start_workers(&self.owner);
        }
    }
}

/// Waits for write-back and emits its events.
fn traced_writeback(
    owner: &Arc<dyn DataOwner>,
    wait: impl FnOnce() -> Result<(), DataError>,
) -> Result<(), DataError> {
    trace_enter!(owner.event_fields(), NfsWritebackInodeEnter {});
    let done = wait();
    trace_exit!(owner.event_fields(), NfsWritebackInodeExit { error: event_status(&done) });
    done
}

/// The offset of the only segment that a flush has to send, if a single WRITE suffices. Sent
/// FILE_SYNC, it saves the COMMIT.
fn lone_segment(state: &FileState) -> Option<u64> {
    let quiet = state.writes_in_flight.is_empty() && !state.committing && state.answers == state.committed;
    let alone = if quiet { state.segments.only_unwritten() } else { None };
    alone.filter(|_| state.segments.dirty_count() == 1)
}

fn given_up(owner: &Arc<dyn DataOwner>) -> Option<UnsentData> {
    let state = owner.data().core.lock();
    let unsent = state.segments.unsent();
    let uncommitted = state.segments.unwritten() - unsent;
    drop(state);
    let given_up = unsent + uncommitted > 0;
    given_up.then(|| UnsentData { label: owner.label(), handle: owner.handle().clone(), unsent, uncommitted })
}
