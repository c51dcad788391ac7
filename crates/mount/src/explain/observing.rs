//! Observing each operation while a command is explained.

use std::fmt;
use std::sync::Arc;

use curt_fuse::{Attributes, Listing, NewNode, NodeId, Write};
use curt_linux_model::{FileOperation, ObjectId, OpenId, Request, Seen, Who, Writing};
use curt_policy::ObjectKind;
use curt_trace::scope::Entered;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::Explainer;
use super::explanation::Explanation;
use crate::observed::{Answer, Asker, Observer, Operation, Outcome};

/// Flags of open(2). O_DSYNC is a part of O_SYNC.
const TRUNCATE: u32 = OFlags::TRUNC.bits();
const EXCLUSIVE: u32 = OFlags::EXCL.bits();
const DURABLE: u32 = OFlags::DSYNC.bits();
const DIRECT: u32 = OFlags::DIRECT.bits();
const BOTH_WAYS: u32 = OFlags::RDWR.bits();
/// The type's bits of st_mode, and those of a file, a directory and a symbolic link.
const TYPE: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;
const LINK: u32 = 0o120_000;

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
            let who = Who(u64::from(asker.uid) << 32 | u64::from(asker.gid));
            watched.explanation.happened(who, &happened);
        }
    }

    fn withholds_promises(seen: &Self::Seen) -> bool {
        seen.is_some()
    }
}

/// The outcome of an operation, as far as the model of Linux is concerned.
fn happened<'a>(operation: &Operation<'a>, outcome: &Outcome<'a>) -> Option<FileOperation<'a>> {
    let entry = || {
        let entry = outcome.entry()?;
        Some(seen(entry.node, &entry.attributes))
    };
    match *operation {
        Operation::Lookup((parent, name)) => match outcome.0 {
            Ok(_) | Err(Errno::NOENT) => Some(FileOperation::Lookup(object(parent), name, entry())),
            Err(Errno::ACCESS) => Some(FileOperation::Access(object(parent))),
            Err(_) => None,
        },
        // Linux asks for a denial as for anything else, and remembers it as well.
        Operation::Access(node, mask) => {
            let is_told = mask != 0 && matches!(outcome.0, Ok(_) | Err(Errno::ACCESS));
            is_told.then_some(FileOperation::Access(object(node)))
        }
        _ if outcome.0.is_err() => not_done(operation, outcome),
        Operation::Symlink(at, _) => Some(made(Request::CreateLink, at, entry()?)),
        Operation::Mknod(at, new) => Some(made(request_of_node(new), at, entry()?)),
        Operation::Mkdir(at, _) => Some(made(Request::CreateDirectory, at, entry()?)),
        Operation::Create((parent, name), create) => Some(FileOperation::Create {
            request: Request::CreateFile,
            directory: object(parent),
            name,
            made: entry()?,
            exclusive: create.flags & EXCLUSIVE != 0,
            open: opened(outcome),
        }),
        Operation::Unlink((parent, name)) => Some(FileOperation::Unlink(object(parent), name)),
        Operation::Rmdir((parent, name)) => Some(FileOperation::Rmdir(object(parent), name)),
        Operation::Rename(from, to) => Some(FileOperation::Rename(
            (object(from.0), from.1),
            (object(to.0), to.1),
        )),
        Operation::Link(_, (parent, name)) => Some(FileOperation::Link(object(parent), name, entry()?)),
        _ => happened_to_object(operation, outcome),
    }
}

/// What is made without being opened.
const fn made<'a>(request: Request, at: (NodeId, &'a [u8]), made: Seen) -> FileOperation<'a> {
    FileOperation::Create {
        request,
        directory: object(at.0),
        name: at.1,
        made,
        exclusive: false,
        open: None,
    }
}

