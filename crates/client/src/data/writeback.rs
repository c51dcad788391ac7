//! The workers that write a file's bytes back to stable storage.
//!
//! Owns the order of WRITE and COMMIT. Several workers serve one file, each with one request at a
//! time; each chooses its next step under the file's lock. Rules: two WRITEs that overlap are never
//! in flight together, nor a SETATTR of the size and a WRITE beyond that size: the server may have
//! restarted, and bytes that are sent again would extend the file after its truncation. Must not
//! know which callers wait.

use std::{ops::Range, sync::Arc};

use curt_observe::{ClientCounter, probe, scope};
use curt_rpc::client::CallError;
use curt_types::{Stability, Wcc};

use super::{
    cache::DataCache,
    errors::DataError,
    file::{FileState, SetattrWithWrite, StableWrite, WriteInFlight},
    owner::{DataOwner, event_status, trace_failure},
    plane::DataPlane,
    segments::{SegmentState, SegmentToWrite},
    shared_bytes::SharedBytes,
};
use crate::protocol::{OpenCaller, OpenContext, WriteReply, WriteRequest};

/// Maximum WRITEs of one file in flight.
const WORKERS_MAX: usize = 8;

/// When memory is short, a file with more unstable blocks than this is committed as it is. A
/// smaller file is written out in whole.
const STREAM_BLOCKS: u64 = 4;

/// The next step of a worker.
enum WriteBackStep {
    Write(SegmentToWrite, u64, WriteMode),
    Commit { covers: u64, fulfils: u64, writer: Arc<OpenContext> },
}

/// How a segment is sent.
#[derive(Clone, Debug)]
struct WriteMode {
    stability: Stability,
    /// The SETATTR that is sent with it.
    setattr: Option<Arc<SetattrWithWrite>>,
}

impl DataPlane {
    /// Starts as many workers as there is work for the file.
    pub(super) fn start_workers(self: &Arc<Self>, owner: &Arc<dyn DataOwner>) {
        let mut state = owner.data().core.lock();
        let busy = state.writes_in_flight.len() + usize::from(state.committing);
        let wanted = (busy + state.segments.dirty_count()).clamp(1, WORKERS_MAX);
        let more = wanted.saturating_sub(state.workers);
        state.workers += more;
        drop(state);
        for _ in 0..more {
            let (plane, owner) = (Arc::clone(self), Arc::clone(owner));
            self.background.spawn(Box::new(move || plane.run_writeback(&owner)));
        }
    }

    /// Starts write-back because the bound is exceeded: of enough of the oldest files, or of `all`.
    pub(super) fn reduce_dirty(self: &Arc<Self>, all: bool) {
        let mut enough = self.options.unwritten_bytes / 4;
        for owner in self.unwritten_files(|_| true) {
            let mut state = owner.data().core.lock();
            let held = state.segments.unwritten();
            let streams = held > STREAM_BLOCKS * u64::from(self.options.write_size);
            state.targets.commit_now |= streams;
            drop(state);
            if streams && !all {
                self.start_workers(&owner);
            } else {
                self.write_behind(&owner);
            }
            enough = enough.saturating_sub(held);
            if enough == 0 && !all {
                break;
            }
        }
    }

    /// A worker: executes steps until there is none.
    fn run_writeback(self: &Arc<Self>, owner: &Arc<dyn DataOwner>) {
        loop {
            let mut state = owner.data().lock();
            state.stopped |= self.stop.is_raised();
            let step = if state.stopped { None } else { state.next_step() };
            if step.is_none() {
                state.workers -= 1;
            }
            drop(state);
            // A step that completes without a request may have waiters.
            owner.data().core.notify_all();
            match step {
                Some(WriteBackStep::Write(segment, flight, mode)) => self.send(owner, segment, flight, &mode),
                Some(WriteBackStep::Commit { covers, fulfils, writer }) => {
                    self.commit(owner, covers, fulfils, &writer)
                }
                None => break,
            }
        }
        self.unlist(owner);
    }

    /// Sends one segment, in as many WRITEs as the server needs for it.
    fn send(&self, owner: &Arc<dyn DataOwner>, segment: SegmentToWrite, flight: u64, mode: &WriteMode) {
        let SegmentToWrite { offset, bytes, origin } = segment;
        let mut rest = bytes;
        let mut position = offset;
        let result = loop {
            match self.write_once(owner, flight, &origin.writer, position, &rest, mode) {
                Err(error) => break Err(error),
                Ok(written) => {
                    let count = usize::try_from(written.count).unwrap_or(usize::MAX).min(rest.len());
                    let end = position + count as u64;
                    self.write_completed(owner, flight, position..end, written, count == rest.len());
                    rest = rest.part(count, rest.len());
                    position = end;
                    if rest.is_empty() {
                        break Ok(());
                    }
                }
            }
        };
        if let Err(error) = result {
            self.write_failed(owner, flight, position..position + rest.len() as u64, error);
        }
        owner.data().core.notify_all();
    }

