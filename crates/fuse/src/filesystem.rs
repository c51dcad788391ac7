//! The trait that handles requests: one method per operation.
//!
//! [`FuseContext`] is the context of each call. A method that is not implemented returns ENOSYS,
//! after which the kernel no longer sends the operation.

use std::{fmt, time::Duration};

use rustix::io::Errno;

use crate::{
    caller_state,
    listing::DirentBuffer,
    reply::ReadReply,
    session::WaitControl,
    setlk_reply::SetlkReply,
    values::{
        AttrOut, CreateIn, EntryOut, FuseFh, LkIn, LockRange, MknodIn, NodeId, OpenIn, OpenOut, ReadIn,
        ReleaseIn, SetattrIn, StatfsOut, WriteIn,
    },
};

/// Ends the wait of a request whose caller no longer waits. One is used for successive requests
/// until it is raised.
pub trait Interruption: Default + Send + Sync + 'static {
    /// Ends all waits under it, now and later.
    fn raise(&self);

    /// Whether it was raised.
    fn is_raised(&self) -> bool;
}

/// The caller of a request, and how its wait may end.
pub struct FuseContext<'a, I> {
    /// The user for file access (fsuid).
    pub uid: u32,
    /// The group for file access (fsgid).
    pub gid: u32,
    /// The calling thread; 0 if it is in a pid namespace that the daemon cannot see.
    pub tid: u32,
    pub(crate) interruption: &'a I,
    pub(crate) waiting: &'a dyn WaitControl,
}

impl<I> fmt::Debug for FuseContext<'_, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FuseContext")
            .field("uid", &self.uid)
            .field("gid", &self.gid)
            .field("tid", &self.tid)
            .finish()
    }
}

impl<'a, I> FuseContext<'a, I> {
    /// Raised when the caller is being killed, or a signal ends its wait for a lock.
    #[must_use]
    pub fn interruption(&self) -> &'a I {
        self.interruption
    }

    /// Also raises the interruption once the server has been silent for 1 s
    /// ([`Filesystem::silent_for`]): the method has an alternative result. Called before the method
    /// waits.
    pub fn give_up_on_silence(&self) {
        self.waiting.give_up_on_silence();
    }

    /// Also raises the interruption once the server has been silent for 1 s and the caller is
    /// exiting: signals no longer reach it. Called before FLUSH waits.
    pub fn give_up_on_exit(&self) {
        self.waiting.give_up_on_exit();
    }

    /// Whether the caller's program has this name, which the caller may have changed.
    #[must_use]
    pub fn is_called(&self, name: &str) -> bool {
        caller_state::is_called(self.tid, name)
    }

    /// Whether the caller is a kernel thread, such as knfsd's; `false` if unknown.
    #[must_use]
    pub fn is_of_kernel(&self) -> bool {
        caller_state::is_of_kernel(self.tid)
    }

    /// The file system has counted this request: it is no longer under way
    /// ([`RequestBarrier`](crate::RequestBarrier)).
    pub fn mark_received(&self) {
        self.waiting.mark_received();
    }

    /// Waits until all requests that the kernel sent before this one have arrived, for about a
    /// second at most. (The kernel delays some requests without a waiting process until others of
    /// that kind are answered: these arrive later.)
    pub fn wait_for_earlier(&self) {
        self.waiting.wait_for_earlier();
    }
}

