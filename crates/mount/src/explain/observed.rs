//! A file system whose operations are seen by whoever explains.

use std::sync::Arc;
use std::time::Duration;

use curt_fuse::{
    Context, Create, Entry, FileSystemSizes, Filesystem, FuseFh, Listing, Lock, LockRange, NewNode, NodeId,
    Open, Opened, Read, ReadReply, Release, SetAttributes, Stat, Write,
};
use curt_policy::linux::Request;
use rustix::io::Errno;

use super::Explainer;
use super::explanation::Explanation;
use super::feed::{Happened, How};

/// `inner`, watched while somebody explains.
#[derive(Debug)]
pub struct Observed<F> {
    inner: Arc<F>,
    explainer: Arc<Explainer>,
}

impl<F> Observed<F> {
    /// Passes everything on to `inner`.
    #[must_use]
    pub fn new(inner: Arc<F>, explainer: Arc<Explainer>) -> Self {
        Self { inner, explainer }
    }
}

type Caller = (u32, (u32, u32));

fn caller<I>(context: &Context<'_, I>) -> Caller {
    (context.tid, (context.uid, context.gid))
}

/// O_TRUNC and O_EXCL of open(2).
const TRUNCATE: u32 = 0o1000;
const EXCLUSIVE: u32 = 0o200;
const TYPE: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;

fn at_once(stat: Stat) -> Stat {
    Stat {
        valid: Duration::ZERO,
        ..stat
    }
}

/// Performs an operation under an explanation's eyes: says what happened if it succeeds.
fn watched<'a, T>(
    explanation: &Explanation,
    caller: Caller,
    (node, name): (NodeId, Option<&[u8]>),
    perform: impl FnOnce() -> Result<T, Errno>,
    happened: impl FnOnce(&T) -> Option<Happened<'a>>,
) -> Result<T, Errno> {
    let _entered = explanation.enter(caller.0, node, name);
    let result = perform()?;
    if let Some(happened) = happened(&result) {
        explanation.happened(caller.1, &happened);
    }
    Ok(result)
}

impl<F: Filesystem> Observed<F> {
    /// What makes a name.
    fn made(
        &self,
        context: &Context<'_, F::Interruption>,
        (parent, name): (NodeId, &[u8]),
        request: Request,
        make: impl FnOnce(&F) -> Result<Entry, Errno>,
    ) -> Result<Entry, Errno> {
        let Some(explanation) = self.explainer.present() else {
            return make(&self.inner);
        };
        let made = |entry: &Entry| {
            let object = (entry.node, entry.attributes);
            Some(Happened::Made(request, (parent, name), object, How::default()))
        };
        let at = (parent, Some(name));
        watched(&explanation, caller(context), at, || make(&self.inner), made).map(Entry::unpromised)
    }

    /// What says nothing but that it was done.
    fn done<'a, T>(
        &self,
        context: &Context<'_, F::Interruption>,
        at: (NodeId, Option<&[u8]>),
        perform: impl FnOnce(&F) -> Result<T, Errno>,
        happened: impl FnOnce(&T) -> Option<Happened<'a>>,
    ) -> Result<T, Errno> {
        match self.explainer.present() {
            None => perform(&self.inner),
            Some(explanation) => watched(
                &explanation,
                caller(context),
                at,
                || perform(&self.inner),
                happened,
            ),
        }
    }
}

impl<F: Filesystem> Filesystem for Observed<F> {
    type Interruption = F::Interruption;

    fn silent_for(&self) -> Option<Duration> {
        self.inner.silent_for()
    }

    fn lookup(
        &self,
        context: &Context<'_, Self::Interruption>,
        parent: NodeId,
        name: &[u8],
    ) -> Result<Entry, Errno> {
        let Some(explanation) = self.explainer.present() else {
            return self.inner.lookup(context, parent, name);
        };
        let _entered = explanation.enter(context.tid, parent, Some(name));
        let result = self.inner.lookup(context, parent, name);
        let found = match &result {
            Ok(entry) if entry.node.0 != 0 => Some((entry.node, entry.attributes)),
            Ok(_) | Err(Errno::NOENT) => None,
            Err(_) => return result,
        };
        explanation.happened(caller(context).1, &Happened::Looked(parent, name, found));
        result.map(Entry::unpromised)
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        self.inner.forget(node, lookups);
    }

    fn getattr(
        &self,
        context: &Context<'_, Self::Interruption>,
        node: NodeId,
        fh: Option<FuseFh>,
    ) -> Result<Stat, Errno> {
        let Some(explanation) = self.explainer.present() else {
            return self.inner.getattr(context, node, fh);
        };
        let perform = || self.inner.getattr(context, node, fh);
        let happened = |stat: &Stat| Some(Happened::Stated(node, stat.attributes));
        watched(&explanation, caller(context), (node, None), perform, happened).map(at_once)
    }

