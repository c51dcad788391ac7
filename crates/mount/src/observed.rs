//! The bridge, with each operation observed at its start and at its end: by tracepoints, and by an
//! explanation if one is in progress ([`crate::explain`]).
//!
//! Invariant: observers do not change operations, and change the reply only by setting its timeouts
//! to zero, while an explanation wants the kernel to ask again each time.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use curt_client::{InodeEventFields, InodeId, Superblock, trace_enter, trace_exit};
use curt_fuse::{
    AttrOut, CreateIn, DirentBuffer, EntryOut, Filesystem, FuseContext, FuseFh, LkIn, LockRange, MknodIn,
    NodeId, OpenIn, OpenOut, ReadIn, ReadReply, ReleaseIn, SetattrIn, SetlkReply, StatfsOut, WriteIn,
};
use curt_observe::probe;
use rustix::io::Errno;

use crate::bridge::Bridge;
use crate::explain::{ExplainedOperation, Explainer};

/// The bridge of a client, and the observers of its operations.
pub struct ObservedFilesystem {
    bridge: Arc<Bridge>,
    client: Arc<Superblock>,
    explainer: Arc<Explainer>,
}

impl ObservedFilesystem {
    /// Observes the operations of `bridge`, which uses `client`.
    #[must_use]
    pub const fn new(bridge: Arc<Bridge>, client: Arc<Superblock>, explainer: Arc<Explainer>) -> Self {
        Self { bridge, client, explainer }
    }

    /// Performs an operation; also returns whether its reply may have timeouts.
    fn observe<T>(
        &self,
        context: &FuseContext<'_>,
        operation: &FuseOperation<'_>,
        perform: impl FnOnce(&Bridge) -> Result<T, Errno>,
        answer: impl for<'t> FnOnce(&'t T) -> FuseOperationReply<'t>,
    ) -> (Result<T, Errno>, bool) {
        let explained = self.begin(context, operation);
        context.mark_received();
        let promises = explained.is_none();
        let result = perform(&self.bridge);
        let outcome = FuseOperationResult(result.as_ref().map(answer).map_err(|errno| *errno));
        self.end(operation, &outcome, explained);
        (result, promises)
    }

    fn begin(&self, context: &FuseContext<'_>, operation: &FuseOperation<'_>) -> Option<ExplainedOperation> {
        self.trace_begin(context, operation);
        let is_explaining = self.explainer.is_on.load(Relaxed);
        if is_explaining { self.explainer.enter(context, operation) } else { None }
    }

    /// An operation has ended with this outcome. (The kernel may have the data of a READ already.)
    fn end(
        &self,
        operation: &FuseOperation<'_>,
        outcome: &FuseOperationResult<'_>,
        explained: Option<ExplainedOperation>,
    ) {
        if let Some(explained) = explained {
            explained.end(operation, outcome);
        }
        self.trace_end(operation, outcome);
    }
}

const fn done<T>(_: &T) -> FuseOperationReply<'_> {
    FuseOperationReply::Done
}

fn at_once(entry: EntryOut) -> EntryOut {
    entry.without_lifetimes()
}

const fn stat_at_once(stat: AttrOut) -> AttrOut {
    AttrOut { valid: Duration::ZERO, ..stat }
}

/// Defines methods that pass an operation on: name, arguments, the operation as observers see it,
/// the result, and what observers see of it. `withhold` sets the timeouts of a result to zero.
macro_rules! observed_methods {
    ($($method:ident($($argument:ident: $type:ty),*) as $operation:expr
        => $result:ty, $answer:expr $(, withhold $withhold:expr)?;)*) => {$(
        fn $method(&self, context: &FuseContext<'_>, $($argument: $type),*) -> Result<$result, Errno> {
            let perform = |bridge: &Bridge| bridge.$method(context, $($argument),*);
            let observed = self.observe(context, &$operation, perform, $answer);
            $(if let (Ok(result), false) = observed {
                return Ok($withhold(result));
            })?
            observed.0
        }
    )*};
}

