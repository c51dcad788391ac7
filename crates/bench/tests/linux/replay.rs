//! A trace through the model of Linux's NFS client ([`curt_linux_model`]), with a scripted time:
//! the requests that client would send, by procedure.

use std::collections::HashMap;
use std::time::Duration;

use curt_bench::trace::{PathOperation, TraceOperation, WorkloadTrace};
use curt_bench::tree::{TreeEntryKind, WorkloadTree};
use curt_linux_model::{
    CredentialId, FileOperation, LinuxClient, ObjectId, OpenId, OperationContext, Options, ReportedObject,
};
use curt_observe::{CallCounts, Operation};
use curt_policy::MonotonicTime;
use curt_types::FileKind;

/// Maximum number of symbolic links in a path walk, as in Linux.
const LINKS_MAX: u32 = 40;
/// The caller of the trace.
const CONTEXT: OperationContext = OperationContext { thread: 1, credential: CredentialId(1), path: 0 };

/// The model and the tree of its server.
pub(crate) struct LinuxReplay<'a> {
    linux: LinuxClient,
    tree: &'a WorkloadTree,
    trace: &'a WorkloadTrace,
    numbers: HashMap<String, ObjectId>,
    positions: HashMap<usize, (String, u64)>,
    now: Duration,
    request: Duration,
    /// The requests, by procedure.
    calls: [u64; Operation::COUNT],
}

impl<'a> LinuxReplay<'a> {
    /// A client that has just mounted the tree's top; each request takes `request`.
    pub(crate) fn new(
        trace: &'a WorkloadTrace,
        tree: &'a WorkloadTree,
        options: Options,
        request: Duration,
    ) -> Self {
        let root = ReportedObject { id: ObjectId(1), kind: FileKind::Directory, size: 4096, stamp: 0 };
        let numbers = HashMap::from([(String::new(), root.id)]);
        Self {
            linux: LinuxClient::new(options, root),
            tree,
            trace,
            numbers,
            positions: HashMap::new(),
            now: Duration::ZERO,
            request,
            calls: [0; Operation::COUNT],
        }
    }

    /// The time since the mount.
    pub(crate) const fn passed(&self) -> Duration {
        self.now
    }

    /// Advances the time to `then`, unless it is later.
    pub(crate) fn advance_to(&mut self, then: Duration) {
        self.now = self.now.max(then);
    }

    /// The requests for the operations so far, by operation.
    pub(crate) fn requests(&mut self) -> CallCounts {
        self.linux.finish();
        self.account();
        let sent = Operation::nfs().map(|operation| (operation, self.calls[operation.index()]));
        sent.filter(|(_, calls)| *calls > 0).collect()
    }

    /// Performs one operation.
    pub(crate) fn perform(&mut self, operation: &TraceOperation) {
        match *operation {
            TraceOperation::Page => {}
            TraceOperation::Path { does, path, .. } => self.on_path(does, self.trace.path(path)),
            TraceOperation::Read { open, count } => self.read(open.index(), count),
            TraceOperation::List { open } => self.list(open.index()),
            TraceOperation::Close { open } => self.close(open.index()),
        }
    }

    fn ask(&mut self, operation: &FileOperation<'_>) {
        self.linux.perform(CONTEXT, operation, MonotonicTime::from_start(self.now));
        self.account();
    }

    /// Requests take their time.
    fn account(&mut self) {
        for sent in self.linux.take_sent() {
            self.now += self.request;
            if let Some(calls) = self.calls.get_mut(sent.request.procedure() as usize) {
                *calls += 1;
            }
        }
    }

    fn seen(&mut self, path: &str) -> Option<ReportedObject> {
        let (kind, size) = if path.is_empty() {
            (FileKind::Directory, 4096)
        } else {
            match &self.tree.get(path)?.kind {
                TreeEntryKind::Directory => (FileKind::Directory, 4096),
                TreeEntryKind::File { size } => (FileKind::Regular, *size),
                TreeEntryKind::Link { target } => (FileKind::Symlink, target.len() as u64),
            }
        };
        let next = ObjectId(self.numbers.len() as u64 + 1);
        let id = *self.numbers.entry(path.to_owned()).or_insert(next);
        Some(ReportedObject { id, kind, size, stamp: 0 })
    }

