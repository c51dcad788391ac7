//! The NFS client: inodes, their caches, and the operations of a file system.
//!
//! A [`Superblock`] is one mounted export. The functions of [`ops`] are the operations of a file
//! system. Each takes an [`Op`], answers from caches where nfs(5) and the options in
//! [`config::ClientOptions`] allow it, and otherwise waits for requests to the server. The FUSE
//! mount is one user of this library; a program can use it directly, as `examples/transfer.rs`
//! does.
//!
//! [`Superblock::new`] takes the results of [`protocol::v3::mounting::mount`] or
//! [`protocol::v4::mounting::mount`] (the root's handle, the server's limits, a
//! [`Protocol`](protocol::Protocol)) and an [`Environment`] with [`threads::BackgroundThreads`] and
//! [`threads::MonotonicClock`].
//!
//! Modules: `api` arguments and results of operations, `superblock` the state of a mount and
//! one operation's context, [`ops`] operations, `readdir/` directory listings, `inode/`
//! attributes and access rights, `dentry_cache/` names, [`caller`] callers, [`protocol`]
//! requests and replies, [`data`] file data, [`mounting`] what is mounted. Decisions are made
//! in curt-policy.
//!
//! Lock order: one inode's state, then a name table or a lock of [`data`]. The states of two inodes
//! are never locked at once. The name tables, the inode registry, the locks of the mount's core
//! (clocks, options, benefits) and the open counts are leaves: no lock is taken under them, and no
//! inode is dropped. No lock is held across a request.

#[cfg(test)]
extern crate self as curt_client;

mod api;
pub mod caller;
pub mod config;
pub mod data;
mod dentry_cache;
pub mod errno;
mod event_fields;
mod fileid_map;
mod fsstat_cache;
mod inode;
mod kernel_caches;
pub mod locks;
mod mount_core;
mod open_file;
mod open_unlink;
pub mod ops;
pub mod protocol;
mod readdir;
mod server_clocks;
mod silly_directories;
mod softreval;
mod stale_open;
mod superblock;
pub mod threads;
mod uncached_lookups;

pub use api::{
    ChangeObserver, DirEmit, DirEntry, FileSystemStatistics, FoundInode, InodeId, InodeStat, LookupResult,
    OpenFlags, PageCacheState, RenameMode,
};
pub use caller::{Caller, CallerTable};
pub use config::{ClientOptions, Environment, Limits};
pub use curt_policy::locks::LocalLockOwner;
pub use event_fields::InodeEventFields;
pub use locks::{ConflictingLock, LockArguments, LockDone, LockReportEntry, MountLockReport};
pub use open_file::{OpenFile, OpenResult};
pub use protocol::mounting;
pub use readdir::OpenDirectory;
pub use rustix::io::Errno;
pub use superblock::{MountedRoot, Op, Superblock};
pub use threads::{Background, BackgroundTask, Clock};
