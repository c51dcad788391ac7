//! The operations of programs as events: each is told of when it arrives and when it is answered.
//!
//! Decides nothing and changes nothing. While nobody wants the events an operation costs two loads more.

use std::sync::Arc;
use std::time::Duration;

use curt_client::Client;
use curt_fuse::{
    Context, Create, Entry, FileSystemSizes, Filesystem, FuseFh, Listing, NewNode, NodeId, Open, Opened,
    Read, ReadReply, Release, SetAttributes, Stat, Write,
};
use curt_trace::probe;
use rustix::io::Errno;

use super::{Cancel, inode};

type Asked<'a> = Context<'a, Cancel>;

/// A bridge, or what stands before it, whose operations are told of.
#[derive(Debug)]
pub struct Probed<F> {
    inner: Arc<F>,
    client: Arc<Client>,
}

impl<F> Probed<F> {
    /// Tells of the operations of `inner`, which are this client's.
    #[must_use]
    pub fn new(inner: Arc<F>, client: &Arc<Client>) -> Self {
        Self {
            inner,
            client: Arc::clone(client),
        }
    }

    /// The file's number as programs see it; 0 if it is not known.
    fn fileid(&self, node: NodeId) -> u64 {
        let stat = self.client.last_attributes(inode(node));
        stat.map_or(0, |stat| stat.attributes.fileid)
    }
}

/// 0, or the negative errno.
fn error<T>(answer: &Result<T, Errno>) -> i32 {
    answer.as_ref().err().map_or(0, |errno| -errno.raw_os_error())
}

/// A missing name is answered by an entry, and is ENOENT to whoever asked.
fn found(answer: &Result<Entry, Errno>) -> (u64, i32) {
    match answer {
        Ok(entry) if entry.node == NodeId(0) => (0, -Errno::NOENT.raw_os_error()),
        Ok(entry) => (entry.attributes.inode, 0),
        Err(_) => (0, error(answer)),
    }
}

fn size(answer: &Result<Stat, Errno>) -> u64 {
    answer.as_ref().map_or(0, |stat| stat.attributes.size)
}

/// An operation about a node: enter with whoever asks, do it, exit.
macro_rules! told {
    ($context:ident, $enter:ident { $($field:ident: $value:expr),* } $exit:ident { $($after:ident: $result:expr),* } |$answer:ident| $operation:expr) => {{
        probe!($enter { pid: $context.tid, uid: $context.uid, $($field: $value),* });
        let $answer = $operation;
        probe!($exit { $($after: $result),* });
        $answer
    }};
}

impl<F: Filesystem<Interruption = Cancel>> Filesystem for Probed<F> {
    type Interruption = Cancel;

    fn silent_for(&self) -> Option<Duration> {
        self.inner.silent_for()
    }

