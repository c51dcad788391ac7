//! File data: reading, read-ahead, write-back and COMMIT.
//!
//! [`DataPlane`] is one per mount, [`FileData`] one per inode, [`OpenData`] one per open file.
//! Invariants: bytes that a write accepted are held until the server reports them on stable
//! storage, or until an error is recorded, which the next fsync or close of each open file returns
//! once. A read never returns data older than the last write here or the last
//! [`FileData::invalidate`]. Lock order: the inode's facts, the list of unwritten files, a file's
//! state, the ledger or the cache's queue. No lock is held across a request, and no method of
//! [`DataOwner`] is called under any of these locks (so an inode may call its [`FileData`] while it
//! holds its facts). Must not know names, attribute caches or when data are stale: the metadata
//! half decides that.

mod block_pool;
mod cache;
mod dirty_limit;
mod errors;
mod file;
mod flush;
mod in_place_read;
mod monitor;
mod plane;
mod read;
mod readahead;
mod segment;
mod segments;
mod shared_bytes;
mod write;
mod writeback;

#[cfg(test)]
mod tests;

use std::{
    fmt,
    time::{Duration, Instant},
};

use curt_rpc::client::CallError;
use curt_types::{Attributes, Fault, FileHandle, Wcc, WriteVerifier};

use crate::event_fields::InodeEventFields;

pub use file::FileData;
pub use in_place_read::ReadTarget;
pub use plane::{DataPlane, OpenData, OpenMode, UnsentData};
pub use shared_bytes::{ReadBytes, SharedBytes};
pub use write::{AcceptedWrite, WritePosition};

/// The inode, as seen by the data half. Called with no lock of the data half held.
pub trait DataOwner: fmt::Debug + Send + Sync + 'static {
    /// The handle for READ, WRITE and COMMIT.
    fn handle(&self) -> &FileHandle;

    /// Its file data.
    fn data(&self) -> &FileData;

    /// Its size by the server's attributes if these are still valid; `None` if they expired.
    fn fresh_size(&self) -> Option<u64>;

    /// Its size by the last attributes from the server, however old.
    fn last_size(&self) -> Option<u64>;

    /// The maximum size of the file.
    fn size_max(&self) -> u64 {
        OFFSET_MAX
    }

    /// Absorbs the attributes of a READ or COMMIT reply, `None` if it had none. May call
    /// [`FileData::invalidate`].
    fn absorb_read(&self, attributes: Option<&Attributes>, sent_at: Instant);

    /// A read of this range found that another client changed the file, and starts again. Copies in
    /// other caches are invalidated before it is answered.
    fn begins_anew(&self, _: &std::ops::Range<u64>) {}

    /// A WRITE is about to be sent. Each call is paired with one of [`DataOwner::absorb_write`].
    fn begin_write(&self);

    /// Absorbs the wcc_data of a WRITE, empty if there was no reply or it had none. Several WRITEs
    /// of one file are in flight at the same time; their replies arrive in any order.
    fn absorb_write(&self, wcc: &Wcc, sent_at: Instant);

    /// A WRITE or COMMIT reply carried this verifier.
    fn note_verifier(&self, _: WriteVerifier) {}

    /// The client's number of the inode; 0 if it has none.
    fn number(&self) -> u64 {
        0
    }

    /// The fields of events about it. Takes locks of the owner.
    fn event_fields(&self) -> InodeEventFields {
        InodeEventFields::default()
    }

    /// The label of the inode in log lines.
    fn label(&self) -> String;
}

/// The result in an event: 0 or a negative errno.
fn event_status<T>(answer: &Result<T, DataError>) -> i32 {
    let error = answer.as_ref().err();
    error.map_or(0, |error| -crate::errno::of_data(*error).raw_os_error())
}

/// Emits the event of a failed transfer, unless it was interrupted.
fn trace_failure<T>(
    owner: &std::sync::Arc<dyn DataOwner>,
    offset: u64,
    count: u64,
    answer: &Result<T, DataError>,
) {
    if matches!(answer, Ok(_) | Err(DataError::Call(CallError::Interrupted))) {
        return;
    }
    curt_observe::probe!(let subject = owner.event_fields(); NfsPgioError {
        fileid: subject.fileid,
        offset,
        count,
        error: event_status(answer),
        dev: subject.dev,
        fhandle: subject.fhandle
    });
}

/// Why a transfer failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DataError {
    /// The server returned an error status.
    #[error("the server answered {0:?}")]
    Status(Fault),
    /// The server did not reply, or the reply could not be decoded.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The offset and length exceed the maximum file size.
    #[error("beyond the maximum file size")]
    TooLarge,
}

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
