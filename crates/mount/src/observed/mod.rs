//! A file system whose operations are observed: an observer is called when each begins and when it
//! has ended.
//!
//! Owns the one place where every operation of [`Filesystem`] passes its observers:
//! [`TracepointObserver`], which emits events, and [`crate::explain`]. Decides nothing. Invariant:
//! observers do not change what is performed, and change the answer only by denying the kernel
//! lifetimes for its caches ([`OperationObserver::withholds_lifetimes`]).

mod observer;
mod operation;
mod tracepoints;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use curt_fuse::{
    AttrOut, CreateIn, DirentBuffer, EntryOut, Filesystem, FuseContext, FuseFh, LkIn, LockRange, MknodIn,
    NodeId, OpenIn, OpenOut, ReadIn, ReadReply, ReleaseIn, SetattrIn, StatfsOut, WriteIn,
};
use rustix::io::Errno;

pub use observer::OperationObserver;
pub use operation::{FuseCaller, FuseOperation, FuseOperationReply, FuseOperationResult};
pub use tracepoints::TracepointObserver;

/// A file system that is observed by `O`.
pub struct ObservedFilesystem<F, O> {
    inner: Arc<F>,
    observer: O,
}

impl<F, O> fmt::Debug for ObservedFilesystem<F, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observed").finish_non_exhaustive()
    }
}

impl<F: Filesystem, O: OperationObserver> ObservedFilesystem<F, O> {
    /// Passes every operation on to `inner`, observed by `observer`.
    #[must_use]
    pub const fn new(inner: Arc<F>, observer: O) -> Self {
        Self { inner, observer }
    }

    /// Performs an operation; also returns whether its answer may carry lifetimes.
    fn observe<T>(
        &self,
        context: &ObservedContext<'_, F>,
        operation: &FuseOperation<'_>,
        perform: impl FnOnce(&F) -> Result<T, Errno>,
        answer: impl for<'t> FnOnce(&'t T) -> FuseOperationReply<'t>,
    ) -> (Result<T, Errno>, bool) {
        let asker = asker(context);
        let seen = self.observer.begins(&asker, operation);
        context.mark_received();
        let promises = !O::withholds_lifetimes(&seen);
        let result = perform(&self.inner);
        let outcome = FuseOperationResult(result.as_ref().map(answer).map_err(|errno| *errno));
        self.observer.ended(&asker, operation, &outcome, seen);
        (result, promises)
    }

    /// Operations that are answered with an object.
    fn entry(
        &self,
        context: &ObservedContext<'_, F>,
        operation: &FuseOperation<'_>,
        perform: impl FnOnce(&F) -> Result<EntryOut, Errno>,
    ) -> Result<EntryOut, Errno> {
        match self.observe(context, operation, perform, |entry| {
            FuseOperationReply::Entry(entry)
        }) {
            (Ok(entry), false) => Ok(entry.without_lifetimes()),
            (result, _) => result,
        }
    }

    /// Operations that are answered with attributes.
    fn stat(
        &self,
        context: &ObservedContext<'_, F>,
        operation: &FuseOperation<'_>,
        perform: impl FnOnce(&F) -> Result<AttrOut, Errno>,
    ) -> Result<AttrOut, Errno> {
        let at_once = |stat| AttrOut {
            valid: Duration::ZERO,
            ..stat
        };
        match self.observe(context, operation, perform, |stat| FuseOperationReply::Stat(stat)) {
            (Ok(stat), false) => Ok(at_once(stat)),
            (result, _) => result,
        }
    }

    /// Operations that are answered with something open.
    fn opened(
        &self,
        context: &ObservedContext<'_, F>,
        operation: &FuseOperation<'_>,
        perform: impl FnOnce(&F) -> Result<OpenOut, Errno>,
    ) -> Result<OpenOut, Errno> {
        self.observe(context, operation, perform, |opened| {
            FuseOperationReply::Opened(opened)
        })
        .0
    }

    /// Operations with another answer, or none.
    fn done<T>(
        &self,
        context: &ObservedContext<'_, F>,
        operation: &FuseOperation<'_>,
        perform: impl FnOnce(&F) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        self.observe(context, operation, perform, |_| FuseOperationReply::Done)
            .0
    }
}

const fn asker<I>(context: &FuseContext<'_, I>) -> FuseCaller {
    FuseCaller {
        thread: context.tid,
        uid: context.uid,
        gid: context.gid,
    }
}

/// Who asks `F` for something.
type ObservedContext<'a, F> = FuseContext<'a, <F as Filesystem>::Interruption>;

