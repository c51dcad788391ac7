//! Options of the data half, and the largest file offset.

use std::time::Duration;

/// The largest file offset (off_t of applications).
pub(crate) const OFFSET_MAX: u64 = i64::MAX as u64;

/// Sizes and times of a mount's data half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataOptions {
    /// Maximum bytes of a READ (rsize), a multiple of 4096.
    pub read_size: u32,
    /// Maximum bytes of a WRITE (wsize), a multiple of 4096.
    pub write_size: u32,
    /// Maximum bytes of read-ahead for a sequential reader; 0 disables read-ahead.
    pub read_ahead: u64,
    /// Maximum clean bytes cached of all files (the DataCache).
    pub cache_bytes: u64,
    /// The number of clean bytes at the beginning of each file that stay cached after they were
    /// read, `u64::MAX` for all. Where the reader caches data itself, as a kernel does, the
    /// remainder is dropped: its memory is reused while it is still in the processor's cache. A
    /// kernel drops its cached data at every other open of a small file; these bytes serve that
    /// open.
    pub keep_read: u64,
    /// Maximum dirty and uncommitted bytes of all files; writers block above it.
    pub unwritten_bytes: u64,
    /// Delay between a write and its write-back and COMMIT.
    pub write_behind: Duration,
    /// Every write is on stable storage when it returns (`sync`, `noac`).
    pub synchronous: bool,
}

impl Default for DataOptions {
    fn default() -> Self {
        Self {
            read_size: 1 << 20,
            write_size: 1 << 20,
            read_ahead: 8 << 20,
            cache_bytes: 64 << 20,
            keep_read: u64::MAX,
            unwritten_bytes: 256 << 20,
            write_behind: Duration::from_secs(5),
            synchronous: false,
        }
    }
}
