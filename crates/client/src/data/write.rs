//! Accepts bytes from a writer.
//!
//! Owns the steps from a write to Dirty segments: reserve room, copy, start workers if needed. Must
//! not know requests.

use std::sync::Arc;

use curt_observe::{ClientCounter, events::Event, probe};
use curt_rpc::client::{CallError, Interrupt};

use super::{
    dirty_limit::DirtyReservation,
    errors::DataError,
    monitor::WaitInterrupted,
    owner::DataOwner,
    plane::{DataPlane, OpenData},
    segments::WriteOrigin,
    shared_bytes::SharedBytes,
};

/// The position of a write.
#[derive(Clone, Copy)]
pub enum WritePosition<'a> {
    /// At this offset.
    At(u64),
    /// At the end of file (`O_APPEND`). The closure returns the server's size and may send a
    /// request. It is called without a lock, unless bytes that are not on stable storage form the
    /// known end of the file: then the write goes behind them.
    End(&'a dyn Fn() -> Result<u64, DataError>),
}

/// The accepted part of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcceptedWrite {
    /// Its offset, which for a write at the end of file is not known before.
    pub offset: u64,
    /// Number of bytes.
    pub count: usize,
}

/// Emits the event of a write that extends the file.
fn trace_extend(owner: &Arc<dyn DataOwner>, size: Option<u64>, end: u64) {
    let Some(size) = size.filter(|size| *size < end) else {
        return;
    };
    probe!(let subject = owner.event_fields(); NfsSizeGrow {
        fileid: subject.fileid,
        cur_size: size,
        new_size: end,
        dev: subject.dev,
        fhandle: subject.fhandle,
        version: subject.version
    });
}

impl From<WaitInterrupted> for DataError {
    fn from(_: WaitInterrupted) -> Self {
        Self::Call(CallError::Interrupted)
    }
}

impl DataPlane {
    /// Accepts `bytes` for writing through `open`. Fewer are accepted only if the write was
    /// interrupted or the file has reached its maximum size.
    ///
    /// # Errors
    /// A failure of an earlier write that was not reported to this open file; for synchronous files
    /// also failures of this write; EINTR if interrupted while waiting for room; an offset beyond
    /// the maximum.
    pub fn write(
        self: &Arc<Self>,
        owner: &Arc<dyn DataOwner>,
        open: &OpenData,
        position: WritePosition<'_>,
        bytes: &[u8],
        interrupt: &Interrupt,
    ) -> Result<AcceptedWrite, DataError> {
        if let Some(error) = owner.data().core.lock().errors.report(&open.cursor) {
            return Err(error);
        }
        let mut done = 0;
        let mut next = position;
        let mut first = None;
        while done < bytes.len() {
            let step =
                (bytes.len() - done).min(usize::try_from(self.options.write_size).unwrap_or(usize::MAX));
            let room = match self.room(step as u64, interrupt) {
                Ok(room) => room,
                Err(WaitInterrupted) if done > 0 => break,
                Err(interrupted) => return Err(interrupted.into()),
            };
            let size = Event::NfsSizeGrow.is_wanted().then(|| owner.event_fields().size);
            let taken = match self.accept(owner, open, next, &bytes[done..done + step]) {
                Ok(taken) => taken,
                Err(DataError::TooLarge) if done > 0 => break,
                Err(error) => return Err(error),
            };
            let end = taken.offset + taken.count as u64;
            trace_extend(owner, size, end);
            drop(room);
            done += taken.count;
            first.get_or_insert(taken.offset);
            next = WritePosition::At(end);
            self.start_writeback(owner);
        }
        if done > 0 && (self.options.synchronous || open.mode.synchronous || open.mode.direct) {
            self.flush(owner, open, interrupt)?;
        }
        Ok(AcceptedWrite { offset: first.unwrap_or_default(), count: done })
    }

    /// Waits until `bytes` more can be held.
    fn room(
        self: &Arc<Self>,
        bytes: u64,
        interrupt: &Interrupt,
    ) -> Result<DirtyReservation<'_>, WaitInterrupted> {
        if let Some(room) = self.bounds.dirty.try_reserve(bytes) {
            return Ok(room);
        }
        self.counters.count(ClientCounter::WriteThrottled);
        self.reduce_dirty(true);
        self.bounds.dirty.reserve(bytes, interrupt)
    }

    /// Makes as many of `bytes` Dirty as fit below the maximum file size, at least one.
    fn accept(
        &self,
        owner: &Arc<dyn DataOwner>,
        open: &OpenData,
        position: WritePosition<'_>,
        bytes: &[u8],
    ) -> Result<AcceptedWrite, DataError> {
        let file = owner.data();
        let size_max = owner.size_max();
        let whole = self.whole_block(open, position, bytes);
        loop {
            let mut guard;
            let offset = match position {
                WritePosition::At(offset) => {
                    guard = file.lock();
                    offset
                }
                WritePosition::End(size) => {
                    let last = owner.last_size();
                    guard = file.lock();
                    match guard.end_by_own_bytes(last) {
                        Some(end) => end,
                        None => {
                            let landings = guard.write_replies;
                            drop(guard);
                            let base = size()?;
                            guard = file.lock();
                            // The size may be of before a WRITE of this client was answered whose
                            // bytes are clean by now.
                            if guard.write_replies != landings {
                                continue;
                            }
                            base.max(guard.segments.unwritten_end())
                        }
                    }
                }
            };
            let state = &mut *guard;
            let room = size_max.saturating_sub(offset);
            let bytes = &bytes[..usize::try_from(room).map_or(bytes.len(), |room| room.min(bytes.len()))];
            if bytes.is_empty() {
                return Err(DataError::TooLarge);
            }
            let end = offset + bytes.len() as u64;
            state.writes += 1;
            state.resizes += 1;
            state.last_writer = Some(Arc::clone(&open.context));
            state.invalidate_fetches(&(offset..end));
            let mut origin =
                WriteOrigin { first: state.writes, writer: Arc::clone(&open.context), keeps: false };
            match whole {
                Some((block, keeps)) if block.len() == bytes.len() => {
                    origin.keeps = keeps;
                    state.segments.put(offset, block, origin);
                }
                Some(_) | None => state.segments.write(offset, bytes, &origin, &self.blocks),
            }
            return Ok(AcceptedWrite { offset, count: bytes.len() });
        }
    }

    /// Copies `bytes` before the file is locked, if they form a block that is sent unchanged. Also
    /// returns whether the writer caches what it wrote: a kernel does not cache pages that were
    /// written in part, so smaller writes are assumed not to be cached.
    fn whole_block(
        &self,
        open: &OpenData,
        position: WritePosition<'_>,
        bytes: &[u8],
    ) -> Option<(SharedBytes, bool)> {
        let WritePosition::At(offset) = position else {
            return None;
        };
        let size = self.blocks.size();
        let whole = offset.is_multiple_of(size) && bytes.len() as u64 == size;
        let keeps = offset >= self.options.keep_read && !open.mode.direct;
        whole.then(|| (self.blocks.copy_of(bytes).share(), keeps))
    }

    /// After a write: full blocks are sent at once; all bytes are sent if the bound is exceeded.
    fn start_writeback(self: &Arc<Self>, owner: &Arc<dyn DataOwner>) {
        self.list(owner);
        let has_full = owner.data().core.lock().segments.has_full();
        if has_full {
            self.start_workers(owner);
        }
        if self.bounds.dirty.is_half_full() {
            self.reduce_dirty(false);
        }
    }
}