impl Filesystem for ObservedFilesystem {
    observed_methods! {
        lookup(parent: NodeId, name: &[u8]) as FuseOperation::Lookup((parent, name)) => EntryOut, |entry| FuseOperationReply::Entry(entry), withhold at_once;
        getattr(node: NodeId, fh: Option<FuseFh>) as FuseOperation::Getattr(node) => AttrOut, |stat| FuseOperationReply::Stat(stat), withhold stat_at_once;
        setattr(node: NodeId, set: &SetattrIn) as FuseOperation::Setattr(node, set) => AttrOut, |stat| FuseOperationReply::Stat(stat), withhold stat_at_once;
        symlink(parent: NodeId, name: &[u8], target: &[u8]) as FuseOperation::Symlink((parent, name), target)
            => EntryOut, |entry| FuseOperationReply::Entry(entry), withhold at_once;
        mknod(parent: NodeId, name: &[u8], new: &MknodIn) as FuseOperation::Mknod((parent, name), new)
            => EntryOut, |entry| FuseOperationReply::Entry(entry), withhold at_once;
        mkdir(parent: NodeId, name: &[u8], mode: u32) as FuseOperation::Mkdir((parent, name), mode)
            => EntryOut, |entry| FuseOperationReply::Entry(entry), withhold at_once;
        unlink(parent: NodeId, name: &[u8]) as FuseOperation::Unlink((parent, name)) => (), done;
        rmdir(parent: NodeId, name: &[u8]) as FuseOperation::Rmdir((parent, name)) => (), done;
        rename(parent: NodeId, name: &[u8], new_parent: NodeId, new_name: &[u8], flags: u32)
            as FuseOperation::Rename((parent, name), (new_parent, new_name)) => (), done;
        link(node: NodeId, parent: NodeId, name: &[u8]) as FuseOperation::Link(node, (parent, name))
            => EntryOut, |entry| FuseOperationReply::Entry(entry), withhold at_once;
        open(node: NodeId, open: &OpenIn) as FuseOperation::Open(node, open) => OpenOut, |opened| FuseOperationReply::Opened(opened);
        create(parent: NodeId, name: &[u8], create: &CreateIn) as FuseOperation::Create((parent, name), create)
            => (EntryOut, OpenOut), |(entry, opened)| FuseOperationReply::Created(entry, opened),
            withhold |(entry, opened): (EntryOut, OpenOut)| (at_once(entry), opened);
        read(node: NodeId, read: &ReadIn, reply: &ReadReply) as FuseOperation::Read(node, read)
            => (), |()| FuseOperationReply::Bytes(reply.sent_bytes());
        write(node: NodeId, write: &WriteIn, data: &[u8]) as FuseOperation::Write(node, write, data.len())
            => u32, |bytes| FuseOperationReply::Bytes(usize::try_from(*bytes).unwrap_or(usize::MAX));
        statfs(node: NodeId) as FuseOperation::Statfs(node) => StatfsOut, done;
        flush(node: NodeId, fh: FuseFh, lock_owner: u64) as FuseOperation::Flush(node) => (), done;
        fsync(node: NodeId, fh: FuseFh, data_only: bool) as FuseOperation::Fsync(node) => (), done;
        opendir(node: NodeId, flags: u32) as FuseOperation::Opendir(node) => OpenOut, |opened| FuseOperationReply::Opened(opened);
        fsyncdir(node: NodeId, fh: FuseFh) as FuseOperation::Fsyncdir(node) => (), done;
        access(node: NodeId, mask: u32) as FuseOperation::Access(node, mask) => (), done;
        getlk(node: NodeId, lock: &LkIn) as FuseOperation::Getlk(node) => LockRange, done;
    }

    fn silent_for(&self) -> Option<Duration> {
        self.bridge.silent_for()
    }

    fn refused_lookup(&self, parent: NodeId, name: &[u8], refusal: Errno) -> Errno {
        self.bridge.refused_lookup(parent, name, refusal)
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        self.bridge.forget(node, lookups);
    }

    fn readlink(&self, context: &FuseContext<'_>, node: NodeId, target: &mut Vec<u8>) -> Result<(), Errno> {
        let operation = FuseOperation::Readlink(node);
        let (result, _) = self.observe(
            context,
            &operation,
            move |bridge| {
                bridge.readlink(context, node, target)?;
                Ok(&target[..])
            },
            |target| FuseOperationReply::Target(target),
        );
        result.map(drop)
    }

    /// The observers see the request, and not its result, which may come much later.
    fn setlk(&self, context: &FuseContext<'_>, node: NodeId, lock: &LkIn, wait: bool, reply: SetlkReply) {
        let perform = |bridge: &Bridge| {
            bridge.setlk(context, node, lock, wait, reply);
            Ok(())
        };
        let _ = self.observe(context, &FuseOperation::Setlk(node), perform, done);
    }

