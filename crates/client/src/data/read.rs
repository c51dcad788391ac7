//! Assembles the answer to a read.
//!
//! Owns the order of sources: unwritten data of ours before the server's, zeros for holes before
//! our own end of the file. Readers of one range share one READ. A READ whose range was written or
//! truncated while it was in progress answers only those who already waited for it, since they
//! began before that. A read during which the file turns out to have been changed by others begins
//! anew: its bytes and its end are those of one state of the file, as far as replies can tell.

use std::{
    ops::Range,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use curt_observe::{Cause, ClientCounter, scope};
use curt_rpc::client::Interrupt;

use super::{
    DataError, DataOwner, DataPlane, OFFSET_MAX, OpenData,
    cache::DataCache,
    file::{FetchedRange, FileState, ReadInFlight},
    in_place_read::{InPlaceRead, ReadTarget},
    readahead::{self, UNIT},
    segment::SegmentUsage,
    shared_bytes::ReadBytes,
};
use crate::protocol::OpenCaller;

/// READs of one file under way at once, read-ahead included.
const FETCHES_MAX: usize = 16;

/// How often a read begins anew at most: a file that is changed faster than it can be read is read
/// as it comes.
const RESTARTS_MAX: u32 = 3;

/// What a reader has to do next.
enum ReadStep {
    Done(ReadBytes),
    /// What was fetched may be of another state of the file than the rest: begin anew.
    Restart,
    /// Wait for somebody else's READ.
    Wait(Arc<ReadInFlight>),
    /// Send this READ, for the gap that begins there.
    Send(Arc<ReadInFlight>, u64),
}

/// A read as it goes on.
pub(super) struct ReadProgress {
    pub(super) range: Range<u64>,
    /// What this read waited for: good for it even if nobody else may use it.
    pub(super) fetched: Vec<FetchedRange>,
    /// The end of the server's file by attributes.
    fresh_end: Option<u64>,
    /// [`FileState::resizes`] when the read began.
    resizes_at_start: u64,
    /// [`FileState::voids`] when it began; `None`: it does not begin anew.
    voids: Option<u64>,
    /// Bytes to fetch for a gap, at least.
    fetch: u64,
    /// READs begin at whole units; not any more once a server has given less than leads to the gap.
    whole_units: bool,
}

impl DataPlane {
    /// Reads up to `count` bytes at `offset` through `open`; fewer only at the end of the file.
    ///
    /// # Errors
    /// Those of READ; interruption.
    pub fn read(
        self: &Arc<Self>,
        owner: &Arc<dyn DataOwner>,
        open: &OpenData,
        offset: u64,
        count: usize,
        interrupt: &Interrupt,
    ) -> Result<ReadBytes, DataError> {
        let bytes = self.read_into(owner, open, offset, count, interrupt, None)?;
        Ok(bytes.expect("nobody was there to be given them"))
    }

    /// As [`DataPlane::read`], but has `target` given the bytes; of large files perhaps as they are
    /// received, so that they are kept nowhere else.
    ///
    /// # Errors
    /// Those of READ; interruption.
    pub fn read_to(
        self: &Arc<Self>,
        owner: &Arc<dyn DataOwner>,
        open: &OpenData,
        offset: u64,
        count: usize,
        interrupt: &Interrupt,
        target: &Arc<dyn ReadTarget>,
    ) -> Result<(), DataError> {
        if let Some(bytes) = self.read_into(owner, open, offset, count, interrupt, Some(target))? {
            target.put(&bytes.pieces().collect::<Vec<_>>());
        }
        Ok(())
    }

    /// `None`: the target has been given the bytes.
    fn read_into(
        self: &Arc<Self>,
        owner: &Arc<dyn DataOwner>,
        open: &OpenData,
        offset: u64,
        count: usize,
        interrupt: &Interrupt,
        target: Option<&Arc<dyn ReadTarget>>,
    ) -> Result<Option<ReadBytes>, DataError> {
        let start = offset.min(OFFSET_MAX);
        let range = start..offset.saturating_add(count as u64).min(OFFSET_MAX);
        if open.mode.direct {
            return self.read_direct(owner, open, range, interrupt, target);
        }
        let (mut reading, ahead) = self.begin_reading(owner, open, range);
        let mut restarts = 0;
        // What one READ cannot bring is asked for at once, too.
        let several = count as u64 > u64::from(self.options.read_size);
        let mut looked_ahead = ahead == 0 && !several;
        loop {
            let next = {
                let mut state = owner.data().lock();
                self.next_step(&mut state, &reading)
            };
            if !std::mem::replace(&mut looked_ahead, true) {
                let from = match next {
                    // What was given may be gone already.
                    ReadStep::Done(_) => reading.range.end,
                    ReadStep::Wait(_) | ReadStep::Send(..) | ReadStep::Restart => reading.range.start,
                };
                self.read_ahead(owner, open, &reading, from, ahead);
            }
            match next {
                ReadStep::Done(bytes) => {
                    self.count_hit(&reading, &bytes);
                    return Ok(Some(bytes));
                }
                ReadStep::Restart => {
                    owner.begins_anew(&reading.range);
                    restarts += 1;
                    reading.restart(owner, restarts < RESTARTS_MAX);
                }
                ReadStep::Send(fetch, gap_start) => {
                    let asker = OpenCaller { open: &open.context, interrupt };
                    let Some(fetched) = self.send_or_read_in_place(owner, &fetch, asker, &reading, target)?
                    else {
                        return Ok(None);
                    };
                    reading.whole_units &= fetched.end || fetched.until() > gap_start;
                    reading.fetched.push(fetched);
                }
                ReadStep::Wait(fetch) => {
                    let outcome = owner.data().core.wait_for(interrupt, |_| fetch.outcome.get().cloned())?;
                    // Whoever asked may have been interrupted, or refused what we are granted: then
                    // we ask ourselves.
                    reading.fetched.extend(outcome.ok());
                }
            }
        }
    }

    /// A read of `range`, and how many bytes behind it should be under way as well.
    fn begin_reading(
        &self,
        owner: &Arc<dyn DataOwner>,
        open: &OpenData,
        range: Range<u64>,
    ) -> (ReadProgress, u64) {
        let (window, fetch_max) = (self.window(), self.options.read_ahead);
        let advice = open.readahead.lock().advise(range.clone(), window, fetch_max);
        let mut reading = ReadProgress {
            range,
            fetched: Vec::new(),
            fresh_end: None,
            resizes_at_start: 0,
            voids: None,
            fetch: advice.fetch,
            whole_units: u64::from(self.options.read_size) >= UNIT,
        };
        reading.restart(owner, true);
        (reading, advice.ahead)
    }

    /// Sends a READ that nobody else has sent, and has its bytes go straight to the target where
    /// that may be.
    fn send_or_read_in_place(
        &self,
        owner: &Arc<dyn DataOwner>,
        fetch: &Arc<ReadInFlight>,
        asker: OpenCaller<'_>,
        reading: &ReadProgress,
        target: Option<&Arc<dyn ReadTarget>>,
    ) -> Result<Option<FetchedRange>, DataError> {
        let straight = target
            .filter(|_| self.may_read_in_place(reading, fetch))
            .map(|target| self.in_place_read(owner, fetch, reading.range.clone(), target));
        self.fetch(owner, fetch, asker, straight.as_ref())
    }

    /// Counts what was answered without asking for it.
    fn count_hit(&self, reading: &ReadProgress, bytes: &ReadBytes) {
        let fetched: usize = reading.fetched.iter().map(|fetched| fetched.bytes.len()).sum();
        let hit = bytes.len().saturating_sub(fetched) as u64;
        self.counters.add(ClientCounter::ReadHitBytes, hit);
    }

    /// Assembles the answer, or finds what is missing for it.
    fn next_step(&self, state: &mut FileState, reading: &ReadProgress) -> ReadStep {
        if reading.voids.is_some_and(|voids| voids != state.voids) {
            return ReadStep::Restart;
        }
        let mut bytes = ReadBytes::default();
        let mut position = reading.range.start;
        let end = reading.range.end;
        let gap = loop {
            position = state.segments.read(position, end, &mut bytes);
            if position == end {
                break None;
            }
            let known = state.segments.next_known(position).unwrap_or(u64::MAX);
            let covers = |fetched: &&FetchedRange| fetched.offset <= position && position < fetched.until();
            if let Some(fetched) = reading.fetched.iter().find(covers) {
                let until = fetched.until().min(known).min(end);
                bytes.push(
                    fetched.bytes.part(distance(fetched.offset, position), distance(fetched.offset, until)),
                );
                position = until;
            } else if reading.is_behind_end(state, position) {
                let until = state.segments.unwritten_end().min(known).min(end);
                if until <= position {
                    break None;
                }
                bytes.push_zeros(distance(position, until));
                position = until;
            } else {
                break Some(position..known);
            }
        };
        let Some(gap) = gap else {
            let beyond = reading.range.start.max(self.options.keep_read)..reading.range.end;
            if !beyond.is_empty() {
                state.segments.note_given(&beyond);
            }
            return ReadStep::Done(bytes);
        };
        let shared = state.fetches.iter().find(|fetch| fetch.range.contains(&gap.start));
        if let Some(fetch) = shared {
            fetch.shared.store(true, Relaxed);
            return ReadStep::Wait(Arc::clone(fetch));
        }
        let fetch =
            ReadInFlight::new(self.fetch_range(state, reading, &gap), state.resizes, SegmentUsage::Idle);
        state.fetches.push(Arc::clone(&fetch));
        ReadStep::Send(fetch, gap.start)
    }

    /// What one READ should bring for a gap: what is missing in whole units, more for a sequence,
    /// but nothing behind it that is known or under way.
    fn fetch_range(&self, state: &FileState, reading: &ReadProgress, gap: &Range<u64>) -> Range<u64> {
        let start = if reading.whole_units { whole_unit(gap.start) } else { gap.start };
        let wanted = (reading.range.end - gap.start).max(reading.fetch);
        let believed_end = reading.fresh_end.filter(|size| *size > gap.start);
        let under_way = state.fetches.iter().map(|fetch| fetch.range.start);
        let next_fetch = under_way.filter(|start| *start > gap.start).min();
        let end = (gap.start + wanted)
            .next_multiple_of(UNIT)
            .min(start + u64::from(self.options.read_size))
            .min(gap.end)
            .min(believed_end.unwrap_or(u64::MAX))
            .min(next_fetch.unwrap_or(u64::MAX));
        start..end
    }

    /// Has what is missing of a read from `from` on, and what lies before a sequential reader,
    /// fetched in the background.
    fn read_ahead(
        self: &Arc<Self>,
        owner: &Arc<dyn DataOwner>,
        open: &OpenData,
        reading: &ReadProgress,
        from: u64,
        ahead: u64,
    ) {
        let mut state = owner.data().core.lock();
        // Without a known end we would ask behind it for ever.
        let Some(end) = state.server_end.max(reading.fresh_end) else {
            return;
        };
        let zone = from..reading.range.end.saturating_add(ahead);
        let count = reading.range.end - reading.range.start;
        let piece = u64::from(self.options.read_size).min(ahead.max(count).next_power_of_two()).max(UNIT);
        let mut started = Vec::new();
        for piece in readahead::pieces(&zone, piece, end) {
            for gap in state.segments.gaps(piece) {
                let free = without(gap, &state.fetches);
                for free in free {
                    let range = whole_unit(free.start)..free.end;
                    if state.fetches.len() < FETCHES_MAX {
                        let fetch = ReadInFlight::new(range, state.resizes, SegmentUsage::Ahead);
                        state.fetches.push(Arc::clone(&fetch));
                        started.push(fetch);
                    }
                }
            }
        }
        drop(state);
        for fetch in started {
            self.counters.count(ClientCounter::ReadAhead);
            let (plane, owner) = (Arc::clone(self), Arc::clone(owner));
            let context = Arc::clone(&open.context);
            let task = move || {
                let _why = scope::with_cause(Cause::ReadAhead);
                let asker = OpenCaller { open: &context, interrupt: &plane.stop };
                drop(plane.fetch(&owner, &fetch, asker, None));
            };
            self.background.spawn(Box::new(task));
        }
    }

    /// Sends a READ, keeps what it brings unless somebody has doubted it meanwhile, and tells those
    /// who wait. `None`: what it brought went straight to the reader.
    fn fetch(
        &self,
        owner: &Arc<dyn DataOwner>,
        fetch: &Arc<ReadInFlight>,
        asker: OpenCaller<'_>,
        straight: Option<&Arc<InPlaceRead>>,
    ) -> Result<Option<FetchedRange>, DataError> {
        let outcome = match self.read_once(owner, fetch, asker, straight) {
            Ok(None) => return Ok(None),
            Ok(Some(fetched)) => Ok(fetched),
            Err(error) => Err(error),
        };
        let number = self.bounds.cache.next_number();
        let mut kept = 0;
        let mut state = owner.data().lock();
        if let Ok(fetched) = &outcome {
            let since = state.pages_since.get_or_insert(fetched.sent_at);
            *since = fetched.sent_at.min(*since);
        }
        let listed = state.fetches.iter().position(|other| Arc::ptr_eq(other, fetch));
        if let Some(listed) = listed {
            state.fetches.swap_remove(listed);
            if let Ok(fetched) = &outcome {
                kept = state.segments.fill(
                    fetched.offset,
                    &fetched.bytes,
                    number,
                    fetch.usage.unwrap_or(SegmentUsage::Idle),
                );
                if kept > 0 {
                    let cache = &self.bounds.cache;
                    cache.enter(&owner.data().core, fetch.range.clone(), number);
                }
                if fetched.end && state.resizes == fetch.resizes {
                    state.server_end = Some(fetched.until());
                }
            }
        }
        let _ = fetch.outcome.set(outcome.clone());
        drop(state);
        owner.data().core.notify_all();
        if kept > 0 {
            DataCache::shrink(&self.bounds);
        }
        outcome.map(Some)
    }
}

impl ReadProgress {
    /// Forgets what was fetched, and what the end was; `again`: the same may happen once more.
    fn restart(&mut self, owner: &Arc<dyn DataOwner>, again: bool) {
        self.fetched.clear();
        let (resizes, voids) = {
            let state = owner.data().core.lock();
            (state.resizes, state.voids)
        };
        // After the counts: a change in between is seen by them.
        self.fresh_end = owner.fresh_size();
        self.resizes_at_start = resizes;
        self.voids = again.then_some(voids);
    }

    /// The server's file ends at or before `position`, as far as anybody knows.
    fn is_behind_end(&self, state: &FileState, position: u64) -> bool {
        let is_end = |fetched: &FetchedRange| {
            fetched.end && fetched.resizes >= self.resizes_at_start && fetched.until() <= position
        };
        let found = self.fetched.iter().any(is_end);
        let known = state.server_end.max(self.fresh_end);
        found || known.is_some_and(|end| end <= position)
    }
}

/// `range` without those parts that are being fetched.
fn without(range: Range<u64>, fetches: &[Arc<ReadInFlight>]) -> Vec<Range<u64>> {
    let mut taken: Vec<Range<u64>> = fetches.iter().map(|fetch| fetch.range.clone()).collect();
    taken.sort_by_key(|taken| taken.start);
    let mut free = Vec::new();
    let mut position = range.start;
    for taken in taken {
        if taken.start >= range.end {
            break;
        }
        if taken.start > position {
            free.push(position..taken.start);
        }
        position = position.max(taken.end);
    }
    if position < range.end {
        free.push(position..range.end);
    }
    free
}

/// Where the unit begins that `offset` is in. READs begin there, as other clients' do: knfsd of
/// Linux 6.1 gives shifted bytes of sparse files in a tmpfs to those who ask from within a page.
fn whole_unit(offset: u64) -> u64 {
    offset - offset % UNIT
}

fn distance(from: u64, to: u64) -> usize {
    usize::try_from(to - from).unwrap_or(usize::MAX)
}
