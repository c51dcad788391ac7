//! A file system whose operations are observed: an observer is called when each begins and when it has ended.
//!
//! Owns the one place where every operation of [`Filesystem`] passes its observers: [`Probes`], which emits events, and
//! [`crate::explain`]. Decides nothing. Invariant: observers do not change what is performed, and change the answer only by
//! denying the kernel lifetimes for its caches ([`Observer::withholds_promises`]).

mod observer;
mod operation;
mod probes;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use curt_fuse::{
    Context, Create, Entry, FileSystemSizes, Filesystem, FuseFh, Listing, Lock, LockRange, NewNode, NodeId,
    Open, Opened, Read, ReadReply, Release, SetAttributes, Stat, Write,
};
use rustix::io::Errno;

pub use observer::Observer;
pub use operation::{Answer, Asker, Operation, Outcome};
pub use probes::Probes;

/// A file system that is observed by `O`.
pub struct Observed<F, O> {
    inner: Arc<F>,
    observer: O,
}

impl<F, O> fmt::Debug for Observed<F, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observed").finish_non_exhaustive()
    }
}

impl<F: Filesystem, O: Observer> Observed<F, O> {
    /// Passes every operation on to `inner`, observed by `observer`.
    #[must_use]
    pub const fn new(inner: Arc<F>, observer: O) -> Self {
        Self { inner, observer }
    }

    /// Performs an operation; also returns whether its answer may carry lifetimes.
    fn observe<T>(
        &self,
        context: &Asked<'_, F>,
        operation: &Operation<'_>,
        perform: impl FnOnce(&F) -> Result<T, Errno>,
        answer: impl for<'t> FnOnce(&'t T) -> Answer<'t>,
    ) -> (Result<T, Errno>, bool) {
        let asker = asker(context);
        let seen = self.observer.begins(&asker, operation);
        context.arrived();
        let promises = !O::withholds_promises(&seen);
        let result = perform(&self.inner);
        let outcome = Outcome(result.as_ref().map(answer).map_err(|errno| *errno));
        self.observer.ended(&asker, operation, &outcome, seen);
        (result, promises)
    }

    /// Operations that are answered with an object.
    fn entry(
        &self,
        context: &Asked<'_, F>,
        operation: &Operation<'_>,
        perform: impl FnOnce(&F) -> Result<Entry, Errno>,
    ) -> Result<Entry, Errno> {
        match self.observe(context, operation, perform, |entry| Answer::Entry(entry)) {
            (Ok(entry), false) => Ok(entry.unpromised()),
            (result, _) => result,
        }
    }

    /// Operations that are answered with attributes.
    fn stat(
        &self,
        context: &Asked<'_, F>,
        operation: &Operation<'_>,
        perform: impl FnOnce(&F) -> Result<Stat, Errno>,
    ) -> Result<Stat, Errno> {
        let at_once = |stat| Stat {
            valid: Duration::ZERO,
            ..stat
        };
        match self.observe(context, operation, perform, |stat| Answer::Stat(stat)) {
            (Ok(stat), false) => Ok(at_once(stat)),
            (result, _) => result,
        }
    }

    /// Operations that are answered with something open.
    fn opened(
        &self,
        context: &Asked<'_, F>,
        operation: &Operation<'_>,
        perform: impl FnOnce(&F) -> Result<Opened, Errno>,
    ) -> Result<Opened, Errno> {
        self.observe(context, operation, perform, |opened| Answer::Opened(opened))
            .0
    }

    /// Operations with another answer, or none.
    fn done<T>(
        &self,
        context: &Asked<'_, F>,
        operation: &Operation<'_>,
        perform: impl FnOnce(&F) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        self.observe(context, operation, perform, |_| Answer::Done).0
    }
}

const fn asker<I>(context: &Context<'_, I>) -> Asker {
    Asker {
        thread: context.tid,
        uid: context.uid,
        gid: context.gid,
    }
}

/// Who asks `F` for something.
type Asked<'a, F> = Context<'a, <F as Filesystem>::Interruption>;

impl<F: Filesystem, O: Observer> Filesystem for Observed<F, O> {
    type Interruption = F::Interruption;

    fn silent_for(&self) -> Option<Duration> {
        self.inner.silent_for()
    }

