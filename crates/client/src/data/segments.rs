//! The data of a file: a map from offsets to segments that do not overlap.
//!
//! Owns the state of each byte. Clean bytes are those of the server and may be dropped. All others
//! are held until the server has them on stable storage: Dirty (not sent), Sending (in a WRITE
//! without reply), Unstable (answered, waiting for COMMIT). A byte is in at most one segment, the
//! newest. Invariants: a Dirty segment never crosses a multiple of the block size (the largest
//! WRITE) and has one writer's credential; `unwritten` and `clean` are the sums of the lengths.
//! While the bytes of a segment are still being collected, only the segment accesses them. Once
//! they are shared they never change. Must not know locks, requests or time.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::Arc,
};

use super::{
    block_pool::{Block, BlockPool},
    shared_bytes::{ReadBytes, SharedBytes},
};

use curt_types::WriteVerifier;

use crate::protocol::OpenContext;

/// The write-back state of a segment.
#[derive(Clone, Debug)]
pub(super) enum SegmentState {
    /// Same as on the server. `number` distinguishes it from later ones at the same offset. `given`
    /// is the number of its bytes that were returned to readers that cache them.
    Clean { number: u64, usage: SegmentUsage, given: u64 },
    /// Written here and not sent.
    Dirty(WriteOrigin),
    /// In WRITE number `flight`.
    InFlight(WriteOrigin, u64),
    /// In the server's memory, as of reply number `answer`.
    Unstable(WriteOrigin, WriteVerifier, u64),
}

/// How readers have used clean bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SegmentUsage {
    /// Read ahead and not yet read.
    Ahead,
    /// Not read since the last examination.
    Idle,
    /// Read since the last examination.
    Used,
}

/// The origin of unwritten bytes.
#[derive(Clone, Debug)]
pub(super) struct WriteOrigin {
    /// Number of the first write that it contains.
    pub(super) first: u64,
    /// The credential of the writer.
    pub(super) writer: Arc<OpenContext>,
    /// The writer caches the bytes itself, as a kernel does: this copy is not needed once they are
    /// on stable storage.
    pub(super) keeps: bool,
}

impl SegmentState {
    /// Clean, and not read since.
    pub(super) fn clean(number: u64) -> Self {
        Self::Clean { number, usage: SegmentUsage::Idle, given: 0 }
    }

    pub(super) fn is_clean(&self) -> bool {
        matches!(self, Self::Clean { .. })
    }

    /// The origin, unless the segment is clean.
    pub(super) fn origin(&self) -> Option<&WriteOrigin> {
        match self {
            Self::Clean { .. } => None,
            Self::Dirty(origin) | Self::InFlight(origin, _) | Self::Unstable(origin, ..) => Some(origin),
        }
    }
}

#[derive(Debug)]
pub(super) enum SegmentContent {
    /// Still growing; not shared.
    Growing(Block),
    /// Frozen.
    Shared(SharedBytes),
}

impl SegmentContent {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Growing(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }

    /// Freezes the content and returns it.
    pub(super) fn share(&mut self) -> SharedBytes {
        match self {
            Self::Shared(shared) => shared.clone(),
            Self::Growing(bytes) => {
                let shared = bytes.take().share();
                *self = Self::Shared(shared.clone());
                shared
            }
        }
    }

    fn part(&self, start: usize, end: usize) -> Self {
        match self {
            Self::Growing(bytes) => Self::Growing(bytes.part(start, end)),
            Self::Shared(shared) => Self::Shared(shared.part(start, end).compact()),
        }
    }
}

#[derive(Debug)]
pub(super) struct Segment {
    pub(super) content: SegmentContent,
    pub(super) state: SegmentState,
}

impl Segment {
    pub(super) fn len(&self) -> u64 {
        length(self.content.bytes())
    }

    pub(super) fn is_numbered(&self, number: u64) -> bool {
        matches!(self.state, SegmentState::Clean { number: held, .. } if held == number)
    }
}

/// A Dirty segment that is now Sending.
#[derive(Clone, Debug)]
pub(super) struct SegmentToWrite {
    pub(super) offset: u64,
    pub(super) bytes: SharedBytes,
    pub(super) origin: WriteOrigin,
}

