//! A mount point: whether it exists, detaching it, and ending its connection.
//!
//! The mount is found in /proc/self/mountinfo by its path and device number. The file system itself
//! gets no request, because this process may serve it.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use rustix::mount::UnmountFlags;

use super::fusermount;
use crate::mountinfo::{self, mounted_at};

/// A mount made by this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FuseMount {
    target: PathBuf,
    /// Major and minor number of its device.
    device: Option<(u32, u32)>,
}

impl FuseMount {
    pub(super) fn at(target: PathBuf) -> Self {
        let device = mounted_at(&target).ok().flatten().map(|mounted| mounted.device);
        Self { target, device }
    }

    /// The mount point, without symbolic links.
    #[must_use]
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// The minor number of its device, which names it in /sys/fs/fuse/connections and
    /// /sys/class/bdi.
    #[must_use]
    pub fn minor(&self) -> Option<u32> {
        self.device.map(|(_, minor)| minor)
    }

    /// Whether it is still mounted, in this process's mount namespace.
    ///
    /// # Errors
    /// /proc cannot be read.
    pub fn is_there(&self) -> io::Result<bool> {
        let mut all = mountinfo::current()?.into_iter();
        Ok(all.any(|mounted| Some(mounted.device) == self.device && mounted.target == self.target))
    }

    /// Detaches it at once; open files remain usable.
    ///
    /// # Errors
    /// umount2(2) or fusermount3 failed.
    pub fn detach(&self) -> io::Result<()> {
        match rustix::mount::unmount(&self.target, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Err(rustix::io::Errno::PERM) => fusermount::detach(&self.target),
            other => other.map_err(io::Error::from),
        }
    }

    /// Detaches it if it is still mounted; returns whether it was.
    ///
    /// # Errors
    /// As [`FuseMount::is_there`] and [`FuseMount::detach`].
    pub fn detach_if_there(&self) -> io::Result<bool> {
        if !self.is_there()? {
            return Ok(false);
        }
        self.detach().map(|()| true)
    }

    /// Aborts the connection: all waiting and later requests fail with ECONNABORTED.
    ///
    /// # Errors
    /// fusectl is not mounted on /sys/fs/fuse/connections, or this user has no permission.
    pub fn abort(&self) -> io::Result<()> {
        let minor = self.minor().ok_or(io::ErrorKind::NotFound)?;
        fs::write(format!("/sys/fs/fuse/connections/{minor}/abort"), "1")
    }

    /// Sets the kernel's read-ahead (128 KiB by default).
    ///
    /// # Errors
    /// This user has no permission, or /sys is not mounted.
    pub fn set_read_ahead(&self, kibibytes: u32) -> io::Result<()> {
        let minor = self.minor().ok_or(io::ErrorKind::NotFound)?;
        fs::write(format!("/sys/class/bdi/0:{minor}/read_ahead_kb"), kibibytes.to_string())
    }
}