    fn release(&self, context: &FuseContext<'_>, node: NodeId, release: &ReleaseIn) {
        let operation = FuseOperation::Release(node, release);
        let explained = self.begin(context, &operation);
        // It marks itself as received, as soon as later requests wait for it where necessary.
        self.bridge.release(context, node, release);
        context.mark_received();
        self.end(&operation, &FuseOperationResult(Ok(FuseOperationReply::Done)), explained);
    }

    fn readdir(
        &self,
        context: &FuseContext<'_>,
        node: NodeId,
        fh: FuseFh,
        offset: u64,
        listing: &mut DirentBuffer<'_>,
    ) -> Result<(), Errno> {
        let operation = FuseOperation::Readdir(node, (fh, offset), listing.is_plus());
        let explained = self.begin(context, &operation);
        context.mark_received();
        if explained.is_some() {
            listing.clear_lifetimes();
        }
        let result = self.bridge.readdir(context, node, fh, offset, listing);
        let outcome = FuseOperationResult(result.map(|()| FuseOperationReply::Listed(listing)));
        self.end(&operation, &outcome, explained);
        result
    }

    fn releasedir(&self, context: &FuseContext<'_>, node: NodeId, fh: FuseFh) {
        let perform = |bridge: &Bridge| {
            bridge.releasedir(context, node, fh);
            Ok(())
        };
        // It has no result.
        let _ = self.observe(context, &FuseOperation::Releasedir(node, fh), perform, done);
    }
}

