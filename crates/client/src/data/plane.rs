//! The data half of one mount: the state that its files share, and the data half of an open file.
//!
//! Owns the list of files with unwritten bytes, which keeps them alive until the server has the
//! bytes, and the write-back timer. Must not know how a file is read or written.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use curt_observe::ClientCounters;
use curt_rpc::client::Interrupt;
use curt_types::FileHandle;
use parking_lot::Mutex;

use super::{
    block_pool::BlockPool,
    cache::{DataBounds, DataCache},
    dirty_limit::DirtyLimit,
    errors::{DataError, ErrorCursor},
    file::FileData,
    options::DataOptions,
    owner::DataOwner,
    readahead::{self, ReadaheadState},
};
use crate::{
    protocol::{OpenContext, Protocol},
    threads::{Background, Clock, separate},
};

/// The data half of a mount.
pub struct DataPlane {
    pub(super) protocol: Arc<dyn Protocol>,
    pub(super) options: DataOptions,
    pub(super) bounds: Arc<DataBounds>,
    /// Memory for written bytes.
    pub(super) blocks: Arc<BlockPool>,
    pub(super) counters: Arc<ClientCounters>,
    pub(super) background: Arc<dyn Background>,
    /// Ends waits for the work of those threads.
    pub(super) alarms: Arc<dyn Background>,
    clock: Arc<dyn Clock>,
    unwritten: Mutex<UnwrittenFiles>,
    /// Bytes that readers, such as a kernel, request ahead themselves.
    reader_ahead: AtomicU64,
    /// Raised at unmount: it cancels the requests of background work.
    pub(super) stop: Interrupt,
}

#[derive(Default)]
struct UnwrittenFiles {
    /// In the order in which they got unwritten bytes.
    files: BTreeMap<u64, UnwrittenFile>,
    listed: u64,
    timer_runs: bool,
}

#[derive(Clone)]
struct UnwrittenFile {
    owner: Arc<dyn DataOwner>,
    since: Instant,
}

/// The open flags that concern data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenMode {
    /// No caches: each read is a READ, each write is on stable storage (`O_DIRECT`).
    pub direct: bool,
    /// Each write is on stable storage when it returns (`O_SYNC`, `O_DSYNC`).
    pub synchronous: bool,
}

/// The data half of one open file.
#[derive(Debug)]
pub struct OpenData {
    pub(super) context: Arc<OpenContext>,
    pub(super) mode: OpenMode,
    pub(super) cursor: ErrorCursor,
    pub(super) readahead: Mutex<ReadaheadState>,
}

impl OpenData {
    /// The loss of a lock was reported to this open file. That of the bytes that were written under
    /// it is not reported again.
    pub(crate) fn note_loss_reported(&self, file: &FileData) {
        file.core.lock().errors.report_only(DataError::LostLock, &self.cursor);
    }
}

/// Bytes that were lost at unmount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsentData {
    /// The label of the file in a log.
    pub label: String,
    /// Its handle.
    pub handle: FileHandle,
    /// Bytes that were not sent, or whose reply did not arrive.
    pub unsent: u64,
    /// Bytes that the server accepted but did not report on stable storage.
    pub uncommitted: u64,
}

impl DataPlane {
    /// The data half of a mount; `protocol` sends its requests.
    #[must_use]
    pub fn new(
        protocol: Arc<dyn Protocol>,
        options: DataOptions,
        counters: Arc<ClientCounters>,
        clock: Arc<dyn Clock>,
        background: Arc<dyn Background>,
    ) -> Arc<Self> {
        let dirty = DirtyLimit::new(options.unwritten_bytes);
        let cache = DataCache::new(options.cache_bytes);
        let block = usize::try_from(options.write_size).unwrap_or(usize::MAX);
        Arc::new(Self {
            protocol,
            options,
            bounds: Arc::new(DataBounds { dirty, cache }),
            // One COMMIT of a continuous writer frees half of the bound.
            blocks: Arc::new(BlockPool::new(block, options.unwritten_bytes / 2)),
            counters,
            alarms: separate(&background, 1),
            background,
            clock,
            unwritten: Mutex::default(),
            reader_ahead: AtomicU64::new(0),
            stop: Interrupt::new(),
        })
    }

