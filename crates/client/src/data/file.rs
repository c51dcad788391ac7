//! The data of one inode: its segments, its requests in flight and its pending work.
//!
//! Owns the state that reading and writing share, and its accounting: segments are changed only
//! through a [`CountedGuard`], which updates the totals of the mount. Must not send anything.

use std::{
    collections::BTreeMap,
    fmt,
    ops::{Deref, DerefMut, Range},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use curt_rpc::auth::RpcCredential;
use curt_types::{ByteRange, Fault, SetAttributes, WriteVerifier};
use parking_lot::MutexGuard;

use super::{
    cache::DataBounds,
    errors::ErrorRecord,
    monitor::Monitor,
    segments::{SegmentUsage, Segments},
};
use crate::{
    data::{errors::DataError, shared_bytes::SharedBytes},
    protocol::OpenContext,
};

/// A READ in flight.
#[derive(Debug)]
pub(super) struct ReadInFlight {
    pub(super) range: Range<u64>,
    /// [`FileState::resizes`] when the READ began. If the counter has moved since, an end of file
    /// that the READ finds may be out of date.
    pub(super) resizes: u64,
    /// Other readers wait for it. Accessed under the file's lock.
    pub(super) shared: AtomicBool,
    /// The usage of its bytes once they are cached: Idle if a reader needs them now. `None` if they
    /// are not cached.
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

    /// A READ that bypasses all caches. No other reader shares it.
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

    /// Whether other readers wait for it. The caller holds the file's lock.
    pub(super) fn is_shared(&self) -> bool {
        self.shared.load(Relaxed)
    }
}

/// The result of a READ.
#[derive(Clone, Debug)]
pub(super) struct FetchedRange {
    pub(super) offset: u64,
    pub(super) bytes: SharedBytes,
    /// The READ reached the end of the server's file.
    pub(super) end: bool,
    pub(super) sent_at: Instant,
    /// [`FileState::resizes`] when the READ began.
    pub(super) resizes: u64,
}

impl FetchedRange {
    pub(super) fn until(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }
}

/// The shared part of a file's data, which workers hold while they run.
pub(super) type FileCore = Monitor<FileState>;

/// The cached and unwritten data of one inode.
pub struct FileData {
    pub(super) core: Arc<FileCore>,
    pub(super) bounds: Arc<DataBounds>,
    /// Data were read with the look-up of the file, and not used yet. Relaxed accesses: it stands
    /// for itself.
    pub(super) read_at_lookup: AtomicBool,
    /// The kernel's size of the file is at least this, by [`FileData::raise_kernel_size`]. Relaxed
    /// accesses: it is stored after the notification, a system call.
    kernel_size: AtomicU64,
}

/// A WRITE in flight.
#[derive(Clone, Debug)]
pub(super) struct WriteInFlight {
    pub(super) range: Range<u64>,
    /// Number of the first write that it contains.
    pub(super) first: u64,
    /// A lock of some of its bytes was lost: it is not sent, or not again.
    pub(super) is_lost: bool,
}

/// A SETATTR of the size in flight.
#[derive(Debug)]
pub(super) struct Resizing {
    pub(super) size: u64,
    /// A lock of some of the bytes behind it was lost: it is not sent, or not again.
    pub(super) is_lost: bool,
}

#[derive(Debug, Default)]
pub(super) struct FileState {
    pub(super) segments: Segments,
    /// Number of the last write.
    pub(super) writes: u64,
    /// WRITEs in flight, by number.
    pub(super) writes_in_flight: BTreeMap<u64, WriteInFlight>,
    pub(super) writes_sent: u64,
    /// A SETATTR of the size is in flight. No WRITE beyond that size begins until the reply.
    pub(super) resizing: Option<Resizing>,
    /// Count of WRITE replies. An appender that finds it changed fetches the size again.
    pub(super) write_replies: u64,
    pub(super) targets: WriteBackTargets,
    /// The writes up to this number are on stable storage, or their failure is recorded.
    pub(super) durable_through: u64,
    /// Workers that run for this file.
    pub(super) workers: usize,
    pub(super) committing: bool,
    /// Number of WRITE replies with committed = UNSTABLE: the server has those bytes in memory
    /// only.
    pub(super) answers: u64,
    /// The last of these that a COMMIT covered.
    pub(super) committed: u64,
    pub(super) verifier: Option<WriteVerifier>,
    /// Number of changes of the write verifier. After each, the server may have lost unstable data.
    pub(super) restarts: u64,
    /// The number of these changes after which all lost data were sent again.
    pub(super) restarts_settled: u64,
    /// The credential of the last writer, which COMMIT uses.
    pub(super) last_writer: Option<Arc<OpenContext>>,
    pub(super) errors: ErrorRecord,
    /// The number of this file in the mount's list of files with unwritten bytes.
    pub(super) unwritten_number: Option<u64>,
    /// The mount is stopping: no further request is sent.
    pub(super) stopped: bool,
    pub(super) fetches: Vec<Arc<ReadInFlight>>,
    /// Number of times that this client or another may have moved the end of the file.
    pub(super) resizes: u64,
    /// Number of times that fetched data became invalid because another client changed the file.
    pub(super) invalidations: u64,
    /// The end of the server's file as found by a READ.
    pub(super) server_end: Option<u64>,
    /// When the READ was sent that fetched the first bytes returned to a reader since the last
    /// invalidation.
    pub(super) pages_since: Option<Instant>,
}

/// The work requested from the workers.
#[derive(Debug, Default)]
pub(super) struct WriteBackTargets {
    /// Writes up to this number are to be sent now.
    pub(super) send_through: u64,
    /// Writes up to this number are to be committed as soon as they are answered.
    pub(super) commit_through: u64,
    /// Unstable data are to be committed without waiting for further writes.
    pub(super) commit_now: bool,
    /// The only unwritten segment.
    pub(super) stable: Option<StableWrite>,
}

/// The only unwritten segment of a file: it is sent FILE_SYNC, which saves the COMMIT.
#[derive(Debug)]
pub(super) struct StableWrite {
    /// Its offset.
    pub(super) at: u64,
    /// The SETATTR that is sent with it.
    pub(super) setattr: Option<Arc<SetattrWithWrite>>,
}

/// A SETATTR that is sent with a WRITE, in the same request. It is not sent if a single WRITE with
/// its credential cannot send all data any more, or if the WRITE fails.
#[derive(Debug)]
pub(super) struct SetattrWithWrite {
    pub(super) set: SetAttributes,
    pub(super) credential: RpcCredential,
    /// Its result, once it was executed after all bytes were written.
    pub(super) outcome: OnceLock<Result<(), Fault>>,
}

impl FileState {
    /// A fetch that overlaps `range` may return the earlier contents: no other reader may share it.
    pub(super) fn invalidate_fetches(&mut self, range: &Range<u64>) {
        self.fetches.retain(|fetch| fetch.range.start >= range.end || fetch.range.end <= range.start);
    }

    /// The end of the file, if it is formed by bytes that are not on stable storage. `last` is the
    /// size that the server last reported. An append continues behind these bytes: they began at
    /// the end of the file when the first of them was written.
    pub(super) fn end_by_own_bytes(&self, last: Option<u64>) -> Option<u64> {
        let end = self.segments.unwritten_end();
        let known = last?.max(self.server_end.unwrap_or(0));
        (end > 0 && end >= known).then_some(end)
    }

    /// Begins to set the size, unless another SETATTR does or a WRITE beyond `size` is in flight;
    /// whether it began.
    pub(super) fn begin_resize(&mut self, size: u64) -> bool {
        let is_free =
            self.resizing.is_none() && !self.writes_in_flight.values().any(|flight| flight.range.end > size);
        if is_free {
            self.resizing = Some(Resizing { size, is_lost: false });
        }
        is_free
    }

    /// All writes up to `through` were sent and answered.
    pub(super) fn is_answered(&self, through: u64) -> bool {
        !self.segments.waits(through) && !self.writes_in_flight.values().any(|flight| flight.first <= through)
    }
}

/// The locked state of a file. Unlocking updates the mount's totals with the amounts that the file
/// then holds.
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
        self.bounds.dirty.change(self.unwritten, segments.unwritten());
        self.bounds.cache.change(self.clean, segments.clean());
    }
}