/// An operation with its arguments, named as the methods of [`Filesystem`]. A name comes with its
/// directory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FuseOperation<'a> {
    Lookup((NodeId, &'a [u8])),
    Getattr(NodeId),
    Setattr(NodeId, &'a SetattrIn),
    Readlink(NodeId),
    Symlink((NodeId, &'a [u8]), &'a [u8]),
    Mknod((NodeId, &'a [u8]), &'a MknodIn),
    Mkdir((NodeId, &'a [u8]), u32),
    Unlink((NodeId, &'a [u8])),
    Rmdir((NodeId, &'a [u8])),
    Rename((NodeId, &'a [u8]), (NodeId, &'a [u8])),
    Link(NodeId, (NodeId, &'a [u8])),
    Open(NodeId, &'a OpenIn),
    Create((NodeId, &'a [u8]), &'a CreateIn),
    Read(NodeId, &'a ReadIn),
    /// WRITE, and its number of bytes.
    Write(NodeId, &'a WriteIn, usize),
    Statfs(NodeId),
    Flush(NodeId),
    Release(NodeId, &'a ReleaseIn),
    Fsync(NodeId),
    Opendir(NodeId),
    /// READDIR or READDIRPLUS: the position, and whether entries are requested, too.
    Readdir(NodeId, (FuseFh, u64), bool),
    Releasedir(NodeId, FuseFh),
    Fsyncdir(NodeId),
    Access(NodeId, u32),
    Getlk(NodeId),
    Setlk(NodeId),
}

impl<'a> FuseOperation<'a> {
    /// The object, or the directory and the name in it.
    pub(crate) const fn place(&self) -> (NodeId, Option<&'a [u8]>) {
        match *self {
            Self::Lookup((parent, name))
            | Self::Symlink((parent, name), _)
            | Self::Mknod((parent, name), _)
            | Self::Mkdir((parent, name), _)
            | Self::Unlink((parent, name))
            | Self::Rmdir((parent, name))
            | Self::Rename((parent, name), _)
            | Self::Link(_, (parent, name))
            | Self::Create((parent, name), _) => (parent, Some(name)),
            Self::Getattr(node)
            | Self::Setattr(node, _)
            | Self::Readlink(node)
            | Self::Open(node, _)
            | Self::Read(node, _)
            | Self::Write(node, ..)
            | Self::Statfs(node)
            | Self::Flush(node)
            | Self::Release(node, _)
            | Self::Fsync(node)
            | Self::Opendir(node)
            | Self::Readdir(node, ..)
            | Self::Releasedir(node, _)
            | Self::Fsyncdir(node)
            | Self::Access(node, _)
            | Self::Getlk(node)
            | Self::Setlk(node) => (node, None),
        }
    }
}

/// The result of a successful operation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FuseOperationReply<'a> {
    /// The entry of a name; without a node: the name does not exist.
    Entry(&'a EntryOut),
    /// Attributes.
    Stat(&'a AttrOut),
    /// A symbolic link's target.
    Target(&'a [u8]),
    /// An open file or directory.
    Opened(&'a OpenOut),
    /// A file that was created and opened.
    Created(&'a EntryOut, &'a OpenOut),
    /// Number of bytes that a READ returned or a WRITE accepted.
    Bytes(usize),
    /// Names.
    Listed(&'a DirentBuffer<'a>),
    /// No further result.
    Done,
}

/// How an operation ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FuseOperationResult<'a>(pub(crate) Result<FuseOperationReply<'a>, Errno>);

impl FuseOperationResult<'_> {
    /// The object of a name, if it was found or created.
    pub(crate) fn entry(&self) -> Option<&EntryOut> {
        match self.0 {
            Ok(FuseOperationReply::Entry(entry) | FuseOperationReply::Created(entry, _))
                if entry.node != NodeId(0) =>
            {
                Some(entry)
            }
            Ok(_) | Err(_) => None,
        }
    }

    /// 0, or the errno. A missing name is an entry without a node, and ENOENT for the program.
    pub(crate) fn errno(&self) -> Option<Errno> {
        match self.0 {
            Ok(FuseOperationReply::Entry(entry)) if entry.node == NodeId(0) => Some(Errno::NOENT),
            Ok(_) => None,
            Err(errno) => Some(errno),
        }
    }
}

/// An event, with its fields.
macro_rules! event {
    ($event:ident: $($field:ident $(: $value:expr)?),*) => {
        probe!($event { $($field $(: $value)?),* })
    };
}

impl ObservedFilesystem {
    /// The common fields of events about an object.
    fn event_fields(&self, node: NodeId) -> InodeEventFields {
        self.client.event_fields(InodeId(node.0))
    }

    /// The file's fileid as programs see it; 0 if unknown.
    fn fileid(&self, node: NodeId) -> u64 {
        let stat = self.client.last_attributes(InodeId(node.0));
        stat.map_or(0, |stat| stat.attributes.fileid)
    }

    /// Emits the event that an operation begins. While the events are disabled, an operation costs
    /// two loads more.
    fn trace_begin(&self, context: &FuseContext<'_>, operation: &FuseOperation<'_>) {
        let (pid, uid) = (context.tid, context.uid);
        match *operation {
            FuseOperation::Lookup((at, name)) => event!(NfsLookupEnter: pid, uid, dir: self.fileid(at), name),
            FuseOperation::Getattr(node) => {
                trace_enter!(self.event_fields(node), NfsGetattrEnter { pid, uid })
            }
            FuseOperation::Setattr(node, _) => {
                trace_enter!(self.event_fields(node), NfsSetattrEnter { pid, uid })
            }
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
            FuseOperation::Fsync(node) => trace_enter!(self.event_fields(node), NfsFsyncEnter { pid, uid }),
            FuseOperation::Opendir(node) => event!(NfsOpendirEnter: pid, uid, dir: self.fileid(node)),
            FuseOperation::Readdir(node, (_, cookie), plus) => {
                event!(NfsReaddirEnter: pid, uid, dir: self.fileid(node), cookie, plus)
            }
            FuseOperation::Access(node, mask) => {
                trace_enter!(self.event_fields(node), NfsAccessEnter { pid, uid, mask })
            }
            // No program waits for the others.
            _ => {}
        }
    }

    /// Emits the event that an operation has ended.
    fn trace_end(&self, operation: &FuseOperation<'_>, outcome: &FuseOperationResult<'_>) {
        let error = outcome.errno().map_or(0, |errno| -errno.raw_os_error());
        match *operation {
            FuseOperation::Lookup((at, name)) => {
                event!(NfsLookupExit: dir: self.fileid(at), name, fileid: found(outcome), error)
            }
            FuseOperation::Getattr(node) => trace_exit!(self.event_fields(node), NfsGetattrExit { error }),
            FuseOperation::Setattr(node, _) => trace_exit!(self.event_fields(node), NfsSetattrExit { error }),
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
            FuseOperation::Fsync(node) => trace_exit!(self.event_fields(node), NfsFsyncExit { error }),
            FuseOperation::Opendir(node) => event!(NfsOpendirExit: dir: self.fileid(node), error),
            FuseOperation::Readdir(node, (_, cookie), _) => {
                event!(NfsReaddirExit: dir: self.fileid(node), cookie, entries: entries(outcome), error)
            }
            FuseOperation::Access(node, mask) => {
                trace_exit!(
                    self.event_fields(node),
                    NfsAccessExit { mask, permitted: if error == 0 { mask } else { 0 }, error }
                )
            }
            _ => {}
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