    fn setattr(
        &self,
        context: &Context<'_, Self::Interruption>,
        node: NodeId,
        set: &SetAttributes,
    ) -> Result<Stat, Errno> {
        let Some(explanation) = self.explainer.present() else {
            return self.inner.setattr(context, node, set);
        };
        let rights = set.mode.is_some() || set.uid.is_some() || set.gid.is_some();
        let perform = || self.inner.setattr(context, node, set);
        let happened = |stat: &Stat| Some(Happened::Set(node, stat.attributes, rights));
        watched(&explanation, caller(context), (node, None), perform, happened).map(at_once)
    }

    fn readlink(
        &self,
        context: &Context<'_, Self::Interruption>,
        node: NodeId,
        target: &mut Vec<u8>,
    ) -> Result<(), Errno> {
        let perform = |inner: &F| inner.readlink(context, node, target);
        self.done(context, (node, None), perform, |()| {
            Some(Happened::ReadLink(node))
        })
    }

    fn symlink(
        &self,
        context: &Context<'_, Self::Interruption>,
        parent: NodeId,
        name: &[u8],
        target: &[u8],
    ) -> Result<Entry, Errno> {
        self.made(context, (parent, name), Request::CreateLink, |inner| {
            inner.symlink(context, parent, name, target)
        })
    }

    fn mknod(
        &self,
        context: &Context<'_, Self::Interruption>,
        parent: NodeId,
        name: &[u8],
        new: &NewNode,
    ) -> Result<Entry, Errno> {
        let request = match new.mode & TYPE {
            REGULAR | 0 => Request::CreateFile,
            _ => Request::CreateNode,
        };
        self.made(context, (parent, name), request, |inner| {
            inner.mknod(context, parent, name, new)
        })
    }

    fn mkdir(
        &self,
        context: &Context<'_, Self::Interruption>,
        parent: NodeId,
        name: &[u8],
        mode: u32,
    ) -> Result<Entry, Errno> {
        self.made(context, (parent, name), Request::CreateDirectory, |inner| {
            inner.mkdir(context, parent, name, mode)
        })
    }

    fn unlink(
        &self,
        context: &Context<'_, Self::Interruption>,
        parent: NodeId,
        name: &[u8],
    ) -> Result<(), Errno> {
        let perform = |inner: &F| inner.unlink(context, parent, name);
        let happened = |(): &()| Some(Happened::Unlinked(parent, name));
        self.done(context, (parent, Some(name)), perform, happened)
    }

    fn rmdir(
        &self,
        context: &Context<'_, Self::Interruption>,
        parent: NodeId,
        name: &[u8],
    ) -> Result<(), Errno> {
        let perform = |inner: &F| inner.rmdir(context, parent, name);
        let happened = |(): &()| Some(Happened::RemovedDirectory(parent, name));
        self.done(context, (parent, Some(name)), perform, happened)
    }

    fn rename(
        &self,
        context: &Context<'_, Self::Interruption>,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
        flags: u32,
    ) -> Result<(), Errno> {
        let perform = |inner: &F| inner.rename(context, from, to, flags);
        let happened = |(): &()| Some(Happened::Renamed(from, to));
        self.done(context, (from.0, Some(from.1)), perform, happened)
    }

    fn link(
        &self,
        context: &Context<'_, Self::Interruption>,
        node: NodeId,
        parent: NodeId,
        name: &[u8],
    ) -> Result<Entry, Errno> {
        let Some(explanation) = self.explainer.present() else {
            return self.inner.link(context, node, parent, name);
        };
        let perform = || self.inner.link(context, node, parent, name);
        let happened = |entry: &Entry| Some(Happened::Linked((parent, name), (entry.node, entry.attributes)));
        watched(
            &explanation,
            caller(context),
            (parent, Some(name)),
            perform,
            happened,
        )
        .map(Entry::unpromised)
    }

    fn open(
        &self,
        context: &Context<'_, Self::Interruption>,
        node: NodeId,
        open: &Open,
    ) -> Result<Opened, Errno> {
        let how = How {
            truncate: open.flags & TRUNCATE != 0,
            ..How::default()
        };
        let perform = |inner: &F| inner.open(context, node, open);
        let happened = |opened: &Opened| Some(Happened::Opened(node, opened.fh, how));
        self.done(context, (node, None), perform, happened)
    }

    fn create(
        &self,
        context: &Context<'_, Self::Interruption>,
        parent: NodeId,
        name: &[u8],
        create: &Create,
    ) -> Result<(Entry, Opened), Errno> {
        let Some(explanation) = self.explainer.present() else {
            return self.inner.create(context, parent, name, create);
        };
        let perform = || self.inner.create(context, parent, name, create);
        let happened = |(entry, opened): &(Entry, Opened)| {
            let how = How {
                exclusive: create.flags & EXCLUSIVE != 0,
                open: Some(opened.fh),
                truncate: false,
            };
            let object = (entry.node, entry.attributes);
            Some(Happened::Made(Request::CreateFile, (parent, name), object, how))
        };
        let (entry, opened) = watched(
            &explanation,
            caller(context),
            (parent, Some(name)),
            perform,
            happened,
        )?;
        Ok((entry.unpromised(), opened))
    }

