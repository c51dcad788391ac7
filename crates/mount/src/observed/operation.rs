//! An operation as observers see it, and its outcome.

use curt_fuse::{
    AttrOut, CreateIn, DirentBuffer, EntryOut, FuseFh, MknodIn, NodeId, OpenIn, OpenOut, ReadIn, ReleaseIn,
    SetattrIn, WriteIn,
};
use rustix::io::Errno;

/// The caller. The thread is 0 for requests of the kernel itself, or if the caller is in a pid
/// namespace that the daemon cannot see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FuseCaller {
    /// The thread.
    pub thread: u32,
    /// The fsuid.
    pub uid: u32,
    /// The fsgid.
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
    /// With the number of bytes.
    Write(NodeId, &'a WriteIn, usize),
    Statfs(NodeId),
    Flush(NodeId),
    Release(NodeId, &'a ReleaseIn),
    Fsync(NodeId),
    Opendir(NodeId),
    /// With the position, and whether entries are requested, too.
    Readdir(NodeId, (FuseFh, u64), bool),
    Releasedir(NodeId, FuseFh),
    Fsyncdir(NodeId),
    Access(NodeId, u32),
    Getlk(NodeId),
    Setlk(NodeId),
}

impl<'a> FuseOperation<'a> {
    /// The object, or the directory and the name in it.
    #[must_use]
    pub const fn place(&self) -> (NodeId, Option<&'a [u8]>) {
        match *self {
            Self::Lookup((parent, name))
            | Self::Symlink((parent, name), _)
            | Self::Mknod((parent, name), _)
            | Self::Mkdir((parent, name), _)
            | Self::Unlink((parent, name))
            | Self::Rmdir((parent, name))
            | Self::Rename((parent, name), _)
            | Self::Link(_, (parent, name))
            | Self::Create((parent, name), _) => (parent, Some(name)),
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

/// The result of a successful operation.
#[derive(Clone, Copy, Debug)]
pub enum FuseOperationReply<'a> {
    /// The entry of a name; without a node: the name does not exist.
    Entry(&'a EntryOut),
    /// Attributes.
    Stat(&'a AttrOut),
    /// A symbolic link's target.
    Target(&'a [u8]),
    /// An open file or directory.
    Opened(&'a OpenOut),
    /// A file that was created and opened.
    Created(&'a EntryOut, &'a OpenOut),
    /// Number of bytes that a READ returned or a WRITE accepted.
    Bytes(usize),
    /// Names.
    Listed(&'a DirentBuffer<'a>),
    /// No further result.
    Done,
}

/// How an operation ended.
#[derive(Clone, Copy, Debug)]
pub struct FuseOperationResult<'a>(pub Result<FuseOperationReply<'a>, Errno>);

impl FuseOperationResult<'_> {
    /// The object of a name, if it was found or created.
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

    /// 0, or the errno. A missing name is an entry without a node, and ENOENT for the program.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match self.0 {
            Ok(FuseOperationReply::Entry(entry)) if entry.node == NodeId(0) => Some(Errno::NOENT),
            Ok(_) => None,
            Err(errno) => Some(errno),
        }
    }
}