pub(super) fn part_of(segment: &Segment, start: u64, range: Range<u64>) -> Segment {
    let content = segment.content.part(distance(start, range.start), distance(start, range.end));
    Segment { content, state: segment.state.clone() }
}

pub(super) fn length(bytes: &[u8]) -> u64 {
    bytes.len() as u64
}

pub(super) fn distance(from: u64, to: u64) -> usize {
    usize::try_from(to - from).expect("a segment lies in memory")
}

/// The segments of one file.
#[derive(Debug, Default)]
pub(super) struct Segments {
    map: BTreeMap<u64, Segment>,
    /// Offsets of the segments that are not clean.
    ours: BTreeSet<u64>,
    /// The number of Dirty and Sending segments that begin with each write.
    waiting: BTreeMap<u64, usize>,
    /// Offsets of the Dirty segments.
    dirty: BTreeSet<u64>,
    /// Offsets at which a whole block became Dirty; some may have another state by now.
    full: BTreeSet<u64>,
    unwritten: u64,
    clean: u64,
}

impl Segments {
    /// Bytes that the server does not have on stable storage.
    pub(super) fn unwritten(&self) -> u64 {
        self.unwritten
    }

    /// Bytes that may be dropped.
    pub(super) fn clean(&self) -> u64 {
        self.clean
    }

    /// Whether a whole block is Dirty.
    pub(super) fn has_full(&self) -> bool {
        !self.full.is_empty()
    }

    /// End of the last byte that the server does not have on stable storage, 0 if there is none.
    pub(super) fn unwritten_end(&self) -> u64 {
        self.ours.last().map_or(0, |start| start + self.map[start].len())
    }

    /// Whether bytes of the writes up to `through` are unsent or unanswered.
    pub(super) fn waits(&self, through: u64) -> bool {
        self.waiting.first_key_value().is_some_and(|(first, _)| *first <= through)
    }

    /// The offset of the only unwritten segment, if there is exactly one.
    pub(super) fn only_unwritten(&self) -> Option<u64> {
        if self.ours.len() == 1 { self.ours.first().copied() } else { None }
    }

    /// The writer of the only unwritten segment.
    pub(super) fn only_writer(&self) -> Option<&Arc<OpenContext>> {
        let origin = self.map[&self.only_unwritten()?].state.origin();
        origin.map(|origin| &origin.writer)
    }

    /// The number of Dirty segments.
    pub(super) fn dirty_count(&self) -> usize {
        self.dirty.len()
    }

    /// Bytes for which no WRITE reply has arrived.
    pub(super) fn unsent(&self) -> u64 {
        let ours = self.ours.iter().map(|start| &self.map[start]);
        let unsent = ours
            .filter(|segment| matches!(segment.state, SegmentState::Dirty(_) | SegmentState::InFlight(..)));
        unsent.map(Segment::len).sum()
    }

