//! The trait that handles requests: one method per operation.
//!
//! [`FuseContext`] is the context of each call. A method that is not implemented returns ENOSYS,
//! after which the kernel no longer sends the operation.

use std::time::Duration;

use rustix::io::Errno;

use crate::{
    listing::DirentBuffer,
    message_fields::{
        AttrOut, CreateIn, EntryOut, FuseFh, LkIn, LockRange, MknodIn, NodeId, OpenIn, OpenOut, ReadIn,
        ReleaseIn, SetattrIn, StatfsOut, WriteIn,
    },
    reply::ReadReply,
    requests_in_progress::FuseContext,
    setlk_reply::SetlkReply,
};

/// Handles the kernel's requests. Methods are called on many threads at once and may wait.
pub trait Filesystem: Send + Sync + 'static {
    /// The time for which requests have waited without a reply from the server; `None` while none
    /// waits.
    fn silent_for(&self) -> Option<Duration> {
        None
    }

    /// Looks up a name; [`EntryOut::missing`] or ENOENT if it does not exist. A returned object
    /// gets one more look-up count.
    ///
    /// `.` refers to `parent` itself, which need not be a directory: a handle of it was opened
    /// (open_by_handle_at(2)), perhaps after the kernel has forgotten it. The kernel may then look
    /// up `..` to find the parent of a directory. Path walks look up neither.
    fn lookup(&self, context: &FuseContext<'_>, parent: NodeId, name: &[u8]) -> Result<EntryOut, Errno>;

    /// The error to return for LOOKUP of `name` instead of `refusal`. For any error but ENOMEM and
    /// EINTR a kernel that has cached the name drops it, and unmounts the file systems that are
    /// mounted there and below (Linux, `fuse_dentry_revalidate`).
    fn refused_lookup(&self, _parent: NodeId, _name: &[u8], refusal: Errno) -> Errno {
        refusal
    }

    /// Decrements a look-up count; at 0 the kernel has forgotten the object.
    fn forget(&self, node: NodeId, lookups: u64);

    /// Returns attributes, possibly of an open file.
    fn getattr(&self, context: &FuseContext<'_>, node: NodeId, fh: Option<FuseFh>) -> Result<AttrOut, Errno>;

    /// Changes attributes.
    fn setattr(&self, _: &FuseContext<'_>, _node: NodeId, _set: &SetattrIn) -> Result<AttrOut, Errno> {
        Err(Errno::NOSYS)
    }

    /// Passes the target of a symbolic link to `target`.
    fn readlink(&self, _: &FuseContext<'_>, _node: NodeId, _target: &mut Vec<u8>) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }

    /// Creates a symbolic link.
    fn symlink(
        &self,
        _: &FuseContext<'_>,
        _parent: NodeId,
        _name: &[u8],
        _target: &[u8],
    ) -> Result<EntryOut, Errno> {
        Err(Errno::NOSYS)
    }

    /// Creates a file, device, pipe or socket.
    fn mknod(
        &self,
        _: &FuseContext<'_>,
        _parent: NodeId,
        _name: &[u8],
        _new: &MknodIn,
    ) -> Result<EntryOut, Errno> {
        Err(Errno::NOSYS)
    }

    /// Creates a directory.
    fn mkdir(
        &self,
        _: &FuseContext<'_>,
        _parent: NodeId,
        _name: &[u8],
        _mode: u32,
    ) -> Result<EntryOut, Errno> {
        Err(Errno::NOSYS)
    }

    /// Removes a name that is not a directory.
    fn unlink(&self, _: &FuseContext<'_>, _parent: NodeId, _name: &[u8]) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }

    /// Removes an empty directory.
    fn rmdir(&self, _: &FuseContext<'_>, _parent: NodeId, _name: &[u8]) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }

    /// Renames an object; `flags` are those of renameat2(2).
    fn rename(
        &self,
        _: &FuseContext<'_>,
        _parent: NodeId,
        _name: &[u8],
        _new_parent: NodeId,
        _new_name: &[u8],
        _flags: u32,
    ) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }

    /// Creates a hard link.
    fn link(
        &self,
        _: &FuseContext<'_>,
        _node: NodeId,
        _parent: NodeId,
        _name: &[u8],
    ) -> Result<EntryOut, Errno> {
        Err(Errno::NOSYS)
    }

    /// Opens a file.
    fn open(&self, context: &FuseContext<'_>, node: NodeId, open: &OpenIn) -> Result<OpenOut, Errno>;

    /// Creates and opens a file.
    fn create(
        &self,
        _: &FuseContext<'_>,
        _parent: NodeId,
        _name: &[u8],
        _create: &CreateIn,
    ) -> Result<(EntryOut, OpenOut), Errno> {
        Err(Errno::NOSYS)
    }

    /// Reads, and has `reply` send the data, at most once, on this or another thread before this
    /// returns. Fewer bytes than requested mean the end of the file.
    fn read(
        &self,
        context: &FuseContext<'_>,
        node: NodeId,
        read: &ReadIn,
        reply: &ReadReply,
    ) -> Result<(), Errno>;

    /// Writes; returns the number of bytes written.
    fn write(
        &self,
        _: &FuseContext<'_>,
        _node: NodeId,
        _write: &WriteIn,
        _data: &[u8],
    ) -> Result<u32, Errno> {
        Err(Errno::ROFS)
    }

    /// Returns the sizes of the file system.
    fn statfs(&self, context: &FuseContext<'_>, node: NodeId) -> Result<StatfsOut, Errno>;

    /// A descriptor of an open file is closed; the result is that of close(2).
    fn flush(&self, _: &FuseContext<'_>, _node: NodeId, _fh: FuseFh, _lock_owner: u64) -> Result<(), Errno> {
        Ok(())
    }

    /// The last descriptor of an open file is closed. No process waits for it or gets its error.
    fn release(&self, context: &FuseContext<'_>, node: NodeId, release: &ReleaseIn);

    /// Makes a file's data durable, and unless `data_only` its attributes.
    fn fsync(&self, _: &FuseContext<'_>, _node: NodeId, _fh: FuseFh, _data_only: bool) -> Result<(), Errno> {
        Ok(())
    }

    /// Opens a directory.
    fn opendir(&self, context: &FuseContext<'_>, node: NodeId, flags: u32) -> Result<OpenOut, Errno>;

    /// Passes the names after `offset` (0, or the `next` of a name) to `listing`; none means the
    /// end.
    fn readdir(
        &self,
        context: &FuseContext<'_>,
        node: NodeId,
        fh: FuseFh,
        offset: u64,
        listing: &mut DirentBuffer<'_>,
    ) -> Result<(), Errno>;

    /// The last descriptor of an open directory is closed.
    fn releasedir(&self, context: &FuseContext<'_>, node: NodeId, fh: FuseFh);

    /// Makes a directory's changes durable.
    fn fsyncdir(&self, _: &FuseContext<'_>, _node: NodeId, _fh: FuseFh) -> Result<(), Errno> {
        Ok(())
    }

    /// Whether the caller has all permissions of `mask` (R_OK 4, W_OK 2, X_OK 1): access(2) and
    /// chdir(2).
    fn access(&self, context: &FuseContext<'_>, node: NodeId, mask: u32) -> Result<(), Errno>;

    /// The lock that conflicts with this one, if any.
    fn getlk(&self, _: &FuseContext<'_>, _node: NodeId, _lock: &LkIn) -> Result<LockRange, Errno> {
        Err(Errno::NOLCK)
    }

    /// Sets or releases a lock, and waits for it if `wait`. `reply` is sent at any time, on any
    /// thread; until then the interruption of `context` shows that the caller no longer waits.
    fn setlk(&self, _: &FuseContext<'_>, _node: NodeId, _lock: &LkIn, _wait: bool, reply: SetlkReply) {
        reply.send(Err(Errno::NOLCK));
    }
}
