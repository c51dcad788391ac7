//! Assembles the result of a read.
//!
//! Owns the order of sources: unwritten data of this client before data of the server, and zeros
//! for holes before the end of file that unwritten data form. Readers of one range share one READ.
//! A READ whose range was written or truncated while it was in flight serves only readers that
//! already waited for it, since they began before the change. A read that finds the file changed by
//! another client starts again: its bytes and its end of file are of one state of the file, as far
//! as replies show.

use std::{
    ops::Range,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Instant,
};

use curt_observe::{Cause, ClientCounter, scope};
use curt_rpc::client::Interrupt;
use curt_types::Fault;

use super::{
    cache::DataCache,
    errors::DataError,
    file::{FetchedRange, FileState, ReadInFlight},
    in_place_read::{InPlaceRead, ReadTarget},
    options::OFFSET_MAX,
    owner::DataOwner,
    plane::{DataPlane, OpenData},
    readahead::{self, UNIT},
    segments::SegmentUsage,
    shared_bytes::ReadBytes,
};
use crate::protocol::{OpenCaller, ReadData};

/// Maximum READs of one file in flight, read-ahead included.
const FETCHES_MAX: usize = 16;

/// Maximum number of restarts of a read. A file that changes faster than it can be read is then
/// read as it is.
const RESTARTS_MAX: u32 = 3;

/// The next step of a read.
enum ReadStep {
    Done(ReadBytes),
    /// The fetched data may be of another state of the file than the rest: start again.
    Restart,
    /// Wait for the READ of another reader.
    Wait(Arc<ReadInFlight>),
    /// Send this READ, for the gap at this offset.
    Send(Arc<ReadInFlight>, u64),
}

/// The progress of a read.
pub(super) struct ReadProgress {
    pub(super) range: Range<u64>,
    /// The data that this read waited for. They are valid for it even if no other reader may use
    /// them.
    pub(super) fetched: Vec<FetchedRange>,
    /// The end of the server's file according to its attributes.
    fresh_end: Option<u64>,
    /// [`FileState::resizes`] when the read began.
    resizes_at_start: u64,
    /// [`FileState::invalidations`] when the read began; `None`: it does not start again.
    invalidations: Option<u64>,
    /// Minimum bytes to fetch for a gap.
    fetch: u64,
    /// READs begin at whole units, until a server returns fewer bytes than reach the gap.
    whole_units: bool,
}

impl DataPlane {
    /// Reads up to `count` bytes at `offset` through `open`; fewer only at the end of the file.
    ///
    /// # Errors
    /// The errors of READ; EINTR if interrupted.
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

    /// As [`DataPlane::read`], but passes the bytes to `target`. Bytes of large files may be passed
    /// as they are received, without being cached.
    ///
    /// # Errors
    /// The errors of READ; EINTR if interrupted.
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