    fn lookup(&self, context: &Asked<'_>, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        told!(context, NfsLookupEnter { dir: self.fileid(parent), name: name }
            NfsLookupExit { dir: self.fileid(parent), name: name, fileid: found(&answer).0, error: found(&answer).1 }
            |answer| self.inner.lookup(context, parent, name))
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        self.inner.forget(node, lookups);
    }

    fn getattr(&self, context: &Asked<'_>, node: NodeId, fh: Option<FuseFh>) -> Result<Stat, Errno> {
        told!(context, NfsGetattrEnter { fileid: self.fileid(node) }
            NfsGetattrExit { fileid: self.fileid(node), size: size(&answer), error: error(&answer) }
            |answer| self.inner.getattr(context, node, fh))
    }

    fn setattr(&self, context: &Asked<'_>, node: NodeId, set: &SetAttributes) -> Result<Stat, Errno> {
        told!(context, NfsSetattrEnter { fileid: self.fileid(node) }
            NfsSetattrExit { fileid: self.fileid(node), size: size(&answer), error: error(&answer) }
            |answer| self.inner.setattr(context, node, set))
    }

    fn readlink(&self, context: &Asked<'_>, node: NodeId, target: &mut Vec<u8>) -> Result<(), Errno> {
        told!(context, NfsReadlinkEnter { fileid: self.fileid(node) }
            NfsReadlinkExit { fileid: self.fileid(node), target: &target[..], error: error(&answer) }
            |answer| self.inner.readlink(context, node, target))
    }

    fn symlink(
        &self,
        context: &Asked<'_>,
        parent: NodeId,
        name: &[u8],
        target: &[u8],
    ) -> Result<Entry, Errno> {
        told!(context, NfsSymlinkEnter { dir: self.fileid(parent), name: name, target: target }
            NfsSymlinkExit { dir: self.fileid(parent), name: name, fileid: found(&answer).0, error: error(&answer) }
            |answer| self.inner.symlink(context, parent, name, target))
    }

    fn mknod(&self, context: &Asked<'_>, parent: NodeId, name: &[u8], new: &NewNode) -> Result<Entry, Errno> {
        told!(context, NfsMknodEnter { dir: self.fileid(parent), name: name, mode: new.mode }
            NfsMknodExit { dir: self.fileid(parent), name: name, fileid: found(&answer).0, error: error(&answer) }
            |answer| self.inner.mknod(context, parent, name, new))
    }

    fn mkdir(&self, context: &Asked<'_>, parent: NodeId, name: &[u8], mode: u32) -> Result<Entry, Errno> {
        told!(context, NfsMkdirEnter { dir: self.fileid(parent), name: name, mode: mode }
            NfsMkdirExit { dir: self.fileid(parent), name: name, fileid: found(&answer).0, error: error(&answer) }
            |answer| self.inner.mkdir(context, parent, name, mode))
    }

    fn unlink(&self, context: &Asked<'_>, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        told!(context, NfsUnlinkEnter { dir: self.fileid(parent), name: name }
            NfsUnlinkExit { dir: self.fileid(parent), name: name, error: error(&answer) }
            |answer| self.inner.unlink(context, parent, name))
    }

    fn rmdir(&self, context: &Asked<'_>, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        told!(context, NfsRmdirEnter { dir: self.fileid(parent), name: name }
            NfsRmdirExit { dir: self.fileid(parent), name: name, error: error(&answer) }
            |answer| self.inner.rmdir(context, parent, name))
    }

    fn rename(
        &self,
        context: &Asked<'_>,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
        flags: u32,
    ) -> Result<(), Errno> {
        told!(context, NfsRenameEnter { dir: self.fileid(from.0), name: from.1, new_dir: self.fileid(to.0), new_name: to.1 }
            NfsRenameExit { dir: self.fileid(from.0), name: from.1, new_dir: self.fileid(to.0), new_name: to.1, error: error(&answer) }
            |answer| self.inner.rename(context, from, to, flags))
    }

    fn link(&self, context: &Asked<'_>, node: NodeId, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        told!(context, NfsLinkEnter { fileid: self.fileid(node), dir: self.fileid(parent), name: name }
            NfsLinkExit { fileid: self.fileid(node), dir: self.fileid(parent), name: name, error: error(&answer) }
            |answer| self.inner.link(context, node, parent, name))
    }

    fn open(&self, context: &Asked<'_>, node: NodeId, open: &Open) -> Result<Opened, Errno> {
        told!(context, NfsOpenEnter { fileid: self.fileid(node), flags: open.flags }
            NfsOpenExit { fileid: self.fileid(node), flags: open.flags, error: error(&answer) }
            |answer| self.inner.open(context, node, open))
    }

    fn create(
        &self,
        context: &Asked<'_>,
        parent: NodeId,
        name: &[u8],
        create: &Create,
    ) -> Result<(Entry, Opened), Errno> {
        told!(context, NfsCreateEnter { dir: self.fileid(parent), name: name, flags: create.flags, mode: create.mode }
            NfsCreateExit {
                dir: self.fileid(parent),
                name: name,
                fileid: answer.as_ref().map_or(0, |(made, _)| made.attributes.inode),
                error: error(&answer)
            }
            |answer| self.inner.create(context, parent, name, create))
    }

    fn read(&self, context: &Asked<'_>, node: NodeId, read: &Read, reply: &ReadReply) -> Result<(), Errno> {
        told!(context, NfsReadEnter { fileid: self.fileid(node), offset: read.offset, count: read.size }
            NfsReadExit { fileid: self.fileid(node), offset: read.offset, res: reply.sent_bytes(), error: error(&answer) }
            |answer| self.inner.read(context, node, read, reply))
    }

    fn write(&self, context: &Asked<'_>, node: NodeId, write: &Write, data: &[u8]) -> Result<u32, Errno> {
        told!(context, NfsWriteEnter { fileid: self.fileid(node), offset: write.offset, count: data.len() }
            NfsWriteExit {
                fileid: self.fileid(node),
                offset: write.offset,
                res: answer.as_ref().copied().unwrap_or(0),
                error: error(&answer)
            }
            |answer| self.inner.write(context, node, write, data))
    }

    fn statfs(&self, context: &Asked<'_>, node: NodeId) -> Result<FileSystemSizes, Errno> {
        told!(context, NfsStatfsEnter { fileid: self.fileid(node) }
            NfsStatfsExit { fileid: self.fileid(node), error: error(&answer) }
            |answer| self.inner.statfs(context, node))
    }

    fn flush(&self, context: &Asked<'_>, node: NodeId, fh: FuseFh, owner: u64) -> Result<(), Errno> {
        told!(context, NfsFlushEnter { fileid: self.fileid(node) }
            NfsFlushExit { fileid: self.fileid(node), error: error(&answer) }
            |answer| self.inner.flush(context, node, fh, owner))
    }

    fn release(&self, context: &Asked<'_>, node: NodeId, release: &Release) {
        self.inner.release(context, node, release);
    }

    fn fsync(&self, context: &Asked<'_>, node: NodeId, fh: FuseFh, data_only: bool) -> Result<(), Errno> {
        told!(context, NfsFsyncEnter { fileid: self.fileid(node) }
            NfsFsyncExit { fileid: self.fileid(node), error: error(&answer) }
            |answer| self.inner.fsync(context, node, fh, data_only))
    }

    fn opendir(&self, context: &Asked<'_>, node: NodeId, flags: u32) -> Result<Opened, Errno> {
        told!(context, NfsOpendirEnter { dir: self.fileid(node) }
            NfsOpendirExit { dir: self.fileid(node), error: error(&answer) }
            |answer| self.inner.opendir(context, node, flags))
    }

    fn readdir(
        &self,
        context: &Asked<'_>,
        node: NodeId,
        (fh, offset): (FuseFh, u64),
        listing: &mut Listing<'_>,
    ) -> Result<(), Errno> {
        told!(context, NfsReaddirEnter { dir: self.fileid(node), cookie: offset, plus: listing.is_plus() }
            NfsReaddirExit { dir: self.fileid(node), cookie: offset, entries: listing.names().count(), error: error(&answer) }
            |answer| self.inner.readdir(context, node, (fh, offset), listing))
    }

    fn releasedir(&self, context: &Asked<'_>, node: NodeId, fh: FuseFh) {
        self.inner.releasedir(context, node, fh);
    }

    fn fsyncdir(&self, context: &Asked<'_>, node: NodeId, fh: FuseFh) -> Result<(), Errno> {
        self.inner.fsyncdir(context, node, fh)
    }

    fn access(&self, context: &Asked<'_>, node: NodeId, mask: u32) -> Result<(), Errno> {
        told!(context, NfsAccessEnter { fileid: self.fileid(node), mask: mask }
            NfsAccessExit {
                fileid: self.fileid(node),
                mask: mask,
                permitted: if answer.is_ok() { mask } else { 0 },
                error: error(&answer)
            }
            |answer| self.inner.access(context, node, mask))
    }
}
