//! One segment: bytes of a file, and how far they are from being on the server's disk.
//!
//! Owns the representation. Bytes that are still being collected belong to the segment alone; once
//! others may read them they are shared and never change.

use std::{ops::Range, sync::Arc};

use super::{block_pool::Block, shared_bytes::SharedBytes};
use crate::protocol::{OpenContext, WriteVerifier};

/// How far a segment is on its way.
#[derive(Clone, Debug)]
pub(super) enum SegmentState {
    /// As the server has it; `number` tells it from later ones at the same offset, `given` how many
    /// bytes of it were given to readers who keep them.
    Clean { number: u64, usage: SegmentUsage, given: u64 },
    /// Ours alone.
    Dirty(WriteOrigin),
    /// In WRITE number `flight`.
    InFlight(WriteOrigin, u64),
    /// In the server's memory, as of answer number `answer`.
    Unstable(WriteOrigin, WriteVerifier, u64),
}

/// What readers have done with clean bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SegmentUsage {
    /// They were read ahead, and nobody has had them yet.
    Ahead,
    /// Nobody read them since this was last looked at.
    Idle,
    /// Somebody did.
    Used,
}

/// Where unwritten bytes come from.
#[derive(Clone, Debug)]
pub(super) struct WriteOrigin {
    /// Number of the first write that is in it.
    pub(super) first: u64,
    /// Who wrote.
    pub(super) writer: Arc<OpenContext>,
    /// The writer keeps a copy of them, as a kernel does: once they are on the server's disk,
    /// nobody needs ours.
    pub(super) keeps: bool,
}

impl SegmentState {
    /// Clean, and not read by anybody since.
    pub(super) fn clean(number: u64) -> Self {
        Self::Clean { number, usage: SegmentUsage::Idle, given: 0 }
    }

    pub(super) fn is_clean(&self) -> bool {
        matches!(self, Self::Clean { .. })
    }

    /// Where it comes from, unless it is clean.
    pub(super) fn origin(&self) -> Option<&WriteOrigin> {
        match self {
            Self::Clean { .. } => None,
            Self::Dirty(origin) | Self::InFlight(origin, _) | Self::Unstable(origin, ..) => Some(origin),
        }
    }
}

#[derive(Debug)]
pub(super) enum SegmentContent {
    /// Still growing; nobody else sees it.
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

    /// Freezes the content and shows it.
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
