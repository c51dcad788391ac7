//! Emits the events of operations: one at the start, one at the end of each.
//!
//! It changes nothing. While the events are disabled, an operation costs two loads more.

use std::fmt;
use std::sync::Arc;

use curt_client::{InodeEventFields, InodeId, Superblock};
use curt_fuse::NodeId;
use curt_observe::probe;

use super::{FuseCaller, FuseOperation, FuseOperationReply, FuseOperationResult, OperationObserver};

/// Emits the events of operations on a client's mount.
pub struct TracepointObserver {
    client: Arc<Superblock>,
}

impl fmt::Debug for TracepointObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TracepointObserver").finish_non_exhaustive()
    }
}

impl TracepointObserver {
    /// Emits the events of this client's operations.
    #[must_use]
    pub fn new(client: &Arc<Superblock>) -> Self {
        Self { client: Arc::clone(client) }
    }

    /// The common fields of events about an object.
    fn event_fields(&self, node: NodeId) -> InodeEventFields {
        self.client.event_fields(InodeId(node.0))
    }

    /// The file's fileid as programs see it; 0 if unknown.
    fn fileid(&self, node: NodeId) -> u64 {
        let stat = self.client.last_attributes(InodeId(node.0));
        stat.map_or(0, |stat| stat.attributes.fileid)
    }
}

/// An event, with its fields.
macro_rules! event {
    ($event:ident: $($field:ident $(: $value:expr)?),*) => {
        probe!($event { $($field $(: $value)?),* })
    };
}

/// The event that an operation on an object begins, with the common fields.
macro_rules! enter {
    ($subject:expr, $event:ident: $($field:ident $(: $value:expr)?),*) => {
        probe!(let subject = $subject; $event {
            $($field $(: $value)?,)*
            fileid: subject.fileid,
            dev: subject.dev,
            fhandle: subject.fhandle,
            version: subject.version,
            cache_validity: subject.cache_validity
        })
    };
}

/// The event that an operation on an object is done, with the common fields.
macro_rules! exit {
    ($subject:expr, $event:ident: $($field:ident $(: $value:expr)?),*) => {
        probe!(let subject = $subject; $event {
            $($field $(: $value)?,)*
            fileid: subject.fileid,
            dev: subject.dev,
            fhandle: subject.fhandle,
            object_type: subject.object_type,
            version: subject.version,
            size: subject.size,
            cache_validity: subject.cache_validity,
            nfsi_flags: subject.nfsi_flags
        })
    };
}

impl OperationObserver for TracepointObserver {
    type Seen = ();

    fn begins(&self, caller: &FuseCaller, operation: &FuseOperation<'_>) {
        let (pid, uid) = (caller.thread, caller.uid);
        match *operation {
            FuseOperation::Lookup((at, name)) => event!(NfsLookupEnter: pid, uid, dir: self.fileid(at), name),
            FuseOperation::Getattr(node) => enter!(self.event_fields(node), NfsGetattrEnter: pid, uid),
            FuseOperation::Setattr(node, _) => enter!(self.event_fields(node), NfsSetattrEnter: pid, uid),
            FuseOperation::Readlink(node) => event!(NfsReadlinkEnter: pid, uid, fileid: self.fileid(node)),
            FuseOperation::Symlink((at, name), target) => {
                event!(NfsSymlinkEnter: pid, uid, dir: self.fileid(at), name, target)
            }
            FuseOperation::Mknod((at, name), new) => {
                event!(NfsMknodEnter: pid, uid, dir: self.fileid(at), name, mode: new.mode)
            }
            FuseOperation::Mkdir((at, name), mode) => {
                event!(NfsMkdirEnter: pid, uid, dir: self.fileid(at), name, mode)
            }
            FuseOperation::Unlink((at, name)) => event!(NfsUnlinkEnter: pid, uid, dir: self.fileid(at), name),
            FuseOperation::Rmdir((at, name)) => event!(NfsRmdirEnter: pid, uid, dir: self.fileid(at), name),
            FuseOperation::Rename((at, name), (to, new_name)) => {
                event!(NfsRenameEnter: pid, uid, dir: self.fileid(at), name, new_dir: self.fileid(to), new_name)
            }
            FuseOperation::Link(node, (at, name)) => {
                event!(NfsLinkEnter: pid, uid, fileid: self.fileid(node), dir: self.fileid(at), name)
            }
            FuseOperation::Open(node, open) => {
                event!(NfsOpenEnter: pid, uid, fileid: self.fileid(node), flags: open.flags)
            }
            FuseOperation::Create((at, name), create) => {
                event!(NfsAtomicOpenEnter: pid, uid, dir: self.fileid(at), name, flags: create.flags, mode: create.mode)
            }
            FuseOperation::Read(node, read) => {
                event!(NfsReadEnter: pid, uid, fileid: self.fileid(node), offset: read.offset, count: read.size)
            }
            FuseOperation::Write(node, write, count) => {
                event!(NfsWriteEnter: pid, uid, fileid: self.fileid(node), offset: write.offset, count)
            }
            FuseOperation::Statfs(node) => event!(NfsStatfsEnter: pid, uid, fileid: self.fileid(node)),
            FuseOperation::Flush(node) => event!(NfsFlushEnter: pid, uid, fileid: self.fileid(node)),
            FuseOperation::Fsync(node) => enter!(self.event_fields(node), NfsFsyncEnter: pid, uid),
            FuseOperation::Opendir(node) => event!(NfsOpendirEnter: pid, uid, dir: self.fileid(node)),
            FuseOperation::Readdir(node, (_, cookie), plus) => {
                event!(NfsReaddirEnter: pid, uid, dir: self.fileid(node), cookie, plus)
            }
            FuseOperation::Access(node, mask) => {
                enter!(self.event_fields(node), NfsAccessEnter: pid, uid, mask)
            }
            // No program waits for these.
            FuseOperation::Release(..)
            | FuseOperation::Releasedir(..)
            | FuseOperation::Fsyncdir(_)
            | FuseOperation::Getlk(_)
            | FuseOperation::Setlk(_) => {}
        }
    }