    fn on_path(&mut self, does: PathOperation, path: &str) {
        let follow = !matches!(does, PathOperation::Lstat | PathOperation::Readlink);
        let Some((at, seen)) = self.walk(path, follow) else {
            return;
        };
        match does {
            PathOperation::Stat | PathOperation::Lstat => self.ask(&FileOperation::Getattr(seen)),
            PathOperation::Access => self.ask(&FileOperation::Access(seen.id)),
            PathOperation::Readlink if seen.kind == FileKind::Symlink => {
                self.ask(&FileOperation::Readlink(seen.id));
            }
            PathOperation::Readlink => {}
            PathOperation::OpenFile(open) | PathOperation::OpenDirectory(open) => {
                self.ask(&FileOperation::Open(seen.id, open_id(open.index()), false));
                self.positions.insert(open.index(), (at, 0));
            }
        }
    }

    /// Walks to the object at `path`; returns its own path, without links, and the object.
    fn walk(&mut self, path: &str, follow: bool) -> Option<(String, ReportedObject)> {
        let mut at = Vec::new();
        self.walk_from(&mut at, path, follow, LINKS_MAX)?;
        let path = at.join("/");
        let seen = self.seen(&path)?;
        Some((path, seen))
    }

    fn walk_from(&mut self, at: &mut Vec<String>, path: &str, follow: bool, depth: u32) -> Option<()> {
        let components: Vec<&str> = path.split('/').filter(|name| !name.is_empty()).collect();
        for (number, name) in components.iter().enumerate() {
            let is_last = number + 1 == components.len();
            let directory = self.seen(&at.join("/"))?;
            if directory.kind != FileKind::Directory {
                return None;
            }
            match *name {
                "." => continue,
                ".." => {
                    at.pop();
                    continue;
                }
                _ => {}
            }
            at.push((*name).to_owned());
            let found = self.seen(&at.join("/"));
            self.ask(&FileOperation::Lookup(directory.id, name.as_bytes(), found));
            let seen = found?;
            if seen.kind == FileKind::Symlink && (!is_last || follow) {
                self.ask(&FileOperation::Readlink(seen.id));
                let Some(TreeEntryKind::Link { target }) =
                    self.tree.get(&at.join("/")).map(|entry| &entry.kind)
                else {
                    return None;
                };
                at.pop();
                let target: &'a str = target;
                self.walk_from(at, target, true, depth.checked_sub(1)?)?;
            }
        }
        Some(())
    }

    fn read(&mut self, open: usize, count: u32) {
        let Some((path, position)) = self.positions.get(&open).cloned() else {
            return;
        };
        let Some(seen) = self.seen(&path) else { return };
        if count == 0 {
            return;
        }
        let range = (position, u64::from(count));
        self.ask(&FileOperation::Read(seen.id, open_id(open), range));
        let end = seen.size.min(position + u64::from(count)).max(position);
        self.positions.insert(open, (path, end));
    }

    fn list(&mut self, open: usize) {
        let Some((path, _)) = self.positions.get(&open).cloned() else {
            return;
        };
        let (Some(seen), Some(children)) = (self.seen(&path), self.tree.children(&path)) else {
            return;
        };
        let names: Vec<&[u8]> = children.map(|child| child.name().as_bytes()).collect();
        for (from_start, names) in [(true, names), (false, Vec::new())] {
            self.ask(&FileOperation::Readdir(seen.id, open_id(open), from_start, names));
        }
    }

    fn close(&mut self, open: usize) {
        if self.positions.remove(&open).is_some() {
            self.ask(&FileOperation::Release(open_id(open)));
        }
    }
}

const fn open_id(index: usize) -> OpenId {
    OpenId(index as u64)
}