    fn read(
        &self,
        context: &Context<'_, Self::Interruption>,
        node: NodeId,
        read: &Read,
        reply: &ReadReply,
    ) -> Result<(), Errno> {
        let range = (read.offset, u64::from(read.size));
        let perform = |inner: &F| inner.read(context, node, read, reply);
        self.done(context, (node, None), perform, |()| {
            Some(Happened::Read(node, read.fh, range))
        })
    }

    fn write(
        &self,
        context: &Context<'_, Self::Interruption>,
        node: NodeId,
        write: &Write,
        data: &[u8],
    ) -> Result<u32, Errno> {
        let perform = |inner: &F| inner.write(context, node, write, data);
        let happened = |taken: &u32| Some(Happened::Written(node, (write.offset, u64::from(*taken))));
        self.done(context, (node, None), perform, happened)
    }

    fn statfs(
        &self,
        context: &Context<'_, Self::Interruption>,
        node: NodeId,
    ) -> Result<FileSystemSizes, Errno> {
        let perform = |inner: &F| inner.statfs(context, node);
        self.done(context, (node, None), perform, |_| Some(Happened::Statfs(node)))
    }

    fn flush(
        &self,
        context: &Context<'_, Self::Interruption>,
        node: NodeId,
        fh: FuseFh,
        lock_owner: u64,
    ) -> Result<(), Errno> {
        let perform = |inner: &F| inner.flush(context, node, fh, lock_owner);
        self.done(context, (node, None), perform, |()| Some(Happened::Flushed(node)))
    }

    fn release(&self, context: &Context<'_, Self::Interruption>, node: NodeId, release: &Release) {
        let perform = |inner: &F| {
            inner.release(context, node, release);
            Ok(())
        };
        // It has no answer.
        let _ = self.done(context, (node, None), perform, |()| {
            Some(Happened::Closed(node, release.fh))
        });
    }

    fn fsync(
        &self,
        context: &Context<'_, Self::Interruption>,
        node: NodeId,
        fh: FuseFh,
        data_only: bool,
    ) -> Result<(), Errno> {
        let perform = |inner: &F| inner.fsync(context, node, fh, data_only);
        self.done(context, (node, None), perform, |()| Some(Happened::Flushed(node)))
    }

    fn opendir(
        &self,
        context: &Context<'_, Self::Interruption>,
        node: NodeId,
        flags: u32,
    ) -> Result<Opened, Errno> {
        let perform = |inner: &F| inner.opendir(context, node, flags);
        let happened = |opened: &Opened| Some(Happened::OpenedDirectory(node, opened.fh));
        self.done(context, (node, None), perform, happened)
    }

    fn readdir(
        &self,
        context: &Context<'_, Self::Interruption>,
        node: NodeId,
        position: (FuseFh, u64),
        listing: &mut Listing<'_>,
    ) -> Result<(), Errno> {
        let Some(explanation) = self.explainer.present() else {
            return self.inner.readdir(context, node, position, listing);
        };
        let _entered = explanation.enter(context.tid, node, None);
        listing.promise_nothing();
        self.inner.readdir(context, node, position, listing)?;
        let names = listing.names().collect();
        let happened = Happened::Listed(node, position.0, position.1 == 0, names);
        explanation.happened(caller(context).1, &happened);
        Ok(())
    }

    fn releasedir(&self, context: &Context<'_, Self::Interruption>, node: NodeId, fh: FuseFh) {
        let perform = |inner: &F| {
            inner.releasedir(context, node, fh);
            Ok(())
        };
        // It has no answer.
        let _ = self.done(context, (node, None), perform, |()| {
            Some(Happened::ClosedDirectory(fh))
        });
    }

    fn fsyncdir(
        &self,
        context: &Context<'_, Self::Interruption>,
        node: NodeId,
        fh: FuseFh,
    ) -> Result<(), Errno> {
        self.done(
            context,
            (node, None),
            |inner| inner.fsyncdir(context, node, fh),
            |()| None,
        )
    }

    fn access(
        &self,
        context: &Context<'_, Self::Interruption>,
        node: NodeId,
        mask: u32,
    ) -> Result<(), Errno> {
        let Some(explanation) = self.explainer.present() else {
            return self.inner.access(context, node, mask);
        };
        let _entered = explanation.enter(context.tid, node, None);
        let result = self.inner.access(context, node, mask);
        // Linux asks for a denial as for anything else, and remembers it as well.
        if mask != 0 && matches!(result, Ok(()) | Err(Errno::ACCESS)) {
            explanation.happened(caller(context).1, &Happened::Accessed(node));
        }
        result
    }

    fn getlk(
        &self,
        context: &Context<'_, Self::Interruption>,
        node: NodeId,
        lock: &Lock,
    ) -> Result<LockRange, Errno> {
        self.done(
            context,
            (node, None),
            |inner| inner.getlk(context, node, lock),
            |_| None,
        )
    }

    fn setlk(
        &self,
        context: &Context<'_, Self::Interruption>,
        node: NodeId,
        lock: &Lock,
        wait: bool,
    ) -> Result<(), Errno> {
        self.done(
            context,
            (node, None),
            |inner| inner.setlk(context, node, lock, wait),
            |()| None,
        )
    }
}
