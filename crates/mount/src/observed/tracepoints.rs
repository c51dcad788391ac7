//! Emits events of programs' operations: one when each arrives, one when it is answered.
//!
//! Decides nothing and changes nothing. While nobody wants the events an operation costs two loads
//! more.

use std::fmt;
use std::sync::Arc;

use curt_client::{InodeEventFields, InodeId, Superblock};
use curt_fuse::NodeId;
use curt_trace::probe;

use super::{FuseCaller, FuseOperation, FuseOperationReply, FuseOperationResult, OperationObserver};

/// Emits the events of operations on a client's mount.
pub struct TracepointObserver {
    client: Arc<Superblock>,
}

impl fmt::Debug for TracepointObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Probes").finish_non_exhaustive()
    }
}

impl TracepointObserver {
    /// Emits the events of this client's operations.
    #[must_use]
    pub fn new(client: &Arc<Superblock>) -> Self {
        Self {
            client: Arc::clone(client),
        }
    }

    /// The fields that all events about an object have.
    fn event_fields(&self, node: NodeId) -> InodeEventFields {
        self.client.event_fields(InodeId(node.0))
    }

    /// The file's number as programs see it; 0 if it is not known.
    fn fileid(&self, node: NodeId) -> u64 {
        let stat = self.client.last_attributes(InodeId(node.0));
        stat.map_or(0, |stat| stat.attributes.fileid)
    }
}

/// An event, with its fields.
macro_rules! trace_event {
    ($event:ident: $($field:ident $(: $value:expr)?),*) => {
        probe!($event { $($field $(: $value)?),* })
    };
}