    fn lookup(&self, context: &Asked<'_, F>, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        let operation = Operation::Lookup((parent, name));
        self.entry(context, &operation, |inner| inner.lookup(context, parent, name))
    }

    fn refused_lookup(&self, parent: NodeId, name: &[u8], refusal: Errno) -> Errno {
        self.inner.refused_lookup(parent, name, refusal)
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        self.inner.forget(node, lookups);
    }

    fn getattr(&self, context: &Asked<'_, F>, node: NodeId, fh: Option<FuseFh>) -> Result<Stat, Errno> {
        let operation = Operation::Getattr(node);
        self.stat(context, &operation, |inner| inner.getattr(context, node, fh))
    }

    fn setattr(&self, context: &Asked<'_, F>, node: NodeId, set: &SetAttributes) -> Result<Stat, Errno> {
        let operation = Operation::Setattr(node, set);
        self.stat(context, &operation, |inner| inner.setattr(context, node, set))
    }

    fn readlink(&self, context: &Asked<'_, F>, node: NodeId, target: &mut Vec<u8>) -> Result<(), Errno> {
        let operation = Operation::Readlink(node);
        let (result, _) = self.observe(
            context,
            &operation,
            move |inner| {
                inner.readlink(context, node, target)?;
                Ok(&target[..])
            },
            |target| Answer::Target(target),
        );
        result.map(drop)
    }

    fn symlink(
        &self,
        context: &Asked<'_, F>,
        parent: NodeId,
        name: &[u8],
        target: &[u8],
    ) -> Result<Entry, Errno> {
        let operation = Operation::Symlink((parent, name), target);
        self.entry(context, &operation, |inner| {
            inner.symlink(context, parent, name, target)
        })
    }

    fn mknod(
        &self,
        context: &Asked<'_, F>,
        parent: NodeId,
        name: &[u8],
        new: &NewNode,
    ) -> Result<Entry, Errno> {
        let operation = Operation::Mknod((parent, name), new);
        self.entry(context, &operation, |inner| {
            inner.mknod(context, parent, name, new)
        })
    }

    fn mkdir(&self, context: &Asked<'_, F>, parent: NodeId, name: &[u8], mode: u32) -> Result<Entry, Errno> {
        let operation = Operation::Mkdir((parent, name), mode);
        self.entry(context, &operation, |inner| {
            inner.mkdir(context, parent, name, mode)
        })
    }

    fn unlink(&self, context: &Asked<'_, F>, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        let operation = Operation::Unlink((parent, name));
        self.done(context, &operation, |inner| inner.unlink(context, parent, name))
    }

    fn rmdir(&self, context: &Asked<'_, F>, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        let operation = Operation::Rmdir((parent, name));
        self.done(context, &operation, |inner| inner.rmdir(context, parent, name))
    }

    fn rename(
        &self,
        context: &Asked<'_, F>,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
        flags: u32,
    ) -> Result<(), Errno> {
        let operation = Operation::Rename(from, to);
        self.done(context, &operation, |inner| {
            inner.rename(context, from, to, flags)
        })
    }

    fn link(
        &self,
        context: &Asked<'_, F>,
        node: NodeId,
        parent: NodeId,
        name: &[u8],
    ) -> Result<Entry, Errno> {
        let operation = Operation::Link(node, (parent, name));
        self.entry(context, &operation, |inner| {
            inner.link(context, node, parent, name)
        })
    }

    fn open(&self, context: &Asked<'_, F>, node: NodeId, open: &Open) -> Result<Opened, Errno> {
        let operation = Operation::Open(node, open);
        self.opened(context, &operation, |inner| inner.open(context, node, open))
    }

    fn create(
        &self,
        context: &Asked<'_, F>,
        parent: NodeId,
        name: &[u8],
        create: &Create,
    ) -> Result<(Entry, Opened), Errno> {
        let operation = Operation::Create((parent, name), create);
        let perform = |inner: &F| inner.create(context, parent, name, create);
        match self.observe(context, &operation, perform, |made| {
            Answer::Created(&made.0, &made.1)
        }) {
            (Ok((entry, opened)), false) => Ok((entry.unpromised(), opened)),
            (result, _) => result,
        }
    }

