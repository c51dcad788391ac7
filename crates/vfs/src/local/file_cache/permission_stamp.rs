//! A file's permissions at the time of an access check. While they are the same, the kernel would
//! decide the same, because mode, owner, group and access control list do not change without a
//! change of one of these.
//!
//! A write changes the ctime as well. A WRITE updates the stamp (under the file's lock, and only if
//! the attributes after it differ only by the write), so that readers and writers of one file do
//! not repeat the check each time. A change of an access control list by another process between
//! the check and the write, or in the same step of the file system's clock (milliseconds before
//! Linux 6.13), is then not visible. So the sweeper marks updated stamps, and the check is
//! repeated.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use curt_types::{Attributes, Timestamp};
use parking_lot::Mutex;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::local) struct PermissionStamp {
    mode: u32,
    uid: u32,
    gid: u32,
    ctime: Timestamp,
}

impl PermissionStamp {
    pub(in crate::local) const fn of(attributes: &Attributes) -> Self {
        Self { mode: attributes.mode, uid: attributes.uid, gid: attributes.gid, ctime: attributes.ctime }
    }
}

/// The stamp that all descriptors of one file share, and the number of its changes other than by
/// the server's writes.
#[derive(Debug)]
pub(super) struct SharedPermissionStamp(Mutex<SharedPermissionStampState>);

#[derive(Debug)]
struct SharedPermissionStampState {
    stamp: PermissionStamp,
    epoch: u32,
    /// Whether a write has updated the stamp since the last sweep.
    carried: bool,
}

impl SharedPermissionStamp {
    pub(super) const fn new(stamp: PermissionStamp) -> Self {
        Self(Mutex::new(SharedPermissionStampState { stamp, epoch: 0, carried: false }))
    }

    /// Requires a new access check if writes may hide changes of the permissions.
    pub(super) fn require_recheck(&self) {
        let mut current = self.0.lock();
        if std::mem::take(&mut current.carried) {
            current.epoch = current.epoch.wrapping_add(1);
        }
    }
}

/// A file that was opened for I/O by a caller with permission.
#[derive(Debug)]
pub(in crate::local) struct OpenLocalFile {
    fd: Arc<OwnedFd>,
    shared: Arc<SharedPermissionStamp>,
    /// The epoch of the last access check. Relaxed: it is compared under the lock of `shared`.
    checked: AtomicU32,
    /// A lease shares the descriptor. Relaxed: it is set by the thread that opened the file, which
    /// has a reference meanwhile.
    is_leased: AtomicBool,
}

impl OpenLocalFile {
    /// `stamp`: the permissions before it was opened.
    pub(super) fn new(fd: OwnedFd, shared: Arc<SharedPermissionStamp>, stamp: PermissionStamp) -> Self {
        let (checked, is_leased) = (AtomicU32::new(0), AtomicBool::new(false));
        let file = Self { fd: Arc::new(fd), shared, checked, is_leased };
        file.check_passed(stamp);
        file
    }

    /// The descriptor.
    pub(in crate::local) fn descriptor(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.fd)
    }

    /// The descriptor, for a lease. The lease keeps it open, but not in the cache.
    pub(in crate::local) fn share_with_lease(&self) -> Arc<OwnedFd> {
        self.is_leased.store(true, Ordering::Relaxed);
        self.descriptor()
    }

    /// Whether the access check was made with the permissions `now`.
    pub(in crate::local) fn is_checked(&self, now: PermissionStamp) -> bool {
        let current = self.shared.0.lock();
        current.stamp == now && current.epoch == self.checked.load(Ordering::Relaxed)
    }

    /// Records that an access check with the permissions `now` was successful.
    pub(in crate::local) fn check_passed(&self, now: PermissionStamp) {
        let mut current = self.shared.0.lock();
        if current.stamp != now {
            current.stamp = now;
            current.epoch = current.epoch.wrapping_add(1);
        }
        self.checked.store(current.epoch, Ordering::Relaxed);
    }

    /// Updates the stamp after a write. Called under the file's lock.
    pub(in crate::local) fn update_after_own_write(&self, before: PermissionStamp, after: &Attributes) {
        let stamp = PermissionStamp::of(after);
        // A write sets both times to the same value; any other later change sets only one.
        let written = after.ctime == after.mtime
            && (stamp.mode, stamp.uid, stamp.gid) == (before.mode, before.uid, before.gid);
        let mut current = self.shared.0.lock();
        if written && current.stamp == before {
            current.stamp = stamp;
            current.carried = true;
        }
    }

    /// Whether only the cache and a lease have a reference.
    pub(super) fn is_idle(self: &Arc<Self>) -> bool {
        let idle = 1 + usize::from(self.is_leased.load(Ordering::Relaxed));
        Arc::strong_count(self) == 1 && Arc::strong_count(&self.fd) <= idle
    }
}

impl AsFd for OpenLocalFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
