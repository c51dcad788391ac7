//! Emits events of programs' operations: one when each arrives, one when it is answered.
//!
//! Decides nothing and changes nothing. While nobody wants the events an operation costs two loads more.

use std::fmt;
use std::sync::Arc;

use curt_client::{Client, InodeId, Subject};
use curt_fuse::NodeId;
use curt_trace::probe;

use super::{Answer, Asker, Observer, Operation, Outcome};

/// Emits the events of operations on a client's mount.
pub struct Probes {
    client: Arc<Client>,
}

impl fmt::Debug for Probes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Probes").finish_non_exhaustive()
    }
}

impl Probes {
    /// Emits the events of this client's operations.
    #[must_use]
    pub fn new(client: &Arc<Client>) -> Self {
        Self {
            client: Arc::clone(client),
        }
    }

    /// The fields that all events about an object have.
    fn subject(&self, node: NodeId) -> Subject {
        self.client.subject(InodeId(node.0))
    }

    /// The file's number as programs see it; 0 if it is not known.
    fn fileid(&self, node: NodeId) -> u64 {
        let stat = self.client.last_attributes(InodeId(node.0));
        stat.map_or(0, |stat| stat.attributes.fileid)
    }
}

/// An event, with its fields.
macro_rules! tell {
    ($event:ident: $($field:ident $(: $value:expr)?),*) => {
        probe!($event { $($field $(: $value)?),* })
    };
}