/// Handles the kernel's requests. Methods are called on many threads at once and may wait.
pub trait Filesystem: Send + Sync + 'static {
    /// Ends waits.
    type Interruption: Interruption;

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
    fn lookup(
        &self,
        context: &FuseContext<'_, Self::Interruption>,
        parent: NodeId,
        name: &[u8],
    ) -> Result<EntryOut, Errno>;

    /// The error to return for LOOKUP of `name` instead of `refusal`. For any error but ENOMEM and
    /// EINTR a kernel that has cached the name drops it, and unmounts the file systems that are
    /// mounted there and below (Linux, `fuse_dentry_revalidate`).
    fn refused_lookup(&self, _parent: NodeId, _name: &[u8], refusal: Errno) -> Errno {
        refusal
    }

    /// Decrements a look-up count; at 0 the kernel has forgotten the object.
    fn forget(&self, node: NodeId, lookups: u64);

    /// Returns attributes, possibly of an open file.
    fn getattr(
        &self,
        context: &FuseContext<'_, Self::Interruption>,
        node: NodeId,
        fh: Option<FuseFh>,
    ) -> Result<AttrOut, Errno>;

    /// Changes attributes.
    fn setattr(
        &self,
        _: &FuseContext<'_, Self::Interruption>,
        _node: NodeId,
        _set: &SetattrIn,
    ) -> Result<AttrOut, Errno> {
        Err(Errno::NOSYS)
    }

    /// Passes the target of a symbolic link to `target`.
    fn readlink(
        &self,
        _: &FuseContext<'_, Self::Interruption>,
        _node: NodeId,
        _target: &mut Vec<u8>,
    ) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }

    /// Creates a symbolic link.
    fn symlink(
        &self,
        _: &FuseContext<'_, Self::Interruption>,
        _parent: NodeId,
        _name: &[u8],
        _target: &[u8],
    ) -> Result<EntryOut, Errno> {
        Err(Errno::NOSYS)
    }

    /// Creates a file, device, pipe or socket.
    fn mknod(
        &self,
        _: &FuseContext<'_, Self::Interruption>,
        _parent: NodeId,
        _name: &[u8],
        _new: &MknodIn,
    ) -> Result<EntryOut, Errno> {
        Err(Errno::NOSYS)
    }

    /// Creates a directory.
    fn mkdir(
        &self,
        _: &FuseContext<'_, Self::Interruption>,
        _parent: NodeId,
        _name: &[u8],
        _mode: u32,
    ) -> Result<EntryOut, Errno> {
        Err(Errno::NOSYS)
    }

    /// Removes a name that is not a directory.
    fn unlink(
        &self,
        _: &FuseContext<'_, Self::Interruption>,
        _parent: NodeId,
        _name: &[u8],
    ) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }

    /// Removes an empty directory.
    fn rmdir(
        &self,
        _: &FuseContext<'_, Self::Interruption>,
        _parent: NodeId,
        _name: &[u8],
    ) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }

    /// Renames an object; `flags` are those of renameat2(2).
    fn rename(
        &self,
        _: &FuseContext<'_, Self::Interruption>,
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
        _: &FuseContext<'_, Self::Interruption>,
        _node: NodeId,
        _parent: NodeId,
        _name: &[u8],
    ) -> Result<EntryOut, Errno> {
        Err(Errno::NOSYS)
    }

    /// Opens a file.
    fn open(
        &self,
        context: &FuseContext<'_, Self::Interruption>,
        node: NodeId,
        open: &OpenIn,
    ) -> Result<OpenOut, Errno>;

    /// Creates and opens a file.
    fn create(
        &self,
        _: &FuseContext<'_, Self::Interruption>,
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
        context: &FuseContext<'_, Self::Interruption>,
        node: NodeId,
        read: &ReadIn,
        reply: &ReadReply,
    ) -> Result<(), Errno>;

    /// Writes; returns the number of bytes written.
    fn write(
        &self,
        _: &FuseContext<'_, Self::Interruption>,
        _node: NodeId,
        _write: &WriteIn,
        _data: &[u8],
    ) -> Result<u32, Errno> {
        Err(Errno::ROFS)
    }

    /// Returns the sizes of the file system.
    fn statfs(&self, context: &FuseContext<'_, Self::Interruption>, node: NodeId)
    -> Result<StatfsOut, Errno>;

    /// A descriptor of an open file is closed; the result is that of close(2).
    fn flush(
        &self,
        _: &FuseContext<'_, Self::Interruption>,
        _node: NodeId,
        _fh: FuseFh,
        _lock_owner: u64,
    ) -> Result<(), Errno> {
        Ok(())
    }

    /// The last descriptor of an open file is closed. No process waits for it or gets its error.
    fn release(&self, context: &FuseContext<'_, Self::Interruption>, node: NodeId, release: &ReleaseIn);

    /// Makes a file's data durable, and unless `data_only` its attributes.
    fn fsync(
        &self,
        _: &FuseContext<'_, Self::Interruption>,
        _node: NodeId,
        _fh: FuseFh,
        _data_only: bool,
    ) -> Result<(), Errno> {
        Ok(())
    }

    /// Opens a directory.
    fn opendir(
        &self,
        context: &FuseContext<'_, Self::Interruption>,
        node: NodeId,
        flags: u32,
    ) -> Result<OpenOut, Errno>;

    /// Passes the names after `offset` (0, or the `next` of a name) to `listing`; none means the
    /// end.
    fn readdir(
        &self,
        context: &FuseContext<'_, Self::Interruption>,
        node: NodeId,
        fh: FuseFh,
        offset: u64,
        listing: &mut DirentBuffer<'_>,
    ) -> Result<(), Errno>;

    /// The last descriptor of an open directory is closed.
    fn releasedir(&self, context: &FuseContext<'_, Self::Interruption>, node: NodeId, fh: FuseFh);

    /// Makes a directory's changes durable.
    fn fsyncdir(
        &self,
        _: &FuseContext<'_, Self::Interruption>,
        _node: NodeId,
        _fh: FuseFh,
    ) -> Result<(), Errno> {
        Ok(())
    }

    /// Whether the caller has all permissions of `mask` (R_OK 4, W_OK 2, X_OK 1): access(2) and
    /// chdir(2).
    fn access(
        &self,
        context: &FuseContext<'_, Self::Interruption>,
        node: NodeId,
        mask: u32,
    ) -> Result<(), Errno>;

    /// The lock that conflicts with this one, if any.
    fn getlk(
        &self,
        _: &FuseContext<'_, Self::Interruption>,
        _node: NodeId,
        _lock: &LkIn,
    ) -> Result<LockRange, Errno> {
        Err(Errno::NOLCK)
    }

    /// Sets or releases a lock, and waits for it if `wait`. `reply` is sent at any time, on any
    /// thread; until then the interruption of `context` tells that the caller no longer waits.
    fn setlk(
        &self,
        _: &FuseContext<'_, Self::Interruption>,
        _node: NodeId,
        _lock: &LkIn,
        _wait: bool,
        reply: SetlkReply,
    ) {
        reply.send(Err(Errno::NOLCK));
    }
}
