//! Emits the events of operations: one at the start, one at the end of each.
//!
//! It changes nothing. While the events are disabled, an operation costs two loads more.

use std::fmt;
use std::sync::Arc;

use curt_client::{InodeEventFields, InodeId, Superblock};
use curt_fuse::NodeId;
use curt_observe::probe;

use super::{FuseCaller, FuseOperation, FuseOperationReply as Reply, FuseOperationResult, OperationObserver};
use FuseOperation as Op;

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
            Op::Lookup((at, name)) => event!(NfsLookupEnter: pid, uid, dir: self.fileid(at), name),
            Op::Getattr(node) => enter!(self.event_fields(node), NfsGetattrEnter: pid, uid),
            Op::Setattr(node, _) => enter!(self.event_fields(node), NfsSetattrEnter: pid, uid),
            Op::Readlink(node) => event!(NfsReadlinkEnter: pid, uid, fileid: self.fileid(node)),
            Op::Symlink((at, name), target) => {
                event!(NfsSymlinkEnter: pid, uid, dir: self.fileid(at), name, target)
            }
            Op::Mknod((at, name), new) => {
                event!(NfsMknodEnter: pid, uid, dir: self.fileid(at), name, mode: new.mode)
            }
            Op::Mkdir((at, name), mode) => event!(NfsMkdirEnter: pid, uid, dir: self.fileid(at), name, mode),
            Op::Unlink((at, name)) => event!(NfsUnlinkEnter: pid, uid, dir: self.fileid(at), name),
            Op::Rmdir((at, name)) => event!(NfsRmdirEnter: pid, uid, dir: self.fileid(at), name),
            Op::Rename(from, to) => {
                event!(NfsRenameEnter: pid, uid, dir: self.fileid(from.0), name: from.1, new_dir: self.fileid(to.0), new_name: to.1)
            }
            Op::Link(node, (at, name)) => {
                event!(NfsLinkEnter: pid, uid, fileid: self.fileid(node), dir: self.fileid(at), name)
            }
            Op::Open(node, open) => {
                event!(NfsOpenEnter: pid, uid, fileid: self.fileid(node), flags: open.flags)
            }
            Op::Create((at, name), create) => {
                event!(NfsAtomicOpenEnter: pid, uid, dir: self.fileid(at), name, flags: create.flags, mode: create.mode)
            }
            Op::Read(node, read) => {
                event!(NfsReadEnter: pid, uid, fileid: self.fileid(node), offset: read.offset, count: read.size)
            }
            Op::Write(node, write, count) => {
                event!(NfsWriteEnter: pid, uid, fileid: self.fileid(node), offset: write.offset, count)
            }
            Op::Statfs(node) => event!(NfsStatfsEnter: pid, uid, fileid: self.fileid(node)),
            Op::Flush(node) => event!(NfsFlushEnter: pid, uid, fileid: self.fileid(node)),
            Op::Fsync(node) => enter!(self.event_fields(node), NfsFsyncEnter: pid, uid),
            Op::Opendir(node) => event!(NfsOpendirEnter: pid, uid, dir: self.fileid(node)),
            Op::Readdir(node, (_, cookie), plus) => {
                event!(NfsReaddirEnter: pid, uid, dir: self.fileid(node), cookie, plus)
            }
            Op::Access(node, mask) => enter!(self.event_fields(node), NfsAccessEnter: pid, uid, mask),
            // No program waits for these.
            Op::Release(..) | Op::Releasedir(..) | Op::Fsyncdir(_) | Op::Getlk(_) | Op::Setlk(_) => {}
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
            Op::Lookup((at, name)) => {
                event!(NfsLookupExit: dir: self.fileid(at), name, fileid: found(outcome), error)
            }
            Op::Getattr(node) => exit!(self.event_fields(node), NfsGetattrExit: error),
            Op::Setattr(node, _) => exit!(self.event_fields(node), NfsSetattrExit: error),
            Op::Readlink(node) => {
                event!(NfsReadlinkExit: fileid: self.fileid(node), target: target(outcome), error)
            }
            Op::Symlink((at, name), _) => {
                event!(NfsSymlinkExit: dir: self.fileid(at), name, fileid: found(outcome), error)
            }
            Op::Mknod((at, name), _) => {
                event!(NfsMknodExit: dir: self.fileid(at), name, fileid: found(outcome), error)
            }
            Op::Mkdir((at, name), _) => {
                event!(NfsMkdirExit: dir: self.fileid(at), name, fileid: found(outcome), error)
            }
            Op::Unlink((at, name)) => event!(NfsUnlinkExit: dir: self.fileid(at), name, error),
            Op::Rmdir((at, name)) => event!(NfsRmdirExit: dir: self.fileid(at), name, error),
            Op::Rename(from, to) => {
                event!(NfsRenameExit: dir: self.fileid(from.0), name: from.1, new_dir: self.fileid(to.0), new_name: to.1, error)
            }
            Op::Link(node, (at, name)) => {
                event!(NfsLinkExit: fileid: self.fileid(node), dir: self.fileid(at), name, error)
            }
            Op::Open(node, open) => event!(NfsOpenExit: fileid: self.fileid(node), flags: open.flags, error),
            Op::Create((at, name), create) => {
                event!(NfsAtomicOpenExit: dir: self.fileid(at), name, flags: create.flags, fileid: found(outcome), error)
            }
            Op::Read(node, read) => {
                event!(NfsReadExit: fileid: self.fileid(node), offset: read.offset, res: bytes(outcome), error)
            }
            Op::Write(node, write, _) => {
                event!(NfsWriteExit: fileid: self.fileid(node), offset: write.offset, res: bytes(outcome), error)
            }
            Op::Statfs(node) => event!(NfsStatfsExit: fileid: self.fileid(node), error),
            Op::Flush(node) => event!(NfsFlushExit: fileid: self.fileid(node), error),
            Op::Fsync(node) => exit!(self.event_fields(node), NfsFsyncExit: error),
            Op::Opendir(node) => event!(NfsOpendirExit: dir: self.fileid(node), error),
            Op::Readdir(node, (_, cookie), _) => {
                event!(NfsReaddirExit: dir: self.fileid(node), cookie, entries: entries(outcome), error)
            }
            Op::Access(node, mask) => {
                exit!(self.event_fields(node), NfsAccessExit: mask, permitted: if error == 0 { mask } else { 0 }, error)
            }
            Op::Release(..) | Op::Releasedir(..) | Op::Fsyncdir(_) | Op::Getlk(_) | Op::Setlk(_) => {}
        }
    }
}

/// The number of the object of a name; 0: none.
fn found(outcome: &FuseOperationResult<'_>) -> u64 {
    outcome.entry().map_or(0, |entry| entry.attributes.inode)
}

fn target<'a>(outcome: &FuseOperationResult<'a>) -> &'a [u8] {
    match outcome.0 {
        Ok(Reply::Target(target)) => target,
        Ok(_) | Err(_) => &[],
    }
}

fn bytes(outcome: &FuseOperationResult<'_>) -> usize {
    match outcome.0 {
        Ok(Reply::Bytes(bytes)) => bytes,
        Ok(_) | Err(_) => 0,
    }
}

fn entries(outcome: &FuseOperationResult<'_>) -> usize {
    match outcome.0 {
        Ok(Reply::Listed(listing)) => listing.names().count(),
        Ok(_) | Err(_) => 0,
    }
}