/// The event that an operation on an object begins, with the common fields.
macro_rules! trace_enter {
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
macro_rules! trace_exit {
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

    fn begins(&self, asker: &FuseCaller, operation: &FuseOperation<'_>) {
        let (pid, uid) = (asker.thread, asker.uid);
        match *operation {
            FuseOperation::Lookup((parent, name)) => {
                trace_event!(NfsLookupEnter: pid, uid, dir: self.fileid(parent), name)
            }
            FuseOperation::Getattr(node) => trace_enter!(self.event_fields(node), NfsGetattrEnter: pid, uid),
            FuseOperation::Setattr(node, _) => {
                trace_enter!(self.event_fields(node), NfsSetattrEnter: pid, uid)
            }
            FuseOperation::Readlink(node) => {
                trace_event!(NfsReadlinkEnter: pid, uid, fileid: self.fileid(node))
            }
            FuseOperation::Symlink((parent, name), target) => {
                trace_event!(NfsSymlinkEnter: pid, uid, dir: self.fileid(parent), name, target)
            }
            FuseOperation::Mknod((parent, name), new) => {
                trace_event!(NfsMknodEnter: pid, uid, dir: self.fileid(parent), name, mode: new.mode)
            }
            FuseOperation::Mkdir((parent, name), mode) => {
                trace_event!(NfsMkdirEnter: pid, uid, dir: self.fileid(parent), name, mode)
            }
            FuseOperation::Unlink((parent, name)) => {
                trace_event!(NfsUnlinkEnter: pid, uid, dir: self.fileid(parent), name)
            }
            FuseOperation::Rmdir((parent, name)) => {
                trace_event!(NfsRmdirEnter: pid, uid, dir: self.fileid(parent), name)
            }
            FuseOperation::Rename(from, to) => {
                trace_event!(NfsRenameEnter: pid, uid, dir: self.fileid(from.0), name: from.1, new_dir: self.fileid(to.0), new_name: to.1)
            }
            FuseOperation::Link(node, (parent, name)) => {
                trace_event!(NfsLinkEnter: pid, uid, fileid: self.fileid(node), dir: self.fileid(parent), name)
            }
            FuseOperation::Open(node, open) => {
                trace_event!(NfsOpenEnter: pid, uid, fileid: self.fileid(node), flags: open.flags)
            }
            FuseOperation::Create((parent, name), create) => {
                trace_event!(NfsAtomicOpenEnter: pid, uid, dir: self.fileid(parent), name, flags: create.flags, mode: create.mode)
            }
            FuseOperation::Read(node, read) => {
                trace_event!(NfsReadEnter: pid, uid, fileid: self.fileid(node), offset: read.offset, count: read.size)
            }
            FuseOperation::Write(node, write, count) => {
                trace_event!(NfsWriteEnter: pid, uid, fileid: self.fileid(node), offset: write.offset, count)
            }
            FuseOperation::Statfs(node) => trace_event!(NfsStatfsEnter: pid, uid, fileid: self.fileid(node)),
            FuseOperation::Flush(node) => trace_event!(NfsFlushEnter: pid, uid, fileid: self.fileid(node)),
            FuseOperation::Fsync(node) => trace_enter!(self.event_fields(node), NfsFsyncEnter: pid, uid),
            FuseOperation::Opendir(node) => trace_event!(NfsOpendirEnter: pid, uid, dir: self.fileid(node)),
            FuseOperation::Readdir(node, (_, cookie), plus) => {
                trace_event!(NfsReaddirEnter: pid, uid, dir: self.fileid(node), cookie, plus)
            }
            FuseOperation::Access(node, mask) => {
                trace_enter!(self.event_fields(node), NfsAccessEnter: pid, uid, mask)
            }
            // They are nobody's wait for the server.
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
            FuseOperation::Lookup((parent, name)) => {
                trace_event!(NfsLookupExit: dir: self.fileid(parent), name, fileid: found(outcome), error)
            }
            FuseOperation::Getattr(node) => {
                trace_exit!(self.event_fields(node), NfsGetattrExit: error)
            }
            FuseOperation::Setattr(node, _) => {
                trace_exit!(self.event_fields(node), NfsSetattrExit: error)
            }
            FuseOperation::Readlink(node) => {
                trace_event!(NfsReadlinkExit: fileid: self.fileid(node), target: target(outcome), error)
            }
            FuseOperation::Symlink((parent, name), _) => {
                trace_event!(NfsSymlinkExit: dir: self.fileid(parent), name, fileid: found(outcome), error)
            }
            FuseOperation::Mknod((parent, name), _) => {
                trace_event!(NfsMknodExit: dir: self.fileid(parent), name, fileid: found(outcome), error)
            }
            FuseOperation::Mkdir((parent, name), _) => {
                trace_event!(NfsMkdirExit: dir: self.fileid(parent), name, fileid: found(outcome), error)
            }
            FuseOperation::Unlink((parent, name)) => {
                trace_event!(NfsUnlinkExit: dir: self.fileid(parent), name, error)
            }
            FuseOperation::Rmdir((parent, name)) => {
                trace_event!(NfsRmdirExit: dir: self.fileid(parent), name, error)
            }
            FuseOperation::Rename(from, to) => {
                trace_event!(NfsRenameExit: dir: self.fileid(from.0), name: from.1, new_dir: self.fileid(to.0), new_name: to.1, error)
            }
            FuseOperation::Link(node, (parent, name)) => {
                trace_event!(NfsLinkExit: fileid: self.fileid(node), dir: self.fileid(parent), name, error)
            }
            FuseOperation::Open(node, open) => {
                trace_event!(NfsOpenExit: fileid: self.fileid(node), flags: open.flags, error)
            }
            FuseOperation::Create((parent, name), create) => {
                trace_event!(NfsAtomicOpenExit: dir: self.fileid(parent), name, flags: create.flags, fileid: found(outcome), error)
            }
            FuseOperation::Read(node, read) => {
                trace_event!(NfsReadExit: fileid: self.fileid(node), offset: read.offset, res: bytes(outcome), error)
            }
            FuseOperation::Write(node, write, _) => {
                trace_event!(NfsWriteExit: fileid: self.fileid(node), offset: write.offset, res: bytes(outcome), error)
            }
            FuseOperation::Statfs(node) => trace_event!(NfsStatfsExit: fileid: self.fileid(node), error),
            FuseOperation::Flush(node) => trace_event!(NfsFlushExit: fileid: self.fileid(node), error),
            FuseOperation::Fsync(node) => trace_exit!(self.event_fields(node), NfsFsyncExit: error),
            FuseOperation::Opendir(node) => trace_event!(NfsOpendirExit: dir: self.fileid(node), error),
            FuseOperation::Readdir(node, (_, cookie), _) => {
                trace_event!(NfsReaddirExit: dir: self.fileid(node), cookie, entries: entries(outcome), error)
            }
            FuseOperation::Access(node, mask) => {
                trace_exit!(self.event_fields(node), NfsAccessExit: mask, permitted: if error == 0 { mask } else { 0 }, error)
            }
            FuseOperation::Release(..)
            | FuseOperation::Releasedir(..)
            | FuseOperation::Fsyncdir(_)
            | FuseOperation::Getlk(_)
            | FuseOperation::Setlk(_) => {}
        }
    }
}

/// The number of the object that a name leads to; 0: none.
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
