//! One segment: bytes of a file and their write-back state.
//!
//! Owns the representation. While bytes are still being collected, only the segment accesses them.
//! Once they are shared they never change.

use std::{ops::Range, sync::Arc};

use super::{block_pool::Block, shared_bytes::SharedBytes};
use curt_types::WriteVerifier;

use crate::protocol::values::OpenContext;

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
