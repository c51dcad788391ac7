//! A READ whose bytes go from the receive buffer to the reader without being cached
//! (`docs/decisions/reading-in-place.md`).
//!
//! Owns the decision whether the reply satisfies the reader and no other reader waits for it. The
//! thread that reads the connection makes it under the file's lock; the bytes are passed on without
//! the lock. Direct reads, which bypass all caches, are here as well.

use std::{
    ops::Range,
    sync::{Arc, OnceLock},
    time::Instant,
};

use curt_observe::{ClientCounter, ClientCounters, probe, scope};
use curt_rpc::client::Interrupt;
use curt_types::Attributes;

use super::{
    errors::DataError,
    file::{FetchedRange, FileState, ReadInFlight},
    owner::{DataOwner, event_status, trace_failure},
    plane::{DataPlane, OpenData},
    read::ReadProgress,
    segments::SegmentUsage,
    shared_bytes::ReadBytes,
};
use crate::protocol::{OpenCaller, ReadSink};

/// The destination of a read.
pub trait ReadTarget: Send + Sync {
    /// Receives the bytes: all `pieces`, in order. Called once for a read that succeeds, possibly
    /// on another thread. Must not block. May be called for a read that was interrupted. The read
    /// itself may return up to 20 ms later.
    fn put(&self, pieces: &[&[u8]]);
}

/// A READ whose bytes may go directly to the reader's target.
pub(super) struct InPlaceRead {
    pub(super) owner: Arc<dyn DataOwner>,
    pub(super) fetch: Arc<ReadInFlight>,
    /// The range that the reader requested. It begins where the READ begins and ends at or after
    /// the READ's end.
    pub(super) wanted: Range<u64>,
    pub(super) target: Arc<dyn ReadTarget>,
    pub(super) counters: Arc<ClientCounters>,
    /// Set when the bytes are delivered: their count, and whether the file ends after them.
    delivered: OnceLock<(usize, bool)>,
}

impl InPlaceRead {
    /// The number of bytes delivered, and whether the file ends after them.
    pub(super) fn given(&self) -> (usize, bool) {
        self.delivered.get().copied().unwrap_or_default()
    }

    /// Whether bytes up to `until` satisfy this reader and all others.
    fn is_enough(&self, state: &FileState, until: u64, end: bool) -> bool {
        let whole = until >= self.wanted.end || (end && state.segments.unwritten_end() <= until);
        let listed = state.fetches.iter().any(|other| Arc::ptr_eq(other, &self.fetch));
        let alone = state.segments.next_known(self.wanted.start).is_none_or(|known| known >= self.wanted.end);
        whole && listed && alone && !self.fetch.is_shared()
    }

    /// Removes the READ from the file's list if its bytes are to be delivered here.
    fn detach_fetch(&self, sent_at: Instant, until: u64, end: bool) -> bool {
        let mut state = self.owner.data().core.lock();
        if !self.is_enough(&state, until, end) {
            return false;
        }
        state.fetches.retain(|other| !Arc::ptr_eq(other, &self.fetch));
        let since = state.pages_since.get_or_insert(sent_at);
        *since = sent_at.min(*since);
        if end && state.resizes == self.fetch.resizes {
            state.server_end = Some(until);
        }
        true
    }
}

impl ReadSink for InPlaceRead {
    fn consume(&self, about: Option<&Attributes>, sent_at: Instant, bytes: &[u8], end: bool) -> bool {
        let until = self.fetch.range.start + bytes.len() as u64;
        if self.fetch.is_private() {
            if until < self.wanted.end && !end {
                return false;
            }
            self.owner.absorb_read(about, sent_at);
        } else {
            // Attributes first: they may invalidate the READ.
            self.owner.absorb_read(about, sent_at);
            if !self.detach_fetch(sent_at, until, end) {
                return false;
            }
        }
        self.counters.add(ClientCounter::ReadBytes, bytes.len() as u64);
        let _ = self.delivered.set((bytes.len(), end));
        self.target.put(&[bytes]);
        true
    }
}

impl DataPlane {
    /// Whether a READ fetches all that a reader wants, and nothing that is to be cached.
    pub(super) fn may_read_in_place(&self, reading: &ReadProgress, fetch: &ReadInFlight) -> bool {
        let (wanted, range) = (&reading.range, &fetch.range);
        let all = range.start == wanted.start && range.end <= wanted.end && reading.fetched.is_empty();
        all && wanted.start >= self.options.keep_read
    }