    /// Inserts bytes written at `offset`. A segment grows up to the next multiple of the block
    /// size.
    pub(super) fn write(&mut self, offset: u64, bytes: &[u8], origin: &WriteOrigin, blocks: &Arc<BlockPool>) {
        let block = blocks.size();
        let mut position = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let room = usize::try_from(block - position % block).unwrap_or(usize::MAX);
            let (now, later) = rest.split_at(room.min(rest.len()));
            self.write_in_block(position, now, origin, blocks);
            position += length(now);
            rest = later;
        }
    }

    /// Inserts a whole block written at `offset`, a multiple of the block size.
    pub(super) fn put(&mut self, offset: u64, block: SharedBytes, mut origin: WriteOrigin) {
        let range = offset..offset + length(&block);
        origin.first = self.first_in(&range, origin.first);
        self.cut(range);
        self.insert(
            offset,
            Segment { content: SegmentContent::Shared(block), state: SegmentState::Dirty(origin) },
        );
        self.full.insert(offset);
    }

    /// Inserts server data into the gaps; returns the number of bytes inserted.
    pub(super) fn fill(&mut self, offset: u64, bytes: &SharedBytes, number: u64, usage: SegmentUsage) -> u64 {
        let mut filled = 0;
        for gap in self.gaps(offset..offset + length(bytes)) {
            let part = bytes.part(distance(offset, gap.start), distance(offset, gap.end));
            filled += length(&part);
            let state = SegmentState::Clean { number, usage, given: 0 };
            self.insert(gap.start, Segment { content: SegmentContent::Shared(part.compact()), state });
        }
        filled
    }

    /// The gaps in `range`.
    pub(super) fn gaps(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut position = range.start;
        for (start, segment) in self.overlapping(&range) {
            if start > position {
                gaps.push(position..start);
            }
            position = position.max(start + segment.len());
        }
        if position < range.end {
            gaps.push(position..range.end);
        }
        gaps
    }

    /// Appends the bytes from `offset` up to `end` or the first gap; returns where it stopped.
    pub(super) fn read(&mut self, offset: u64, end: u64, into: &mut ReadBytes) -> u64 {
        let mut position = offset;
        while position < end {
            let Some((&start, segment)) = self.map.range_mut(..=position).next_back() else {
                break;
            };
            let segment_end = start + segment.len();
            if segment_end <= position {
                break;
            }
            let until = segment_end.min(end);
            let (from, to) = (distance(start, position), distance(start, until));
            match &segment.content {
                SegmentContent::Growing(bytes) => into.push(SharedBytes::new(bytes[from..to].to_vec())),
                SegmentContent::Shared(shared) => into.push(shared.part(from, to)),
            }
            if let SegmentState::Clean { usage, .. } = &mut segment.state {
                *usage = SegmentUsage::Used;
            }
            position = until;
        }
        position
    }

    /// Records that the bytes of `range` were returned to a reader that caches them. Drops the
    /// clean segments of which all bytes were returned.
    pub(super) fn note_given(&mut self, range: &Range<u64>) {
        let hits: Vec<u64> = self.overlapping(range).map(|(start, _)| start).collect();
        for start in hits {
            let Some(segment) = self.map.get_mut(&start) else {
                continue;
            };
            let end = start + segment.len();
            if let SegmentState::Clean { given, .. } = &mut segment.state {
                *given += end.min(range.end) - start.max(range.start);
                if *given >= end - start {
                    drop(self.remove(start));
                }
            }
        }
    }

    /// The offset of the first byte at or after `offset` that is in a segment.
    pub(super) fn next_known(&self, offset: u64) -> Option<u64> {
        let before = self.map.range(..=offset).next_back();
        if before.is_some_and(|(start, segment)| start + segment.len() > offset) {
            return Some(offset);
        }
        self.map.range(offset..).next().map(|(start, _)| *start)
    }

    /// Makes a Dirty segment Sending, as WRITE number `flight`: the first one after `from` (only
    /// whole blocks if `whole_blocks`) that `may_go` accepts.
    pub(super) fn start_write(
        &mut self,
        flight: u64,
        whole_blocks: bool,
        may_go: impl Fn(Range<u64>, &WriteOrigin) -> bool,
    ) -> Option<SegmentToWrite> {
        let candidates = if whole_blocks { &self.full } else { &self.dirty };
        let start = *candidates.iter().find(|start| {
            let segment = &self.map[*start];
            let end = **start + segment.len();
            segment.state.origin().is_some_and(|origin| may_go(**start..end, origin))
        })?;
        let segment = self.map.get_mut(&start).expect("both indices name segments of the map");
        let origin = segment.state.origin().expect("both indices name dirty segments").clone();
        segment.state = SegmentState::InFlight(origin.clone(), flight);
        let bytes = segment.content.share();
        self.dirty.remove(&start);
        self.full.remove(&start);
        Some(SegmentToWrite { offset: start, bytes, origin })
    }

    /// Sets the state of every unwritten byte of `range` for which `next` returns one. Bytes that
    /// were written again meanwhile are in newer segments, whose states `next` distinguishes.
    /// Returns the ranges that became clean; those that their writer caches are dropped.
    pub(super) fn set_states(
        &mut self,
        range: Range<u64>,
        mut next: impl FnMut(&SegmentState) -> Option<SegmentState>,
    ) -> Vec<Range<u64>> {
        let mut became_clean = Vec::new();
        let hits: Vec<u64> = self
            .overlapping(&range)
            .filter(|(_, segment)| !segment.state.is_clean())
            .map(|(start, _)| start)
            .collect();
        for start in hits {
            let Some(state) = next(&self.map[&start].state) else {
                continue;
            };
            let mut segment = self.remove(start);
            let end = start + segment.len();
            let (from, to) = (start.max(range.start), end.min(range.end));
            if start < from {
                self.insert(start, part_of(&segment, start, start..from));
            }
            if to < end {
                self.insert(to, part_of(&segment, start, to..end));
            }
            if (from, to) != (start, end) {
                segment = part_of(&segment, start, from..to);
            }
            if state.is_clean() {
                became_clean.push(from..to);
                if segment.state.origin().is_some_and(|origin| origin.keeps) {
                    continue;
                }
                segment.content.share();
            }
            segment.state = state;
            self.insert(from, segment);
        }
        became_clean
    }

    /// Removes `range`, whatever its state; the adjacent bytes stay.
    pub(super) fn cut(&mut self, range: Range<u64>) {
        self.cut_if(range, |_| true);
    }

    /// Removes the bytes of `range` whose state `chosen` accepts.
    pub(super) fn cut_if(&mut self, range: Range<u64>, chosen: impl Fn(&SegmentState) -> bool) {
        let hits: Vec<u64> = self
            .overlapping(&range)
            .filter(|(_, segment)| chosen(&segment.state))
            .map(|(start, _)| start)
            .collect();
        for start in hits {
            let segment = self.remove(start);
            let end = start + segment.len();
            if start < range.start {
                self.insert(start, part_of(&segment, start, start..range.start));
            }
            if range.end < end {
                self.insert(range.end, part_of(&segment, start, range.end..end));
            }
        }
    }

    /// Removes all clean bytes.
    pub(super) fn cut_clean(&mut self) {
        self.cut_if(0..u64::MAX, SegmentState::is_clean);
    }

    /// Whether a clean segment in `range` has the number `number`.
    pub(super) fn holds_clean(&self, range: Range<u64>, number: u64) -> bool {
        self.overlapping(&range).any(|(_, segment)| segment.is_numbered(number))
    }

    /// Drops the clean segments numbered `number` in `range`. A segment that was used since the
    /// last call is only marked; with `spare_ahead` a segment that was read ahead and not yet read
    /// stays. Returns whether some are left.
    pub(super) fn evict(&mut self, range: Range<u64>, number: u64, spare_ahead: bool) -> bool {
        let all = self.overlapping(&range).filter(|(_, segment)| segment.is_numbered(number));
        let offsets: Vec<u64> = all.map(|(start, _)| start).collect();
        let mut stays = false;
        for offset in &offsets {
            if let Some(Segment { state: SegmentState::Clean { usage, .. }, .. }) = self.map.get_mut(offset) {
                match usage {
                    SegmentUsage::Ahead => stays |= spare_ahead,
                    SegmentUsage::Used => {
                        stays = true;
                        *usage = SegmentUsage::Idle;
                    }
                    SegmentUsage::Idle => {}
                }
            }
        }
        if !stays {
            offsets.iter().for_each(|offset| drop(self.remove(*offset)));
        }
        stays
    }

    fn overlapping(&self, range: &Range<u64>) -> impl Iterator<Item = (u64, &Segment)> + use<'_> {
        let before = self.map.range(..=range.start).next_back();
        let first = match before {
            Some((start, segment)) if start + segment.len() > range.start => *start,
            _ => range.start,
        };
        let all = if range.is_empty() { 0..0 } else { first..range.end };
        self.map.range(all).map(|(start, segment)| (*start, segment))
    }

    /// The number of the first write of `range` after it is overwritten by `write`. A waiter for an
    /// older unsent write in `range` waits for the new bytes.
    fn first_in(&self, range: &Range<u64>, write: u64) -> u64 {
        let unsent = |segment: &Segment| match &segment.state {
            SegmentState::Dirty(origin) => Some(origin.first),
            SegmentState::Clean { .. } | SegmentState::InFlight(..) | SegmentState::Unstable(..) => None,
        };
        let firsts = self.overlapping(range).filter_map(|(_, segment)| unsent(segment));
        firsts.min().map_or(write, |first| first.min(write))
    }

    fn write_in_block(&mut self, offset: u64, bytes: &[u8], origin: &WriteOrigin, blocks: &Arc<BlockPool>) {
        let block = blocks.size();
        let end = offset + length(bytes);
        let start = match self.growing_at(offset, origin, block) {
            Some(start) => {
                let held = start + self.map[&start].len();
                if held < end {
                    self.cut(offset.max(held)..end);
                }
                let segment = self.map.get_mut(&start).expect("only bytes behind it were cut");
                let SegmentContent::Growing(own) = &mut segment.content else {
                    unreachable!("it was found growing")
                };
                let before = own.len();
                own.write(distance(start, offset), bytes);
                self.unwritten += length(own) - before as u64;
                start
            }
            None => {
                let mut origin = origin.clone();
                origin.first = self.first_in(&(offset..end), origin.first);
                self.cut(offset..end);
                self.insert(
                    offset,
                    Segment {
                        content: SegmentContent::Growing(blocks.copy_of(bytes)),
                        state: SegmentState::Dirty(origin),
                    },
                );
                offset
            }
        };
        self.join_next(start, origin, block);
        if self.map[&start].len() == block {
            self.full.insert(start);
        }
    }

    /// The Dirty segment of `origin`'s writer in `offset`'s block that contains the byte at
    /// `offset` or ends there.
    fn growing_at(&self, offset: u64, origin: &WriteOrigin, block: u64) -> Option<u64> {
        let (&start, segment) = self.map.range(offset - offset % block..=offset).next_back()?;
        let reaches = start + segment.len() >= offset;
        (reaches && is_growing(segment, origin)).then_some(start)
    }

    /// Joins the segment after the one at `start` to it, if both can be one.
    fn join_next(&mut self, start: u64, origin: &WriteOrigin, block: u64) {
        let end = start + self.map[&start].len();
        let joins =
            !end.is_multiple_of(block) && self.map.get(&end).is_some_and(|next| is_growing(next, origin));
        if !joins {
            return;
        }
        let next = self.remove(end);
        self.unwritten += next.len();
        let first = next.state.origin().map_or(u64::MAX, |origin| origin.first);
        let segment = self.map.get_mut(&start).expect("the caller has just put it there");
        if let (SegmentContent::Growing(own), SegmentState::Dirty(origin)) =
            (&mut segment.content, &mut segment.state)
        {
            own.extend(next.content.bytes());
            if first < origin.first {
                uncount(&mut self.waiting, origin.first);
                count(&mut self.waiting, first);
                origin.first = first;
            }
        }
    }

    fn insert(&mut self, start: u64, segment: Segment) {
        if segment.state.is_clean() {
            self.clean += segment.len();
        } else {
            self.unwritten += segment.len();
            self.ours.insert(start);
        }
        match &segment.state {
            SegmentState::Clean { .. } | SegmentState::Unstable(..) => {}
            SegmentState::Dirty(origin) => {
                self.dirty.insert(start);
                count(&mut self.waiting, origin.first);
            }
            SegmentState::InFlight(origin, _) => count(&mut self.waiting, origin.first),
        }
        let replaced = self.map.insert(start, segment);
        debug_assert!(replaced.is_none(), "segments do not overlap");
    }

    fn remove(&mut self, start: u64) -> Segment {
        let segment = self.map.remove(&start).expect("the caller found it in the map");
        let held = if segment.state.is_clean() { &mut self.clean } else { &mut self.unwritten };
        *held -= segment.len();
        match &segment.state {
            SegmentState::Clean { .. } | SegmentState::Unstable(..) => {}
            SegmentState::Dirty(origin) | SegmentState::InFlight(origin, _) => {
                uncount(&mut self.waiting, origin.first)
            }
        }
        self.ours.remove(&start);
        self.dirty.remove(&start);
        self.full.remove(&start);
        segment
    }
}

fn is_growing(segment: &Segment, origin: &WriteOrigin) -> bool {
    let same_writer =
        |held: &WriteOrigin| Arc::ptr_eq(&held.writer, &origin.writer) || held.writer == origin.writer;
    matches!((&segment.content, &segment.state), (SegmentContent::Growing(_), SegmentState::Dirty(held)) if same_writer(held))
}

fn count(firsts: &mut BTreeMap<u64, usize>, first: u64) {
    *firsts.entry(first).or_default() += 1;
}

fn uncount(firsts: &mut BTreeMap<u64, usize>, first: u64) {
    if let Some(number) = firsts.get_mut(&first) {
        *number -= 1;
        if *number == 0 {
            firsts.remove(&first);
        }
    }
}
