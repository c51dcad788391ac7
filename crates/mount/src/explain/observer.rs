//! Observes each operation while a command is explained.

use std::fmt;
use std::sync::Arc;

use curt_fuse::{DirentBuffer, FuseAttr, MknodIn, NodeId, WriteIn};
use curt_linux_model::{CredentialId, FileOperation, LinuxRequest, ObjectId, OpenId, Seen, Writing};
use curt_observe::explain::CommandExplanation;
use curt_observe::scope::ScopeGuard;
use curt_types::FileKind;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::Explainer;
use crate::observed::{
    FuseCaller, FuseOperation, FuseOperationReply, FuseOperationResult, OperationObserver,
};

/// Flags of open(2). O_DSYNC is a part of O_SYNC.
const TRUNCATE: u32 = OFlags::TRUNC.bits();
const EXCLUSIVE: u32 = OFlags::EXCL.bits();
const DURABLE: u32 = OFlags::DSYNC.bits();
const DIRECT: u32 = OFlags::DIRECT.bits();
const BOTH_WAYS: u32 = OFlags::RDWR.bits();
/// The type bits of st_mode, and those of a file, a directory and a symbolic link.
const TYPE: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;
const LINK: u32 = 0o120_000;

/// An operation in progress that an explanation observes.
#[allow(unnameable_types, reason = "nobody but the observed file system holds one")]
pub struct ExplainedOperation {
    explanation: Arc<CommandExplanation>,
    _entered: ScopeGuard,
}

impl fmt::Debug for ExplainedOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExplainedOperation").finish_non_exhaustive()
    }
}

impl OperationObserver for Arc<Explainer> {
    type Seen = Option<ExplainedOperation>;

    fn begins(&self, caller: &FuseCaller, operation: &FuseOperation<'_>) -> Self::Seen {
        let explanation = self.present()?;
        let (node, name) = operation.place();
        let entered = explanation.enter(caller.thread, object(node), name);
        Some(ExplainedOperation { explanation, _entered: entered })
    }

    fn ended(
        &self,
        caller: &FuseCaller,
        operation: &FuseOperation<'_>,
        outcome: &FuseOperationResult<'_>,
        seen: Self::Seen,
    ) {
        let Some(watched) = seen else { return };
        if let Some(happened) = completed(operation, outcome) {
            let caller = CredentialId(u64::from(caller.uid) << 32 | u64::from(caller.gid));
            watched.explanation.completed(caller, &happened);
        }
    }

    fn withholds_lifetimes(seen: &Self::Seen) -> bool {
        seen.is_some()
    }
}

/// The outcome of an operation, as input of the model of Linux.
fn completed<'a>(
    operation: &FuseOperation<'a>,
    outcome: &FuseOperationResult<'a>,
) -> Option<FileOperation<'a>> {
    let entry = || {
        let entry = outcome.entry()?;
        Some(seen(entry.node, &entry.attributes))
    };
    match *operation {
        FuseOperation::Lookup((parent, name)) => match outcome.0 {
            Ok(_) | Err(Errno::NOENT) => Some(FileOperation::Lookup(object(parent), name, entry())),
            Err(Errno::ACCESS) => Some(FileOperation::Access(object(parent))),
            Err(_) => None,
        },
        // Linux sends ACCESS for denials as well, and caches them.
        FuseOperation::Access(node, mask) => {
            let is_told = mask != 0 && matches!(outcome.0, Ok(_) | Err(Errno::ACCESS));
            is_told.then_some(FileOperation::Access(object(node)))
        }
        _ if outcome.0.is_err() => failed(operation, outcome),
        FuseOperation::Symlink((parent, name), _) => {
            Some(made(LinuxRequest::CreateLink, parent, name, entry()?))
        }
        FuseOperation::Mknod((parent, name), new) => Some(made(request_of_node(new), parent, name, entry()?)),
        FuseOperation::Mkdir((parent, name), _) => {
            Some(made(LinuxRequest::CreateDirectory, parent, name, entry()?))
        }
        FuseOperation::Create((parent, name), create) => Some(FileOperation::Create {
            request: LinuxRequest::CreateFile,
            directory: object(parent),
            name,
            made: entry()?,
            exclusive: create.flags & EXCLUSIVE != 0,
            open: opened(outcome),
        }),
        FuseOperation::Unlink((parent, name)) => Some(FileOperation::Unlink(object(parent), name)),
        FuseOperation::Rmdir((parent, name)) => Some(FileOperation::Rmdir(object(parent), name)),
        FuseOperation::Rename((parent, name), (new_parent, new_name)) => {
            Some(FileOperation::Rename((object(parent), name), (object(new_parent), new_name)))
        }
        FuseOperation::Link(_, (parent, name)) => Some(FileOperation::Link(object(parent), name, entry()?)),
        _ => completed_on_object(operation, outcome),
    }
}

