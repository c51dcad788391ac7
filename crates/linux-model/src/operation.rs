//! What the kernel's file system layer asks of a file system for programs.

use crate::{LinuxRequest, ObjectId, OpenId, Seen, Who};

/// An operation, with what the server would answer.
#[derive(Clone, Debug)]
pub enum FileOperation<'a> {
    /// A name is looked up: it leads to this, or to nothing. The next operation of the same thread
    /// shows what for.
    Lookup(ObjectId, &'a [u8], Option<Seen>),
    /// stat(2).
    Getattr(Seen),
    /// access(2), a directory on the way that may not be searched.
    Access(ObjectId),
    /// readlink(2), or a link on the way.
    Readlink(ObjectId),
    /// open(2) of a file or a directory; and whether O_TRUNC empties it.
    Open(ObjectId, OpenId, bool),
    /// An open that is refused for want of rights.
    OpenRefused(ObjectId),
    /// CREATE, MKDIR, SYMLINK or MKNOD of a name makes this.
    Create {
        /// Which of the four requests does it.
        request: LinuxRequest,
        /// Where the name is.
        directory: ObjectId,
        /// The name.
        name: &'a [u8],
        /// What is made.
        made: Seen,
        /// O_EXCL.
        exclusive: bool,
        /// It is open afterwards.
        open: Option<OpenId>,
    },
    /// link(2).
    Link(ObjectId, &'a [u8], Seen),
    /// unlink(2).
    Unlink(ObjectId, &'a [u8]),
    /// rmdir(2).
    Rmdir(ObjectId, &'a [u8]),
    /// rename(2), from a name to another.
    Rename((ObjectId, &'a [u8]), (ObjectId, &'a [u8])),
    /// chmod(2), utimes(2) and the like; and whether rights are set.
    Setattr(Seen, bool),
    /// read(2) of so many bytes from an offset.
    Read(ObjectId, OpenId, (u64, u64)),
    /// The same past the page cache (O_DIRECT).
    ReadDirect(ObjectId, (u64, u64)),
    /// write(2) of so many bytes at an offset.
    Write(ObjectId, (u64, u64), Writing),
    /// close(2) or fsync(2).
    Flush(ObjectId),
    /// The same where the server does not take the bytes.
    FlushFailed(ObjectId),
    /// The last close of an open file or directory.
    Release(OpenId),
    /// getdents(2): whether it begins at the beginning, and the names; none at the end.
    Readdir(ObjectId, OpenId, bool, Vec<&'a [u8]>),
    /// statfs(2).
    Statfs,
    /// The server refuses this request about an object, or a name in it.
    Refused(LinuxRequest, ObjectId, Option<&'a [u8]>),
}

/// For whom an operation is performed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationContext {
    /// The thread.
    pub thread: u32,
    /// Its rights.
    pub who: Who,
    /// What the caller knows the operation's path by; 0 where nobody asks.
    pub path: u32,
}

/// How a file is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Writing {
    /// It was opened with O_SYNC or O_DSYNC.
    pub durable: bool,
    /// It was opened with O_DIRECT.
    pub direct: bool,
    /// It was opened to be read, too: a page that is written in part is read before.
    pub reads: bool,
}
