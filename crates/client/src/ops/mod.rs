//! The operations: one file for each system call or group of alike ones. `close` has flush, fsync
//! and release, `create` all that make an object, `remove` unlink and rmdir; opendir and readdir
//! are in `readdir/emit.rs`.
//!
//! An operation puts together what is cached, lets curt-policy decide whether that is an answer,
//! and else sends the request that is decided and caches its reply.
//!
//! Each function takes the [`Op`](crate::Op) of its operation, which is created once per request.
//! Shared steps are in files of their own: `permission` (the check of rights), `kernel_names`
//! (names that the kernel caches), `change` (the steps of all changes of names), and `steps/`.

mod access;
pub(crate) mod batch;
pub(crate) mod change;
pub(crate) mod close;
pub(crate) mod create;
pub(crate) mod getattr;
pub(crate) mod kernel_names;
pub(crate) mod link;
pub(crate) mod lock;
pub(crate) mod lookup;
pub(crate) mod open;
pub(crate) mod permission;
pub(crate) mod read;
pub(crate) mod readlink;
pub(crate) mod remove;
pub(crate) mod rename;
pub(crate) mod setattr;
pub(crate) mod statfs;
pub(crate) mod steps;
pub(crate) mod write;

pub use crate::readdir::emit::{names_are_used, opendir, readdir};
pub use access::access;
pub use batch::{open_read_close, remove_many, stat_many};
pub use close::{close, flush, fsync, release, release_noting};
pub use create::{create, make_file, mkdir, mknod, symlink};
pub use getattr::{getattr, revalidate_open_file};
pub use link::link;
pub use lock::{
    flush_and_unlock, is_being_unlocked_here, is_locked_here, lock, lock_and_wait, test_lock, unlock,
    unlock_and_wait,
};
pub use lookup::{lookup, lookup_id};
pub use open::{copies_dropped, drop_copies, open};
pub use read::{read, read_to};
pub use readlink::readlink;
pub use remove::{may_hold_removed_files, rmdir, unlink};
pub use rename::rename;
pub use setattr::{setattr, setattr_open};
pub use statfs::statfs;
pub use write::{write, write_at};
