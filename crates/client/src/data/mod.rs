//! File data: reading with read-ahead, writing behind, and what has to be on the server's disk
//! when.
//!
//! [`DataPlane`] is one per mount, [`FileData`] one per inode, [`OpenData`] one per open file.
//! Invariants: bytes that a write has taken are kept until the server says that they are on its
//! disk, or until an error is recorded that the next fsync or close of each open file returns once;
//! a read never returns anything older than what was written here or than the last
//! [`FileData::invalidate`]. Lock order: the inode's facts, the list of unwritten files, a file's
//! state, the ledger or the cache's queue; none is held across a request, and no owner is called
//! under any of these (so an inode may call its [`FileData`] while it holds its facts). Must not
//! know names, attribute caches or when data of others are too old: the metadata half says so.

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
use curt_types::{Attributes, Fault, FileHandle, Wcc};

use crate::{api::InodeEventFields, protocol::WriteVerifier};

pub use file::FileData;
pub use in_place_read::ReadTarget;
pub use plane::{DataPlane, OpenData, OpenMode, UnsentData};
pub use shared_bytes::{ReadBytes, SharedBytes};
pub use write::{AcceptedWrite, WritePosition};

/// The inode, as the data half sees it. Never called with a lock of the data half held.
pub trait DataOwner: fmt::Debug + Send + Sync + 'static {
    /// The handle for READ, WRITE and COMMIT.
    fn handle(&self) -> &FileHandle;

    /// Its data.
    fn data(&self) -> &FileData;

    /// Its size by the server's attributes if they are still valid; `None` if they are too old.
    fn fresh_size(&self) -> Option<u64>;

    /// Its size by the last attributes of the server's, however old.
    fn last_size(&self) -> Option<u64>;

    /// The largest size that it can have.
    fn size_max(&self) -> u64 {
        OFFSET_MAX
    }

    /// Absorbs the attributes of a READ's or COMMIT's reply, or `None` if it had none. May call
    /// [`FileData::invalidate`].
    fn absorb_read(&self, attributes: Option<&Attributes>, sent_at: Instant);

    /// A read of this range found that others had changed the file, and begins anew: copies that
    /// others keep are void before it is answered.
    fn begins_anew(&self, _: &std::ops::Range<u64>) {}

    /// A WRITE is about to be sent. Each call is answered by one of [`DataOwner::absorb_write`].
    fn begin_write(&self);

    /// Absorbs the wcc data of a WRITE; empty ones if no reply came or it had none. Several WRITEs
    /// of one file are in flight at the same time, and their replies arrive in any order.
    fn absorb_write(&self, wcc: &Wcc, sent_at: Instant);

    /// A WRITE's or COMMIT's reply carried this verifier.
    fn note_verifier(&self, _: WriteVerifier) {}

    /// The client's number of it; 0 if it has none.
    fn number(&self) -> u64 {
        0
    }

    /// The fields of events about it. Takes locks of the owner's.
    fn event_fields(&self) -> InodeEventFields {
        InodeEventFields::default()
    }

    /// How a log line names it.
    fn label(&self) -> String;
}

/// The result in an event: 0, or a negative errno.
fn event_status<T>(answer: &Result<T, DataError>) -> i32 {
    let error = answer.as_ref().err();
    error.map_or(0, |error| -crate::errno::of_data(*error).raw_os_error())
}

/// Emits the event of a failed transfer, unless it was only interrupted.
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
    /// The server refused.
    #[error("the server answered {0:?}")]
    Status(Fault),
    /// The server did not answer, or not understandably.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The offset and length do not fit a file.
    #[error("beyond the maximum file size")]
    TooLarge,
}

/// The largest offset that a file may have (off_t of programs).
pub(crate) const OFFSET_MAX: u64 = i64::MAX as u64;

/// Sizes and times of a mount's data half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataOptions {
    /// Bytes of a READ at most (rsize), a multiple of 4096.
    pub read_size: u32,
    /// Bytes of a WRITE at most (wsize), a multiple of 4096.
    pub write_size: u32,
    /// Bytes that are read ahead of a sequential reader at most; 0 turns reading ahead off.
    pub read_ahead: u64,
    /// Clean bytes kept of all files (the DataCache).
    pub cache_bytes: u64,
    /// The clean bytes at the beginning of each file that stay when they have been read, `u64::MAX`
    /// for all. Where the reader keeps them itself, as a kernel does, the rest goes: its memory is
    /// used again at once, while the processor still has it in its cache. A kernel drops what it
    /// has at every other open of a small file; these are to be there then.
    pub keep_read: u64,
    /// Dirty and uncommitted bytes of all files; writers wait beyond it.
    pub unwritten_bytes: u64,
    /// How long written bytes stay here before they are sent and committed.
    pub write_behind: Duration,
    /// Every write is on the server's disk when it returns (`sync`, `noac`).
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