impl<F: Filesystem, O: OperationObserver> Filesystem for ObservedFilesystem<F, O> {
    type Interruption = F::Interruption;

    fn silent_for(&self) -> Option<Duration> {
        self.inner.silent_for()
    }

    fn lookup(
        &self,
        context: &ObservedContext<'_, F>,
        parent: NodeId,
        name: &[u8],
    ) -> Result<EntryOut, Errno> {
        let operation = FuseOperation::Lookup((parent, name));
        self.entry(context, &operation, |inner| inner.lookup(context, parent, name))
    }

    fn refused_lookup(&self, parent: NodeId, name: &[u8], refusal: Errno) -> Errno {
        self.inner.refused_lookup(parent, name, refusal)
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        self.inner.forget(node, lookups);
    }

    fn getattr(
        &self,
        context: &ObservedContext<'_, F>,
        node: NodeId,
        fh: Option<FuseFh>,
    ) -> Result<AttrOut, Errno> {
        let operation = FuseOperation::Getattr(node);
        self.stat(context, &operation, |inner| inner.getattr(context, node, fh))
    }

    fn setattr(
        &self,
        context: &ObservedContext<'_, F>,
        node: NodeId,
        set: &SetattrIn,
    ) -> Result<AttrOut, Errno> {
        let operation = FuseOperation::Setattr(node, set);
        self.stat(context, &operation, |inner| inner.setattr(context, node, set))
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

    fn symlink(
        &self,
        context: &ObservedContext<'_, F>,
        parent: NodeId,
        name: &[u8],
        target: &[u8],
    ) -> Result<EntryOut, Errno> {
        let operation = FuseOperation::Symlink((parent, name), target);
        self.entry(context, &operation, |inner| {
            inner.symlink(context, parent, name, target)
        })
    }

    fn mknod(
        &self,
        context: &ObservedContext<'_, F>,
        parent: NodeId,
        name: &[u8],
        new: &MknodIn,
    ) -> Result<EntryOut, Errno> {
        let operation = FuseOperation::Mknod((parent, name), new);
        self.entry(context, &operation, |inner| {
            inner.mknod(context, parent, name, new)
        })
    }

    fn mkdir(
        &self,
        context: &ObservedContext<'_, F>,
        parent: NodeId,
        name: &[u8],
        mode: u32,
    ) -> Result<EntryOut, Errno> {
        let operation = FuseOperation::Mkdir((parent, name), mode);
        self.entry(context, &operation, |inner| {
            inner.mkdir(context, parent, name, mode)
        })
    }

    fn unlink(&self, context: &ObservedContext<'_, F>, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        let operation = FuseOperation::Unlink((parent, name));
        self.done(context, &operation, |inner| inner.unlink(context, parent, name))
    }

    fn rmdir(&self, context: &ObservedContext<'_, F>, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        let operation = FuseOperation::Rmdir((parent, name));
        self.done(context, &operation, |inner| inner.rmdir(context, parent, name))
    }

    fn rename(
        &self,
        context: &ObservedContext<'_, F>,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
        flags: u32,
    ) -> Result<(), Errno> {
        let operation = FuseOperation::Rename(from, to);
        self.done(context, &operation, |inner| {
            inner.rename(context, from, to, flags)
        })
    }

    fn link(
        &self,
        context: &ObservedContext<'_, F>,
        node: NodeId,
        parent: NodeId,
        name: &[u8],
    ) -> Result<EntryOut, Errno> {
        let operation = FuseOperation::Link(node, (parent, name));
        self.entry(context, &operation, |inner| {
            inner.link(context, node, parent, name)
        })
    }

    fn open(&self, context: &ObservedContext<'_, F>, node: NodeId, open: &OpenIn) -> Result<OpenOut, Errno> {
        let operation = FuseOperation::Open(node, open);
        self.opened(context, &operation, |inner| inner.open(context, node, open))
    }

    fn create(
        &self,
        context: &ObservedContext<'_, F>,
        parent: NodeId,
        name: &[u8],
        create: &CreateIn,
    ) -> Result<(EntryOut, OpenOut), Errno> {
        let operation = FuseOperation::Create((parent, name), create);
        let perform = |inner: &F| inner.create(context, parent, name, create);
        match self.observe(context, &operation, perform, |made| {
            FuseOperationReply::Created(&made.0, &made.1)
        }) {
            (Ok((entry, opened)), false) => Ok((entry.without_lifetimes(), opened)),
            (result, _) => result,
        }
    }

    fn read(
        &self,
        context: &ObservedContext<'_, F>,
        node: NodeId,
        read: &ReadIn,
        reply: &ReadReply,
    ) -> Result<(), Errno> {
        let operation = FuseOperation::Read(node, read);
        let perform = |inner: &F| inner.read(context, node, read, reply);
        self.observe(context, &operation, perform, |()| {
            FuseOperationReply::Bytes(reply.sent_bytes())
        })
        .0
    }

    fn write(
        &self,
        context: &ObservedContext<'_, F>,
        node: NodeId,
        write: &WriteIn,
        data: &[u8],
    ) -> Result<u32, Errno> {
        let operation = FuseOperation::Write(node, write, data.len());
        let perform = |inner: &F| inner.write(context, node, write, data);
        self.observe(context, &operation, perform, |taken| {
            FuseOperationReply::Bytes(usize::try_from(*taken).unwrap_or(usize::MAX))
        })
        .0
    }

    fn statfs(&self, context: &ObservedContext<'_, F>, node: NodeId) -> Result<StatfsOut, Errno> {
        let operation = FuseOperation::Statfs(node);
        self.done(context, &operation, |inner| inner.statfs(context, node))
    }

    fn flush(
        &self,
        context: &ObservedContext<'_, F>,
        node: NodeId,
        fh: FuseFh,
        lock_owner: u64,
    ) -> Result<(), Errno> {
        let operation = FuseOperation::Flush(node);
        self.done(context, &operation, |inner| {
            inner.flush(context, node, fh, lock_owner)
        })
    }

    fn release(&self, context: &ObservedContext<'_, F>, node: NodeId, release: &ReleaseIn) {
        let operation = FuseOperation::Release(node, release);
        let asker = asker(context);
        let seen = self.observer.begins(&asker, &operation);
        // It says itself when it has arrived: as soon as those that come later wait for it where
        // they have to.
        self.inner.release(context, node, release);
        context.mark_received();
        self.observer.ended(
            &asker,
            &operation,
            &FuseOperationResult(Ok(FuseOperationReply::Done)),
            seen,
        );
    }

    fn fsync(
        &self,
        context: &ObservedContext<'_, F>,
        node: NodeId,
        fh: FuseFh,
        data_only: bool,
    ) -> Result<(), Errno> {
        let operation = FuseOperation::Fsync(node);
        self.done(context, &operation, |inner| {
            inner.fsync(context, node, fh, data_only)
        })
    }

    fn opendir(&self, context: &ObservedContext<'_, F>, node: NodeId, flags: u32) -> Result<OpenOut, Errno> {
        let operation = FuseOperation::Opendir(node);
        self.opened(context, &operation, |inner| inner.opendir(context, node, flags))
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
        let asker = asker(context);
        let seen = self.observer.begins(&asker, &operation);
        context.mark_received();
        if O::withholds_lifetimes(&seen) {
            listing.clear_lifetimes();
        }
        let result = self.inner.readdir(context, node, fh, offset, listing);
        let outcome = FuseOperationResult(result.map(|()| FuseOperationReply::Listed(listing)));
        self.observer.ended(&asker, &operation, &outcome, seen);
        result
    }

    fn releasedir(&self, context: &ObservedContext<'_, F>, node: NodeId, fh: FuseFh) {
        let perform = |inner: &F| {
            inner.releasedir(context, node, fh);
            Ok(())
        };
        // It has no answer.
        let _ = self.done(context, &FuseOperation::Releasedir(node, fh), perform);
    }

    fn fsyncdir(&self, context: &ObservedContext<'_, F>, node: NodeId, fh: FuseFh) -> Result<(), Errno> {
        let operation = FuseOperation::Fsyncdir(node);
        self.done(context, &operation, |inner| inner.fsyncdir(context, node, fh))
    }

    fn access(&self, context: &ObservedContext<'_, F>, node: NodeId, mask: u32) -> Result<(), Errno> {
        let operation = FuseOperation::Access(node, mask);
        self.done(context, &operation, |inner| inner.access(context, node, mask))
    }

    fn getlk(&self, context: &ObservedContext<'_, F>, node: NodeId, lock: &LkIn) -> Result<LockRange, Errno> {
        let operation = FuseOperation::Getlk(node);
        self.done(context, &operation, |inner| inner.getlk(context, node, lock))
    }

    fn setlk(
        &self,
        context: &ObservedContext<'_, F>,
        node: NodeId,
        lock: &LkIn,
        wait: bool,
    ) -> Result<(), Errno> {
        let operation = FuseOperation::Setlk(node);
        self.done(context, &operation, |inner| {
            inner.setlk(context, node, lock, wait)
        })
    }
}