/// An object that was created without being opened.
const fn made<'a>(request: LinuxRequest, parent: NodeId, name: &'a [u8], made: Seen) -> FileOperation<'a> {
    FileOperation::Create { request, directory: object(parent), name, made, exclusive: false, open: None }
}

/// The outcome of a failed operation. Linux decides permission to open and search by the server's
/// last reply, and leaves changes to the server.
fn failed<'a>(operation: &FuseOperation<'a>, outcome: &FuseOperationResult<'a>) -> Option<FileOperation<'a>> {
    let errno = outcome.errno()?;
    let refused = |parent, name: &'a [u8], request| {
        let is_asked = !matches!(errno, Errno::NAMETOOLONG | Errno::INVAL | Errno::NOSYS | Errno::INTR);
        is_asked.then_some(FileOperation::Refused(request, object(parent), Some(name)))
    };
    match *operation {
        FuseOperation::Open(node, _) | FuseOperation::Opendir(node) => {
            (errno == Errno::ACCESS).then_some(FileOperation::OpenRefused(object(node)))
        }
        FuseOperation::Symlink((parent, name), _) => refused(parent, name, LinuxRequest::CreateLink),
        FuseOperation::Mknod((parent, name), new) => refused(parent, name, request_of_node(new)),
        FuseOperation::Mkdir((parent, name), _) => refused(parent, name, LinuxRequest::CreateDirectory),
        FuseOperation::Create((parent, name), _) => refused(parent, name, LinuxRequest::CreateFile),
        FuseOperation::Unlink((parent, name)) => refused(parent, name, LinuxRequest::Remove),
        FuseOperation::Rmdir((parent, name)) => refused(parent, name, LinuxRequest::RemoveDirectory),
        FuseOperation::Rename((parent, name), _) => refused(parent, name, LinuxRequest::Rename),
        FuseOperation::Link(_, (parent, name)) => refused(parent, name, LinuxRequest::HardLink),
        FuseOperation::Setattr(node, _) => {
            Some(FileOperation::Refused(LinuxRequest::SetAttributes, object(node), None))
        }
        FuseOperation::Flush(node) | FuseOperation::Fsync(node) => {
            Some(FileOperation::FlushFailed(object(node)))
        }
        // Linux sees the error only when the data are sent.
        FuseOperation::Write(node, write, count) => Some(written(node, write, count)),
        FuseOperation::Release(_, release) => Some(FileOperation::Release(OpenId(release.fh.0))),
        FuseOperation::Releasedir(_, fh) => Some(FileOperation::Release(OpenId(fh.0))),
        FuseOperation::Lookup(_)
        | FuseOperation::Getattr(_)
        | FuseOperation::Readlink(_)
        | FuseOperation::Read(..)
        | FuseOperation::Statfs(_)
        | FuseOperation::Readdir(..)
        | FuseOperation::Fsyncdir(_)
        | FuseOperation::Access(..)
        | FuseOperation::Getlk(_)
        | FuseOperation::Setlk(_) => None,
    }
}

const fn request_of_node(new: &MknodIn) -> LinuxRequest {
    match new.mode & TYPE {
        REGULAR | 0 => LinuxRequest::CreateFile,
        _ => LinuxRequest::CreateNode,
    }
}

const fn written<'a>(node: NodeId, write: &WriteIn, count: usize) -> FileOperation<'a> {
    let how = Writing {
        durable: write.flags & DURABLE != 0,
        direct: write.flags & DIRECT != 0,
        reads: write.flags & BOTH_WAYS != 0,
    };
    FileOperation::Write(object(node), (write.offset, count as u64), how)
}

