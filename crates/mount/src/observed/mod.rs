//! A file system whose operations are observed: an observer is called at the start and at the end
//! of each.
//!
//! All operations of [`Filesystem`] pass their observers here: [`TracepointObserver`], which emits
//! events, and [`crate::explain`]. Invariant: observers do not change operations, and change the
//! reply only by setting its timeouts to zero ([`OperationObserver::withholds_lifetimes`]).

mod operation;
mod tracepoints;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use curt_fuse::{
    AttrOut, CreateIn, DirentBuffer, EntryOut, Filesystem, FuseContext, FuseFh, LkIn, LockRange, MknodIn,
    NodeId, OpenIn, OpenOut, ReadIn, ReadReply, ReleaseIn, SetattrIn, SetlkReply, StatfsOut, WriteIn,
};
use rustix::io::Errno;

pub use operation::{FuseCaller, FuseOperation, FuseOperationReply, FuseOperationResult};
pub use tracepoints::TracepointObserver;

/// An observer of operations. Called on the thread that performs the operation, which waits
/// meanwhile.
pub trait OperationObserver: Send + Sync + 'static {
    /// What it knows of an operation in progress.
    type Seen;

    /// An operation begins.
    fn begins(&self, caller: &FuseCaller, operation: &FuseOperation<'_>) -> Self::Seen;

    /// It has ended with this outcome. (The kernel may have the data of a READ already.)
    fn ended(
        &self,
        caller: &FuseCaller,
        operation: &FuseOperation<'_>,
        outcome: &FuseOperationResult<'_>,
        seen: Self::Seen,
    );

    /// Whether answers must not carry lifetimes, so that the kernel asks again each time.
    fn withholds_lifetimes(_: &Self::Seen) -> bool {
        false
    }
}

/// Both observe; the first sees an operation begin first and end last.
impl<A: OperationObserver, B: OperationObserver> OperationObserver for (A, B) {
    type Seen = (A::Seen, B::Seen);

    fn begins(&self, caller: &FuseCaller, operation: &FuseOperation<'_>) -> Self::Seen {
        let first = self.0.begins(caller, operation);
        (first, self.1.begins(caller, operation))
    }

    fn ended(
        &self,
        caller: &FuseCaller,
        operation: &FuseOperation<'_>,
        outcome: &FuseOperationResult<'_>,
        seen: Self::Seen,
    ) {
        self.1.ended(caller, operation, outcome, seen.1);
        self.0.ended(caller, operation, outcome, seen.0);
    }

    fn withholds_lifetimes(seen: &Self::Seen) -> bool {
        A::withholds_lifetimes(&seen.0) || B::withholds_lifetimes(&seen.1)
    }
}

/// A file system that is observed by `O`.
pub struct ObservedFilesystem<F, O> {
    inner: Arc<F>,
    observer: O,
}

impl<F, O> fmt::Debug for ObservedFilesystem<F, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObservedFilesystem").finish_non_exhaustive()
    }
}

impl<F: Filesystem, O: OperationObserver> ObservedFilesystem<F, O> {
    /// Passes all operations to `inner`, observed by `observer`.
    #[must_use]
    pub const fn new(inner: Arc<F>, observer: O) -> Self {
        Self { inner, observer }
    }

    /// Performs an operation; also returns whether its reply may have timeouts.
    fn observe<T>(
        &self,
        context: &ObservedContext<'_, F>,
        operation: &FuseOperation<'_>,
        perform: impl FnOnce(&F) -> Result<T, Errno>,
        answer: impl for<'t> FnOnce(&'t T) -> FuseOperationReply<'t>,
    ) -> (Result<T, Errno>, bool) {
        let caller = caller(context);
        let seen = self.observer.begins(&caller, operation);
        context.mark_received();
        let promises = !O::withholds_lifetimes(&seen);
        let result = perform(&self.inner);
        let outcome = FuseOperationResult(result.as_ref().map(answer).map_err(|errno| *errno));
        self.observer.ended(&caller, operation, &outcome, seen);
        (result, promises)
    }
}

const fn caller<I>(context: &FuseContext<'_, I>) -> FuseCaller {
    FuseCaller { thread: context.tid, uid: context.uid, gid: context.gid }
}

/// The context of a call of `F`.
type ObservedContext<'a, F> = FuseContext<'a, <F as Filesystem>::Interruption>;

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
        fn $method(&self, context: &ObservedContext<'_, F>, $($argument: $type),*) -> Result<$result, Errno> {
            let perform = |inner: &F| inner.$method(context, $($argument),*);
            let observed = self.observe(context, &$operation, perform, $answer);
            $(if let (Ok(result), false) = observed {
                return Ok($withhold(result));
            })?
            observed.0
        }
    )*};
}

impl<F: Filesystem, O: OperationObserver> Filesystem for ObservedFilesystem<F, O> {
    type Interruption = F::Interruption;

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
        self.inner.silent_for()
    }

    fn refused_lookup(&self, parent: NodeId, name: &[u8], refusal: Errno) -> Errno {
        self.inner.refused_lookup(parent, name, refusal)
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        self.inner.forget(node, lookups);
    }

    fn readlink(
        &self,
        context: &ObservedContext<'_, F>,
        node: NodeId,
        target: &mut Vec<u8>,
    ) -> Result<(), Errno> {
        let operation = FuseOperation::Readlink(node);
        let (result, _) = self.observe(
            context,
            &operation,
            move |inner| {
                inner.readlink(context, node, target)?;
                Ok(&target[..])
            },
            |target| FuseOperationReply::Target(target),
        );
        result.map(drop)
    }

    /// The observers see the request, and not its result, which may come much later.
    fn setlk(
        &self,
        context: &ObservedContext<'_, F>,
        node: NodeId,
        lock: &LkIn,
        wait: bool,
        reply: SetlkReply,
    ) {
        let perform = |inner: &F| {
            inner.setlk(context, node, lock, wait, reply);
            Ok(())
        };
        let _ = self.observe(context, &FuseOperation::Setlk(node), perform, done);
    }

    fn release(&self, context: &ObservedContext<'_, F>, node: NodeId, release: &ReleaseIn) {
        let operation = FuseOperation::Release(node, release);
        let caller = caller(context);
        let seen = self.observer.begins(&caller, &operation);
        // It marks itself as received, as soon as later requests wait for it where necessary.
        self.inner.release(context, node, release);
        context.mark_received();
        self.observer.ended(&caller, &operation, &FuseOperationResult(Ok(FuseOperationReply::Done)), seen);
    }

    fn readdir(
        &self,
        context: &ObservedContext<'_, F>,
        node: NodeId,
        fh: FuseFh,
        offset: u64,
        listing: &mut DirentBuffer<'_>,
    ) -> Result<(), Errno> {
        let operation = FuseOperation::Readdir(node, (fh, offset), listing.is_plus());
        let caller = caller(context);
        let seen = self.observer.begins(&caller, &operation);
        context.mark_received();
        if O::withholds_lifetimes(&seen) {
            listing.clear_lifetimes();
        }
        let result = self.inner.readdir(context, node, fh, offset, listing);
        let outcome = FuseOperationResult(result.map(|()| FuseOperationReply::Listed(listing)));
        self.observer.ended(&caller, &operation, &outcome, seen);
        result
    }

    fn releasedir(&self, context: &ObservedContext<'_, F>, node: NodeId, fh: FuseFh) {
        let perform = |inner: &F| {
            inner.releasedir(context, node, fh);
            Ok(())
        };
        // It has no result.
        let _ = self.observe(context, &FuseOperation::Releasedir(node, fh), perform, done);
    }
}
