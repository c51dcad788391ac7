//! A trace through the model of Linux's NFS client ([`curt_policy::linux`]), by a time that the caller tells: what that client
//! would send for it, counted by procedure.

use std::collections::HashMap;
use std::time::Duration;

use curt_policy::linux::{Intent, Linux, ObjectId, OpenId, Options, Seen, Sent, Told, Who};
use curt_policy::{Moment, ObjectKind};
use curt_trace::{PROCEDURES, ProcedureCalls};

use crate::trace::{Operation, PathOperation, Trace};
use crate::tree::{Kind, Tree};

/// Symbolic links on one path at most, as in Linux.
const LINKS_MAX: u32 = 40;
/// Who performs the trace.
const WHO: Who = Who(1);

/// The model with a tree behind it.
pub struct LinuxReplay<'a> {
    linux: Linux,
    tree: &'a Tree,
    trace: &'a Trace,
    numbers: HashMap<String, ObjectId>,
    positions: HashMap<usize, (String, u64)>,
    now: Duration,
    request: Duration,
    sent: Vec<Sent>,
}

impl std::fmt::Debug for LinuxReplay<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("LinuxReplay")
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}

impl<'a> LinuxReplay<'a> {
    /// A client that has mounted the tree's top just now; each request takes `request`.
    #[must_use]
    pub fn new((trace, tree): (&'a Trace, &'a Tree), options: Options, request: Duration) -> Self {
        let root = Seen {
            id: ObjectId(1),
            kind: ObjectKind::Directory,
            size: 4096,
            stamp: 0,
        };
        let numbers = HashMap::from([(String::new(), root.id)]);
        Self {
            linux: Linux::new(options, root, Moment::default()),
            tree,
            trace,
            numbers,
            positions: HashMap::new(),
            now: Duration::ZERO,
            request,
            sent: Vec::new(),
        }
    }

    /// The time since the mount.
    #[must_use]
    pub const fn passed(&self) -> Duration {
        self.now
    }

    /// Lets time pass until then, if it has not.
    pub fn advance_to(&mut self, then: Duration) {
        self.now = self.now.max(then);
    }

    /// What was sent so far, by procedure.
    #[must_use]
    pub fn requests(&self) -> ProcedureCalls {
        let mut calls: HashMap<&str, u64> = HashMap::new();
        for sent in &self.sent {
            let name = PROCEDURES.get(sent.request.procedure() as usize).copied();
            *calls.entry(name.unwrap_or_default()).or_default() += 1;
        }
        calls
            .into_iter()
            .map(|(name, count)| (name.to_owned(), count))
            .collect()
    }

    /// Everything that was sent, in order.
    #[must_use]
    pub fn sent(&self) -> &[Sent] {
        &self.sent
    }

    /// Performs one operation.
    pub fn perform(&mut self, operation: &Operation) {
        match *operation {
            Operation::Page => {}
            Operation::Path { does, path, .. } => self.on_path(does, self.trace.path(path)),
            Operation::Read { open, count } => self.read(open.index(), count),
            Operation::List { open } => self.list(open.index()),
            Operation::Close { open } => self.close(open.index()),
        }
        self.account();
    }

    /// What was sent takes its time.
    fn account(&mut self) {
        let sent = self.linux.take_sent();
        self.now += self.request * u32::try_from(sent.len()).unwrap_or(u32::MAX);
        self.sent.extend(sent);
    }

    fn moment(&self) -> Moment {
        Moment::from_start(self.now)
    }

    fn seen(&mut self, path: &str) -> Option<Seen> {
        let (kind, size) = if path.is_empty() {
            (ObjectKind::Directory, 4096)
        } else {
            match &self.tree.get(path)?.kind {
                Kind::Directory => (ObjectKind::Directory, 4096),
                Kind::File { size } => (ObjectKind::Regular, *size),
                Kind::Link { target } => (ObjectKind::Symlink, target.len() as u64),
            }
        };
        let next = ObjectId(self.numbers.len() as u64 + 1);
        let id = *self.numbers.entry(path.to_owned()).or_insert(next);
        Some(Seen {
            id,
            kind,
            size,
            stamp: 0,
        })
    }

    fn on_path(&mut self, does: PathOperation, path: &str) {
        let (intent, follow) = match does {
            PathOperation::OpenFile(_) | PathOperation::OpenDirectory(_) => (Intent::Open, true),
            PathOperation::Stat | PathOperation::Access => (Intent::Use, true),
            PathOperation::Lstat | PathOperation::Readlink => (Intent::Use, false),
        };
        let Some((at, seen)) = self.walk(path, intent, follow) else {
            return;
        };
        let now = self.moment();
        match does {
            PathOperation::Stat | PathOperation::Lstat => self.linux.stat(&seen, now),
            PathOperation::Access => self.linux.permit(WHO, seen.id, now),
            PathOperation::Readlink if seen.kind == ObjectKind::Symlink => self.linux.read_link(&seen, now),
            PathOperation::Readlink => {}
            PathOperation::OpenFile(open) | PathOperation::OpenDirectory(open) => {
                self.linux.permit(WHO, seen.id, now);
                self.linux.opened(seen.id, now);
                self.positions.insert(open.index(), (at, 0));
            }
        }
    }

    /// Walks to the object at `path`; its own path, without links, and the object.
    fn walk(&mut self, path: &str, intent: Intent, follow: bool) -> Option<(String, Seen)> {
        let mut at = Vec::new();
        self.walk_from(&mut at, path, (intent, follow), LINKS_MAX)?;
        let path = at.join("/");
        let seen = self.seen(&path)?;
        Some((path, seen))
    }

    fn walk_from(
        &mut self,
        at: &mut Vec<String>,
        path: &str,
        (intent, follow): (Intent, bool),
        depth: u32,
    ) -> Option<()> {
        let components: Vec<&str> = path.split('/').filter(|name| !name.is_empty()).collect();
        for (number, name) in components.iter().enumerate() {
            let is_last = number + 1 == components.len();
            let directory = self.seen(&at.join("/"))?;
            if directory.kind != ObjectKind::Directory {
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
            let intent = if is_last { intent } else { Intent::Use };
            let now = self.moment();
            self.linux
                .look_up(WHO, (directory.id, name.as_bytes()), found.as_ref(), intent, now);
            self.account();
            let seen = found?;
            if seen.kind == ObjectKind::Symlink && (!is_last || follow) {
                let now = self.moment();
                self.linux.read_link(&seen, now);
                let Some(Kind::Link { target }) = self.tree.get(&at.join("/")).map(|entry| &entry.kind)
                else {
                    return None;
                };
                at.pop();
                let target: &'a str = target;
                let inner = if is_last { intent } else { Intent::Use };
                self.walk_from(at, target, (inner, true), depth.checked_sub(1)?)?;
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
        let now = self.moment();
        let range = (position, u64::from(count));
        self.linux.read(OpenId(open as u64), &seen, range, now);
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
        let now = self.moment();
        for (from_start, names) in [(true, &names[..]), (false, &[])] {
            let told = Told { from_start, names };
            self.linux.list(OpenId(open as u64), seen.id, told, now);
        }
    }

    fn close(&mut self, open: usize) {
        let Some((path, _)) = self.positions.remove(&open) else {
            return;
        };
        let Some(seen) = self.seen(&path) else { return };
        let (id, now) = (OpenId(open as u64), self.moment());
        self.linux.closed(id, seen.id, now);
        self.linux.listed(id);
    }
}
