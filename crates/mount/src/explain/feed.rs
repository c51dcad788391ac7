//! Turns FUSE operations back into the system calls that they come from, as input for the model of Linux.
//!
//! The kernel looks a name up before it shows what for. So the last name that a thread has looked up waits here until that thread's
//! next operation: an open of the object follows close-to-open, a creation goes to the server. Owns the last names, one for each
//! thread, bounded.

use std::collections::HashMap;

use curt_fuse::{Attributes, FuseFh, NodeId};
use curt_policy::linux::{Intent, Linux, ObjectId, OpenId, Options, Request, Seen, Told, Who, Writing};
use curt_policy::{Moment, ObjectKind};
use curt_trace::Cause;

use super::paths::PathNumber;

/// Threads whose last name waits, at most.
const WAITING_MAX: usize = 4096;

/// The outcome of an operation.
#[derive(Debug)]
pub(super) enum Happened<'a> {
    /// A name leads to this, or to nothing.
    Looked(NodeId, &'a [u8], Option<(NodeId, Attributes)>),
    Stated(NodeId, Attributes),
    Accessed(NodeId),
    ReadLink(NodeId),
    Opened(NodeId, FuseFh, How),
    OpenedDirectory(NodeId, FuseFh),
    /// CREATE, MKDIR, SYMLINK or MKNOD of a name made this.
    Made(Request, (NodeId, &'a [u8]), (NodeId, Attributes), How),
    Linked((NodeId, &'a [u8]), (NodeId, Attributes)),
    Unlinked(NodeId, &'a [u8]),
    RemovedDirectory(NodeId, &'a [u8]),
    Renamed((NodeId, &'a [u8]), (NodeId, &'a [u8])),
    /// And whether rights were set.
    Set(NodeId, Attributes, bool),
    /// And whether past the page cache.
    Read(NodeId, FuseFh, (u64, u64), bool),
    Written(NodeId, (u64, u64), Writing),
    Flushed(NodeId),
    /// A write failed.
    NotFlushed(NodeId),
    Closed(NodeId, FuseFh),
    Listed(NodeId, FuseFh, bool, Vec<&'a [u8]>),
    ClosedDirectory(FuseFh),
    Statfs(NodeId),
    /// The caller may not search this directory.
    NotSearched(NodeId),
    /// The caller may not open this.
    NotOpened(NodeId),
    /// The server would have refused this request about an object, or a name in it.
    Refused(Request, NodeId, Option<&'a [u8]>),
}

/// How a file was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct How {
    pub(super) truncate: bool,
    pub(super) exclusive: bool,
    /// It was created by a request of its own, and is open.
    pub(super) open: Option<FuseFh>,
}

impl Happened<'_> {
    /// The object that the operation's path, `path`, turned out to lead to.
    pub(super) fn reached(&self, path: PathNumber) -> Option<(NodeId, PathNumber)> {
        match self {
            Self::Looked(_, _, Some((node, _))) | Self::Made(_, _, (node, _), _) => Some((*node, path)),
            _ => None,
        }
    }
}

/// A request that Linux would have sent.
pub(super) struct LinuxSent {
    pub(super) thread: u32,
    pub(super) cause: Cause,
    pub(super) procedure: usize,
    pub(super) path: PathNumber,
}

/// A name whose purpose is not known yet.
struct Waiting {
    thread: u32,
    who: Who,
    directory: NodeId,
    name: Box<[u8]>,
    found: Option<Seen>,
    path: PathNumber,
    at: Moment,
}

/// The model and its input.
pub(super) struct Feed {
    linux: Linux,
    /// By thread.
    waiting: HashMap<u32, Waiting>,
    /// What the model knows to be open, so that it ignores a close of what was opened before it began.
    open: HashMap<FuseFh, NodeId>,
    seen: HashMap<NodeId, Seen>,
    sent: Vec<LinuxSent>,
}

impl Feed {
    pub(super) fn new(options: Options, root: Seen) -> Self {
        Self {
            linux: Linux::new(options, root, Moment::default()),
            waiting: HashMap::new(),
            open: HashMap::new(),
            seen: HashMap::from([(NodeId(root.id.0), root)]),
            sent: Vec::new(),
        }
    }

    pub(super) const fn forgotten(&self) -> u64 {
        self.linux.forgotten()
    }

    /// What Linux would have sent since the last time.
    pub(super) fn take(&mut self) -> Vec<LinuxSent> {
        std::mem::take(&mut self.sent)
    }

    /// The input ends.
    pub(super) fn finish(&mut self) {
        for (_, waiting) in std::mem::take(&mut self.waiting) {
            self.look_up(waiting, Intent::Use);
        }
    }

    fn look_up(&mut self, waiting: Waiting, intent: Intent) {
        let at = (object(waiting.directory), &*waiting.name);
        self.linux
            .look_up(waiting.who, at, waiting.found.as_ref(), intent, waiting.at);
        self.account(waiting.thread, waiting.path);
    }

    fn account(&mut self, thread: u32, path: PathNumber) {
        for sent in self.linux.take_sent() {
            let procedure = sent.request.procedure() as usize;
            self.sent.push(LinuxSent {
                thread,
                cause: cause(sent.request),
                procedure,
                path,
            });
        }
    }

    /// An operation of a thread, on an object with this path.
    pub(super) fn happened(
        &mut self,
        (thread, uid, gid): (u32, u32, u32),
        path: PathNumber,
        happened: &Happened<'_>,
        now: Moment,
    ) {
        let who = Who(u64::from(uid) << 32 | u64::from(gid));
        let waiting = self.waiting.remove(&thread);
        let waiting = self.resolve(waiting, happened);
        match happened {
            Happened::Looked(directory, name, found) => {
                let found = found.map(|(node, attributes)| self.note(node, &attributes));
                if self.waiting.len() >= WAITING_MAX {
                    self.finish();
                }
                let waiting = Waiting {
                    thread,
                    who,
                    directory: *directory,
                    name: Box::from(*name),
                    found,
                    path,
                    at: now,
                };
                self.waiting.insert(thread, waiting);
            }
            Happened::Opened(node, fh, how) => {
                self.open(who, (*node, *fh), waiting, now);
                if how.truncate {
                    let seen = self.known(*node);
                    self.linux.set_attributes(&seen, false, now);
                }
            }
            Happened::OpenedDirectory(node, fh) => self.open(who, (*node, *fh), waiting, now),
            Happened::NotOpened(node) => self.may_open(who, *node, waiting, now),
            other => self.simple(who, other, now),
        }
        self.account(thread, path);
    }

    /// The purpose of the name that the thread looked up is its present operation. Returns whether that is an open of that object.
    fn resolve(&mut self, waiting: Option<Waiting>, happened: &Happened<'_>) -> bool {
        let Some(waiting) = waiting else { return false };
        let is_there = |at: &(NodeId, &[u8])| waiting.directory == at.0 && *waiting.name == *at.1;
        let intent = match happened {
            Happened::Opened(node, ..) | Happened::OpenedDirectory(node, _) | Happened::NotOpened(node)
                if waiting.found.is_some_and(|found| found.id == object(*node)) =>
            {
                Intent::Open
            }
            Happened::Made(Request::CreateFile, at, _, how) if is_there(at) && !how.exclusive => {
                Intent::OpenOrMake
            }
            Happened::Made(_, at, ..) | Happened::Linked(at, _) | Happened::Renamed(_, at)
                if is_there(at) =>
            {
                Intent::Make
            }
            Happened::Refused(request, directory, Some(name)) if is_there(&(*directory, name)) => {
                match request {
                    Request::CreateFile => Intent::OpenOrMake,
                    Request::Remove | Request::RemoveDirectory => Intent::Use,
                    _ => Intent::Make,
                }
            }
            _ => Intent::Use,
        };
        self.look_up(waiting, intent);
        intent == Intent::Open
    }

    fn open(&mut self, who: Who, (node, fh): (NodeId, FuseFh), by_name: bool, now: Moment) {
        self.may_open(who, node, by_name, now);
        self.linux.opened(object(node), now);
        self.open.insert(fh, node);
    }

    /// The requests before an open, whether it succeeds or not.
    fn may_open(&mut self, who: Who, node: NodeId, by_name: bool, now: Moment) {
        let seen = self.known(node);
        if !by_name {
            self.linux.open_again(&seen, now);
        }
        self.linux.permit(who, seen.id, now);
    }

    fn simple(&mut self, who: Who, happened: &Happened<'_>, now: Moment) {
        match happened {
            Happened::Stated(node, attributes) => {
                let seen = self.note(*node, attributes);
                self.linux.stat(&seen, now);
            }
            Happened::Accessed(node) | Happened::NotSearched(node) => {
                self.linux.permit(who, object(*node), now);
            }
            Happened::ReadLink(node) => {
                let seen = self.known(*node);
                self.linux.read_link(&seen, now);
            }
            Happened::Made(request, (directory, name), (node, attributes), how) => {
                let seen = self.note(*node, attributes);
                let at = (object(*directory), *name);
                self.linux.make(*request, at, &seen, how.exclusive, now);
                if let Some(fh) = how.open {
                    self.linux.opened(seen.id, now);
                    self.open.insert(fh, *node);
                }
            }
            Happened::Linked((directory, name), (node, attributes)) => {
                let seen = self.note(*node, attributes);
                self.linux.link((object(*directory), name), &seen, now);
            }
            Happened::Unlinked(directory, name) => self.linux.unlink((object(*directory), name), now),
            Happened::RemovedDirectory(directory, name) => {
                self.linux.remove_directory((object(*directory), name), now);
            }
            Happened::Renamed(from, to) => {
                self.linux
                    .rename((object(from.0), from.1), (object(to.0), to.1), now);
            }
            Happened::Set(node, attributes, rights) => {
                let seen = self.note(*node, attributes);
                self.linux.set_attributes(&seen, *rights, now);
            }
            Happened::Statfs(node) => self.linux.statfs(object(*node)),
            Happened::Refused(request, about, name) => {
                self.linux.refused(*request, object(*about), *name, now);
            }
            other => self.on_open(other, now),
        }
    }

    /// An operation on an open file.
    fn on_open(&mut self, happened: &Happened<'_>, now: Moment) {
        match happened {
            Happened::Read(node, fh, range, direct) => {
                let seen = self.known(*node);
                if *direct {
                    self.linux.read_direct(&seen, *range, now);
                } else {
                    self.linux.read(OpenId(fh.0), &seen, *range, now);
                }
            }
            Happened::Written(node, range, how) => self.linux.write(object(*node), *range, *how, now),
            Happened::Flushed(node) => self.linux.make_durable(object(*node), now),
            Happened::NotFlushed(node) => self.linux.fail_to_write(object(*node), now),
            Happened::Closed(node, fh) if self.open.remove(fh).is_some() => {
                self.linux.closed(OpenId(fh.0), object(*node), now);
            }
            Happened::Listed(node, fh, from_start, names) => {
                let told = Told {
                    from_start: *from_start,
                    names,
                };
                self.linux.list(OpenId(fh.0), object(*node), told, now);
            }
            Happened::ClosedDirectory(fh) => {
                if let Some(node) = self.open.remove(fh) {
                    self.linux.listed(OpenId(fh.0));
                    self.linux.closed(OpenId(fh.0), object(node), now);
                }
            }
            _ => {}
        }
    }

    /// The object as it was last reported.
    fn known(&self, node: NodeId) -> Seen {
        self.seen.get(&node).copied().unwrap_or_else(|| Seen {
            id: object(node),
            kind: ObjectKind::Regular,
            size: 0,
            stamp: 0,
        })
    }

    fn note(&mut self, node: NodeId, attributes: &Attributes) -> Seen {
        let seen = Seen {
            id: object(node),
            kind: kind(attributes.mode),
            size: attributes.size,
            stamp: stamp(attributes.ctime.seconds, attributes.ctime.nanoseconds),
        };
        if self.seen.len() >= curt_policy::linux::ROOM {
            self.seen.clear();
        }
        self.seen.insert(node, seen);
        seen
    }
}

const fn object(node: NodeId) -> ObjectId {
    ObjectId(node.0)
}

/// A stamp that differs after each change.
pub(super) const fn stamp(seconds: i64, nanoseconds: u32) -> u64 {
    seconds
        .cast_unsigned()
        .wrapping_mul(1_000_000_000)
        .wrapping_add(nanoseconds as u64)
}

/// The type of an object with this st_mode.
const fn kind(mode: u32) -> ObjectKind {
    match mode & 0o170_000 {
        0o100_000 => ObjectKind::Regular,
        0o040_000 => ObjectKind::Directory,
        0o120_000 => ObjectKind::Symlink,
        _ => ObjectKind::Special,
    }
}

/// The cause in our words of a request that Linux would have sent.
const fn cause(request: Request) -> Cause {
    match request {
        Request::OpenCheck => Cause::OpenCheck,
        Request::NameCheck => Cause::NameCheck,
        Request::AttributesExpired => Cause::AttributesExpired,
        Request::ListingCheck => Cause::ListingCheck,
        Request::FirstUse => Cause::FirstUse,
        Request::NameAgain => Cause::NameAgain,
        Request::Access => Cause::Access,
        Request::LinkTarget => Cause::LinkTarget,
        Request::DataRead => Cause::DataRead,
        Request::ReadAhead => Cause::ReadAhead,
        Request::Write => Cause::Write,
        Request::Commit => Cause::Commit,
        Request::SetAttributes => Cause::SetAttributes,
        Request::CreateFile
        | Request::CreateDirectory
        | Request::CreateLink
        | Request::CreateNode
        | Request::HardLink => Cause::Create,
        Request::Remove | Request::RemoveDirectory => Cause::Remove,
        Request::Rename => Cause::Rename,
        Request::ListPlus | Request::ListPlain => Cause::Listing,
        Request::Statfs => Cause::Statfs,
    }
}
