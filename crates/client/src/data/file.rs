//! One inode's data: its segments, the requests in flight, and what is to be done next.
//!
//! Owns the state that reading and writing share, and its accounting: segments are only changed
//! through a [`CountedGuard`], which updates the mount's totals. Must not send anything.

use std::{
    collections::BTreeMap,
    fmt,
    ops::{Deref, DerefMut, Range},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Instant,
};

use parking_lot::MutexGuard;

use super::{
    cache::DataBounds, errors::ErrorRecord, monitor::Monitor, segment::SegmentUsage, segments::Segments,
};
use crate::{
    data::{DataError, SharedBytes},
    protocol::{OpenContext, WriteVerifier},
};

/// A READ under way.
#[derive(Debug)]
pub(super) struct ReadInFlight {
    pub(super) range: Range<u64>,
    /// [`FileState::resizes`] when it was begun: an end that it finds may be an old one if that has
    /// moved.
    pub(super) resizes: u64,
    /// Others than its asker wait for it. Changed and looked at under the file's lock.
    pub(super) shared: AtomicBool,
    /// Of its bytes when they are there: Idle if somebody needs them now; `None` if they are not
    /// kept.
    pub(super) usage: Option<SegmentUsage>,
    pub(super) outcome: OnceLock<Result<FetchedRange, DataError>>,
}

impl ReadInFlight {
    pub(super) fn new(range: Range<u64>, resizes: u64, usage: SegmentUsage) -> Arc<Self> {
        Arc::new(Self {
            range,
            resizes,
            shared: AtomicBool::new(false),
            usage: Some(usage),
            outcome: OnceLock::new(),
        })
    }

    /// A READ past all caches: nobody but its asker knows of it.
    pub(super) fn private(range: Range<u64>) -> Arc<Self> {
        Arc::new(Self {
            range,
            resizes: 0,
            shared: AtomicBool::new(false),
            usage: None,
            outcome: OnceLock::new(),
        })
    }

    pub(super) fn is_private(&self) -> bool {
        self.usage.is_none()
    }

    /// Whether others than its asker wait for it. Asked under the file's lock.
    pub(super) fn is_shared(&self) -> bool {
        self.shared.load(Relaxed)
    }
}

/// What a READ brought.
#[derive(Clone, Debug)]
pub(super) struct FetchedRange {
    pub(super) offset: u64,
    pub(super) bytes: SharedBytes,
    /// The server's file ends here.
    pub(super) end: bool,
    pub(super) sent_at: Instant,
    /// [`FileState::resizes`] when its READ was begun.
    pub(super) resizes: u64,
}

impl FetchedRange {
    pub(super) fn until(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }
}

/// The shared part of a file's data: what workers hold while they are at work.
pub(super) type FileCore = Monitor<FileState>;

/// The data of one inode, as far as they are here.
pub struct FileData {
    pub(super) core: Arc<FileCore>,
    pub(super) bounds: Arc<DataBounds>,
}

/// A WRITE in flight.
#[derive(Clone, Debug)]
pub(super) struct WriteInFlight {
    pub(super) range: Range<u64>,
    /// Number of the first write that is in it.
    pub(super) first: u64,
}

#[derive(Debug, Default)]
pub(super) struct FileState {
    pub(super) segments: Segments,
    /// Number of the last write.
    pub(super) writes: u64,
    /// WRITEs in flight, by number.
    pub(super) writes_in_flight: BTreeMap<u64, WriteInFlight>,
    pub(super) writes_sent: u64,
    /// Replies to WRITEs; an appender that sees it move asks for the size again.
    pub(super) write_replies: u64,
    pub(super) targets: WriteBackTargets,
    /// The writes up to this number are on the server's disk, or their failure is recorded.
    pub(super) durable_through: u64,
    /// Workers that send for this file.
    pub(super) workers: usize,
    pub(super) committing: bool,
    /// The number of WRITE replies UNSTABLE: the server has those bytes in memory only.
    pub(super) answers: u64,
    /// Of these, the last that a COMMIT covered.
    pub(super) committed: u64,
    pub(super) verifier: Option<WriteVerifier>,
    /// How often the write verifier changed: the server may have lost unstable data.
    pub(super) restarts: u64,
    /// Of these, those whose losses have been made good.
    pub(super) restarts_settled: u64,
    /// The credential of the last writer, which COMMIT uses.
    pub(super) last_writer: Option<Arc<OpenContext>>,
    pub(super) errors: ErrorRecord,
    /// Its number in the mount's list of files with unwritten bytes.
    pub(super) unwritten_number: Option<u64>,
    /// The mount ends: nothing is sent any more.
    pub(super) stopped: bool,
    pub(super) fetches: Vec<Arc<ReadInFlight>>,
    /// How often the end of the file may have moved, by this client or others.
    pub(super) resizes: u64,
    /// How often what had been fetched became void, because others had changed the file.
    pub(super) voids: u64,
    /// Where a READ found the end of the server's file.
    pub(super) server_end: Option<u64>,
    /// When the READ was sent that brought the first bytes that anybody was given since the last
    /// invalidation.
    pub(super) pages_since: Option<Instant>,
}

/// What the workers are asked for.
#[derive(Debug, Default)]
pub(super) struct WriteBackTargets {
    /// Writes up to this number are to be sent now.
    pub(super) send_through: u64,
    /// Writes up to this number are to be committed as soon as they are answered.
    pub(super) commit_through: u64,
    /// What is in the server's memory is to be committed without waiting for more.
    pub(super) commit_now: bool,
    /// The segment at this offset is all there is: it goes FILE_SYNC, which saves the COMMIT.
    pub(super) stable_at: Option<u64>,
}