    /// `None`: the bytes were passed to the target.
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
        // A read that takes more than one READ sends them concurrently.
        let several = count as u64 > u64::from(self.options.read_size);
        let mut looked_ahead = ahead == 0 && !several;
        loop {
            let next = {
                let mut state = owner.data().lock();
                self.next_step(&mut state, &reading)
            };
            if !std::mem::replace(&mut looked_ahead, true) {
                let from = match next {
                    // The returned bytes may be evicted already.
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
                    let caller = OpenCaller { open: &open.context, interrupt };
                    let Some(fetched) =
                        self.send_or_read_in_place(owner, &fetch, caller, &reading, target)?
                    else {
                        return Ok(None);
                    };
                    reading.whole_units &= fetched.end || fetched.until() > gap_start;
                    reading.fetched.push(fetched);
                }
                ReadStep::Wait(fetch) => {
                    let outcome = owner.data().core.wait_for(interrupt, |_| fetch.outcome.get().cloned())?;
                    // The reader that sent the READ may have been interrupted, or its credential
                    // refused. Then this reader sends its own.
                    reading.fetched.extend(outcome.ok());
                }
            }
        }
    }

    /// Begins a read of `range`. Returns the number of bytes after it that should be in flight as
    /// well.
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
            invalidations: None,
            fetch: advice.fetch,
            whole_units: u64::from(self.options.read_size) >= UNIT,
        };
        reading.restart(owner, true);
        (reading, advice.ahead)
    }

    /// Sends a READ that no other reader has sent. Its bytes go directly to the target where that
    /// is allowed.
    fn send_or_read_in_place(
        &self,
        owner: &Arc<dyn DataOwner>,
        fetch: &Arc<ReadInFlight>,
        caller: OpenCaller<'_>,
        reading: &ReadProgress,
        target: Option<&Arc<dyn ReadTarget>>,
    ) -> Result<Option<FetchedRange>, DataError> {
        let straight = target
            .filter(|_| self.may_read_in_place(reading, fetch))
            .map(|target| self.in_place_read(owner, fetch, reading.range.clone(), target));
        self.fetch(owner, fetch, caller, straight.as_ref())
    }

    /// Counts the bytes that were served from the cache.
    fn count_hit(&self, reading: &ReadProgress, bytes: &ReadBytes) {
        let fetched: usize = reading.fetched.iter().map(|fetched| fetched.bytes.len()).sum();
        let hit = bytes.len().saturating_sub(fetched) as u64;
        self.counters.add(ClientCounter::ReadHitBytes, hit);
    }

    /// Assembles the result, or finds what is missing for it.
    fn next_step(&self, state: &mut FileState, reading: &ReadProgress) -> ReadStep {
        if reading.invalidations.is_some_and(|invalidations| invalidations != state.invalidations) {
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

    /// The range of one READ for a gap: the missing bytes in whole units, more for a sequential
    /// reader, and nothing after it that is cached or in flight.
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

    /// Fetches in the background what is missing of a read from `from` on, and the read-ahead
    /// window of a sequential reader.
    fn read_ahead(
        self: &Arc<Self>,
        owner: &Arc<dyn DataOwner>,
        open: &OpenData,
        reading: &ReadProgress,
        from: u64,
        ahead: u64,
    ) {
        let mut state = owner.data().core.lock();
        // Without a known end of file, read-ahead would never stop.
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
                let caller = OpenCaller { open: &context, interrupt: &plane.stop };
                drop(plane.fetch(&owner, &fetch, caller, None));
            };
            self.background.spawn(Box::new(task));
        }
    }

    /// Sends a READ, caches the result unless it was invalidated meanwhile, and wakes the waiters.
    /// `None`: the bytes went directly to the reader.
    fn fetch(
        &self,
        owner: &Arc<dyn DataOwner>,
        fetch: &Arc<ReadInFlight>,
        caller: OpenCaller<'_>,
        straight: Option<&Arc<InPlaceRead>>,
    ) -> Result<Option<FetchedRange>, DataError> {
        let outcome = match self.read_once(owner, fetch, caller, straight) {
            Ok(None) => return Ok(None),
            Ok(Some(fetched)) => Ok(fetched),
            Err(error) => Err(error),
        };
        self.end_fetch(owner, fetch, &outcome);
        outcome.map(Some)
    }

    /// Reads the first `count` bytes of a file as part of another request, which `send` sends. It
    /// absorbs the reply's attributes, and returns the data with the time of sending, if there are
    /// any. Nothing is read of a file that has data here. Returns whether data were read.
    pub(crate) fn read_with_open(
        &self,
        owner: &Arc<dyn DataOwner>,
        count: u64,
        send: impl FnOnce(Option<u32>) -> Option<(ReadData, Instant)>,
    ) -> bool {
        let fetch = {
            let mut state = owner.data().core.lock();
            let is_empty = state.segments.next_known(0).is_none() && state.fetches.is_empty();
            let fetch = is_empty.then(|| ReadInFlight::new(0..count, state.resizes, SegmentUsage::Idle));
            state.fetches.extend(fetch.clone());
            fetch
        };
        let Some(fetch) = fetch else {
            let _ = send(None);
            return false;
        };
        let data = send(u32::try_from(count).ok());
        let has_read = data.is_some();
        let outcome = match data {
            Some((data, sent_at)) => {
                self.counters.add(ClientCounter::ReadBytes, data.bytes.len() as u64);
                let (offset, resizes) = (0, fetch.resizes);
                Ok(FetchedRange { offset, bytes: data.bytes, end: data.end, sent_at, resizes })
            }
            // Readers that wait for it send their own.
            None => Err(DataError::Status(Fault::Io)),
        };
        self.end_fetch(owner, &fetch, &outcome);
        has_read
    }

    /// Caches a whole file that another request has read, if nothing has ever been done with its
    /// data here: then nothing can have changed them meanwhile. Returns whether it did.
    pub(crate) fn enter_untouched(
        &self,
        owner: &Arc<dyn DataOwner>,
        data: ReadData,
        sent_at: Instant,
    ) -> bool {
        let range = 0..data.bytes.len() as u64;
        let (fetch, resizes) = {
            let mut state = owner.data().core.lock();
            let is_untouched = state.writes == 0
                && (state.resizes, state.invalidations) == (0, 0)
                && state.resizing.is_none()
                && state.fetches.is_empty()
                && state.segments.next_known(0).is_none();
            if !is_untouched || !data.end || range.is_empty() {
                return false;
            }
            let fetch = ReadInFlight::new(range, state.resizes, SegmentUsage::Ahead);
            state.fetches.push(Arc::clone(&fetch));
            (fetch, state.resizes)
        };
        self.counters.add(ClientCounter::ReadBytes, data.bytes.len() as u64);
        let fetched = FetchedRange { offset: 0, bytes: data.bytes, end: true, sent_at, resizes };
        self.end_fetch(owner, &fetch, &Ok(fetched));
        owner.data().read_at_lookup.store(true, Relaxed);
        true
    }

    /// Caches the result of a READ unless it was invalidated meanwhile, and wakes the waiters.
    fn end_fetch(
        &self,
        owner: &Arc<dyn DataOwner>,
        fetch: &Arc<ReadInFlight>,
        outcome: &Result<FetchedRange, DataError>,
    ) {
        let number = self.bounds.cache.next_number();
        let mut cached = 0;
        let mut state = owner.data().lock();
        if let Ok(fetched) = outcome {
            let since = state.pages_since.get_or_insert(fetched.sent_at);
            *since = fetched.sent_at.min(*since);
        }
        let listed = state.fetches.iter().position(|other| Arc::ptr_eq(other, fetch));
        if let Some(listed) = listed {
            state.fetches.swap_remove(listed);
            if let Ok(fetched) = outcome {
                cached = state.segments.fill(
                    fetched.offset,
                    &fetched.bytes,
                    number,
                    fetch.usage.unwrap_or(SegmentUsage::Idle),
                );
                if cached > 0 {
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
        if cached > 0 {
            DataCache::shrink(&self.bounds);
        }
    }
}

impl ReadProgress {
    /// Discards the fetched data and the end of file. `again`: another restart is allowed.
    fn restart(&mut self, owner: &Arc<dyn DataOwner>, again: bool) {
        self.fetched.clear();
        let (resizes, invalidations) = {
            let state = owner.data().core.lock();
            (state.resizes, state.invalidations)
        };
        // After reading the counters: they then detect a change in between.
        self.fresh_end = owner.fresh_size();
        self.resizes_at_start = resizes;
        self.invalidations = again.then_some(invalidations);
    }

    /// Whether the server's file is known to end at or before `position`.
    fn is_behind_end(&self, state: &FileState, position: u64) -> bool {
        let is_end = |fetched: &FetchedRange| {
            fetched.end && fetched.resizes >= self.resizes_at_start && fetched.until() <= position
        };
        let found = self.fetched.iter().any(is_end);
        let known = state.server_end.max(self.fresh_end);
        found || known.is_some_and(|end| end <= position)
    }
}

/// `range` without the parts that are being fetched.
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

/// The start of the unit that contains `offset`. READs begin there, as those of other clients:
/// knfsd of Linux 6.1 returns shifted bytes of sparse files on tmpfs for a READ that begins within
/// a page.
fn whole_unit(offset: u64) -> u64 {
    offset - offset % UNIT
}

fn distance(from: u64, to: u64) -> usize {
    usize::try_from(to - from).unwrap_or(usize::MAX)
}