    pub(super) fn in_place_read(
        &self,
        owner: &Arc<dyn DataOwner>,
        fetch: &Arc<ReadInFlight>,
        wanted: Range<u64>,
        target: &Arc<dyn ReadTarget>,
    ) -> Arc<InPlaceRead> {
        Arc::new(InPlaceRead {
            owner: Arc::clone(owner),
            fetch: Arc::clone(fetch),
            wanted,
            target: Arc::clone(target),
            counters: Arc::clone(&self.counters),
            delivered: OnceLock::new(),
        })
    }

    /// Reads past all caches, after the unwritten bytes of the range were sent.
    pub(super) fn read_direct(
        self: &Arc<Self>,
        owner: &Arc<dyn DataOwner>,
        open: &OpenData,
        range: Range<u64>,
        interrupt: &Interrupt,
        target: Option<&Arc<dyn ReadTarget>>,
    ) -> Result<Option<ReadBytes>, DataError> {
        self.flush_unsent(owner, interrupt)?;
        let mut bytes = ReadBytes::default();
        let mut position = range.start;
        while position < range.end {
            let step = (range.end - position).min(u64::from(self.options.read_size));
            let fetch = ReadInFlight::private(position..position + step);
            let whole = fetch.range == range;
            let straight = target
                .filter(|_| whole)
                .map(|target| self.in_place_read(owner, &fetch, range.clone(), target));
            let caller = OpenCaller { open: &open.context, interrupt };
            let Some(fetched) = self.read_once(owner, &fetch, caller, straight.as_ref())? else {
                return Ok(None);
            };
            position = fetched.until();
            bytes.push(fetched.bytes);
            if fetched.end {
                break;
            }
        }
        Ok(Some(bytes))
    }

    pub(super) fn read_once(
        &self,
        owner: &Arc<dyn DataOwner>,
        fetch: &ReadInFlight,
        caller: OpenCaller<'_>,
        straight: Option<&Arc<InPlaceRead>>,
    ) -> Result<Option<FetchedRange>, DataError> {
        let (offset, count) = (fetch.range.start, fetch.range.end - fetch.range.start);
        probe!(let subject = owner.event_fields(); NfsInitiateRead {
            fileid: subject.fileid,
            offset,
            count,
            ahead: fetch.usage == Some(SegmentUsage::Ahead),
            dev: subject.dev,
            fhandle: subject.fhandle
        });
        let read = self.read_untraced(owner, fetch, caller, straight);
        let brought = || match &read {
            Ok(Some(fetched)) => (fetched.bytes.len(), fetched.end),
            Ok(None) => straight.map_or((0, false), |straight| straight.given()),
            Err(_) => (0, false),
        };
        probe!(let subject = owner.event_fields(); NfsReadpageDone {
            fileid: subject.fileid,
            offset,
            res: brought().0,
            eof: brought().1,
            error: event_status(&read),
            dev: subject.dev,
            fhandle: subject.fhandle
        });
        trace_failure(owner, offset, count, &read);
        read
    }

    fn read_untraced(
        &self,
        owner: &Arc<dyn DataOwner>,
        fetch: &ReadInFlight,
        caller: OpenCaller<'_>,
        straight: Option<&Arc<InPlaceRead>>,
    ) -> Result<Option<FetchedRange>, DataError> {
        let range = &fetch.range;
        let count = u32::try_from(range.end - range.start).unwrap_or(u32::MAX).min(self.options.read_size);
        let _about = scope::for_object(owner.number());
        let sink = straight.map(|by| Arc::clone(by) as Arc<dyn ReadSink>);
        let range = range.start..range.start + u64::from(count);
        let answer = self.protocol.read(caller, owner.handle(), range.clone(), sink.as_ref())?;
        let Some(answer) = answer else {
            return Ok(None);
        };
        owner.absorb_read(answer.attributes.as_ref(), answer.sent_at);
        let data = answer.outcome.map_err(DataError::Status)?;
        self.counters.add(ClientCounter::ReadBytes, data.bytes.len() as u64);
        if data.bytes.len() as u64 != u64::from(count) && !data.end {
            self.counters.count(ClientCounter::ReadShort);
            probe!(let subject = owner.event_fields(); NfsReadpageShort {
                fileid: subject.fileid,
                offset: range.start,
                count,
                res: data.bytes.len(),
                dev: subject.dev,
                fhandle: subject.fhandle
            });
        }
        Ok(Some(FetchedRange {
            offset: range.start,
            bytes: data.bytes,
            end: data.end,
            sent_at: answer.sent_at,
            resizes: fetch.resizes,
        }))
    }
}