/// The event that an operation on an object begins, with the common fields.
macro_rules! tell_begin {
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
macro_rules! tell_done {
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

impl Observer for Probes {
    type Seen = ();

    fn begins(&self, asker: &Asker, operation: &Operation<'_>) {
        let (pid, uid) = (asker.thread, asker.uid);
        match *operation {
            Operation::Lookup((parent, name)) => {
                tell!(NfsLookupEnter: pid, uid, dir: self.fileid(parent), name)
            }
            Operation::Getattr(node) => tell_begin!(self.subject(node), NfsGetattrEnter: pid, uid),
            Operation::Setattr(node, _) => tell_begin!(self.subject(node), NfsSetattrEnter: pid, uid),
            Operation::Readlink(node) => tell!(NfsReadlinkEnter: pid, uid, fileid: self.fileid(node)),
            Operation::Symlink((parent, name), target) => {
                tell!(NfsSymlinkEnter: pid, uid, dir: self.fileid(parent), name, target)
            }
            Operation::Mknod((parent, name), new) => {
                tell!(NfsMknodEnter: pid, uid, dir: self.fileid(parent), name, mode: new.mode)
            }
            Operation::Mkdir((parent, name), mode) => {
                tell!(NfsMkdirEnter: pid, uid, dir: self.fileid(parent), name, mode)
            }
            Operation::Unlink((parent, name)) => {
                tell!(NfsUnlinkEnter: pid, uid, dir: self.fileid(parent), name)
            }
            Operation::Rmdir((parent, name)) => {
                tell!(NfsRmdirEnter: pid, uid, dir: self.fileid(parent), name)
            }
            Operation::Rename(from, to) => {
                tell!(NfsRenameEnter: pid, uid, dir: self.fileid(from.0), name: from.1, new_dir: self.fileid(to.0), new_name: to.1)
            }
            Operation::Link(node, (parent, name)) => {
                tell!(NfsLinkEnter: pid, uid, fileid: self.fileid(node), dir: self.fileid(parent), name)
            }
            Operation::Open(node, open) => {
                tell!(NfsOpenEnter: pid, uid, fileid: self.fileid(node), flags: open.flags)
            }
            Operation::Create((parent, name), create) => {
                tell!(NfsAtomicOpenEnter: pid, uid, dir: self.fileid(parent), name, flags: create.flags, mode: create.mode)
            }
            Operation::Read(node, read) => {
                tell!(NfsReadEnter: pid, uid, fileid: self.fileid(node), offset: read.offset, count: read.size)
            }
            Operation::Write(node, write, count) => {
                tell!(NfsWriteEnter: pid, uid, fileid: self.fileid(node), offset: write.offset, count)
            }
            Operation::Statfs(node) => tell!(NfsStatfsEnter: pid, uid, fileid: self.fileid(node)),
            Operation::Flush(node) => tell!(NfsFlushEnter: pid, uid, fileid: self.fileid(node)),
            Operation::Fsync(node) => tell_begin!(self.subject(node), NfsFsyncEnter: pid, uid),
            Operation::Opendir(node) => tell!(NfsOpendirEnter: pid, uid, dir: self.fileid(node)),
            Operation::Readdir(node, (_, cookie), plus) => {
                tell!(NfsReaddirEnter: pid, uid, dir: self.fileid(node), cookie, plus)
            }
            Operation::Access(node, mask) => tell_begin!(self.subject(node), NfsAccessEnter: pid, uid, mask),
            // They are nobody's wait for the server.
            Operation::Release(..)
            | Operation::Releasedir(..)
            | Operation::Fsyncdir(_)
            | Operation::Getlk(_)
            | Operation::Setlk(_) => {}
        }
    }

    fn ended(&self, _: &Asker, operation: &Operation<'_>, outcome: &Outcome<'_>, (): ()) {
        let error = outcome.errno().map_or(0, |errno| -errno.raw_os_error());
        match *operation {
            Operation::Lookup((parent, name)) => {
                tell!(NfsLookupExit: dir: self.fileid(parent), name, fileid: found(outcome), error)
            }
            Operation::Getattr(node) => {
                tell_done!(self.subject(node), NfsGetattrExit: error)
            }
            Operation::Setattr(node, _) => {
                tell_done!(self.subject(node), NfsSetattrExit: error)
            }
            Operation::Readlink(node) => {
                tell!(NfsReadlinkExit: fileid: self.fileid(node), target: target(outcome), error)
            }
            Operation::Symlink((parent, name), _) => {
                tell!(NfsSymlinkExit: dir: self.fileid(parent), name, fileid: found(outcome), error)
            }
            Operation::Mknod((parent, name), _) => {
                tell!(NfsMknodExit: dir: self.fileid(parent), name, fileid: found(outcome), error)
            }
            Operation::Mkdir((parent, name), _) => {
                tell!(NfsMkdirExit: dir: self.fileid(parent), name, fileid: found(outcome), error)
            }
            Operation::Unlink((parent, name)) => tell!(NfsUnlinkExit: dir: self.fileid(parent), name, error),
            Operation::Rmdir((parent, name)) => tell!(NfsRmdirExit: dir: self.fileid(parent), name, error),
            Operation::Rename(from, to) => {
                tell!(NfsRenameExit: dir: self.fileid(from.0), name: from.1, new_dir: self.fileid(to.0), new_name: to.1, error)
            }
            Operation::Link(node, (parent, name)) => {
                tell!(NfsLinkExit: fileid: self.fileid(node), dir: self.fileid(parent), name, error)
            }
            Operation::Open(node, open) => {
                tell!(NfsOpenExit: fileid: self.fileid(node), flags: open.flags, error)
            }
            Operation::Create((parent, name), create) => {
                tell!(NfsAtomicOpenExit: dir: self.fileid(parent), name, flags: create.flags, fileid: found(outcome), error)
            }
            Operation::Read(node, read) => {
                tell!(NfsReadExit: fileid: self.fileid(node), offset: read.offset, res: bytes(outcome), error)
            }
            Operation::Write(node, write, _) => {
                tell!(NfsWriteExit: fileid: self.fileid(node), offset: write.offset, res: bytes(outcome), error)
            }
            Operation::Statfs(node) => tell!(NfsStatfsExit: fileid: self.fileid(node), error),
            Operation::Flush(node) => tell!(NfsFlushExit: fileid: self.fileid(node), error),
            Operation::Fsync(node) => tell_done!(self.subject(node), NfsFsyncExit: error),
            Operation::Opendir(node) => tell!(NfsOpendirExit: dir: self.fileid(node), error),
            Operation::Readdir(node, (_, cookie), _) => {
                tell!(NfsReaddirExit: dir: self.fileid(node), cookie, entries: entries(outcome), error)
            }
            Operation::Access(node, mask) => {
                tell_done!(self.subject(node), NfsAccessExit: mask, permitted: if error == 0 { mask } else { 0 }, error)
            }
            Operation::Release(..)
            | Operation::Releasedir(..)
            | Operation::Fsyncdir(_)
            | Operation::Getlk(_)
            | Operation::Setlk(_) => {}
        }
    }
}

/// The number of the object that a name leads to; 0: none.
fn found(outcome: &Outcome<'_>) -> u64 {
    outcome.entry().map_or(0, |entry| entry.attributes.inode)
}

fn target<'a>(outcome: &Outcome<'a>) -> &'a [u8] {
    match outcome.0 {
        Ok(Answer::Target(target)) => target,
        Ok(_) | Err(_) => &[],
    }
}

fn bytes(outcome: &Outcome<'_>) -> usize {
    match outcome.0 {
        Ok(Answer::Bytes(bytes)) => bytes,
        Ok(_) | Err(_) => 0,
    }
}

fn entries(outcome: &Outcome<'_>) -> usize {
    match outcome.0 {
        Ok(Answer::Listed(listing)) => listing.names().count(),
        Ok(_) | Err(_) => 0,
    }
}
