//! The NFS client: inodes and what is known of them, and the plans that ask for the rest.
//!
//! A [`Superblock`] is one mounted export. The functions of [`ops`] are the operations of a file
//! system; each is given an [`Op`], waits for what it has to ask the server and answers the rest
//! from memory, by the rules of nfs(5) and of the options in [`config::ClientOptions`]. The FUSE
//! mount is one user of this library; a program can be another:
//!
//! ```
//! use curt_client::{Caller, Errno, LookupResult, OpenFlags, Superblock, ops};
//!
//! /// The first 4 KiB of a file in the mount's root, if it is there.
//! fn beginning(mount: &Superblock, name: &[u8]) -> Result<Option<Vec<u8>>, Errno> {
//!     let me = Caller::new(1000, 1000, &[]);
//!     let LookupResult::Positive(found) = ops::lookup(&mount.op(&me), mount.root(), name)? else {
//!         return Ok(None);
//!     };
//!     let opened = ops::open(&mount.op(&me), found.id, OpenFlags::reading())?;
//!     let bytes = ops::read(&mount.op(&me), &opened.file, 0, 4096)?;
//!     ops::close(&mount.op(&me), &opened.file)?;
//!     mount.forget(found.id, 1);
//!     Ok(Some(bytes.to_vec()))
//! }
//! ```
//!
//! A [`Superblock`] is made by [`Superblock::new`] of what [`mounting::mount`] found (the root's
//! handle, the server's limits, an RPC client), with [`threads::BackgroundThreads`] and
//! [`threads::MonotonicClock`] in its [`Environment`].
//!
//! Where things are: `api` the values of operations, `superblock` what a mount has, `op` one
//! request, [`ops`] one file per operation, `readdir/` directories, `inode/` and `dentry_cache/`
//! what is known, `credentials` whose it is, [`protocol`] what is sent, [`data`] the bytes of
//! files, [`mounting`] how it begins. Decisions are curt-policy's.
//!
//! Lock order: a name table or an inode's facts, never both, and never one inode's facts under
//! another's; below the facts the data half's locks; the inode registry, the clocks, the counts of
//! open files and of turns are leaves. No lock is held across a request.

#[cfg(test)]
extern crate self as curt_client;

mod api;
pub mod caller;
pub mod config;
mod core;
mod credentials;
pub mod data;
mod dentry_cache;
pub mod environment;
pub mod errno;
mod fileid_map;
mod identity;
mod inode;
mod last_found;
mod op;
mod open_file;
mod open_unlink;
pub mod ops;
pub mod protocol;
mod readdir;
mod sillyrename;
mod softreval;
mod stale_open;
mod statfs;
mod superblock;
pub mod threads;

pub use api::InodeEventFields;
pub use api::{
    ChangeObserver, DirEmit, DirEntry, FileSystemStatistics, FoundInode, InodeStat, LookupResult, OpenFlags,
    OpenResult, PageCacheState, RenameMode,
};
pub use caller::CallerTable;
pub use config::{ClientOptions, Environment, Limits};
pub use environment::{Background, BackgroundTask, Clock};
pub use identity::{Caller, InodeId};
pub use op::Op;
pub use open_file::OpenFile;
pub use protocol::v3::mounting;
pub use readdir::OpenDirectory;
pub use rustix::io::Errno;
pub use superblock::{MountedRoot, Superblock};