    fn write_once(
        &self,
        owner: &Arc<dyn DataOwner>,
        flight: u64,
        writer: &Arc<OpenContext>,
        offset: u64,
        bytes: &SharedBytes,
        mode: &WriteMode,
    ) -> Result<WriteReply, DataError> {
        probe!(let subject = owner.event_fields(); NfsInitiateWrite {
            fileid: subject.fileid,
            offset,
            count: bytes.len(),
            stable: mode.stability as u32,
            dev: subject.dev,
            fhandle: subject.fhandle
        });
        let written = self.write_untraced(owner, flight, writer, offset, bytes, mode);
        let (res, stable, verifier) = match &written {
            Ok(written) => (written.count, written.stability as u32, written.verifier.0),
            Err(_) => (0, 0, [0; 8]),
        };
        probe!(let subject = owner.event_fields(); NfsWritebackDone {
            fileid: subject.fileid,
            offset,
            res,
            stable,
            error: event_status(&written),
            verifier: u64::from_be_bytes(verifier),
            dev: subject.dev,
            fhandle: subject.fhandle
        });
        trace_failure(owner, offset, bytes.len() as u64, &written);
        written
    }

    fn write_untraced(
        &self,
        owner: &Arc<dyn DataOwner>,
        flight: u64,
        writer: &Arc<OpenContext>,
        offset: u64,
        bytes: &SharedBytes,
        mode: &WriteMode,
    ) -> Result<WriteReply, DataError> {
        let caller = OpenCaller { open: writer, interrupt: &self.stop };
        let _about = scope::for_object(owner.number());
        owner.begin_write();
        let began = self.protocol.rpc().now();
        let set = mode.setattr.as_ref().map(|setattr| &setattr.set);
        let is_lost = || owner.data().core.lock().is_lost(flight);
        if is_lost() {
            owner.absorb_write(&Wcc::default(), began);
            return Err(DataError::LostLock);
        }
        let write = WriteRequest { offset, stability: mode.stability, bytes, set, is_lost: &is_lost };
        let answer = match self.protocol.write(caller, owner.handle(), write) {
            Ok(answer) => answer,
            Err(error) => {
                owner.absorb_write(&Wcc::default(), began);
                return Err(error.into());
            }
        };
        owner.absorb_write(&answer.attributes, answer.sent_at);
        let written = answer.outcome.map_err(DataError::Status)?;
        if let (Some(setattr), Some(set)) = (&mode.setattr, written.set)
            && u64::from(written.count) == bytes.len() as u64
        {
            let _ = setattr.outcome.set(set);
        }
        self.counters.add(ClientCounter::WriteBytes, u64::from(written.count));
        if u64::from(written.count) != bytes.len() as u64 {
            self.counters.count(ClientCounter::WriteShort);
        }
        let end = offset.saturating_add(written.count.into());
        let size = answer.attributes.before.and_then(|before| before.size());
        if size.is_some_and(|size| size < end) {
            self.counters.count(ClientCounter::WriteExtended);
        }
        Ok(written)
    }

    /// The server accepted `range` of WRITE `flight`; `last` if none of it is left to send.
    fn write_completed(
        &self,
        owner: &Arc<dyn DataOwner>,
        flight: u64,
        range: Range<u64>,
        written: WriteReply,
        last: bool,
    ) {
        let number = self.bounds.cache.next_number();
        let file = owner.data();
        let mut state = file.lock();
        state.write_replies += 1;
        state.resizes += 1;
        state.note_verifier(written.verifier);
        state.server_end = state.server_end.map(|end| end.max(range.end));
        let stable = written.stability == Stability::FileSync;
        if !stable {
            state.answers += 1;
        }
        let answer = state.answers;
        let clean = state.segments.set_states(range.clone(), |present| match present {
            SegmentState::InFlight(_, number_of) if *number_of != flight => None,
            SegmentState::InFlight(..) if stable => Some(SegmentState::clean(number)),
            SegmentState::InFlight(origin, _) => {
                Some(SegmentState::Unstable(origin.clone(), written.verifier, answer))
            }
            SegmentState::Clean { .. } | SegmentState::Dirty(_) | SegmentState::Unstable(..) => None,
        });
        if stable {
            state.invalidate_fetches(&range);
        }
        if last {
            state.writes_in_flight.remove(&flight);
        }
        drop(state);
        owner.note_verifier(written.verifier);
        self.admit(owner, clean, number);
    }