/// The same for operations without a name.
fn completed_on_object<'a>(
    operation: &FuseOperation<'a>,
    outcome: &FuseOperationResult<'a>,
) -> Option<FileOperation<'a>> {
    match *operation {
        FuseOperation::Getattr(node) => match outcome.0 {
            Ok(FuseOperationReply::Stat(stat)) => Some(FileOperation::Getattr(seen(node, &stat.attributes))),
            Ok(_) | Err(_) => None,
        },
        FuseOperation::Setattr(node, set) => match outcome.0 {
            Ok(FuseOperationReply::Stat(stat)) => {
                let rights = set.mode.is_some() || set.uid.is_some() || set.gid.is_some();
                Some(FileOperation::Setattr(seen(node, &stat.attributes), rights))
            }
            Ok(_) | Err(_) => None,
        },
        FuseOperation::Readlink(node) => Some(FileOperation::Readlink(object(node))),
        FuseOperation::Open(node, open) => {
            let truncate = open.flags & TRUNCATE != 0;
            Some(FileOperation::Open(object(node), opened(outcome)?, truncate))
        }
        FuseOperation::Opendir(node) => Some(FileOperation::Open(object(node), opened(outcome)?, false)),
        FuseOperation::Read(node, read) => {
            let range = (read.offset, u64::from(read.size));
            Some(if read.flags & DIRECT == 0 {
                FileOperation::Read(object(node), OpenId(read.fh.0), range)
            } else {
                FileOperation::ReadDirect(object(node), range)
            })
        }
        FuseOperation::Write(node, write, _) => match outcome.0 {
            Ok(FuseOperationReply::Bytes(bytes)) => Some(written(node, write, bytes)),
            Ok(_) | Err(_) => None,
        },
        FuseOperation::Statfs(_) => Some(FileOperation::Statfs),
        FuseOperation::Flush(node) | FuseOperation::Fsync(node) => Some(FileOperation::Flush(object(node))),
        FuseOperation::Release(_, release) => Some(FileOperation::Release(OpenId(release.fh.0))),
        FuseOperation::Readdir(node, (fh, from), _) => match outcome.0 {
            Ok(FuseOperationReply::Listed(listing)) => Some(FileOperation::Readdir(
                object(node),
                OpenId(fh.0),
                from == 0,
                DirentBuffer::names(listing).collect(),
            )),
            Ok(_) | Err(_) => None,
        },
        FuseOperation::Releasedir(_, fh) => Some(FileOperation::Release(OpenId(fh.0))),
        FuseOperation::Fsyncdir(_) | FuseOperation::Getlk(_) | FuseOperation::Setlk(_) => None,
        // They have a name.
        FuseOperation::Lookup(_)
        | FuseOperation::Access(..)
        | FuseOperation::Symlink(..)
        | FuseOperation::Mknod(..)
        | FuseOperation::Mkdir(..)
        | FuseOperation::Create(..)
        | FuseOperation::Unlink(_)
        | FuseOperation::Rmdir(_)
        | FuseOperation::Rename(..)
        | FuseOperation::Link(..) => None,
    }
}

fn opened(outcome: &FuseOperationResult<'_>) -> Option<OpenId> {
    match outcome.0 {
        Ok(FuseOperationReply::Opened(opened) | FuseOperationReply::Created(_, opened)) => {
            Some(OpenId(opened.fh.0))
        }
        Ok(_) | Err(_) => None,
    }
}

const fn object(node: NodeId) -> ObjectId {
    ObjectId(node.0)
}

const fn seen(node: NodeId, attributes: &FuseAttr) -> Seen {
    Seen {
        id: object(node),
        kind: match attributes.mode & TYPE {
            REGULAR => FileKind::Regular,
            DIRECTORY => FileKind::Directory,
            LINK => FileKind::Symlink,
            _ => FileKind::Fifo,
        },
        size: attributes.size,
        stamp: stamp(attributes.ctime.seconds, attributes.ctime.nanoseconds),
    }
}

/// A stamp that differs after each change.
pub(super) const fn stamp(seconds: i64, nanoseconds: u32) -> u64 {
    seconds.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(nanoseconds as u64)
}