    /// The data of a new inode.
    #[must_use]
    pub fn new_file(&self) -> FileData {
        FileData::new(Arc::clone(&self.bounds))
    }

    /// The data half of a file that is opened now.
    #[must_use]
    pub fn open(&self, file: &FileData, context: Arc<OpenContext>, mode: OpenMode) -> OpenData {
        let cursor = file.core.lock().errors.cursor();
        OpenData { context, mode, cursor, readahead: Mutex::default() }
    }

    /// The sizes and times in effect.
    #[must_use]
    pub fn options(&self) -> &DataOptions {
        &self.options
    }

    /// Sets the number of bytes that readers request ahead themselves, as a kernel does. The
    /// read-ahead here is reduced by it.
    pub fn set_reader_ahead(&self, bytes: u64) {
        // Relaxed: a hint, which orders nothing.
        self.reader_ahead.store(bytes, Relaxed);
    }

    /// The number of bytes to read ahead of a sequential reader now.
    pub(super) fn window(&self) -> u64 {
        let by_reader = self.reader_ahead.load(Relaxed);
        readahead::window(self.protocol.rpc().latency(), self.options.read_ahead, by_reader)
    }

    /// Dirty and uncommitted bytes of all files.
    #[must_use]
    pub fn unwritten_bytes(&self) -> u64 {
        self.bounds.dirty.held()
    }

    /// Clean bytes cached of all files.
    #[cfg(test)]
    pub(super) fn cached_bytes(&self) -> u64 {
        self.bounds.cache.held()
    }

    /// Adds a file to the list of files with unwritten bytes and stores its number there.
    pub(super) fn list(self: &Arc<Self>, owner: &Arc<dyn DataOwner>) {
        let mut unwritten = self.unwritten.lock();
        let mut state = owner.data().core.lock();
        if state.unwritten_number.is_some() || state.segments.unwritten() == 0 {
            return;
        }
        unwritten.listed += 1;
        let number = unwritten.listed;
        state.unwritten_number = Some(number);
        drop(state);
        let since = self.clock.now();
        unwritten.files.insert(number, UnwrittenFile { owner: Arc::clone(owner), since });
        if !std::mem::replace(&mut unwritten.timer_runs, true) {
            drop(unwritten);
            self.start_timer();
        }
    }

    /// Removes a file from the list if it has no unwritten bytes.
    pub(super) fn unlist(&self, owner: &Arc<dyn DataOwner>) {
        let mut unwritten = self.unwritten.lock();
        let mut state = owner.data().core.lock();
        if state.segments.unwritten() == 0
            && let Some(number) = state.unwritten_number.take()
        {
            let file = unwritten.files.remove(&number);
            drop((state, unwritten));
            drop(file);
        }
    }

    /// The files with unwritten bytes, oldest first, for which `chosen` accepts the time at which
    /// they got them.
    pub(super) fn unwritten_files(&self, chosen: impl Fn(Instant) -> bool) -> Vec<Arc<dyn DataOwner>> {
        let unwritten = self.unwritten.lock();
        let files = unwritten.files.values().filter(|file| chosen(file.since));
        files.map(|file| Arc::clone(&file.owner)).collect()
    }

    fn start_timer(self: &Arc<Self>) {
        let plane = Arc::downgrade(self);
        let tick = move || {
            if let Some(plane) = Weak::upgrade(&plane) {
                plane.tick();
            }
        };
        // Half of the delay: bytes written just after one tick do not wait for two full delays.
        self.background.spawn_after((self.options.write_behind / 2).max(TICK_MIN), Box::new(tick));
    }

    fn tick(self: Arc<Self>) {
        let now = self.clock.now();
        let age = self.options.write_behind;
        for owner in self.unwritten_files(|since| now.saturating_duration_since(since) >= age) {
            self.write_behind(&owner);
            self.unlist(&owner);
        }
        let mut unwritten = self.unwritten.lock();
        unwritten.timer_runs = !unwritten.files.is_empty() && !self.stop.is_raised();
        let runs = unwritten.timer_runs;
        drop(unwritten);
        if runs {
            self.start_timer();
        } else {
            self.blocks.release();
        }
    }
}

/// The minimum interval of the timer.
const TICK_MIN: Duration = Duration::from_millis(10);