impl FileData {
    pub(super) fn new(bounds: Arc<DataBounds>) -> Self {
        Self {
            core: Arc::new(Monitor::new(FileState::default())),
            bounds,
            read_at_lookup: AtomicBool::new(false),
            kernel_size: AtomicU64::new(0),
        }
    }

    pub(super) fn lock(&self) -> CountedGuard<'_> {
        lock_counted(&self.core, &self.bounds)
    }

    /// There are bytes that the server has not received: its times and size are out of date.
    #[must_use]
    pub fn has_unsent(&self) -> bool {
        let state = self.core.lock();
        !state.is_answered(u64::MAX)
    }

    /// Drops the fetched data: another client changed the file. Written bytes that are not on
    /// stable storage stay. Does not block on requests; may be called with the inode's state
    /// locked.
    pub fn invalidate(&self) {
        let mut state = self.lock();
        state.segments.cut_clean();
        state.fetches.clear();
        state.resizes += 1;
        state.invalidations += 1;
        state.server_end = None;
        state.pages_since = None;
    }

    /// A write lock of these bytes is lost: what was written under it and is not on stable storage
    /// is not sent any more, nor a size that cuts them off, because others may have locked and
    /// written the bytes. That is an error of each open file, with which `report` reports the loss
    /// of the lock. Returns the number of bytes written.
    pub(crate) fn lose(&self, bytes: ByteRange, report: impl FnOnce()) -> u64 {
        let range = bytes.first()..bytes.last().saturating_add(1);
        let mut state = self.lock();
        for flight in state.writes_in_flight.values_mut() {
            flight.is_lost |= flight.range.start < range.end && range.start < flight.range.end;
        }
        if let Some(resizing) = &mut state.resizing {
            resizing.is_lost |= resizing.size < range.end;
        }
        let held = state.segments.unwritten();
        state.segments.cut_if(range.clone(), |segment| !segment.is_clean());
        let lost = held - state.segments.unwritten();
        if lost > 0 {
            state.invalidate_fetches(&range);
            state.errors.record(DataError::LostLock);
        }
        report();
        drop(state);
        self.core.notify_all();
        lost
    }

    /// When the READ was sent that fetched the first bytes returned to readers (and the kernel)
    /// since the last [`FileData::invalidate`]. `None` if none were returned.
    #[must_use]
    pub fn pages_since(&self) -> Option<Instant> {
        self.core.lock().pages_since
    }

    /// Whether data that were read with the look-up of the file are used for the first time now.
    #[must_use]
    pub fn take_read_at_lookup(&self) -> bool {
        self.read_at_lookup.load(Relaxed) && self.read_at_lookup.swap(false, Relaxed)
    }

    /// Whether readers or a kernel may have cached bytes of the file: some were read or written
    /// here.
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

    /// There are bytes that the server does not have on stable storage.
    #[must_use]
    pub fn has_unwritten(&self) -> bool {
        self.core.lock().segments.unwritten() > 0
    }

    /// The size of the file as this client's applications see it, if the server last reported
    /// `server_size`: unwritten bytes count. Does not block on requests; may be called with the
    /// inode's state locked.
    #[must_use]
    pub fn local_size(&self, server_size: u64) -> u64 {
        server_size.max(self.core.lock().segments.unwritten_end())
    }

    /// Calls `renew` if the kernel may have a smaller size of the file than `size`, which is asked
    /// again if that changes meanwhile.
    pub(crate) fn raise_kernel_size(&self, size: impl Fn() -> u64, renew: impl Fn(u64)) {
        loop {
            let (before, size) = (self.kernel_size.load(Relaxed), size());
            if size <= before {
                return;
            }
            renew(size);
            if self.kernel_size.compare_exchange(before, size, Relaxed, Relaxed).is_ok() {
                return;
            }
        }
    }

    /// The kernel's size of the file is at least this.
    pub(crate) fn kernel_size(&self) -> u64 {
        self.kernel_size.load(Relaxed)
    }

    /// The server's file has shrunk to `size`, which the kernel may know.
    pub(crate) fn note_shrunk(&self, size: u64) {
        self.kernel_size.fetch_min(size, Relaxed);
    }

    /// This client set the size of the server's file: bytes beyond `size` are removed, and bytes
    /// below it that were never written are zeros. Called after the SETATTR reply.
    pub fn truncated(&self, size: u64) {
        let mut state = self.lock();
        state.segments.cut(size..u64::MAX);
        state.resizes += 1;
        state.fetches.clear();
        state.server_end = Some(size);
        drop(state);
        self.core.notify_all();
    }

    /// The file is removed and not open: its unwritten bytes need not be sent.
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
