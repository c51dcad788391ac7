//! What answers requests: one method for each operation.
//!
//! Owns the [`Filesystem`] trait and the [`FuseContext`] that each method is given. A method that
//! is not implemented answers ENOSYS, after which the kernel does without the operation. Knows no
//! descriptors.

use std::{fmt, time::Duration};

use rustix::io::Errno;

use crate::{
    caller_state,
    listing::DirentBuffer,
    reply::ReadReply,
    session::WaitControl,
    values::{
        AttrOut, CreateIn, EntryOut, FuseFh, LkIn, LockRange, MknodIn, NodeId, OpenIn, OpenOut, ReadIn,
        ReleaseIn, SetattrIn, StatfsOut, WriteIn,
    },
};

/// By what a request that waits is told that its caller does not wait any more. One is used for
/// many requests, one after the other, until it is raised.
pub trait Interruption: Default + Send + Sync + 'static {
    /// Makes every wait under it end soon, now and later.
    fn raise(&self);

    /// Whether it was raised.
    fn is_raised(&self) -> bool;
}

/// Whose request it is, and how its wait may end.
pub struct FuseContext<'a, I> {
    /// The user for file access (fsuid).
    pub uid: u32,
    /// The group for file access (fsgid).
    pub gid: u32,
    /// The calling thread; 0 if it is in a process-id namespace that we do not see.
    pub tid: u32,
    pub(crate) interruption: &'a I,
    pub(crate) waiting: &'a dyn WaitControl,
}

impl<I> fmt::Debug for FuseContext<'_, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
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

    /// Raises the interruption too once the server has been silent for 1 s
    /// ([`Filesystem::silent_for`]): the method has something else to answer with. To be called
    /// before it waits.
    pub fn give_up_on_silence(&self) {
        self.waiting.give_up_on_silence();
    }

    /// Raises the interruption too once the server has been silent for 1 s and the caller is
    /// exiting: no signal reaches it any more. To be called before FLUSH waits.
    pub fn give_up_on_exit(&self) {
        self.waiting.give_up_on_exit();
    }

    /// Whether the caller runs the program of this name, for all that it says of itself.
    #[must_use]
    pub fn is_called(&self, name: &str) -> bool {
        caller_state::is_called(self.tid, name)
    }

    /// Whether the caller is a thread of the kernel, as knfsd's are; not if it cannot be looked at.
    #[must_use]
    pub fn is_of_kernel(&self) -> bool {
        caller_state::is_of_kernel(self.tid)
    }

    /// The file system has taken note of this request: from now on it is not on its way any more
    /// ([`crate::Arrivals`]).
    pub fn mark_received(&self) {
        self.waiting.mark_received();
    }

    /// Waits until every request that the kernel gave before this one has arrived, for about a
    /// second at most. (The kernel holds back some that nobody waits for, until others of that kind
    /// are answered: these come after.)
    pub fn wait_for_earlier(&self) {
        self.waiting.wait_for_earlier();
    }
}