/// The outcome of an operation that failed. Linux decides who may open and search by what the server last said; changes it leaves
/// to the server.
fn not_done<'a>(operation: &Operation<'a>, outcome: &Outcome<'a>) -> Option<FileOperation<'a>> {
    let errno = outcome.errno()?;
    let refused = |at: (NodeId, &'a [u8]), request| {
        let is_asked = !matches!(
            errno,
            Errno::NAMETOOLONG | Errno::INVAL | Errno::NOSYS | Errno::INTR
        );
        is_asked.then_some(FileOperation::Refused(request, object(at.0), Some(at.1)))
    };
    match *operation {
        Operation::Open(node, _) | Operation::Opendir(node) => {
            (errno == Errno::ACCESS).then_some(FileOperation::OpenRefused(object(node)))
        }
        Operation::Symlink(at, _) => refused(at, Request::CreateLink),
        Operation::Mknod(at, new) => refused(at, request_of_node(new)),
        Operation::Mkdir(at, _) => refused(at, Request::CreateDirectory),
        Operation::Create(at, _) => refused(at, Request::CreateFile),
        Operation::Unlink(at) => refused(at, Request::Remove),
        Operation::Rmdir(at) => refused(at, Request::RemoveDirectory),
        Operation::Rename(from, _) => refused(from, Request::Rename),
        Operation::Link(_, at) => refused(at, Request::HardLink),
        Operation::Setattr(node, _) => {
            Some(FileOperation::Refused(Request::SetAttributes, object(node), None))
        }
        Operation::Flush(node) | Operation::Fsync(node) => Some(FileOperation::FlushFailed(object(node))),
        // Linux learns of it only when the bytes are sent.
        Operation::Write(node, write, count) => Some(written(node, write, count)),
        Operation::Release(_, release) => Some(FileOperation::Release(OpenId(release.fh.0))),
        Operation::Releasedir(_, fh) => Some(FileOperation::Release(OpenId(fh.0))),
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

const fn written<'a>(node: NodeId, write: &Write, count: usize) -> FileOperation<'a> {
    let how = Writing {
        durable: write.flags & DURABLE != 0,
        direct: write.flags & DIRECT != 0,
        reads: write.flags & BOTH_WAYS != 0,
    };
    FileOperation::Write(object(node), (write.offset, count as u64), how)
}

/// The same for operations that are not about a name.
fn happened_to_object<'a>(operation: &Operation<'a>, outcome: &Outcome<'a>) -> Option<FileOperation<'a>> {
    match *operation {
        Operation::Getattr(node) => match outcome.0 {
            Ok(Answer::Stat(stat)) => Some(FileOperation::Getattr(seen(node, &stat.attributes))),
            Ok(_) | Err(_) => None,
        },
        Operation::Setattr(node, set) => match outcome.0 {
            Ok(Answer::Stat(stat)) => {
                let rights = set.mode.is_some() || set.uid.is_some() || set.gid.is_some();
                Some(FileOperation::Setattr(seen(node, &stat.attributes), rights))
            }
            Ok(_) | Err(_) => None,
        },
        Operation::Readlink(node) => Some(FileOperation::Readlink(object(node))),
        Operation::Open(node, open) => {
            let truncate = open.flags & TRUNCATE != 0;
            Some(FileOperation::Open(object(node), opened(outcome)?, truncate))
        }
        Operation::Opendir(node) => Some(FileOperation::Open(object(node), opened(outcome)?, false)),
        Operation::Read(node, read) => {
            let range = (read.offset, u64::from(read.size));
            Some(if read.flags & DIRECT == 0 {
                FileOperation::Read(object(node), OpenId(read.fh.0), range)
            } else {
                FileOperation::ReadDirect(object(node), range)
            })
        }
        Operation::Write(node, write, _) => match outcome.0 {
            Ok(Answer::Bytes(taken)) => Some(written(node, write, taken)),
            Ok(_) | Err(_) => None,
        },
        Operation::Statfs(_) => Some(FileOperation::Statfs),
        Operation::Flush(node) | Operation::Fsync(node) => Some(FileOperation::Flush(object(node))),
        Operation::Release(_, release) => Some(FileOperation::Release(OpenId(release.fh.0))),
        Operation::Readdir(node, (fh, from), _) => match outcome.0 {
            Ok(Answer::Listed(listing)) => Some(FileOperation::Readdir(
                object(node),
                OpenId(fh.0),
                from == 0,
                Listing::names(listing).collect(),
            )),
            Ok(_) | Err(_) => None,
        },
        Operation::Releasedir(_, fh) => Some(FileOperation::Release(OpenId(fh.0))),
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

fn opened(outcome: &Outcome<'_>) -> Option<OpenId> {
    match outcome.0 {
        Ok(Answer::Opened(opened) | Answer::Created(_, opened)) => Some(OpenId(opened.fh.0)),
        Ok(_) | Err(_) => None,
    }
}

const fn object(node: NodeId) -> ObjectId {
    ObjectId(node.0)
}

const fn seen(node: NodeId, attributes: &Attributes) -> Seen {
    Seen {
        id: object(node),
        kind: match attributes.mode & TYPE {
            REGULAR => ObjectKind::Regular,
            DIRECTORY => ObjectKind::Directory,
            LINK => ObjectKind::Symlink,
            _ => ObjectKind::Special,
        },
        size: attributes.size,
        stamp: stamp(attributes.ctime.seconds, attributes.ctime.nanoseconds),
    }
}

/// A stamp that differs after each change.
pub(super) const fn stamp(seconds: i64, nanoseconds: u32) -> u64 {
    seconds
        .cast_unsigned()
        .wrapping_mul(1_000_000_000)
        .wrapping_add(nanoseconds as u64)
}
