//! SETATTR: the kernel needs a system call for each attribute. The owner's permissions are checked
//! before the first, so that a call that fails for lack of permission has changed nothing.

use std::os::fd::{AsFd, BorrowedFd};

use curt_types::{Attributes, FileKind, SetAttributes, SetTime, Timestamp};
use rustix::fs::{AtFlags, CWD, Gid, Mode, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

use super::LocalVfs;
use super::data::{OpenAccess, proc_path, retry};
use super::sys::check_access;
use crate::caller::FsCred;
use crate::error::Error;
use crate::mode::revoke;

impl LocalVfs {
    /// Sets attributes, with the credentials of this thread.
    pub(super) fn set(
        &self,
        caller: &FsCred<'_>,
        fd: BorrowedFd<'_>,
        before: &Attributes,
        set: &SetAttributes,
    ) -> Result<(), Error> {
        check_owner(caller, before, set)?;
        // Opened before anything changes: this may fail.
        let file = match set.size {
            Some(_) => Some(self.open_data(caller, fd, before, OpenAccess::Write)?),
            None => None,
        };
        if set.uid.is_some() || set.gid.is_some() {
            let (uid, gid) = (set.uid.map(Uid::from_raw), set.gid.map(Gid::from_raw));
            let change = || rustix::fs::chownat(fd, c"", uid, gid, AtFlags::EMPTY_PATH);
            self.identity.with_capabilities(setting(caller), change)??;
        }
        if let (Some(file), Some(size)) = (file, set.size) {
            if i64::try_from(size).is_err() {
                return Err(Errno::FBIG.into());
            }
            retry(|| rustix::fs::ftruncate(&file, size))?;
        }
        self.set_mode(caller, fd, before, set)?;
        self.set_times(caller, fd, before, set)
    }

    fn set_mode(
        &self,
        caller: &FsCred<'_>,
        fd: BorrowedFd<'_>,
        before: &Attributes,
        set: &SetAttributes,
    ) -> Result<(), Error> {
        let Some(mode) = set.mode.filter(|_| before.kind != FileKind::Symlink) else {
            return Ok(());
        };
        let chown = set.uid.is_some() || set.gid.is_some();
        let mode = if chown && before.kind != FileKind::Directory { revoke(mode) } else { mode };
        let path = proc_path(fd);
        let change =
            || rustix::fs::chmodat(CWD, path.as_str(), Mode::from_raw_mode(mode & 0o7777), AtFlags::empty());
        Ok(self.identity.with_capabilities(setting(caller), change)??)
    }

    fn set_times(
        &self,
        caller: &FsCred<'_>,
        fd: BorrowedFd<'_>,
        before: &Attributes,
        set: &SetAttributes,
    ) -> Result<(), Error> {
        if (set.atime, set.mtime) == (SetTime::Keep, SetTime::Keep) {
            return Ok(());
        }
        let times = Timestamps { last_access: time(set.atime), last_modification: time(set.mtime) };
        let change = || rustix::fs::utimensat(fd, c"", &times, AtFlags::EMPTY_PATH);
        let owner = caller.privileged || caller.uid == before.uid;
        if owner || explicit(set) {
            return Ok(change()?);
        }
        // utimensat(2) lets a caller with write permission set both times to now, NFS also one of
        // them.
        check_access(fd, libc::W_OK)?;
        Ok(self.identity.with_capabilities(CapabilitySet::FOWNER, change)??)
    }
}

/// Capabilities that SETATTR needs beyond the caller's: without them root's chmod and chown would
/// clear the setgid bit of files of groups that root is not in.
pub(super) fn setting(caller: &FsCred<'_>) -> CapabilitySet {
    if caller.privileged { CapabilitySet::FSETID } else { CapabilitySet::empty() }
}

fn explicit(set: &SetAttributes) -> bool {
    matches!(set.atime, SetTime::Time(_)) || matches!(set.mtime, SetTime::Time(_))
}

fn check_owner(caller: &FsCred<'_>, before: &Attributes, set: &SetAttributes) -> Result<(), Errno> {
    let owner = caller.privileged || caller.uid == before.uid;
    let gives_away = set.uid.is_some_and(|uid| uid != before.uid) && !caller.privileged;
    let owners_only = set.mode.is_some() || set.uid.is_some() || set.gid.is_some() || explicit(set);
    if gives_away || (owners_only && !owner) { Err(Errno::PERM) } else { Ok(()) }
}

fn time(set: SetTime) -> Timespec {
    match set {
        SetTime::Keep => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        SetTime::ServerTime => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        SetTime::Time(time) => exact(time),
    }
}

fn exact(time: Timestamp) -> Timespec {
    Timespec { tv_sec: time.seconds(), tv_nsec: time.nanoseconds().into() }
}

/// Sets the mtime and the atime of a new file.
pub(super) fn set_both_times(fd: impl AsFd, mtime: Timestamp, atime: Timestamp) -> Result<(), Errno> {
    let times = Timestamps { last_access: exact(atime), last_modification: exact(mtime) };
    rustix::fs::futimens(fd, &times)
}
