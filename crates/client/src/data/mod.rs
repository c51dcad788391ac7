//! File data: reading, read-ahead, write-back and COMMIT.
//!
//! Decides when bytes are read ahead, written back and committed, and which leave the memory first.
//! [`DataPlane`] is one per mount, [`FileData`] one per inode, [`OpenData`] one per open file.
//! Invariants: bytes that a write accepted are held until the server reports them on stable
//! storage, or until an error is recorded, which the next fsync or close of each open file returns
//! once. A read never returns data older than the last write here or the last
//! [`FileData::invalidate`]. Lock order: the inode's state, the list of unwritten files, a file's
//! state, the dirty limit or the cache's queue. No lock is held across a request, and no method of
//! [`DataOwner`] is called under any of these locks (so an inode may call its [`FileData`] while it
//! holds its state). Must not know names, attribute caches or when data are stale: the metadata
//! half decides that.

mod block_pool;
mod cache;
mod commit;
mod dirty_limit;
pub(crate) mod errors;
pub(crate) mod file;
mod flush;
pub(crate) mod in_place_read;
mod monitor;
pub(crate) mod options;
pub(crate) mod owner;
pub(crate) mod plane;
mod read;
mod readahead;
mod segments;
pub(crate) mod shared_bytes;
pub(crate) mod write;
mod writeback;

#[cfg(test)]
mod tests;

pub use errors::DataError;
pub use file::FileData;
pub use flush::ResizeInFlight;
pub use in_place_read::ReadTarget;
pub use options::DataOptions;
pub use owner::DataOwner;
pub use plane::{DataPlane, OpenData, OpenMode, UnsentData};
pub use shared_bytes::{ReadBytes, SharedBytes};
pub use write::{AcceptedWrite, WritePosition};
