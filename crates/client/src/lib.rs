//! The NFS client: inodes and what is known of them, and the plans that ask for the rest.
//!
//! A [`Client`] is one mounted export. Its methods are the operations of a file system; each waits
//! for what it has to ask the server and answers the rest from memory, by the rules of nfs(5) and
//! of the options in [`config::ClientOptions`]. The FUSE mount is one user of this library; a
//! program can be another:
//!
//! ```
//! use curt_client::{Caller, Client, Errno, LookupResult, OpenFlags};
//!
//! /// The first 4 KiB of a file in the mount's root, if it is there.
//! fn beginning(client: &Client, name: &[u8]) -> Result<Option<Vec<u8>>, Errno> {
//!     let me = Caller::new(1000, 1000, &[]);
//!     let LookupResult::Positive(found) = client.lookup(&me, client.root(), name)? else {
//!         return Ok(None);
//!     };
//!     let opened = client.open(&me, found.id, OpenFlags::reading())?;
//!     let bytes = client.read(&me, &opened.file, 0, 4096)?;
//!     client.close(&me, &opened.file)?;
//!     client.forget(found.id, 1);
//!     Ok(Some(bytes.to_vec()))
//! }
//! ```
//!
//! A [`Client`] is made by [`Client::new`] of what [`mounting::mount`] found (the root's handle,
//! the server's limits, an RPC client), with [`threads::Threads`] and a clock as its
//! [`Environment`].
//!
//! Where things are: `api` the values of operations, `client` the whole, one file per concept for
//! the operations (`lookup`, `revalidate`, `open`, `setattr`, `mutate/`, `listing/`, `statfs`),
//! `inode/` and `dentry_cache/` what is known, `credentials` whose it is, [`protocol`] what is
//! sent, [`data`] the bytes of files, [`mounting`] how it begins. Decisions are curt-policy's.
//!
//! Lock order: a name table or an inode's facts, never both, and never one inode's facts under
//! another's; below the facts the data half's locks; the inode registry, the clocks, the counts of
//! open files and of turns are leaves. No lock is held across a request.

mod api;
pub mod caller;
mod client;
pub mod config;
mod core;
mod create_probe;
mod credentials;
pub mod data;
mod dentry_cache;
mod dentry_update;
pub mod environment;
pub mod errno;
mod fileid_map;
mod forgotten;
mod identity;
mod inode;
mod last_found;
mod listing;
mod looked_up;
mod lookup;
pub mod mounting;
mod mutate;
mod open;
mod open_unlink;
pub mod protocol;
mod revalidate;
mod revalidate_open;
mod setattr;
mod sillyrename;
mod softreval;
mod stale_open;
mod statfs;
pub mod threads;
mod unwritten;

pub use api::{
    ChangeObserver, DirEmit, DirEntry, FileSystemStatistics, FoundInode, InodeStat, LookupResult, OpenFlags,
    OpenResult, PageCacheState, RenameMode,
};
pub use caller::CallerTable;
pub use client::{Client, MountedRoot};
pub use config::{ClientOptions, Environment, Limits};
pub use environment::{Background, BackgroundTask, Clock};
pub use identity::{Caller, InodeId};
pub use inode::tracepoints::InodeEventFields;
pub use listing::OpenDirectory;
pub use open::OpenFile;
pub use rustix::io::Errno;
