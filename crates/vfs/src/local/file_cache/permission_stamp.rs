//! A file's permissions at the moment when a right was checked. As long as they are the same, the
//! kernel would decide the same, because mode, owner, group and access control list do not change
//! without one of these.
//!
//! Writing changes the ctime, too. A write of ours updates the stamp (under the file's lock, and
//! only if the attributes after it show nothing but the write), so that readers and writers of one
//! file need not ask again each time. If others change an access control list between our check and
//! our write, or in the same step of the file system's clock (milliseconds before Linux 6.13), that
//! does not show. So the sweeper marks updated stamps as doubtful, and the kernel is asked again.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use curt_types::{Attributes, Timestamp};
use parking_lot::Mutex;

/// A file's permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::local) struct PermissionStamp {
    mode: u32,
    uid: u32,
    gid: u32,
    ctime: Timestamp,
}

impl PermissionStamp {
    pub(in crate::local) const fn of(attributes: &Attributes) -> Self {
        Self {
            mode: attributes.mode,
            uid: attributes.uid,
            gid: attributes.gid,
            ctime: attributes.ctime,
        }
    }
}

/// The stamp that all descriptors of one file share, and how often it changed by other than writes
/// of ours.
#[derive(Debug)]
pub(super) struct SharedPermissionStamp(Mutex<SharedPermissionStampState>);

#[derive(Debug)]
struct SharedPermissionStampState {
    stamp: PermissionStamp,
    epoch: u32,
    /// Whether a write of ours has updated the stamp since it was last marked as doubtful.
    carried: bool,
}

impl SharedPermissionStamp {
    pub(super) const fn new(stamp: PermissionStamp) -> Self {
        Self(Mutex::new(SharedPermissionStampState {
            stamp,
            epoch: 0,
            carried: false,
        }))
    }

    /// Has the rights to a file checked once more if changes of them may be hidden by writes of
    /// ours.
    pub(super) fn require_recheck(&self) {
        let mut current = self.0.lock();
        if std::mem::take(&mut current.carried) {
            current.epoch = current.epoch.wrapping_add(1);
        }
    }
}

/// A file that is open for I/O by somebody who had the right to it.
#[derive(Debug)]
pub(in crate::local) struct OpenLocalFile {
    fd: Arc<OwnedFd>,
    shared: Arc<SharedPermissionStamp>,
    /// The epoch in which the right was last checked. Relaxed: it is compared under the lock of
    /// `shared`.
    checked: AtomicU32,
}

impl OpenLocalFile {
    /// `stamp`: what the file said before it was opened.
    pub(super) fn new(fd: OwnedFd, shared: Arc<SharedPermissionStamp>, stamp: PermissionStamp) -> Self {
        let file = Self {
            fd: Arc::new(fd),
            shared,
            checked: AtomicU32::new(0),
        };
        file.check_passed(stamp);
        file
    }

    /// The descriptor, for as long as somebody needs it.
    pub(in crate::local) fn descriptor(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.fd)
    }

    /// Whether the right was checked when the file said what it says now.
    pub(in crate::local) fn is_checked(&self, now: PermissionStamp) -> bool {
        let current = self.shared.0.lock();
        current.stamp == now && current.epoch == self.checked.load(Ordering::Relaxed)
    }

    /// Notes that the right was checked after the file said `now`.
    pub(in crate::local) fn check_passed(&self, now: PermissionStamp) {
        let mut current = self.shared.0.lock();
        if current.stamp != now {
            current.stamp = now;
            current.epoch = current.epoch.wrapping_add(1);
        }
        self.checked.store(current.epoch, Ordering::Relaxed);
    }

    /// Notes what a write of ours left. Under the file's lock.
    pub(in crate::local) fn update_after_own_write(&self, before: PermissionStamp, after: &Attributes) {
        let stamp = PermissionStamp::of(after);
        // A write sets both times alike; a later change of anything else only the one.
        let written = after.ctime == after.mtime
            && (stamp.mode, stamp.uid, stamp.gid) == (before.mode, before.uid, before.gid);
        let mut current = self.shared.0.lock();
        if written && current.stamp == before {
            current.stamp = stamp;
            current.carried = true;
        }
    }

    /// Whether nobody but the cache has it.
    pub(super) fn is_idle(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) == 1 && Arc::strong_count(&self.fd) == 1
    }
}

impl AsFd for OpenLocalFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