/// Answers the kernel's requests. Methods are called on many threads at once and may wait as long
/// as they have to.
pub trait Filesystem: Send + Sync + 'static {
    /// By what waits are ended.
    type Interruption: Interruption;

    /// For how long something has been waited for without a word from the server; `None` while
    /// nothing is.
    fn silent_for(&self) -> Option<Duration> {
        None
    }

    /// Finds a name; [`EntryOut::missing`] or ENOENT if it is not there. An object that is answered
    /// counts one look-up.
    ///
    /// `.` stands for `parent` itself, which need not be a directory: a handle of it was opened
    /// (open_by_handle_at(2)), perhaps after the kernel has forgotten it. Then `..` may be asked
    /// for to find out where a directory is. No path asks for either.
    fn lookup(
        &self,
        context: &FuseContext<'_, Self::Interruption>,
        parent: NodeId,
        name: &[u8],
    ) -> Result<EntryOut, Errno>;

    /// What LOOKUP of `name` is answered with instead of `refusal`. A kernel that has cached the
    /// name drops it at any error but ENOMEM and EINTR, and unmounts what is mounted there and
    /// below (Linux, `fuse_dentry_revalidate`).
    fn refused_lookup(&self, _parent: NodeId, _name: &[u8], refusal: Errno) -> Errno {
        refusal
    }

    /// Gives back look-ups; at 0 the kernel has forgotten the object.
    fn forget(&self, node: NodeId, lookups: u64);

    /// Attributes, perhaps of an open file.
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

    /// Gives the target of a symbolic link to `target`.
    fn readlink(
        &self,
        _: &FuseContext<'_, Self::Interruption>,
        _node: NodeId,
        _target: &mut Vec<u8>,
    ) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }

    /// Makes a symbolic link.
    fn symlink(
        &self,
        _: &FuseContext<'_, Self::Interruption>,
        _parent: NodeId,
        _name: &[u8],
        _target: &[u8],
    ) -> Result<EntryOut, Errno> {
        Err(Errno::NOSYS)
    }

    /// Makes a file, device, pipe or socket.
    fn mknod(
        &self,
        _: &FuseContext<'_, Self::Interruption>,
        _parent: NodeId,
        _name: &[u8],
        _new: &MknodIn,
    ) -> Result<EntryOut, Errno> {
        Err(Errno::NOSYS)
    }

    /// Makes a directory.
    fn mkdir(
        &self,
        _: &FuseContext<'_, Self::Interruption>,
        _parent: NodeId,
        _name: &[u8],
        _mode: u32,
    ) -> Result<EntryOut, Errno> {
        Err(Errno::NOSYS)
    }

    /// Removes a name that is not a directory's.
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

    /// Moves a name; `flags` are those of renameat2(2).
    fn rename(
        &self,
        _: &FuseContext<'_, Self::Interruption>,
        _from: (NodeId, &[u8]),
        _to: (NodeId, &[u8]),
        _flags: u32,
    ) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }

    /// Makes another name for an object.
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

    /// Makes and opens a file.
    fn create(
        &self,
        _: &FuseContext<'_, Self::Interruption>,
        _parent: NodeId,
        _name: &[u8],
        _create: &CreateIn,
    ) -> Result<(EntryOut, OpenOut), Errno> {
        Err(Errno::NOSYS)
    }

    /// Reads, and has `reply` send what was read, at most once, here or on another thread before
    /// this returns. Less than wanted means the end of the file.
    fn read(
        &self,
        context: &FuseContext<'_, Self::Interruption>,
        node: NodeId,
        read: &ReadIn,
        reply: &ReadReply,
    ) -> Result<(), Errno>;

    /// Writes; returns how much was taken.
    fn write(
        &self,
        _: &FuseContext<'_, Self::Interruption>,
        _node: NodeId,
        _write: &WriteIn,
        _data: &[u8],
    ) -> Result<u32, Errno> {
        Err(Errno::ROFS)
    }

    /// Sizes of the file system.
    fn statfs(&self, context: &FuseContext<'_, Self::Interruption>, node: NodeId)
    -> Result<StatfsOut, Errno>;

    /// A descriptor of an open file is closed; what is answered is what close(2) returns.
    fn flush(
        &self,
        _: &FuseContext<'_, Self::Interruption>,
        _node: NodeId,
        _fh: FuseFh,
        _lock_owner: u64,
    ) -> Result<(), Errno> {
        Ok(())
    }

    /// The last descriptor of an open file is gone. Nobody waits for it or sees its error.
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

    /// Gives the names that follow `offset` (0, or the `next` of a name) to `listing`; none means
    /// the end.
    fn readdir(
        &self,
        context: &FuseContext<'_, Self::Interruption>,
        node: NodeId,
        fh: FuseFh,
        offset: u64,
        listing: &mut DirentBuffer<'_>,
    ) -> Result<(), Errno>;

    /// The last descriptor of an open directory is gone.
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

    /// Whether the caller may do all of `mask` (R_OK 4, W_OK 2, X_OK 1): access(2) and chdir(2).
    fn access(
        &self,
        context: &FuseContext<'_, Self::Interruption>,
        node: NodeId,
        mask: u32,
    ) -> Result<(), Errno>;

    /// Which lock, if any, keeps this one from being taken.
    fn getlk(
        &self,
        _: &FuseContext<'_, Self::Interruption>,
        _node: NodeId,
        _lock: &LkIn,
    ) -> Result<LockRange, Errno> {
        Err(Errno::NOLCK)
    }

    /// Takes or gives back a lock, waiting for it if `wait`.
    fn setlk(
        &self,
        _: &FuseContext<'_, Self::Interruption>,
        _node: NodeId,
        _lock: &LkIn,
        _wait: bool,
    ) -> Result<(), Errno> {
        Err(Errno::NOLCK)
    }
}
