//! Observing each operation while a command is explained.

use std::fmt;
use std::sync::Arc;

use curt_fuse::{Listing, NewNode, NodeId, Write};
use curt_policy::linux::{Request, Writing};
use curt_trace::scope::Entered;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::Explainer;
use super::explanation::Explanation;
use super::feed::{Happened, How};
use crate::observed::{Answer, Asker, Observer, Operation, Outcome};

/// Flags of open(2). O_DSYNC is a part of O_SYNC.
const TRUNCATE: u32 = OFlags::TRUNC.bits();
const EXCLUSIVE: u32 = OFlags::EXCL.bits();
const DURABLE: u32 = OFlags::DSYNC.bits();
const DIRECT: u32 = OFlags::DIRECT.bits();
const BOTH_WAYS: u32 = OFlags::RDWR.bits();
/// The type's bits of st_mode, and those of a file.
const TYPE: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;

/// An operation in progress that an explanation observes.
#[allow(unnameable_types, reason = "nobody but the observed file system holds one")]
pub struct Watched {
    explanation: Arc<Explanation>,
    _entered: Entered,
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watched").finish_non_exhaustive()
    }
}

impl Observer for Arc<Explainer> {
    type Seen = Option<Watched>;

    fn begins(&self, asker: &Asker, operation: &Operation<'_>) -> Self::Seen {
        let explanation = self.present()?;
        let (node, name) = operation.place();
        let entered = explanation.enter(asker.thread, node, name);
        Some(Watched {
            explanation,
            _entered: entered,
        })
    }

    fn ended(&self, asker: &Asker, operation: &Operation<'_>, outcome: &Outcome<'_>, seen: Self::Seen) {
        let Some(watched) = seen else { return };
        if let Some(happened) = happened(operation, outcome) {
            watched.explanation.happened((asker.uid, asker.gid), &happened);
        }
    }

    fn withholds_promises(seen: &Self::Seen) -> bool {
        seen.is_some()
    }
}

/// The outcome of an operation, as far as the model of Linux is concerned.
fn happened<'a>(operation: &Operation<'a>, outcome: &Outcome<'a>) -> Option<Happened<'a>> {
    let object = || outcome.entry().map(|entry| (entry.node, entry.attributes));
    let made = |at, request| Some(Happened::Made(request, at, object()?, How::default()));
    match *operation {
        Operation::Lookup((parent, name)) => match outcome.0 {
            Ok(_) | Err(Errno::NOENT) => Some(Happened::Looked(parent, name, object())),
            Err(Errno::ACCESS) => Some(Happened::NotSearched(parent)),
            Err(_) => None,
        },
        // Linux asks for a denial as for anything else, and remembers it as well.
        Operation::Access(node, mask) => {
            let is_told = mask != 0 && matches!(outcome.0, Ok(_) | Err(Errno::ACCESS));
            is_told.then_some(Happened::Accessed(node))
        }
        _ if outcome.0.is_err() => not_done(operation, outcome),
        Operation::Symlink(at, _) => made(at, Request::CreateLink),
        Operation::Mknod(at, new) => made(at, request_of_node(new)),
        Operation::Mkdir(at, _) => made(at, Request::CreateDirectory),
        Operation::Create(at, create) => {
            let how = How {
                exclusive: create.flags & EXCLUSIVE != 0,
                open: opened(outcome),
                truncate: false,
            };
            Some(Happened::Made(Request::CreateFile, at, object()?, how))
        }
        Operation::Unlink((parent, name)) => Some(Happened::Unlinked(parent, name)),
        Operation::Rmdir((parent, name)) => Some(Happened::RemovedDirectory(parent, name)),
        Operation::Rename(from, to) => Some(Happened::Renamed(from, to)),
        Operation::Link(_, at) => Some(Happened::Linked(at, object()?)),
        _ => happened_to_object(operation, outcome),
    }
}