    /// WRITE `flight` failed for `range`: its bytes are dropped and the failure is recorded, unless
    /// the mount is stopping, or the lock of some of them was lost: the others are sent again.
    fn write_failed(&self, owner: &Arc<dyn DataOwner>, flight: u64, range: Range<u64>, error: DataError) {
        let mut state = owner.data().lock();
        let is_lost = state.is_lost(flight);
        state.writes_in_flight.remove(&flight);
        let ours = |present: &SegmentState| matches!(present, SegmentState::InFlight(_, number) if *number == flight);
        if is_lost || error == DataError::Call(CallError::Interrupted) {
            state.segments.set_states(range, |present| match present {
                SegmentState::InFlight(origin, _) if ours(present) => {
                    Some(SegmentState::Dirty(origin.clone()))
                }
                _ => None,
            });
            return;
        }
        let held = state.segments.unwritten();
        state.segments.cut_if(range.clone(), ours);
        let lost = held - state.segments.unwritten();
        state.invalidate_fetches(&range);
        if lost == 0 {
            // Overwritten or truncated meanwhile: no data are lost.
            return;
        }
        state.errors.record(error);
        drop(state);
        tracing::warn!(file = owner.label(), offset = range.start, lost, %error, "written bytes were lost");
    }

    /// Enters clean ranges into the cache.
    pub(super) fn admit(&self, owner: &Arc<dyn DataOwner>, clean: Vec<Range<u64>>, number: u64) {
        for range in clean {
            DataCache::admit(&self.bounds, &owner.data().core, range, number);
        }
    }
}

impl FileState {
    /// Whether the lock of bytes of this WRITE was lost.
    fn is_lost(&self, flight: u64) -> bool {
        self.writes_in_flight.get(&flight).is_some_and(|flight| flight.is_lost)
    }

    /// Chooses the next step and marks it as taken.
    fn next_step(&mut self) -> Option<WriteBackStep> {
        if let Some(write) = self.next_write() {
            return Some(write);
        }
        if self.committing {
            return None;
        }
        let through = self.targets.commit_through;
        let asked = through > self.durable_through && self.is_answered(through);
        if self.answers == self.committed {
            self.targets.commit_now = false;
            if asked {
                self.durable_through = through;
            }
            return None;
        }
        if !asked && !self.targets.commit_now {
            return None;
        }
        self.targets.commit_now = false;
        self.committing = true;
        let fulfils = if asked { through } else { 0 };
        let writer = self.last_writer.clone()?;
        Some(WriteBackStep::Commit { covers: self.answers, fulfils, writer })
    }

    fn next_write(&mut self) -> Option<WriteBackStep> {
        let Self {
            segments,
            writes_in_flight: flights,
            targets: wants,
            writes_sent: flights_started,
            resizing,
            ..
        } = self;
        let is_free = |range: &Range<u64>| {
            let overlaps =
                |flight: &WriteInFlight| flight.range.start < range.end && range.start < flight.range.end;
            resizing.as_ref().is_none_or(|resizing| range.end <= resizing.size)
                && !flights.values().any(overlaps)
        };
        let number = *flights_started + 1;
        let whole = segments.start_write(number, true, |range, _| is_free(&range));
        let through = wants.send_through;
        let segment = match whole {
            Some(segment) => segment,
            None if !segments.waits(through) => return None,
            None => segments
                .start_write(number, false, |range, origin| origin.first <= through && is_free(&range))?,
        };
        *flights_started = number;
        let mode = match wants.stable.take_if(|stable| stable.at == segment.offset) {
            None => WriteMode { stability: Stability::Unstable, setattr: None },
            Some(StableWrite { setattr, .. }) => {
                // Others may have written meanwhile.
                let is_lone = flights.is_empty() && segments.only_unwritten() == Some(segment.offset);
                let credential = &*segment.origin.writer.credential;
                let setattr = setattr.filter(|setattr| is_lone && setattr.credential == *credential);
                WriteMode { stability: Stability::FileSync, setattr }
            }
        };
        let range = segment.offset..segment.offset + segment.bytes.len() as u64;
        flights.insert(number, WriteInFlight { range, first: segment.origin.first, is_lost: false });
        Some(WriteBackStep::Write(segment, number, mode))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{block_pool::BlockPool, segments::WriteOrigin};

    #[test]
    fn writes_that_overlap_are_not_in_flight_together() {
        let mut state = FileState::default();
        let write = |state: &mut FileState, offset: u64| {
            state.writes += 1;
            let origin = WriteOrigin {
                first: state.writes,
                writer: Arc::new(OpenContext {
                    owner: 0,
                    credential: Arc::new(curt_rpc::auth::RpcCredential::None),
                }),
                keeps: false,
            };
            let blocks = Arc::new(BlockPool::new(4096, 0));
            state.segments.write(offset, &[7; 4096], &origin, &blocks);
        };
        write(&mut state, 0);
        assert!(matches!(state.next_step(), Some(WriteBackStep::Write(_, 1, _))));
        write(&mut state, 0);
        assert!(state.next_step().is_none(), "the newer bytes wait for the older ones");
        write(&mut state, 4096);
        assert!(matches!(state.next_step(), Some(WriteBackStep::Write(_, 2, _))), "others do not");
        state.writes_in_flight.remove(&1);
        assert!(matches!(state.next_step(), Some(WriteBackStep::Write(_, 3, _))));
    }
}
