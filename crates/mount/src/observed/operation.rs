//! What an observer sees: an operation that begins, and its outcome.

use curt_fuse::{
    AttrOut, CreateIn, DirentBuffer, EntryOut, FuseFh, MknodIn, NodeId, OpenIn, OpenOut, ReadIn, ReleaseIn,
    SetattrIn, WriteIn,
};
use rustix::io::Errno;

/// Who asks. The thread is 0 where the kernel asks of its own accord, or the caller is in a
/// process-id namespace that we do not see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FuseCaller {
    /// The thread.
    pub thread: u32,
    /// The user for file access.
    pub uid: u32,
    /// The group for file access.
    pub gid: u32,
}

/// An operation with its arguments. A name comes with its directory.
#[derive(Clone, Copy, Debug)]
#[expect(
    missing_docs,
    reason = "the names are those of the methods of Filesystem, whose documentation says what each does"
)]
pub enum FuseOperation<'a> {
    Lookup((NodeId, &'a [u8])),
    Getattr(NodeId),
    Setattr(NodeId, &'a SetattrIn),
    Readlink(NodeId),
    Symlink((NodeId, &'a [u8]), &'a [u8]),
    Mknod((NodeId, &'a [u8]), &'a MknodIn),
    Mkdir((NodeId, &'a [u8]), u32),
    Unlink((NodeId, &'a [u8])),
    Rmdir((NodeId, &'a [u8])),
    Rename((NodeId, &'a [u8]), (NodeId, &'a [u8])),
    Link(NodeId, (NodeId, &'a [u8])),
    Open(NodeId, &'a OpenIn),
    Create((NodeId, &'a [u8]), &'a CreateIn),
    Read(NodeId, &'a ReadIn),
    /// And how many bytes.
    Write(NodeId, &'a WriteIn, usize),
    Statfs(NodeId),
    Flush(NodeId),
    Release(NodeId, &'a ReleaseIn),
    Fsync(NodeId),
    Opendir(NodeId),
    /// From a position, and whether what the names lead to is wanted, too.
    Readdir(NodeId, (FuseFh, u64), bool),
    Releasedir(NodeId, FuseFh),
    Fsyncdir(NodeId),
    Access(NodeId, u32),
    Getlk(NodeId),
    Setlk(NodeId),
}

impl<'a> FuseOperation<'a> {
    /// The object that it is about, or the directory and the name in it.
    #[must_use]
    pub const fn place(&self) -> (NodeId, Option<&'a [u8]>) {
        match *self {
            Self::Lookup(at)
            | Self::Symlink(at, _)
            | Self::Mknod(at, _)
            | Self::Mkdir(at, _)
            | Self::Unlink(at)
            | Self::Rmdir(at)
            | Self::Rename(at, _)
            | Self::Link(_, at)
            | Self::Create(at, _) => (at.0, Some(at.1)),
            Self::Getattr(node)
            | Self::Setattr(node, _)
            | Self::Readlink(node)
            | Self::Open(node, _)
            | Self::Read(node, _)
            | Self::Write(node, ..)
            | Self::Statfs(node)
            | Self::Flush(node)
            | Self::Release(node, _)
            | Self::Fsync(node)
            | Self::Opendir(node)
            | Self::Readdir(node, ..)
            | Self::Releasedir(node, _)
            | Self::Fsyncdir(node)
            | Self::Access(node, _)
            | Self::Getlk(node)
            | Self::Setlk(node) => (node, None),
        }
    }
}

/// The answer of an operation that succeeded.
#[derive(Clone, Copy, Debug)]
pub enum FuseOperationReply<'a> {
    /// What a name leads to; without a node: nothing.
    Entry(&'a EntryOut),
    /// Attributes.
    Stat(&'a AttrOut),
    /// A symbolic link's target.
    Target(&'a [u8]),
    /// An open file or directory.
    Opened(&'a OpenOut),
    /// A file that was made and opened.
    Created(&'a EntryOut, &'a OpenOut),
    /// Bytes that a READ returned, or a WRITE took.
    Bytes(usize),
    /// Names.
    Listed(&'a DirentBuffer<'a>),
    /// Nothing further.
    Done,
}

/// How an operation ended.
#[derive(Clone, Copy, Debug)]
pub struct FuseOperationResult<'a>(pub Result<FuseOperationReply<'a>, Errno>);

impl FuseOperationResult<'_> {
    /// What a name leads to, if it was found or made.
    #[must_use]
    pub fn entry(&self) -> Option<&EntryOut> {
        match self.0 {
            Ok(FuseOperationReply::Entry(entry) | FuseOperationReply::Created(entry, _))
                if entry.node != NodeId(0) =>
            {
                Some(entry)
            }
            Ok(_) | Err(_) => None,
        }
    }

    /// 0, or the errno. A missing name is answered by an entry without a node, and is ENOENT to the
    /// program.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match self.0 {
            Ok(FuseOperationReply::Entry(entry)) if entry.node == NodeId(0) => Some(Errno::NOENT),
            Ok(_) => None,
            Err(errno) => Some(errno),
        }
    }
}
