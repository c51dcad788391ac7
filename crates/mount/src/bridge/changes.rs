//! Telling the kernel of changes that the client found by itself, on a thread of its own.
//!
//! The client finds them inside operations that may hold pages of the very file (a READ does): the kernel would wait for
//! those pages while the operation waits for the kernel. An open is different; it tells the kernel itself, before it is
//! answered.
//!
//! A directory whose names changed is told on the spot, for that waits for nothing: all names that the kernel keeps are to be
//! asked for again, which costs no request where this client still knows them. (The kernel cannot be told of one directory's
//! names, nor of all missing ones, without naming each.) So are attributes alone, which takes no page and no lock of the
//! kernel's that an operation could hold.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock, Weak};

use curt_client::{InodeId, Observer};
use curt_fuse::{NodeId, Notifier};
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

/// The offset from which no page is void.
const ATTRIBUTES_ALONE: i64 = -1;

/// Inodes whose copies in the kernel are void, until the kernel is told.
#[derive(Debug, Default)]
pub struct Changes {
    pending: Mutex<Pending>,
    more: Condvar,
    notifier: OnceLock<Notifier>,
}

#[derive(Debug, Default)]
struct Pending {
    inodes: HashSet<InodeId>,
    ended: bool,
}

impl Changes {
    /// Tells `notifier` until [`Changes::end`] or the end of the mount.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn tell(self: &Arc<Self>, notifier: Notifier) -> std::io::Result<()> {
        // A mount has one session.
        let _ = self.notifier.set(notifier.clone());
        let changes: Weak<Self> = Arc::downgrade(self);
        let name = "changes".to_owned();
        std::thread::Builder::new()
            .name(name)
            .stack_size(128 * 1024)
            .spawn(move || {
                while let Some(inode) = changes.upgrade().and_then(|changes| changes.next()) {
                    // ENOENT: the kernel has no copy. ENODEV: the mount has ended.
                    if notifier.invalidate_inode(NodeId(inode.0), 0, 0) == Err(Errno::NODEV) {
                        return;
                    }
                }
            })?;
        Ok(())
    }

    /// Ends the thread.
    pub fn end(&self) {
        self.pending.lock().ended = true;
        self.more.notify_all();
    }

    fn next(&self) -> Option<InodeId> {
        let mut pending = self.pending.lock();
        loop {
            if pending.ended {
                return None;
            }
            if let Some(&inode) = pending.inodes.iter().next() {
                pending.inodes.remove(&inode);
                return Some(inode);
            }
            self.more.wait(&mut pending);
        }
    }
}

impl Observer for Changes {
    fn contents_changed(&self, id: InodeId) {
        self.pending.lock().inodes.insert(id);
        self.more.notify_one();
    }

    fn names_changed(&self, id: InodeId) {
        if let Some(notifier) = self.notifier.get() {
            // A kernel that does not know it was promised no name for any time.
            let _ = notifier.increment_epoch();
        }
        // Attributes, and a listing that the kernel keeps.
        self.contents_changed(id);
    }

    fn attributes_changed(&self, id: InodeId) {
        if let Some(notifier) = self.notifier.get() {
            // ENOENT: the kernel keeps none. ENODEV: the mount has ended.
            let _ = notifier.invalidate_inode(NodeId(id.0), ATTRIBUTES_ALONE, 0);
        }
    }
}
