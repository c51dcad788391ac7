//! Operations of programs as the kernel's VFS passes them to a file system.

use crate::{CredentialId, LinuxRequest, ObjectId, OpenId, ReportedObject};

/// An operation, with the server's result.
#[derive(Clone, Debug)]
pub enum FileOperation<'a> {
    /// A look-up of a name, with its object if it exists. The next operation of the same thread
    /// shows its purpose.
    Lookup(ObjectId, &'a [u8], Option<ReportedObject>),
    /// stat(2).
    Getattr(ReportedObject),
    /// access(2), or a directory in a path walk that may not be searched.
    Access(ObjectId),
    /// readlink(2), or a link in a path walk.
    Readlink(ObjectId),
    /// open(2) of a file or a directory; whether O_TRUNC truncates it.
    Open(ObjectId, OpenId, bool),
    /// An open that is refused for lack of permission.
    OpenRefused(ObjectId),
    /// CREATE, MKDIR, SYMLINK or MKNOD of a name.
    Create {
        /// Which of the four requests.
        request: LinuxRequest,
        /// The directory.
        directory: ObjectId,
        /// The name.
        name: &'a [u8],
        /// The new object.
        made: ReportedObject,
        /// O_EXCL.
        exclusive: bool,
        /// The open file afterwards, if any.
        open: Option<OpenId>,
    },
    /// link(2).
    Link(ObjectId, &'a [u8], ReportedObject),
    /// unlink(2).
    Unlink(ObjectId, &'a [u8]),
    /// rmdir(2).
    Rmdir(ObjectId, &'a [u8]),
    /// rename(2).
    Rename((ObjectId, &'a [u8]), (ObjectId, &'a [u8])),
    /// chmod(2), utimes(2) and similar; whether permissions are set.
    Setattr(ReportedObject, bool),
    /// read(2) of a number of bytes at an offset.
    Read(ObjectId, OpenId, (u64, u64)),
    /// read(2) with O_DIRECT.
    ReadDirect(ObjectId, (u64, u64)),
    /// write(2) of a number of bytes at an offset.
    Write(ObjectId, (u64, u64), Writing),
    /// close(2) or fsync(2).
    Flush(ObjectId),
    /// close(2) or fsync(2) if the server does not accept the data.
    FlushFailed(ObjectId),
    /// The last close of an open file or directory.
    Release(OpenId),
    /// getdents(2): whether it is at the beginning, and the names; none at the end.
    Readdir(ObjectId, OpenId, bool, Vec<&'a [u8]>),
    /// statfs(2).
    Statfs,
    /// The server refuses this request for an object, or a name in it.
    Refused(LinuxRequest, ObjectId, Option<&'a [u8]>),
}

/// The context of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationContext {
    /// The thread.
    pub thread: u32,
    /// Its credential.
    pub credential: CredentialId,
    /// The caller's number of the path; 0 if unused.
    pub path: u32,
}

/// How a file is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Writing {
    /// The file was opened with O_SYNC or O_DSYNC.
    pub durable: bool,
    /// The file was opened with O_DIRECT.
    pub direct: bool,
    /// The file is also open for reading: partly written pages are read before.
    pub reads: bool,
}