impl FileState {
    /// A fetch that overlaps `range` may return what was there before: no other reader may use it.
    pub(super) fn invalidate_fetches(&mut self, range: &Range<u64>) {
        self.fetches.retain(|fetch| fetch.range.start >= range.end || fetch.range.end <= range.start);
    }

    /// The end of the file, if bytes that are not on the server's disk end it; `last` is the
    /// server's last word of its size. Who appends goes on behind them: that was the end when the
    /// first of them was written.
    pub(super) fn end_by_own_bytes(&self, last: Option<u64>) -> Option<u64> {
        let end = self.segments.unwritten_end();
        let known = last?.max(self.server_end.unwrap_or(0));
        (end > 0 && end >= known).then_some(end)
    }

    /// Notes the verifier of a reply.
    pub(super) fn note_verifier(&mut self, verifier: WriteVerifier) {
        if self.verifier.is_some_and(|known| known != verifier) {
            self.restarts += 1;
        }
        self.verifier = Some(verifier);
    }

    /// Nothing of the writes up to `through` is unsent or without answer.
    pub(super) fn is_answered(&self, through: u64) -> bool {
        !self.segments.waits(through) && !self.writes_in_flight.values().any(|flight| flight.first <= through)
    }
}

/// A file's locked state. When it is unlocked, the totals are updated with what the file holds
/// then.
pub(super) struct CountedGuard<'a> {
    state: MutexGuard<'a, FileState>,
    bounds: &'a DataBounds,
    unwritten: u64,
    clean: u64,
}

pub(super) fn lock_counted<'a>(core: &'a FileCore, bounds: &'a DataBounds) -> CountedGuard<'a> {
    let state = core.lock();
    let (unwritten, clean) = (state.segments.unwritten(), state.segments.clean());
    CountedGuard { state, bounds, unwritten, clean }
}

impl Deref for CountedGuard<'_> {
    type Target = FileState;

    fn deref(&self) -> &FileState {
        &self.state
    }
}

impl DerefMut for CountedGuard<'_> {
    fn deref_mut(&mut self) -> &mut FileState {
        &mut self.state
    }
}

impl Drop for CountedGuard<'_> {
    fn drop(&mut self) {
        let segments = &self.state.segments;
        self.bounds.ledger.change(self.unwritten, segments.unwritten());
        self.bounds.cache.change(self.clean, segments.clean());
    }
}

impl FileData {
    pub(super) fn new(bounds: Arc<DataBounds>) -> Self {
        Self { core: Arc::new(Monitor::new(FileState::default())), bounds }
    }

    pub(super) fn lock(&self) -> CountedGuard<'_> {
        lock_counted(&self.core, &self.bounds)
    }

    /// Bytes are here that the server has not got: its times and size are not the latest.
    #[must_use]
    pub fn has_unsent(&self) -> bool {
        let state = self.core.lock();
        !state.is_answered(u64::MAX)
    }

    /// Drops what was fetched: the server's file was changed by others. What was written here and
    /// is not on the server's disk stays. Quick; may be called with the inode's facts locked.
    pub fn invalidate(&self) {
        let mut state = self.lock();
        state.segments.cut_clean();
        state.fetches.clear();
        state.resizes += 1;
        state.voids += 1;
        state.server_end = None;
        state.pages_since = None;
    }

    /// When the READ was sent that brought the first of the bytes that readers (and the kernel)
    /// were given since the last [`FileData::invalidate`]; `None` if they were given none.
    #[must_use]
    pub fn pages_since(&self) -> Option<Instant> {
        self.core.lock().pages_since
    }

    /// Whether readers, or a kernel, may keep copies of its bytes: some were read, or written here.
    #[must_use]
    pub fn may_be_copied(&self) -> bool {
        let state = self.core.lock();
        state.pages_since.is_some() || state.writes > 0
    }

    /// Drops clean bytes as eviction would.
    #[cfg(test)]
    pub(super) fn evict_all(&self) {
        self.lock().segments.cut_clean();
    }

    /// Bytes are here that the server does not have on disk.
    #[must_use]
    pub fn has_unwritten(&self) -> bool {
        self.core.lock().segments.unwritten() > 0
    }

    /// The file's size as programs here must see it, when the server's last word is `server_size`:
    /// written bytes count. Quick; may be called with the inode's facts locked.
    #[must_use]
    pub fn local_size(&self, server_size: u64) -> u64 {
        server_size.max(self.core.lock().segments.unwritten_end())
    }

    /// The server's file was given this size by us: bytes behind it are gone, those up to it that
    /// nobody wrote are zeros. To be called after the SETATTR's reply.
    pub fn truncated(&self, size: u64) {
        let mut state = self.lock();
        state.segments.cut(size..u64::MAX);
        state.resizes += 1;
        state.fetches.clear();
        state.server_end = Some(size);
        drop(state);
        self.core.notify_all();
    }

    /// The file is gone (no name, and not open): nothing of it needs to be sent any more.
    pub fn discard(&self) {
        let mut state = self.lock();
        state.segments.cut(0..u64::MAX);
        state.fetches.clear();
        state.server_end = None;
        drop(state);
        self.core.notify_all();
    }
}

impl Drop for FileData {
    fn drop(&mut self) {
        self.lock().segments.cut(0..u64::MAX);
    }
}

impl fmt::Debug for FileData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.core.lock();
        let (unwritten, clean) = (state.segments.unwritten(), state.segments.clean());
        f.debug_struct("FileData")
            .field("unwritten", &unwritten)
            .field("clean", &clean)
            .finish_non_exhaustive()
    }
}