    fn read(
        &self,
        context: &Asked<'_, F>,
        node: NodeId,
        read: &Read,
        reply: &ReadReply,
    ) -> Result<(), Errno> {
        let operation = Operation::Read(node, read);
        let perform = |inner: &F| inner.read(context, node, read, reply);
        self.observe(context, &operation, perform, |()| {
            Answer::Bytes(reply.sent_bytes())
        })
        .0
    }

    fn write(&self, context: &Asked<'_, F>, node: NodeId, write: &Write, data: &[u8]) -> Result<u32, Errno> {
        let operation = Operation::Write(node, write, data.len());
        let perform = |inner: &F| inner.write(context, node, write, data);
        self.observe(context, &operation, perform, |taken| {
            Answer::Bytes(usize::try_from(*taken).unwrap_or(usize::MAX))
        })
        .0
    }

    fn statfs(&self, context: &Asked<'_, F>, node: NodeId) -> Result<FileSystemSizes, Errno> {
        let operation = Operation::Statfs(node);
        self.done(context, &operation, |inner| inner.statfs(context, node))
    }

    fn flush(&self, context: &Asked<'_, F>, node: NodeId, fh: FuseFh, lock_owner: u64) -> Result<(), Errno> {
        let operation = Operation::Flush(node);
        self.done(context, &operation, |inner| {
            inner.flush(context, node, fh, lock_owner)
        })
    }

    fn release(&self, context: &Asked<'_, F>, node: NodeId, release: &Release) {
        let operation = Operation::Release(node, release);
        let asker = asker(context);
        let seen = self.observer.begins(&asker, &operation);
        // It says itself when it has arrived: as soon as those that come later wait for it where they have to.
        self.inner.release(context, node, release);
        context.arrived();
        self.observer
            .ended(&asker, &operation, &Outcome(Ok(Answer::Done)), seen);
    }

    fn fsync(&self, context: &Asked<'_, F>, node: NodeId, fh: FuseFh, data_only: bool) -> Result<(), Errno> {
        let operation = Operation::Fsync(node);
        self.done(context, &operation, |inner| {
            inner.fsync(context, node, fh, data_only)
        })
    }

    fn opendir(&self, context: &Asked<'_, F>, node: NodeId, flags: u32) -> Result<Opened, Errno> {
        let operation = Operation::Opendir(node);
        self.opened(context, &operation, |inner| inner.opendir(context, node, flags))
    }

    fn readdir(
        &self,
        context: &Asked<'_, F>,
        node: NodeId,
        position: (FuseFh, u64),
        listing: &mut Listing<'_>,
    ) -> Result<(), Errno> {
        let operation = Operation::Readdir(node, position, listing.is_plus());
        let asker = asker(context);
        let seen = self.observer.begins(&asker, &operation);
        context.arrived();
        if O::withholds_promises(&seen) {
            listing.promise_nothing();
        }
        let result = self.inner.readdir(context, node, position, listing);
        let outcome = Outcome(result.map(|()| Answer::Listed(listing)));
        self.observer.ended(&asker, &operation, &outcome, seen);
        result
    }

    fn releasedir(&self, context: &Asked<'_, F>, node: NodeId, fh: FuseFh) {
        let perform = |inner: &F| {
            inner.releasedir(context, node, fh);
            Ok(())
        };
        // It has no answer.
        let _ = self.done(context, &Operation::Releasedir(node, fh), perform);
    }

    fn fsyncdir(&self, context: &Asked<'_, F>, node: NodeId, fh: FuseFh) -> Result<(), Errno> {
        let operation = Operation::Fsyncdir(node);
        self.done(context, &operation, |inner| inner.fsyncdir(context, node, fh))
    }

    fn access(&self, context: &Asked<'_, F>, node: NodeId, mask: u32) -> Result<(), Errno> {
        let operation = Operation::Access(node, mask);
        self.done(context, &operation, |inner| inner.access(context, node, mask))
    }

    fn getlk(&self, context: &Asked<'_, F>, node: NodeId, lock: &Lock) -> Result<LockRange, Errno> {
        let operation = Operation::Getlk(node);
        self.done(context, &operation, |inner| inner.getlk(context, node, lock))
    }

    fn setlk(&self, context: &Asked<'_, F>, node: NodeId, lock: &Lock, wait: bool) -> Result<(), Errno> {
        let operation = Operation::Setlk(node);
        self.done(context, &operation, |inner| {
            inner.setlk(context, node, lock, wait)
        })
    }
}