    fn ended(
        &self,
        _: &FuseCaller,
        operation: &FuseOperation<'_>,
        outcome: &FuseOperationResult<'_>,
        _seen: (),
    ) {
        let error = outcome.errno().map_or(0, |errno| -errno.raw_os_error());
        match *operation {
            FuseOperation::Lookup((at, name)) => {
                event!(NfsLookupExit: dir: self.fileid(at), name, fileid: found(outcome), error)
            }
            FuseOperation::Getattr(node) => exit!(self.event_fields(node), NfsGetattrExit: error),
            FuseOperation::Setattr(node, _) => exit!(self.event_fields(node), NfsSetattrExit: error),
            FuseOperation::Readlink(node) => {
                event!(NfsReadlinkExit: fileid: self.fileid(node), target: target(outcome), error)
            }
            FuseOperation::Symlink((at, name), _) => {
                event!(NfsSymlinkExit: dir: self.fileid(at), name, fileid: found(outcome), error)
            }
            FuseOperation::Mknod((at, name), _) => {
                event!(NfsMknodExit: dir: self.fileid(at), name, fileid: found(outcome), error)
            }
            FuseOperation::Mkdir((at, name), _) => {
                event!(NfsMkdirExit: dir: self.fileid(at), name, fileid: found(outcome), error)
            }
            FuseOperation::Unlink((at, name)) => event!(NfsUnlinkExit: dir: self.fileid(at), name, error),
            FuseOperation::Rmdir((at, name)) => event!(NfsRmdirExit: dir: self.fileid(at), name, error),
            FuseOperation::Rename((at, name), (to, new_name)) => {
                event!(NfsRenameExit: dir: self.fileid(at), name, new_dir: self.fileid(to), new_name, error)
            }
            FuseOperation::Link(node, (at, name)) => {
                event!(NfsLinkExit: fileid: self.fileid(node), dir: self.fileid(at), name, error)
            }
            FuseOperation::Open(node, open) => {
                event!(NfsOpenExit: fileid: self.fileid(node), flags: open.flags, error)
            }
            FuseOperation::Create((at, name), create) => {
                event!(NfsAtomicOpenExit: dir: self.fileid(at), name, flags: create.flags, fileid: found(outcome), error)
            }
            FuseOperation::Read(node, read) => {
                event!(NfsReadExit: fileid: self.fileid(node), offset: read.offset, res: bytes(outcome), error)
            }
            FuseOperation::Write(node, write, _) => {
                event!(NfsWriteExit: fileid: self.fileid(node), offset: write.offset, res: bytes(outcome), error)
            }
            FuseOperation::Statfs(node) => event!(NfsStatfsExit: fileid: self.fileid(node), error),
            FuseOperation::Flush(node) => event!(NfsFlushExit: fileid: self.fileid(node), error),
            FuseOperation::Fsync(node) => exit!(self.event_fields(node), NfsFsyncExit: error),
            FuseOperation::Opendir(node) => event!(NfsOpendirExit: dir: self.fileid(node), error),
            FuseOperation::Readdir(node, (_, cookie), _) => {
                event!(NfsReaddirExit: dir: self.fileid(node), cookie, entries: entries(outcome), error)
            }
            FuseOperation::Access(node, mask) => {
                exit!(self.event_fields(node), NfsAccessExit: mask, permitted: if error == 0 { mask } else { 0 }, error)
            }
            FuseOperation::Release(..)
            | FuseOperation::Releasedir(..)
            | FuseOperation::Fsyncdir(_)
            | FuseOperation::Getlk(_)
            | FuseOperation::Setlk(_) => {}
        }
    }
}

/// The number of the object of a name; 0: none.
fn found(outcome: &FuseOperationResult<'_>) -> u64 {
    outcome.entry().map_or(0, |entry| entry.attributes.inode)
}

fn target<'a>(outcome: &FuseOperationResult<'a>) -> &'a [u8] {
    match outcome.0 {
        Ok(FuseOperationReply::Target(target)) => target,
        Ok(_) | Err(_) => &[],
    }
}

fn bytes(outcome: &FuseOperationResult<'_>) -> usize {
    match outcome.0 {
        Ok(FuseOperationReply::Bytes(bytes)) => bytes,
        Ok(_) | Err(_) => 0,
    }
}

fn entries(outcome: &FuseOperationResult<'_>) -> usize {
    match outcome.0 {
        Ok(FuseOperationReply::Listed(listing)) => listing.names().count(),
        Ok(_) | Err(_) => 0,
    }
}