/// The outcome of an operation that failed. Linux decides who may open and search by what the server last said; changes it leaves
/// to the server.
fn not_done<'a>(operation: &Operation<'a>, outcome: &Outcome<'a>) -> Option<Happened<'a>> {
    let errno = outcome.errno()?;
    let refused = |at: (NodeId, &'a [u8]), request| {
        let is_asked = !matches!(
            errno,
            Errno::NAMETOOLONG | Errno::INVAL | Errno::NOSYS | Errno::INTR
        );
        is_asked.then_some(Happened::Refused(request, at.0, Some(at.1)))
    };
    match *operation {
        Operation::Open(node, _) | Operation::Opendir(node) => {
            (errno == Errno::ACCESS).then_some(Happened::NotOpened(node))
        }
        Operation::Symlink(at, _) => refused(at, Request::CreateLink),
        Operation::Mknod(at, new) => refused(at, request_of_node(new)),
        Operation::Mkdir(at, _) => refused(at, Request::CreateDirectory),
        Operation::Create(at, _) => refused(at, Request::CreateFile),
        Operation::Unlink(at) => refused(at, Request::Remove),
        Operation::Rmdir(at) => refused(at, Request::RemoveDirectory),
        Operation::Rename(from, _) => refused(from, Request::Rename),
        Operation::Link(_, at) => refused(at, Request::HardLink),
        Operation::Setattr(node, _) => Some(Happened::Refused(Request::SetAttributes, node, None)),
        Operation::Flush(node) | Operation::Fsync(node) => Some(Happened::NotFlushed(node)),
        // Linux learns of it only when the bytes are sent.
        Operation::Write(node, write, count) => Some(written(node, write, count)),
        Operation::Release(node, release) => Some(Happened::Closed(node, release.fh)),
        Operation::Releasedir(_, fh) => Some(Happened::ClosedDirectory(fh)),
        Operation::Lookup(_)
        | Operation::Getattr(_)
        | Operation::Readlink(_)
        | Operation::Read(..)
        | Operation::Statfs(_)
        | Operation::Readdir(..)
        | Operation::Fsyncdir(_)
        | Operation::Access(..)
        | Operation::Getlk(_)
        | Operation::Setlk(_) => None,
    }
}

const fn request_of_node(new: &NewNode) -> Request {
    match new.mode & TYPE {
        REGULAR | 0 => Request::CreateFile,
        _ => Request::CreateNode,
    }
}

const fn written<'a>(node: NodeId, write: &Write, count: usize) -> Happened<'a> {
    let how = Writing {
        durable: write.flags & DURABLE != 0,
        direct: write.flags & DIRECT != 0,
        reads: write.flags & BOTH_WAYS != 0,
    };
    Happened::Written(node, (write.offset, count as u64), how)
}

/// The same for operations that are not about a name.
fn happened_to_object<'a>(operation: &Operation<'a>, outcome: &Outcome<'a>) -> Option<Happened<'a>> {
    match *operation {
        Operation::Getattr(node) => match outcome.0 {
            Ok(Answer::Stat(stat)) => Some(Happened::Stated(node, stat.attributes)),
            Ok(_) | Err(_) => None,
        },
        Operation::Setattr(node, set) => match outcome.0 {
            Ok(Answer::Stat(stat)) => {
                let rights = set.mode.is_some() || set.uid.is_some() || set.gid.is_some();
                Some(Happened::Set(node, stat.attributes, rights))
            }
            Ok(_) | Err(_) => None,
        },
        Operation::Readlink(node) => Some(Happened::ReadLink(node)),
        Operation::Open(node, open) => {
            let how = How {
                truncate: open.flags & TRUNCATE != 0,
                ..How::default()
            };
            Some(Happened::Opened(node, opened(outcome)?, how))
        }
        Operation::Opendir(node) => Some(Happened::OpenedDirectory(node, opened(outcome)?)),
        Operation::Read(node, read) => {
            let range = (read.offset, u64::from(read.size));
            Some(Happened::Read(node, read.fh, range, read.flags & DIRECT != 0))
        }
        Operation::Write(node, write, _) => match outcome.0 {
            Ok(Answer::Bytes(taken)) => Some(written(node, write, taken)),
            Ok(_) | Err(_) => None,
        },
        Operation::Statfs(node) => Some(Happened::Statfs(node)),
        Operation::Flush(node) | Operation::Fsync(node) => Some(Happened::Flushed(node)),
        Operation::Release(node, release) => Some(Happened::Closed(node, release.fh)),
        Operation::Readdir(node, (fh, from), _) => match outcome.0 {
            Ok(Answer::Listed(listing)) => Some(Happened::Listed(
                node,
                fh,
                from == 0,
                Listing::names(listing).collect(),
            )),
            Ok(_) | Err(_) => None,
        },
        Operation::Releasedir(_, fh) => Some(Happened::ClosedDirectory(fh)),
        Operation::Fsyncdir(_) | Operation::Getlk(_) | Operation::Setlk(_) => None,
        // They are about names.
        Operation::Lookup(_)
        | Operation::Access(..)
        | Operation::Symlink(..)
        | Operation::Mknod(..)
        | Operation::Mkdir(..)
        | Operation::Create(..)
        | Operation::Unlink(_)
        | Operation::Rmdir(_)
        | Operation::Rename(..)
        | Operation::Link(..) => None,
    }
}

fn opened(outcome: &Outcome<'_>) -> Option<curt_fuse::FuseFh> {
    match outcome.0 {
        Ok(Answer::Opened(opened) | Answer::Created(_, opened)) => Some(opened.fh),
        Ok(_) | Err(_) => None,
    }
}
